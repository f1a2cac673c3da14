"""Rows of tokens, the special tokens that an encoder expects around them, and texts as tokens."""

import dataclasses
import re
from typing import Any
from typing import NamedTuple

import numpy as np

from bertzoo_jax.common import errors

_CHUNK = 8192  # texts encoded at a time, to keep few of the tokenizer's objects in memory


@dataclasses.dataclass(frozen=True)
class Frame:
  """The special tokens and segments of an encoder's rows."""

  # single, pair: words ROLE:SEGMENT; the role A or B is a text, others are special tokens
  single: str
  pair: str
  special: dict[str, int]  # {role: id}
  segments: int  # number of token types of the encoder; a larger id becomes 0
  max_length: int  # tokens of a row, at most

  def words(self, is_pair: bool) -> list[tuple[str, int]]:
    """[(role, segment), …] of a row."""
    template = (self.pair if is_pair else self.single).replace('{}', '1')
    numbers = [
      int(n) for n in re.findall(r':(\d+)', self.single + ' ' + self.pair.replace('{}', '1'))
    ]
    # an encoder that takes a segment id above 1 has no table of segments that could be too short
    segments = max(numbers) + 1 if max(numbers) > 1 else self.segments
    words = [word.split(':') for word in template.split()]
    return [(role, int(n) if int(n) < segments else 0) for role, n in words]

  def room(self, is_pair: bool, least: int = 1, what: str = 'text') -> int:
    """Tokens of a row beside its special tokens. Raises UserError for fewer than `least`."""
    room = self.max_length - sum(role not in 'AB' for role, _ in self.words(is_pair))
    if room < least:
      raise errors.UserError(
        f'config.length={self.max_length} leaves no room for {what} beside the special tokens: set '
        f'--config.length={self.max_length - room + least} or more.'
      )
    return room


@dataclasses.dataclass(frozen=True)
class Rows:
  """Concatenated rows of tokens, and their labels; see task.Split."""

  ids: np.ndarray
  segments: np.ndarray
  offsets: np.ndarray
  uncut: np.ndarray
  labels: np.ndarray | None = None
  label_axis: str = 'rows'
  group: int = 1
  features: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
  token_features: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
  detail: Any = None


class Flat(NamedTuple):
  """Concatenated arrays: array i is values[offsets[i]:offsets[i + 1]], sizes[i] numbers."""

  values: np.ndarray
  offsets: np.ndarray
  sizes: np.ndarray


def flat(arrays) -> Flat:
  sizes = np.array([len(x) for x in arrays], np.int64)
  values = np.concatenate(arrays) if arrays else np.zeros(0, np.int32)
  return Flat(values.astype(np.int32), offsets_of(sizes), sizes)


def offsets_of(sizes) -> np.ndarray:
  """The offsets of concatenated arrays of these sizes, and their total, int64 [N + 1]."""
  return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def tokens_of(encode, texts) -> Flat:
  return flat(encoded(encode, texts))


def distinct(texts) -> tuple[list, np.ndarray]:
  """(the distinct texts; the index of each text in them, int64)."""
  numbers = {}
  at = [numbers.setdefault(text, len(numbers)) for text in texts]
  return list(numbers), np.array(at, np.int64)


def laid_out(words, special, parts) -> tuple[dict, np.ndarray]:
  """({ids, segments, offsets} of Rows, tokens of each word of each row, int64 [N, words]).

  Every row is made of the same words, which are special tokens or texts.

  words: [(role, segment)]. special: {role: id}. parts: {role of a text: (tokens, offset of each
  row's tokens, their number)}.
  """
  named = [role for role, _ in words]
  roles = sorted(set(named) - set(parts))
  pool, begins = [np.array([special[r] for r in roles], np.int32)], {}
  for role, (tokens, begin, _) in parts.items():
    begins[role] = sum(map(len, pool)) + begin
    pool.append(tokens)
  count = len(next(iter(begins.values())))
  begin, length = np.zeros((2, count, len(named)), np.int64)
  for j, role in enumerate(named):
    begin[:, j] = begins[role] if role in parts else roles.index(role)
    length[:, j] = parts[role][2] if role in parts else 1
  sizes = length.reshape(-1)
  at = np.repeat(begin.reshape(-1) - np.cumsum(sizes) + sizes, sizes)
  segments = np.tile(np.array([segment for _, segment in words], np.int32), count)
  laid = dict(
    ids=np.concatenate(pool).astype(np.int32)[at + np.arange(len(at))],
    segments=np.repeat(segments, sizes),
    offsets=offsets_of(length.sum(axis=1)),
  )
  return laid, length


def encoded(encode, texts_) -> list:
  """encode(texts), in chunks of some thousand texts."""
  out = []
  for start in range(0, len(texts_), _CHUNK):
    out += encode(texts_[start : start + _CHUNK])
  return out
