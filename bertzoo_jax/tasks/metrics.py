"""Scores of predictions, by scikit-learn, scipy and seqeval; undefined ones are 0.

A metric of rows is a function (labels, logits) → float. labels: int [N] classes, float [N] scores
or float [N, C] of 0 and 1; logits: [N, C], of scores [N, 1]. A metric that has an argument `groups`
gets the names of the examples: rows of one name are ranked among one another. A metric of tags is a
function (true, said, scheme) → float; both are lists of sentences of tags. Those in OF_LABEL and
OF_TYPE have one more argument, the number of a class or the type of an entity: `precision/LABEL`.

The attribute `better` of a function is 'lower' if it is better where it is lower, and '' if it
ranks no runs.
"""

import functools
import importlib
import threading
import warnings

import numpy as np

from bertzoo_jax.tasks import schemes

_ALONE = threading.Lock()  # filters of warnings are one for all threads


def _library(name, *args, module='sklearn.metrics', **options):
  """The value of a function of a library, which is imported here so that start-up stays quick."""
  function = getattr(importlib.import_module(module), name)
  with _ALONE, warnings.catch_warnings():
    warnings.simplefilter('ignore')
    return function(*args, **options)


def _told(labels, logits):
  """(labels, predictions), of one class or of several labels per row."""
  if labels.ndim == 2:
    return labels > 0.5, logits > 0
  return labels, np.argmax(logits, axis=-1)


def accuracy(labels, logits):
  """Share of the rows that are right; of several labels, those with every label right."""
  return _library('accuracy_score', *_told(labels, logits))


def matthews(labels, logits):
  """Matthews' correlation (Gorodkin 2004 for more than two classes); 0 if either is constant."""
  return _library('matthews_corrcoef', *_told(labels, logits))


def _averaged(name, average, labels, logits):
  """Precision, recall or F1, averaged over classes that occur, or over all of several labels."""
  return _library(name, *_told(labels, logits), average=average, zero_division=0)


def _of_label(name, labels, logits, number=1):
  """Precision, recall or F1 of one class."""
  true, said = _told(labels, logits)
  if labels.ndim == 2:
    return _library(name, true[:, number], said[:, number], zero_division=0)
  return _library(name, true == number, said == number, zero_division=0)


def roc_auc(labels, logits):
  """Area under the ROC curve; of several labels or classes (one against the rest, by probability)
  the mean of those that some rows have and others lack.
  """
  if labels.ndim == 1:
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares = shares / shares.sum(axis=1, keepdims=True)
    scores = logits[:, 1:] - logits[:, :1] if logits.shape[1] == 2 else shares
    first = logits.shape[1] - scores.shape[1]
    labels = labels[:, None] == np.arange(first, logits.shape[1])
  else:
    scores, labels = logits, labels > 0.5
  each = [_library('roc_auc_score', t, s) for t, s in zip(labels.T, scores.T) if 0 < t.mean() < 1]
  return np.mean(each) if each else 0.0


def _correlation(name, labels, logits):
  if len(labels) < 2:
    return 0.0
  x, y = np.asarray(labels, np.float64), logits.reshape(len(logits))
  return np.nan_to_num(_library(name, x, y, module='scipy.stats').statistic)


def rmse(labels, logits):
  """Root of the mean squared error of scores."""
  x, y = np.asarray(labels, np.float64), logits.reshape(len(logits))
  return _library('root_mean_squared_error', x, y)


rmse.better = 'lower'


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


# --- tags ---


def tag_accuracy(true, said, scheme):
  """Share of the words whose tag is right."""
  del scheme
  right = sum(a == b for t, s in zip(true, said) for a, b in zip(t, s))
  return right / max(sum(map(len, true)), 1)


def _entities(name, strict, true, said, scheme, type_=''):
  """A score over all entities, or over the entities of one type, as seqeval has it.

  strict: by the scheme (IOB2, BIOES and BILOU), so that tags that it does not allow belong to no
  entity.
  """
  import seqeval.scheme

  given, allowed = {'zero_division': 0}, set('BIES')
  if strict := strict and scheme in ('iob2', 'bioes', 'bilou'):
    allowed = set('BI' if scheme == 'iob2' else 'BIES')
    own = seqeval.scheme.IOB2 if scheme == 'iob2' else seqeval.scheme.IOBES
    given |= {'mode': 'strict', 'scheme': own}

  def shown(tag):
    prefix, own = schemes.parts(tag)
    counts = prefix in allowed if strict else prefix != schemes.OUTSIDE
    return f'{prefix}-{own}' if counts and type_ in ('', own) else schemes.OUTSIDE

  told = [[[shown(tag) for tag in tags] for tags in x] for x in (true, said)]
  return _library(name, *told, module='seqeval.metrics', **given)


# --- by name ---

_MEASURES = {'precision': 'precision_score', 'recall': 'recall_score', 'f1': 'f1_score'}
OF_LABEL = {n: functools.partial(_of_label, measure) for n, measure in _MEASURES.items()}
OF_TYPE = {
  f'{mode}_{n}': functools.partial(_entities, measure, mode == 'strict')
  for mode in ('entity', 'strict')
  for n, measure in _MEASURES.items()
}
TAGS = {**OF_TYPE, 'accuracy': tag_accuracy}
_AVERAGED = {
  f'{average}_{n}': functools.partial(_averaged, measure, average)
  for average in ('macro', 'micro', 'weighted')
  for n, measure in _MEASURES.items()
}
OF_TWO = (*OF_LABEL, 'mrr', 'map')  # they are of class 1 of two
OF_CLASSES = {
  'accuracy': accuracy,
  **OF_LABEL,
  **_AVERAGED,
  'matthews': matthews,
  'roc_auc': roc_auc,
  'mrr': mrr,
  'map': mean_average_precision,
}
OF_NUMBERS = {
  'pearson': functools.partial(_correlation, 'pearsonr'),
  'spearman': functools.partial(_correlation, 'spearmanr'),
  'rmse': rmse,
}
OF_SEVERAL = {'accuracy': accuracy, **_AVERAGED, 'roc_auc': roc_auc}
