"""Replacements of predicted tokens: shares per piece, unit and span, by frequency, similar words;
borders of spans.
"""

import numpy as np
import pytest

from bertzoo_jax import parts
from bertzoo_jax.batches.masking import corruption
from bertzoo_jax.common import errors
from bertzoo_jax.words import similar
from tests.batches import masking_reference as reference
from tests.batches import masking_rows
from tests.batches.masking_rows import SPECIAL
from tests.batches.masking_rows import V

CORPUS = masking_rows.corpus()


def _build(section, length=128, corpus=CORPUS):
  return masking_rows.build(section, length, corpus)


def _what(out, features):
  """[B, L]: 0 nothing to predict, 1 the mask token, 2 kept, 3 another token."""
  ids, before = out['input_ids'], features['input_ids']
  return np.where(
    masking_rows.chosen(out), np.where(ids == SPECIAL['mask'], 1, np.where(ids == before, 2, 3)), 0
  )


SECTIONS = {
  'words by pieces': (parts.whole_word(), 'pieces'),
  'words by units': (parts.whole_word(corrupted='units'), 'units'),
  'ngrams by units': (parts.ngram(corrupted='units'), 'units'),
  'ngrams by pieces': (parts.ngram(), 'pieces'),
  'spans': (parts.span(), 'spans'),
  'spans by words': (parts.span(corrupted='units'), 'units'),
  'windows': (parts.ngram_windows(), 'pieces'),
}


@pytest.mark.parametrize('name', SECTIONS)
def test_tokens_of_one_draw_become_the_same_with_the_declared_shares(name):
  section, covers = SECTIONS[name]
  features, keys = masking_rows.full(1500, 128)
  out = masking_rows.run(_build(section), features, keys)
  what, groups = _what(out, features), []
  for r in range(1500):
    row = reference.Row(features, keys, r)
    positions = np.flatnonzero(what[r]).tolist()
    starts = {c: c if covers == 'pieces' else row.words[row.word_of[c]][0] for c in positions}
    if covers == 'spans':
      for c in positions:
        starts[c] = starts.get(c - 1, c)
    of = {}
    for c in positions:
      of.setdefault(starts[c], []).append(what[r, c])
    groups += of.values()
  mixed = np.mean([len(set(g)) > 1 for g in groups])
  # a random token may be the one that stood there
  assert mixed < (1e-9 if covers == 'pieces' else 0.02)
  first = np.array([max(set(g), key=g.count) for g in groups])
  n = len(first)
  for kind, share in ((1, 0.8), (2, 0.1), (3, 0.1)):
    assert abs((first == kind).mean() - share) < 5 * (share * (1 - share) / n) ** 0.5 + 2 / V, kind


def test_a_position_in_several_slots_is_replaced_once():
  features, keys = masking_rows.full(500, 128)
  section = parts.token(sampling='independent', rate=0.4, corruption=(0.85, 0.0, 0.15))
  out = masking_rows.run(_build(section), features, keys)
  what, found = _what(out, features), masking_rows.chosen(out)
  assert out['masked_weights'].sum() > 1.1 * found.sum() and not (what == 3).any()
  assert abs((what[found] == 1).mean() - 0.85) < 0.01


def test_random_tokens_by_unigrams_are_as_frequent_as_in_the_corpus_and_each_is_drawn_alone():
  features, keys = masking_rows.full(3000, 128)
  out = masking_rows.run(_build(parts.span(corruption=(0.0, 1.0, 0.0), rate=0.4)), features, keys)
  ids, found = out['input_ids'], masking_rows.chosen(out)
  both = found[:, 1:] & found[:, :-1]
  assert both.sum() > 3000 and (ids[:, 1:] == ids[:, :-1])[both].mean() < 0.01
  seen = np.bincount(ids[found], minlength=V)
  share = CORPUS.unigrams / CORPUS.unigrams.sum()
  assert seen[share == 0].sum() == 0
  expected = share * seen.sum()
  some = expected > 0
  statistic = ((seen - expected)[some] ** 2 / expected[some]).sum()
  assert abs(statistic - some.sum()) < 5 * (2 * some.sum()) ** 0.5


def test_the_least_and_the_largest_bits_are_the_first_and_the_last_token_that_occurs():
  ends = corruption.random_token(CORPUS, 'unigrams')(np.array([[0, 2**32 - 1]], np.uint32))
  assert ends.tolist() == [[104, V - 1]]


