import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from small_networks import with_targets

from bertzoo_jax import parts
from bertzoo_jax.batches import formats
from bertzoo_jax.batches import pipeline
from bertzoo_jax.batches import rows as rows_lib
from bertzoo_jax.common import errors
from bertzoo_jax.common import hashing
from bertzoo_jax.corpus import corpus
from bertzoo_jax.words import word_marks
from tests.batches import test_formats
from tests.found import call_part

SPECIAL = dict(pad=0, unk=1, cls=2, sep=3, mask=4, eod=5)
KEY = hashing.new_key(4)
lengths_of_text = st.lists(
  st.lists(st.integers(0, 25), max_size=8), min_size=1, max_size=30
).filter(lambda d: sum(map(sum, d)) > 260)


def _make(lengths, batch_size=4, length=24, reuse_length=8, special=SPECIAL, **fields):
  """(features of all rows, the stream as a list: token t is 10 + t, an end 5; borders of sentences
  in it).
  """
  split = test_formats._split(lengths, special)
  fields = dict(reuse_length=reuse_length, both_directions=True, random_rate=0.5) | fields
  form = call_part(formats, 'memory_segments', rows_lib.text_of(split), length, **fields)
  form = form.in_lanes(batch_size, 'eod' in special)
  rows = form.rows(KEY)
  words = np.array([0, *[word_marks.CONTINUES_WORD] * 2], np.int32)  # of three tokens
  mark = lambda positions, ids: words[positions % 3]
  features = form.assemble(KEY, rows, np.arange(len(rows)), split.gather, special, mark)
  stream, borders, token = [], [0], 10
  for document in filter(sum, lengths):
    for n in document:
      stream += range(token, token + n)
      token += n
      borders += [len(stream)] * (n > 0)
    if 'eod' in special:
      stream.append(5)
      borders[-1] += 1
  return features, stream, borders


def _rows(features, *more):
  """(ids, segments, features of these names) of each row."""
  return zip(*(features[name] for name in ('input_ids', 'token_type_ids', *more)))


def _as_read(stream, borders, direction):
  """(stream, borders) from left to right or from right to left."""
  if direction:
    return stream[::-1], {len(stream) - c for c in borders}
  return stream, set(borders)


def _parts(ids, segments, reuse_length):
  first = int(np.flatnonzero(segments == 1)[0]) - 1
  assert ids[[first, -2, -1]].tolist() == [3, 3, 2] and segments[-1] == 2
  assert (segments[: first + 1] == 0).all() and (segments[first + 1 : -1] == 1).all()
  return ids[:reuse_length].tolist(), ids[reuse_length:first].tolist(), ids[first + 1 : -2].tolist()


