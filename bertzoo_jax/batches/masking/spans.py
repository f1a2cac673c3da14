"""Spans of words of geometric length, with the tokens beside them."""

import numpy as np
import tensorflow as tf

from bertzoo_jax.batches.masking import contract
from bertzoo_jax.batches.masking import corruption as corruptions
from bertzoo_jax.batches.masking import words as words_lib
from bertzoo_jax.common import hashing
from bertzoo_jax.parts import maskings as definitions
from bertzoo_jax.parts import named


@named.of_fields(definitions.span)
def span(length, corpus, fields):
  """Spans of words (Joshi et al. 2020 §3.1), and for each token of one the tokens at its borders
  (§3.2).

  A span begins at the word of a token that is drawn uniformly from those not masked yet, and has ℓ
  whole words, ℓ geometric; words masked before are no cost. Spans that touch or overlap are one.

  Args:
    length, corpus: as for `token`.
    rate: rounded upwards.
    p, max_words: ℓ is n with a chance in proportion to (1 − p)ⁿ⁻¹ p, up to max_words.
    random_tokens: each position has its own.
    overflow: 'skip': the span ends before such a word.
    max_pair_targets: tokens of a span from this offset on have no border tokens.

  Features:
    span_left, span_right: int32 [B, P]; positions of the tokens before and behind the span.
    span_offset: int32 [B, P]; the prediction's place in its span, from 0.
    All three are 0 for fillers, for offsets from max_pair_targets on, and for spans at the first or
    last token of a run of text. For all others span_right > 0.
  """
  contract.check_corruption(fields.corruption)
  thresholds = contract.cumulative((1 - fields.p) ** np.arange(fields.max_words), 'p')
  cost = {'skip': _whole, 'cut': _cut}[fields.overflow]
  group = _GROUPS[fields.corrupted]
  corrupt = corruptions.corrupter(corpus, fields.corruption, fields.random_tokens)
  counts = contract.upwards(length, fields.rate)
  num_predictions = int(counts[-1])

  def apply(features, keys_B2):
    features, key = dict(features), contract.row_key(keys_B2)
    marks_BL, pack_BL = words_lib.marks(features), features['pack_ids']
    text_BL = words_lib.text(features, corpus.special)
    words = words_lib.find(text_BL, pack_BL, words_lib.continues(marks_BL, 'word'))
    left_B = tf.gather(tf.constant(counts), tf.reduce_sum(tf.cast(text_BL, tf.int32), axis=1))
    masked = _spans(key, words, text_BL, left_B, thresholds, cost)
    chosen_BL = tf.range(length) < tf.gather(words.start + masked, words.of)
    positions_BP, real_BP = corruptions.slots(chosen_BL & text_BL, num_predictions)
    features = corruptions.predict(features, positions_BP, real_BP)
    start_BP, end_BP = _merged(words, positions_BP, real_BP)
    seen_BP = corrupt(
      key, positions_BP, features['masked_targets'], group(words, positions_BP, start_BP)
    )
    features = corruptions.replace(features, seen_BP)
    return features | _borders(
      words, positions_BP, real_BP, start_BP, end_BP, fields.max_pair_targets
    )

  shape = ((num_predictions,), np.int32)
  return contract.Masking(
    num_predictions,
    fields.repeat,
    apply,
    dict(span_left=shape, span_right=shape, span_offset=shape),
    reads_units=True,
  )


