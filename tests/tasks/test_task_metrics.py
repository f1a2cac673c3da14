"""Metrics against scikit-learn and scipy."""

import types
import warnings

import numpy as np
import pytest
import scipy.stats
from sklearn import metrics as sklearn

from bertzoo_jax.common import errors
from bertzoo_jax.tasks import kinds
from bertzoo_jax.tasks import metrics
from bertzoo_jax.tasks.kinds import kind

CASES = range(40)


def score(names, labels, logits):
  """{metric: value} of any kind of rows."""
  all_kinds = kinds.BY_NAME['classification']._replace(metrics=metrics.BY_NAME)
  task, split = types.SimpleNamespace(kind=all_kinds), types.SimpleNamespace(labels=labels)
  return kind.score(names, task, split, {'row': logits})


def check(names, objective, classes):
  kind.check_metrics(kinds.BY_NAME[objective], names, ('x',) * classes)


def classes(case, count):
  """(labels, logits) of one case; some have one class, constant predictions or both."""
  rng = np.random.default_rng(case)
  n = int(rng.integers(2, 60))
  labels, logits = rng.integers(0, count, n), rng.normal(size=(n, count))
  if case % 4 == 1:
    labels[:] = case % count
  if case % 4 == 2:
    logits[:] = np.eye(count)[(case // 4) % count]
  if case % 8 == 3:
    labels[:], logits[:] = 0, np.eye(count)[1]
  return labels, logits


@pytest.mark.parametrize('count', [2, 3, 5])
@pytest.mark.parametrize('case', CASES)
def test_scores_of_classes_equal_scikit_learns(case, count):
  labels, logits = classes(case, count)
  predicted = logits.argmax(1)
  ours = score(('accuracy', 'macro_f1', 'micro_f1', 'matthews'), labels, logits)
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    wanted = {
      'accuracy': sklearn.accuracy_score(labels, predicted),
      'macro_f1': sklearn.f1_score(labels, predicted, average='macro'),
      'micro_f1': sklearn.f1_score(labels, predicted, average='micro'),
      'matthews': sklearn.matthews_corrcoef(labels, predicted),
    }
    if count == 2:
      ours |= score(('f1',), labels, logits)
      wanted['f1'] = sklearn.f1_score(labels, predicted)
  assert ours == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize('case', range(10))
def test_ranks_of_questions_are_scored_by_their_definitions(case):
  rng = np.random.default_rng(case)
  labels, logits = rng.integers(0, 2, 60), rng.normal(size=(60, 2)).round(case % 2 + 0)
  groups = [f'q{i}' for i in rng.integers(0, 9, 60)]
  reciprocal, precision = [], []
  for group in set(groups):
    own = [i for i, g in enumerate(groups) if g == group]
    own.sort(key=lambda i: logits[i, 0] - logits[i, 1])  # stable
    right = [labels[i] for i in own]
    reciprocal.append(1 / (right.index(1) + 1) if 1 in right else 0)
    each = [sum(right[: k + 1]) / (k + 1) for k in range(len(right)) if right[k]]
    precision.append(sum(each) / max(len(each), 1))
  assert metrics.mrr(labels, logits, groups) == pytest.approx(np.mean(reciprocal))
  assert metrics.mean_average_precision(labels, logits, groups) == pytest.approx(np.mean(precision))


@pytest.mark.parametrize('case', CASES)
def test_scores_of_several_labels_equal_scikit_learns(case):
  rng = np.random.default_rng(case)
  labels, logits = rng.integers(0, 2, (20, 4)), rng.normal(size=(20, 4))
  labels[:, case % 4] = case % 2
  if case % 3 == 0:
    logits[:, 0] = -1
    labels[:5] = logits[:5] > 0
  predicted = logits > 0
  ours = score(('accuracy', 'macro_f1', 'micro_f1'), labels.astype(np.float32), logits)
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    wanted = {
      'accuracy': sklearn.accuracy_score(labels, predicted),
      'macro_f1': sklearn.f1_score(labels, predicted, average='macro'),
      'micro_f1': sklearn.f1_score(labels, predicted, average='micro'),
    }
  assert ours == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize('case', CASES)
def test_correlations_equal_scipys_with_ties_too(case):
  rng = np.random.default_rng(case)
  n = int(rng.integers(3, 80))
  labels = rng.uniform(0, 5, n)
  if case % 2:
    labels = np.round(labels)
  predicted = labels * (case % 3 - 1) + rng.normal(size=n)
  if case % 5 == 0:
    predicted = np.round(predicted)
  if case % 7 == 0:
    predicted = predicted * 1e-9 + 4
  ours = score(('pearson', 'spearman'), labels, predicted[:, None])
  assert ours['pearson'] == pytest.approx(scipy.stats.pearsonr(labels, predicted)[0], abs=1e-6)
  assert ours['spearman'] == pytest.approx(scipy.stats.spearmanr(labels, predicted)[0], abs=1e-12)
  if case % 7:
    assert ours['pearson'] == pytest.approx(scipy.stats.pearsonr(labels, predicted)[0], abs=1e-12)


def test_a_correlation_with_a_constant_is_0():
  names = ('pearson', 'spearman')
  zero = dict.fromkeys(names, 0.0)
  assert score(names, np.array([1.0, 2, 3]), np.full((3, 1), 0.1)) == zero
  assert score(names, np.full(3, 0.1), np.array([[1.0], [2], [3]])) == zero
  assert score(names, np.array([1.0]), np.array([[2.0]])) == zero


def test_predictions_that_are_not_finite_have_no_score():
  logits = np.zeros((3, 2))
  logits[1, 0] = np.inf
  assert np.isnan(score(('accuracy',), np.zeros(3, int), logits)['accuracy'])


def test_a_metric_that_does_not_fit_is_refused_with_those_that_do():
  check(('accuracy', 'f1', 'matthews'), 'classification', 2)
  with pytest.raises(errors.UserError, match="Did you mean 'matthews'"):
    check(('mathews',), 'classification', 2)
  with pytest.raises(errors.UserError, match='pearson, spearman'):
    check(('accuracy',), 'regression', 0)
  with pytest.raises(errors.UserError, match='there are 3: take macro_f1'):
    check(('f1',), 'classification', 3)
  with pytest.raises(errors.UserError, match='is empty'):
    check((), 'classification', 3)