@settings(max_examples=60, deadline=None)
@given(lengths_of_text, st.booleans(), st.booleans())
def test_the_reused_parts_of_a_lane_are_its_text_without_gap_or_repetition(lengths, both, ends):
  special = SPECIAL if ends else {k: v for k, v in SPECIAL.items() if k != 'eod'}
  features, stream, _ = _make(lengths, both_directions=both, special=special)
  steps, lane_length = len(features['input_ids']) // 4, len(stream) // (2 if both else 4)
  for lane in range(4):
    read = np.concatenate([ids[:8] for ids in features['input_ids'][lane::4]]).tolist()
    text = stream[::-1] if both and lane % 2 else stream
    begin = (lane // 2 if both else lane) * lane_length
    begin = len(stream) - begin - lane_length if both and lane % 2 else begin
    assert any(read == text[begin + shift : begin + shift + 8 * steps] for shift in range(8))
    assert (features['direction'][lane::4] == (both and lane % 2)).all()
    assert features['resets'][lane::4].tolist() == [1] + [0] * (steps - 1)


@settings(max_examples=60, deadline=None)
@given(lengths_of_text)
def test_a_goes_on_from_the_reused_part_and_a_true_b_from_a_at_the_end_of_a_sentence(lengths):
  features, stream, borders = _make(lengths, random_rate=0.0)
  for ids, segments, direction in _rows(features, 'direction'):
    text, edge = _as_read(stream, borders, direction)
    where = {tuple(text[i : i + 5]): i for i in range(len(text))}
    reused, a, b = _parts(ids, segments, 8)
    assert len(a) + len(b) == 24 - 8 - 3 and a and b
    begin = where[tuple(reused[:5])] + 8
    assert text[begin : begin + len(a)] == a
    room = set(range(begin + 1, begin + 13)) & edge
    if room:  # a border within reach: B is what follows it
      full = min(e for e in edge if e >= begin + 13)
      follows = (c for c in room if text[c : c + len(b)] == b)
      assert any(len(a) == c - begin or len(a) < c - begin and c < full for c in follows)


def test_a_random_b_is_a_run_from_the_start_of_a_sentence_in_the_same_lane():
  features, stream, borders = _make([[5] * 30] * 8, random_rate=1.0)
  half, seen = len(stream) // 2, 0
  for row, (ids, segments, direction) in enumerate(_rows(features, 'direction')):
    text, edge = _as_read(stream, borders, direction)
    b = _parts(ids, segments, 8)[2]
    if len(b) < 5:
      continue  # it could stand anywhere
    begin, seen = next(i for i in range(len(text)) if text[i : i + len(b)] == b), seen + 1
    # the lane is the first half of the text as it is read
    first = (row % 4 // 2 == 0) != bool(direction)
    assert begin in edge and (begin < half if first else begin > half - 6)
  assert seen > 100


def test_a_pair_is_labelled_1_where_its_b_is_random_as_it_is_in_half_of_the_rows():
  make = lambda rate: _make([[6] * 50] * 40, both_directions=False, random_rate=rate)[0]
  features = make(0.5)
  labels = features['pair_labels']
  assert make(1)['pair_labels'].all() and not make(0)['pair_labels'].any()
  assert 0.4 < labels.mean() < 0.6
  near = 0
  for ids, segments, label in _rows(features, 'pair_labels'):
    _, a, b = _parts(ids, segments, 8)
    assert label or 0 < b[0] - a[0] <= 13, 'A and B have 13 places together'
    near += 0 < b[0] - a[0] < 20
  assert 0.45 < near / len(labels) < 0.58, 'half of the rows have a random B'


@pytest.mark.parametrize('both', [True, False])
def test_marks_go_with_their_tokens_and_no_word_goes_on_over_the_border_of_a_run(both):
  features = _make([[5] * 30] * 8, both_directions=both)[0]
  for ids, segments, marks, direction in _rows(features, 'units', 'direction'):
    b = int(np.flatnonzero(segments)[0])
    assert not marks[ids < 10].any()
    for run in (slice(0, 8), slice(8, b - 1), slice(b, len(ids) - 2)):
      # in the order of the text
      tokens, mine = (x[run][:: -1 if direction else 1] for x in (ids, marks))
      for i, token in enumerate(tokens):
        begins = i == 0 or tokens[i - 1] < 10
        assert token < 10 or mine[i] == (0 if begins else int((token - 10) % 3 > 0))


def test_too_little_text_for_the_lanes_is_refused_with_the_batch_that_would_do():
  with pytest.raises(errors.UserError, match='lower config.batch_size to at most 4'):
    _make([[5] * 14], batch_size=64)
  with pytest.raises(errors.UserError, match='reuse_length is 20'):
    _make([[5] * 100], reuse_length=20)


@pytest.mark.parametrize('masking', [parts.whole_word(), parts.ngram(), parts.span()])
def test_words_are_masked_whole_in_rows_read_from_right_to_left_too(masking):
  tokens = 10 + np.arange(6000)
  # words of three tokens, sentences of two words
  marks = np.where((tokens - 10) % 3, word_marks.CONTINUES_WORD, 0)
  starts = np.arange(0, 6001, 6), np.arange(0, 1001, 50)
  text = corpus.in_memory(tokens, *starts, 6010, SPECIAL, units=marks)
  how = dict(masking=masking, length=64, batch_size=48, seed=0)
  batch = pipeline.build(text, format=parts.memory_segments(reuse_length=24), **how).batch(0)
  names = 'masked_positions', 'masked_weights', 'direction'
  seen = 0
  for row, *rest in zip(with_targets(batch), *(batch[name] for name in names)):
    places, weights, direction = rest
    chosen = set(places[weights > 0].tolist())
    # the reused part ends at 24, and no word crosses that place
    for i in {*range(1, 62)} - {23, 24}:
      word = row[i - 1 : i + 2][:: -1 if direction else 1]
      whole = word.tolist() == list(range(word[0], word[0] + 3))
      if whole and word[0] >= 10 and (word[0] - 10) % 3 == 0:
        assert len(chosen & {i - 1, i, i + 1}) in (0, 3)
        seen += bool(direction)
  assert seen > 200
