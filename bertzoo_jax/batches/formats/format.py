"""The input format: a list of rows by (text, key), and the content of a row when asked for."""

from collections.abc import Callable
from typing import NamedTuple

from bertzoo_jax.common import errors


class Format(NamedTuple):
  """One input format over one text. B rows of a batch, N rows of a list.

  Attributes:
    rows: (key) -> row list, whatever `spans` understands, with a length (len(rows) == N).
    spans: (key, row list, row numbers [B]) -> rows.Spans.
    every_epoch: True if the list depends on the key; otherwise one list serves all epochs.
    has_pairs: rows have a pair label.
    packed: several packed segments may share a row, so positions restart (README.md). If not, a row
      is one segment, and padding behind it.
    warnings: sentences the user should read at the start.
    needs_sentences: two segments are parted where a sentence ends, so the corpus must have been
      split.
    features: {name: (shape without B, numpy dtype)} beyond input_ids, token_type_ids, segment_ids,
      position_ids, pair_labels.
    in_lanes: (rows of the global batch, whether the tokenizer has an end of documents) -> the
      Format for them, where row b of every batch goes on in its own text; such a list is visited in
      order, row t · B + b by row b of step t.
    assemble: in place of `spans`: (key, row list, row numbers, gather, special, gather_units) ->
      features before masking.
  """

  rows: Callable
  spans: Callable
  every_epoch: bool
  has_pairs: bool
  packed: bool
  warnings: tuple = ()
  needs_sentences: bool = False
  features: dict = {}
  in_lanes: Callable | None = None
  assemble: Callable | None = None


def check_length(length, least, name):
  if length < least:
    raise errors.UserError(
      f'config.length is {length}: {name} needs at least {least} tokens per row.'
    )
