"""Each format against a literal, sentence-by-sentence reading of its definition."""

import numpy as np
import pytest
from hypothesis import example
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from bertzoo_jax import parts
from bertzoo_jax.batches import formats
from bertzoo_jax.batches import rows as rows_lib
from bertzoo_jax.batches.formats import pairs
from bertzoo_jax.common import errors
from bertzoo_jax.common import hashing
from bertzoo_jax.corpus import corpus
from bertzoo_jax.training import data
from tests import commands
from tests import found
from tests.found import call_part

# Every format but that of lanes (tests/batches/test_memory.py), with the usual values of its
# fields.
NAMES = [name for name in parts.SECTIONS['format'] if name != 'memory_segments']
FIELDS = {name: found.fields('format', name) for name in NAMES}
SPECIAL = dict(pad=0, unk=1, cls=2, sep=3, mask=4)
CLS, SEP = SPECIAL['cls'], SPECIAL['sep']
KEY = hashing.new_key(11)

# Sentence lengths of each document: empty documents, empty sentences and sentences longer than a
# row included.
documents_of_lengths = st.lists(
  st.lists(st.integers(0, 25), max_size=12), min_size=1, max_size=8
).filter(lambda d: sum(map(sum, d)) > 0)
rates, some = st.sampled_from([0.0, 0.3, 0.5, 1.0]), settings(max_examples=120, deadline=None)


def _ends(sizes):
  return np.append(0, np.cumsum(sizes)).astype(np.int64)


def _split(lengths, special=SPECIAL):
  """A corpus whose token t is 10 + t, so that every token tells where it came from."""
  sentences = _ends([n for document in lengths for n in document])
  tokens, documents = 10 + np.arange(sentences[-1]), _ends([len(d) for d in lengths])
  return corpus.in_memory(tokens, sentences, documents, 10 + len(tokens), special).splits['train']


def _documents(lengths):
  """The same as lists of lists of tokens, without what is empty."""
  token = iter(range(10, 10**9))
  documents = [[[next(token) for _ in range(n)] for n in document if n] for document in lengths]
  return [d for d in documents if d]


def _batch(lengths, length, name, key=KEY, **fields):
  """All rows of a format, in the order of its list: (features, format)."""
  split = _split(lengths)
  form = call_part(formats, name, rows_lib.text_of(split), length, **(FIELDS[name] | fields))
  rows = form.rows(key)
  if not len(rows):  # no chunk is left: the pipeline refuses it
    none = np.zeros((0, length), np.int32)
    return {'input_ids': none, 'segment_ids': none, 'pair_labels': none[:, 0]}, form
  spans = form.spans(key, rows, np.arange(len(rows)))
  features = rows_lib.assemble(spans, len(rows), length, split.gather, SPECIAL, form.packed)
  checked = {k: x for k, x in features.items() if k in ('segment_ids', 'position_ids')}
  data.check_ids(checked, 0, name)
  return features, form


def _tokens(features):
  """The rows without padding, as lists."""
  return [r[p > 0].tolist() for r, p in zip(features['input_ids'], features['segment_ids'])]


def _full_sentences_literally(documents, length, document_separator, sentence_separators):
  after, rows, row = [SEP] * sentence_separators, [], None
  closing = [SEP] * (not sentence_separators)
  for document in documents:
    cut = [s[i : i + length - 2] for s in document for i in range(0, len(s), length - 2)]
    for i, sentence in enumerate(cut):
      more = [SEP] * (i == 0 and document_separator) + sentence + after
      if row is not None and len(row + more + closing) <= length:
        row += more
      else:
        rows += [row + closing] if row is not None else []
        row = [CLS] + sentence + after
  return [*rows, row + closing]


@some
@given(documents_of_lengths, st.integers(3, 20), st.tuples(st.booleans(), st.booleans()))
def test_full_sentences_are_packed_greedily_over_document_borders(lengths, length, separators):
  fields = dict(zip(('document_separator', 'sentence_separators'), separators))
  features, _ = _batch(lengths, length, 'full_sentences', **fields)
  expected = _full_sentences_literally(_documents(lengths), length, *separators)
  assert _tokens(features) == expected
  assert (features['token_type_ids'] == 0).all()
  assert set(np.unique(features['segment_ids'])) <= {0, 1}
  assert ((features['input_ids'] == 0) == (features['segment_ids'] == 0)).all()


def _doc_sentences_literally(documents, length, max_pieces, sentence_separators):
  alone, tails = [], []
  for document in documents:
    segments = _full_sentences_literally([document], length, False, sentence_separators)
    alone += [[p] for p in segments[:-1]]
    tails.append(segments[-1])
  rows = []
  for tail in tails:
    if rows and len(rows[-1]) < max_pieces and sum(map(len, rows[-1])) + len(tail) <= length:
      rows[-1].append(tail)
    else:
      rows.append([tail])
  return alone + rows


