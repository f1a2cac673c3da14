"""Computations per device, on its part of the arrays (shard_map): kernels that the compiler cannot
split, gradients of split parameters, and sums that are reduced once at the end.
"""

import math

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from bertzoo_jax.training import sharding


def on_mesh(mesh, kernels):
  """(attend, add_norm) for a model on a mesh.

  A kernel that the compiler cannot split is wrapped in shard_map: rows over data and fsdp, heads
  over tensor. If tensor does not divide the heads, each device along it attends with all heads.
  Each device gets the index of its first head, and each row has its key, so dropout is the same on
  any mesh.
  """
  if kernels.partitioned or mesh.size == 1:
    return kernels.attend, kernels.add_norm
  rows, whole = PartitionSpec(sharding.ROWS), PartitionSpec()

  def attend(q, k, v, visible, dropout_rate=0.0, dropout_keys_B2=None, relative=None, scale=None):
    if sharding.inside_shard_map():
      return kernels.attend(q, k, v, visible, dropout_rate, dropout_keys_B2, relative, scale)
    divides = q.shape[2] % mesh.shape['tensor'] == 0
    spec = lambda *axes: PartitionSpec(*axes, 'tensor') if divides else PartitionSpec(*axes[:1])
    terms, relation = ((None,) * 5, None) if relative is None else relative.apart()
    row_R, relation = relation and relation.row_R, relation and relation._replace(row_R=None)
    statics = visible.statics()

    def part(learned, others, kept):
      (q, k, v, *terms), (mask, relation, keys) = learned, others
      return kernels.attend(
        q,
        k,
        v,
        mask._replace(**statics),
        dropout_rate,
        keys,
        relation and relation.joined(*terms)._replace(row_R=row_R),
        scale,
        first_head=jax.lax.axis_index('tensor') * q.shape[2] if divides else 0,
        keep=kept is None,
        kept=kept,
      )

    heads, table, vector = spec(sharding.ROWS, None), spec(None), spec()
    arrays = visible._replace(**dict.fromkeys(statics))
    places = (heads, heads, heads, table, table, table, vector, heads), (rows,) * 3
    operands = (q, k, v, *terms), (arrays, relation, dropout_keys_B2)
    return _on_parts(mesh, part, operands, places, heads, (spec(sharding.ROWS), heads), 'attended')

  def add_norm(x, y, scale, shift, eps, dropout_rate=0.0, dropout_keys_B2=None, with_sum=False):
    if sharding.inside_shard_map():
      return kernels.add_norm(x, y, scale, shift, eps, dropout_rate, dropout_keys_B2, with_sum)
    part = lambda learned, others, _: kernels.add_norm(
      *learned, eps, dropout_rate, *others, with_sum
    )
    arrays = (x, y, scale, shift), (dropout_keys_B2,)
    return _on_parts(mesh, part, arrays, ((rows, rows, whole, whole), (rows,)), rows)

  return attend, add_norm


def kernel_gradients(mesh, table):
  """The `kernel_gradients` of a model's operations; None for the default. Reduce-scatters the
  gradients of parameters that are split over fsdp.

  The compiler alone would all-reduce them, which is twice the bytes. It still does so if tensor
  splits parameters too, and may do so on large slices (bench/README.md).
  """
  if mesh.shape['fsdp'] == 1 or mesh.shape['tensor'] > 1:
    return None

  def summed(path, shape, sums, x_ND, grad_NF):
    spec = sharding.spec_of(sharding.first_match(table, path) or {}, shape, mesh)[0]
    # the rows of a table of relative positions need not divide
    if 'fsdp' not in spec or len(x_ND) % sharding.rows_over(mesh):
      return sums(x_ND, grad_NF)
    axis = spec.index('fsdp')
    axis = 0 if math.prod(shape[:axis]) < x_ND.shape[1] else 1  # of the kernel as a matrix

    def part(x_ND, grad_NF):
      kernel_sum, bias_sum = sums(x_ND, grad_NF)
      kernel_sum = jax.lax.psum_scatter(kernel_sum, 'fsdp', scatter_dimension=axis, tiled=True)
      return jax.lax.psum(kernel_sum, 'data'), jax.lax.psum(bias_sum, sharding.ROWS)

    rows, split = PartitionSpec(sharding.ROWS), PartitionSpec(*[None] * axis, 'fsdp')
    return jax.shard_map(
      part, mesh=mesh, in_specs=(rows, rows), out_specs=(split, PartitionSpec()), check_vma=False
    )(x_ND, grad_NF)

  return summed


def _on_parts(mesh, f, arrays, places, result, kept=None, name=None):
  """f(learned, others, None) on each device's part of the arrays. Only `learned` gets a gradient.

  Each device computes gradients of its part. A shared array's gradient is summed only over devices
  that computed different parts of the result: jax alone would sum over all devices, and count
  repeated parts twice. arrays, places: (learned, others) and their specs. With `kept`, a spec, f
  returns (result, residuals), and the backward pass calls it with the residuals in place of None.
  name: of the residuals, for policies of jax.checkpoint.
  """
  split = lambda f, ins, out: jax.shard_map(
    f, mesh=mesh, in_specs=ins, out_specs=out, check_vma=False
  )
  axes = lambda spec: {
    axis for part in spec if part for axis in ((part,) if isinstance(part, str) else part)
  }
  sum_axes = [tuple(sorted(axes(result) - axes(place))) for place in places[0]]
  pair = lambda out: (out, None) if kept is None else out
  forward = split(lambda learned, others: pair(f(learned, others, None)), places, (result, kept))

  def forward_and_kept(*arrays):
    out, rest = forward(*arrays)
    return out, (*arrays, jax.tree.map(lambda x: checkpoint_name(x, name), rest))

  def backward(saved, grad):

    def part_gradients(learned, others, rest, grad):
      grads = jax.vjp(lambda *learned: f(learned, others, rest), *learned)[1](grad)
      return tuple(jax.lax.psum(x, over) if over else x for x, over in zip(grads, sum_axes))

    return split(part_gradients, (*places, kept, result), places[0])(*saved, grad), None

  on_parts = jax.custom_vjp(lambda *arrays: forward(*arrays)[0])
  on_parts.defvjp(forward_and_kept, backward)
  return on_parts(*arrays)


def summed_at_end(f, mesh):
  """f(common, rows) → (sums, rows), with the sums of all devices added once, at the end.

  Each device computes with its rows alone (`sharding.inside_shard_map`). The compiler alone would
  add gradients over all devices in each microbatch, and the gradient of a table once per use. It
  still does so if parameters are split: then no device holds a whole gradient.
  f: takes two trees, arrays that all devices hold and rows of the batch; returns two such trees.
  """
  if mesh is None or mesh.shape['data'] < mesh.size:
    return f

  def part(common, rows):
    sums, rows = f(common, rows)
    return jax.lax.psum(sums, sharding.AXES), rows

  specs = PartitionSpec(), PartitionSpec(sharding.ROWS)
  return jax.shard_map(part, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=False)
