"""Words of a batch, as flat lists: where each begins, how long it is, where the run of text that it
lies in ends.

A word here is whatever a masking takes whole: a word, phrase or entity. A run is text of one packed
segment without a special token in it; nothing that is taken together reaches over its end. B rows,
L length, K words of the whole batch, row after row; number K is a stand-in of no tokens, so that
lists [K+1] can be read with it.
"""

from typing import NamedTuple

import tensorflow as tf

from bertzoo_jax.batches.masking import corruption as corruptions
from bertzoo_jax.common import hashing
from bertzoo_jax.words import word_marks


class Words(NamedTuple):
  """The words of a batch, numbered through.

  Attributes:
    start: int32 [K+1] column of the first token.
    end: int32 [K+1] column behind the last token.
    last: int32 [K+1] number of the last word of the same run.
    first: int32 [B] number of a row's first word.
    count: int32 [B] words of a row.
    of: int32 [B, L] the word of each token; K where there is none.
  """

  start: tf.Tensor
  end: tf.Tensor
  last: tf.Tensor
  first: tf.Tensor
  count: tf.Tensor
  of: tf.Tensor


def text(features, special, also=()):
  """bool [B, L]: no padding, classifier, separator or other of the special tokens `also`."""
  out_BL = features['pack_ids'] > 0
  for name in ('cls', 'sep', *also):
    out_BL &= features['input_ids'] != special[name]
  return out_BL


def marks(features):
  """Takes 'units' out of the features: int32 [B, L] in the order of reading, so that in a row which
  is read from right to left too a token continues the one before it.
  """
  units_BL = features.pop('units')
  if 'direction' not in features:
    return units_BL
  joins = word_marks.CONTINUES_WORD | word_marks.CONTINUES_PHRASE | word_marks.CONTINUES_ENTITY
  before_BL = tf.bitwise.bitwise_and(tf.pad(units_BL, [[0, 0], [1, 0]])[:, :-1], joins)
  turned_BL = tf.bitwise.bitwise_or(
    before_BL, tf.bitwise.bitwise_and(units_BL, word_marks.IN_PHRASE | word_marks.IN_ENTITY)
  )
  return tf.where(features['direction'][:, None] > 0, turned_BL, units_BL)


def continues(units_BL, level):
  """bool [B, L]: the token belongs to the same word, phrase or entity as the one before it.

  At the levels of phrases and entities, words are the units outside of them.
  """
  has = lambda bit: tf.bitwise.bitwise_and(units_BL, bit) > 0
  if level == 'word':
    return has(word_marks.CONTINUES_WORD)
  within, bit = {
    'phrase': (word_marks.IN_PHRASE, word_marks.CONTINUES_PHRASE),
    'entity': (word_marks.IN_ENTITY, word_marks.CONTINUES_ENTITY),
  }[level]
  return tf.where(has(within), has(bit), has(word_marks.CONTINUES_WORD))


def find(text_BL, pack_BL, continues_BL) -> Words:
  """The words of a batch: of text, none over a special token or a border of packed segments."""
  rows, length = tf.shape(text_BL)[0], text_BL.shape[1]
  before = lambda x_BL: tf.pad(x_BL, [[0, 0], [1, 0]])[:, :-1]
  joined_BL = text_BL & before(text_BL) & (pack_BL == before(pack_BL))
  begins_BL = text_BL & ~(joined_BL & continues_BL)
  begins_N, text_N = tf.reshape(begins_BL, [-1]), tf.reshape(text_BL, [-1])
  flat_K = tf.cast(tf.where(begins_N)[:, 0], tf.int32)
  size = tf.shape(flat_K)[0]
  of_N = tf.where(text_N, tf.cumsum(tf.cast(begins_N, tf.int32)) - 1, size)
  sizes = tf.math.unsorted_segment_sum(tf.cast(text_N, tf.int32), of_N, size + 1)
  start = tf.concat([flat_K % length, [0]], 0)
  fresh_K = ~tf.gather(tf.reshape(joined_BL, [-1]), flat_K)  # begins a run
  next_R = tf.concat([tf.cast(tf.where(fresh_K)[:, 0], tf.int32), size[None]], 0)
  last_K = tf.gather(next_R, tf.cumsum(tf.cast(fresh_K, tf.int32))) - 1
  count_B = tf.reduce_sum(tf.cast(begins_BL, tf.int32), axis=1)
  return Words(
    start,
    start + sizes,
    tf.concat([last_K, size[None]], 0),
    tf.cumsum(count_B, exclusive=True),
    count_B,
    tf.reshape(of_N, [rows, length]),
  )


