"""The scores of finished runs: one row per point of a grid, and the best point of each task.

The same results give the same bytes: nothing here depends on time or machine.
"""

import math
import statistics
from typing import NamedTuple

from bertzoo_jax.common import tables


class Line(NamedTuple):
  """The runs of one point of a grid."""

  task: str  # its name
  point: str  # 'learning_rate=3e-05' or ''
  init: str  # address of the weights
  metric: str  # the first of the config
  split: str  # that was scored
  seeds: int  # how many
  # median, best, worst: of their scores. A run that diverged is worse than all others, and nan
  # where it is the one that is shown.
  median: float
  best: float
  worst: float
  others: dict  # {'split metric': median} of all other scores
  chosen: bool  # whether it is the point with the best median
  means: dict = {}  # {'split metric': (mean, radius of its 95 % interval)} of drawn examples


def lines(task: str, metrics, results: list[dict], sign: int = 1, drawn=False) -> list[Line]:
  """A Line per point and weights, in the order of the results. sign: −1 if the first metric is
  better where it is lower. drawn: whether each run drew its examples.
  """
  groups = {}
  for result in results:
    key = (result['init'], tuple((k, str(v)) for k, v in result['point']))
    groups.setdefault(key, []).append(result)
  table_lines = []
  for (init, point), group in groups.items():
    split, scores = next(iter(group[0]['scores']), ''), [r['score'] for r in group]
    each = {
      f'{s} {m}': [r['scores'][s][m] for r in group]
      for s, values in group[0]['scores'].items()
      for m in values
    }
    means = {name: _interval(x) for name, x in each.items()} if drawn else {}
    each.pop(f'{split} {metrics[0]}', None)
    others = {name: _median(x, sign) for name, x in each.items()}
    names = short([key for key, _ in point])
    named = ', '.join(f'{name}={value}' for name, (_, value) in zip(names, point))
    known = sorted((s for s in scores if s is not None), key=lambda s: -sign * s) or [math.nan]
    ends = _median(scores, sign), known[0], known[-1] if None not in scores else math.nan
    ends = (metrics[0], split, len(group), *ends)
    table_lines.append(Line(task, named, init, *ends, others, False, means))
  medians = [-math.inf if math.isnan(x.median) else sign * x.median for x in table_lines]
  number = medians.index(max(medians))
  table_lines[number] = table_lines[number]._replace(chosen=True)
  return table_lines


def short(keys: list[str]) -> list[str]:
  """The last name of each key of a grid; the whole key where another one ends alike."""
  last = [key.rpartition('.')[2] for key in keys]
  return [key if last.count(name) > 1 else name for key, name in zip(keys, last)]


def markdown(table_lines: list[Line], majority: dict[str, float]) -> str:
  """All lines, without columns that say nothing. majority: {task: score of the usual class}."""
  names = 'task,point,score,seeds,median,best,worst,majority,others,mean ± 95 %'
  rows = [tuple(names.split(','))]
  for line in table_lines:
    same_task = [other for other in table_lines if other.task == line.task]
    init = line.init if len({other.init for other in same_task}) > 1 else ''
    point = ' · '.join(filter(None, [init, line.point])) or '–'
    others = ', '.join(f'{name} {_shown(value)}' for name, value in line.others.items())
    rows.append(
      (
        line.task,
        f'{point} ←' if line.chosen and len(same_task) > 1 else point,
        f'{line.split} {line.metric}',
        str(line.seeds),
        *map(_shown, (line.median, line.best, line.worst, majority[line.task])),
        others or '–',
        ', '.join(f'{n} {100 * m:.2f} ± {100 * r:.2f}' for n, (m, r) in line.means.items()),
      )
    )
  empty = {1} if all(row[1] == '–' for row in rows[1:]) else set()
  empty |= {5, 6} if all(line.seeds == 1 for line in table_lines) else set()
  empty |= set() if any(line.means for line in table_lines) else {9}
  rows = [[cell for i, cell in enumerate(row) if i not in empty] for row in rows]
  return tables.aligned(rows, markdown=True) + '\n'


def _interval(scores) -> tuple[float, float]:
  """The mean and 1.96 standard errors of it, as EuroEval prints them; nan with a missing score."""
  if None in scores or len(scores) < 2:
    return math.nan if None in scores else scores[0], math.nan
  return statistics.fmean(scores), 1.96 * statistics.stdev(scores) / math.sqrt(len(scores))


def _median(scores, sign) -> float:
  """The median; a missing score ranks below all others, and makes it nan where it is needed."""
  value = statistics.median([-sign * math.inf if s is None else s for s in scores])
  return value if math.isfinite(value) else math.nan


def _shown(score) -> str:
  return '–' if score is None or math.isnan(score) else f'{score:.4f}'
