"""Shared by the formats: sentences and documents, chains of rows through them, and spans as arrays.

B rows, L length, S sentences, D documents, K spans of a batch (a span is a run of corpus tokens in
a row).
"""

from typing import NamedTuple

import numpy as np

from bertzoo_jax.words import word_marks

_CHUNK = 1 << 18  # sentences whose successors are computed at once; bounds the memory of `walk`


class Text(NamedTuple):
  """Where sentences and documents start. No sentence and no document is empty."""

  sentence_starts: np.ndarray  # int64 [S+1], token offsets
  document_starts: np.ndarray  # int64 [D+1], sentence indices

  @property
  def num_sentences(self) -> int:
    return len(self.sentence_starts) - 1

  @property
  def num_documents(self) -> int:
    return len(self.document_starts) - 1


class Spans(NamedTuple):
  """The contents of B rows: for each span, ordered by row and column, its row, its place in the
  corpus and its special tokens.
  """

  row: np.ndarray  # [K] row of the batch, not decreasing
  # start, length: [K] tokens of the corpus
  start: np.ndarray
  length: np.ndarray
  leading: np.ndarray  # [K] classifier tokens before the span, 0 or 1
  trailing: np.ndarray  # [K] separators after the span
  segment: np.ndarray  # [K] token type, also of the leading and trailing tokens
  pack: np.ndarray  # [K] segment id, from 1; spans with the same number see each other
  label: np.ndarray | None  # [B] pair labels (1 = random or swapped), or None


# --- text ---


def text_of(split) -> Text:
  """The sentences and documents of a corpus split, without the empty ones."""
  sentences, documents = split.sentence_starts, split.document_starts
  empty = sentences[1:] == sentences[:-1]
  if empty.any():
    kept_before = np.concatenate([[0], np.cumsum(~empty)])
    sentences, documents = np.append(sentences[:-1][~empty], sentences[-1]), kept_before[documents]
  if (documents[1:] == documents[:-1]).any():
    documents = documents[np.append(True, documents[1:] != documents[:-1])]
  return Text(sentences, documents)


def cut_long(text, capacity):
  """The text with sentences of more than `capacity` tokens cut into several; nothing is lost."""
  starts = text.sentence_starts
  long = np.concatenate(
    [
      [],
      *(
        first + np.flatnonzero(np.diff(starts[first : first + _CHUNK + 1]) > capacity)
        for first in range(0, text.num_sentences, _CHUNK)
      ),
    ]
  ).astype(np.int64)
  if not len(long):
    return text
  cuts = (starts[long + 1] - starts[long] - 1) // capacity
  sentence, number = ragged(np.ones_like(cuts), cuts)
  added_before = np.append(0, np.cumsum(cuts))
  return Text(
    np.insert(starts, long[sentence] + 1, starts[long[sentence]] + number * capacity),
    text.document_starts + added_before[long.searchsorted(text.document_starts)],
  )


def documents_of(documents, first, last):
  """The document of each of the sentences first … last − 1."""
  low, high = documents.searchsorted((first, last - 1), 'right') - 1
  borders = np.clip(documents[low : high + 2], first, last)
  return np.repeat(np.arange(low, high + 1), np.diff(borders))


def document_ends(documents, first, last):
  return documents[documents_of(documents, first, last) + 1]


# --- rows ---


def walk(size, successors, end=False):
  """The chain 0, next(0), next(next(0)), … below `size` (and `size` itself with `end`).

  size: number of items; the chain visits some of them. successors: (first, last) -> next(i) for
  each i of first … last − 1; next(i) > i.

  Returns int32 (int64 where `size` needs it) [N] or [N+1].
  """
  dtype = np.int32 if size < 2**31 - 1 else np.int64
  parts, place = [], 0
  for first in range(0, size, _CHUNK):
    last = min(first + _CHUNK, size)
    if place >= last:
      continue
    table, visited = successors(first, last), []
    if (table <= np.arange(first, last)).any():
      raise AssertionError('a row that takes no sentence')  # else `walk` would never end
    table = table.tolist()
    while place < last:
      visited.append(place)
      place = table[place - first]
    parts.append(np.array(visited, dtype))
  return np.concatenate([*parts, np.array([size] if end else [], dtype)])


def ragged(first, count):
  """(owner, value) of the concatenated ranges first[i] … first[i] + count[i] − 1."""
  owner = np.repeat(np.arange(len(first)), count)
  before = np.cumsum(count) - count
  return owner, np.arange(len(owner)) + (first - before)[owner]


def assemble(spans, num_rows, length, gather, special, packed, gather_units=None):
  """The arrays of a batch before masking.

  spans: Spans of `num_rows` rows, each of at most `length` tokens. gather: (positions int64 [B, L])
  -> tokens int32 [B, L]; called once. Positions of a row are close together. special: {'pad' |
  'cls' | 'sep': id}. packed: whether positions restart at every leading classifier. gather_units:
  (positions, tokens [B, L]) -> marks int32 [B, L] (words/word_marks.py), or None.

  Returns {'input_ids', 'token_type_ids', 'segment_ids' (, 'position_ids', 'units')}: int32 [B, L],
  {'pair_labels'}: int32 [B].
  """
  shape = (num_rows, length)
  size = spans.leading + spans.length + spans.trailing
  end = np.cumsum(size)
  before = end - size
  first_span = np.searchsorted(spans.row, np.arange(num_rows))
  # flat place of a span's first token
  at = spans.row * length + before - before[first_span][spans.row]
  place = np.arange(end[-1]) + np.repeat(at - before, size)
  classifiers = at[spans.leading > 0]
  separators = np.concatenate(
    [
      (at + spans.leading + spans.length + i)[spans.trailing > i]
      for i in range(spans.trailing.max())
    ]
  )
  source = np.repeat(spans.start[first_span], length)
  source[place] = place + np.repeat(spans.start - spans.leading - at, size)
  source[classifiers] = source[separators] = spans.start[0]  # anything in range: overwritten below
  source = source.reshape(shape)
  ids = gather(source)
  units = gather_units(source, ids) if gather_units else None
  fill = lambda values: _put(np.zeros(shape, np.int32), place, values)
  pack = fill(np.repeat(spans.pack.astype(np.int32), size))
  ids[pack == 0] = special['pad']
  _put(_put(ids, classifiers, special['cls']), separators, special['sep'])
  segment = (
    fill(np.repeat(spans.segment.astype(np.int32), size))
    if spans.segment.any()
    else np.zeros(shape, np.int32)
  )
  features = {'input_ids': ids, 'token_type_ids': segment, 'segment_ids': pack}
  if units is not None:  # a special token is a unit of its own, and the next token starts one
    units[pack == 0] = 0
    _put(_put(units, classifiers, 0), separators, 0)
    begin = (at + spans.leading)[spans.length > 0]
    features['units'] = _put(
      units, begin, units.reshape(-1)[begin] & (word_marks.IN_PHRASE | word_marks.IN_ENTITY)
    )
  if packed:
    features['position_ids'] = fill(
      place - np.repeat(np.maximum.accumulate(np.where(spans.leading > 0, at, 0)), size)
    )
  if spans.label is not None:
    features['pair_labels'] = spans.label
  return features


def _put(array, places, values):
  array.reshape(-1)[places] = values
  return array