def test_borders_are_those_of_the_merged_span_and_only_inside_a_run_of_text():
  features, keys = masking_rows.some_layout(400, 128)
  out = masking_rows.run(_build(parts.span(rate=0.3, max_pair_targets=6)), features, keys)
  found, borders = masking_rows.chosen(out), 0
  for r in range(400):
    text = set(reference.Row(features, keys, r).text)
    for slot in range(out['masked_positions'].shape[1]):
      position = out['masked_positions'][r, slot]
      given = tuple(int(out[f'span_{k}'][r, slot]) for k in ('left', 'right', 'offset'))
      left = right = position
      while found[r, left] and left >= 0:
        left -= 1
      while right < 128 and found[r, right]:
        right += 1
      learns = (
        out['masked_weights'][r, slot] > 0
        and left in text
        and right in text
        and position - left - 1 < 6
      )
      assert given == ((left, right, position - left - 1) if learns else (0, 0, 0))
      assert (given[1] > 0) == learns
      borders += learns
  assert 500 < borders < out['masked_weights'].sum()


# --- similar words ---


WORDS = np.array([[200, -1], [201, -1], [202, -1], [300, 301], [302, 303], [304, 305], [306, 307]])


def _table():
  """200 → 201, 202; 300 301 → 302 303; frequent: 202 of one piece, 304 305, 306 307 of two."""
  from bertzoo_jax.words.similar import words as words_lib

  words = np.pad(WORDS, ((0, 0), (0, similar.PIECES - 2)), constant_values=-1).astype(np.int32)
  hashes = words_lib.hashes(words)
  order = np.argsort(hashes)
  row = {i: int(np.flatnonzero(order == i)[0]) for i in range(len(words))}
  near = np.full((len(words), similar.NEAREST), -1, np.int32)
  near[row[0], :2], near[row[3], 0] = (row[1], row[2]), row[4]
  frequent = np.array([row[2], row[5], row[6]], np.int32)
  return similar.Table(
    words[order],
    hashes[order],
    near,
    frequent,
    np.array([0, 0, 1] + [3] * (similar.PIECES - 1), np.int32),
  )


def _similar_rows(rows=1200, length=62):
  """Words 200 | 300 301 | 200 … with now and then an unknown word of one, two or three pieces (from
  700 on).
  """
  features, keys = masking_rows.full(rows, length)
  draw, words = np.random.default_rng(0), [(200,), (300, 301), (700,), (701, 702), (703, 704, 705)]
  for r in range(rows):
    tokens, marks = [], []
    while len(tokens) < length - 4:
      word = words[draw.integers(len(words))]
      tokens += word
      marks += [0] + [1] * (len(word) - 1)
    tokens, marks = (tokens + [200] * 4)[: length - 2], (marks + [0] * 4)[: length - 2]
    features['input_ids'][r, 1:-1], features['units'][r, 1:-1] = tokens, marks
  return features, keys


@pytest.mark.parametrize(
  'section',
  [
    parts.whole_word(corrupted='units', substitute='similar', rate=0.3),
    parts.ngram(corrupted='units', substitute='similar', order='left_to_right', rate=0.3),
  ],
  ids=['word', 'ngram'],
)
def test_words_become_similar_ones_of_as_many_pieces_or_random_ones(section):
  features, keys = _similar_rows()
  out = masking_rows.run(_build(section, 62, masking_rows.corpus(similar=_table())), features, keys)
  found, seen = masking_rows.chosen(out), {}
  for r in range(len(keys)):
    row = reference.Row(features, keys, r)
    for a, b in row.words:
      if found[r, a]:
        assert found[r, a:b].all()
        seen.setdefault(tuple(row.ids[a:b]), []).append(tuple(out['input_ids'][r, a:b].tolist()))
  share = lambda word, *values: np.mean([s in values for s in seen[word]])
  deviation = lambda word, p: 5 * (p * (1 - p) / len(seen[word])) ** 0.5
  for word, value, wanted in (
    ((200,), (201,), 0.4),
    ((200,), (202,), 0.5),
    ((200,), (200,), 0.1),  # 202 is also the random word of one piece
    ((300, 301), (302, 303), 0.8),
    ((300, 301), (304, 305), 0.05),
    ((300, 301), (300, 301), 0.1),
    ((700,), (202,), 0.9),
    ((701, 702), (304, 305), 0.45),
    ((701, 702), (306, 307), 0.45),
  ):
    assert abs(share(word, value) - wanted) < deviation(word, wanted), (word, value)
  # no word of three pieces: random tokens
  assert len(set(seen[(703, 704, 705)])) > 0.8 * len(seen[(703, 704, 705)])
  assert not any(SPECIAL['mask'] in s for s in seen[(200,)])


def test_similar_words_need_whole_units_and_a_table():
  with pytest.raises(errors.UserError, match='take corrupted=units'):
    _build(parts.whole_word(substitute='similar'), corpus=masking_rows.corpus(similar=_table()))
  with pytest.raises(errors.UserError, match='no table of similar words'):
    _build(parts.ngram(substitute='similar', corrupted='units'))


@pytest.mark.parametrize('weights', [(), (0, 1)])
def test_weights_without_single_words_are_refused(weights):
  with pytest.raises(errors.UserError, match='weights of 1, 2, 3'):
    _build(parts.ngram(weights=weights))
