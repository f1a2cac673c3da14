"""Scores of predictions, by scikit-learn, scipy and seqeval; undefined ones are 0.

A metric of rows is a function (labels, logits) → float. labels: int [N] classes, float [N] scores
or float [N, C] of 0 and 1; logits: [N, C], of scores [N, 1]. A metric that has an argument `groups`
gets the names of the examples: rows of one name are of one group. A metric of tags is a function
(true, predicted, scheme) → float of two lists of sentences. Metrics in OF_LABEL and OF_TYPE have
one more argument, the number of a class or the type of an entity: `precision/LABEL`.

The attribute `better` of a function is 'lower' if a lower value is better, and '' if it ranks no
runs.
"""

import functools
import importlib
import threading
import warnings

import numpy as np

from bertzoo_jax.tasks import schemes

_ALONE = threading.Lock()  # all threads share the filters of warnings


def _library(name, *args, module='sklearn.metrics', **options):
  """The value of a function of a library, which is imported here so that start-up stays quick."""
  function = getattr(importlib.import_module(module), name)
  with _ALONE, warnings.catch_warnings():
    warnings.simplefilter('ignore')
    return function(*args, **options)


def _predictions(labels, logits):
  """(labels, predictions), of one class or of several labels per row."""
  if labels.ndim == 2:
    return labels > 0.5, logits > 0
  return labels, np.argmax(logits, axis=-1)


def accuracy(labels, logits):
  """Share of the rows that are right; a row of several labels is right if every label is."""
  return _library('accuracy_score', *_predictions(labels, logits))


def matthews(labels, logits):
  """Matthews' correlation (Gorodkin 2004 for more than two classes); 0 if either is constant."""
  return _library('matthews_corrcoef', *_predictions(labels, logits))


def _averaged(name, average, labels, logits):
  """Precision, recall or F1, averaged over classes that occur, or over all of several labels."""
  return _library(name, *_predictions(labels, logits), average=average, zero_division=0)


def _class_score(name, labels, logits, number=1):
  """Precision, recall or F1 of one class."""
  true, predicted = _predictions(labels, logits)
  if labels.ndim == 2:
    return _library(name, true[:, number], predicted[:, number], zero_division=0)
  return _library(name, true == number, predicted == number, zero_division=0)


def roc_auc(labels, logits):
  """Area under the ROC curve; for several labels or classes (one against the rest, by probability)
  the mean over those that some rows have and others lack.
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
  """Mean reciprocal rank of the first row of class 1 in each group, sorted by the score of class 1.
  A group without such a row counts 0; rows of equal score keep their order.
  """
  first = [np.flatnonzero(ranked) for ranked in _ranked(labels, logits, groups)]
  return np.mean([1 / (1 + ranked[0]) if len(ranked) else 0.0 for ranked in first])


def mean_average_precision(labels, logits, groups):
  """Mean over the groups of the average precision at their rows of class 1. See mrr."""
  each = []
  for ranked in _ranked(labels, logits, groups):
    places = np.flatnonzero(ranked)
    each.append(np.mean(np.arange(1, len(places) + 1) / (places + 1)) if len(places) else 0.0)
  return np.mean(each)


def exact_match(labels, logits, groups):
  """Share of the groups whose rows are all right, as MultiRC's (Khashabi et al. 2018). See mrr."""
  wrong = {g for g, is_wrong in zip(groups, np.argmax(logits, axis=-1) != labels) if is_wrong}
  return 1 - len(wrong) / len(set(groups))


def _ranked(labels, logits, groups):
  """Yields for each group whether its rows are of class 1, the highest score first."""
  scores, labels = logits[:, 1] - logits[:, 0], np.asarray(labels)
  rows = {}
  for i, group in enumerate(groups):
    rows.setdefault(group, []).append(i)
  for members in rows.values():
    yield labels[np.array(members)[np.argsort(-scores[members], kind='stable')]] == 1


# --- tags ---


def tag_accuracy(true, predicted, scheme):
  """Share of the words whose tag is right."""
  del scheme
  right = sum(a == b for t, s in zip(true, predicted) for a, b in zip(t, s))
  return right / max(sum(map(len, true)), 1)


def _entities(name, strict, true, predicted, scheme, type_='', without=None):
  """A score over all entities, or over the entities of one type, as seqeval has it.

  strict: by the scheme (IOB2, BIOES and BILOU), so that tags that it does not allow belong to no
  entity. without: a type that counts as none, in lower case.
  """
  import seqeval.scheme

  options, allowed = {'zero_division': 0}, set('BIES')
  if strict := strict and scheme in ('iob2', 'bioes', 'bilou'):
    allowed = set('BI' if scheme == 'iob2' else 'BIES')
    scheme_class = seqeval.scheme.IOB2 if scheme == 'iob2' else seqeval.scheme.IOBES
    options |= {'mode': 'strict', 'scheme': scheme_class}

  def shown(tag):
    prefix, kind = schemes.parts(tag)
    counts = prefix in allowed if strict else prefix != schemes.OUTSIDE
    counts = counts and kind.lower() != without
    return f'{prefix}-{kind}' if counts and type_ in ('', kind) else schemes.OUTSIDE

  sentences = [[[shown(tag) for tag in tags] for tags in x] for x in (true, predicted)]
  return _library(name, *sentences, module='seqeval.metrics', **options)


# --- by name ---

_MEASURES = {'precision': 'precision_score', 'recall': 'recall_score', 'f1': 'f1_score'}
OF_LABEL = {n: functools.partial(_class_score, measure) for n, measure in _MEASURES.items()}
OF_TYPE = {
  f'{mode}_{n}': functools.partial(_entities, measure, mode == 'strict')
  for mode in ('entity', 'strict')
  for n, measure in _MEASURES.items()
}
TAGS = {**OF_TYPE, 'accuracy': tag_accuracy}
TAGS['entity_f1_no_misc'] = functools.partial(OF_TYPE['entity_f1'], without='misc')  # EuroEval
_AVERAGED = {
  f'{average}_{n}': functools.partial(_averaged, measure, average)
  for average in ('macro', 'micro', 'weighted')
  for n, measure in _MEASURES.items()
}
OF_TWO = (*OF_LABEL, 'mrr', 'map')  # both score class 1 of two
OF_CLASSES = {
  'accuracy': accuracy,
  **OF_LABEL,
  **_AVERAGED,
  'matthews': matthews,
  'roc_auc': roc_auc,
  'mrr': mrr,
  'map': mean_average_precision,
  'exact_match': exact_match,
}
OF_NUMBERS = {
  'pearson': functools.partial(_correlation, 'pearsonr'),
  'spearman': functools.partial(_correlation, 'spearmanr'),
  'rmse': rmse,
}
OF_SEVERAL = {'accuracy': accuracy, **_AVERAGED, 'roc_auc': roc_auc}
