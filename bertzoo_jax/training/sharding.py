"""Where numbers live: one mesh (data, fsdp, tensor), and ordered tables from names to its axes.

    data     rows of the batch; parameters are whole
    fsdp     rows of the batch; parameters and the optimizer's state are split, and gathered where
             they are used
    tensor   heads, feed-forward units and vocabulary are split; rows are whole

The rules for parameters stand beside the modules (`axes` of an encoder, model/blocks.py): path
regex → {axis of the mesh: axes of the parameter, from its end, that it may split}. An axis that is
not named is not split. The first match wins; no match is an error. `tensor` chooses first, `fsdp`
among the other axes. A rule may list alternatives: the first axis that divides wins, and parameters
that a mesh could not split are printed at start. Rules name trailing axes, so the stacked axis of a
scanned stack is invisible to them.
"""

import math
import re

import jax
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import mesh_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

from bertzoo_jax.common import errors
from bertzoo_jax.common import trees

AXES = ('data', 'fsdp', 'tensor')
ROWS = ('data', 'fsdp')  # the axes that rows of the batch are split over

# The names that a model passes to `constrain`, as specs of leading axes. First match wins, no match
# is an error.
ACTIVATIONS = (
  (r'^heads$', (ROWS, None, 'tensor', None)),
  (r'^feed_forward$', (ROWS, 'tensor')),
  (r'^logits$', (ROWS, None, 'tensor')),
  (r'', (ROWS,)),
)


