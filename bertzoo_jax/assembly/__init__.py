"""From a config to a `Run`: its phases and their networks, for pretrain and preflight alike."""

import dataclasses
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
from bertzoo_jax.model import encoder as encoders
from bertzoo_jax.model import operations
from bertzoo_jax.model import protocol
from bertzoo_jax.objectives import BY_NAME as OBJECTIVES
from bertzoo_jax.objectives.objective import Objective
from bertzoo_jax.parts import named
from bertzoo_jax.parts import ranges
from bertzoo_jax.training import optimizers
from bertzoo_jax.training import phase_run as phase_runs
from bertzoo_jax.training import schedules
from bertzoo_jax.training import sharding

# The values of `auto` without a device (machinery.py).
USUAL = {'unroll': 1, 'remat': 'none', 'dtype': 'bfloat16'}


class Network(NamedTuple):
  """The network, objective and optimizer of a phase, on a mesh.

  Attributes:
    encoder, objective: as built.
    shapes: of the parameters, a tree of shape structs.
    schedule: step → learning rate.
    tx: the optimizer.
    objective_at: traced step → the objective with its numbers there; None where none moves.
  """

  encoder: Any
  objective: Objective
  shapes: Any
  schedule: Any
  tx: Any
  objective_at: Any = None

  @property
  def paths(self) -> dict[str, tuple[int, ...]]:
    """{path: shape} of the parameters."""
    return trees.paths_of(self.shapes)

  @property
  def summands(self) -> dict[str, bool]:
    """{path of a parameter: whether its network computes with sums of parameters}."""
    found = {}
    for network in sorted(self.objective.networks, key=lambda network: network.into is None):
      found |= dict.fromkeys(network.places(self.shapes).values(), network.into is not None)
    return found


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
  """A config, resolved: `resolve` makes it.

  Attributes:
    config: an experiment, locked.
    phases: in order.
  """

  config: Any
  phases: tuple[configuration.Phase, ...]
  _made: dict = dataclasses.field(default_factory=dict, init=False, repr=False)

  @property
  def length(self) -> int:
    """Tokens of the longest rows."""
    return max(phase.config.length for phase in self.phases)

  @property
  def end_step(self) -> int:
    return self.phases[-1].end_step

  def encoder(self, vocab_size: int):
    """The encoder of all phases. Raises UserError if it cannot be built."""
    return self._once(vocab_size, lambda: encoder(self.config, vocab_size))

  def network(self, phase, vocab_size: int, mesh=None) -> Network:
    """The network of a phase, built and traced once. phase: one of `phases`. mesh: None for
    any one device.

    Raises:
      UserError: a field that its part does not have, or parts that do not go together.
    """
    key = phase.index, vocab_size, mesh
    return self._once(key, lambda: self._network(phase, vocab_size, mesh))

  def changed(self, values: dict) -> 'Run':
    """The run with these fields set, {'run.remat': 'full'}, in all phases."""

    def of(whole):
      made = whole.copy_and_resolve_references().unlock()
      with made.ignore_type():  # a number in place of 'auto'
        made.update_from_flattened_dict(values)
      return made.lock()

    phases = tuple(dataclasses.replace(p, config=of(p.config)) for p in self.phases)
    return Run(of(self.config), phases)

  def _once(self, key, make):
    if key not in self._made:
      self._made[key] = make()
    return self._made[key]

  def _network(self, phase, vocab_size, mesh):
    config, ops = phase.config, operations.PLAIN
    network = self.encoder(vocab_size)
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
    if moves := moving.of(config, 'objective'):
      fields = {**config.objective}
      part = named.resolve(fields.pop('name'), OBJECTIVES, 'objective')
      moved = lambda step, moves: {m.field: m.at(step, jnp) for m in moves}
      objective_at = lambda step, moves=moves: part(
        encoder=network, ops=ops, **{**fields, **moved(step, moves)}
      )
    shapes = jax.eval_shape(objective.init, jax.random.key(0))
    for move in moves:
      _check_move(move.field, functools.partial(objective_at, moves=(move,)), shapes)
    schedule = schedules.for_phase(config.schedule, phase.first_step, phase.steps, self.end_step)
    tx = named.build(
      self.config.optimizer, optimizers.BY_NAME, 'optimizer', schedule, trees.paths_of(shapes)
    )
    return Network(network, objective, shapes, schedule, tx, objective_at)


def _check_move(field, objective_at, shapes):
  """Raises UserError for a field of the objective whose values make different networks."""
  init = lambda step: objective_at(step).init(jax.random.key(0))
  try:
    same = trees.paths_of(jax.eval_shape(init, jnp.int32(0))) == trees.paths_of(shapes)
  except TypeError:  # jax's, where a shape or a branch depends on the step
    same = False
  if not same:
    raise errors.UserError(
      f'config.moving moves objective.{field}, whose values make different networks: move the '
      'weight of a loss or a temperature, and give it a value above 0 in the config.'
    )


def resolve(config) -> Run:
  """The run of a config. Raises UserError for a wrong number or phase; checks.py finds the rest."""
  return Run(config, ranges.check(config, choices=False))


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


def phase_run(run: Run, phase, data, mesh, end: int) -> phase_runs.PhaseRun:
  """A phase with its data and network, to run until the step `end` at most."""
  network = run.network(phase, data.vocab_size, mesh)
  return phase_runs.PhaseRun(
    phase,
    min(phase.end_step, end),
    network.objective,
    network.tx,
    network.schedule,
    data.phase(phase),
    mesh,
    network.objective_at,
  )


def operations_on(mesh, chosen: kernels.Kernels, axes) -> operations.Operations:
  """The operations of a model on a mesh. axes: the table of its encoder."""
  return operations.Operations(
    *sharding.on_mesh(mesh, chosen),
    sharding.constrain(mesh),
    sharding.kernel_gradients(mesh, axes) or operations.PLAIN.kernel_gradients,
  )