@some
@given(documents_of_lengths, st.integers(3, 40), st.tuples(st.integers(1, 4), st.booleans()))
def test_doc_sentences_never_cross_documents_and_pack_their_ends(lengths, length, choices):
  fields = dict(zip(('max_pieces', 'sentence_separators'), choices))
  features, _ = _batch(lengths, length, 'doc_sentences', **fields)
  expected = _doc_sentences_literally(_documents(lengths), length, *choices)
  assert _tokens(features) == [[t for segment in row for t in segment] for row in expected]
  for row, segments in enumerate(expected):
    pieces = [i + 1 for i, segment in enumerate(segments) for _ in segment]
    places = [i for segment in segments for i in range(len(segment))]
    assert features['segment_ids'][row, : len(pieces)].tolist() == pieces
    assert features['position_ids'][row, : len(places)].tolist() == places


def _draw(purpose, counter, key=KEY):
  return hashing.bits(hashing.fold(key, purpose), np.array([counter]))[0]


def _other_document(first, document, num_documents):
  for t in range(10):
    key = hashing.fold(hashing.fold(KEY, hashing.DOCUMENT), t)
    other = int(hashing.below(hashing.bits(key, np.array([first])), num_documents)[0])
    if other != document:
      break
  return other


def _coin_tosses(purpose, first):
  """The bits of a row's coins, in order."""
  key = hashing.fold(hashing.fold(KEY, purpose), np.array([first]))
  for word in range(10**6):
    bits = int(hashing.bits(key, np.array([word]))[0])
    yield from ((bits >> i) & 1 for i in range(32))


def _truncate_literally(a, b, limit, first):
  """Tokens are lost one at a time, by the longer segment, of equals by B, at the front where the
  coin shows 1.
  """
  a, b = list(a), list(b)
  coins_a, coins_b = _coin_tosses(hashing.TRIM_A, first), _coin_tosses(hashing.TRIM_B, first)
  while len(a) + len(b) > limit:
    longer, coins = (a, coins_a) if len(a) > len(b) else (b, coins_b)
    longer.pop(0 if next(coins) else -1)
  return a, b


def _segment_pairs_literally(documents, length, short_rate, negative_rate):
  """create_pretraining_data.py's walk, with the format's draws (each document visit, and each chunk
  by its first sentence).
  """
  rows, first_of_document = [], np.append(0, np.cumsum([len(d) for d in documents]))
  limit = length - 3
  for d, document in enumerate(documents):
    target = limit
    if _draw(hashing.SHORT, d) < hashing.threshold(short_rate):
      target = 2 + int(hashing.below(np.array([_draw(hashing.TARGET, d)]), limit - 1)[0])
    i, chunk = 0, []
    while i < len(document):
      chunk.append(document[i])
      if i == len(document) - 1 or sum(map(len, chunk)) >= target:
        first = int(first_of_document[d]) + i - len(chunk) + 1
        cut = np.array([_draw(hashing.CUT, first)])
        a_end = 1 + int(hashing.below(cut, max(len(chunk) - 1, 1))[0])
        a = [t for s in chunk[:a_end] for t in s]
        random = len(chunk) == 1 or _draw(hashing.COIN, first) < hashing.threshold(negative_rate)
        if random:
          other = documents[_other_document(first, d, len(documents))]
          draw = np.array([_draw(hashing.SENTENCE, first)])
          b = []
          for sentence in other[int(hashing.below(draw, len(other))[0]) :]:
            b += sentence
            if len(b) >= target - len(a):
              break
          i -= len(chunk) - a_end
        else:
          b = [t for s in chunk[a_end:] for t in s]
        rows.append((*_truncate_literally(a, b, limit, first), int(random)))
        chunk = []
      i += 1
  return rows


@some
@example([[1, 1, 1, 1]], 7, 0.0, 1.0)  # the other document is the only one
@given(documents_of_lengths, st.integers(5, 24), rates, rates)
def test_segment_pairs_are_those_of_the_literal_walk(lengths, length, short_rate, negative_rate):
  fields = dict(short_rate=short_rate, negative_rate=negative_rate)
  features, _ = _batch(lengths, length, 'segment_pairs', **fields)
  expected = _segment_pairs_literally(_documents(lengths), length, **fields)
  assert _tokens(features) == [[CLS, *a, SEP, *b, SEP] for a, b, _ in expected]
  assert features['pair_labels'].tolist() == [label for *_, label in expected]
  for row, (a, b, _) in enumerate(expected):
    used = len(a) + len(b) + 3
    segments = [0] * (len(a) + 2) + [1] * (len(b) + 1) + [0] * (length - used)
    assert features['token_type_ids'][row].tolist() == segments
    assert a and b and used <= length


