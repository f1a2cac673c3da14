"""One run from its config to its last checkpoint, for `pretrain` and `finetune`."""

import contextlib
import functools
import json
import os
import platform
import zlib

import jax
import jax.numpy as jnp
import numpy as np

from bertzoo_jax import assembly
from bertzoo_jax.assembly import checks
from bertzoo_jax.assembly import machinery
from bertzoo_jax.assembly import memory
from bertzoo_jax.assembly import published_flops
from bertzoo_jax.assembly import reports
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.common import progress
from bertzoo_jax.common import reading
from bertzoo_jax.common import storage
from bertzoo_jax.hf import heads
from bertzoo_jax.parts import named
from bertzoo_jax.pretrained import initial_weights
from bertzoo_jax.runs import checkpoint
from bertzoo_jax.runs import distributed
from bertzoo_jax.runs import failures
from bertzoo_jax.runs import lock
from bertzoo_jax.runs import metrics
from bertzoo_jax.runs import watchdog
from bertzoo_jax.runs import workdir as workdirs
from bertzoo_jax.training import loop
from bertzoo_jax.training import phase_run as phase_runs
from bertzoo_jax.training import schedules
from bertzoo_jax.training import sharding


def train(
  run,
  workdir,
  open_data,
  *,
  init,
  notice,
  resume_moments=False,
  devices=None,
  show=True,
  init_layers='',
) -> dict:
  """Trains in a workdir, or resumes the run there.

  run: an assembly.Run, see checks.of_run. open_data: () → training_data.Data. init: address of
  weights to begin with, or one for each network by comma; None for fresh ones. resume_moments:
  whether to begin at the step of `init`, with its optimizer's state. notice: a Preemption that
  listens. devices: of the mesh; None for all. show: whether to print progress. init_layers: layers
  to take of a deeper network (initial_weights.layers_of); '' for all.

  Returns {'step', 'end', 'interrupted', 'held_out': metrics, 'data': its Data, 'flops': of the
  whole run, as `published_flops` counts}. Raises UserError for anything that does not fit, before
  anything is written; TryAgain, Stopped: see `pretrain`.
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
    end = run.end_step
    with enough_memory(config):
      begin = (init, init_layers, resume_moments)
      result = _attempt(run, workdir, data, mesh, end, begin, notice, show, check_held)
    return {
      **result,
      'held_out': result['held_out'] or _last_held_out(workdir),
      'end': end,
      'data': data,
    }


def _for_devices(run, kept, left, data, mesh, show):
  """The run with values in place of auto, kept ones first. left: its phases to come, checked."""
  autos, device = machinery.autos(run.config), mesh.devices.flat[0]
  run = machinery.resolved(run, data.vocab_size, mesh, kept)
  phases = [run.phases[index] for index in left]
  checks.of_phases(run, phases, data, mesh)  # a compilation takes minutes
  if 'run.remat' in autos and device.platform == 'tpu':
    say = functools.partial(print, flush=True) if show and first_process() else lambda line: None
    run = machinery.fitting(run, phases, data, mesh, say)
  return run


def _last_held_out(workdir) -> dict:
  """The newest row of the metrics that an evaluation wrote; {} without any."""
  rows = reversed(metrics.read(workdir))
  return next((row for row in rows if row.get('held_out_loss') is not None), {})


def _attempt(run, workdir, data, mesh, end, begin, notice, show, check_held) -> dict:
  """Resumes or begins the run, and trains. The result of loop.train, with 'flops'."""
  config, (init, layers, resume_moments) = run.config, begin
  kept = workdirs.machinery(workdir, mesh.devices.flat[0].device_kind)  # before a host writes
  read_of = lambda phase: data.phase(phase).read
  keep_at = reading.kept(config.run.keep_words, run.phases, read_of, end)
  about = {'config': None, 'corpus': data.corpus}
  checkpoints = checkpoint.Checkpoints(
    workdir, keep=config.run.keep, keep_every=config.run.keep_every, keep_at=keep_at, run=about
  )
  start, source, branch = checkpoints.newest() or 0, None, []
  if resume_moments and not start:
    source, start, branch = _branching(config, init, layers, data, end)
  left = [p.index for p in run.phases if min(start, end - 1) < p.end_step and p.first_step < end]
  run = _for_devices(run, kept, left, data, mesh, show)
  config, (here, *following) = run.config, (run.phases[index] for index in left)
  about['config'] = json.loads(configuration.to_json(config))
  phase_run = assembly.phase_run(run, here, data, mesh, end)
  memory.check(phase_run)
  later = [lambda p=p: assembly.phase_run(run, p, data, mesh, end) for p in following]
  begin = (start, source, init, layers)
  state, origin, notes = _state(config, phase_run, checkpoints, begin, data)
  if not start and (before := workdirs.attempts(workdir)):
    ended = f'the attempt of {before[-1].get("time")!r} ended before its first save'
    notes.append(f'WARNING: {ended}: its steps are lost, and the run begins again')
  notes += reports.export_notes(config.hf, run.network(here, data.vocab_size, mesh))

  attempt = 0
  if first_process():
    workdirs.describe(workdir, config, data.corpus, data.save_tokenizer)
    attempt = workdirs.add_attempt(
      workdir,
      corpus_hash=data.corpus['hash'],
      start_step=start,
      devices=reports.devices(),
      init=init,
      init_layers=layers if not start else '',
      resume_moments=source is not None,
    )
  record, trackers = _records(config, workdir, start, attempt)
  bar = progress.Progress(end, start, show=show and first_process(), entropy=data.entropy)
  bar.say(
    '\n'.join(
      [
        *reports.overview(run, workdir, here, phase_run, state, data, mesh),
        # those before a branch are in the folder of the other run
        *reports.kept({step: n for step, n in keep_at.items() if not source or step > start}),
        origin,
        *branch,
        *notes,
      ]
    )
  )
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
    held_out_sizes=data.held_out_sizes,
    watchdog=watchdog.Watchdog(config.run.hang_minutes),
    check_held=check_held,
    keep_at=frozenset(keep_at),
  )
  with contextlib.ExitStack() as stack:
    stack.enter_context(training.watchdog)
    # closed in the reverse order, also when the run fails
    for part in (checkpoints, record, trackers, bar):
      stack.callback(part.close)
    stack.enter_context(distributed.watched())  # before those: to close is to wait for all hosts
    stack.enter_context(enough_memory(config))
    result = training.train(state, phase_run, later)
  return {**result, 'flops': published_flops.of_run(run, data.vocab_size, mesh)}


# --- the parts of a run, in the order of the story ---


def start_devices(config):
  """Sets the precision of products and opens the cache of compiled programs."""
  # otherwise an accelerator, where auto is not float32, multiplies in fewer bits than asked for
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


def _branching(config, init, layers, data, end):
  """(workdir, step) of the run whose state this one begins with, and notes."""
  if not init or init.startswith('hf:') or layers or len(storage.addresses(init)) > 1:
    raise errors.UserError(
      '--resume_moments continues one run, with all its layers: give --init WORKDIR[@STEP].'
    )
  workdir, step, kind = checkpoint.locate(init)
  if kind:
    raise errors.UserError(
      f'--init {init} is an average, which has no moments: give {workdir}@STEP, or leave '
      '--resume_moments out.'
    )
  before = workdirs.run_config(workdir)
  theirs = configuration.phase_at(before, step).config
  if theirs.optimizer.name != config.optimizer.name:
    raise errors.UserError(
      f'--init {init} was trained with optimizer={theirs.optimizer.name}, whose moments optimizer='
      f'{config.optimizer.name} cannot take: give one of both, or leave --resume_moments out.'
    )
  if bool(theirs.ema) != bool(config.ema):
    raise errors.UserError(
      f'--init {init} was trained with config.ema={theirs.ema:g}, and this config has '
      f'{config.ema:g}: the average needs a start, so take 0 in both or in none, or leave '
      '--resume_moments out.'
    )
  if step >= end:
    raise errors.UserError(
      f'--resume_moments begins at step {step:,}, and this config ends at step {end:,}: its phases '
      f'count from the start of {workdir}.'
    )
  initial_weights.check_vocabulary(init, storage.path(workdir) / 'tokenizer', data.tokenizer)
  other = workdirs.corpus_record(workdir).get('hash') != data.corpus['hash']
  notes = [f'note: {init} was trained on another corpus'] * other
  return workdir, step, notes + _breaks(before, config, init, step)


def _breaks(before, config, init, step) -> list[str]:
  """Notes on what changes at the step of a branch. Raises UserError if another row than the next
  one would follow.
  """
  end = configuration.total_steps(config)
  ends = configuration.total_steps(before), end
  # the phases that take the next step
  at = [configuration.phase_at(c, min(step + 1, n)) for c, n in zip((before, config), ends)]
  theirs, ours = (p.examples + (step - p.first_step) * p.config.batch_size for p in at)
  if theirs != ours:
    done = [(min(step, p.end_step) - p.first_step, p) for p in configuration.phases(before)]
    sizes = [(n, p.config.batch_size) for n, p in [*done, (end - step, at[1])] if n > 0]
    raise errors.UserError(
      f'--init {init} has read {theirs:,} rows by step {step:,}, and this config resumes at row '
      f'{ours:,}: set config.phases to {tuple((n, {"batch_size": b}) for n, b in sizes)}.'
    )
  notes = [
    f'note: config.{name} was another one in {init}: rows may be read again'
    for name in ('format', 'length', 'seed')
    if at[0].config[name] != at[1].config[name]
  ]
  if any(named.is_outside(p.config.schedule.name) for p in at):  # a stranger's run may name it
    return notes
  fields = [(p.config.schedule, p.first_step, p.steps, n) for p, n in zip(at, ends)]
  rates = [float(schedules.for_phase(*own)(step)) for own in fields]
  if max(rates) > 1.5 * min(rates):
    remedy = f'; --config.schedule.decay={end - step} is a decay that begins here'
    notes.append(
      f'note: the rate goes from {rates[0]:.1e} ({init}) to {rates[1]:.1e}'
      + remedy * ('decay' in config.schedule)
    )
  return notes


def _state(config, phase_run, checkpoints, begin, data):
  """(TrainState, a line that says where it comes from, notes). begin: (step; workdir of another
  run whose state it is, or None; address of weights; their layers).
  """
  start, source, init, layers = begin
  target, notes = phase_run.target
  if source:
    said = f'step {start:,}, weights and optimizer from {init}'
    return checkpoints.restore(start, target, source), said, notes
  if start:
    said = f'resuming from the checkpoint of step {start:,}'
    said += ' (--init is for a first start: not used)' if init else ''
    return checkpoints.restore(start, target), said, notes
  given = storage.addresses(init or '')
  if phase_run.objective.frozen and len(given) < len(phase_run.objective.networks):
    raise errors.UserError(
      f'objective={config.objective.name} leaves a network as it is, and none was trained: put a '
      'phase with objective=generator_mlm before it, or give --init DISCRIMINATOR,GENERATOR.'
    )
  if layers and init is None:
    raise errors.UserError(f'init_layers={layers!r} without weights: give --init, too.')
  state = phase_runs.fresh(phase_run)
  if init is None:
    return state, f'fresh weights from seed {config.seed}', notes
  params, lines = initial_weights.parameters(
    state.params,
    init,
    phase_run.objective,
    data.tokenizer,
    config.hf,
    heads.task_of(config.objective).labels,
    layers,
  )

  def place(x, to):
    if isinstance(x, jax.Array):
      return x
    part = lambda index: np.asarray(x[index], to.dtype)
    return jax.make_array_from_callback(x.shape, to.sharding, part)

  params = jax.tree.map(place, params, target.params)
  average = jax.tree.map(jnp.copy, params) if target.average else ()
  state = state.replace(params=params, average=average)
  return state, f'weights from {init}, optimizer and step fresh', [*lines, *notes]


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


def _cpu():
  """A name for the instruction set of this CPU."""
  return f'cpu-{platform.machine()}-{zlib.crc32(machinery.cpu().encode()):08x}'


def first_process() -> bool:
  """Whether this process is the one that writes."""
  return jax.process_index() == 0
