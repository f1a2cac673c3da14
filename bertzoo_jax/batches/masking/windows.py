"""N-grams, one in each window of words."""

import math

import tensorflow as tf

from bertzoo_jax.batches.masking import contract
from bertzoo_jax.batches.masking import corruption as corruptions
from bertzoo_jax.batches.masking import words as words_lib
from bertzoo_jax.common import hashing


def ngram_windows(length, corpus, *, rate, max_gram, scan, corruption, random_tokens, repeat):
  """One run of n words in every window of n · int(1 / rate) words, n up to max_gram with p ∝ 1/n
  (code of He et al. 2020).

  Args:
    length, corpus: as for `token`.
    rate: the row's budget is max(1, round(rate · n)).
    corruption: drawn for each token by itself.
    scan: where the windows lie, and which ones count until the budget is spent. 'left_to_right':
      from the row's start, up to the word that does not fit any more (the release masks that word,
      too); the end of a full row stays unmasked. 'spread': ours. The windows begin at a random word
      and wrap to the start of the row; they count in random order. If the row's windows hold less
      than the budget, the windows of a second lap follow. A run that exceeds the budget loses its
      last words.
  """
  contract.check_corruption(corruption)
  select = {'left_to_right': _left_to_right, 'spread': _spread}[scan]
  window = int(1 / rate)
  corrupt = corruptions.corrupter(corpus, corruption, random_tokens)
  thresholds = contract.cumulative([1 / n for n in range(1, max_gram + 1)], 'max_gram')
  counts = contract.nearest(length, rate)
  num_predictions = int(counts[-1])

  def apply(features, keys_B2):
    features, key = dict(features), contract.row_key(keys_B2)
    pack_BL = features['pack_ids']
    text_BL = words_lib.text(features, corpus.special, also=('mask', 'unk'))
    continues_BL = (
      words_lib.continues(words_lib.marks(features), 'word')
      if max_gram > 1
      else tf.zeros_like(text_BL)
    )
    words = words_lib.find(text_BL, pack_BL, continues_BL)
    left_B = tf.gather(tf.constant(counts), tf.reduce_sum(tf.cast(pack_BL > 0, tf.int32), axis=1))
    chosen_BL = select(key, words, thresholds, window, left_B)
    positions_BP, real_BP = corruptions.slots(chosen_BL, num_predictions)
    features = corruptions.predict(features, positions_BP, real_BP)
    return corruptions.replace(
      features, corrupt(key, positions_BP, features['masked_targets'], positions_BP)
    )

  return contract.Masking(num_predictions, repeat, apply, reads_units=max_gram > 1)


def _windows(key, words, thresholds, window, laps=1):
  """The runs of the windows that lie one after the other over a row, or over `laps` laps round it.

  Returns:
    (places, sizes) of T runs, int32 [T, B]: the word of the first lap that a run begins at, counted
    on from lap to lap (the end of the last lap for no run); its number of words. T windows hold any
    row.
  """
  count = math.ceil(laps * words.of.shape[1] / window)
  numbers = tf.range(count)[None]
  size_TB = contract.draw_length(
    tf.transpose(corruptions.draw(key, hashing.COUNT, numbers)), thresholds
  )
  random_TB = tf.transpose(corruptions.draw(key, hashing.CONTEXT, numbers))
  end_B = laps * words.count

  def step(t, offset_B, place):
    size_B = tf.gather(size_TB, t)
    context_B = tf.minimum(window * size_B, end_B - offset_B)
    begin_B = offset_B + tf.cast(
      hashing.below(tf.gather(random_TB, t), tf.cast(context_B, tf.int64)), tf.int32
    )
    place = place.write(t, tf.where(offset_B < end_B, begin_B, end_B))
    return t + 1, tf.minimum(tf.maximum(offset_B + context_B, begin_B + size_B), end_B), place

  start = (0, tf.zeros_like(words.count), tf.TensorArray(tf.int32, count))
  place = tf.while_loop(lambda t, *_: t < count, step, start, parallel_iterations=1)[-1]
  return place.stack(), size_TB


def _left_to_right(key, words, thresholds, window, left_B):
  place_TB, size_TB = _windows(key, words, thresholds, window)
  none, largest = words_lib.stand_in(words), len(thresholds) - 1
  first_TB = tf.where(place_TB < words.count, words.first + place_TB, none)
  word_TBN = tf.minimum(first_TB[..., None] + tf.range(largest), none)
  inside_TBN = (
    word_TBN < tf.minimum(first_TB + size_TB, tf.gather(words.last, first_TB) + 1)[..., None]
  )
  taken = tf.tensor_scatter_nd_update(
    tf.zeros([none + 1], tf.bool),
    tf.where(inside_TBN, word_TBN, none)[..., None],
    tf.ones_like(inside_TBN),
  )
  chosen_BL = words_lib.tokens(words, taken & (tf.range(none + 1) < none))
  # tokens of the same word that follow
  behind_BL = tf.gather(words.end, words.of) - 1 - tf.range(words.of.shape[1])
  return chosen_BL & (
    tf.cumsum(tf.cast(chosen_BL, tf.int32), axis=1) + behind_BL <= left_B[:, None]
  )


def _spread(key, words, thresholds, window, left_B):
  place_TB, size_TB = _windows(key, words, thresholds, window, laps=2)
  none, count = words_lib.stand_in(words), place_TB.shape[0]
  shift_B = hashing.below(
    corruptions.draw(key, hashing.SELECT, tf.zeros_like(words.count)),
    tf.cast(words.count, tf.int64),
  )
  word_TB = (place_TB + tf.cast(shift_B, tf.int32)) % tf.maximum(words.count, 1)
  first_TB = tf.where(place_TB < 2 * words.count, words.first + word_TB, none)
  # ranks of the first lap are random and at least 0; ranks of the second lap are −1, −2, …
  rank_BT = tf.where(
    tf.transpose(place_TB < words.count),
    tf.bitwise.bitwise_and(words_lib.ranks(key, hashing.SPREAD, count), tf.int32.max),
    -1 - tf.range(count),
  )
  order_BT = tf.math.top_k(rank_BT, count).indices
  ordered = lambda x_TB: tf.transpose(tf.gather(tf.transpose(x_TB), order_BT, batch_dims=1))
  taken = words_lib.take(words, ordered(first_TB), ordered(size_TB), left_B, len(thresholds) - 1)
  return words_lib.tokens(words, taken)