def _spans(key, words, text_BL, left_B, thresholds, cost):
  """int32 [K+1]: how many of a word's tokens are masked, from its first on."""
  none, more = words_lib.stand_in(words), tf.range(len(thresholds) - 1)
  anchor_LB, column_LB = words_lib.shuffled(key, words, text_BL)
  steps = tf.shape(anchor_LB)[0]
  random_LB = tf.transpose(corruptions.draw(key, hashing.COUNT, tf.transpose(column_LB)))
  size_LB = contract.draw_length(random_LB, thresholds)

  def unfinished(t, left_B, masked):
    return (t < steps) & tf.reduce_any(
      (left_B > 0) & (tf.gather(anchor_LB, tf.minimum(t, steps - 1)) < none)
    )

  def step(t, left_B, masked):
    first_B = tf.gather(anchor_LB, t)
    begins_B = (first_B < none) & (tf.gather(masked, first_B) == 0)
    last_B = tf.minimum(tf.gather(words.last, first_B), first_B + tf.gather(size_LB, t) - 1)
    word_BN = tf.minimum(first_B[:, None] + more, none)
    inside_BN = begins_B[:, None] & (word_BN <= last_B[:, None])
    new_BN = tf.where(
      inside_BN & (tf.gather(masked, word_BN) == 0),
      tf.gather(words.end, word_BN) - tf.gather(words.start, word_BN),
      0,
    )
    given_BN = cost(new_BN, left_B[:, None] - tf.cumsum(new_BN, axis=1, exclusive=True))
    masked = tf.tensor_scatter_nd_update(
      masked, tf.where(given_BN > 0, word_BN, none)[..., None], tf.where(given_BN > 0, given_BN, 0)
    )
    return t + 1, left_B - tf.reduce_sum(given_BN, axis=1), masked

  _, _, masked = tf.while_loop(
    unfinished, step, (0, left_B, tf.zeros([none + 1], tf.int32)), parallel_iterations=1
  )
  return masked


def _whole(new, left):
  # `left` has every word before paid for, so that nothing follows the first that does not fit
  return tf.where(new <= left, new, 0)


def _cut(new, left):
  return tf.clip_by_value(left, 0, new)


def _merged(words, positions_BP, real_BP):
  """(first, last) column [B, P] of the run of predictions of a slot, within one run of text."""
  slots = positions_BP.shape[1]
  run_BP = tf.gather(words.last, tf.gather(words.of, positions_BP, batch_dims=1))
  before = lambda x_BP, value: tf.pad(x_BP, [[0, 0], [1, 0]], constant_values=value)[:, :-1]
  fresh_BP = (
    (positions_BP != before(positions_BP, -2) + 1) | (run_BP != before(run_BP, -1)) | ~real_BP
  )
  number_BP = (
    tf.cumsum(tf.cast(fresh_BP, tf.int32), axis=1)
    - 1
    + slots * tf.range(tf.shape(positions_BP)[0])[:, None]
  )
  ends = lambda reduce: tf.gather(
    reduce(tf.reshape(positions_BP, [-1]), tf.reshape(number_BP, [-1]), tf.size(positions_BP)),
    number_BP,
  )
  return ends(tf.math.unsorted_segment_min), ends(tf.math.unsorted_segment_max)


def _borders(words, positions_BP, real_BP, start_BP, end_BP, most):
  length = words.of.shape[1]
  run_of = lambda columns_BP: tf.gather(
    words.last, tf.gather(words.of, tf.clip_by_value(columns_BP, 0, length - 1), batch_dims=1)
  )
  run_BP = run_of(positions_BP)
  offset_BP = positions_BP - start_BP
  inside_BP = (
    (start_BP > 0)
    & (end_BP < length - 1)
    & (run_of(start_BP - 1) == run_BP)
    & (run_of(end_BP + 1) == run_BP)
  )
  learns_BP = real_BP & inside_BP & (offset_BP < most)
  held = lambda x_BP: tf.where(learns_BP, x_BP, 0)
  return dict(
    span_left=held(start_BP - 1), span_right=held(end_BP + 1), span_offset=held(offset_BP)
  )


_GROUPS = {
  'spans': lambda words, positions_BP, start_BP: start_BP,
  'units': lambda words, positions_BP, start_BP: tf.gather(
    words.start, tf.gather(words.of, positions_BP, batch_dims=1)
  ),
  'pieces': lambda words, positions_BP, start_BP: positions_BP,
}
