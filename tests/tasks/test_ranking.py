"""Retrieval and vectors: scores beside scikit-learn's, plain loops and numbers worked by hand."""

import numpy as np
import pytest

from bertzoo_jax.tasks import ranking

sklearn = pytest.importorskip('sklearn.metrics')


def drawn(seed, count=7, documents=23, alike=False):
  """(queries, documents, relevances); alike: with documents that are equal."""
  rng = np.random.default_rng(seed)
  x, y = rng.normal(size=(count, 4)), rng.normal(size=(documents, 4))
  y = np.repeat(y[::3], 3, axis=0)[:documents] if alike else y
  gains = [dict(zip(rng.permutation(documents).tolist(), (3.0, 1.0, 2.0))) for _ in range(count)]
  return x, y, gains


@pytest.mark.parametrize('block', [5, 1 << 20])
@pytest.mark.parametrize('alike', [False, True])
def test_retrieval_is_exact_in_blocks_of_any_size(monkeypatch, block, alike):
  monkeypatch.setattr(ranking, '_BLOCK', block)
  x, y, gains = drawn(0, alike=alike)
  without = [next(iter(gains[0])), *[None] * 6]
  cosines = (ranking.normalized(x) @ ranking.normalized(y).T).astype(np.float64)
  cosines[0, without[0]] = -2
  order = np.argsort(-cosines, axis=1, kind='stable')
  ranked, ranks = ranking.top(x, y, 9, without), ranking.first_ranks(x, y, gains, without)
  np.testing.assert_array_equal(ranked, order[:, :9])
  assert ranks.tolist() == [min(row.tolist().index(n) for n in g) for row, g in zip(order, gains)]
  right = [len(set(row[:5]) & g.keys()) / 3 for row, g in zip(order.tolist(), gains)]
  assert ranking.recall(ranked, gains, 5) == pytest.approx(np.mean(right))
  assert ranking.mrr(ranks) == pytest.approx(np.mean(1 / (1 + ranks)))
  if not alike:  # scikit-learn averages over ties
    truth = [[g.get(n, 0.0) for n in range(23)] for g in gains]
    wanted = sklearn.ndcg_score(truth, cosines, k=5)
    assert ranking.ndcg(ranked, gains, 5) == pytest.approx(wanted, abs=1e-9)


def test_scores_worked_by_hand():
  ranked = np.array([[4, 0, 2], [1, 3, 0]])
  gains = [{0: 1.0, 5: 1.0}, {1: 1.0}]
  best = 1 + 1 / np.log2(3)
  assert ranking.ndcg(ranked, gains, 3) == pytest.approx((1 / np.log2(3) / best + 1) / 2)
  assert ranking.recall(ranked, gains, 3) == 0.75 and ranking.recall(ranked, gains, 1) == 0.5
  assert ranking.mrr([0, 3]) == 0.625 and ranking.mrr([0, 3], 3) == 0.5
  assert {name: f(np.array([0, 9, 10])) for name, f in ranking.OF_RANKS.items()} == pytest.approx(
    {'recall@1': 1 / 3, 'recall@10': 2 / 3, 'mrr': (1 + 0.1 + 1 / 11) / 3}
  )


def test_the_shape_of_vectors_is_that_of_their_singular_values():
  x = np.random.default_rng(1).normal(size=(30, 5)) + 1
  unit = x / np.linalg.norm(x, axis=1, keepdims=True)
  shares = np.linalg.svd(unit, compute_uv=False)
  shares /= shares.sum()
  cosines = unit @ unit.T
  mean = cosines[~np.eye(30, dtype=bool)].mean()
  wanted = (np.exp(-np.sum(shares * np.log(shares))), 5, mean, cosines.min())
  assert tuple(ranking.shape(x).values()) == pytest.approx(wanted, rel=1e-5)
  assert ranking.shape(np.eye(4))['effective_rank'] == pytest.approx(4)
