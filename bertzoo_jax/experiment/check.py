"""Checks that need no weights, with the messages of pretrain, finetune and preflight."""

import math
import os
import pathlib
import re

import jax

from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.experiment import build
from bertzoo_jax.experiment import resolve
from bertzoo_jax.hf import architectures
from bertzoo_jax.objectives import BY_NAME as OBJECTIVES
from bertzoo_jax.parts import named
from bertzoo_jax.parts import ranges
from bertzoo_jax.training import cost
from bertzoo_jax.training import optimizers
from bertzoo_jax.training import phase_run as phase_runs
from bertzoo_jax.training import schedules
from bertzoo_jax.training import sharding

_CGROUP = pathlib.Path('/sys/fs/cgroup/memory.max')  # the limit of a container
_HOST = pathlib.Path('/proc/meminfo')


def config(run: resolve.Run) -> resolve.Run:
  """Returns the run. Raises UserError for mistakes in the config: unknown names, rows that are too
  long.
  """
  whole = run.config
  for phase in run.phases:
    ranges.check_fields(phase.config)
    schedules.for_phase(phase.config.schedule, phase.first_step, phase.steps, run.end_step)
    named.resolve(phase.config.objective.name, OBJECTIVES, 'objective')
  named.resolve(whole.optimizer.name, optimizers.BY_NAME, 'optimizer')
  architectures.choose(whole.hf)
  vocab_size = named.field(whole.tokenizer, 'vocab_size', {}, 'tokenizer')
  # a size of 'auto' is known only to the corpus; the limit does not depend on it
  limit = build.shared_encoder(
    run, 1 if vocab_size == configuration.AUTO else vocab_size
  ).max_positions
  if limit is not None and run.length > limit:
    raise errors.UserError(
      f'The longest phase has rows of {run.length} tokens, encoder.max_positions is {limit}: set '
      f'--config.length={limit} or less, or train a network with more positions.'
    )
  return run


def built(built_run: build.Built) -> build.Built:
  """Returns `built_run`. Raises UserError for a mistake in any remaining phase: rows that cannot be
  split, parts that exclude each other, text without rows, a state that no device here can hold.
  """
  run, vocab_size = built_run.run, built_run.data.vocab_size
  batches(run.phases, built_run.mesh, jax.process_count())
  for phase_run in built_run.phase_runs:
    parts(run, phase_run.phase, phase_run.data.features, vocab_size, built_run.mesh)
    for rows_of_corpus in phase_run.data.held_out.values():
      rows_of_corpus.count()
  built_run.phase_runs[0].data.train.count()  # later phases count their rows when they begin
  order(run, [phase_run.phase for phase_run in built_run.phase_runs], vocab_size, built_run.mesh)
  memory(built_run.phase_runs[0])
  return built_run


def batches(phases, mesh, hosts: int) -> None:
  """Raises UserError if rows cannot be split over microbatches, devices and hosts."""
  for phase in phases:
    where = f'in phase {phase.index}, ' if len(phases) > 1 else ''
    rows, accumulation = phase.config.batch_size, phase.config.run.accumulation
    accumulation = 1 if accumulation == configuration.AUTO else accumulation
    sharding.check_batch(rows, accumulation, mesh, hosts, where)


def parts(run: resolve.Run, phase, features, vocab_size: int, mesh) -> None:
  """Raises UserError if a phase cannot learn from rows with these features, on this mesh."""
  network = build.network(run, phase, vocab_size, mesh)
  rows(phase.config, features, network.encoder, network.objective)
  _draws(phase.config, network.objective)


def order(run: resolve.Run, phases, vocab_size: int, mesh) -> None:
  """Raises UserError if a phase cannot continue from the state of the phase before it."""
  before, summands_before, lanes_before = set(), {}, None
  for phase in phases:
    network = build.network(run, phase, vocab_size, mesh)
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
        f'Phase {phase.index} does not train {lost[0]}, which the phase before it does: a phase '
        'may add parameters, not drop them. Order them the other way, or make two runs with --init.'
      )
    kept = summands.keys() & summands_before.keys()
    if any(summands[path] != summands_before[path] for path in kept):
      raise errors.UserError(
        f'Only one of phase {phase.index} and the phase before it has objective.shared=added: give '
        'both phases the same, or make two runs with --init. With added, the stored table is one '
        'summand.'
      )
    before, summands_before, lanes_before = trained, summands, lanes


