"""The loop of a run: phase_runs, steps, logging, evaluation, saving, and how it ends."""

import collections
import dataclasses
import math
import time
import zlib
from typing import Any
from typing import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.training import data
from bertzoo_jax.training import distributed
from bertzoo_jax.training import failures
from bertzoo_jax.training import meter as meters
from bertzoo_jax.training import metrics
from bertzoo_jax.training import phase_run as phase_runs
from bertzoo_jax.training import replicas
from bertzoo_jax.training import rewinds
from bertzoo_jax.training import sharding
from bertzoo_jax.training import step as steps
from bertzoo_jax.training import step_folders
from bertzoo_jax.training import watchdog as watchdogs

# So many updates in a row without a finite gradient are no accident of the data.
MOST_SKIPPED = 20


@dataclasses.dataclass
class Loop:
  """One attempt of a run.

  Attributes:
    workdir: of the run.
    total_steps: where it ends.
    vocab_size: ids are below it.
    machinery: the config's `run` section.
    checkpoints, record, trackers, progress, preemption: of this attempt.
    entropy, tokens_per_byte: see data.Data.
    watchdog: ends the process if a step, an evaluation or a save hangs.
    skipped: steps that this run leaves out, and how often it went back for them.
    check_held: raises if the workdir is no longer this run's (lock.hold).
    best: lowest held-out loss of the phase, of the checkpoints that are there; found by `train`.
  """

  workdir: Any
  total_steps: int
  vocab_size: int
  machinery: Any
  checkpoints: Any
  record: Any
  trackers: Any
  progress: Any
  preemption: Any
  entropy: float | None = None
  tokens_per_byte: float | None = None
  watchdog: watchdogs.Watchdog = dataclasses.field(default_factory=lambda: watchdogs.Watchdog(0))
  skipped: rewinds.Skipped = rewinds.NOTHING
  check_held: Callable[[], None] = lambda: None
  best: float = math.inf
  _nonfinite_before: int = 0
  _pending: Any = None
  # (step, metrics) of the steps of which nobody knows yet whether they are spikes
  _recent: list = dataclasses.field(default_factory=list)
  _held_out: dict = dataclasses.field(default_factory=dict)
  # step, its held-out loss, first step of the phase it was evaluated in
  _evaluated: tuple = (None, None, 0)

  def train(self, state, phase_run, later) -> dict:
    """Trains to the end of the run, or until interrupted.

    Args:
      state: TrainState at a step of `phase_run`, or at its end.
      phase_run: the PhaseRun the state is in.
      later: functions that build the phase_runs after it.

    Returns:
      {'step', 'interrupted': bool, 'held_out': the last evaluation or {}}. At step 0 nothing was
      saved.

    Raises:
      Stopped: numbers that are not finite, a spike if `on_spike` says so, copies of parameters that
        differ, a device without room, a workdir that is gone, or a checkpoint or a row of the
        metrics that cannot be written.
      TryAgain: one that could not be written, and may be the next time.
      Rewind: a spike for which the run goes back; what it will leave out is stored.
    """
    self._nonfinite_before, self._saved_at = int(state.nonfinite['total']), time.monotonic()
    self.best = min(
      step_folders.held_out_losses(self.workdir, phase_run.phase.first_step).values(),
      default=math.inf,
    )
    state = self._through(state, phase_run)
    for build in later:
      if int(state.step) < phase_run.end_step:
        break
      self.watchdog.begin()
      self.watchdog.doing('the start of the phase after step', phase_run.end_step)
      phase_run = build()
      state = phase_runs.enter(state, phase_run)
      # After entering, also when interrupted: a checkpoint at a border is in the shape of the phase
      # that resumes from it.
      self._save(state)
      self.best = math.inf  # losses of another objective or length do not compare
      if self.preemption.name:
        break
      state = self._through(state, phase_run)
    saved = self._save(state)
    self._guarded(self.checkpoints.wait)
    return {
      'step': int(state.step) if saved else max(step_folders.steps(self.workdir), default=0),
      'interrupted': self.preemption.name is not None,
      'held_out': self._held_out,
    }

  def _through(self, state, phase_run):
    """Runs a phase_run to its end or to an interruption; returns the state, not yet saved."""
    step = int(state.step)
    if step >= phase_run.end_step:
      return state
    update, evaluate = phase_runs.train_step(phase_run), phase_runs.evaluation(phase_run)
    left_out = phase_runs.left_out(phase_run)
    meter = meters.Meter(phase_run, state)
    running, depth = collections.deque(), _most_in_flight()
    self.progress.say(
      f'phase {phase_run.phase.index} · steps {step + 1:,} to {phase_run.end_step:,} · '
      f'compiling the train step: {phase_run.rows} rows of {phase_run.length} tokens …'
    )
    self.watchdog.begin()
    self.watchdog.doing('the batch of step', step)
    for batch in phase_run.data.batches(
      step - phase_run.phase.first_step, phase_run.end_step - phase_run.phase.first_step
    ):
      if self.preemption.name and jax.process_count() == 1:
        break
      if step + 1 in self.skipped.steps:
        self.watchdog.doing('the step that is left out,', step)
        state, values = left_out(state)
      else:
        self.watchdog.doing('step', step)
        data.check_ids(batch, self.vocab_size, f'batch of step {step}')
        state, values = update(state, sharding.to_devices(batch, phase_run.mesh, phase_run.rows))
        self._recent.append((step + 1, values))
      step += 1
      # The host may run ahead of the device, but not far: batches in flight are memory. Of the
      # first step it waits for the compilation.
      running.append((step, values['spikes']))
      while len(running) > (depth if meter.started else 0):
        done, value = running.popleft()
        value.block_until_ready()
        meter.waited(done)
        self.progress.finished(done)
      self.progress.step(step)
      evaluates = step == self.total_steps or bool(
        self.machinery.eval_every and step % self.machinery.eval_every == 0
      )
      if evaluates or step in (1, phase_run.end_step) or step % self.machinery.log_every == 0:
        self._log(step, values, meter, batch)
      if self._after(step, state, phase_run, evaluate if evaluates else None):
        running.clear()
        meter.restart(step)
      if self.preemption.reached():
        break
      self.watchdog.doing('the batch of step', step)
    self._flush()
    return state

  def _after(self, step, state, phase_run, evaluate) -> bool:
    """What may follow a step: evaluation and saving. True if time went by."""
    held_out_loss = None
    if evaluate is not None:
      self.watchdog.doing('the evaluation after step', step)
      found = evaluate(state.params)
      if found:
        self._held_out = self._describe(found)
        self._pending[0].update(self._held_out)
        held_out_loss = found['loss']
        self._evaluated = (step, held_out_loss, phase_run.phase.first_step)
      self._flush()
      self._plot()
    better = (
      held_out_loss is not None and math.isfinite(held_out_loss) and held_out_loss < self.best
    )
    every = self.machinery.keep_every
    # Ends of phase_runs are saved by `train`, once the state has entered the next one.
    due = (
      better
      or (every and step % every == 0)
      or (step % self.machinery.log_every == 0 and self._minutes_are_up())
    )
    if better:
      self.best = held_out_loss
    if (due and step < phase_run.end_step) or step == self.total_steps:
      self._save(state)
      return True
    return evaluate is not None

  def _minutes_are_up(self) -> bool:
    """By the clock of the first process: all save or none."""
    up = time.monotonic() - self._saved_at >= 60 * self.machinery.save_minutes
    return (
      up if jax.process_count() == 1 else bool(multihost_utils.broadcast_one_to_all(np.int32(up)))
    )

  def _save(self, state) -> bool:
    """Saves a state that is sound; False for one that is not saved, since the run will go back."""
    step, total = int(state.step), int(state.nonfinite['total'])
    self.watchdog.doing('the save of step', step)
    self.check_held()
    goes_back = self.machinery.on_spike == 'rewind' and bool(self._spikes(step))
    # A spike often leads to numbers that are not finite. Without its step they may not come.
    stops = self.machinery.on_nonfinite == 'stop' and not goes_back
    if stops and total > self._nonfinite_before:
      self._stop_nonfinite(int(state.nonfinite['last']))
    self._flush()  # a run that resumes from this checkpoint does not write the row again
    self._guarded_record(self.record.sync)
    if self.preemption.name and goes_back:
      # The resumed run finds the same spikes, and later ones before its next row of metrics. So it
      # leaves out the same steps as a run that was not interrupted.
      self.progress.say(f'step {step:,} is not saved: there was a spike before it')
      return False
    self._judge(step)
    if step:
      self._check_sound(state)
      evaluated, held_out_loss, phase_first_step = self._evaluated
      found = (held_out_loss, phase_first_step) if evaluated == step else ()
      self._guarded(lambda: self.checkpoints.save(state, *found))
    self._saved_at = time.monotonic()
    return True

  def _check_sound(self, state):
    """Raises Stopped for a state that must not be saved."""
    if path := steps.not_finite(state):
      raise errors.Diverged(
        f'The update up to step {int(state.step):,} made {path} infinite or not a number, though '
        'loss and gradient were finite. This state is not saved, the last good checkpoint is kept. '
        'Try a lower schedule.learning_rate, or a larger optimizer.eps.'
      )
    replicas.check(state)

  def _guarded(self, action):
    """To save is to write and to wait for the other hosts; what fails because one is gone is left
    to `distributed.watched`.
    """
    try:
      action()
    except Exception as e:  # whatever the storage raises: the user needs the cause and what is left
      if distributed.comes_from_another(e):
        raise
      if failures.out_of_memory(e) or not storage.is_error_of_storage(e):
        e.add_note('The checkpoints before this one are kept.')
        raise
      raise failures.unwritten('A checkpoint', 'the ones before', e) from e

  def _spikes(self, step) -> list[tuple[int, dict]]:
    """(step, metrics) of the spikes up to a step that nobody has judged."""
    recent = [(s, values) for s, values in self._recent if s <= step]
    found = jax.device_get([values['spike'] for _, values in recent])
    return [r for r, spike in zip(recent, found) if spike]

  def _judge(self, step):
    """Does what `on_spike` says about the spikes up to a step, and forgets these steps."""
    found = self._spikes(step)
    self._recent = [(s, values) for s, values in self._recent if s > step]
    if not found:
      return
    lines = [
      f'step {s:,} (loss {float(v["loss"]):.4g}, gradient norm {float(v["grad_norm"]):.4g})'
      for s, v in found
    ]
    said = f'spike: {", ".join(lines[:5])}' + (f' and {len(lines) - 5} more' * (len(lines) > 5))
    self.progress.say(said)
    if self.machinery.on_spike == 'stop':
      raise errors.Stopped(
        f'The run stops at a {said}. The last checkpoint before it is kept. '
        'run.on_spike=rewind leaves these steps out, run.on_spike=report goes on; a lower learning '
        'rate or clipping (optimizer.clip_norm) may avoid them.'
      )
    if self.machinery.on_spike == 'rewind':
      rewinds.go_back(self.workdir, self.skipped, [s for s, _ in found], step)

  def _guarded_record(self, action):
    try:
      action()
    except Exception as e:  # as above
      if not storage.is_error_of_storage(e):
        raise
      raise failures.unwritten('A row of the metrics', 'the checkpoints', e) from e

  def _write(self, row):
    self._guarded_record(lambda: self.record.write(row))
    self.trackers.write(row)  # says what fails, and never raises

  def _log(self, step, values, meter, batch):
    self._flush()
    row = {
      'step': step,
      'phase': meter.phase,
      'examples': meter.examples(step),
      **meter.rates(),
      'batch_crc32': _crc32(batch),
    }
    if (epoch := meter.epoch(step)) is not None:
      row['epoch'] = epoch
    self._pending = (row, values)
    self._guarded(self.checkpoints.check)

  def _flush(self):
    """Writes the row of one logging interval ago: its numbers are there, the device was not waited
    for.
    """
    if self._pending is None:
      return
    (row, values), self._pending = self._pending, None
    values = {k: v.item() for k, v in jax.device_get(values).items()}
    left_out, in_a_row = values.pop('nonfinite'), values.pop('nonfinite_in_a_row')
    spikes = values.pop('spikes')
    skipped = values.pop('spike', None) is None
    row = {
      'step': row.pop('step'),
      **values,
      **row,
      **({'nonfinite': left_out} if left_out else {}),
      **({'spikes': spikes} if spikes else {}),
      **({'skipped': True} if skipped else {}),
    }
    self._write(row)
    self.progress.row(row)
    self._judge(row['step'])
    if left_out > self._nonfinite_before and self.machinery.on_nonfinite == 'stop':
      self._stop_nonfinite(None, row['step'])
    if in_a_row >= MOST_SKIPPED:
      raise errors.Diverged(
        f'The last {in_a_row} updates had a loss or gradient that is not finite (up to step '
        f'{row["step"]}). '
        'The last good checkpoint is kept; try a lower learning rate, clipping, or '
        'run.dtype=float32.'
      )

  def _stop_nonfinite(self, last, noticed=None):
    where = f'in step {last + 1}' if last is not None else f'at or before step {noticed}'
    raise errors.Diverged(
      f'The loss or its gradient is not finite {where}; the run stops, the last good checkpoint is '
      'kept. Try a lower learning rate, '
      'clipping (optimizer.clip_norm) or run.dtype=float32; run.on_nonfinite=skip leaves such '
      'updates out and counts them.'
    )

  def _describe(self, found):
    row = {f'held_out_{k}': v for k, v in found.items()}
    if 'mlm_loss' in found and self.tokens_per_byte:
      row['held_out_bits_per_byte'] = phase_runs.bits_per_byte(
        found['mlm_loss'], self.tokens_per_byte
      )
    return row

  def _plot(self):
    if jax.process_index() == 0:
      try:
        metrics.plot(self.workdir, self.entropy)
      except Exception as e:  # a picture is not worth a run
        self.progress.say(f'loss.png could not be drawn: {type(e).__name__}: {e}')


def _most_in_flight() -> int:
  # Collectives of CPU devices that share few cores can wait for each other forever when several
  # steps are under way.
  return 0 if jax.default_backend() == 'cpu' and jax.device_count() > 1 else 2


def _crc32(batch) -> int:
  """Of this host's rows: two steps of a run with the same number saw the same batch."""
  crc = 0
  for name in sorted(batch):
    crc = zlib.crc32(np.ascontiguousarray(batch[name]), crc)
  return crc
