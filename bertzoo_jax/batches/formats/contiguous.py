"""Contiguous text: whole sentences, over documents or within them, or tokens cut anywhere."""

import dataclasses

import numpy as np

from bertzoo_jax.batches import rows as rows_lib
from bertzoo_jax.batches.formats import format as formats
from bertzoo_jax.common import hashing
from bertzoo_jax.parts import formats as definitions


def full_sentences(fields: definitions.FullSentences, text, length):
  """Contiguous sentences, at most `length` tokens, across documents (Liu et al. 2019 §4.2).

  [CLS] sentences … [SEP]; with document_separator one more [SEP] between two documents of a row;
  with sentence_separators a [SEP] after every sentence (then the last one ends the row). A sentence
  that no row can hold is cut into sentences that fill one.
  """
  formats.check_length(length, 3, 'full_sentences')
  text = rows_lib.cut_long(text, length - 2)
  starts, documents = text.sentence_starts, text.document_starts

  def successors(first, last):
    end = min(last + length, text.num_sentences)
    costs = starts[first : end + 1] - starts[first]
    if fields.sentence_separators:
      costs = costs + np.arange(len(costs))
    fixed = 1 if fields.sentence_separators else 2
    opened, closed = costs[: last - first] + length - fixed, costs
    # borders in (first, s] at a row's start, in (first, e) at its end
    if fields.document_separator:
      flags = np.zeros(len(costs), np.int64)
      inside = documents[slice(*documents.searchsorted((first + 1, end)))]
      flags[inside - first] = 1
      borders = np.cumsum(flags)
      opened = opened + borders[: last - first]
      closed = closed + np.append(0, borders[:-1])
    return first + np.searchsorted(closed, opened, 'right') - 1

  def spans(key, rows, numbers):
    first, last = rows.starts[numbers], rows.starts[numbers + 1]
    if fields.sentence_separators:
      row, sentence = rows_lib.ragged(first, last - first)
      final = sentence == last[row] - 1
      ends_document = (
        documents[np.minimum(documents.searchsorted(sentence + 1), text.num_documents)]
        == sentence + 1
      )
      trailing = 1 + (ends_document & ~final & fields.document_separator)
      begin, end = starts[sentence], starts[sentence + 1]
    elif fields.document_separator:
      first_document = documents.searchsorted(first, 'right') - 1
      last_document = documents.searchsorted(last, 'left')
      row, document = rows_lib.ragged(first_document, last_document - first_document)
      begin = starts[np.maximum(documents[document], first[row])]
      end = starts[np.minimum(documents[document + 1], last[row])]
      trailing = np.ones(len(row), np.int64)
    else:
      row = np.arange(len(first))
      begin = starts[first]
      end = starts[last]
      trailing = np.ones(len(first), np.int64)
    leading = np.append(True, row[1:] != row[:-1]).astype(np.int64)
    zeros = np.zeros(len(row), np.int64)
    return rows_lib.Spans(row, begin, end - begin, leading, trailing, zeros, zeros + 1, None)

  rows = lambda key: Contiguous(rows_lib.walk(text.num_sentences, successors, end=True))
  return formats.Format(rows, spans, every_epoch=False, has_pairs=False, packed=False)


@dataclasses.dataclass(frozen=True)
class Contiguous:
  """Rows that follow each other: row r holds the sentences starts[r] to starts[r + 1]."""

  starts: np.ndarray  # [N+1]

  def __len__(self):
    return len(self.starts) - 1


def doc_sentences(fields: definitions.DocSentences, text, length):
  """full_sentences within a document; the ends of documents share rows (Liu et al. 2019 §4.2).

  A packed segment is [CLS] sentences … [SEP] of one document. The last one of a document is short:
  up to max_pieces of these, from consecutive documents, share a row while they fit. Each has its
  segment id, and positions from 0. The paper grows the batch instead; packing keeps shapes static.
  With one segment per row it is also SpanBERT's single segment (Joshi et al. 2019 §3.3).

  long_sentences: 'drop' also ends the segment before the dropped sentence.
  """
  formats.check_length(length, 3, 'doc_sentences')
  if fields.long_sentences == 'cut':
    text = rows_lib.cut_long(text, length - 2)
  starts, documents = text.sentence_starts, text.document_starts

  def segment_lengths(first, last):
    return starts[last] - starts[first] + 1 + (last - first if fields.sentence_separators else 1)

  def successors(first, last):
    end = min(last + length, text.num_sentences)
    costs = starts[first : end + 1] - starts[first]
    if fields.sentence_separators:
      costs = costs + np.arange(len(costs))
    reach = (
      np.searchsorted(
        costs, costs[: last - first] + length - (1 if fields.sentence_separators else 2), 'right'
      )
      - 1
    )
    return np.minimum(
      np.maximum(first + reach, np.arange(first, last) + 1),
      rows_lib.document_ends(documents, first, last),
    )

  def rows(key):
    borders = rows_lib.walk(text.num_sentences, successors, end=True)
    is_tail = np.zeros(len(borders) - 1, bool)
    is_tail[np.searchsorted(borders, documents[1:]) - 1] = True
    # False for a long sentence that is dropped
    whole = segment_lengths(borders[:-1].astype(np.int64), borders[1:].astype(np.int64)) <= length
    tails = np.flatnonzero(is_tail & whole).astype(borders.dtype)
    filled = np.append(
      0,
      np.cumsum(
        segment_lengths(borders[tails].astype(np.int64), borders[tails + 1].astype(np.int64))
      ),
    )
    fits = lambda first, last: np.minimum(
      np.searchsorted(filled, filled[first:last] + length, 'right') - 1,
      np.arange(first, last) + fields.max_pieces,
    )
    groups = rows_lib.walk(len(tails), fits, end=True)
    alone = np.flatnonzero(~is_tail & whole).astype(borders.dtype)
    return Packed(
      borders,
      np.append(alone, tails),
      np.append(np.arange(len(alone), dtype=borders.dtype), groups + len(alone)),
    )

  def spans(key, rows, numbers):
    row, place = rows_lib.ragged(
      rows.groups[numbers], rows.groups[numbers + 1] - rows.groups[numbers]
    )
    pack = place - rows.groups[numbers][row] + 1
    segment = rows.order[place]
    first, last = rows.borders[segment].astype(np.int64), rows.borders[segment + 1].astype(np.int64)
    if fields.sentence_separators:
      owner, sentence = rows_lib.ragged(first, last - first)
      row = row[owner]
      pack = pack[owner]
      begin = starts[sentence]
      end = starts[sentence + 1]
      leading = sentence == first[owner]
    else:
      begin, end, leading = starts[first], starts[last], np.ones(len(row), bool)
    ones = np.ones(len(row), np.int64)
    return rows_lib.Spans(
      row, begin, end - begin, leading.astype(np.int64), ones, ones - 1, pack, None
    )

  return formats.Format(rows, spans, every_epoch=False, has_pairs=False, packed=True)