def mesh(shape: tuple[int, int, int], devices=None) -> jax.sharding.Mesh:
  """The mesh with axes (data, fsdp, tensor), in an order that suits the wiring where that is known.

  shape: devices along the axes; one may be -1 and takes the rest. devices: all of them if None;
  they may be of a topology that is not there. Raises UserError if the shape does not use each
  device once, or splits rows that one host feeds.
  """
  devices = jax.devices() if devices is None else list(devices)
  count, known = len(devices), int(np.prod([n for n in shape if n != -1]))
  if len(shape) == 2:
    raise errors.UserError(
      f'run.mesh is {tuple(shape)}, it has three entries (data, fsdp, tensor): write '
      f'{(shape[0], 1, shape[1])}.'
    )
  wrong = len(shape) != 3 or list(shape).count(-1) > 1 or min(shape) < -1
  if wrong or known < 1 or count % known or (-1 not in shape and known != count):
    raise errors.UserError(
      f'run.mesh is {tuple(shape)} for {count} devices: (data, fsdp, tensor) must multiply to '
      f'{count}; -1 takes what is left.'
    )
  shape = tuple(count // known if n == -1 else n for n in shape)
  hosts = len({d.process_index for d in devices})
  if (count // hosts) % shape[2]:
    raise errors.UserError(
      f'run.mesh has {shape[2]} devices along tensor, a host has {count // hosts}: '
      'tensor must divide them, since a host feeds whole rows.'
    )
  grid = _wired(shape, devices)
  if grid is None or not _in_order_of_hosts(grid):
    grid = np.array(sorted(devices, key=lambda d: d.process_index)).reshape(shape)
  return jax.sharding.Mesh(grid, AXES)


def rows_over(mesh) -> int:
  """How many devices share the rows of a batch."""
  return mesh.shape['data'] * mesh.shape['fsdp']


def of_parameters(tree, mesh, table) -> tuple[dict, list[str]]:
  """(a tree of NamedSharding for a nested dict of arrays or shape structs, a line for each
  parameter that is whole on an axis its rule wanted it split over).

  table: ordered (path regex, {axis of the mesh: axes of the parameter}). Raises UserError for a
  path that no rule matches.
  """
  notes = []

  def place(key_path, leaf):
    path = trees.path_of(key_path)
    rule = _first_match(table, path)
    if rule is None:
      raise errors.UserError(
        f'No rule says how a mesh may split the parameter {path!r}: add one to `axes` of its '
        'encoder or objective.'
      )
    spec, whole = _spec(rule, leaf.shape, mesh)
    for axis in whole:
      parts = mesh.shape[axis]
      notes.append(
        f'{path} {tuple(leaf.shape)} is whole on all {parts} devices along {axis}: no axis that '
        'its rule names divides.'
      )
      if axis == 'tensor' and path.endswith('attention/query/kernel'):
        notes[-1] += f' Attention of its {leaf.shape[-2]} head(s) is computed by each of them, too.'
    return NamedSharding(mesh, PartitionSpec(*spec))

  return jax.tree_util.tree_map_with_path(place, tree), notes


def _spec(rule, shape, mesh):
  """(axis of the mesh or None for each axis of a parameter, axes the rule names in vain)."""
  spec, whole = [None] * len(shape), []
  for axis in ('tensor', 'fsdp'):
    if mesh.shape[axis] == 1 or axis not in rule:
      continue
    split = next(
      (i for i in rule[axis] if spec[i] is None and shape[i] % mesh.shape[axis] == 0), None
    )
    if split is None:
      whole.append(axis)
    else:
      spec[split] = axis
  return spec, whole


def of_state(state, parameter_shardings, mesh):
  """Shardings of a whole train state: arrays shaped like the parameters go where they are, the
  carry's rows are split like the batch, the rest is on every device. state: of shape structs.
  """
  everywhere = NamedSharding(mesh, PartitionSpec())
  known = {trees.path_of(p): s for p, s in jax.tree_util.tree_leaves_with_path(parameter_shardings)}

  def place(key_path, leaf):
    parts = trees.path_of(key_path).split('/')
    if len(leaf.shape) == 0:
      return everywhere
    tails = ('/'.join(parts[i:]) for i in range(len(parts)))
    return next((known[tail] for tail in tails if tail in known), everywhere)

  return state.replace(
    step=everywhere,
    params=parameter_shardings,
    opt_state=jax.tree_util.tree_map_with_path(place, state.opt_state),
    carry=jax.tree.map(lambda _: batch_sharding(mesh), state.carry),
    nonfinite=jax.tree.map(lambda _: everywhere, state.nonfinite),
    spikes=jax.tree.map(lambda _: everywhere, state.spikes),
    average=parameter_shardings if state.average else (),
  )


def batch_sharding(mesh) -> NamedSharding:
  """Rows over `data` and `fsdp`, whole on `tensor`."""
  return NamedSharding(mesh, PartitionSpec(ROWS))


def to_devices(batch: dict, mesh, batch_size: int) -> dict:
  """A host's rows [rows of this host, …] as global arrays. batch_size: rows of all hosts."""
  place = batch_sharding(mesh)
  return {
    k: jax.make_array_from_process_local_data(place, v, (batch_size, *v.shape[1:]))
    for k, v in batch.items()
  }


def constrain(mesh, table=ACTIVATIONS):
  """A model's `constrain(name, x)`: pins an intermediate where its table says, if that divides."""

  def pin(name, x):
    if inside_shard_map():
      return x
    spec = _first_match(table, name)
    fits = (
      axes if axes and size % _devices_along(mesh, axes) == 0 else None
      for axes, size in zip(spec, x.shape)
    )
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*fits)))

  return (lambda name, x: x) if mesh.size == 1 else pin


