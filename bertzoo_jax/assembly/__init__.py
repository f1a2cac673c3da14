"""From a config's sections to the parts of a run: encoder, objective, optimizer, phase_run. What
`pretrain` runs is what `preflight` compiles.
"""

import dataclasses
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp

from bertzoo_jax import kernels
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.common import parts
from bertzoo_jax.model import encoder as encoders
from bertzoo_jax.model import operations
from bertzoo_jax.model import protocol
from bertzoo_jax.objectives import BY_NAME as OBJECTIVES
from bertzoo_jax.objectives.objective import Objective
from bertzoo_jax.parts import ranges
from bertzoo_jax.training import optimizers
from bertzoo_jax.training import phase_run as phase_runs
from bertzoo_jax.training import schedules
from bertzoo_jax.training import sharding

DTYPES = {'float32': jnp.float32, 'bfloat16': jnp.bfloat16}


class Network(NamedTuple):
  """What a phase trains, on a mesh.

  Attributes:
    encoder, objective: as built.
    shapes: of the parameters, a tree of shape structs.
    schedule: step → learning rate.
    tx: the optimizer.
  """

  encoder: Any
  objective: Objective
  shapes: Any
  schedule: Any
  tx: Any

  @property
  def paths(self) -> dict[str, tuple[int, ...]]:
    """{path: shape} of the parameters."""
    return optimizers.paths_of(self.shapes)

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
  _networks: dict = dataclasses.field(default_factory=dict, init=False, repr=False)

  @property
  def end_step(self) -> int:
    return self.phases[-1].end_step

  def network(self, phase, vocab_size: int, mesh=None) -> Network:
    """The network of a phase, built and traced once. mesh: None for any one device.

    Raises:
      UserError: a field that its part does not have, or parts that do not go together.
    """
    key = phase.index, vocab_size, mesh
    if key not in self._networks:
      self._networks[key] = self._network(phase, vocab_size, mesh)
    return self._networks[key]

  def _network(self, phase, vocab_size, mesh):
    config, ops = phase.config, operations.PLAIN
    network = encoder(config, vocab_size)
    if mesh is not None:
      chosen = kernels.choose(
        config.run.kernels,
        mesh.devices.flat[0],
        network.attention_dropout,
        network.relative_attention,
        network.dtype,
      )
      ops = operations_on(mesh, chosen, network.axes)
    objective = parts.build(config.objective, OBJECTIVES, 'objective', encoder=network, ops=ops)
    if not isinstance(objective, Objective):
      raise errors.UserError(
        f'objective={config.objective.name} gives a {type(objective).__name__}: return an '
        'Objective (bertzoo_jax/objectives/objective.py).'
      )
    shapes = jax.eval_shape(objective.init, jax.random.key(0))
    schedule = schedules.for_phase(config.schedule, phase.first_step, phase.steps, self.end_step)
    tx = parts.build(
      self.config.optimizer,
      optimizers.BY_NAME,
      'optimizer',
      schedule,
      optimizers.paths_of(shapes),
    )
    return Network(network, objective, shapes, schedule, tx)


def resolve(config) -> Run:
  """The run of a config. Raises UserError for what can be known from the config alone."""
  run = planned(config)
  check(run)
  return run


def planned(config) -> Run:
  """As `resolve`, where only numbers and phases are checked."""
  return Run(config, ranges.check(config, choices=False))


def check(run: Run):
  """Raises UserError for a name that names nothing, or rows that are too long."""
  config = run.config
  for phase in run.phases:
    ranges.check_fields(phase.config)
    schedules.for_phase(phase.config.schedule, phase.first_step, phase.steps, run.end_step)
    parts.resolve(phase.config.objective.name, OBJECTIVES, 'objective')
  parts.resolve(config.optimizer.name, optimizers.BY_NAME, 'optimizer')
  vocab_size = parts.field(config.tokenizer, 'vocab_size', {}, 'tokenizer')
  # the limit does not depend on the size, which only the corpus tells where it is 'auto'
  limit = encoder(config, 1 if vocab_size == configuration.AUTO else vocab_size).max_positions
  longest = max(phase.config.length for phase in run.phases)
  if limit is not None and longest > limit:
    raise errors.UserError(
      f'The longest phase has rows of {longest} tokens, encoder.max_positions is {limit}: set '
      f'--config.length={limit} or less, or train a network with more positions.'
    )


def encoder(config, vocab_size):
  """The encoder of a config. Raises UserError if it lacks what protocol.Encoder promises."""
  built = parts.build(
    config.encoder,
    encoders.BY_NAME,
    'encoder',
    vocab_size=vocab_size,
    dtype=DTYPES[config.run.dtype],
    unroll=config.run.unroll or 1,
    remat=config.run.remat,
  )
  if lacking := protocol.lacking(built):
    raise errors.UserError(
      f'encoder={config.encoder.name} lacks {", ".join(lacking)}: bertzoo_jax/model/protocol.py '
      'lists what an encoder has.'
    )
  return built if config.run.unroll else built.clone(parent=None, unroll=built.num_layers)


def phase_run(run: Run, phase, data, mesh, end) -> phase_runs.PhaseRun:
  """A phase's data and network, checked against each other."""
  phase_data = data.phase(phase)
  network = run.network(phase, data.vocab_size, mesh)
  check_rows(phase.config, phase_data.features, network.encoder, network.objective)
  _check_whole_batch(phase.config, network.objective, mesh)
  return phase_runs.PhaseRun(
    phase.first_step,
    min(phase.end_step, end),
    network.objective,
    network.tx,
    network.schedule,
    phase_data,
    mesh,
    run.config.seed,
    phase.config.run.accumulation,
    phase.index,
    phase.examples,
    phase.first_example,
  )


