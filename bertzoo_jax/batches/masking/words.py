"""The words of a batch as flat arrays: where each begins and ends, and where its run of text ends.

A word here is any unit that a masking takes whole: a word, phrase or entity. A run is text of one
packed segment between special tokens; words that are taken together lie in one run. B rows, L
length, K words of the whole batch, row after row; number K is a stand-in without tokens, so that
lists [K+1] can be indexed by it.
"""

from typing import NamedTuple

import numpy as np

from bertzoo_jax.batches.masking import corruption as corruptions
from bertzoo_jax.common import hashing
from bertzoo_jax.words import word_marks

LEAST = np.int32(-(2**31))  # below every rank


class Words(NamedTuple):
  """The words of a batch, numbered through.

  All are int64.
  """

  start: np.ndarray  # [K+1] column of the first token
  end: np.ndarray  # [K+1] column behind the last token
  last: np.ndarray  # [K+1] number of the last word of the same run
  first: np.ndarray  # [B] number of a row's first word
  count: np.ndarray  # [B] words of a row
  of: np.ndarray  # [B, L] the word of each token; K outside of text


def text(features, special, also=()):
  """bool [B, L]: False for padding, classifiers, separators and the special tokens `also`."""
  out_BL = features['segment_ids'] > 0
  for name in ('cls', 'sep', *also):
    out_BL &= features['input_ids'] != special[name]
  return out_BL


def read(features, special, *levels, also=()):
  """(the features without 'units', bool [B, L] of `text`, the Words of each level).

  levels: as `continues` takes them, or 'token', which needs no 'units'.
  """
  features, text_BL = dict(features), text(features, special, also)
  marks_BL = np.zeros_like(text_BL) if 'token' in levels else _marks(features)
  pack_BL = features['segment_ids']
  return features, text_BL, *(find(text_BL, pack_BL, continues(marks_BL, x)) for x in levels)


def _marks(features):
  """Pops 'units' from the features: int32 [B, L]. In rows that are read from right to left, the
  marks are turned, so that a token continues the one before it in the row.
  """
  units_BL = features.pop('units')
  if 'direction' not in features:
    return units_BL
  joins = word_marks.CONTINUES_WORD | word_marks.CONTINUES_PHRASE | word_marks.CONTINUES_ENTITY
  turned_BL = units_BL & (word_marks.IN_PHRASE | word_marks.IN_ENTITY)
  turned_BL[:, 1:] |= units_BL[:, :-1] & joins
  return np.where(features['direction'][:, None] > 0, turned_BL, units_BL)


def continues(units_BL, level):
  """bool [B, L]: the token belongs to the same word, phrase or entity as the one before it.

  At the level of phrases or entities, tokens outside of these are grouped by words.
  """
  has = lambda bit: (units_BL & bit) > 0
  if level == 'token':
    return units_BL
  if level == 'word':
    return has(word_marks.CONTINUES_WORD)
  within, bit = {
    'phrase': (word_marks.IN_PHRASE, word_marks.CONTINUES_PHRASE),
    'entity': (word_marks.IN_ENTITY, word_marks.CONTINUES_ENTITY),
  }[level]
  return np.where(has(within), has(bit), has(word_marks.CONTINUES_WORD))


def find(text_BL, pack_BL, continues_BL) -> Words:
  """The words of a batch. No word spans a special token or a border of packed segments."""
  joined_BL = np.zeros_like(text_BL)
  joined_BL[:, 1:] = text_BL[:, 1:] & text_BL[:, :-1] & (pack_BL[:, 1:] == pack_BL[:, :-1])
  begins_BL = text_BL & ~(joined_BL & continues_BL)
  flat_K = np.flatnonzero(begins_BL)
  size = len(flat_K)
  # text between the starts of two words is of the first one
  passed_N = np.cumsum(text_BL)
  sizes_K = np.diff(passed_N.take(flat_K), append=passed_N[-1] + 1)
  start_K = flat_K % text_BL.shape[1]
  next_R = np.append(np.flatnonzero(~joined_BL.reshape(-1).take(flat_K)), size)  # starts of runs
  count_B = np.count_nonzero(begins_BL, axis=1)
  return Words(
    np.append(start_K, 0),
    np.append(start_K + sizes_K, 0),
    np.append(np.repeat(next_R[1:] - 1, np.diff(next_R)), size),
    np.cumsum(count_B) - count_B,
    count_B,
    np.where(text_BL, np.cumsum(begins_BL).reshape(text_BL.shape) - 1, size),
  )


