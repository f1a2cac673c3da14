"""Rows of tokens, the frame that an encoder wants around them, and texts as tokens."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

_CHUNK = 8192  # texts that are tokens at a time, so that few objects of the tokenizer live


@dataclasses.dataclass(frozen=True)
class Frame:
  """How an encoder wants its rows.

  Attributes:
    single, pair: words ROLE:SEGMENT; the role A or B is a text, others are special tokens.
    special: {role: id}.
    segments: how many the encoder tells apart; a larger number becomes 0.
    max_length: tokens of a row, at most.
  """

  single: str
  pair: str
  special: dict[str, int]
  segments: int
  max_length: int

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


@dataclasses.dataclass(frozen=True)
class Rows:
  """Rows of tokens behind one another, and what is learned of them: the attributes of
  task.Split by these names.
  """

  ids: np.ndarray
  segments: np.ndarray
  offsets: np.ndarray
  uncut: np.ndarray
  labels: np.ndarray | None = None
  label_axis: str = 'rows'
  group: int = 1
  features: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
  token_features: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
  detail: Any = None


def encoded(encode, texts_) -> list:
  """encode(texts), some thousands at a time."""
  out = []
  for start in range(0, len(texts_), _CHUNK):
    out += encode(texts_[start : start + _CHUNK])
  return out
