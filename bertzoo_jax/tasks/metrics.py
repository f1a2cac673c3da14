"""Scores of predictions. A metric is a function (labels, logits) → float in BY_NAME.

labels: int [N] classes, float [N] scores or float [N, C] of 0 and 1; logits: [N, C], of scores
[N, 1]. The definitions are those of scikit-learn and scipy. What they leave undefined is 0 here: a
correlation with a constant, F1 without a positive example. A metric that has an argument `groups`
gets the names of the examples: rows of one name are ranked among one another.
"""

import numpy as np


def accuracy(labels, logits):
  """Share of the rows that are right; of several labels, those with every label right."""
  if labels.ndim == 2:
    return np.mean(np.all(_marks(logits) == (labels > 0.5), axis=1))
  return np.mean(_classes(logits) == labels)


def f1(labels, logits):
  """F1 of class 1 of two."""
  return _f1(labels == 1, _classes(logits) == 1)


def macro_f1(labels, logits):
  """Mean F1 of the classes that occur in labels or predictions; of several labels, of all."""
  if labels.ndim == 2:
    marks = _marks(logits)
    return np.mean([_f1(labels[:, c] > 0.5, marks[:, c]) for c in range(labels.shape[1])])
  predicted = _classes(logits)
  there = np.union1d(labels, predicted)
  return np.mean([_f1(labels == c, predicted == c) for c in there])


def micro_f1(labels, logits):
  """F1 over all labels of all rows; of one class per row, the accuracy."""
  if labels.ndim == 2:
    return _f1(labels > 0.5, _marks(logits))
  return accuracy(labels, logits)


def matthews(labels, logits):
  """Matthews' correlation (Gorodkin 2004 for more than two classes); 0 if either is constant."""
  predicted = _classes(logits)
  count = int(max(labels.max(), predicted.max())) + 1
  true = np.bincount(labels, minlength=count).astype(np.float64)
  guessed = np.bincount(predicted, minlength=count).astype(np.float64)
  n = len(labels)
  covariance = np.sum(labels == predicted) * n - true @ guessed
  spread = (n * n - guessed @ guessed) * (n * n - true @ true)
  return covariance / np.sqrt(spread) if spread else 0.0


def pearson(labels, logits):
  """Pearson's correlation of scores; 0 if either is constant."""
  return _correlation(np.asarray(labels, np.float64), _scores(logits))


def spearman(labels, logits):
  """Spearman's correlation of scores: Pearson's of their ranks, equal ones sharing a rank."""
  return _correlation(_ranks(labels), _ranks(_scores(logits)))


def mrr(labels, logits, groups):
  """Mean reciprocal rank: of each group the first row of class 1, by the score of class 1. A group
  without such a row counts 0; rows of equal score keep their order.

  groups: name of each row's group.
  """
  first = [np.flatnonzero(own) for own in _ranked(labels, logits, groups)]
  return np.mean([1 / (1 + own[0]) if len(own) else 0.0 for own in first])


def mean_average_precision(labels, logits, groups):
  """Mean over the groups of the average precision at their rows of class 1. See mrr."""
  each = []
  for own in _ranked(labels, logits, groups):
    places = np.flatnonzero(own)
    each.append(np.mean(np.arange(1, len(places) + 1) / (places + 1)) if len(places) else 0.0)
  return np.mean(each)


def _ranked(labels, logits, groups):
  """Yields of each group whether its rows are of class 1, the highest score first."""
  scores, labels = logits[:, 1] - logits[:, 0], np.asarray(labels)
  rows = {}
  for i, group in enumerate(groups):
    rows.setdefault(group, []).append(i)
  for own in rows.values():
    yield labels[np.array(own)[np.argsort(-scores[own], kind='stable')]] == 1


def _classes(logits):
  return np.argmax(logits, axis=-1)


def _marks(logits):
  return logits > 0


def _scores(logits):
  return logits.reshape(len(logits))


def _f1(true, guessed):
  both, either = np.sum(true & guessed), np.sum(true) + np.sum(guessed)
  return 2 * both / either if either else 0.0


def _correlation(x, y):
  if len(x) < 2 or np.all(x == x[0]) or np.all(y == y[0]):
    return 0.0
  # to the length 1 in two steps, so that squares of very small numbers do not vanish
  x, y = x - x.mean(), y - y.mean()
  x, y = x / np.abs(x).max(), y / np.abs(y).max()
  return np.clip(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)), -1, 1)


def _ranks(x):
  _, place, many = np.unique(x, return_inverse=True, return_counts=True)
  return (np.cumsum(many) - (many - 1) / 2)[place]


BY_NAME = {
  'accuracy': accuracy,
  'f1': f1,
  'macro_f1': macro_f1,
  'micro_f1': micro_f1,
  'matthews': matthews,
  'pearson': pearson,
  'spearman': spearman,
  'mrr': mrr,
  'map': mean_average_precision,
}
_CLASSES = ('classification',)
FITS = {
  'accuracy': ('classification', 'multilabel'),
  'f1': _CLASSES,
  'macro_f1': ('classification', 'multilabel'),
  'micro_f1': ('classification', 'multilabel'),
  'matthews': _CLASSES,
  'pearson': ('regression',),
  'spearman': ('regression',),
  'mrr': _CLASSES,
  'map': _CLASSES,
}
