"""The rows of a table on fewer tokens, and how many fewer.

All rows have 1/k of their tokens. The rows of a batch are divided by √k and rounded: to a multiple
of 32, and below 32 to a power of two, so that the devices of a slice can share them. The steps are
divided by the rest. Both are at least 1. The learning rate is multiplied by the root of the batch's
share (as usual for Adam and LAMB). The warmup keeps its share of the steps. A microbatch has no
more rows than before.
"""

import math
import shutil
import statistics

import ml_collections

from bertzoo_jax import pretrain
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.experiment import build
from bertzoo_jax.experiment import resolve
from bertzoo_jax.preflight import readiness
from bertzoo_jax.reproduce import plan
from bertzoo_jax.runs import metrics

_SHARE = 0.9  # of the hours, that pretraining may take; the rest is for tasks
_STEPS, _ROWS = 8, 32  # of a warm-up


def divided(config, k: float):
  """A copy of a table whose experiments have 1/k of their tokens, locked.

  Raises UserError if k is below 1.
  """
  if k < 1:
    raise errors.UserError(
      f'config.table.tokens_divided_by={k:g}: give FILE.py:budget,k=K with K from 1 on, or --hours.'
    )
  out = config.copy_and_resolve_references().unlock()
  out.table.tokens_divided_by = float(k)
  for row in out.rows.values():
    if row.experiment is not None:
      _divide(row.experiment, k)
  return out.lock()


def tokens(experiment) -> int:
  return sum(
    p.steps * plan.rows_of(p.config) * p.config.length for p in configuration.phases(experiment)
  )


def work(experiment) -> list[float]:
  """Train FLOPs of each phase of a run."""
  run = resolve.run(experiment)
  return build.flops(run, readiness.text(readiness.Findings(), run, None, 1).data)


def warmed_up(jobs, texts, workdir, say=print) -> float:
  """Seconds of all jobs on this machine at k = 1, from a few timed steps per distinct experiment.

  texts: {plan.text_of: folder of the corpus}. In workdir a folder is made, and removed again.
  """
  known, total = {}, 0.0
  for job in jobs:
    text = plan.text_of(job.experiment)
    if job.name not in known:
      known[job.name], speed = _timed(job, texts[text], storage.path(workdir) / 'warmup')
      say(f'{job.name}: {speed:,.0f} tokens/s on this machine, in its first phase')
    total += known[job.name] * sum(work(job.experiment))
  return total


def chosen(seconds: float, hours: float) -> float:
  """k, so that pretraining takes at most _SHARE of the hours."""
  return max(1.0, seconds / (hours * 3600 * _SHARE))


def _timed(job, corpus, folder) -> tuple[float, float]:
  """(seconds per unit of `work`, tokens per second) of a step of the first phase, of few rows."""
  one = job.experiment.copy_and_resolve_references().unlock()
  rows = min(plan.rows_of(one), _ROWS)
  first, (_, overrides) = configuration.phases(one)[0].config, one.phases[0]
  one.run.accumulation = _microbatches(first.run.accumulation, plan.rows_of(first), rows)
  replaced = ('batch_size', 'batch_tokens', 'run.accumulation')
  overrides = {k: v for k, v in overrides.items() if k not in replaced}
  one.phases, one.batch_size, one.batch_tokens = ((_STEPS, overrides),), rows, 0
  one.schedule.warmup = 0
  one.run.log_every = 1
  try:
    with plan.naming(one, job.name):
      pretrain.pretrain(one.lock(), str(folder), corpus=corpus)
    speeds = [
      row['tokens_per_second'] for row in metrics.read(folder) if row.get('tokens_per_second')
    ]
  finally:
    shutil.rmtree(str(folder), ignore_errors=True)
  speed = statistics.median(speeds[len(speeds) // 2 :])
  return tokens(one) / speed / sum(work(one)), speed


def _fewer(rows: int, part: float) -> int:
  """Rows of a batch, divided and rounded, but never more than there were."""
  if part == 1:
    return rows
  wished = max(1.0, rows / part)
  step = min(32, 2 ** math.floor(math.log2(wished)))
  return min(rows, step * round(wished / step))


def _microbatches(before: int | str, rows: int, fewer: int) -> int | str:
  """The smallest number of equal microbatches that have no more rows than before; auto stays."""
  if before == configuration.AUTO:
    return before
  least = max(1, math.ceil(before * fewer / rows))
  return next(n for n in range(least, fewer + 1) if fewer % n == 0)


def _divide(experiment, k):
  part, rows = math.sqrt(k), plan.rows_of(experiment)
  fewer = _fewer(rows, part)
  rate, share = math.sqrt(fewer / rows), rows / fewer / k
  phases = []
  for phase, (steps, overrides) in zip(configuration.phases(experiment), experiment.phases):
    changes = {key: v for key, v in overrides.items() if key not in ('batch_size', 'batch_tokens')}
    phase_rows = plan.rows_of(phase.config)
    left = _fewer(phase_rows, part)
    step_share = phase_rows / left / k
    if phase_rows != rows:
      changes['batch_size'] = left
    if phase_rows != rows or 'run.accumulation' in changes:
      changes['run.accumulation'] = _microbatches(phase.config.run.accumulation, phase_rows, left)
    for key, by in (('schedule.learning_rate', rate), ('schedule.warmup', step_share)):
      if key in changes:
        changes[key] = changes[key] * by if key.endswith('rate') else round(changes[key] * by)
    if 'schedule' in changes:
      changes['schedule'] = _scheduled(changes['schedule'], rate, step_share)
    phases.append((max(1, round(steps * step_share)), changes))
  experiment.batch_size, experiment.batch_tokens = fewer, 0
  experiment.phases = tuple(phases)
  experiment.schedule = _scheduled(experiment.schedule, rate, share)
  experiment.run.accumulation = _microbatches(experiment.run.accumulation, rows, fewer)


def _scheduled(section, rate, share):
  section = ml_collections.ConfigDict(dict(section))
  if 'learning_rate' in section:
    section.learning_rate = section.learning_rate * rate
  if 'warmup' in section:
    section.warmup = round(section.warmup * share)
  return section