def test_random_partners_come_from_other_documents_uniformly():
  how = dict(short_rate=0.0, negative_rate=1.0)
  features, _ = _batch([[5] * 60] * 20, 13, 'segment_pairs', **how)
  document = lambda token: (token - 10) // 300
  pairs = [(document(r[1]), document(r[r.index(SEP) + 1])) for r in _tokens(features)]
  own, other = np.array(pairs).T
  assert (own != other).all()
  counts = np.bincount((other - own) % 20, minlength=20)[1:]
  assert counts.min() > 0.6 * counts.mean() and counts.max() < 1.4 * counts.mean()


def test_a_single_document_pairs_with_itself_and_says_so():
  for name in ('segment_pairs', 'sentence_pairs'):
    features, form = _batch([[4] * 50], 20, name, negative_rate=0.5)
    assert len(form.warnings) == 1 and 'single document' in form.warnings[0]
    assert 0 < features['pair_labels'].mean() < 1


@some
@given(documents_of_lengths, st.integers(5, 24), st.sampled_from([0.0, 0.5, 1.0]))
def test_sentence_pairs_are_a_sentence_and_the_next_or_one_of_another_document(
  lengths, length, rate
):
  features, _ = _batch(lengths, length, 'sentence_pairs', negative_rate=rate)
  documents, rows, first = _documents(lengths), [], 0
  for d, document in enumerate(documents):
    i = 0
    while i < len(document):
      random = i == len(document) - 1 or _draw(hashing.COIN, first + i) < hashing.threshold(rate)
      b = None if random else document[i + 1]
      if random:
        other = documents[_other_document(first + i, d, len(documents))]
        b = other[int(hashing.below(np.array([_draw(hashing.SENTENCE, first + i)]), len(other))[0])]
      rows.append((*_truncate_literally(document[i], b, length - 3, first + i), int(random)))
      i += 1 if random else 2
    first += len(document)
  assert _tokens(features) == [[CLS, *a, SEP, *b, SEP] for a, b, _ in rows]
  assert features['pair_labels'].tolist() == [label for *_, label in rows]


def test_tokens_are_lost_at_the_front_binomially():
  key = hashing.fold(KEY, np.arange(20_000))
  for tosses in (1, 31, 32, 33, 100):
    heads = pairs.heads(key, np.full(20_000, tosses))
    assert abs(heads.mean() - tosses / 2) < 5 * (tosses / 4 / 20_000) ** 0.5
    assert abs(heads.var() - tosses / 4) < 0.05 * tosses / 4
  assert pairs.heads(key, np.zeros(20_000, np.int64)).sum() == 0


@pytest.mark.parametrize('name', FIELDS)
def test_the_walk_is_the_same_in_chunks_of_any_size(name, monkeypatch):
  lengths = np.random.default_rng(1).integers(1, 12, (30, 20)).tolist()
  whole, form = _batch(lengths, 32, name)
  for chunk in (1, 7, 64):
    monkeypatch.setattr(rows_lib, '_CHUNK', chunk)
    chunked, _ = _batch(lengths, 32, name)
    np.testing.assert_array_equal(whole['input_ids'], chunked['input_ids'])
  other, _ = _batch(lengths, 32, name, key=hashing.new_key(12))
  # pairs are drawn anew in every epoch
  assert (_tokens(whole) != _tokens(other)) == form.every_epoch
  with pytest.raises(errors.UserError, match='config.length is 2'):
    _batch([[5, 5]], 2, name)


_INDEX = """
import resource, sys, time
import numpy as np
from bertzoo_jax.batches import formats, rows
from tests.found import call_part
from bertzoo_jax.common import hashing
name, fields, documents, sentences = sys.argv[1], eval(sys.argv[2]), int(sys.argv[3]), 50_000_000
draw = np.random.default_rng(0)
starts = np.zeros(sentences + 1, np.int64)
np.cumsum(draw.integers(3, 38, sentences, dtype=np.int16), out=starts[1:])
borders = np.append(np.arange(documents, dtype=np.int64) * (sentences // documents), sentences)
began = time.perf_counter()
text = rows.text_of(type('Split', (), dict(sentence_starts=starts, document_starts=borders)))
rows = call_part(formats, name, text, 128, **fields).rows(hashing.new_key(0))
kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(len(rows), time.perf_counter() - began, kilobytes / 2**20)
"""


@pytest.mark.slow
@pytest.mark.parametrize('documents', [1, 2_500_000, 25_000_000])
@pytest.mark.parametrize('name', FIELDS)
def test_fifty_million_sentences_are_indexed_in_20_seconds_and_2_gigabytes(name, documents):
  done = commands.run('-c', _INDEX, name, repr(FIELDS[name]), str(documents), check=True)
  rows, seconds, gigabytes = map(float, done.stdout.split())
  print(f'{name}, {documents} documents: {rows:.0f} rows, {seconds:.1f} s, {gigabytes:.2f} GiB')
  assert rows > 5e6 and seconds < 20 and gigabytes < 2
