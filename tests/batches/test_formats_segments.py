from unittest import mock

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertzoo_jax import parts
from bertzoo_jax.batches import pipeline
from bertzoo_jax.batches.formats import pairs
from bertzoo_jax.common import errors
from bertzoo_jax.common import hashing
from bertzoo_jax.corpus import corpus
from tests.batches import test_formats as formats

CLS, KEY, SEP, SPECIAL = formats.CLS, formats.KEY, formats.SEP, formats.SPECIAL
documents_of_lengths, some, FIELDS = formats.documents_of_lengths, formats.some, formats.FIELDS
_batch, _documents, _tokens = formats._batch, formats._documents, formats._tokens


def _halves(row):
  """(A, B) of [CLS] A [SEP] B [SEP]; B None where there is no second segment."""
  assert row[0] == CLS and row[-1] == SEP
  ends = [i for i, t in enumerate(row) if t == SEP]
  return row[1 : ends[0]], row[ends[0] + 1 : ends[1]] if len(ends) > 1 else None


@some
@given(documents_of_lengths, st.integers(5, 40))
def test_swapped_pairs_are_the_true_ones_in_the_other_order_and_labelled_1(lengths, length):
  true, _ = _batch(lengths, length, 'segment_pairs', pairs='none')
  sop, _ = _batch(lengths, length, 'segment_pairs', pairs='sop', lone_sentences='skip')
  assert len(true['input_ids']) == len(sop['input_ids'])
  for kept, swapped, label in zip(_tokens(true), _tokens(sop), sop['pair_labels']):
    a, b = _halves(kept)
    if len(kept) == length:
      continue  # cut, and the cut depends on the order
    follows = a[-1] + 1 == b[0]
    assert _halves(swapped) in ([(b, a)] if label and follows else [(a, b)])


@some
@given(documents_of_lengths, st.integers(5, 40), st.sampled_from(['nsp', 'sop', 'none']))
def test_lone_sentences_make_no_row_where_they_are_to_be_skipped(lengths, length, pairs):
  hypothesis.assume(any(len(d) > 1 for d in _documents(lengths)))
  fields = dict(pairs=pairs, lone_sentences='skip', negative_rate=0.0)
  features, _ = _batch(lengths, length, 'segment_pairs', **fields)
  for row in _tokens(features):
    a, b = _halves(row)
    assert len(row) == length or a[-1] + 1 == b[0]  # true, if not cut between the two
  assert pairs == 'none' or not features['pair_labels'].any()


def test_swapping_falls_on_half_of_the_rows():
  features, _ = _batch([[5] * 60] * 300, 40, 'segment_pairs', pairs='sop', lone_sentences='skip')
  labels = features['pair_labels']
  assert abs(labels.mean() - 0.5) < 4 * (0.25 / len(labels)) ** 0.5


