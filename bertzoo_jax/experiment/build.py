"""Builds the parts of a run, each once: encoder, objective and optimizer of its phases, with data
on a mesh.
"""

import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp

from bertzoo_jax import kernels
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.common import moving
from bertzoo_jax.common import trees
from bertzoo_jax.experiment import resolve
from bertzoo_jax.model import encoder as encoders
from bertzoo_jax.model import operations
from bertzoo_jax.model import protocol
from bertzoo_jax.objectives import BY_NAME as OBJECTIVES
from bertzoo_jax.objectives.objective import Objective
from bertzoo_jax.parts import named
from bertzoo_jax.training import cost
from bertzoo_jax.training import optimizers
from bertzoo_jax.training import per_device
from bertzoo_jax.training import phase_run as phase_runs
from bertzoo_jax.training import schedules
from bertzoo_jax.training import sharding

# The values of `auto` without a device (machinery.py).
USUAL = {'unroll': 1, 'remat': 'none', 'dtype': 'bfloat16'}


class Network(NamedTuple):
  """The network, objective and optimizer of a phase, on a mesh."""

  encoder: Any
  objective: Objective
  shapes: Any  # shapes of the parameters, a tree of shape structs
  schedule: Any  # step → learning rate
  tx: Any  # the optimizer
  # traced step → the objective with its moving fields at that step; None without any
  objective_at: Any = None
  plain: Any = None  # the objective in plain XLA, without recomputation, for counting FLOPs

  @property
  def paths(self) -> dict[str, tuple[int, ...]]:
    """{path: shape} of the parameters."""
    return trees.paths_of(self.shapes)

  @property
  def summands(self) -> dict[str, bool]:
    """{path of a parameter: True if the network adds parameters to form its arrays}."""
    is_sum = {}
    for network in sorted(self.objective.networks, key=lambda network: network.insert is None):
      is_sum |= dict.fromkeys(network.places(self.shapes).values(), network.insert is not None)
    return is_sum


class Built(NamedTuple):
  """A run from its start step to its end, ready to train."""

  run: resolve.Run  # with values in place of `auto`
  data: Any  # see training.data.Data
  phase_runs: list[phase_runs.PhaseRun]  # PhaseRun of each remaining phase, in order

  @property
  def mesh(self):
    return self.phase_runs[0].mesh


def phases(run: resolve.Run, data, mesh, start: int) -> Built:
  """The phases of a run that remain after `start` steps, with their networks and data."""
  end = run.end_step
  remaining = [p for p in run.phases if min(start, end - 1) < p.end_step]
  return Built(run, data, [phase_run(run, phase, data, mesh) for phase in remaining])


def phase_run(run: resolve.Run, phase, data, mesh) -> phase_runs.PhaseRun:
  """A phase with its network and its data."""
  net, rows = network(run, phase, data.vocab_size, mesh), data.phases[phase.index]
  parts = net.objective, net.tx, net.schedule, rows, mesh, net.objective_at, net.plain
  before = run.phases[max(phase.index - 1, 0)].config.frozen
  return phase_runs.PhaseRun(phase, *parts, frees=not {*before} <= {*phase.config.frozen})


def network(run: resolve.Run, phase, vocab_size: int, mesh=None) -> Network:
  """The network of a phase, built and traced once. phase: one of `run.phases`. mesh: None for a
  single device.

  Raises UserError: a field that its part does not have, or parts that exclude each other.
  """
  key = phase.index, vocab_size, mesh
  if key not in run.built:
    run.built[key] = _network(run, phase, vocab_size, mesh)
  return run.built[key]


def flops(run: resolve.Run, data, mesh=None) -> list[float]:
  """FLOPs of all steps of each phase (cost.step_flops)."""

  def phase_flops(phase):
    net, rows = network(run, phase, data.vocab_size, mesh), data.phases[phase.index]
    return phase.steps * cost.step_flops(net.plain, net.shapes, rows.batch)

  if 'flops' not in run.built:
    run.built['flops'] = [phase_flops(phase) for phase in run.phases]
  return run.built['flops']


