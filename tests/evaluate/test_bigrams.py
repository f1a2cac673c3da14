"""The bigram model beside a direct computation over the same tokens."""

import numpy as np
import pytest

from bertzoo_jax.corpus import splits
from bertzoo_jax.evaluate import bigrams

VOCAB = 12


def split(tokens):
  offsets = np.array([0, len(tokens)], np.uint32)
  return splits.Split([splits.Shard(tokens.astype(np.uint16), offsets, offsets[:1].repeat(2))])


@pytest.fixture(scope='module')
def tokens():
  # id 0 never occurs; id n is often followed by n + 1
  rng = np.random.default_rng(0)
  steps = rng.choice([1, 1, 1, 2, 5], size=4000)
  return 1 + np.cumsum(steps) % (VOCAB - 1)


def test_pairs_are_counted_as_they_stand(tokens):
  counted = bigrams.count(split(tokens), VOCAB)
  np.testing.assert_allclose(counted.share, np.bincount(tokens, minlength=VOCAB) / len(tokens))
  for counts, first, second in (
    (counted.after, tokens[:-1], tokens[1:]),
    (counted.before, tokens[1:], tokens[:-1]),
  ):
    direct = np.zeros((VOCAB, VOCAB), int)
    np.add.at(direct, (first, second), 1)
    np.testing.assert_array_equal(counts.toarray(), direct)


def test_a_guess_is_the_likeliest_token_between_its_neighbours(tokens):
  counted = bigrams.count(split(tokens), VOCAB)
  pairs = np.zeros((VOCAB, VOCAB))
  np.add.at(pairs, (tokens[:-1], tokens[1:]), 1)
  after = lambda a: (pairs[a] + 30 * counted.share) / (pairs[a].sum() + 30)
  before = lambda b: (pairs[:, b] + 30 * counted.share) / (pairs[:, b].sum() + 30)
  known = counted.share > 0
  for left, right in ((3, 5), (3, -1), (-1, 5), (11, 2), (-1, -1)):
    chances = counted.share.copy()
    for token, side in ((left, after), (right, before)):
      if token >= 0:
        chances[known] *= side(token)[known] / counted.share[known]
    assert bigrams.guesses(counted, [left], [right]) == [chances.argmax()]
  assert bigrams.guesses(counted, [3], [5]) == [4]


def test_of_a_long_split_stretches_from_everywhere_are_counted():
  tokens = np.repeat(np.arange(1, 11), 1 << 16)
  counted = bigrams.count(split(tokens), VOCAB, most=5 << 16)
  assert counted.after.sum() == counted.before.sum() == 5 * ((1 << 16) - 1)
  assert np.flatnonzero(counted.share).tolist() == [1, 3, 5, 7, 9]
