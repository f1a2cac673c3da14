"""Sentences of words as rows of tokens. Over-long sentences become several rows that overlap.

Legend: W words of a split, T tokens of all its rows.
"""

from typing import NamedTuple

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.tasks.frames import Frame
from bertzoo_jax.tasks.frames import Rows
from bertzoo_jax.tasks.reading.tagged import Tagged

_CHUNK = 8192  # sentences that are tokens at a time


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


def words(examples: Tagged, numbers, tokenizer, frame: Frame, *, overlap) -> Rows:
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
  room = frame.max_length - len(template) + 1
  if room < 1:
    raise errors.UserError(
      f'config.length={frame.max_length} leaves no room for text beside the special tokens: set '
      f'--config.length={frame.max_length - room + 1} or more.'
    )
  if 0 < overlap < 1:
    overlap = int(overlap * room)
  if not 0 <= overlap < room or overlap != int(overlap):
    raise errors.UserError(
      f'config.features.overlap={overlap}, and a row of config.length={frame.max_length} has room '
      f'for {room} tokens: set --config.features.overlap to a share of it, as in 0.25.'
    )
  ahead = [(frame.special[r], s) for r, s in template[: _text(template)]]
  behind = [(frame.special[r], s) for r, s in template[_text(template) + 1 :]]
  segment = template[_text(template)][1]
  pieces, sizes, first, windows, at = [], [], [], [], 0
  around = [np.array([i for i, _ in side], np.int32) for side in (ahead, behind)]
  for ids, of_word, count in _encoded(tokenizer, examples):
    starts = _starts(len(ids), room, overlap)
    ends = np.minimum(starts + room, len(ids))
    place, token = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    # from the last to the first, so that a word's first token stays
    token[of_word[::-1]] = np.arange(len(ids))[::-1]
    there = token >= 0
    t = token[there, None]
    row = np.argmax(np.minimum(t - starts, ends - 1 - t), axis=1)
    # rows stand behind one another, each within its special tokens
    begins = at + np.concatenate([[0], np.cumsum(ends - starts + len(template) - 1)])
    place[there] = begins[row] + len(ahead) + token[there] - starts[row]
    first.append(place)
    windows.append(len(starts))
    for start, end in zip(starts, ends):
      pieces += [around[0], ids[start:end], around[1]]
    sizes.append(ends - starts)
    at = begins[-1]
  sizes = np.concatenate([*sizes, np.zeros(0, np.int64)])
  first = np.concatenate([*first, np.zeros(0, np.int64)])
  total = sizes + len(template) - 1
  return Rows(
    ids=np.concatenate([*pieces, np.zeros(0, np.int32)]).astype(np.int32),
    segments=_segments(ahead, segment, behind, sizes),
    offsets=np.concatenate([[0], np.cumsum(total)]).astype(np.int64),
    uncut=total,
    labels=None if numbers is None else _labels(numbers, first, int(total.sum())),
    label_axis='tokens',
    detail=Places(
      first,
      np.concatenate([[0], np.cumsum([len(w) for w in examples.words])]).astype(np.int64),
      np.array(windows, np.int64),
    ),
  )


def _text(template) -> int:
  """Where the text is in a template."""
  return next(i for i, (role, _) in enumerate(template) if role == 'A')


def _encoded(tokenizer, examples):
  """Yields (ids, number of the word of each token, words) of each sentence."""
  for start in range(0, len(examples), _CHUNK):
    own = examples.words[start : start + _CHUNK]
    for (ids, of_word), sentence in zip(tokenizer.encode_words(own), own):
      yield ids, of_word, len(sentence)


def _starts(tokens: int, room: int, overlap: int) -> np.ndarray:
  """Where the rows of a sentence begin, int64; the last row ends where the sentence does."""
  if tokens <= room:
    return np.zeros(1, np.int64)
  starts = np.arange(0, tokens - room, room - int(overlap), dtype=np.int64)
  return np.append(starts, tokens - room)


def _segments(ahead, segment, behind, sizes):
  """int32 [T]."""
  template = np.array([*(s for _, s in ahead), segment, *(s for _, s in behind)], np.int32)
  repeats = np.ones((len(sizes), len(template)), np.int64)
  repeats[:, len(ahead)] = sizes
  return np.repeat(np.tile(template, len(sizes)), repeats.reshape(-1))


def _labels(numbers, first, tokens):
  out = np.full(tokens, -1, np.int32)
  there = first >= 0
  out[first[there]] = numbers[there]
  return out
