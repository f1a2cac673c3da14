"""One run from its config to its last checkpoint: what `pretrain` and `finetune` share."""

import contextlib
import json
import os
import platform
import zlib

import jax
import numpy as np

from bertzoo_jax import assembly
from bertzoo_jax import hf
from bertzoo_jax.assembly import checks
from bertzoo_jax.assembly import initial_weights
from bertzoo_jax.assembly import memory
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.common import progress
from bertzoo_jax.common import storage
from bertzoo_jax.hf import row_heads
from bertzoo_jax.training import checkpoint
from bertzoo_jax.training import cost
from bertzoo_jax.training import distributed
from bertzoo_jax.training import failures
from bertzoo_jax.training import lock
from bertzoo_jax.training import loop
from bertzoo_jax.training import metrics
from bertzoo_jax.training import phase_run as phase_runs
from bertzoo_jax.training import sharding
from bertzoo_jax.training import watchdog
from bertzoo_jax.training import workdir as workdirs


def train(run, workdir, open_data, *, init, notice, devices=None, show=True) -> dict:
  """Trains in a workdir, or resumes what is there.

  Args:
    run: an assembly.Run, see checks.of_run.
    workdir: folder of the run.
    open_data: () → training_data.Data.
    init: address of weights to begin with, or one for each network by comma; None for fresh ones.
    notice: a Preemption that listens.
    devices: of the mesh; None for all.
    show: whether to print progress.

  Returns:
    {'step', 'end', 'interrupted', 'held_out': metrics, 'data': its Data, 'to_come': what its Data
    says of steps beyond it, 'flops': of the whole run, as `Objective.published_flops` counts}.

  Raises:
    UserError: anything that does not fit, before anything is written.
    TryAgain, Stopped: see `pretrain`.
  """
  config = run.config
  workdirs.check_unlike(workdir, workdirs.A_CORPUS)
  with (
    workdirs.writable(workdir) as workdir,
    distributed.last_words(),
    distributed.watched(),
    lock.hold(workdir) if first_process() else contextlib.nullcontext(lambda: None) as check_held,
  ):
    data = open_data()
    workdirs.check_same_run(workdir, config, data.corpus['hash'])
    mesh = sharding.mesh(config.run.mesh, *([] if devices is None else [devices]))
    checks.of_batches(run.phases, mesh, jax.process_count())
    end = min(run.end_step, data.last_step or run.end_step)
    with enough_memory(config):
      result = _attempt(run, workdir, data, mesh, end, init, notice, show, check_held)
    return {
      **result,
      'held_out': result['held_out'] or _last_held_out(workdir),
      'end': end,
      'data': data,
      'to_come': data.still_to_come(run.phases),
      'flops': published_flops(run, data.vocab_size, mesh),
    }


def _last_held_out(workdir) -> dict:
  """The newest row of the metrics that an evaluation wrote; {} without any."""
  rows = reversed(metrics.read(workdir))
  return next((row for row in rows if row.get('held_out_loss') is not None), {})


def _attempt(run, workdir, data, mesh, end, init, notice, show, check_held) -> dict:
  """Resumes or begins the run, and trains. What loop.train returns."""
  config = run.config
  checkpoints = checkpoint.Checkpoints(
    workdir,
    keep=config.run.keep,
    keep_every=config.run.keep_every,
    run={'config': json.loads(configuration.to_json(config)), 'corpus': data.corpus},
  )
  start = checkpoints.newest() or 0
  here = next(p for p in run.phases if min(start, end - 1) < p.end_step)
  following = [p for p in run.phases if here.end_step <= p.first_step < end]
  checks.of_phases(run, [here, *following], data, mesh)
  phase_run = assembly.phase_run(run, here, data, mesh, end)
  memory.check(phase_run)
  later = [lambda p=p: assembly.phase_run(run, p, data, mesh, end) for p in following]
  state, origin, notes = _state(config, phase_run, checkpoints, start, init, data)
  notes += _export_notes(config.hf, run.network(here, data.vocab_size, mesh))

  attempt = 0
  if first_process():
    workdirs.describe(workdir, config, data.corpus, data.save_tokenizer)
    attempt = workdirs.add_attempt(
      workdir, corpus_hash=data.corpus['hash'], start_step=start, devices=_devices(), init=init
    )
  record, trackers = _records(config, workdir, start, attempt)
  bar = progress.Progress(end, start, show=show and first_process(), entropy=data.entropy)
  bar.say('\n'.join([*_overview(run, workdir, here, phase_run, state, data, mesh), origin, *notes]))
  training = loop.Loop(
    workdir=workdir,
    total_steps=end,
    vocab_size=data.vocab_size,
    machinery=config.run,
    checkpoints=checkpoints,
    record=record,
    trackers=trackers,
    progress=bar,
    preemption=notice,
    entropy=data.entropy,
    tokens_per_byte=data.tokens_per_byte,
    watchdog=watchdog.Watchdog(config.run.hang_minutes),
    check_held=check_held,
  )
  with contextlib.ExitStack() as stack:
    stack.enter_context(training.watchdog)
    # closed in the reverse order, also when the run fails
    for part in (checkpoints, record, trackers, bar):
      stack.callback(part.close)
    stack.enter_context(distributed.watched())  # before those: to close is to wait for all hosts
    stack.enter_context(enough_memory(config))
    return training.train(state, phase_run, later)


