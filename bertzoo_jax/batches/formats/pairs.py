"""Two segments, [CLS] A [SEP] B [SEP], for next-sentence prediction or sentence order."""

from typing import NamedTuple

import numpy as np

from bertzoo_jax.batches import rows as rows_lib
from bertzoo_jax.batches.formats import format as formats
from bertzoo_jax.common import errors
from bertzoo_jax.common import hashing
from bertzoo_jax.parts import formats as definitions

_MOST_ALONE = 0.3  # share of documents of one sentence above which the user is warned
_SAMPLE = 1_000_000  # sentences that are counted for a warning
_POOL = 1000  # rows of a pool, as in ERNIE 1.0's reader/pretraining.py
# draws for a random other document, as in Google's create_pretraining_data.py
_TRIES = 10


def segment_pairs(fields: definitions.SegmentPairs, text, length):
  """[CLS] A [SEP] B [SEP]: two segments of whole sentences, for next-sentence prediction, sentence
  order or neither.

  As Google's create_pretraining_data.py (Devlin et al. 2018 A.2): a document visit has one target
  length, length − 3 or, with probability short_rate, uniform in [2, length − 3]. Sentences are
  taken until the target is reached or the document ends. A is a uniform number of them, at least
  one and not all, B the rest. The longer segment is cut, token by token, at its front or back.

  Args:
    text: rows.Text; length: L.
    pairs: 'nsp', 'sop': the label is 1 with probability negative_rate. 'none': RoBERTa-wwm's pairs.
    negatives: false B of nsp. 'documents': B starts at a random sentence of a random other
      document, and the next row takes the sentences of the chunk that B displaced. 'pool': each
      1,000 rows are shuffled; B is the first segment of the next row, or its second one if the
      first does not fit (code of ERNIE 1.0). An A longer than half a row is replaced by the second
      segment of its row. A sentence that still does not fit is cut (in the release: left out). A
      row that is alone in its pool keeps its true B.
    lone_sentences: 'skip' gives a warning at the start; pairs 'none' implies it.

  Raises UserError: fields that exclude each other, or a length too short for a pair.
  """
  formats.check_length(length, 5, 'segment_pairs')
  if fields.negatives != 'documents' and fields.pairs != 'nsp':
    raise errors.UserError(
      f'config.format.negatives is {fields.negatives!r} and pairs {fields.pairs!r}: only nsp has '
      'random partners: set pairs=nsp or negatives=documents.'
    )
  # without a label, the network would take a random partner for the true next text
  skips = fields.pairs == 'none' or fields.lone_sentences == 'skip'
  starts, limit = text.sentence_starts, length - 3
  chunks = _Chunks(text, length, fields.short_rate, fields.negative_rate)
  # the next row takes the sentences that a false B displaced
  returns = fields.pairs == 'nsp' and fields.negatives != 'pool'

  def rows(key):
    lone = np.zeros(text.num_sentences if skips else 0, bool)

    def successors(first, last):
      count, cut, coin = chunks.window(key, first, last)
      if skips:
        lone[first:last] = count == 1
      return np.arange(first, last) + np.where(coin & returns & (count > 1), cut, count)

    places = rows_lib.walk(text.num_sentences, successors)
    return places[~lone[places]] if skips else places

  def spans(key, rows, numbers):
    first = rows[numbers].astype(np.int64)
    document, target, count, cut, coin = chunks.at(key, first)
    alone = count == 1  # never under 'skip'
    begin_a, end_a, begin_b, end_b = first, first + cut, first + cut, first + count
    false = alone | (coin & (fields.pairs == 'nsp'))
    if fields.pairs == 'nsp' and fields.negatives == 'pool':
      other = _next_in_pool(key, numbers, len(rows))
      false &= alone | (other != numbers)
      begin, end = chunks.halves_up_to(first, count, cut, limit // 2)
      begin_a, end_a = np.where(false, begin, begin_a), np.where(false, end, end_a)
      near = rows[other].astype(np.int64)
      _, _, count, cut, _ = chunks.at(key, near)
      random = chunks.halves_up_to(near, count, cut, limit - (starts[end_a] - starts[begin_a]))
    else:
      wanted = np.maximum(target - (starts[end_a] - starts[begin_a]), 1)
      random = _random_run(key, text, first, document, wanted)
    begin_b, end_b = np.where(false, random[0], begin_b), np.where(false, random[1], end_b)
    swapped = coin & ~alone & (fields.pairs == 'sop')
    begin_a, begin_b = _swap(swapped, begin_a, begin_b)
    end_a, end_b = _swap(swapped, end_a, end_b)
    start_a, start_b = starts[begin_a], starts[begin_b]
    label = None if fields.pairs == 'none' else false | swapped
    return _pair(
      key, first, limit, start_a, starts[end_a] - start_a, start_b, starts[end_b] - start_b, label
    )

  return formats.Format(
    rows,
    spans,
    every_epoch=True,
    has_pairs=fields.pairs != 'none',
    packed=False,
    warnings=_pair_warnings(text, skips, limit),
    needs_sentences=True,
  )


class _Chunks(NamedTuple):
  """The chunks of segment_pairs: whole sentences up to a target length, the first `cut` of which
  are A, and a coin that is True with probability negative_rate.
  """

  text: rows_lib.Text
  length: int
  short_rate: float
  negative_rate: float

  def at(self, key, first):
    """(document, target, sentences, cut, coin) of chunks that start at the sentences `first`."""
    documents = self.text.document_starts
    document = documents.searchsorted(first, 'right') - 1
    target = self._targets(key, document)
    ends = documents[document + 1]
    return document, target, *self._chunks(key, first, ends, target, self.text.sentence_starts, 0)

  def window(self, key, first, last):
    """(sentences, cut, coin) of the chunks of each of the sentences first … last − 1."""
    documents = self.text.document_starts
    document = rows_lib.documents_of(documents, first, last)
    visited = np.arange(document[0], document[-1] + 1)
    target = self._targets(key, visited)[document - document[0]]
    starts = self.text.sentence_starts[first : last + self.length]
    return self._chunks(key, np.arange(first, last), documents[document + 1], target, starts, first)

  def halves_up_to(self, first, count, cut, most):
    """Sentences [begin, end) of the first segment of each chunk; of the second if the first has
    more than `most` tokens and a second exists.
    """
    starts, middle = self.text.sentence_starts, first + cut
    later = (starts[middle] - starts[first] > most) & (count > 1)
    return np.where(later, middle, first), np.where(later, first + count, middle)

  def _targets(self, key, document):
    limit, bits = self.length - 3, hashing.bits(hashing.fold(key, hashing.TARGET), document)
    short = hashing.bits(hashing.fold(key, hashing.SHORT), document) < hashing.threshold(
      self.short_rate
    )
    return np.where(short, 2 + hashing.below(bits, limit - 1), limit)

  def _chunks(self, key, first, document_end, target, starts, origin):
    """`starts` begins at the sentence `origin`."""
    reach = np.searchsorted(starts, starts[first - origin] + target, 'left') + origin
    count = np.minimum(reach, document_end) - first
    bits = hashing.bits(hashing.fold(key, hashing.CUT), first)
    coin = hashing.bits(hashing.fold(key, hashing.COIN), first)
    cut = 1 + hashing.below(bits, np.maximum(count - 1, 1))
    return count, cut, coin < hashing.threshold(self.negative_rate)


def _swap(where, a, b):
  return np.where(where, b, a), np.where(where, a, b)


def sentence_pairs(fields: definitions.SentencePairs, text, length):
  """[CLS] A [SEP] B [SEP]: two single sentences, B the next one or one of another document (Liu et
  al. 2019 §4.2).

  The last sentence of a document always gets a random partner. A sentence that was the true B of a
  row starts no row. Too long pairs are cut as in segment_pairs.
  """
  formats.check_length(length, 5, 'sentence_pairs')
  starts, documents = text.sentence_starts, text.document_starts

  def is_random(key, first, document_end):
    return (first + 1 == document_end) | (
      hashing.bits(hashing.fold(key, hashing.COIN), first) < hashing.threshold(fields.negative_rate)
    )

  def rows(key):
    def successors(first, last):
      place = np.arange(first, last)
      return place + np.where(
        is_random(key, place, rows_lib.document_ends(documents, first, last)), 1, 2
      )

    return rows_lib.walk(text.num_sentences, successors)

  def spans(key, rows, numbers):
    first = rows[numbers].astype(np.int64)
    document = documents.searchsorted(first, 'right') - 1
    random = is_random(key, first, documents[document + 1])
    partner, _ = _random_run(key, text, first, document, np.ones_like(first))
    partner = np.where(random, partner, first + 1)
    size_a, size_b = (starts[i + 1] - starts[i] for i in (first, partner))
    return _pair(key, first, length - 3, starts[first], size_a, starts[partner], size_b, random)

  return formats.Format(
    rows,
    spans,
    every_epoch=True,
    has_pairs=True,
    packed=False,
    needs_sentences=True,
    warnings=_pair_warnings(text, False, length - 3),
  )


def _random_run(key, text, first, document, tokens):
  """Sentences [begin, end) of a random document that is not `document`, from a random sentence on
  to at least `tokens` tokens.
  """
  starts, documents = text.sentence_starts, text.document_starts
  drawn = [
    hashing.below(
      hashing.bits(hashing.fold(hashing.fold(key, hashing.DOCUMENT), t), first), text.num_documents
    )
    for t in range(_TRIES)
  ]
  other = drawn[-1]
  for draw in drawn[-2::-1]:
    other = np.where(draw != document, draw, other)
  begin = documents[other] + hashing.below(
    hashing.bits(hashing.fold(key, hashing.SENTENCE), first),
    documents[other + 1] - documents[other],
  )
  return begin, np.minimum(
    np.searchsorted(starts, starts[begin] + tokens, 'left'), documents[other + 1]
  )


def _next_in_pool(key, numbers, num_rows):
  """The row after each of `numbers` in its shuffled pool, whose last row is followed by its first:
  int64 [B].
  """
  begin = numbers // _POOL * _POOL
  key = hashing.fold(key, hashing.DOCUMENT)
  # differences of the other rows' draws to this row's, modulo 2³²: the least one is next
  ahead = hashing.bits(key, begin[:, None] + np.arange(_POOL)) - hashing.bits(key, numbers)[:, None]
  ahead -= np.uint32(1)
  beyond = begin[:, None] + np.arange(_POOL) >= num_rows
  return begin + np.argmin(np.where(beyond, np.uint32(0xFFFFFFFF), ahead), axis=1)


def _pair(key, first, limit, start_a, length_a, start_b, length_b, label):
  """Spans of the rows [CLS] A [SEP] B [SEP], the two cut to `limit` tokens together."""
  kept_a, kept_b = truncated_lengths(length_a, length_b, limit)
  front_a = heads(hashing.fold(hashing.fold(key, hashing.TRIM_A), first), length_a - kept_a)
  front_b = heads(hashing.fold(hashing.fold(key, hashing.TRIM_B), first), length_b - kept_b)
  weave = lambda a, b: np.stack(np.broadcast_arrays(a, b), axis=-1).reshape(-1)
  row = np.arange(len(first))
  zero = np.zeros_like(row)
  return rows_lib.Spans(
    weave(row, row),
    weave(start_a + front_a, start_b + front_b),
    weave(kept_a, kept_b),
    weave(zero + 1, 0),
    weave(zero + 1, 1),
    weave(zero, 1),
    weave(zero + 1, 1),
    None if label is None else label.astype(np.int32),
  )


def truncated_lengths(length_a, length_b, limit):
  """Lengths of two segments, the longer (of equal ones B) cut until they sum to `limit`."""
  most_a, most_b = limit - limit // 2, limit // 2
  a = np.where(
    length_b <= most_b, np.minimum(length_a, limit - length_b), np.minimum(length_a, most_a)
  )
  return a, np.minimum(length_b, limit - a)


def heads(key, tosses):
  """Heads among `tosses` [B] fair coins, int64 [B]; coin i is bit i % 32 of word i // 32."""
  row, word = rows_lib.ragged(np.zeros_like(tosses), (tosses + 31) // 32)
  random = hashing.bits((key[0][row], key[1][row]), word)
  left = np.minimum(tosses[row] - 32 * word, 32).astype(np.uint64)
  ones = (
    np.bitwise_count(random & ((np.uint64(1) << left) - np.uint64(1)).astype(np.uint32))
    if len(row)
    else np.zeros(0, np.int64)
  )
  return np.bincount(row, weights=ones, minlength=len(tosses)).astype(np.int64)


def _pair_warnings(text, skips, limit):
  """Warnings about text that makes the labels of pairs easy or wrong."""
  notes = []
  if text.num_documents == 1:
    notes.append(
      'there is a single document: random partners come from it too, and may be the true next ones.'
    )
  if skips:
    sizes = np.diff(text.sentence_starts[: 1 + min(text.num_sentences, _SAMPLE)])
    if (lost := sizes[sizes >= limit].sum() / max(sizes.sum(), 1)) > 0.01:
      notes.append(
        f'{lost:.1%} of the tokens are in sentences as long as a row: such a sentence is alone in '
        'its chunk, which makes no row.'
      )
  alone = float(np.mean(np.diff(text.document_starts) == 1)) if text.num_documents else 0.0
  if alone > _MOST_ALONE:
    fate = 'makes no row' if skips else 'gets a random partner (label 1)'
    notes.append(
      f'{alone:.0%} of the documents have a single sentence, which {fate}: '
      'are there blank lines between sentences, or the wrong config.corpus.splitter?'
    )
  return tuple(notes)
