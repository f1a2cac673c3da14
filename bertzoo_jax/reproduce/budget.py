"""The rows of a table on fewer tokens, and how many fewer.

All rows have 1/k of their tokens. The rows of a batch and the steps are both divided by √k, and are
at least 1. The learning rate is multiplied by the root of the batch's share (as usual for Adam and
LAMB). The warmup keeps its share of the steps.
"""

import math
import shutil
import statistics

import ml_collections

from bertzoo_jax import pretrain
from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.reproduce import plan
from bertzoo_jax.training import metrics

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
  """Tokens of a whole run."""
  base = dict(length=experiment.length, rows=plan.rows_of(experiment))
  total = 0
  for steps, overrides in experiment.phases:
    length = overrides['length'] if 'length' in overrides else base['length']
    rows = overrides['batch_size'] if 'batch_size' in overrides else base['rows']
    total += steps * rows * length
  return total


def warmed_up(jobs, texts, workdir, say=print) -> float:
  """Seconds of all jobs on this machine at k = 1, from some steps of each unlike experiment.

  Args:
    jobs: of the table, undivided.
    texts: {plan.text_of: folder of the corpus}.
    workdir: of the table, for a folder that is removed again.
    say: prints a line.
  """
  known, total = {}, 0.0
  for job in jobs:
    text = plan.text_of(job.experiment)
    if job.row not in known:
      known[job.row] = _seconds_per_token(job, texts[text], storage.path(workdir) / 'warmup')
      say(f'{job.row}: {1 / known[job.row]:,.0f} tokens/s on this machine')
    total += known[job.row] * tokens(job.experiment)
  return total


def chosen(seconds: float, hours: float) -> float:
  """k, so that pretraining takes at most _SHARE of the hours."""
  return max(1.0, seconds / (hours * 3600 * _SHARE))


def _seconds_per_token(job, corpus, folder) -> float:
  """Of a step with at most _ROWS rows, in the first phase."""
  one = job.experiment.copy_and_resolve_references().unlock()
  rows = min(plan.rows_of(one), _ROWS)
  _, overrides = one.phases[0]
  overrides = {k: v for k, v in overrides.items() if k not in ('batch_size', 'batch_tokens')}
  one.phases, one.batch_size, one.batch_tokens = ((_STEPS, overrides),), rows, 0
  one.schedule.warmup = 0
  one.run.log_every, one.run.accumulation = 1, 1
  try:
    pretrain.pretrain(one.lock(), str(folder), corpus=corpus)
    speeds = [
      row['tokens_per_second'] for row in metrics.read(folder) if row.get('tokens_per_second')
    ]
  finally:
    shutil.rmtree(str(folder), ignore_errors=True)
  return 1 / statistics.median(speeds[len(speeds) // 2 :])


def _divide(experiment, k):
  part, rows = math.sqrt(k), plan.rows_of(experiment)
  fewer = max(1, round(rows / part))
  share = rows / fewer / k  # of the steps
  rate = math.sqrt(fewer / rows)
  experiment.batch_size, experiment.batch_tokens = fewer, 0
  phases = []
  for steps, overrides in experiment.phases:
    own = dict(overrides)
    if 'run.accumulation' in own:
      own['run.accumulation'] = 1  # as below: fewer rows need not divide into microbatches
    if 'batch_size' in own:
      own['batch_size'] = max(1, round(own['batch_size'] / part))
    if 'batch_tokens' in own:
      own['batch_tokens'] = max(1, round(own['batch_tokens'] / part))
    for key, by in (('schedule.learning_rate', rate), ('schedule.warmup', share)):
      if key in own:
        own[key] = own[key] * by if key.endswith('rate') else round(own[key] * by)
    if 'schedule' in own:
      own['schedule'] = _scheduled(own['schedule'], rate, share)
    phases.append((max(1, round(steps * share)), own))
  experiment.phases = tuple(phases)
  experiment.schedule = _scheduled(experiment.schedule, rate, share)
  experiment.run.accumulation = 1


def _scheduled(section, rate, share):
  section = ml_collections.ConfigDict(dict(section))
  if 'learning_rate' in section:
    section.learning_rate = section.learning_rate * rate
  if 'warmup' in section:
    section.warmup = round(section.warmup * share)
  return section