# --- the parts of a run, in the order of the story ---


def start_devices(config):
  """Sets the precision of products and opens the cache of compiled programs."""
  # otherwise an accelerator multiplies in fewer bits than it was asked for
  if config.run.dtype == 'float32':
    jax.config.update('jax_default_matmul_precision', 'highest')
  # which wins, where a machine has one for all runs
  if config.run.compile_cache and 'JAX_COMPILATION_CACHE_DIR' not in os.environ:
    folder = os.path.expanduser(config.run.compile_cache)
    # Programs for one CPU may not run on another: a home folder may serve several machines.
    folder = os.path.join(
      folder, _cpu() if jax.default_backend() == 'cpu' else jax.default_backend()
    )
    jax.config.update('jax_compilation_cache_dir', folder)
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.5)


def enough_memory(config):
  """As failures.enough_memory, for a run."""
  by_phase = any('run.accumulation' in overrides for _, overrides in config.phases)
  return failures.enough_memory(config.run, by_phase)


def _state(config, phase_run, checkpoints, start, init, data):
  """(TrainState, a line that says where it comes from, notes)."""
  target, notes = phase_run.target
  if start:
    also = ' (--init is for a first start: not used)' if init else ''
    return (
      checkpoints.restore(start, target),
      f'resuming from the checkpoint of step {start:,}{also}',
      notes,
    )
  given = storage.addresses(init or '')
  if phase_run.objective.frozen and len(given) < len(phase_run.objective.networks):
    raise errors.UserError(
      f'objective={config.objective.name} leaves a network as it is, and none was trained: put a '
      'phase with '
      'objective=generator_mlm before it, or give --init DISCRIMINATOR,GENERATOR.'
    )
  state = phase_runs.fresh(phase_run)
  if init is None:
    return state, f'fresh weights from seed {config.seed}', notes
  params, lines = initial_weights.parameters(
    state.params,
    init,
    phase_run.objective,
    data.tokenizer,
    config.hf,
    data.corpus.get('tokenizer_hash'),
    row_heads.task_of(config.objective).labels,
  )

  def place(x, to):
    return (
      x
      if isinstance(x, jax.Array)
      else jax.make_array_from_callback(
        x.shape, to.sharding, lambda index: np.asarray(x[index], to.dtype)
      )
    )

  return (
    state.replace(params=jax.tree.map(place, params, target.params)),
    f'weights from {init}, optimizer and step fresh',
    [*lines, *notes],
  )


def _export_notes(hf_class, network) -> list[str]:
  """What export will do about networks that config.hf cannot hold; of several, only the first is
  meant to be that class.
  """
  notes = [
    hf.fitting_note(
      hf_class,
      n.encoder.activation,
      hf.flatten(hf.placed(hf_class, jax.eval_shape(n.of, network.shapes), dict(n.reads))),
    )
    for n in network.objective.networks[:1]
  ]
  return [f'config.hf={note}' for note in notes if note]


