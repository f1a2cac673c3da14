"""Masking: which tokens of a row are predicted, and what the network sees in their place.

A masking is TensorFlow integer operations on the whole batch, of static shapes, the same eagerly and inside tf.data; its
randomness comes with every row as a key. B rows, L length, P predictions, V vocabulary, K predictions of the whole batch.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bertzoo_jax import errors
from bertzoo_jax.input import hashing


class Masking(NamedTuple):
  """One masking for rows of one length.

  Attributes:
    num_predictions: P, which no row exceeds.
    repeat: 0: new rows and masks in every epoch; k: those of epoch e mod k.
    apply: ({'input_ids', 'pack_ids', …} [B, L] int32, keys [B, 2] uint32) -> the features, `input_ids` masked, with
      'masked_positions', 'masked_targets' int32 and 'masked_weights' float32 [B, P], and those of `features`.
    features: {name: (shape without B, numpy dtype)} of what it writes beyond these three.
    reads_units: whether `apply` needs 'units' [B, L] int32 (bits of input/units.py); it takes them out of the features.
  """
  num_predictions: int
  repeat: int
  apply: Callable
  features: dict = {}
  reads_units: bool = False


def token(length, corpus, *, rate, corruption, rounding, maskable, random_tokens, repeat):
  """Single tokens, uniformly without replacement (Devlin et al. 2018 §3.1; Liu et al. 2019 for fairseq's variants).

  Args:
    length: L.
    corpus: input.corpus.Corpus, of which V and the special ids are read.
    rate: share of a row's tokens, its specials counted and its padding not; a row with fewer maskable tokens masks all
      of these.
    corruption: shares of [MASK], of a random token, of the token kept, drawn for each token by itself.
    rounding: 'nearest': max(1, round(rate · n)), halves to even (BERT). 'random': int(rate · n + U), U in [0, 1) (fairseq).
    maskable: 'text': all but [CLS] and [SEP]. 'all_but_padding'.
    random_tokens: 'all': any id of the vocabulary. 'no_specials': not pad, unk, cls and sep, but [MASK] as in fairseq.
    repeat: see Masking.

  Raises:
    UserError: a field that is out of its range.
  """
  vocab_size, special = corpus.vocab_size, corpus.special
  _check(rate, corruption, repeat)
  counts, chances = errors.choose(rounding, _ROUNDING, 'config.masking.rounding')(length, rate)
  unmaskable = errors.choose(maskable, {'text': ('cls', 'sep'), 'all_but_padding': ()}, 'config.masking.maskable')
  excluded = errors.choose(random_tokens, {'all': (), 'no_specials': ('pad', 'unk', 'cls', 'sep')}, 'config.masking.random_tokens')
  replacements = np.setdiff1d(np.arange(vocab_size, dtype=np.int32), [special[s] for s in excluded])
  num_predictions = int(min(length, counts[-1] + (chances[-1] > 0)))
  as_mask, as_random = hashing.threshold(corruption[0]), hashing.threshold(corruption[0] + corruption[1])

  def apply(features, keys_B2):
    ids_BL, key = features['input_ids'], (keys_B2[:, 0], keys_B2[:, 1])
    candidates_BL = features['pack_ids'] > 0
    count_B = _count(key, tf.reduce_sum(tf.cast(candidates_BL, tf.int32), axis=1), counts, chances)
    for name in unmaskable:
      candidates_BL &= ids_BL != special[name]
    count_B = tf.minimum(count_B, tf.reduce_sum(tf.cast(candidates_BL, tf.int32), axis=1))
    positions_BP = _choose(key, candidates_BL, count_B, num_predictions)
    real_BP = tf.sequence_mask(count_B, num_predictions)
    targets_BP = tf.where(real_BP, tf.gather(ids_BL, positions_BP, batch_dims=1), 0)
    seen_BP = _corrupt(key, positions_BP, targets_BP, as_mask, as_random, special['mask'], replacements)
    changes_BP = tf.where(real_BP, seen_BP - targets_BP, 0)
    flat_BP = positions_BP + length * tf.range(tf.shape(ids_BL)[0])[:, None]
    ids = tf.tensor_scatter_nd_add(tf.reshape(ids_BL, [-1]), tf.reshape(flat_BP, [-1, 1]), tf.reshape(changes_BP, [-1]))
    return {**features, 'input_ids': tf.reshape(ids, tf.shape(ids_BL)), 'masked_positions': positions_BP, 'masked_targets': targets_BP,
            'masked_weights': tf.cast(real_BP, tf.float32)}

  return Masking(num_predictions, repeat, apply)


def _nearest(length, rate):
  return np.array([0] + [max(1, round(rate * n)) for n in range(1, length + 1)]), np.zeros(length + 1, np.int64)


def _random(length, rate):
  wanted = [rate * n for n in range(length + 1)]
  return np.array([int(w) for w in wanted]), np.array([hashing.threshold(w - int(w)) for w in wanted])


_ROUNDING = {'nearest': _nearest, 'random': _random}  # (L, rate) -> for n = 0 … L tokens: the count, and the chance of one more in 2⁻³²


def _count(key, lengths_B, counts, chances):
  """Predictions of each row, by the number of its tokens. Tables and integers only, so that every machine agrees."""
  random_B = tf.cast(hashing.bits(hashing.fold(key, hashing.ROUND), 0), tf.int64)
  more_B = random_B < tf.gather(tf.constant(chances, tf.int64), lengths_B)
  return tf.gather(tf.constant(counts, tf.int32), lengths_B) + tf.cast(more_B, tf.int32)


def _choose(key, candidates_BL, count_B, num_predictions):
  """Positions [B, P], ascending, of the count_B candidates with the largest random ranks; the rest 0."""
  length = candidates_BL.shape[1]
  low = (length + 1).bit_length()  # a rank's low bits are its position + 1: ranks of a row differ, and none is the least or largest int32
  lo, hi = hashing.fold(key, hashing.SELECT)
  random_BL = hashing.bits((lo[:, None], hi[:, None]), tf.constant(np.arange(length, dtype=np.uint32))[None])
  high_BL = tf.bitwise.bitwise_and(random_BL, tf.constant(2**32 - 2**low, tf.uint32))
  rank_BL = tf.bitcast(tf.bitwise.bitwise_or(high_BL, tf.constant(np.arange(1, length + 1, dtype=np.uint32))), tf.int32)
  rank_BL = tf.where(candidates_BL, rank_BL, tf.int32.min)
  # NthElement takes one n for all rows: P − count stand-ins above every rank make the P-th largest the count-th largest.
  ahead_BP = tf.where(tf.sequence_mask(count_B, num_predictions), tf.int32.min, tf.int32.max)
  least_B = tf.raw_ops.NthElement(input=tf.concat([rank_BL, ahead_BP], 1), n=num_predictions - 1, reverse=True)
  chosen_K2 = tf.cast(tf.where(rank_BL >= tf.maximum(least_B, tf.int32.min + 1)[:, None]), tf.int32)
  row_K, position_K = chosen_K2[:, 0], chosen_K2[:, 1]
  slot_K = tf.range(tf.shape(row_K)[0]) - tf.gather(tf.cumsum(count_B, exclusive=True), row_K)
  return tf.scatter_nd(tf.stack([row_K, slot_K], 1), position_K, [tf.shape(candidates_BL)[0], num_predictions])


def _corrupt(key, positions_BP, targets_BP, as_mask, as_random, mask_id, replacements):
  """What stands at the chosen positions: [MASK], a random token, or the token itself."""
  counter_BP = tf.cast(positions_BP, tf.uint32)
  draw = lambda purpose: hashing.bits(tuple(k[:, None] for k in hashing.fold(key, purpose)), counter_BP)
  what_BP = tf.cast(draw(hashing.CORRUPT), tf.int64)
  which_BP = hashing.below(draw(hashing.REPLACE), len(replacements))
  random_BP = tf.gather(tf.constant(replacements), which_BP)
  return tf.where(what_BP < as_mask, mask_id, tf.where(what_BP < as_random, random_BP, targets_BP))


def _check(rate, corruption, repeat):
  if not 0 < rate < 1:
    raise errors.UserError(f'config.masking.rate is {rate}: a share between 0 and 1 is needed.')
  if len(corruption) != 3 or min(corruption) < 0 or abs(sum(corruption) - 1) > 1e-6:
    raise errors.UserError(f'config.masking.corruption is {tuple(corruption)}: three shares that sum to 1 are needed (mask, random, keep).')
  if repeat < 0:
    raise errors.UserError(f'config.masking.repeat is {repeat}: 0 (new in every epoch) or a number of epochs is needed.')


BY_NAME = {
    'token': token,
}
