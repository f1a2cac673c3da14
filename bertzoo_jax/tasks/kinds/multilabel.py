"""The kind with several labels per row, each true or false."""

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.tasks import metrics
from bertzoo_jax.tasks import report
from bertzoo_jax.tasks.examples import TRAIN
from bertzoo_jax.tasks.kinds import rows
from bertzoo_jax.tasks.kinds.kind import rounded

_TRUE, _FALSE = ('1', '1.0', 'true', 'yes'), ('0', '0.0', 'false', 'no', '')


def _encode(examples, split, names, source):
  """float32 [N, C] of 0 and 1."""
  out = np.zeros((len(examples), len(names)), np.float32)
  for i, labels in enumerate(examples.labels):
    for j, label in enumerate(labels):
      if label.lower() not in (*_TRUE, *_FALSE):
        raise errors.UserError(
          f'{examples.places[i]} has {label!r} in the column {names[j]!r}: a label of several is 1 '
          'or 0 (true, false, yes, no).'
        )
      out[i, j] = label.lower() in _TRUE
  empty = sum(labels.count('') for labels in examples.labels)
  return out, [f'{split}: {empty:,} empty labels are read as 0.'] if empty else []


def _lines(task):
  counts = {name: (s.labels.sum(axis=0), len(s)) for name, s in report.labelled(task).items()}
  usual = task.splits[TRAIN].labels.mean(axis=0) > 0.5
  shares = (
    f'{s.name} {np.mean(np.all((s.labels > 0.5) == usual, axis=1)):.1%}' for s in rows.others(task)
  )
  return [
    f'{len(task.labels)} labels, each true or false',
    *report.label_lines(task.labels, counts),
    f'Baseline (each label as most of train has it), all right: {", ".join(shares)}',
  ]


def _answer(names, logits, above):
  return {
    'labels': [label for label, x in zip(names, logits) if x > above],
    'probabilities': rounded(1 / (1 + np.exp(-np.clip(logits, -500, 500))), names),
  }


ROW = rows.kind(
  'multilabel',
  accept=rows.several_columns(
    'multilabel', 'several labels per text need several columns of 0 and 1, with commas between.'
  ),
  names=rows.column_names,
  encode=_encode,
  label_form=lambda names: ((len(names),), np.float32),
  metrics=metrics.OF_SEVERAL,
  of_label=metrics.OF_LABEL,
  lines=_lines,
  answer=_answer,
  predicted='labels',
  probability=lambda line: min(max(x, 1 - x) for x in line['probabilities'].values()),
  labelled=True,
  shown=lambda names, logits: ','.join(label for label, x in zip(names, logits) if x > 0),
  gold=lambda names, label: [name for name, x in zip(names, label) if x > 0.5],
  constant=lambda train, names: np.mean(train, axis=0) - 0.5,
  problem='multi_label_classification',
  card='Each output is the logit that its label is true (sigmoid). Labels may be true together.',
)
