import functools
import types

import numpy as np
import pytest
import scipy.special
import scipy.stats

from bertzoo_jax.common import errors
from bertzoo_jax.tasks import kinds
from bertzoo_jax.tasks import metrics
from bertzoo_jax.tasks.kinds import kind

sklearn = pytest.importorskip('sklearn.metrics')
CORRELATIONS = ('pearson', 'spearman')


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
  config = types.SimpleNamespace(metrics=names, positive='')
  labels = [f'x{i}' for i in range(count)]
  kind.check_metrics(kinds.BY_NAME[objective], config, None, labels)


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


def areas(true, scores):
  """The mean of areas below curves, of the columns that have both answers; 0 if none has."""
  both = [c for c in range(true.shape[1]) if 0 < true[:, c].mean() < 1]
  return np.mean([sklearn.roc_auc_score(true[:, c], scores[:, c]) for c in both] or [0])


@pytest.mark.parametrize('count', [2, 3, 5])
@pytest.mark.parametrize('case', range(12))
def test_scores_of_classes_are_scikit_learn_s(case, count):
  labels, logits = drawn(case, count)
  said, shares = logits.argmax(1), scipy.special.softmax(logits, axis=1)
  wanted = {'accuracy': np.mean(labels == said), 'micro_f1': np.mean(labels == said)}
  wanted['matthews'] = sklearn.matthews_corrcoef(labels, said)
  wanted['roc_auc'] = areas(np.eye(count)[labels], shares)
  for name in ('precision', 'recall', 'f1'):
    of = functools.partial(getattr(sklearn, f'{name}_score'), labels, said, zero_division=0)
    wanted |= {f'{x}_{name}': of(average=x) for x in ('macro', 'weighted')}
    wanted |= {f'{name}/x{c}': x for c, x in enumerate(of(average=None, labels=range(count)))}
    if count == 2:
      wanted[name] = of()
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
def test_scores_of_several_labels_are_scikit_learn_s(case):
  rng = np.random.default_rng(case)
  labels, logits = rng.integers(0, 2, (20, 4)), rng.normal(size=(20, 4))
  labels[:, case % 4] = case % 2
  if case % 3 == 0:
    logits[:, 0] = -1
    labels[:5] = logits[:5] > 0
  true, said = labels > 0, logits > 0
  wanted = {
    'accuracy': np.mean(np.all(true == said, axis=1)),
    'macro_f1': sklearn.f1_score(true, said, average='macro', zero_division=0),
    'micro_f1': sklearn.f1_score(true, said, average='micro', zero_division=0),
    'recall/x2': sklearn.recall_score(true[:, 2], said[:, 2], zero_division=0),
    'roc_auc': areas(true, logits),
  }
  found = score(tuple(wanted), labels.astype(np.float32), logits, 'multilabel')
  assert found == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize('case', range(15))
def test_correlations_are_scipy_s_with_ties_too(case):
  rng = np.random.default_rng(case)
  labels = rng.uniform(0, 5, int(rng.integers(3, 80)))
  labels = np.round(labels) if case % 2 else labels
  said = labels * (case % 3 - 1) + rng.normal(size=len(labels))
  said = np.round(said) if case % 5 == 0 else said
  wanted = {name: getattr(scipy.stats, f'{name}r')(labels, said)[0] for name in CORRELATIONS}
  wanted['rmse'] = np.sqrt(np.mean((labels - said) ** 2))
  found = score(tuple(wanted), labels, said[:, None], 'regression')
  assert found == pytest.approx(wanted, abs=1e-9)


def test_a_correlation_with_a_constant_is_0_and_an_infinite_prediction_has_no_score():
  names = CORRELATIONS
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