def stand_in(words):
  """K, the number of the stand-in for no word."""
  return len(words.start) - 1


def shuffled(key, words, candidates_BL=None):
  """The words of each row in random order, or, with `candidates_BL`, these tokens.

  Returns (numbers of words [B, L], K behind the last; columns [B, L] of the tokens or of the words'
  first tokens, −1 behind the last).
  """
  length = words.of.shape[1]
  if candidates_BL is None:
    candidates_BL = begins(words)
  rank_BL = np.where(candidates_BL, ranks(key, hashing.SELECT, length), LEAST)
  order_BL = np.sort(rank_BL, axis=1)[:, ::-1]
  column_BL = (order_BL & 2 ** (length + 1).bit_length() - 1) - 1
  number_BL = corruptions.at(words.of, np.maximum(column_BL, 0))
  return np.where(column_BL >= 0, number_BL, stand_in(words)), column_BL


def begins(words):
  """bool [B, L]: a word begins at the token."""
  out_BL = words.of < stand_in(words)
  out_BL[:, 1:] &= words.of[:, 1:] != words.of[:, :-1]
  return out_BL


def ranks(key, purpose, length):
  """int32 [B, L], random, never the least or largest int32. All differ within a row, since the low
  bits are the column + 1.
  """
  low = (length + 1).bit_length()
  random_BL = corruptions.draw(key, purpose, np.arange(length)[None])
  random_BL &= 2**32 - 2**low
  random_BL |= np.arange(1, length + 1, dtype=np.uint32)
  return random_BL.view(np.int32)


def take(words, order_BT, sizes_BT, left_B, largest):
  """Goes through runs of words in a given order and takes each that fits the budget and touches no
  word taken before.

  A run that exceeds the rest of the budget is shortened word by word (ALBERT's rule); a run that
  holds a word taken before is left out. Ends when every row has spent its budget or its runs.

  order_BT: the first word of each run, then K as filler. sizes_BT: words of each run, from 1 to
  `largest`; words behind the end of its run of text are left out. left_B: tokens to take per row.
  largest: N.

  Returns bool [K+1]: the word is taken.
  """
  none, more = stand_in(words), np.arange(largest)
  taken = np.zeros(none + 1, bool)
  order_TB, size_TB = order_BT.T, sizes_BT.T
  rows, left_R = np.arange(len(left_B)), left_B  # R rows are unfinished
  for first_B, size_B in zip(order_TB, size_TB):
    first_R = first_B.take(rows)
    open_R = (left_R > 0) & (first_R < none)
    if not open_R.all():
      rows, left_R, first_R = rows[open_R], left_R[open_R], first_R[open_R]
      if not len(rows):
        break
    last_R = np.minimum(words.last.take(first_R), first_R + size_B.take(rows) - 1)
    word_RN = np.minimum(first_R[:, None] + more, none)
    cost_RN = words.end.take(word_RN) - words.start.take(first_R)[:, None]
    fits_RN = (word_RN <= last_R[:, None]) & (cost_RN <= left_R[:, None])
    fits_RN &= ~(fits_RN & taken.take(word_RN)).any(axis=1)[:, None]
    taken[word_RN[fits_RN]] = True
    left_R = left_R - (cost_RN * fits_RN).max(axis=1)
  return taken


def take_single(words, order_BT, left_B):
  """`take` for runs of one word, in few rounds: per round, a row takes the words before the first
  one that exceeds the rest of its budget.
  """
  taken = np.zeros(len(words.start), bool)
  left_R = left_B
  size_RT = (words.end - words.start).take(order_BT)
  open_RT = order_BT < stand_in(words)
  while True:
    open_RT &= size_RT <= left_R[:, None]
    open_R = open_RT.any(axis=1)
    if not open_R.all():
      order_BT, size_RT, open_RT, left_R = (x[open_R] for x in (order_BT, size_RT, open_RT, left_R))
    if not len(left_R):
      return taken
    passed_RT = np.cumsum(size_RT * open_RT, axis=1)
    fits_RT = open_RT & (passed_RT <= left_R[:, None])
    taken[order_BT[fits_RT]] = True
    left_R = left_R - (passed_RT * fits_RT).max(axis=1)
    # the first word that exceeds the budget is left out
    open_RT &= ~fits_RT
    open_RT[np.arange(len(left_R)), open_RT.argmax(axis=1)] = False


def tokens(words, taken):
  """bool [B, L]: the tokens of the words that are taken; `taken` is bool [K+1]."""
  return taken.take(words.of)
