"""Where an attempt begins: at the newest checkpoint of its workdir, at a step of another run, or at
step 0 with fresh or given weights.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertzoo_jax.common import amounts
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.experiment import build
from bertzoo_jax.hf import task_heads
from bertzoo_jax.parts import named
from bertzoo_jax.pretrained import initial_weights
from bertzoo_jax.runs import checkpoint
from bertzoo_jax.runs import workdir as workdirs
from bertzoo_jax.training import phase_run as phase_runs
from bertzoo_jax.training import schedules
from bertzoo_jax.training import step as steps


class First(NamedTuple):
  """The arguments about initial weights, for a run whose workdir has no checkpoint."""

  # address of weights, or one per network, separated by commas; None for fresh weights
  init: str | None = None
  layers: str = ''  # layers to take from a deeper network (initial_weights.layers_of); '' for all
  resume_moments: bool = False  # whether to begin at the step of `init`, with its optimizer's state
  # vocabulary of `init`: same as the run's, or carry (pretrained/carried.py)
  vocabulary: str = 'same'
  positions: str = 'copied'  # how a longer position table begins (hf.merge): copied | interpolated


class Start(NamedTuple):
  """Where an attempt begins."""

  workdir: object  # folder of the run
  checkpoints: checkpoint.Checkpoints  # open Checkpoints of the workdir
  step: int  # number of updates before this attempt
  first: First  # see First
  branch: str | None  # workdir of another run whose state it takes, or None
  keep_at: dict  # {step: numbers of words} of run.keep_words
  machinery: dict  # {'run.unroll': …} of the last attempt
  notes: list[str]  # for the user


def find(run, data, workdir, first: First, device) -> Start:
  """The Start of a run. device: any of its devices.

  Raises UserError if the workdir holds another run, or `first` does not fit.
  """
  config, end = run.config, run.end_step
  workdirs.check_same_run(workdir, config, data.corpus['hash'])
  machinery = workdirs.machinery(workdir, device.device_kind)  # before a host writes
  reads = {index: rows.train.read for index, rows in data.phases.items()}
  keep_at = amounts.kept(config.run.keep_words, run.phases, reads, end)
  checkpoints = checkpoint.Checkpoints(
    workdir, keep=config.run.keep, keep_every=config.run.keep_every, keep_at=keep_at
  )
  step, branch, notes = checkpoints.newest() or 0, None, []
  if first.resume_moments and not step:
    branch, step, notes = _branching(config, first, data, end)
  if not step and (before := workdirs.attempts(workdir)):
    ended = f'the attempt of {before[-1].get("time")!r} ended before its first save'
    notes.append(f'WARNING: {ended}: its steps are lost, and the run begins again')
  return Start(workdir, checkpoints, step, first, branch, keep_at, machinery, notes)


def state(start: Start, built: build.Built) -> tuple[steps.TrainState, list[str]]:
  """(the state at the start, lines on its origin)."""
  phase_run, init = built.phase_runs[0], start.first.init
  target, notes = phase_run.target
  if start.step:
    origin = f'resuming from the checkpoint of step {start.step:,}'
    origin += ' (--init is for a first start: not used)' if init else ''
    if start.branch:
      origin = f'step {start.step:,}, weights and optimizer from {init}'
    restored = start.checkpoints.restore(start.step, target, start.branch)
    return restored, [origin, *start.notes, *notes]
  loaded, lines = _loaded(start.first, built, target)
  origin = f'weights from {init}, optimizer and step fresh'
  if init is None:
    origin = f'fresh weights from seed {built.run.config.seed}'
  return loaded, [origin, *lines, *notes, *start.notes]


def _loaded(first, built, target):
  """(the state before the first step, lines on the loaded weights)."""
  phase_run, config = built.phase_runs[0], built.run.config
  addresses = storage.addresses(first.init or '')
  frozen_network = {*phase_run.objective.frozen} - {*phase_run.phase.config.frozen}
  if frozen_network and len(addresses) < len(phase_run.objective.networks):
    raise errors.UserError(
      f'objective={config.objective.name} freezes a network that was not trained before: put a '
      'phase with objective=generator_mlm before it, or give --init DISCRIMINATOR,GENERATOR.'
    )
  if first.layers and first.init is None:
    raise errors.UserError(f'init_layers={first.layers!r} without weights: give --init, too.')
  carry = first.vocabulary == 'carry'
  if carry and first.init is None:
    raise errors.UserError('--vocabulary=carry without weights: give --init, too.')
  fresh = phase_runs.fresh(phase_run)
  if first.init is None:
    return fresh, []
  params, lines = initial_weights.parameters(
    fresh.params,
    first.init,
    phase_run.objective,
    built.data.tokenizer,
    config.hf,
    task_heads.labels_in(config.objective),
    first.layers,
    carry,
    first.positions,
  )
  params = jax.tree.map(_placed, params, target.params)
  average = jax.tree.map(jnp.copy, params) if target.average else ()
  return fresh.replace(params=params, average=average), lines


def _placed(x, to):
  """An array with the sharding and dtype of the shape struct `to`."""
  if isinstance(x, jax.Array):
    return x
  part = lambda index: np.asarray(x[index], to.dtype)
  return jax.make_array_from_callback(x.shape, to.sharding, part)


def _branching(config, first, data, end):
  """(workdir, step, notes) of the run whose state this run continues."""
  init = first.init
  another = first.layers or first.vocabulary == 'carry'
  if not init or init.startswith('hf:') or another or len(storage.addresses(init)) > 1:
    raise errors.UserError(
      '--resume_moments continues one run, with all its layers and words: give --init '
      'WORKDIR[@STEP].'
    )
  workdir, step, kind = checkpoint.locate(init)
  if kind:
    raise errors.UserError(
      f'--init {init} is an average, which has no moments: give {workdir}@STEP, or leave '
      '--resume_moments out.'
    )
  before = workdirs.run_config(workdir)
  old = configuration.phase_at(before, step).config
  if old.optimizer.name != config.optimizer.name:
    raise errors.UserError(
      f'--init {init} was trained with optimizer={old.optimizer.name}, whose moments optimizer='
      f'{config.optimizer.name} cannot take: use one optimizer, or leave --resume_moments out.'
    )
  if bool(old.ema) != bool(config.ema):
    raise errors.UserError(
      f'--init {init} was trained with config.ema={old.ema:g}, and this config has {config.ema:g}: '
      'the average needs a start, so take 0 in both or in none, or leave --resume_moments out.'
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
  """Notes on changes at the step of a branch. Raises UserError if the run would not continue with
  the next row.
  """
  end = configuration.total_steps(config)
  ends = configuration.total_steps(before), end
  # the phases that take the next step
  at = [configuration.phase_at(c, min(step + 1, n)) for c, n in zip((before, config), ends)]
  old, new = (p.examples + (step - p.first_step) * p.config.batch_size for p in at)
  if old != new:
    done = [(min(step, p.end_step) - p.first_step, p) for p in configuration.phases(before)]
    sizes = [(n, p.config.batch_size) for n, p in [*done, (end - step, at[1])] if n > 0]
    raise errors.UserError(
      f'--init {init} has read {old:,} rows by step {step:,}, and this config resumes at row '
      f'{new:,}: set config.phases to {tuple((n, {"batch_size": b}) for n, b in sizes)}.'
    )
  notes = [
    f'note: config.{name} was different in {init}: rows may be read again'
    for name in ('format', 'length', 'seed')
    if at[0].config[name] != at[1].config[name]
  ]
  if any(named.is_outside(p.config.schedule.name) for p in at):  # a stranger's run may name it
    return notes
  fields = [(p.config.schedule, p.first_step, p.steps, n) for p, n in zip(at, ends)]
  rates = [float(schedules.for_phase(*args)(step)) for args in fields]
  if max(rates) > 1.5 * min(rates):
    remedy = f'; --config.schedule.decay={end - step} is a decay that begins here'
    notes.append(
      f'note: the rate goes from {rates[0]:.1e} ({init}) to {rates[1]:.1e}'
      + remedy * ('decay' in config.schedule)
    )
  return notes
