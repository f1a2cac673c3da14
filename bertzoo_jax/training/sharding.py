"""Where numbers live: one mesh (data, model), and ordered tables from names to axes of it.

A rule names trailing axes, so that the stacked axis of a scanned stack is invisible to it. A rule may list alternatives:
the first whose axes divide the array wins, and what a mesh could not split is replicated and said at start.
"""

import re

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

from bertzoo_jax import errors
from bertzoo_jax.training import optimizers

AXES = ('data', 'model')

# Path regex → alternatives, each a spec of trailing axes. First match wins, no match is an error.
PARAMETERS = (
    (r'embeddings/word/embedding$', (('model', None), (None, 'model'))),
    (r'embeddings/(position|type)/embedding$', ((),)),
    (r'embedding_projection/', ((),)),
    (r'attention/(query|key|value)/kernel$', ((None, 'model', None),)),
    (r'attention/(query|key|value)/bias$', (('model', None),)),
    (r'attention/output/kernel$', (('model', None, None),)),
    (r'feed_forward/in/kernel$', ((None, 'model'),)),
    (r'feed_forward/in/bias$', (('model',),)),
    (r'feed_forward/out/kernel$', (('model', None),)),
    (r'(output|out)/bias$', ((),)),
    (r'norm/(scale|bias)$', ((),)),
    (r'_head/bias$', (('model',),)),
    (r'_head/', ((),)),
)

# What a model passes to `constrain`, as a spec of leading axes. First match wins, no match is an error.
ACTIVATIONS = (
    (r'^heads$', ('data', None, 'model', None)),
    (r'^feed_forward$', ('data', None, 'model')),
    (r'^logits$', ('data', None, 'model')),
    (r'', ('data',)),
)


def mesh(shape: tuple[int, int], devices=None) -> jax.sharding.Mesh:
  """The mesh with axes (data, model) over all devices, those of one process next to each other along `data`.

  Args:
    shape: devices along data and model; one may be -1 and takes what is left.
    devices: all of them if None.

  Raises:
    UserError: the shape does not use each device once.
  """
  devices = jax.devices() if devices is None else list(devices)
  count, known = len(devices), int(np.prod([n for n in shape if n != -1]))
  if len(shape) != 2 or list(shape).count(-1) > 1 or known < 1 or count % known or (-1 not in shape and known != count):
    raise errors.UserError(f'run.mesh is {tuple(shape)} for {count} devices: (data, model) must multiply to {count}; -1 takes what is left.')
  data, model = (count // known if n == -1 else n for n in shape)
  if jax.process_count() > 1 and jax.local_device_count() % model:
    raise errors.UserError(f'run.mesh has {model} devices along model, a host has {jax.local_device_count()}: '
                           'model must divide them, since a host feeds whole rows.')
  return jax.sharding.Mesh(np.array(devices).reshape(data, model), AXES)


def of_parameters(tree, mesh, table=PARAMETERS) -> tuple[dict, list[str]]:
  """Shardings of a tree of parameters, or of their shapes.

  Args:
    tree: nested dict of arrays or shape structs.
    mesh: the mesh.
    table: ordered (path regex, alternatives of trailing-axis specs).

  Returns:
    A tree of NamedSharding, and one line for each parameter that is replicated although its rule wanted it split.

  Raises:
    UserError: a path no rule matches.
  """
  notes = []

  def place(key_path, leaf):
    path = optimizers.path_of(key_path)
    alternatives = _first_match(table, path)
    if alternatives is None:
      raise errors.UserError(f'No sharding rule matches parameter {path!r}: add one to PARAMETERS in bertzoo_jax/training/sharding.py.')
    for spec in alternatives:
      full = (None,) * (len(leaf.shape) - len(spec)) + tuple(spec)
      if len(full) == len(leaf.shape) and all(axis is None or size % mesh.shape[axis] == 0 for axis, size in zip(full, leaf.shape)):
        return NamedSharding(mesh, PartitionSpec(*full))
    notes.append(f'{path} {tuple(leaf.shape)} is replicated: no axis of its rule divides by {mesh.shape["model"]} (model).')
    return NamedSharding(mesh, PartitionSpec())

  return jax.tree_util.tree_map_with_path(place, tree), notes


def of_state(state, parameter_shardings, mesh):
  """Shardings of a whole train state: what is shaped like the parameters goes where they are, the carry's rows are
  split like the batch, the rest is on every device.

  Args:
    state: TrainState of shape structs.
    parameter_shardings: as `of_parameters` returns.
    mesh: the mesh.
  """
  everywhere = NamedSharding(mesh, PartitionSpec())
  known = {optimizers.path_of(p): s for p, s in jax.tree_util.tree_leaves_with_path(parameter_shardings)}

  def place(key_path, leaf):
    parts = optimizers.path_of(key_path).split('/')
    if len(leaf.shape) == 0:
      return everywhere
    tails = ('/'.join(parts[i:]) for i in range(len(parts)))
    return next((known[tail] for tail in tails if tail in known), everywhere)

  return state.replace(
      step=everywhere, params=parameter_shardings, opt_state=jax.tree_util.tree_map_with_path(place, state.opt_state),
      carry=jax.tree.map(lambda _: batch_sharding(mesh), state.carry), nonfinite=jax.tree.map(lambda _: everywhere, state.nonfinite))


def batch_sharding(mesh) -> NamedSharding:
  """Rows over `data`, whole on `model`."""
  return NamedSharding(mesh, PartitionSpec('data'))


def to_devices(batch: dict, mesh, batch_size: int) -> dict:
  """A host's rows as global arrays. batch: name → numpy array [rows of this host, …]; batch_size: rows of all hosts."""
  place = batch_sharding(mesh)
  return {k: jax.make_array_from_process_local_data(place, v, (batch_size, *v.shape[1:])) for k, v in batch.items()}


def constrain(mesh, table=ACTIVATIONS):
  """The `constrain(name, x)` that a model is handed: pins an intermediate where its table says, where that divides."""

  def pin(name, x):
    spec = _first_match(table, name)
    spec = tuple(axis if i < len(x.shape) and axis and x.shape[i] % mesh.shape[axis] == 0 else None for i, axis in enumerate(spec))
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*spec[:len(x.shape)])))

  return (lambda name, x: x) if mesh.size == 1 else pin