def stand_in(words):
  """K, the number of no word."""
  return tf.shape(words.start)[0] - 1


def shuffled(key, words, candidates_BL=None):
  """The words of each row in random order, or, with `candidates_BL`, these tokens.

  Returns:
    (numbers of words int32 [L, B], K behind the last; columns int32 [L, B]: of a word its first, −1
    behind the last).
  """
  length = words.of.shape[1]
  if candidates_BL is None:
    columns = tf.range(length)
    candidates_BL = (words.of < stand_in(words)) & (tf.gather(words.start, words.of) == columns)
  order_BL = tf.math.top_k(
    tf.where(candidates_BL, ranks(key, hashing.SELECT, length), tf.int32.min), length
  ).values
  column_BL = tf.bitwise.bitwise_and(order_BL, 2 ** (length + 1).bit_length() - 1) - 1
  number_BL = tf.where(
    column_BL >= 0, tf.gather(words.of, tf.maximum(column_BL, 0), batch_dims=1), stand_in(words)
  )
  return tf.transpose(number_BL), tf.transpose(column_BL)


def ranks(key, purpose, length):
  """int32 [B, L], random and all different in a row, as the low bits are the column + 1; none is
  the least or largest int32.
  """
  low = (length + 1).bit_length()
  random_BL = corruptions.draw(key, purpose, tf.range(length)[None])
  high_BL = tf.bitwise.bitwise_and(random_BL, tf.constant(2**32 - 2**low, tf.uint32))
  return tf.bitcast(
    tf.bitwise.bitwise_or(high_BL, tf.cast(tf.range(1, length + 1), tf.uint32)), tf.int32
  )


def take(words, order_TB, sizes_TB, left_B, largest):
  """Goes through runs of words in a given order and takes each that fits the budget and touches no
  word taken before.

  A run that exceeds the rest of the budget is tried with a word less, down to one (ALBERT's rule);
  one that holds a word taken before is left out. Ends when every row has its budget or no more
  runs.

  Args:
    order_TB: the first word of each run, K for none.
    sizes_TB: how many words it has, from 1 to `largest`, of which those behind the end of its run
      of text are left out.
    left_B: tokens to take.
    largest: N, a number.

  Returns:
    bool [K+1]: the word is taken.
  """
  none = stand_in(words)
  steps = tf.shape(order_TB)[0]
  more = tf.range(largest)

  def unfinished(t, left_B, taken):
    return (t < steps) & tf.reduce_any(
      (left_B > 0) & (tf.gather(order_TB, tf.minimum(t, steps - 1)) < none)
    )

  def step(t, left_B, taken):
    first_B = tf.gather(order_TB, t)
    last_B = tf.minimum(tf.gather(words.last, first_B), first_B + tf.gather(sizes_TB, t) - 1)
    word_BN = tf.minimum(first_B[:, None] + more, none)
    cost_BN = tf.gather(words.end, word_BN) - tf.gather(words.start, first_B)[:, None]
    fits_BN = (word_BN <= last_B[:, None]) & (cost_BN <= left_B[:, None]) & (word_BN < none)
    free_B = ~tf.reduce_any(fits_BN & tf.gather(taken, word_BN), axis=1)
    fits_BN &= free_B[:, None]
    left_B -= tf.reduce_max(tf.where(fits_BN, cost_BN, 0), axis=1)
    return (
      t + 1,
      left_B,
      tf.tensor_scatter_nd_update(
        taken, tf.where(fits_BN, word_BN, none)[..., None], tf.ones_like(fits_BN)
      ),
    )

  _, _, taken = tf.while_loop(
    unfinished, step, (0, left_B, tf.zeros([none + 1], tf.bool)), parallel_iterations=1
  )
  return taken & (tf.range(none + 1) < none)


def tokens(words, taken):
  """bool [B, L]: the tokens of the words that are taken (bool [K+1])."""
  return tf.gather(taken, words.of)