def _records(config, workdir, start, attempt):
  """The metrics and the trackers of this attempt; other processes than the first write nothing."""
  if not first_process():
    return metrics.Nothing(), metrics.Nothing()
  trackers = metrics.Trackers(
    workdir,
    start,
    configuration.flatten(config),
    tensorboard=config.run.tensorboard,
    wandb=config.run.wandb,
  )
  return metrics.Record(workdir, start, attempt), trackers


def _overview(run, workdir, here, phase_run, state, data, mesh):
  """The block at the start, line by line."""
  config = run.config
  shapes = phase_runs.param_shapes(state)
  flops = phase_run.objective.flops(state.params, phase_run.feature_shapes)
  lines = [
    f'workdir   {workdir} · commit {(workdirs.commit() or "unknown")[:12]} · jax {jax.__version__}',
    f'devices   {_devices()} · {jax.process_count()} host(s) · mesh '
    + ' × '.join(f'{axis} {size}' for axis, size in mesh.shape.items()),
    f'network   {config.encoder.name}, {cost.parameters(shapes):,} parameters · '
    f'{config.objective.name} · products in {config.run.dtype}',
    f'text      {data.corpus["hash"][:12]} · vocabulary {data.vocab_size:,}'
    + (
      f' · {data.corpus["tokens"]:,} tokens · unigram entropy {data.entropy:.3f} nats'
      if data.entropy is not None
      else ''
    ),
  ]
  # of a batch of options, each unit is several rows
  of_unit = phase_run.tokens // (phase_run.rows * phase_run.length)
  for p in run.phases:
    rows, length = p.config.batch_size, p.config.length
    all_rows = f'{rows}' if of_unit == 1 else f'{rows} × {of_unit}'
    line = (
      f'phase {p.index}   steps {p.first_step:,}–{p.end_step:,} · '
      f'{all_rows} rows × {length} tokens = {rows * of_unit * length:,} tokens per step'
    )
    if p.index == here.index:
      line += '' if flops is None else f' · {flops / 1e9:,.1f} GFLOP per step'
      if phase_run.data.rows_per_epoch:
        epoch = phase_run.data.rows_per_epoch
        line += f' · {p.steps * rows / epoch:.2f} epochs of {epoch:,} rows'
    lines.append(line)
  published = published_flops(run, data.vocab_size, mesh, of_unit)
  counted = 'not known: no published count for this network'
  if published is not None:
    counted = f'{published:.3e} for the whole run, counted as Clark et al. 2020 do'
  return [*lines, f'flops     {counted}']


def published_flops(run, vocab_size, mesh=None, of_unit=1) -> float | None:
  """Of a whole training, as Clark et al. 2020 count them; None if a network has no such count.

  Args:
    run: see assembly.Run.
    vocab_size: of the tokenizer.
    mesh: of the run, if it has one yet.
    of_unit: rows of one of the batch_size units of a batch.
  """
  of_phases = published_by_phase(run, vocab_size, mesh, of_unit)
  return None if None in of_phases else sum(of_phases)


def published_by_phase(run, vocab_size, mesh=None, of_unit=1) -> list[float | None]:
  """As `published_flops`, of each phase."""
  out = []
  for phase in run.phases:
    network = run.network(phase, vocab_size, mesh)
    rows, length = phase.config.batch_size * of_unit, phase.config.length
    count = network.objective.published_flops
    out.append(count(network.shapes, rows=rows, length=length, steps=phase.steps))
  return out


def estimated_flops(run, vocab_size) -> float:
  """Of a whole training: 6 per parameter and token (Kaplan et al. 2020 §2.1)."""
  total = 0.0
  for phase in run.phases:
    weights = cost.parameters(run.network(phase, vocab_size).paths)
    total += 6.0 * weights * phase.steps * phase.config.batch_size * phase.config.length
  return total


def _devices():
  kinds = sorted({d.device_kind for d in jax.devices()})
  return f'{jax.device_count()} × {", ".join(kinds)}'


def _cpu():
  """A name for what this CPU can run."""
  try:
    with open('/proc/cpuinfo', encoding='utf-8') as f:
      flags_line = next((line for line in f if line.startswith(('flags', 'Features'))), '')
  except OSError:
    flags_line = ''
  return f'cpu-{platform.machine()}-{zlib.crc32(flags_line.encode()):08x}'


def first_process() -> bool:
  """Whether this process is the one that writes."""
  return jax.process_index() == 0
