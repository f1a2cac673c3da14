"""The kind with a number per row."""

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.tasks import metrics
from bertzoo_jax.tasks import report
from bertzoo_jax.tasks.examples import TRAIN
from bertzoo_jax.tasks.kinds import rows


def _accept(source):
  rows.one_column(
    'regression', 'name one column; several numbers per row are a kind of your own (CONTRIBUTING).'
  )(source)
  if source.stratified:
    raise errors.UserError(
      'config.source.stratified is for labels, and this task has scores: leave it out.'
    )


def _lines(task):
  mean = task.splits[TRAIN].labels.mean()
  return ['a score'] + [
    f'{name}: scores {s.labels.min():g} to {s.labels.max():g}, mean {s.labels.mean():.3f}; '
    f'always {mean:.3f} has a squared error of {np.mean((s.labels - mean) ** 2):.3f}'
    for name, s in report.labelled(task).items()
  ]


ROW = rows.kind(
  'regression',
  accept=_accept,
  encode=rows.one_number(', or take configs/tasks/own.py:classify for labels that are words'),
  label_form=lambda names: ((), np.float32),
  metrics=metrics.OF_NUMBERS,
  lines=_lines,
  answer=lambda names, logits, above: {'score': round(logits.item(), 6)},
  predicted='score',
  shown=lambda names, logits: f'{logits.item():.3f}',
  gold=lambda names, label: label.item(),
  constant=lambda train, names: np.mean(train),
  problem='regression',
  card='The output is a number. No function is applied to it.',
)
