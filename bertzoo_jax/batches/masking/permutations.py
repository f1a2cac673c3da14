"""Targets of permutation language modelling, and the order in which they are predicted."""

import itertools

import numpy as np

from bertzoo_jax.batches.masking import contract
from bertzoo_jax.batches.masking import corruption as corruptions
from bertzoo_jax.batches.masking import tokens
from bertzoo_jax.batches.masking import words as words_lib
from bertzoo_jax.common import errors
from bertzoo_jax.common import hashing
from bertzoo_jax.parts import maskings as definitions


def permutation(fields: definitions.Permutation, length, corpus):
  """Spans to predict in a random order, later ones from earlier ones (Yang et al. 2019 §2.3, 3.1;
  data code of the release).

  Each block of the row is handled alone, from its start (from its end where `direction` is 1). A
  span has n words, n up to max_span with p ∝ 1/n, and a context of `context` · n tokens, a uniform
  part of it before the span. A span ends with its run of text or with the block's budget. The first
  span that would reach the block's end is left out and ends the search, as in the release. The
  other predictions are random single tokens. input_ids stay unchanged.

  length: L. corpus: corpus.corpus.Corpus; its special ids are read. num_predictions: divided over
  the blocks by their tokens; padding gets no predictions. block: a token sees nothing of later
  blocks and all of earlier ones.

  Features:
    order int32 [B, L]: i sees j iff order_j < order_i + (i is no prediction), for i and j of one
    packed segment. Text that is not predicted has its block's lowest number, so the whole block
    sees it; predictions and special tokens have the other numbers, in random order.

  Raises UserError: more predictions than tokens.
  """
  num_predictions, max_span = fields.num_predictions, fields.max_span
  if num_predictions > length:
    raise errors.UserError(
      f'config.masking.num_predictions is {num_predictions}, more than the {length} tokens of a '
      f'row: set --config.masking.num_predictions={max(1, length // 6)} (XLNet predicts one token '
      'in six), or a larger length.'
    )
  extent = {'words': _words, 'pieces': _pieces}[fields.span_units]
  weights = [1 / n for n in range(1, max_span + 1)]
  thresholds = contract.cumulative(weights, 'max_span') if max_span else None
  block = min(fields.block, length)
  blocks, table = -(-length // block), _goals(length, num_predictions, block)

  def divided(x_BL):
    return np.pad(x_BL, [(0, 0), (0, blocks * block - length)]).reshape(-1, block)

  def united(x_RM):
    return x_RM.reshape(-1, blocks * block)[:, :length]

  def apply(features, keys_B2):
    features = dict(features)
    marks_BL, pack_BL = features.pop('units'), features['segment_ids']
    number_R = np.tile(np.arange(blocks), len(pack_BL))
    key = hashing.fold(tuple(np.repeat(k, blocks) for k in contract.row_key(keys_B2)), number_R)
    reverse_R1 = np.repeat(features.get('direction', np.zeros(len(pack_BL))) > 0, blocks)[:, None]
    turn = lambda x_RM: np.where(reverse_R1, x_RM[:, ::-1], x_RM)
    text_RM, used_RM = divided(words_lib.text(features, corpus.special)), divided(pack_BL)
    words = words_lib.find(
      turn(text_RM), turn(used_RM), turn(divided(words_lib.continues(marks_BL, 'word')))
    )
    goal_R = table[number_R, np.count_nonzero(used_RM, axis=1)]
    in_spans_RM = (
      turn(_spans(key, words, goal_R, thresholds, fields.context, extent)) if max_span else None
    )
    target_RM = tokens.choose(key, text_RM, goal_R, first_BL=in_spans_RM)
    # a random permutation of the block
    place_RM = np.argsort(-words_lib.ranks(key, hashing.PERMUTE, block), axis=1)
    order_RM = np.where(text_RM & ~target_RM, 0, 1 + place_RM) + (number_R * (block + 1))[:, None]
    positions_BP, real_BP = corruptions.slots(united(target_RM), num_predictions)
    return {
      **corruptions.predict(features, positions_BP, real_BP),
      'order': united(order_RM).astype(np.int32),
    }

  return contract.Masking(
    num_predictions, fields.repeat, apply, dict(order=((length,), np.int32)), reads_units=True
  )


def in_order(length, corpus):
  """Predicts each token of the text from the tokens before it (Yang et al. 2019 §2.1, eq. 1):
  permutation language modelling in the order of the row. Rows that are read from right to left are
  predicted from right to left.

  Features:
    order: 0 to L − 1; its meaning is that of `permutation`.

  length: L; P = L. corpus: corpus.corpus.Corpus; its special ids are read.
  """

  def apply(features, keys_B2):
    del keys_B2  # nothing is random
    text_BL = words_lib.text(features, corpus.special)
    order_BL = np.tile(np.arange(length, dtype=np.int32), (len(text_BL), 1))
    return {**corruptions.predict(features, *corruptions.slots(text_BL, length)), 'order': order_BL}

  return contract.Masking(length, 0, apply, dict(order=((length,), np.int32)))


def _goals(length, num_predictions, block):
  """int32 [blocks, block+1]: predictions of a block by its number of tokens. Over full blocks they
  sum to num_predictions.
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
  begins_RM = words_lib.begins(words)
  # the first word from a column on
  next_RM = words.first[:, None] + np.cumsum(begins_RM, axis=1) - begins_RM
  keys = *hashing.fold(key, hashing.COUNT), *hashing.fold(key, hashing.CONTEXT)
  edges_RM = np.zeros((len(left_R), size + 1), np.int64)
  # of the Q unfinished blocks
  row_Q, column_Q, left_Q = np.arange(len(left_R)), np.zeros(len(left_R), np.int64), left_R
  for t in itertools.count():
    open_Q = (left_Q > 0) & (column_Q < size)
    row_Q, column_Q, left_Q = row_Q[open_Q], column_Q[open_Q], left_Q[open_Q]
    if not len(row_Q):
      return np.cumsum(edges_RM, axis=1)[:, :size] > 0
    key_Q = [k.take(row_Q) for k in keys]
    n_Q = np.minimum(contract.draw_length(hashing.bits(key_Q[:2], t), thresholds), left_Q)
    before_Q = hashing.below(hashing.bits(key_Q[2:], t), context * n_Q)
    place_Q = column_Q + before_Q
    word_Q = next_RM[row_Q, np.minimum(place_Q, size - 1)]
    valid_Q = (place_Q < size) & (word_Q < (words.first + words.count).take(row_Q))
    end_Q, inside_Q = extent(words, np.where(valid_Q, word_Q, none), row_Q, n_Q, left_Q)
    valid_Q &= inside_Q
    begin_Q = words.start.take(np.where(valid_Q, word_Q, none))
    taken_Q = np.where(valid_Q, end_Q - begin_Q, 0)
    edges_RM[row_Q, begin_Q] += taken_Q > 0
    edges_RM[row_Q, end_Q] -= taken_Q > 0
    column_Q = np.where(
      valid_Q, np.where(taken_Q > 0, end_Q, begin_Q) + context * n_Q - before_Q, size
    )
    left_Q = left_Q - taken_Q


def _words(words, word_Q, row_Q, n_Q, left_Q):
  """(end column [Q] of the first n words, cut to the run and the budget; whether n words end before
  the block's last word).
  """
  last_Q = np.minimum(words.last.take(word_Q), word_Q + n_Q - 1)
  begin_Q = words.start.take(word_Q)
  word_QN = np.minimum(word_Q[:, None] + np.arange(n_Q.max()), words_lib.stand_in(words))
  end_QN = words.end.take(word_QN)
  fits_QN = (word_QN <= last_Q[:, None]) & (end_QN - begin_Q[:, None] <= left_Q[:, None])
  end_Q = np.where(fits_QN, end_QN, begin_Q[:, None]).max(axis=1)
  return end_Q, word_Q + n_Q < (words.first + words.count).take(row_Q)


def _pieces(words, word_Q, row_Q, n_Q, left_Q):
  """(end column [Q] of the first n tokens, cut to the run; whether n tokens end before the block's
  last one). n never exceeds the budget.
  """
  end_Q = words.start.take(word_Q) + n_Q
  return np.minimum(end_Q, words.end.take(words.last.take(word_Q))), end_Q < words.of.shape[1]