@dataclasses.dataclass(frozen=True)
class Packed:
  """Packed segments in rows.

  Row r holds the segments order[groups[r]] to order[groups[r + 1]], segment s the sentences
  borders[s] to borders[s + 1].
  """

  borders: np.ndarray  # [segments + 1]
  order: np.ndarray  # [segments]
  groups: np.ndarray  # [N+1]

  def __len__(self):
    return len(self.groups) - 1


def token_blocks(text, length):
  """[CLS] the next length − 2 tokens [SEP]: one stream, cut anywhere (code of DeBERTa)."""
  formats.check_length(length, 3, 'token_blocks')
  capacity, total = length - 2, int(text.sentence_starts[-1])

  def spans(key, rows, numbers):
    start, one = numbers * capacity, np.ones(len(numbers), np.int64)
    return rows_lib.Spans(
      np.arange(len(numbers)),
      start,
      np.minimum(capacity, total - start),
      one,
      one,
      one - 1,
      one,
      None,
    )

  return formats.Format(
    lambda key: range(-(-total // capacity)),
    spans,
    every_epoch=False,
    has_pairs=False,
    packed=False,
  )


# --- two segments that follow each other ---


def adjacent_segments(fields: definitions.AdjacentSegments, text, length):
  """[CLS] A [SEP] B [SEP] or [CLS] A [SEP]: running text of one document in two segments; B always
  follows A (code of ELECTRA's release).

  Sentences are taken until a target is reached or the document ends. The target is `length` or,
  with probability short_rate, uniform in [5, length]. With probability single_rate all are A. Else
  A takes sentences while it stays below half of target − 3, and, by a fair coin, the next one; B
  takes the rest. A is cut at its end to length − 2 tokens, B to the rest.

  Unlike the release, a later sentence that would still fit into A stays in B, so that the text
  keeps its order.
  """
  formats.check_length(length, 5, 'adjacent_segments')
  starts, documents = text.sentence_starts, text.document_starts

  def targets(key, first):
    bound = hashing.threshold(fields.short_rate)
    short = hashing.bits(hashing.fold(key, hashing.SHORT), first) < bound
    return np.where(
      short,
      5 + hashing.below(hashing.bits(hashing.fold(key, hashing.TARGET), first), length - 4),
      length,
    )

  def rows(key):
    def successors(first, last):
      place, window = np.arange(first, last), starts[first : last + length]
      reach = np.searchsorted(window, window[: last - first] + targets(key, place), 'left') + first
      return np.minimum(reach, rows_lib.document_ends(documents, first, last))

    return rows_lib.walk(text.num_sentences, successors)

  def spans(key, rows, numbers):
    first = rows[numbers].astype(np.int64)
    target = targets(key, first)
    document_end = documents[documents.searchsorted(first, 'right')]
    end = np.minimum(np.searchsorted(starts, starts[first] + target, 'left'), document_end)
    coin = lambda purpose, share: (
      hashing.bits(hashing.fold(key, purpose), first) < hashing.threshold(share)
    )
    half = (target - 3) // 2
    # the sentence before which A still is below half
    border = np.searchsorted(starts, starts[first] + half, 'left') - 1
    border = np.where(border <= first, first + 1, border + coin(hashing.CUT, 0.5))
    border = np.where(coin(hashing.COIN, fields.single_rate), end, np.minimum(border, end))
    length_a = np.minimum(starts[border] - starts[first], length - 2)
    length_b = np.minimum(starts[end] - starts[border], np.maximum(length - 3 - length_a, 0))
    row, segment = rows_lib.ragged(np.zeros(len(first), np.int64), 1 + (length_b > 0))
    one = np.ones(len(row), np.int64)
    return rows_lib.Spans(
      row,
      np.where(segment == 0, starts[first][row], starts[border][row]),
      np.where(segment == 0, length_a[row], length_b[row]),
      one - segment,
      one,
      segment,
      one,
      None,
    )

  return formats.Format(
    rows, spans, every_epoch=True, has_pairs=False, packed=False, needs_sentences=True
  )