def attend(mesh, kernel, partitioned: bool):
  """The `attend` that a model is handed.

  Args:
    mesh: the mesh.
    kernel: attend(q_BLHK, k_BLHK, v_BLHK, pack_ids_BL, dropout_rate, dropout_key) → out_BLHK.
    partitioned: True if the compiler can split the kernel by itself (plain XLA). A hand-written kernel cannot be split:
      it is wrapped in shard_map, rows over data and heads over model, with a dropout key of each device's own.
  """
  if partitioned or mesh.size == 1:
    return kernel
  heads = PartitionSpec('data', None, 'model', None)

  def wrapped(q, k, v, pack_ids, dropout_rate=0.0, dropout_key=None):

    def local(q, k, v, pack_ids, *key):
      own = None
      if key:
        own = jax.random.fold_in(key[0], jax.lax.axis_index('data') * mesh.shape['model'] + jax.lax.axis_index('model'))
      return kernel(q, k, v, pack_ids, dropout_rate, own)

    keys = () if dropout_key is None else (dropout_key,)
    specs = (heads, heads, heads, PartitionSpec('data'), *(PartitionSpec() for _ in keys))
    return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=heads, check_vma=False)(q, k, v, pack_ids, *keys)

  return wrapped


def check_batch(batch_size: int, accumulation: int, mesh, hosts: int) -> None:
  """Raises UserError if a batch of so many rows cannot be split over microbatches, devices and hosts."""
  data = mesh.shape['data']
  if accumulation < 1:
    raise errors.UserError(f'run.accumulation is {accumulation}: at least 1 is needed.')
  if batch_size % (accumulation * data) or batch_size % hosts:
    unit = int(np.lcm(accumulation * data, hosts))
    raise errors.UserError(
        f'batch_size {batch_size} does not divide into {accumulation} microbatches × {data} devices along data × {hosts} host(s): '
        f'take a multiple of {unit}, or another run.accumulation or run.mesh.')


def _first_match(table, name):
  return next((value for regex, value in table if re.search(regex, name)), None)
