"""Targets of permutation language modelling, and the order in which a row's tokens are said."""

import numpy as np
import tensorflow as tf

from bertzoo_jax.batches.masking import contract
from bertzoo_jax.batches.masking import corruption as corruptions
from bertzoo_jax.batches.masking import tokens
from bertzoo_jax.batches.masking import words as words_lib
from bertzoo_jax.common import errors
from bertzoo_jax.common import hashing


def permutation(length, corpus, *, context, max_span, num_predictions, block, span_units, repeat):
  """Spans to be said in a random order, each seen by those that come later (Yang et al. 2019 §2.3,
  3.1; data code of the release).

  Each block of the row is worked on by itself, from its start (from its end where `direction` is
  1): n words, n up to max_span with p ∝ 1/n, within a context of `context` · n tokens on both sides
  together, the first of them at the first word behind a uniformly drawn part of that context. A
  span ends with its run of text and with the block's predictions, and the first that would reach
  the block's end is left out and ends the search, as in the release; the other predictions are
  random single tokens. Nothing in input_ids changes.

  Args:
    length: L.
    corpus: corpus.corpus.Corpus, of which the special ids are read.
    num_predictions: divided over the blocks by their lengths; a block with padding gets its share.
    block: a token sees nothing of later blocks and all of earlier ones.

  Features:
    order int32 [B, L]: i sees j iff order_j < order_i + (i is no prediction), for i and j of one
    packed segment. Text that is not predicted has a block's lowest number, which all of its block
    see; predictions and special tokens have the others, in random order.

  Raises:
    UserError: more predictions than tokens.
  """
  if num_predictions > length:
    raise errors.UserError(
      f'config.masking.num_predictions is {num_predictions}, more than the {length} tokens of a '
      f'row: set --config.masking.num_predictions={max(1, length // 6)} (XLNet predicts one token '
      'in six), or a larger length.'
    )
  extent = {'words': _words, 'pieces': _pieces}[span_units]
  weights = [1 / n for n in range(1, max_span + 1)]
  thresholds = contract.cumulative(weights, 'max_span') if max_span else None
  block = min(block, length)
  blocks, table = -(-length // block), _goals(length, num_predictions, block)

  def divided(x_BL):
    return tf.reshape(tf.pad(x_BL, [[0, 0], [0, blocks * block - length]]), [-1, block])

  def united(x_RM):
    return tf.reshape(x_RM, [-1, blocks * block])[:, :length]

  def apply(features, keys_B2):
    features = dict(features)
    marks_BL, pack_BL = features.pop('units'), features['pack_ids']
    number_R = tf.tile(tf.range(blocks), tf.shape(pack_BL)[:1])
    key = hashing.fold(
      tuple(tf.repeat(k, blocks) for k in contract.row_key(keys_B2)), tf.cast(number_R, tf.uint32)
    )
    reverse_R1 = (
      tf.repeat(features['direction'] > 0, blocks)[:, None] if 'direction' in features else None
    )
    turn = lambda x_RM: (
      x_RM if reverse_R1 is None else tf.where(reverse_R1, tf.reverse(x_RM, [1]), x_RM)
    )
    text_RM, used_RM = divided(words_lib.text(features, corpus.special)), divided(pack_BL)
    words = words_lib.find(
      turn(text_RM), turn(used_RM), turn(divided(words_lib.continues(marks_BL, 'word')))
    )
    goal_R = tf.gather_nd(
      tf.constant(table),
      tf.stack([number_R, tf.reduce_sum(tf.cast(used_RM > 0, tf.int32), axis=1)], 1),
    )
    in_spans_RM = (
      turn(_spans(key, words, goal_R, thresholds, context, extent)) if max_span else None
    )
    target_RM = tokens.choose(key, text_RM, goal_R, int(table.max()), first_BL=in_spans_RM)
    # a random permutation of the block
    place_RM = tf.math.top_k(words_lib.ranks(key, hashing.PERMUTE, block), block).indices
    order_RM = tf.where(text_RM & ~target_RM, 0, 1 + place_RM) + (number_R * (block + 1))[:, None]
    positions_BP, real_BP = corruptions.slots(united(target_RM), num_predictions)
    return {**corruptions.predict(features, positions_BP, real_BP), 'order': united(order_RM)}

  return contract.Masking(
    num_predictions, repeat, apply, dict(order=((length,), np.int32)), reads_units=True
  )


def in_order(length, corpus):
  """Predicts each token of the text from the tokens before it (Yang et al. 2019 §2.1, eq. 1): the
  identity as the order of permutation language modelling. A row that is read from right to left is
  predicted from right to left.

  Args:
    length: L. P is L too.
    corpus: corpus.corpus.Corpus, whose special ids are read.

  Features:
    order: 0 to L − 1; its meaning is that of `permutation`.
  """

  def apply(features, keys_B2):
    del keys_B2  # nothing is random
    text_BL = words_lib.text(features, corpus.special)
    order_BL = tf.broadcast_to(tf.range(length), tf.shape(text_BL))
    return {**corruptions.predict(features, *corruptions.slots(text_BL, length)), 'order': order_BL}

  return contract.Masking(length, 0, apply, dict(order=((length,), np.int32)))


def _goals(length, num_predictions, block):
  """int32 [blocks, block+1]: predictions of a block by the number of its tokens. Those of full
  blocks sum to num_predictions.
  """
  ends = np.minimum(np.arange(0, length + block, block), length)
  full = np.diff(-(-ends * num_predictions // length))
  sizes = np.diff(ends)
  used = np.arange(block + 1)
  return np.minimum(
    (full[:, None] * used + sizes[:, None] // 2) // sizes[:, None], full[:, None]
  ).astype(np.int32)


def _spans(key, words, left_R, thresholds, context, extent):
  """bool [R, M]: the tokens in spans, of R blocks of M tokens."""
  none, size = words_lib.stand_in(words), words.of.shape[1]
  row_R = tf.range(tf.shape(left_R)[0])
  begins_RM = (words.of < none) & (tf.gather(words.start, words.of) == tf.range(size))
  # the first word from a column on
  next_RM = words.first[:, None] + tf.cumsum(tf.cast(begins_RM, tf.int32), axis=1, exclusive=True)
  count_key, context_key = hashing.fold(key, hashing.COUNT), hashing.fold(key, hashing.CONTEXT)

  def unfinished(t, column_R, left_R, edges):
    return tf.reduce_any((left_R > 0) & (column_R < size))

  def step(t, column_R, left_R, edges):
    t32 = tf.cast(t, tf.uint32)
    n_R = tf.minimum(
      contract.draw_length(hashing.bits(count_key, t32), thresholds), tf.maximum(left_R, 1)
    )
    before_R = tf.cast(
      hashing.below(hashing.bits(context_key, t32), tf.cast(context * n_R, tf.int64)), tf.int32
    )
    place_R = column_R + before_R
    word_R = tf.gather(next_RM, tf.minimum(place_R, size - 1), batch_dims=1)
    found_R = (left_R > 0) & (place_R < size) & (word_R < words.first + words.count)
    end_R, inside_R = extent(words, tf.where(found_R, word_R, none), n_R, left_R)
    found_R &= inside_R
    begin_R = tf.gather(words.start, tf.where(found_R, word_R, none))
    taken_R = tf.where(found_R, end_R - begin_R, 0)
    ends = tf.stack([row_R * (size + 1) + begin_R, row_R * (size + 1) + end_R], 1)
    edges = tf.tensor_scatter_nd_add(
      edges, ends[..., None], tf.where(taken_R[:, None] > 0, [[1, -1]], 0)
    )
    column_R = tf.where(
      found_R, tf.where(taken_R > 0, end_R, begin_R) + context * n_R - before_R, size
    )
    return t + 1, column_R, left_R - taken_R, edges

  state = (0, tf.zeros_like(left_R), left_R, tf.zeros([tf.shape(left_R)[0] * (size + 1)], tf.int32))
  edges = tf.while_loop(unfinished, step, state, parallel_iterations=1)[-1]
  return tf.cumsum(tf.reshape(edges, [-1, size + 1]), axis=1)[:, :size] > 0


def _words(words, word_R, n_R, left_R):
  """(the column behind as many of n words as the run and the budget have; whether n words end
  before the block's last one).
  """
  none = words_lib.stand_in(words)
  last_R = tf.minimum(tf.gather(words.last, word_R), word_R + n_R - 1)
  most_R, begin_R = tf.reduce_max(n_R), tf.gather(words.start, word_R)
  word_RN = tf.minimum(word_R[:, None] + tf.range(most_R), none)
  end_RN = tf.gather(words.end, word_RN)
  fits_RN = (word_RN <= last_R[:, None]) & (end_RN - begin_R[:, None] <= left_R[:, None])
  return tf.reduce_max(
    tf.where(fits_RN, end_RN, begin_R[:, None]), axis=1
  ), word_R + n_R < words.first + words.count


def _pieces(words, word_R, n_R, left_R):
  """(the column behind n tokens, of which the budget has enough; whether they end before the
  block's last one).
  """
  end_R = tf.gather(words.start, word_R) + n_R
  return tf.minimum(
    end_R, tf.gather(words.end, tf.gather(words.last, word_R))
  ), end_R < words.of.shape[1]
