import numpy as np
import pytest

from bertzoo_jax import parts
from bertzoo_jax.batches.masking import corruption
from bertzoo_jax.common import errors
from bertzoo_jax.words import similar
from bertzoo_jax.words.similar import words as words_lib
from tests.batches import masking_reference as reference
from tests.batches import masking_rows
from tests.batches.masking_rows import SPECIAL
from tests.batches.masking_rows import V

CORPUS = masking_rows.corpus()
SIMILAR = dict(corrupted='units', substitute='similar', rate=0.3)


def _run(section, layout, corpus=CORPUS):
  """(masked features, bool [B, L]: the predicted positions) of rows."""
  out = masking_rows.run(masking_rows.build(section, layout[0]['units'].shape[1], corpus), *layout)
  return out, masking_rows.chosen(out)


def _what(out, predicted, features):
  """[B, L]: 0 nothing to predict, 1 the mask token, 2 kept, 3 another token."""
  ids, before = out['input_ids'], features['input_ids']
  return predicted * np.where(ids == SPECIAL['mask'], 1, np.where(ids == before, 2, 3))


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
  what, groups = _what(*_run(section, (features, keys)), features), {}
  for r in range(1500):
    row, previous = reference.Row(features, keys, r), None
    for c in np.flatnonzero(what[r]).tolist():
      start = c if covers == 'pieces' else row.words[row.word_of[c]][0]
      if covers == 'spans':
        start = previous[1] if previous and previous[0] == c - 1 else c
      previous = c, start
      groups.setdefault((r, start), []).append(what[r, c])
  mixed = np.mean([len(set(g)) > 1 for g in groups.values()])
  # a random token may be the one that stood there
  assert mixed < (1e-9 if covers == 'pieces' else 0.02)
  first = np.array([max(set(g), key=g.count) for g in groups.values()])
  for kind, share in ((1, 0.8), (2, 0.1), (3, 0.1)):
    deviation = (share * (1 - share) / len(first)) ** 0.5
    assert abs((first == kind).mean() - share) < 5 * deviation + 2 / V, kind


def test_a_position_in_several_slots_is_replaced_once():
  rows = masking_rows.full(500, 128)
  section = parts.token(sampling='independent', rate=0.4, corruption=(0.85, 0.0, 0.15))
  out, predicted = _run(section, rows)
  what = _what(out, predicted, rows[0])
  assert out['masked_weights'].sum() > 1.1 * predicted.sum() and not (what == 3).any()
  assert abs((what[predicted] == 1).mean() - 0.85) < 0.01


def test_random_tokens_by_unigrams_are_as_frequent_as_in_the_corpus_and_each_is_drawn_alone():
  section = parts.span(corruption=(0.0, 1.0, 0.0), rate=0.4)
  out, predicted = _run(section, masking_rows.full(3000, 128))
  ids, both = out['input_ids'], predicted[:, 1:] & predicted[:, :-1]
  assert both.sum() > 3000 and (ids[:, 1:] == ids[:, :-1])[both].mean() < 0.01
  seen = np.bincount(ids[predicted], minlength=V)
  expected = CORPUS.unigrams / CORPUS.unigrams.sum() * seen.sum()
  some = expected > 0
  statistic = ((seen - expected)[some] ** 2 / expected[some]).sum()
  assert not seen[~some].any() and abs(statistic - some.sum()) < 5 * (2 * some.sum()) ** 0.5
  # the least and the largest bits
  ends = corruption.random_token(CORPUS, 'unigrams')(np.array([[0, 2**32 - 1]], np.uint32))
  assert ends.tolist() == [[104, V - 1]]


def test_borders_are_those_of_the_merged_span_and_only_inside_a_run_of_text():
  features, keys = masking_rows.some_layout(400, 128)
  out, predicted = _run(parts.span(rate=0.3, max_pair_targets=6), (features, keys))
  borders = 0
  for r in range(400):
    text = set(reference.Row(features, keys, r).text)
    for slot, position in enumerate(out['masked_positions'][r]):
      given = tuple(int(out[f'span_{k}'][r, slot]) for k in ('left', 'right', 'offset'))
      left = right = position
      while predicted[r, left] and left >= 0:
        left -= 1
      while right < 128 and predicted[r, right]:
        right += 1
      offset = position - left - 1
      learns = out['masked_weights'][r, slot] > 0 and {left, right} <= text and offset < 6
      assert given == ((left, right, offset) if learns else (0, 0, 0))
      borders += learns
  assert 500 < borders < out['masked_weights'].sum()


WORDS = np.array([[200, -1], [201, -1], [202, -1], [300, 301], [302, 303], [304, 305], [306, 307]])


def _table():
  """200 → 201, 202; 300 301 → 302 303; frequent: 202 of one piece, 304 305, 306 307 of two."""
  words = np.pad(WORDS, ((0, 0), (0, similar.PIECES - 2)), constant_values=-1).astype(np.int32)
  hashes = words_lib.hashes(words)
  order = np.argsort(hashes)
  row = {i: int(np.flatnonzero(order == i)[0]) for i in range(len(words))}
  near = np.full((len(words), similar.NEAREST), -1, np.int32)
  near[row[0], :2], near[row[3], 0] = (row[1], row[2]), row[4]
  frequent = np.array([row[2], row[5], row[6]], np.int32)
  starts = np.array([0, 0, 1] + [3] * (similar.PIECES - 1), np.int32)
  return similar.Table(words[order], hashes[order], near, frequent, starts)


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
  'section', [parts.whole_word(**SIMILAR), parts.ngram(order='left_to_right', **SIMILAR)]
)
def test_words_become_similar_ones_of_as_many_pieces_or_random_ones(section):
  features, keys = _similar_rows()
  out, predicted = _run(section, (features, keys), masking_rows.corpus(similar=_table()))
  seen = {}
  for r in range(len(keys)):
    row = reference.Row(features, keys, r)
    for a, b in row.words:
      if predicted[r, a]:
        assert predicted[r, a:b].all()
        seen.setdefault(tuple(row.ids[a:b]), []).append(tuple(out['input_ids'][r, a:b].tolist()))
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
    share = np.mean([s == value for s in seen[word]])
    deviation = (wanted * (1 - wanted) / len(seen[word])) ** 0.5
    assert abs(share - wanted) < 5 * deviation, (word, value)
  # no word of three pieces: random tokens
  assert len(set(seen[(703, 704, 705)])) > 0.8 * len(seen[(703, 704, 705)])
  assert not any(SPECIAL['mask'] in s for s in seen[(200,)])


REFUSED = [  # section, whether there is a table of similar words, words of the sentence
  (parts.whole_word(substitute='similar'), True, 'take corrupted=units'),
  (parts.ngram(substitute='similar', corrupted='units'), False, 'no table of similar words'),
  *((parts.ngram(weights=x), True, 'weights of 1, 2, 3') for x in ((), (0, 1))),
  *((parts.token(corruption=x), True, 'three shares that sum to 1') for x in (
    (0.8, 0.1), (0.8, 0.1, 0.2))),
]  # fmt: skip


def test_choices_that_do_not_fit_are_refused():
  for section, table, words in REFUSED:
    with pytest.raises(errors.UserError, match=words):
      corpus = masking_rows.corpus(similar=_table()) if table else CORPUS
      masking_rows.build(section, 128, corpus)
