"""Single tokens."""

import numpy as np
import tensorflow as tf

from bertzoo_jax.batches.masking import contract
from bertzoo_jax.batches.masking import corruption as corruptions
from bertzoo_jax.batches.masking import words
from bertzoo_jax.common import hashing


def token(length, corpus, *, rate, corruption, rounding, maskable, random_tokens, sampling, repeat):
  """Single tokens, uniformly (Devlin et al. 2018 §3.1; Liu et al. 2019 and Clark et al. 2020 for
  the releases' variants).

  Args:
    length: L.
    corpus: corpus.corpus.Corpus, of which V, the special ids and unigram counts are read.
    rate: a row with fewer maskable tokens masks all of these.
    corruption: drawn for each token by itself.
    rounding: 'nearest': max(1, round(rate · n)), halves to even (BERT). 'random': int(rate · n +
      U), U in [0, 1) (fairseq).
    maskable: 'text': all but [CLS] and [SEP].
    random_tokens: see corruption.corrupter.
    sampling: 'independent': a position may be in several slots, each with weight 1; its replacement
      is drawn once.
  """
  contract.check_corruption(corruption)
  counts, chances = _ROUNDING[rounding](length, rate)
  unmaskable = {'text': ('cls', 'sep'), 'all_but_padding': ()}[maskable]
  sample = {'distinct': _distinct, 'independent': _independent}[sampling]
  corrupt = corruptions.corrupter(corpus, corruption, random_tokens)
  num_predictions = int(min(length, counts[-1] + (chances[-1] > 0)))
  special = corpus.special

  def apply(features, keys_B2):
    ids_BL, key = features['input_ids'], contract.row_key(keys_B2)
    candidates_BL = features['pack_ids'] > 0
    count_B = _count(key, tf.reduce_sum(tf.cast(candidates_BL, tf.int32), axis=1), counts, chances)
    for name in unmaskable:
      candidates_BL &= ids_BL != special[name]
    positions_BP, real_BP, first_BP = sample(key, candidates_BL, count_B, num_predictions)
    features = corruptions.predict(features, positions_BP, real_BP)
    seen_BP = corrupt(key, positions_BP, features['masked_targets'], positions_BP)
    return corruptions.replace(features, seen_BP, first_BP)

  return contract.Masking(num_predictions, repeat, apply)


def _nearest(length, rate):
  return contract.nearest(length, rate), np.zeros(length + 1, np.int64)


def _random(length, rate):
  wanted = [rate * n for n in range(length + 1)]
  return np.array([int(w) for w in wanted]), np.array(
    [hashing.threshold(w - int(w)) for w in wanted]
  )


_ROUNDING = {
  'nearest': _nearest,
  'random': _random,
}  # (L, rate) -> for n = 0 … L tokens: the count, and the chance of one more in 2⁻³²


def _count(key, lengths_B, counts, chances):
  """Predictions of each row by its number of tokens. By integers, so that every machine agrees."""
  random_B = tf.cast(hashing.bits(hashing.fold(key, hashing.ROUND), 0), tf.int64)
  more_B = random_B < tf.gather(tf.constant(chances, tf.int64), lengths_B)
  return tf.gather(tf.constant(counts, tf.int32), lengths_B) + tf.cast(more_B, tf.int32)


def _distinct(key, candidates_BL, count_B, num_predictions):
  chosen_BL = choose(key, candidates_BL, count_B, num_predictions)
  positions_BP, real_BP = corruptions.slots(chosen_BL, num_predictions)
  return positions_BP, real_BP, None


def _independent(key, candidates_BL, count_B, num_predictions):
  length = candidates_BL.shape[1]
  found_B = tf.reduce_sum(tf.cast(candidates_BL, tf.int32), axis=1)
  columns_BL, _ = corruptions.slots(candidates_BL, length)
  random_BP = corruptions.draw(key, hashing.SELECT, tf.range(num_predictions)[None])
  which_BP = tf.cast(hashing.below(random_BP, tf.cast(found_B, tf.int64)[:, None]), tf.int32)
  real_BP = tf.sequence_mask(tf.where(found_B > 0, count_B, 0), num_predictions)
  # fillers sort behind
  drawn_BP = tf.where(real_BP, tf.gather(columns_BL, which_BP, batch_dims=1), length)
  sorted_BP = tf.sort(drawn_BP, axis=1)
  first_BP = real_BP & (
    sorted_BP != tf.pad(sorted_BP, [[0, 0], [1, 0]], constant_values=-1)[:, :-1]
  )
  return tf.where(real_BP, sorted_BP, 0), real_BP, first_BP


def choose(key, candidates_BL, count_B, most, first_BL=None):
  """bool [B, L]: count_B (at most `most`) of the candidates, uniformly; all of them where there are
  fewer.

  Args:
    first_BL: bool, chosen before any candidate (and counted); None for none.
  """
  length = candidates_BL.shape[1]
  rank_BL = tf.where(candidates_BL, words.ranks(key, hashing.SELECT, length), tf.int32.min)
  if first_BL is not None:
    candidates_BL |= first_BL
    # candidates below 0, those first from 0 on
    rank_BL = tf.where(first_BL, tf.range(length), tf.bitwise.bitwise_or(rank_BL, tf.int32.min))
  count_B = tf.minimum(count_B, tf.reduce_sum(tf.cast(candidates_BL, tf.int32), axis=1))
  # NthElement takes one n for all rows: `most` − count stand-ins above every rank make the most-th
  # largest the count-th largest.
  ahead_BP = tf.where(tf.sequence_mask(count_B, most), tf.int32.min, tf.int32.max)
  least_B = tf.raw_ops.NthElement(input=tf.concat([rank_BL, ahead_BP], 1), n=most - 1, reverse=True)
  return rank_BL >= tf.maximum(least_B, tf.int32.min + 1)[:, None]
