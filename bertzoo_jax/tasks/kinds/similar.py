"""Kinds whose units are several texts, each with a vector. Their output is `vectors`, [N, C, D]: of
two texts with a score, or of a query, its positive and negatives.
"""

import numpy as np

from bertzoo_jax import parts
from bertzoo_jax.common import errors
from bertzoo_jax.tasks import metrics
from bertzoo_jax.tasks import ranking
from bertzoo_jax.tasks import report
from bertzoo_jax.tasks.examples import TRAIN
from bertzoo_jax.tasks.examples import Text
from bertzoo_jax.tasks.kinds import kind as kind_lib
from bertzoo_jax.tasks.kinds import rows


def _cosines(outputs):
  """float64 [N], of the first two texts of each unit."""
  x = ranking.normalized(outputs['vectors'])
  return np.sum(x[:, 0] * x[:, 1], axis=-1)


def _answers(task, split, outputs):
  return [
    {'example': example, 'text_a': value.a, 'text_b': value.b, 'score': round(float(score), 6)}
    for example, value, score in zip(split.examples, split.source.values, _cosines(outputs))
  ]


def _ranks(task, split, outputs):
  """(the rank of each query's best positive among all texts of the split, from 0,).

  Equal texts count as one. A query's own text is no candidate, unless it is a positive.
  """
  texts = [(v.b, *v.negatives) for v in split.source.values]
  numbers = {text: n for n, text in enumerate(dict.fromkeys(t for row in texts for t in row))}
  vectors = np.asarray(outputs['vectors'])
  at = np.array([numbers[text] for row in texts for text in row])
  documents = np.zeros((len(numbers), vectors.shape[-1]), np.float32)
  documents[at] = vectors[:, 1:].reshape(len(at), -1)
  right, queries = {}, [value.a for value in split.source.values]
  for query, (positive, *_) in zip(queries, texts):
    right.setdefault(query, {})[numbers[positive]] = 1.0
  itself = [n if (n := numbers.get(a)) not in right[a] else None for a in queries]
  relevances = [right[query] for query in queries]
  return (ranking.first_ranks(vectors[:, 0], documents, relevances, itself),)


def _accept(source):
  if len(source.label_columns) != 1:
    raise errors.UserError(
      f'config.source.label names {len(source.label_columns)} columns, and one column of scores is '
      'needed: name it, or take configs/tasks/own.py:positives for texts without scores.'
    )
  if source.splits[TRAIN].values[0].negatives:
    raise errors.UserError(
      'config.source.negatives is not read by an objective of scores: remove it, or take '
      'configs/tasks/own.py:positives.'
    )


_PAIRS = kind_lib.Inputs(
  value=Text,
  features=('text_rows',),
  unlabelled=rows.TEXTS.unlabelled,
  asked='a pair of texts (a, b)',
  read=lambda x: tuple(x) if kind_lib.are_texts(x) and len(x) == 2 else None,
  usual=lambda: (parts.text_tuples(files={}, text_a='text_a'), parts.text_rows()),
  columns=('text_a', 'text_b'),
)


def _kind(name, **rest) -> kind_lib.Kind:
  fields = dict(
    inputs=_PAIRS,
    head='',
    outputs={'vectors': 'rows'},
    label_form=lambda names: ((), np.float32),
    answers=_answers,
    predicted='score',
    submission=kind_lib.indexed(lambda task, line: f'{line["score"]:.6f}', _answers),
  )
  return kind_lib.Kind(name, **{**fields, **rest})


def _scored(name) -> kind_lib.Kind:
  return _kind(
    name,
    accept=_accept,
    encode=rows.one_number(', or name a column of numbers as config.source.label'),
    metrics={name: metrics.OF_NUMBERS[name] for name in ('spearman', 'pearson')},
    metric_inputs=lambda task, split, outputs: (split.labels, _cosines(outputs)[:, None]),
    gold=lambda task, split: [float(label) for label in split.labels],
    report=lambda task: [
      'the cosine of two texts beside a score',
      *(
        f'{n}: scores {s.labels.min():g} to {s.labels.max():g}, mean {s.labels.mean():.3f}'
        for n, s in report.labelled(task).items()
      ),
      *_lines(task),
    ],
  )


def _lines(task):
  out = report.length_lines(task)
  for s in task.splits.values():
    texts = (text for v in s.source.values for text in (v.a, v.b, *v.negatives))
    if empty := sum(not text.strip() for text in texts):
      out.append(f'{s.name}: {empty:,} texts are empty: leave their rows out')
  return out + report.repeat_lines(task)


COSINE, COSENT = _scored('cosine_regression'), _scored('cosent')
POSITIVES = _kind(
  'in_batch_negatives',
  encode=lambda examples, split, names, source: (np.ones(len(examples), np.float32), []),
  metrics=ranking.OF_RANKS,
  metric_inputs=_ranks,
  gold=lambda task, split: [1.0] * len(split),
  report=lambda task: [
    f'a query, its positive and {task.splits[TRAIN].group - 2} negatives',
    *_lines(task),
  ],
)
