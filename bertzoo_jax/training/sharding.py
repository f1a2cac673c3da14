"""Sharding: one mesh (data, fsdp, tensor), and ordered tables from names to its axes.

    data     splits rows of the batch; parameters are replicated
    fsdp     splits rows of the batch; parameters and the optimizer's state are split too, and
             gathered for use
    tensor   splits heads, feed-forward units and vocabulary; rows are replicated

The rules for parameters stand beside the modules (`axes` of an encoder, model/blocks.py): path
regex → {axis of the mesh: axes of the parameter, from its end, that it may split}. An axis that is
not named is not split. The first match wins; no match is an error. `tensor` chooses first, `fsdp`
among the other axes. A rule may list alternatives: the first axis that divides wins, and parameters
that a mesh could not split are printed at start. Rules name trailing axes, so the stacked axis of a
scanned stack is invisible to them.
"""

import re

import jax
import numpy as np
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
  """The mesh with axes (data, fsdp, tensor), its devices ordered by their interconnect, if known.

  shape: devices along the axes; one may be -1 and takes the rest. devices: None for all; they may
  belong to a topology that is only described. Raises UserError if the shape does not use each
  device once, or if tensor does not divide the devices of a host.
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
      f'{count}; -1 takes the rest.'
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
  """Number of devices that the rows of a batch are split over."""
  return mesh.shape['data'] * mesh.shape['fsdp']


def parameter_shardings(tree, mesh, table) -> tuple[dict, list[str]]:
  """(tree of NamedSharding for a nested dict of arrays or shape structs, a line for each parameter
  that could not be split over an axis of its rule).

  table: ordered (path regex, {axis of the mesh: axes of the parameter}). Raises UserError for a
  path that no rule matches.
  """
  notes = []

  def place(key_path, leaf):
    path = trees.path_of(key_path)
    rule = first_match(table, path)
    if rule is None:
      raise errors.UserError(
        f'No rule says how a mesh may split the parameter {path!r}: add one to `axes` of its '
        'encoder or objective.'
      )
    spec, whole = spec_of(rule, leaf.shape, mesh)
    for axis in whole:
      parts = mesh.shape[axis]
      notes.append(
        f'{path} {tuple(leaf.shape)} is replicated on all {parts} devices along {axis}: no axis '
        'that its rule names divides by them.'
      )
      if axis == 'tensor' and path.endswith('attention/query/kernel'):
        notes[-1] += f' Attention of its {leaf.shape[-2]} head(s) is computed by each of them, too.'
    return NamedSharding(mesh, PartitionSpec(*spec))

  return jax.tree_util.tree_map_with_path(place, tree), notes


def spec_of(rule, shape, mesh):
  """(mesh axis or None for each axis of a parameter, mesh axes of the rule that do not divide)."""
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


def state_shardings(state, parameter_shardings, mesh):
  """Shardings of a train state: moments are split like their parameters, the carry's rows like the
  batch, all else is replicated. state: of shape structs.
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


def batch_sharding(mesh, before: int = 0) -> NamedSharding:
  """Rows over `data` and `fsdp`, whole on `tensor`. before: number of axes before the rows."""
  return NamedSharding(mesh, PartitionSpec(*[None] * before, ROWS))


def to_devices(batch: dict, mesh, batch_size: int, before: int = 0) -> dict:
  """A host's rows [rows of this host, …] as global arrays. batch_size: rows of all hosts. before:
  number of axes before the rows.
  """
  place = batch_sharding(mesh, before)
  whole = lambda shape: (*shape[:before], batch_size, *shape[before + 1 :])
  return {
    k: jax.make_array_from_process_local_data(place, v, whole(v.shape)) for k, v in batch.items()
  }


def constrain(mesh, table=ACTIVATIONS):
  """A model's `constrain(name, x)`: shards an activation by the table, along axes that divide."""

  def pin(name, x):
    if inside_shard_map():
      return x
    fits = (
      axes if axes and size % _devices_along(mesh, axes) == 0 else None
      for axes, size in zip(first_match(table, name), x.shape)
    )
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*fits)))

  return (lambda name, x: x) if mesh.size == 1 else pin


def inside_shard_map() -> bool:
  """True while traced inside `per_device.summed_at_end`, where arrays are one device's part."""
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


def first_match(table, name):
  return next((value for regex, value in table if re.search(regex, name)), None)


def _devices_along(mesh, axes) -> int:
  return int(np.prod([mesh.shape[axis] for axis in (axes if isinstance(axes, tuple) else (axes,))]))


def _wired(shape, devices):
  """The devices [data, fsdp, tensor] with links along the axes; None if unknown."""
  try:
    return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
  # a part of a slice, or a shape the links do not make
  except (AssertionError, NotImplementedError, ValueError):
    return None


def _in_order_of_hosts(grid) -> bool:
  """Whether each host's devices hold the rows that the host reads."""
  hosts = np.vectorize(lambda d: d.process_index)(grid).reshape(-1, grid.shape[-1])
  return bool((hosts == hosts[:, :1]).all() and (np.diff(hosts[:, 0]) >= 0).all())
