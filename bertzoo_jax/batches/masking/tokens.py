"""Single tokens."""

import numpy as np

from bertzoo_jax.batches.masking import contract
from bertzoo_jax.batches.masking import corruption as corruptions
from bertzoo_jax.batches.masking import words
from bertzoo_jax.common import hashing
from bertzoo_jax.parts import maskings as definitions


def token(fields: definitions.Token, length, corpus):
  """Single tokens, uniformly (Devlin et al. 2018 §3.1; variants of the releases of Liu et al. 2019
  and Clark et al. 2020).

  Args:
    length: L.
    corpus: corpus.corpus.Corpus; its vocabulary size, special ids and unigram counts are read.
    rate: a row with fewer maskable tokens masks all of these.
    corruption: drawn for each token.
    rounding: 'nearest': max(1, round(rate · n)), halves to even (BERT). 'random': int(rate · n +
      U), U in [0, 1) (fairseq).
    maskable: 'text': all but [CLS] and [SEP].
    random_tokens: see corruption.corrupter.
    sampling: 'independent': a position may be in several slots, each with weight 1; its replacement
      is drawn once.
  """
  contract.check_corruption(fields.corruption)
  counts, chances = _ROUNDING[fields.rounding](length, fields.rate)
  unmaskable = {'text': ('cls', 'sep'), 'all_but_padding': ()}[fields.maskable]
  sample = {'distinct': _distinct, 'independent': _independent}[fields.sampling]
  corrupt = corruptions.corrupter(corpus, fields.corruption, fields.random_tokens)
  num_predictions = int(min(length, counts[-1] + (chances[-1] > 0)))
  special = corpus.special

  def apply(features, keys_B2):
    ids_BL, key = features['input_ids'], contract.row_key(keys_B2)
    candidates_BL = features['segment_ids'] > 0
    tokens_B = np.count_nonzero(candidates_BL, axis=1)
    # by integers, so that every machine agrees
    more_B = hashing.bits(hashing.fold(key, hashing.ROUND), 0) < chances.take(tokens_B)
    count_B = counts.take(tokens_B) + more_B
    for name in unmaskable:
      candidates_BL &= ids_BL != special[name]
    positions_BP, real_BP, first_BP = sample(key, candidates_BL, count_B, num_predictions)
    features = corruptions.predict(features, positions_BP, real_BP)
    seen_BP = corrupt(key, positions_BP, features['masked_targets'], positions_BP)
    return corruptions.replace(features, seen_BP, first_BP)

  return contract.Masking(num_predictions, fields.repeat, apply)


def _random(length, rate):
  more, counts = np.modf(rate * np.arange(length + 1))
  return counts.astype(np.int64), np.rint(more * 2**32).astype(np.int64)


_ROUNDING = {
  'nearest': lambda length, rate: (contract.nearest(length, rate), np.zeros(length + 1, np.int64)),
  'random': _random,
}  # (L, rate) -> for n = 0 … L tokens: the count, and the chance of one more in 2⁻³²


def _distinct(key, candidates_BL, count_B, num_predictions):
  positions_BP, real_BP = corruptions.slots(choose(key, candidates_BL, count_B), num_predictions)
  return positions_BP, real_BP, None


def _independent(key, candidates_BL, count_B, num_predictions):
  length = candidates_BL.shape[1]
  available_B = np.count_nonzero(candidates_BL, axis=1)
  columns_BL, _ = corruptions.slots(candidates_BL, length)
  random_BP = corruptions.draw(key, hashing.SELECT, np.arange(num_predictions)[None])
  which_BP = hashing.below(random_BP, available_B[:, None])
  real_BP = np.arange(num_predictions) < np.where(available_B > 0, count_B, 0)[:, None]
  # fillers sort behind
  sorted_BP = np.sort(np.where(real_BP, corruptions.at(columns_BL, which_BP), length), axis=1)
  first_BP = real_BP.copy()
  first_BP[:, 1:] &= sorted_BP[:, 1:] != sorted_BP[:, :-1]
  return sorted_BP * real_BP, real_BP, first_BP


def choose(key, candidates_BL, count_B, first_BL=None):
  """bool [B, L]: a uniform choice of count_B candidates per row, or all if there are fewer.

  first_BL: bool, tokens chosen (and counted) before any candidate, or None.
  """
  length = candidates_BL.shape[1]
  rank_BL = np.where(candidates_BL, words.ranks(key, hashing.SELECT, length), words.LEAST)
  if first_BL is not None:
    candidates_BL = candidates_BL | first_BL
    # ranks: candidates below 0, the tokens of first_BL from 0 on
    rank_BL = np.where(first_BL, np.arange(length, dtype=np.int32), rank_BL | words.LEAST)
  count_B = np.minimum(count_B, np.count_nonzero(candidates_BL, axis=1))
  # the least rank that is taken; the largest number if a row has no candidates
  ahead_B1 = np.full((len(rank_BL), 1), np.iinfo(np.int32).max, np.int32)
  ordered_BL = np.concatenate([np.sort(rank_BL, axis=1), ahead_B1], axis=1)
  return rank_BL >= corruptions.at(ordered_BL, length - count_B)[:, None]