def _check_whole_batch(config, objective, mesh):
  """Raises UserError if a loss that couples rows would see a part of the batch."""
  parts_of = {
    'run.accumulation': (config.run.accumulation, '--config.run.accumulation=1'),
    'run.mesh': (sharding.rows_over(mesh), f'--config.run.mesh="(1,1,{mesh.size})" or one device'),
  }
  for field, (parts_count, remedy) in parts_of.items():
    if objective.couples_rows and parts_count > 1:
      raise errors.UserError(
        f'objective={config.objective.name} couples the rows of a batch, and {field} splits them '
        f'into {parts_count} parts, each with another loss: take {remedy}.'
      )


def check_rows(config, features, network, objective):
  """Raises UserError if an objective cannot learn from the rows of a phase.

  Args:
    config: of the phase; messages name its parts.
    features: names of the batch features that format and masking write.
    network: the encoder.
    objective: its Objective.
  """
  if missing := [name for name in objective.reads if name not in features]:
    raise errors.UserError(
      f'objective={config.objective.name} needs {", ".join(missing)}, which '
      f'format={config.format.name} with masking={config.masking.name} does not write: take '
      'another --config …,format= or ,masking= (bertzoo_jax/batches/README.md says which writes '
      'what), or another ,objective=.'
    )
  if unread := [
    name
    for name in ('order', 'resets')
    if name in features and name not in (*objective.reads, *objective.may_read)
  ]:
    part, why = {
      'order': (f'masking={config.masking.name}', 'would see the tokens that it predicts'),
      'resets': (f'format={config.format.name}', 'has no memory of the rows before'),
    }[unread[0]]
    raise errors.UserError(
      f'{part} is for a network that reads {unread[0]!r}. That of objective='
      f'{config.objective.name} does not, so it {why}: take another {part.split("=")[0]}.'
    )
  _check_memory(config, objective)
  _check_spans(config)
  if 'pair_labels' in features and network.type_vocab_size == 1:
    raise errors.UserError(
      f'format={config.format.name} has two segments, encoder.type_vocab_size is 1: take 2, or 0 '
      'for none.'
    )


def _check_memory(config, objective):
  """Raises UserError for an encoder whose memory does not fit the rows of a phase."""
  if not _has_memory(objective):
    return
  own, rows = config.encoder, config.format
  if 'reuse_length' in own and 'reuse_length' in rows and own.reuse_length != rows.reuse_length:
    raise errors.UserError(
      f'encoder.reuse_length={own.reuse_length} and format.reuse_length={rows.reuse_length}: set '
      'both to the same, since the memory keeps the tokens by which the rows move on.'
    )


def _check_spans(config):
  """Raises UserError if an objective has places in a span to which the masking gives no borders."""
  own = config.objective
  if 'num_offsets' in own and 'max_pair_targets' in config.masking:
    if own.num_offsets > (most := config.masking.max_pair_targets):
      raise errors.UserError(
        f'objective.num_offsets={own.num_offsets} is above masking.max_pair_targets={most}: set it '
        f'to {most} or less, since the masking gives no borders to later places.'
      )


def _has_memory(objective) -> bool:
  return bool(jax.tree.leaves(jax.eval_shape(lambda: objective.carry(1))))


def operations_on(mesh, chosen: kernels.Kernels, axes) -> operations.Operations:
  """What a model is handed on a mesh. axes: of its encoder, what a mesh may split."""
  return operations.Operations(
    *sharding.on_mesh(mesh, chosen),
    sharding.constrain(mesh),
    sharding.kernel_gradients(mesh, axes) or operations.PLAIN.kernel_gradients,
  )


def check_batches(phases, mesh, hosts: int):
  """Raises UserError if the rows of a phase cannot be split over microbatches, devices and
  hosts.
  """
  for phase in phases:
    where = f'in phase {phase.index}, ' if len(phases) > 1 else ''
    rows, accumulation = phase.config.batch_size, phase.config.run.accumulation
    sharding.check_batch(rows, accumulation, mesh, hosts, where)


def check_phases(run: Run, phases, data, mesh, end):
  """Raises UserError for what would be wrong when a later phase begins. Data of the phases are
  stand-in text.
  """
  before, summands_before, lanes_before = set(), {}, None
  for phase in phases:
    phase_run(run, phase, data._replace(phase=data.trial), mesh, end)
    network = run.network(phase, data.vocab_size, mesh)
    trained, summands = set(network.paths), network.summands
    lanes = phase.config.batch_size if _has_memory(network.objective) else None
    if None not in (lanes, lanes_before) and lanes != lanes_before:
      raise errors.UserError(
        f'Phase {phase.index} has batches of {lanes} rows, the phase before it of {lanes_before}: '
        'the memory goes from each row to the same row of the next step, so give both phases one '
        'batch_size, or make two runs with --init.'
      )
    if lost := sorted(before - trained):
      raise errors.UserError(
        f'Phase {phase.index} does not train {lost[0]}, which the phase before it does: a later '
        'phase may add parameters, '
        'not drop them. Order the phases the other way, or make two runs with --init.'
      )
    kept = summands.keys() & summands_before.keys()
    if any(summands[path] != summands_before[path] for path in kept):
      raise errors.UserError(
        f'Only one of phase {phase.index} and the phase before it has objective.shared=added: give '
        'both phases one objective.shared, or make two runs with --init. With added, a stored word '
        'table is a summand of the word vectors; else it is all of them.'
      )
    before, summands_before, lanes_before = trained, summands, lanes
