"""A bigram model of a split: how often one token follows another, and the likeliest token between
two neighbours. It is the simplest baseline that reads context.

V vocabulary, N gaps.
"""

from typing import NamedTuple

import numpy as np
from scipy import sparse

# Tokens read at most; counting their pairs takes about 1 GB of memory.
MOST_TOKENS = 20_000_000
# Weight of the unigram distribution among the counts after a token. Between 10 and 100 the accuracy
# on the sample changes by less than half a percent.
_PRIOR = 30.0


class Bigrams(NamedTuple):
  """Counts of neighbours."""

  share: np.ndarray  # float64 [V], of the tokens; a token without a share is never guessed
  after: sparse.csr_array  # [V, V], how often the column's token follows the row's
  before: sparse.csr_array  # [V, V], how often the column's token precedes the row's


def count(split, vocab_size: int, most: int = MOST_TOKENS) -> Bigrams:
  """Counts a split; if it has more than `most` tokens, evenly spread stretches of it.

  split: corpus.splits.Split, with tokens. vocab_size: V.
  """
  stretch = 1 << 16
  starts = np.arange(0, split.num_tokens, stretch)
  if split.num_tokens > most:
    starts = starts[np.arange(0, most, stretch) * len(starts) // most]
  tokens = [
    split.gather(np.arange(a, min(a + stretch, split.num_tokens))).astype(np.int64) for a in starts
  ]
  singles = np.bincount(np.concatenate(tokens), minlength=vocab_size)
  left, right = (np.concatenate([t[side] for t in tokens]) for side in (slice(-1), slice(1, None)))
  ones, shape = np.ones(len(left), np.int64), (vocab_size, vocab_size)
  after = sparse.csr_array((ones, (left, right)), shape)  # equal pairs are added
  return Bigrams(singles / singles.sum(), after, after.T.tocsr())


def guesses(bigrams: Bigrams, left, right) -> np.ndarray:
  """The likeliest token between two neighbours, int64 [N].

  It maximises P(token | left) · P(token | right) / P(token): the two neighbours are taken as
  independent, given the token. Each P is estimated from counts, with the unigrams as prior.

  left, right: ids [N]; −1 for no neighbour.
  """
  log = lambda x: np.log(np.maximum(x, 1e-300))
  prior = log(bigrams.share)

  def beside(counts, token):
    """log P(t | token) − log P(t), [V]."""
    out = bigrams.share * _PRIOR
    row = slice(*counts.indptr[token : token + 2])
    out[counts.indices[row]] += counts.data[row]
    return log(out / (_PRIOR + counts.data[row].sum())) - prior

  tokens = np.empty(len(left), np.int64)
  for n, (a, b) in enumerate(zip(np.asarray(left).tolist(), np.asarray(right).tolist())):
    score = prior.copy()
    if a >= 0:
      score += beside(bigrams.after, a)
    if b >= 0:
      score += beside(bigrams.before, b)
    tokens[n] = score.argmax()
  return tokens
