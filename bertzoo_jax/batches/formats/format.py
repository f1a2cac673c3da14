"""The input format: (text, key) → a list of rows, and the tokens of any row of it."""

from collections.abc import Callable
from typing import NamedTuple

from bertzoo_jax.common import errors


class Format(NamedTuple):
  """One input format over one text. B rows of a batch, N rows of a list."""

  rows: Callable  # (key) -> row list: any object with len(rows) == N that `spans` can read
  spans: Callable  # (key, row list, row numbers [B]) -> rows.Spans
  every_epoch: bool  # True if the list depends on the key; otherwise one list serves all epochs
  has_pairs: bool  # rows have a pair label
  # several packed segments may share a row, so positions restart (README.md). If not, a row is one
  # segment and padding after it.
  packed: bool
  warnings: tuple = ()  # sentences the user should read at the start
  # whether two segments of a row meet at the end of a sentence, so that the corpus must be split
  # into sentences
  needs_sentences: bool = False
  # {name: (shape without B, numpy dtype)} beyond input_ids, token_type_ids, segment_ids,
  # position_ids, pair_labels
  features: dict = {}
  # (B of the global batch, whether the tokenizer has an end-of-document token) -> a Format in which
  # row b of every batch continues row b of the batch before; its list is visited in order, row t ·
  # B + b as row b of step t
  in_lanes: Callable | None = None
  # in place of `spans`: (key, row list, row numbers, gather, special, gather_units) -> features
  # before masking
  assemble: Callable | None = None


def check_length(length, least, name):
  if length < least:
    raise errors.UserError(
      f'config.length is {length}: {name} needs at least {least} tokens per row.'
    )
