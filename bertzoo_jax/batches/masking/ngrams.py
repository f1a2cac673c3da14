"""N-grams of words."""

import tensorflow as tf

from bertzoo_jax.batches.masking import contract
from bertzoo_jax.batches.masking import corruption as corruptions
from bertzoo_jax.batches.masking import substitutes
from bertzoo_jax.batches.masking import words as words_lib
from bertzoo_jax.common import hashing
from bertzoo_jax.parts import maskings as definitions
from bertzoo_jax.parts import named

_UNIT = 1 << 10  # parts of a word in which mean lengths are counted
_LOOK = 16  # words looked at in a step from left to right: a run begins at every tenth word or so


@named.of_fields(definitions.ngram)
def ngram(length, corpus, fields):
  """Runs of one to N whole words (Lan et al. 2019 §3.1, after the release's code; Cui et al. 2020
  §3.2).

  Args:
    length, corpus: as for `whole_word`.
    weights: where fewer words follow, those that fit keep their proportions (ALBERT's release
      shortens the longer ones instead).
    order: 'shuffled': first words in random order, each with a length of its own; a run that
      exceeds the rest of the budget is tried with a word less, down to one, and one that touches a
      word taken before is left out (ALBERT). 'left_to_right': word by word, with a chance that
      spends the budget evenly over the rest of the row; the words behind a run are next (MacBERT,
      whose own chance is unpublished: see _left_to_right).

  Raises:
    UserError: shares or weights that are none, or no table of similar words.
  """
  contract.check_corruption(fields.corruption)
  thresholds = contract.cumulative(fields.weights, 'weights')
  select = {'shuffled': _shuffled, 'left_to_right': _left_to_right}[fields.order]
  corrupt = substitutes.corrupter(corpus, fields)
  counts = contract.nearest(length, fields.rate, fields.max_predictions)
  num_predictions = int(counts[-1])

  def apply(features, keys_B2):
    features, key = dict(features), contract.row_key(keys_B2)
    marks_BL = words_lib.marks(features)
    pack_BL = features['pack_ids']
    ids_BL = features['input_ids']
    words = words_lib.find(
      words_lib.text(features, corpus.special), pack_BL, words_lib.continues(marks_BL, 'word')
    )
    left_B = tf.gather(tf.constant(counts), tf.reduce_sum(tf.cast(pack_BL > 0, tf.int32), axis=1))
    chosen_BL = words_lib.tokens(words, select(key, words, left_B, thresholds))
    positions_BP, real_BP = corruptions.slots(chosen_BL, num_predictions)
    features = corruptions.predict(features, positions_BP, real_BP)
    return corruptions.replace(
      features, corrupt(key, ids_BL, positions_BP, features['masked_targets'], words, words)
    )

  return contract.Masking(num_predictions, fields.repeat, apply, reads_units=True)


def _shuffled(key, words, left_B, thresholds):
  order_LB, column_LB = words_lib.shuffled(key, words)
  random_LB = tf.transpose(corruptions.draw(key, hashing.COUNT, tf.transpose(column_LB)))
  room_LB = tf.gather(words.last, order_LB) - order_LB + 1
  return words_lib.take(
    words,
    order_LB,
    contract.draw_length(random_LB, thresholds, room_LB),
    left_B,
    len(thresholds) - 1,
  )


def _left_to_right(key, words, left_B, thresholds):
  """bool [K+1], the words taken.

  With r tokens of the budget and R tokens of the row left and runs of E words on average, a run
  begins at a word with the chance (r / E) / (r / E + R − r): so many runs and so many single words
  that are left would come in random order. The budget is spent evenly over the row and, where words
  fit, completely. A run that exceeds it loses its last words.
  """
  none, largest = words_lib.stand_in(words), len(thresholds) - 1
  share = [int(b) - int(a) for a, b in zip(thresholds, thresholds[1:])]
  mean = round(_UNIT * sum((n + 1) * s for n, s in enumerate(share)) / sum(share))
  columns, look, more = tf.range(words.of.shape[1])[None], tf.range(_LOOK), tf.range(largest)
  flat_K = words.start + words.of.shape[1] * _rows(words)
  at_words = lambda x_BL: tf.gather(tf.reshape(x_BL, [-1]), flat_K)
  coin_K = at_words(tf.cast(corruptions.draw(key, hashing.COIN, columns), tf.int64))
  number = tf.range(none + 1)
  size_K = contract.draw_length(
    at_words(corruptions.draw(key, hashing.COUNT, columns)), thresholds, words.last - number + 1
  )
  tokens_K, behind_B = words.end - words.start, words.first + words.count
  rest_B = tf.reduce_sum(tf.cast(words.of < none, tf.int32), axis=1)

  def unfinished(word_B, rest_B, left_B, taken):
    return tf.reduce_any((left_B > 0) & (word_B < behind_B))

  # looks at some words, of which the first that begins a run counts
  def step(word_B, rest_B, left_B, taken):
    seen_BW = word_B[:, None] + look
    seen_BW = tf.where(seen_BW < behind_B[:, None], seen_BW, none)
    passed_BW = tf.cumsum(tf.gather(tokens_K, seen_BW), axis=1)
    r_B = tf.cast(left_B, tf.int64)
    rest_BW = tf.cast(rest_B[:, None] - passed_BW + tf.gather(tokens_K, seen_BW), tf.int64)
    chance_BW = _UNIT * r_B[:, None] + mean * (rest_BW - r_B[:, None])
    begins_BW = (seen_BW < none) & (
      tf.gather(coin_K, seen_BW) * chance_BW < tf.bitwise.left_shift(_UNIT * r_B, 32)[:, None]
    )
    begins_B = tf.reduce_any(begins_BW, axis=1)
    skipped_B = tf.where(begins_B, tf.argmax(begins_BW, axis=1, output_type=tf.int32), _LOOK)
    first_B = tf.where(begins_B, tf.minimum(word_B + skipped_B, none), none)
    run_BN = tf.minimum(first_B[:, None] + more, none)
    cost_BN = tf.gather(words.end, run_BN) - tf.gather(words.start, first_B)[:, None]
    fits_BN = (
      begins_B[:, None]
      & (more < tf.gather(size_K, first_B)[:, None])
      & (cost_BN <= left_B[:, None])
    )
    taken = tf.tensor_scatter_nd_update(
      taken, tf.where(fits_BN, run_BN, none)[..., None], tf.ones_like(fits_BN)
    )
    spent_B = tf.reduce_max(tf.where(fits_BN, cost_BN, 0), axis=1)
    used_B = tf.where(begins_B, tf.maximum(1, tf.reduce_sum(tf.cast(fits_BN, tf.int32), axis=1)), 0)
    gone_B = tf.reduce_sum(
      tf.where(look < skipped_B[:, None], tf.gather(tokens_K, seen_BW), 0), axis=1
    )
    rest_B -= gone_B + tf.maximum(spent_B, tf.gather(tokens_K, first_B))
    return word_B + skipped_B + used_B, rest_B, left_B - spent_B, taken

  taken = tf.while_loop(
    unfinished,
    step,
    (words.first, rest_B, left_B, tf.zeros([none + 1], tf.bool)),
    parallel_iterations=1,
  )[-1]
  return taken & (number < none)


def _rows(words):
  """int32 [K+1]: the row of each word; the last row for the stand-in."""
  rows = tf.shape(words.count)[0]
  row_K = tf.repeat(tf.range(rows), words.count)
  return tf.concat([row_K, [rows - 1]], 0)