def _pooled_literally(documents, length, pool):
  """Chunk by chunk, then pool by pool, the draws being the format's own."""
  draw, limit, chunks, sentence = formats._draw, length - 3, [], 0
  for document in documents:
    while document:
      ends = (n for n in range(1, len(document)) if sum(map(len, document[:n])) >= limit)
      size = next(ends, len(document))
      cut = 1 + int(hashing.below(np.array([draw(hashing.CUT, sentence)]), max(size - 1, 1))[0])
      chunk, document = document[:size], document[size:]
      segments = [sum(s, []) for s in (chunk[:cut], chunk[cut:]) if s]
      chunks.append((sentence, segments))
      sentence += size
  rows = []
  for begin in range(0, len(chunks), pool):
    members = range(begin, min(begin + pool, len(chunks)))
    circle = sorted(members, key=lambda row: draw(hashing.DOCUMENT, row))
    for row in members:
      (first, own), others = chunks[row], chunks[circle[circle.index(row) + 1 - len(circle)]][1]
      coin = draw(hashing.COIN, first) < hashing.threshold(0.5)
      false = len(own) == 1 or coin and len(members) > 1
      a, b = own if not false else (own[len(own[0]) > limit // 2 and len(own) > 1], None)
      b = b or others[len(others[0]) > limit - len(a) and len(others) > 1]
      rows.append((*formats._truncate_literally(a, b, limit, first), int(false)))
  return rows


@some
@given(documents_of_lengths, st.integers(5, 24), st.sampled_from([1, 2, 5, 1000]))
def test_a_false_half_from_a_pool_is_a_segment_of_the_row_that_is_next_in_it(lengths, length, pool):
  with mock.patch.object(pairs, '_POOL', pool):
    fields = dict(negatives='pool', short_rate=0.0, negative_rate=0.5)
    features, _ = _batch(lengths, length, 'segment_pairs', **fields)
  expected = _pooled_literally(_documents(lengths), length, pool)
  assert [_halves(row) for row in _tokens(features)] == [(a, b) for a, b, _ in expected]
  assert features['pair_labels'].tolist() == [label for *_, label in expected]


def _adjacent_literally(documents, length, single_rate, short_rate):
  """Sentence by sentence, the draws being the format's own; sentences are numbered over all
  documents.
  """
  draw = lambda purpose: int(hashing.bits(hashing.fold(KEY, purpose), np.array([number]))[0])
  rows, number = [], 0
  for document in documents:
    place = 0
    while place < len(document):
      target = length
      if draw(hashing.SHORT) < hashing.threshold(short_rate):
        target = 5 + int(hashing.below(np.array([draw(hashing.TARGET)], np.uint32), length - 4)[0])
      chunk = []
      while place < len(document) and sum(map(len, chunk)) < target:
        chunk.append(document[place])
        place += 1
      half = 100_000 if draw(hashing.COIN) < hashing.threshold(single_rate) else (target - 3) // 2
      a, b, may = [], [], draw(hashing.CUT) < hashing.threshold(0.5)
      for sentence in chunk:
        if not b and (not a or len(a) + len(sentence) < half or len(a) < half and may):
          a += sentence
        else:
          b += sentence
      a = a[: length - 2]
      b = b[: max(0, length - len(a) - 3)]
      rows.append([CLS, *a, SEP] + ([*b, SEP] if b else []))
      number += len(chunk)
  return rows


@some
@given(documents_of_lengths, st.integers(5, 40), formats.rates, formats.rates)
def test_adjacent_segments_are_those_of_the_literal_loop(lengths, length, single_rate, short_rate):
  rates = dict(single_rate=single_rate, short_rate=short_rate)
  features, form = _batch(lengths, length, 'adjacent_segments', **rates)
  rows = _tokens(features)
  assert rows == _adjacent_literally(_documents(lengths), length, **rates)
  assert not form.has_pairs and form.every_epoch
  for row, segments in zip(rows, features['token_type_ids']):
    a, _ = _halves(row)
    second = [1] * (len(row) - len(a) - 2)
    assert segments[: len(row)].tolist() == [0] * (len(a) + 2) + second


@some
@given(documents_of_lengths, st.integers(3, 40))
def test_token_blocks_are_the_stream_cut_every_so_often(lengths, length):
  features, _ = _batch(lengths, length, 'token_blocks')
  stream, size = list(range(10, 10 + sum(map(sum, lengths)))), length - 2
  blocks = [stream[i : i + size] for i in range(0, len(stream), size)]
  assert _tokens(features) == [[CLS, *block, SEP] for block in blocks]


@some
@given(documents_of_lengths, st.integers(3, 20), st.booleans())
def test_long_sentences_are_dropped_and_nothing_else(lengths, length, separators):
  short = [t for d in _documents(lengths) for s in d if len(s) <= length - 2 for t in s]
  hypothesis.assume(short)
  fields = dict(long_sentences='drop', sentence_separators=separators)
  features, _ = _batch(lengths, length, 'doc_sentences', **fields)
  assert sorted(t for row in _tokens(features) for t in row if t >= 10) == sorted(short)


def test_a_corpus_without_sentences_is_refused_by_formats_that_need_them():
  text = corpus.in_memory(np.full(200, 9), range(0, 201, 10), range(0, 21, 5), 20, SPECIAL)
  text.manifest['splitter'] = 'none'
  how = dict(masking=parts.token(), length=16, batch_size=2, seed=0)
  build = lambda name: pipeline.build(text, format=dict(FIELDS[name], name=name), **how)
  for name in ('segment_pairs', 'sentence_pairs', 'adjacent_segments'):
    with pytest.raises(errors.UserError, match='not split into sentences'):
      build(name)
  build('full_sentences')
