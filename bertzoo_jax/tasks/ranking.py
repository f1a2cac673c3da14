"""Exact retrieval by cosines, in blocks, and its scores. numpy only.

Legend: Q queries, N documents, D width. relevances: for each query {number of a document: gain}; a
document that it lacks has the gain 0. without: for each query the number of a document to leave
out, or None. Of documents with equal cosines the first one comes first.
"""

import hashlib

import numpy as np

_BLOCK = 1 << 26  # cosines in memory at a time


def normalized(x) -> np.ndarray:
  """float32 vectors of length 1; a vector of zeros stays."""
  x = np.asarray(x, np.float32)
  return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)


def _rows(queries, documents, without):
  """Yields (number of a query, its cosines [N]); −2 for a document to leave out."""
  queries, documents = normalized(queries), normalized(documents)
  # Equal documents get one cosine: a product of matrices may round each column in another way.
  known = {}
  first_N = [known.setdefault(hashlib.sha256(x).digest(), n) for n, x in enumerate(documents)]
  size = max(1, _BLOCK // max(1, len(documents)))
  for start in range(0, len(queries), size):
    for q, row in enumerate((queries[start : start + size] @ documents.T)[:, first_N], start):
      if without and without[q] is not None:
        row[without[q]] = -2
      yield q, row


def first_ranks(queries, documents, relevances, without=()) -> np.ndarray:
  """The rank of each query's best relevant document, from 0, int64 [Q]; N without one."""
  out = np.full(len(queries), len(documents))
  for q, row in _rows(queries, documents, without):
    if right := [n for n, gain in relevances[q].items() if gain > 0]:
      best = min(right, key=lambda n: (-row[n], n))
      out[q] = np.sum(row > row[best]) + np.sum(row[:best] == row[best])
  return out


def top(queries, documents, count: int, without=()) -> np.ndarray:
  """Numbers of the `count` documents with the highest cosines, the best first, int64 [Q, count]."""
  count, out = min(count, len(documents)), []
  for _, row in _rows(queries, documents, without):
    least = np.partition(row, len(row) - count)[len(row) - count]
    near = np.flatnonzero(row >= least)
    out.append(near[np.argsort(-row[near], kind='stable')][:count])
  return np.array(out, np.int64).reshape(len(queries), count)


def ndcg(ranked, relevances, k: int = 10) -> float:
  """Mean normalised discounted cumulative gain of the first k: Σ gain / log2(2 + rank), divided by
  that of the best order (Järvelin & Kekäläinen 2002, as trec_eval has it).
  """
  discounts = 1 / np.log2(np.arange(2, k + 2))
  each = []
  for row, gains in zip(ranked, relevances):
    got = np.array([gains.get(int(n), 0.0) for n in row[:k]])
    best = np.array(sorted(gains.values(), reverse=True)[:k])
    each.append(got @ discounts[: len(got)] / max(best @ discounts[: len(best)], 1e-12))
  return float(np.mean(each))


def recall(ranked, relevances, k: int) -> float:
  """Mean share of a query's relevant documents that are among the first k."""
  right = [{n for n, gain in gains.items() if gain > 0} for gains in relevances]
  return float(np.mean([len(r & set(row[:k].tolist())) / len(r) for row, r in zip(ranked, right)]))


def mrr(ranks, k: int | None = None) -> float:
  """Mean reciprocal rank; 0 for a rank of k or more."""
  ranks = np.asarray(ranks)
  return float(np.mean(np.where(ranks < (k or np.inf), 1 / (1 + ranks), 0.0)))


# Metrics of a query with one positive.
OF_RANKS = {
  'recall@1': lambda ranks: np.mean(ranks < 1),
  'recall@10': lambda ranks: np.mean(ranks < 10),
  'mrr': mrr,
}


def shape(vectors, most: int = 2000) -> dict[str, float]:
  """The effective rank of vectors [N, D], their size D, and the mean cosine of two of them; the
  lowest cosine of two of the first `most`.

  The effective rank is exp(entropy) of the singular values' shares (Roy & Vetterli 2007).
  """
  x = normalized(vectors).astype(np.float64)
  values = np.sqrt(np.maximum(np.linalg.eigvalsh(x.T @ x), 0.0))
  shares = values / max(values.sum(), 1e-12)
  shares = shares[shares > 0]
  total, count = np.sum(np.square(x.sum(axis=0))), len(x)
  mean = (total - np.sum(x * x)) / max(count * (count - 1), 1)
  return dict(
    effective_rank=float(np.exp(-np.sum(shares * np.log(shares)))),
    size=x.shape[1],
    mean_cosine=float(mean),
    lowest_cosine=float(np.min(x[:most] @ x[:most].T)),
  )
