"""Metrics of rows against plain counts; those that scikit-learn and scipy leave undefined."""

import types

import numpy as np
import pytest

from bertzoo_jax.common import errors
from bertzoo_jax.tasks import kinds
from bertzoo_jax.tasks import metrics
from bertzoo_jax.tasks.kinds import kind


def score(names, labels, logits, objective='classification'):
  """{metric: value}; labels are called x0, x1, …."""
  task = types.SimpleNamespace(
    kind=kinds.BY_NAME[objective],
    labels=[f'x{i}' for i in range(logits.shape[1])],
    positive='',
    logit_threshold=0.0,
  )
  return kind.score(names, task, types.SimpleNamespace(labels=labels), {'row': logits})


def check(names, objective, count):
  config, labels = (
    types.SimpleNamespace(metrics=names, positive=''),
    [f'x{i}' for i in range(count)],
  )
  kind.check_metrics(kinds.BY_NAME[objective], config, None, labels)


def plain(true, said):
  """(precision, recall, F1) of bool arrays; 0 where undefined."""
  right = np.sum(true & said)
  precision, recall = right / max(np.sum(said), 1), right / max(np.sum(true), 1)
  return precision, recall, 2 * right / max(np.sum(said) + np.sum(true), 1)


def area(true, scores):
  """Share of the pairs (positive, negative) in their order; half of those that are equal."""
  pairs = np.sign(scores[true][:, None] - scores[~true][None])
  return np.mean((pairs + 1) / 2)


def drawn(case, count):
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
@pytest.mark.parametrize('case', range(12))
def test_scores_of_classes_are_those_of_plain_counts(case, count):
  labels, logits = drawn(case, count)
  said = logits.argmax(1)
  each = {c: plain(labels == c, said == c) for c in range(count)}
  there = [each[c] for c in np.union1d(labels, said)]
  shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
  wanted = {'accuracy': np.mean(labels == said), 'micro_f1': np.mean(labels == said)}
  for i, name in enumerate(('precision', 'recall', 'f1')):
    wanted |= {f'{name}/x{c}': each[c][i] for c in each}
    wanted[f'macro_{name}'] = np.mean([own[i] for own in there])
    wanted[f'weighted_{name}'] = sum(each[c][i] * np.mean(labels == c) for c in each)
    if count == 2:
      wanted[name] = each[1][i]
  own = [area(labels == c, shares[:, c]) for c in each if 0 < np.mean(labels == c) < 1]
  wanted['roc_auc'] = np.mean(own or [0])
  a, b = np.eye(count)[labels], np.eye(count)[said]
  covariance = lambda x, y: np.sum((x - x.mean(0)) * (y - y.mean(0)))
  spread = covariance(a, a) * covariance(b, b)
  wanted['matthews'] = covariance(a, b) / np.sqrt(spread) if spread > 1e-9 else 0
  assert score(tuple(wanted), labels, logits) == pytest.approx(wanted, abs=1e-9)


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


@pytest.mark.parametrize('case', range(12))
def test_scores_of_several_labels_are_those_of_plain_counts(case):
  rng = np.random.default_rng(case)
  labels, logits = rng.integers(0, 2, (20, 4)), rng.normal(size=(20, 4))
  labels[:, case % 4] = case % 2
  if case % 3 == 0:
    logits[:, 0] = -1
    labels[:5] = logits[:5] > 0
  true, said = labels > 0, logits > 0
  each = [plain(true[:, c], said[:, c]) for c in range(4)]
  areas = [area(true[:, c], logits[:, c]) for c in range(4) if 0 < true[:, c].mean() < 1]
  wanted = {
    'accuracy': np.mean(np.all(true == said, axis=1)),
    'macro_f1': np.mean([f1 for _, _, f1 in each]),
    'micro_f1': plain(true, said)[2],
    'recall/x2': each[2][1],
    'roc_auc': np.mean(areas),
  }
  found = score(tuple(wanted), labels.astype(np.float32), logits, 'multilabel')
  assert found == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize('case', range(15))
def test_correlations_are_those_of_their_definitions_with_ties_too(case):
  rng = np.random.default_rng(case)
  labels = rng.uniform(0, 5, int(rng.integers(3, 80)))
  labels = np.round(labels) if case % 2 else labels
  said = labels * (case % 3 - 1) + rng.normal(size=len(labels))
  said = np.round(said) if case % 5 == 0 else said
  ranks = lambda x: np.array([np.sum(x < v) + (np.sum(x == v) + 1) / 2 for v in x])
  wanted = {
    'pearson': np.corrcoef(labels, said)[0, 1],
    'spearman': np.corrcoef(ranks(labels), ranks(said))[0, 1],
    'rmse': np.sqrt(np.mean((labels - said) ** 2)),
  }
  found = score(tuple(wanted), labels, said[:, None], 'regression')
  assert found == pytest.approx(wanted, abs=1e-9)


def test_a_correlation_with_a_constant_is_0_and_an_infinite_prediction_has_no_score():
  names = ('pearson', 'spearman')
  for labels, said in (([1.0, 2, 3], [0.1] * 3), ([0.1] * 3, [1.0, 2, 3]), ([1.0], [2.0])):
    logits = np.array(said)[:, None]
    assert score(names, np.array(labels), logits, 'regression') == dict.fromkeys(names, 0.0)
  # what is not finite has no score at all
  logits = np.zeros((3, 2))
  logits[1, 0] = np.inf
  assert np.isnan(score(('accuracy',), np.zeros(3, int), logits)['accuracy'])


@pytest.mark.parametrize(
  'names, objective, count, problem',
  [
    (('mathews',), 'classification', 2, "Did you mean 'matthews'"),
    (('accuracy',), 'regression', 0, 'pearson, rmse, spearman'),
    (('f1',), 'classification', 3, 'there are 3: take macro_f1, or f1/LABEL'),
    (('mrr',), 'classification', 3, 'there are 3: take macro_f1.'),
    (('accuracy', 'recall/x9'), 'classification', 3, "No label is called 'x9'"),
    (('entity_f1/LOC',), 'tagging', 2, "No label is called 'LOC'"),
    ((), 'classification', 3, 'is empty'),
    (('best_threshold',), 'span', 0, "begins with 'best_threshold'.*name another metric first"),
  ],
)
def test_a_metric_that_does_not_fit_is_refused_with_those_that_do(names, objective, count, problem):
  with pytest.raises(errors.UserError, match=problem):
    check(names, objective, count)