def rows(config, features, network, objective):
  """Raises UserError if an objective cannot learn from the rows of a phase. features: the batch
  features that format and masking write. network: the encoder.
  """
  part = f'objective={config.objective.name}, encoder={config.encoder.name}'
  errors.refuse_pack_ids((*objective.reads, *objective.may_read), part)
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
      f'{part} is for a network that reads {unread[0]!r}. The network of objective='
      f'{config.objective.name} does not, so it {why}: take another {part.split("=")[0]}.'
    )
  _carry(config, objective)
  _spans(config)
  if 'pair_labels' in features and network.type_vocab_size == 1:
    raise errors.UserError(
      f'format={config.format.name} has two segments, encoder.type_vocab_size is 1: take 2, or 0 '
      'for none.'
    )


def memory(phase_run) -> None:
  """Raises UserError if the state of a phase takes more memory than a device here has."""
  target, _ = phase_run.target
  needed, total = per_device(target), memory_of(phase_run.mesh.local_devices)
  if total is not None and needed > total:
    parameters = cost.parameters(phase_runs.param_shapes(target))
    raise errors.UserError(
      f'The network has {parameters:,} parameters. Parameters and optimizer state take '
      f'{needed / 1e9:,.1f} GB per device, and a device here has {total / 1e9:,.1f} GB: take a '
      'smaller encoder or tokenizer.vocab_size, or more devices with run.mesh along fsdp.'
    )


def per_device(tree) -> int:
  """Bytes per device of a tree of shape structs with shardings."""
  return sum(
    math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
  )


def _carry(config, objective):
  """Raises UserError for an encoder with another reuse_length than the rows of a phase."""
  if not _has_memory(objective):
    return
  model, rows = config.encoder, config.format
  if 'reuse_length' in model and 'reuse_length' in rows and model.reuse_length != rows.reuse_length:
    raise errors.UserError(
      f'encoder.reuse_length={model.reuse_length} and format.reuse_length={rows.reuse_length}: '
      'set both to the same number: the tokens by which rows move on are those that it keeps.'
    )


def _spans(config):
  """Raises UserError if an objective predicts places of a span without borders in the masking."""
  objective = config.objective
  if 'num_offsets' in objective and 'max_pair_targets' in config.masking:
    if objective.num_offsets > (most := config.masking.max_pair_targets):
      raise errors.UserError(
        f'objective.num_offsets={objective.num_offsets} is above masking.max_pair_targets={most}: '
        f'set it to {most} or less, since the masking writes no borders for later tokens.'
      )


def _draws(config, objective):
  """Raises UserError for rows that are compared with no other row, or with themselves."""
  if objective.couple and config.batch_size == 1:
    raise errors.UserError(
      f'objective={config.objective.name} compares the rows of a batch, and batch_size is 1: set '
      '--config.batch_size=16 or more.'
    )
  rates = {name: x for name, x in config.encoder.items() if name.endswith('dropout')}
  if config.objective.name == 'contrastive' and rates and not any(rates.values()):
    raise errors.UserError(
      'objective=contrastive compares two draws of dropout, and all rates of the encoder are 0: '
      f'set --config.encoder.{"dropout" if "dropout" in rates else next(iter(rates))}=0.1.'
    )


def _has_memory(objective) -> bool:
  return bool(jax.tree.leaves(jax.eval_shape(lambda: objective.carry(1))))


def memory_of(devices) -> int | None:
  """Bytes of memory per device; None if unknown. CPU devices share the memory of the host."""
  if devices[0].platform != 'cpu':
    return (devices[0].memory_stats() or {}).get('bytes_limit')
  total = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
  if _HOST.exists() and (free := re.search(r'MemAvailable:\s+(\d+)', _HOST.read_text())):
    total = 1024 * int(free[1])  # what other programs do not use
  limit = _CGROUP.read_text().strip() if _CGROUP.exists() else 'max'
  return min(total, int(limit) if limit.isdecimal() else total) // len(devices)
