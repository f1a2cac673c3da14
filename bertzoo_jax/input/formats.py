"""Input formats: which sentences make a row, and where its tokens and separators stand.

A format is pure: its row list is a function of (text, key), and what a row holds is computed from its number when the
row is asked for. The list is only the place where each row starts; every draw is a counter hash of that place. All of
it is numpy over whole arrays.

B rows of a batch, N rows of a list.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bertzoo_jax import errors
from bertzoo_jax.input import hashing
from bertzoo_jax.input import rows as rows_lib

_MOST_ALONE = 0.3  # documents of one sentence; more of them is worth a remark
_TRIES = 10  # draws for a random document that is not one's own, as in Google's create_pretraining_data.py


class Format(NamedTuple):
  """One input format over one text.

  Attributes:
    rows: (key) -> row list, whatever `spans` understands, with a length (len(rows) == N).
    spans: (key, row list, row numbers [B]) -> Spans.
    every_epoch: True if the list depends on the key; otherwise one list serves all epochs.
    has_pairs: rows have a pair label.
    packed: several pieces may share a row, so positions restart.
    warnings: sentences the user should read at the start.
  """
  rows: Callable
  spans: Callable
  every_epoch: bool
  has_pairs: bool
  packed: bool
  warnings: tuple = ()


# --- contiguous sentences ---------------------------------------------------------------------------------------------


def full_sentences(text, length, *, document_separator, sentence_separators):
  """Contiguous sentences to at most `length` tokens, over document borders (Liu et al. 2019 §4.2).

  [CLS] sentences … [SEP]; with document_separator one more [SEP] between two documents of a row; with
  sentence_separators a [SEP] after every sentence (then the last one ends the row). A sentence that no row can hold is
  cut into sentences that fill one.
  """
  _check_length(length, 3, 'full_sentences')
  text = rows_lib.cut_long(text, length - 2)
  starts, documents = text.sentence_starts, text.document_starts

  def successors(first, last):
    end = min(last + length, text.num_sentences)
    costs = starts[first:end + 1] - starts[first]
    if sentence_separators:
      costs = costs + np.arange(len(costs))
    fixed = 1 if sentence_separators else 2
    opened, closed = costs[:last - first] + length - fixed, costs
    if document_separator:  # borders in (first, s] at a row's start, in (first, e) at its end
      flags = np.zeros(len(costs), np.int64)
      inside = documents[slice(*documents.searchsorted((first + 1, end)))]
      flags[inside - first] = 1
      borders = np.cumsum(flags)
      opened = opened + borders[:last - first]
      closed = closed + np.append(0, borders[:-1])
    return first + np.searchsorted(closed, opened, 'right') - 1

  def spans(key, rows, numbers):
    first, last = rows.starts[numbers], rows.starts[numbers + 1]
    if sentence_separators:
      row, sentence = rows_lib.ragged(first, last - first)
      final = sentence == last[row] - 1
      ends_document = documents[np.minimum(documents.searchsorted(sentence + 1), text.num_documents)] == sentence + 1
      trailing = 1 + (ends_document & ~final & document_separator)
      begin, end = starts[sentence], starts[sentence + 1]
    elif document_separator:
      first_document, last_document = documents.searchsorted(first, 'right') - 1, documents.searchsorted(last, 'left')
      row, document = rows_lib.ragged(first_document, last_document - first_document)
      begin = starts[np.maximum(documents[document], first[row])]
      end = starts[np.minimum(documents[document + 1], last[row])]
      trailing = np.ones(len(row), np.int64)
    else:
      row, begin, end, trailing = np.arange(len(first)), starts[first], starts[last], np.ones(len(first), np.int64)
    leading = np.append(True, row[1:] != row[:-1]).astype(np.int64)
    zeros = np.zeros(len(row), np.int64)
    return rows_lib.Spans(row, begin, end - begin, leading, trailing, zeros, zeros + 1, None)

  rows = lambda key: Contiguous(rows_lib.walk(text.num_sentences, successors, end=True))
  return Format(rows, spans, every_epoch=False, has_pairs=False, packed=False)


@dataclasses.dataclass(frozen=True)
class Contiguous:
  """Rows that follow each other: row r holds the sentences starts[r] to starts[r + 1]."""
  starts: np.ndarray  # [N+1]

  def __len__(self):
    return len(self.starts) - 1


def doc_sentences(text, length, *, max_pieces, sentence_separators):
  """As full_sentences within a document; the ends of documents share rows (Liu et al. 2019 §4.2).

  A piece is [CLS] sentences … [SEP] of one document. A piece that ends a document is short: up to max_pieces of these,
  of following documents, share a row while they fit, each with its own pack id and positions from 0. The paper grows
  the batch instead; this is the static-shape form of it.
  """
  _check_length(length, 3, 'doc_sentences')
  if max_pieces < 1:
    raise errors.UserError(f'config.format.max_pieces is {max_pieces}: at least 1 is needed.')
  text = rows_lib.cut_long(text, length - 2)
  starts, documents = text.sentence_starts, text.document_starts

  def piece_lengths(first, last):
    return starts[last] - starts[first] + 1 + (last - first if sentence_separators else 1)

  def successors(first, last):
    end = min(last + length, text.num_sentences)
    costs = starts[first:end + 1] - starts[first]
    if sentence_separators:
      costs = costs + np.arange(len(costs))
    reach = np.searchsorted(costs, costs[:last - first] + length - (1 if sentence_separators else 2), 'right') - 1
    return np.minimum(first + reach, rows_lib.document_ends(documents, first, last))

  def rows(key):
    pieces = rows_lib.walk(text.num_sentences, successors, end=True)
    is_tail = np.zeros(len(pieces) - 1, bool)
    is_tail[np.searchsorted(pieces, documents[1:]) - 1] = True
    tails = np.flatnonzero(is_tail).astype(pieces.dtype)
    filled = np.append(0, np.cumsum(piece_lengths(pieces[tails].astype(np.int64), pieces[tails + 1].astype(np.int64))))
    fits = lambda first, last: np.minimum(
        np.searchsorted(filled, filled[first:last] + length, 'right') - 1, np.arange(first, last) + max_pieces)
    groups = rows_lib.walk(len(tails), fits, end=True)
    alone = np.flatnonzero(~is_tail).astype(pieces.dtype)
    return Packed(pieces, np.append(alone, tails), np.append(np.arange(len(alone), dtype=pieces.dtype), groups + len(alone)))

  def spans(key, rows, numbers):
    row, place = rows_lib.ragged(rows.groups[numbers], rows.groups[numbers + 1] - rows.groups[numbers])
    pack = place - rows.groups[numbers][row] + 1
    piece = rows.order[place]
    first, last = rows.pieces[piece].astype(np.int64), rows.pieces[piece + 1].astype(np.int64)
    if sentence_separators:
      of_piece, sentence = rows_lib.ragged(first, last - first)
      row, pack, begin, end = row[of_piece], pack[of_piece], starts[sentence], starts[sentence + 1]
      leading = sentence == first[of_piece]
    else:
      begin, end, leading = starts[first], starts[last], np.ones(len(row), bool)
    ones = np.ones(len(row), np.int64)
    return rows_lib.Spans(row, begin, end - begin, leading.astype(np.int64), ones, ones - 1, pack, None)

  return Format(rows, spans, every_epoch=False, has_pairs=False, packed=True)


@dataclasses.dataclass(frozen=True)
class Packed:
  """Pieces in rows: row r holds the pieces order[groups[r]] to order[groups[r + 1]]; piece p the sentences pieces[p] to pieces[p + 1]."""
  pieces: np.ndarray  # [pieces + 1]
  order: np.ndarray  # [pieces]
  groups: np.ndarray  # [N+1]

  def __len__(self):
    return len(self.groups) - 1


# --- pairs ------------------------------------------------------------------------------------------------------------


def segment_pairs(text, length, *, short_rate, random_next_rate):
  """[CLS] A [SEP] B [SEP]: two segments of whole sentences, B the true next or a random one (Devlin et al. 2018 A.2).

  As Google's create_pretraining_data.py: a document visit has one target length, length − 3 or, with short_rate,
  uniform in [2, length − 3]. Sentences are taken until the target is reached or the document ends; A is a uniform
  number of them, at least one and not all. With random_next_rate, and always where there is one sentence only, B comes
  from a random sentence of a random other document on, and the sentences left are taken again by the next row. The
  longer segment is cut, token by token, at its front or back.
  """
  _check_length(length, 5, 'segment_pairs')
  _check_share(short_rate, 'short_rate')
  _check_share(random_next_rate, 'random_next_rate')
  starts, documents, limit = text.sentence_starts, text.document_starts, length - 3

  def targets(key, document):
    short = hashing.bits(hashing.fold(key, hashing.SHORT), document) < hashing.threshold(short_rate)
    return np.where(short, 2 + hashing.below(hashing.bits(hashing.fold(key, hashing.TARGET), document), limit - 1), limit)

  def chunks(key, first, document_end, target, starts, origin):
    """Of chunks that start at the sentences `first`: sentences, sentences of A, whether B is random. `starts` begins at `origin`."""
    local = first - origin
    reach = np.searchsorted(starts, starts[local] + target, 'left') + origin
    count = np.minimum(reach, document_end) - first
    cut = 1 + hashing.below(hashing.bits(hashing.fold(key, hashing.CUT), first), np.maximum(count - 1, 1))
    is_random = (count == 1) | (hashing.bits(hashing.fold(key, hashing.COIN), first) < hashing.threshold(random_next_rate))
    return count, cut, is_random

  def rows(key):
    def successors(first, last):
      window = starts[first:last + length]
      document = rows_lib.documents_of(documents, first, last)
      visited = np.arange(document[0], document[-1] + 1)
      target = targets(key, visited)[document - document[0]]
      place = np.arange(first, last)
      count, cut, is_random = chunks(key, place, documents[document + 1], target, window, first)
      return place + np.where(is_random, cut, count)
    return rows_lib.walk(text.num_sentences, successors)

  def spans(key, rows, numbers):
    first = rows[numbers].astype(np.int64)
    document = documents.searchsorted(first, 'right') - 1
    target = targets(key, document)
    count, cut, is_random = chunks(key, first, documents[document + 1], target, starts, 0)
    length_a = starts[first + cut] - starts[first]
    begin, end = _random_run(key, text, first, document, np.maximum(target - length_a, 1))
    begin, end = np.where(is_random, begin, first + cut), np.where(is_random, end, first + count)
    return _pair(key, first, limit, starts[first], length_a, starts[begin], starts[end] - starts[begin], is_random)

  return Format(rows, spans, every_epoch=True, has_pairs=True, packed=False, warnings=_pair_warnings(text))


def sentence_pairs(text, length, *, random_next_rate):
  """[CLS] A [SEP] B [SEP]: two single sentences, B the next one or one of another document (Liu et al. 2019 §4.2).

  The last sentence of a document always gets a random partner. A sentence that was B as the true next one starts no
  row of its own. Too long pairs are cut as in segment_pairs.
  """
  _check_length(length, 5, 'sentence_pairs')
  _check_share(random_next_rate, 'random_next_rate')
  starts, documents = text.sentence_starts, text.document_starts

  def is_random(key, first, document_end):
    return (first + 1 == document_end) | (hashing.bits(hashing.fold(key, hashing.COIN), first) < hashing.threshold(random_next_rate))

  def rows(key):
    def successors(first, last):
      place = np.arange(first, last)
      return place + np.where(is_random(key, place, rows_lib.document_ends(documents, first, last)), 1, 2)
    return rows_lib.walk(text.num_sentences, successors)

  def spans(key, rows, numbers):
    first = rows[numbers].astype(np.int64)
    document = documents.searchsorted(first, 'right') - 1
    random = is_random(key, first, documents[document + 1])
    partner, _ = _random_run(key, text, first, document, np.ones_like(first))
    partner = np.where(random, partner, first + 1)
    return _pair(key, first, length - 3, starts[first], starts[first + 1] - starts[first], starts[partner],
                 starts[partner + 1] - starts[partner], random)

  return Format(rows, spans, every_epoch=True, has_pairs=True, packed=False, warnings=_pair_warnings(text))


def _random_run(key, text, first, document, tokens):
  """Sentences [begin, end) of a random document that is not `document`, from a random sentence on to at least `tokens` tokens."""
  starts, documents = text.sentence_starts, text.document_starts
  drawn = [hashing.below(hashing.bits(hashing.fold(hashing.fold(key, hashing.DOCUMENT), t), first), text.num_documents) for t in range(_TRIES)]
  other = drawn[-1]
  for draw in drawn[-2::-1]:
    other = np.where(draw != document, draw, other)
  begin = documents[other] + hashing.below(hashing.bits(hashing.fold(key, hashing.SENTENCE), first), documents[other + 1] - documents[other])
  return begin, np.minimum(np.searchsorted(starts, starts[begin] + tokens, 'left'), documents[other + 1])


def _pair(key, first, limit, start_a, length_a, start_b, length_b, is_random):
  """Spans of the rows [CLS] A [SEP] B [SEP], the two cut to `limit` tokens together."""
  kept_a, kept_b = truncated_lengths(length_a, length_b, limit)
  front_a = heads(hashing.fold(hashing.fold(key, hashing.TRIM_A), first), length_a - kept_a)
  front_b = heads(hashing.fold(hashing.fold(key, hashing.TRIM_B), first), length_b - kept_b)
  weave = lambda a, b: np.stack(np.broadcast_arrays(a, b), axis=-1).reshape(-1)
  row = np.arange(len(first))
  zero = np.zeros_like(row)
  return rows_lib.Spans(weave(row, row), weave(start_a + front_a, start_b + front_b), weave(kept_a, kept_b), weave(zero + 1, 0), weave(zero + 1, 1),
               weave(zero, 1), weave(zero + 1, 1), is_random.astype(np.int32))


def truncated_lengths(length_a, length_b, limit):
  """What is left of two segments when the longer one (of equals the second) loses a token until both have `limit` together."""
  most_a, most_b = limit - limit // 2, limit // 2
  a = np.where(length_b <= most_b, np.minimum(length_a, limit - length_b), np.minimum(length_a, most_a))
  return a, np.minimum(length_b, limit - a)


def heads(key, tosses):
  """How many of `tosses` [B] fair coins show heads, one bit a coin: int64 [B]. The i-th coin is bit i % 32 of word i // 32."""
  row, word = rows_lib.ragged(np.zeros_like(tosses), (tosses + 31) // 32)
  random = hashing.bits((key[0][row], key[1][row]), word)
  left = np.minimum(tosses[row] - 32 * word, 32).astype(np.uint64)
  ones = np.bitwise_count(random & ((np.uint64(1) << left) - np.uint64(1)).astype(np.uint32)) if len(row) else np.zeros(0, np.int64)
  return np.bincount(row, weights=ones, minlength=len(tosses)).astype(np.int64)


def _pair_warnings(text):
  """What makes the labels of pairs easy or wrong."""
  found = []
  if text.num_documents == 1:
    found.append('there is a single document: random partners come from it too, and may be the true next ones.')
  alone = float(np.mean(np.diff(text.document_starts) == 1)) if text.num_documents else 0.0
  if alone > _MOST_ALONE:
    found.append(f'{alone:.0%} of the documents have a single sentence, and its partner is always a random one (label 1): '
                 'are there blank lines between sentences, or the wrong config.corpus.splitter?')
  return tuple(found)


def _check_length(length, least, name):
  if length < least:
    raise errors.UserError(f'config.length is {length}: {name} needs at least {least} tokens a row.')


def _check_share(value, name):
  if not 0 <= value <= 1:
    raise errors.UserError(f'config.format.{name} is {value}: a share from 0 to 1 is needed.')


BY_NAME = {
    'full_sentences': full_sentences,
    'doc_sentences': doc_sentences,
    'segment_pairs': segment_pairs,
    'sentence_pairs': sentence_pairs,
}
