"""What each device computes with its own part of the arrays (shard_map): kernels that the compiler
cannot split, gradients of split parameters, and sums that devices add up at the end.
"""

import math

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from bertzoo_jax.training import sharding


def on_mesh(mesh, kernels):
  """(attend, add_norm) for a model on a mesh.

  A kernel that the compiler cannot split is wrapped in shard_map: rows over data and fsdp, heads
  over tensor; where that does not divide the heads, each device along it attends with all of them.
  A device is told the first head of its part, and rows have their own keys, so that dropout is the
  same on any mesh.
  """
  if kernels.partitioned or mesh.size == 1:
    return kernels.attend, kernels.add_norm
  rows, whole = PartitionSpec(sharding.ROWS), PartitionSpec()

  def attend(q, k, v, visible, dropout_rate=0.0, dropout_keys_B2=None, relative=None, scale=None):
    if sharding.inside_shard_map():
      return kernels.attend(q, k, v, visible, dropout_rate, dropout_keys_B2, relative, scale)
    divides = q.shape[2] % mesh.shape['tensor'] == 0
    of = lambda *axes: PartitionSpec(*axes, 'tensor') if divides else PartitionSpec(*axes[:1])
    terms, told = ((None,) * 5, None) if relative is None else relative.apart()
    statics = visible.statics()

    def part(learned, others, kept):
      (q, k, v, *terms), (own, told, keys) = learned, others
      return kernels.attend(
        q,
        k,
        v,
        own._replace(**statics),
        dropout_rate,
        keys,
        told and told.joined(*terms),
        scale,
        first_head=jax.lax.axis_index('tensor') * q.shape[2] if divides else 0,
        keep=kept is None,
        kept=kept,
      )

    heads, table, vector = of(sharding.ROWS, None), of(None), of()
    arrays = visible._replace(**dict.fromkeys(statics))
    places = (heads, heads, heads, table, table, table, vector, heads), (rows,) * 3
    both = (q, k, v, *terms), (arrays, told, dropout_keys_B2)
    return _on_parts(mesh, part, both, places, heads, (of(sharding.ROWS), heads), 'attended')

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
  """The `kernel_gradients` that a model is handed, None for its own: each device gets its part
  alone of a gradient whose parameter is split over fsdp.

  Left to the compiler, all devices get all of it, which is twice the bytes; that stands where
  tensor splits parameters, too. On large slices the compiler may still choose to send all of it
  (bench/README.md).
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
      of_kernel, of_bias = sums(x_ND, grad_NF)
      of_kernel = jax.lax.psum_scatter(of_kernel, 'fsdp', scatter_dimension=axis, tiled=True)
      return jax.lax.psum(of_kernel, 'data'), jax.lax.psum(of_bias, sharding.ROWS)

    rows, split = PartitionSpec(sharding.ROWS), PartitionSpec(*[None] * axis, 'fsdp')
    return jax.shard_map(
      part, mesh=mesh, in_specs=(rows, rows), out_specs=(split, PartitionSpec()), check_vma=False
    )(x_ND, grad_NF)

  return summed


def _on_parts(mesh, f, arrays, places, result, kept=None, name=None):
  """f(learned, others, None) of each device's part of the arrays. Only the learned get a gradient.

  Each device computes gradients of its part. A shared array's gradient is summed only over devices
  that computed different parts of the result: jax alone would sum over all devices, and count what
  several computed twice. arrays, places: two tuples and their specs. With `kept`, a spec, f returns
  (result, the other arrays that its gradient needs), and is handed that for None in the backward
  pass. name: of the kept arrays, for policies of jax.checkpoint.
  """
  split = lambda f, ins, out: jax.shard_map(
    f, mesh=mesh, in_specs=ins, out_specs=out, check_vma=False
  )
  axes = lambda spec: {
    axis for part in spec if part for axis in ((part,) if isinstance(part, str) else part)
  }
  apart = [tuple(sorted(axes(result) - axes(place))) for place in places[0]]
  pair = lambda out: (out, None) if kept is None else out
  forward = split(lambda learned, others: pair(f(learned, others, None)), places, (result, kept))

  def forward_and_kept(*arrays):
    out, rest = forward(*arrays)
    return out, (*arrays, jax.tree.map(lambda x: checkpoint_name(x, name), rest))

  def backward(saved, grad):

    def of_part(learned, others, rest, grad):
      grads = jax.vjp(lambda *learned: f(learned, others, rest), *learned)[1](grad)
      return tuple(jax.lax.psum(x, over) if over else x for x, over in zip(grads, apart))

    return split(of_part, (*places, kept, result), places[0])(*saved, grad), None

  on_parts = jax.custom_vjp(lambda *arrays: forward(*arrays)[0])
  on_parts.defvjp(forward_and_kept, backward)
  return on_parts(*arrays)


def summed_at_end(f, mesh):
  """f(common, rows) → (sums, rows) such that devices add up what they have found when they are
  done, and not on the way.

  Each computes with its own rows alone (`sharding.inside_shard_map`). Left to the compiler,
  gradients are added up over all devices in each microbatch, and that of a table that is used twice
  once for each use. That is what happens where parameters are split: devices then have no whole
  gradient to keep.
  f: of two trees, arrays that all devices have and rows of the batch; it returns two such.
  """
  if mesh is None or mesh.shape['data'] < mesh.size:
    return f

  def part(common, rows):
    sums, rows = f(common, rows)
    return jax.lax.psum(sums, sharding.AXES), rows

  specs = PartitionSpec(), PartitionSpec(sharding.ROWS)
  return jax.shard_map(part, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=False)
