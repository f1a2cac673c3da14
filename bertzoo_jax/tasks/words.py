"""Sentences of words as rows of tokens. Long sentences become several overlapping rows.

Legend: W words of a split, T tokens of all its rows.
"""

from typing import NamedTuple

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.parts import features as definitions
from bertzoo_jax.tasks import frames


class Places(NamedTuple):
  # int64 [W], index of each word's first token in the ids of the split; −1 for a word without
  # tokens
  first: np.ndarray
  # int64 [N + 1]: the words of sentence i are first[sentences[i]:sentences[i + 1]]
  sentences: np.ndarray
  windows: np.ndarray  # int64 [N], rows of each sentence


def words(fields: definitions.Words, examples, numbers, tokenizer, frame) -> frames.Rows:
  """The words of a sentence in one row; each is predicted at its first token.

  A sentence that is too long becomes several rows. Each begins `overlap` tokens before the end of
  the previous one, the last row earlier. A word is predicted in the row where it has most tokens on
  both sides; in its other rows it is context.

  examples: N sentences. numbers: labels of all words, int32 [W], −1 for words without a loss; None
  without labels. tokenizer: has encode_words. frame: frames.Frame of the rows.

  Raises UserError: the overlap leaves no room.
  """
  template = frame.words(False)
  room = frame.room(False)
  overlap = fields.overlap
  if 0 < overlap < 1:
    overlap = int(overlap * room)
  if not 0 <= overlap < room or overlap != int(overlap):
    raise errors.UserError(
      f'config.features.overlap={overlap}, and a row of config.length={frame.max_length} has room '
      f'for {room} tokens: set --config.features.overlap to a share of it, as in 0.25.'
    )
  ahead = [role for role, _ in template].index('A')
  texts, begins, sizes, first, windows, at, before = [], [], [], [], [], 0, 0
  words = examples.column('words')
  for (ids, word_index), sentence in zip(frames.encoded(tokenizer.encode_words, words), words):
    count = len(sentence)
    starts = _starts(len(ids), room, overlap)
    ends = np.minimum(starts + room, len(ids))
    place, token = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    # backwards, so that a word keeps its first token
    token[word_index[::-1]] = np.arange(len(ids))[::-1]
    present = token >= 0
    row = _nearest(token[present], starts, ends)
    # the rows are concatenated, each with its special tokens
    row_starts = at + frames.offsets_of(ends - starts + len(template) - 1)
    place[present] = row_starts[row] + ahead + token[present] - starts[row]
    first.append(place)
    windows.append(len(starts))
    texts.append(ids)
    begins.append(before + starts)
    sizes.append(ends - starts)
    at, before = row_starts[-1], before + len(ids)
  begins, sizes, first = (
    np.concatenate([*x, np.zeros(0, np.int64)]) for x in (begins, sizes, first)
  )
  parts = {'A': (frames.flat(texts).values, begins, sizes)}
  laid, lengths = frames.laid_out(template, frame.special, parts)
  total = lengths.sum(axis=1)
  return frames.Rows(
    **laid,
    uncut=total,
    labels=None if numbers is None else _labels(numbers, first, int(total.sum())),
    label_axis='tokens',
    detail=Places(
      first,
      frames.offsets_of([len(sentence) for sentence in words]),
      np.array(windows, np.int64),
    ),
  )


def _starts(tokens: int, room: int, overlap: int) -> np.ndarray:
  """The first token of each row of a sentence, int64; the last row ends with the sentence."""
  if tokens <= room:
    return np.zeros(1, np.int64)
  starts = np.arange(0, tokens - room, room - int(overlap), dtype=np.int64)
  return np.append(starts, tokens - room)


def _nearest(tokens, starts, ends) -> np.ndarray:
  """The row in which each token is nearest to the middle, the first of two; rows have one size."""
  middles, tokens = starts + ends - 1, 2 * tokens
  row = np.minimum(np.searchsorted(middles, tokens), len(starts) - 1)
  left = np.maximum(row - 1, 0)
  return np.where(tokens - middles[left] <= np.abs(middles[row] - tokens), left, row)


def _labels(numbers, first, tokens):
  out = np.full(tokens, -1, np.int32)
  present = first >= 0
  out[first[present]] = numbers[present]
  return out