def on_mesh(mesh, kernels):
  """(attend, add_norm) for a model on a mesh.

  A kernel that the compiler cannot split is wrapped in shard_map: rows over data and fsdp, heads
  over tensor; where that does not divide the heads, each device along it attends with all of them.
  A device is told the first head of its part, and rows have their own keys, so that dropout is the
  same on any mesh.
  """
  if kernels.partitioned or mesh.size == 1:
    return kernels.attend, kernels.add_norm
  rows, whole = PartitionSpec(ROWS), PartitionSpec()

  def attend(q, k, v, visible, dropout_rate=0.0, dropout_keys_B2=None, relative=None, scale=None):
    if inside_shard_map():
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

    heads, table, vector = of(ROWS, None), of(None), of()
    arrays = visible._replace(**dict.fromkeys(statics))
    places = (heads, heads, heads, table, table, table, vector, heads), (rows,) * 3
    both = (q, k, v, *terms), (arrays, told, dropout_keys_B2)
    return _on_parts(mesh, part, both, places, heads, (of(ROWS), heads), 'attended')

  def add_norm(x, y, scale, shift, eps, dropout_rate=0.0, dropout_keys_B2=None, with_sum=False):
    if inside_shard_map():
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
    spec = _spec(_first_match(table, path) or {}, shape, mesh)[0]
    # the rows of a table of relative positions need not divide
    if 'fsdp' not in spec or len(x_ND) % rows_over(mesh):
      return sums(x_ND, grad_NF)
    axis = spec.index('fsdp')
    axis = 0 if math.prod(shape[:axis]) < x_ND.shape[1] else 1  # of the kernel as a matrix

    def part(x_ND, grad_NF):
      of_kernel, of_bias = sums(x_ND, grad_NF)
      of_kernel = jax.lax.psum_scatter(of_kernel, 'fsdp', scatter_dimension=axis, tiled=True)
      return jax.lax.psum(of_kernel, 'data'), jax.lax.psum(of_bias, ROWS)

    rows, split = PartitionSpec(ROWS), PartitionSpec(*[None] * axis, 'fsdp')
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

  Each computes with its own rows alone (`inside_shard_map`); left to the compiler, gradients are
  added up over all devices in each microbatch, and that of a table that is used twice once for each
  use. That is what happens where parameters are split: devices then have no whole gradient to keep.
  f: of two trees, arrays that all devices have and rows of the batch; it returns two such.
  """
  if mesh is None or mesh.shape['data'] < mesh.size:
    return f

  def part(common, rows):
    sums, rows = f(common, rows)
    return jax.lax.psum(sums, AXES), rows

  specs = PartitionSpec(), PartitionSpec(ROWS)
  return jax.shard_map(part, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=False)


def inside_shard_map() -> bool:
  """Whether this is traced inside `summed_at_end`, where arrays are a device's own."""
  return bool(jax.sharding.get_abstract_mesh().manual_axes)


def check_batch(batch_size: int, accumulation: int, mesh, hosts: int, where: str = '') -> None:
  """Raises UserError if rows cannot be split over microbatches, devices and hosts."""
  rows = rows_over(mesh)
  if accumulation < 1:
    raise errors.UserError(f'{where}run.accumulation is {accumulation}: at least 1 is needed.')
  if batch_size % (accumulation * rows) or batch_size % hosts:
    unit = int(np.lcm(accumulation * rows, hosts))
    over = f', nor over {hosts} hosts' if batch_size % hosts else ''
    raise errors.UserError(
      f'{where}batch_size {batch_size} does not divide into {accumulation} '
      f'microbatch{"es" * (accumulation > 1)} for {rows} devices along '
      f'data and fsdp{over}: take a multiple of {unit}, or another run.accumulation or run.mesh.'
    )


def _first_match(table, name):
  return next((value for regex, value in table if re.search(regex, name)), None)


def _devices_along(mesh, axes) -> int:
  return int(np.prod([mesh.shape[axis] for axis in (axes if isinstance(axes, tuple) else (axes,))]))


def _wired(shape, devices):
  """The devices [data, fsdp, tensor] with links along the axes; None where that is not known."""
  try:
    return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
  # a part of a slice, or a shape the links do not make
  except (AssertionError, NotImplementedError, ValueError):
    return None


def _in_order_of_hosts(grid) -> bool:
  """Whether each host's devices hold the rows that the host reads."""
  hosts = np.vectorize(lambda d: d.process_index)(grid).reshape(-1, grid.shape[-1])
  return bool((hosts == hosts[:, :1]).all() and (np.diff(hosts[:, 0]) >= 0).all())
