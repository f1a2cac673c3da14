"""Sentences of words as rows of tokens. Over-long sentences become several rows that overlap.

Legend: W words of a split, T tokens of all its rows.
"""

from typing import NamedTuple

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.parts import features as definitions
from bertzoo_jax.tasks import frames
from bertzoo_jax.tasks.examples import Examples
from bertzoo_jax.tasks.frames import Frame
from bertzoo_jax.tasks.frames import Rows


class Places(NamedTuple):
  """Where words are among tokens.

  Attributes:
    first: int64 [W], the place of each word's first token in the ids of the split; −1 for a word
      without tokens.
    sentences: int64 [N + 1]: the words of sentence i are first[sentences[i]:sentences[i + 1]].
    windows: int64 [N], rows of each sentence.
  """

  first: np.ndarray
  sentences: np.ndarray
  windows: np.ndarray


def words(fields: definitions.Words, examples: Examples, numbers, tokenizer, frame: Frame) -> Rows:
  """The words of a sentence in one row; each is predicted at its first token.

  A sentence that is too long is several rows. Each begins `overlap` tokens ahead of the end of the
  one before, and the last one earlier. A word is predicted in the row where it has most
  tokens on either side; in its other rows it is context.

  Args:
    examples: N sentences.
    numbers: labels of all words, int32 [W], −1 for those that are not learned; None without.
    tokenizer: has encode_words.
    frame: of the rows.

  Raises:
    UserError: the overlap leaves no room.
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
  for (ids, of_word), own in zip(frames.encoded(tokenizer.encode_words, words), words):
    count = len(own)
    starts = _starts(len(ids), room, overlap)
    ends = np.minimum(starts + room, len(ids))
    place, token = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    # from the last to the first, so that a word's first token stays
    token[of_word[::-1]] = np.arange(len(ids))[::-1]
    there = token >= 0
    row = _nearest(token[there], starts, ends)
    # rows stand behind one another, each within its special tokens
    of_rows = at + frames.offsets_of(ends - starts + len(template) - 1)
    place[there] = of_rows[row] + ahead + token[there] - starts[row]
    first.append(place)
    windows.append(len(starts))
    texts.append(ids)
    begins.append(before + starts)
    sizes.append(ends - starts)
    at, before = of_rows[-1], before + len(ids)
  begins, sizes, first = (
    np.concatenate([*x, np.zeros(0, np.int64)]) for x in (begins, sizes, first)
  )
  parts = {'A': (frames.flat(texts).values, begins, sizes)}
  laid, lengths = frames.laid_out(template, frame.special, parts)
  total = lengths.sum(axis=1)
  return Rows(
    **laid,
    uncut=total,
    labels=None if numbers is None else _labels(numbers, first, int(total.sum())),
    label_axis='tokens',
    detail=Places(
      first,
      frames.offsets_of([len(own) for own in words]),
      np.array(windows, np.int64),
    ),
  )


def _starts(tokens: int, room: int, overlap: int) -> np.ndarray:
  """Where the rows of a sentence begin, int64; the last row ends where the sentence does."""
  if tokens <= room:
    return np.zeros(1, np.int64)
  starts = np.arange(0, tokens - room, room - int(overlap), dtype=np.int64)
  return np.append(starts, tokens - room)


def _nearest(tokens, starts, ends) -> np.ndarray:
  """The row in whose middle each token is most, of rows of one size; of two such rows the first."""
  middles, tokens = starts + ends - 1, 2 * tokens
  row = np.minimum(np.searchsorted(middles, tokens), len(starts) - 1)
  left = np.maximum(row - 1, 0)
  return np.where(tokens - middles[left] <= np.abs(middles[row] - tokens), left, row)


def _labels(numbers, first, tokens):
  out = np.full(tokens, -1, np.int32)
  there = first >= 0
  out[first[there]] = numbers[there]
  return out