def shared_encoder(run: resolve.Run, vocab_size: int):
  """The encoder of all phases, built once. Errors: see `encoder`."""
  if vocab_size not in run.built:
    run.built[vocab_size] = encoder(run.config, vocab_size)
  return run.built[vocab_size]


def encoder(config, vocab_size):
  """The encoder of a config. Raises UserError if it lacks a member of protocol.Encoder."""
  unroll, remat, dtype = (
    usual if config.run[field] == configuration.AUTO else config.run[field]
    for field, usual in USUAL.items()
  )
  built = named.build(
    config.encoder,
    encoders.BY_NAME,
    'encoder',
    vocab_size=vocab_size,
    dtype=encoders.DTYPES[dtype],
    unroll=unroll or 1,
    remat=remat,
  )
  if lacking := protocol.lacking(built):
    raise errors.UserError(
      f'encoder={config.encoder.name} lacks {", ".join(lacking)}: put @protocol.encoder above it, '
      'or write them (bertzoo_jax/model/protocol.py).'
    )
  return built if unroll else built.clone(parent=None, unroll=built.num_layers)


def operations_on(mesh, chosen: kernels.Kernels, axes) -> operations.Operations:
  """The operations of a model on a mesh. axes: the table of its encoder."""
  return operations.Operations(
    *per_device.on_mesh(mesh, chosen),
    sharding.constrain(mesh),
    per_device.kernel_gradients(mesh, axes) or operations.PLAIN.kernel_gradients,
  )


def _network(run, phase, vocab_size, mesh):
  config, ops = phase.config, operations.PLAIN
  network = shared_encoder(run, vocab_size)
  if mesh is not None:
    chosen = kernels.choose(
      config.run.kernels,
      mesh.devices.flat[0],
      network.attention_dropout,
      network.relative_attention,
      network.dtype,
      network.padding_side,
    )
    ops = operations_on(mesh, chosen, network.axes)
  objective = named.build(config.objective, OBJECTIVES, 'objective', encoder=network, ops=ops)
  if not isinstance(objective, Objective):
    raise errors.UserError(
      f'objective={config.objective.name} gives a {type(objective).__name__}: return an '
      'Objective (bertzoo_jax/objectives/objective.py).'
    )
  objective_at = None
  if moves := moving.get_moves(config, 'objective'):
    fields = {**config.objective}
    part = named.resolve(fields.pop('name'), OBJECTIVES, 'objective')
    moved = lambda step, moves: {m.field: m.at(step, jnp) for m in moves}
    objective_at = lambda step, moves=moves: named.call(
      part, {**fields, **moved(step, moves)}, encoder=network, ops=ops
    )
  shapes = jax.eval_shape(objective.init, jax.random.key(0))
  optimizers.check_frozen(config.frozen, trees.paths_of(shapes))
  objective = objective._replace(frozen=(*objective.frozen, *config.frozen))
  for move in moves:
    _check_move(move.field, functools.partial(objective_at, moves=(move,)), shapes)
  schedule = schedules.for_phase(config.schedule, phase.first_step, phase.steps, run.end_step)
  tx = named.build(
    run.config.optimizer, optimizers.BY_NAME, 'optimizer', schedule, trees.paths_of(shapes)
  )
  whole = network.clone(parent=None, unroll=1, remat='none')
  plain = named.build(
    config.objective, OBJECTIVES, 'objective', encoder=whole, ops=operations.PLAIN
  )
  return Network(network, objective, shapes, schedule, tx, objective_at, plain)


def _check_move(field, objective_at, shapes):
  """Raises UserError for a field of the objective whose values make different networks."""
  init = lambda step: objective_at(step).init(jax.random.key(0))
  try:
    same = trees.paths_of(jax.eval_shape(init, jnp.int32(0))) == trees.paths_of(shapes)
  except TypeError:  # jax's, if a shape or a branch depends on the step
    same = False
  if not same:
    raise errors.UserError(
      f'config.moving moves objective.{field}, whose values make different networks: move the '
      'weight of a loss or a temperature, and give it a value above 0 in the config.'
    )
