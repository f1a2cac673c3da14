"""The training loop: phases, steps, logging, evaluation, checkpoints, and the end of a run."""

import collections
import dataclasses
import math
import time
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from bertzoo_jax.common import errors
from bertzoo_jax.runs import failures
from bertzoo_jax.runs import metrics
from bertzoo_jax.runs import replicas
from bertzoo_jax.runs import step_folders
from bertzoo_jax.runs import watchdog as watchdogs
from bertzoo_jax.training import cost
from bertzoo_jax.training import data
from bertzoo_jax.training import health
from bertzoo_jax.training import phase_run as phase_runs
from bertzoo_jax.training import sharding
from bertzoo_jax.training import step as steps


@dataclasses.dataclass
class Loop:
  """One attempt of a run: a process that starts or resumes it."""

  workdir: Any  # folder of the run
  total_steps: int  # steps of the whole run
  vocab_size: int  # token ids are below this
  machinery: Any  # the config's `run` section
  # checkpoints, record, trackers, progress, preemption: those of this attempt
  checkpoints: Any
  record: Any
  trackers: Any
  progress: Any
  preemption: Any
  # entropy, held_out_sizes: see data.Data
  entropy: float | None = None
  held_out_sizes: dict = dataclasses.field(default_factory=dict)
  # ends the process if a step, an evaluation or a save hangs
  watchdog: watchdogs.Watchdog = dataclasses.field(default_factory=lambda: watchdogs.Watchdog(0))
  # raises if another run has taken the workdir (lock.hold)
  check_held: Callable[[], None] = lambda: None
  keep_at: frozenset = frozenset()  # steps whose checkpoint is kept for good
  # (rank, step) of the phase's best checkpoint on disk (step_folders.ranks). `train` sets it.
  best: tuple = (math.inf, 0)
  _health: Any = None
  _row: Any = None  # (row, metrics) of the last logged step, until `_write_row` writes them
  _held_out: dict = dataclasses.field(default_factory=dict)
  # The last evaluation: step, held-out loss, first step of its phase, (score,) or ().
  _evaluated: tuple = (None, None, 0, ())

  def train(self, state, phases) -> dict:
    """Trains to the end of the run, or until interrupted.

    phases: a phase_run.PhaseRun for each phase that remains. state: the TrainState to go on from.
    Its step is within the first of these phases, or at the end of it.

    Returns {'step', 'interrupted': bool, 'held_out': the last evaluation or {}}. If it ends at step
    0, no checkpoint is saved. Raises Stopped for non-finite numbers, a spike (on_spike=stop),
    replicas that differ, a device out of memory, a missing workdir, and a checkpoint or metrics row
    that cannot be written; TransientError if a retry may succeed.
    """
    self._health = health.Health(self.machinery, self.progress.say, int(state.nonfinite['total']))
    self._saved_at = time.monotonic()
    phase_run, *later = phases
    first = phase_run.phase.first_step
    ranks = step_folders.ranks(self.workdir, first)
    self.best = min(((rank, step) for step, rank in ranks.items()), default=(math.inf, first))
    state = self._run_phase(state, phase_run)
    for phase_run in later:
      if int(state.step) < phase_run.phase.first_step:
        break
      self.watchdog.begin()
      self.watchdog.doing('the start of the phase after step', phase_run.phase.first_step)
      state = phase_runs.transition(state, phase_run)
      # Saved after the transition, even if interrupted. So the checkpoint between two phases has
      # the parameters of the later phase, and a run resumes from it in the later phase.
      self._save(state)
      # Losses of another objective or length are not comparable.
      self.best = (math.inf, phase_run.phase.first_step)
      if self.preemption.name:
        break
      state = self._run_phase(state, phase_run)
    self._save(state)
    with failures.writing('A checkpoint', 'the ones before'):
      self.checkpoints.wait()
    return {
      'step': int(state.step),
      'interrupted': self.preemption.name is not None,
      'held_out': self._held_out,
    }

  def _run_phase(self, state, phase_run):
    """Runs a phase to its end or to an interruption; returns the state, not yet saved."""
    step = int(state.step)
    if step >= phase_run.end_step or self._out_of_patience(step, phase_run):
      return state
    evaluate, meter = phase_runs.evaluation(phase_run), cost.Meter(phase_run)
    run, first, end = self.machinery, phase_run.phase.first_step, phase_run.end_step
    # A call of several steps ends where something is due. The first step is single.
    together, batches = 1, []
    periods = [n for n in (run.log_every, run.eval_every, run.keep_every) if n]
    most = min(run.steps_per_call, *periods, max(1, end - step - 1))
    due = lambda: min(
      end, *(n * (step // n + 1) for n in periods), *(n for n in self.keep_at if n > step)
    )
    # On CPU devices that share few cores, collectives of several steps in flight can deadlock.
    depth = 0 if jax.default_backend() == 'cpu' and jax.device_count() > 1 else 2
    running = collections.deque()
    self.progress.say(
      f'phase {phase_run.phase.index} · steps {step + 1:,} to {phase_run.end_step:,} · '
      f'compiling the train step: {phase_run.rows} rows of {phase_run.length} tokens …'
    )
    self.watchdog.begin()
    self.watchdog.doing('the batch of step', step)
    for batch in phase_run.data.train.iterate(step - first, end - first):
      if self.preemption.name and jax.process_count() == 1:
        break
      data.check_ids(batch, self.vocab_size, f'batch of step {step + len(batches)}')
      batches.append(batch)
      if len(batches) < together:
        continue
      self.watchdog.doing('step' if together == 1 else 'the call of several steps after', step)
      if not meter.started:
        phase_run.compiled(most, batch)
      state, values = updated(phase_run, state, batches)
      step += together
      self._health.add(step, values)
      # The host runs at most `depth` calls ahead, since every dispatched batch takes memory. It
      # waits for the first step, which compiles, so that the meter starts after it.
      running.append((step, values['loss']))
      while len(running) > (depth if meter.started else 0):
        done, loss = running.popleft()
        loss.block_until_ready()
        meter.waited(done)
        self.progress.finished(done, loss)
      self.progress.step(step)
      evaluates = step == self.total_steps or bool(run.eval_every and step % run.eval_every == 0)
      if evaluates or step in (1, end) or step % run.log_every == 0:
        self._log(step, values, meter, batch)
      if self._after(step, state, phase_run, evaluate if evaluates else None):
        running.clear()
        meter.restart(step)
      if step == 1:  # its metrics are ready: the loop has waited for it
        self._write_row()
      if self.preemption.reached() or (evaluates and self._out_of_patience(step, phase_run)):
        break
      self.watchdog.doing('the batch of step', step)
      together, batches = most if step + most <= due() else 1, []
    self._write_row()
    return state

  def _after(self, step, state, phase_run, evaluate) -> bool:
    """Evaluates and saves after a step, if due. Returns whether it did either of them.

    The caller then restarts the meter, so that no rate includes the time that this took.
    """
    better = False
    if evaluate is not None:
      self.watchdog.doing('the evaluation after step', step)
      if results := evaluate(state.params):
        self._held_out, score = self._describe(results), ()
        if (scores := phase_run.data.scores) is not None:
          named, best = scores(state.params)
          self._held_out |= named
          score = (best,)
        self._row[0].update(self._held_out)
        self._evaluated = (step, results['loss'], phase_run.phase.first_step, score)
        rank = -score[0] if score else results['loss']
        better = math.isfinite(rank) and rank < self.best[0]
        self.best = (rank, step) if better else self.best
      self._write_row()
      self._plot()
    every = self.machinery.keep_every
    # At the end of a phase, `train` saves, after the transition to the next one.
    due = (
      better or (every and step % every == 0) or step in self.keep_at or self._minutes_are_up(step)
    )
    if (due and step < phase_run.end_step) or step == self.total_steps:
      self._save(state)
      return True
    return evaluate is not None

  def _out_of_patience(self, step, phase_run) -> bool:
    """Whether the run ends early: its last `patience` evaluations brought no better score."""
    patience, every = phase_run.data.patience, self.machinery.eval_every
    if not patience or step // every - self.best[1] // every < patience:
      return False
    self.progress.say(f'step {step:,}: the run stops early, step {self.best[1]:,} was the best')
    return True

  def _minutes_are_up(self, step) -> bool:
    """Whether run.save_minutes have passed. Process 0 decides for all, at logged steps."""
    up = time.monotonic() - self._saved_at >= 60 * self.machinery.save_minutes
    if jax.process_count() == 1:
      return up
    logged = step % self.machinery.log_every == 0
    return logged and bool(multihost_utils.broadcast_one_to_all(np.int32(up)))

  def _save(self, state):
    """Writes the metrics up to a state, then saves the state.

    A run that resumes from this state does not write these metrics again.
    """
    step = int(state.step)
    self.watchdog.doing('the save of step', step)
    self.check_held()
    self._write_row()
    with failures.writing('A row of the metrics', 'the checkpoints'):
      self.record.sync()
    self._raise_if_unhealthy(step)
    if step:
      self._check_sound(state)
      evaluated, *evaluation = self._evaluated
      evaluation = evaluation if evaluated == step else ()
      with failures.writing('A checkpoint', 'the ones before'):
        self.checkpoints.save(state, *evaluation)
    self._saved_at = time.monotonic()

  def _check_sound(self, state):
    """Raises Stopped for a state with non-finite numbers or replicas that differ."""
    if path := steps.not_finite(state):
      raise errors.Diverged(
        f'{path} is infinite or not a number after step {int(state.step):,}, though loss and '
        'gradient were finite. This state is not saved; the last good checkpoint is kept. Try a '
        'lower schedule.learning_rate or a larger optimizer.eps.'
      )
    replicas.check(state)

  def _raise_if_unhealthy(self, step):
    if reason := self._health.verdict(step):
      raise reason

  def _log(self, step, values, meter, batch):
    """Writes the metrics of the logged step before this one. Keeps the metrics of this step.

    The devices may still be computing the metrics of this step.
    """
    self._write_row()
    row = {'step': step, **meter.place(step), **meter.rates(), 'batch_crc32': _crc32(batch)}
    self._row = (row, values)
    with failures.writing('A checkpoint', 'the ones before'):
      self.checkpoints.check()

  def _write_row(self):
    """Writes the metrics row that `_log` kept. Raises if a step up to it was unhealthy."""
    if self._row is None:
      return
    (row, values), self._row = self._row, None
    values = {k: np.ravel(v)[-1].item() for k, v in jax.device_get(values).items()}
    counts = {k: values.pop(k) for k in ('nonfinite', 'spikes')}
    for name in ('nonfinite_in_a_row', 'spike'):
      del values[name]
    row = {'step': row['step'], **values, **row, **{k: n for k, n in counts.items() if n}}
    with failures.writing('A row of the metrics', 'the checkpoints'):
      self.record.write(row)
    self.trackers.write(row)  # prints its failures, never raises
    self.progress.row(row)
    self._raise_if_unhealthy(row['step'])

  def _describe(self, results):
    row = {f'held_out_{k}': v for k, v in results.items()}
    if 'mlm_loss' in results and self.held_out_sizes:
      # Each corpus is weighted by its tokens, not by its number of evaluated batches.
      tokens, size = map(sum, zip(*self.held_out_sizes.values()))
      loss = sum(
        count / tokens * results[f'mlm_loss/{name}' if name else 'mlm_loss']
        for name, (count, _) in self.held_out_sizes.items()
      )
      row['held_out_bits_per_byte'] = phase_runs.bits_per_byte(loss, tokens / size)
    return row

  def _plot(self):
    if jax.process_index() == 0:
      try:
        metrics.plot(self.workdir, self.entropy)
      except Exception as e:  # a plot must not end a run
        self.progress.say(f'loss.png could not be drawn: {errors.named(e)}')


def updated(phase_run, state, batches):
  """(state, metrics) after a step per batch: one call, if their rows have one length."""
  if len({batch['input_ids'].shape for batch in batches}) == 1:
    update = phase_run.compiled(len(batches), batches[0])
    return update(state, on_devices(batches, phase_run))
  each = []
  for batch in batches:
    state, values = updated(phase_run, state, [batch])
    each.append(values)
  return state, jax.tree.map(lambda *x: jnp.stack(x), *each)


def on_devices(batches, phase_run):
  """The batch of a step; of several steps stacked, in a leading axis."""
  several = len(batches) > 1
  stacked = {k: np.stack([b[k] for b in batches]) for k in batches[0]} if several else batches[0]
  return sharding.to_devices(stacked, phase_run.mesh, phase_run.rows, several)


def _crc32(batch) -> int:
  """A checksum of this host's rows, to compare the batch of a step between runs."""
  crc = 0
  for name in sorted(batch):
    crc = zlib.crc32(np.ascontiguousarray(batch[name]), crc)
  return crc
