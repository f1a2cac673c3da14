"""Masked tokens of made rows: their neighbours, rows with one gap, and sentences."""

import types

import numpy as np
import pytest

from bertzoo_jax.corpus import splits
from bertzoo_jax.evaluate import bigrams
from bertzoo_jax.evaluate import masked

SPECIAL = dict(pad=0, unk=1, cls=2, sep=3, mask=4)
WORDS = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'the', 'river', '##s', ',', 'ran', 'deep']
THE, RIVER, S, COMMA, RAN, DEEP = range(5, 11)


def tokenizer():
  return types.SimpleNamespace(
    word_starts=np.array([not w.startswith('##') for w in WORDS]),
    decode=lambda ids: ' '.join(WORDS[i] for i in ids).replace(' ##', ''),
  )


def masked_text(ids, positions, targets, weights=None):
  """A Masked of one batch."""
  weights = np.ones(np.shape(targets)) if weights is None else np.array(weights, np.float32)
  names = 'input_ids', 'masked_positions', 'masked_targets', 'masked_weights'
  arrays = map(np.array, (ids, positions, targets, weights))
  return masked.Masked([dict(zip(names, arrays))], SPECIAL)


@pytest.fixture
def text():
  """Row 0: the [MASK] ##s [MASK] ran deep, with 'river' and ',' to predict; row 1: 'ran' behind a
  random word; row 2 is padding.
  """
  mask = SPECIAL['mask']
  ids = [[2, THE, mask, S, mask, RAN, DEEP, 3], [2, THE, RIVER, DEEP, DEEP, 3, 0, 0], [0] * 8]
  targets, weights = [[RIVER, COMMA], [RAN, 0], [0, 0]], [[1, 1], [1, 0], [0, 0]]
  return masked_text(ids, [[2, 4], [3, 0], [0, 0]], targets, weights)


def test_rows_stand_as_in_the_text_and_neighbours_are_no_special_tokens(text):
  assert text.targets.tolist() == [RIVER, COMMA, RAN]
  assert text.originals[0].tolist() == [2, THE, RIVER, S, COMMA, RAN, DEEP, 3]
  assert text.originals[1].tolist() == [2, THE, RIVER, RAN, DEEP, 3, 0, 0]
  left, right = text.neighbours(text.originals)
  assert left.tolist() == [THE, S, RIVER] and right.tolist() == [S, RAN, DEEP]
  moved = {**text.rows, 'masked_positions': np.array([[1, 6], [7, 0], [0, 0]])}
  left, right = (alone := masked.Masked([moved], SPECIAL)).neighbours(alone.originals)
  assert left[0] == -1 and right[1:].tolist() == [-1, -1]
  seen = text.rows['input_ids'].copy()
  seen[0, 3], seen[1, 4] = SPECIAL['mask'], COMMA
  left, right = text.neighbours(seen)
  assert left.tolist() == [THE, -1, RIVER] and right.tolist() == [-1, RAN, COMMA]
  assert masked.sentence(text, 0, tokenizer()) == 'the ____ ##s , ran deep'
  assert masked.sentence(text, 2, tokenizer()) == 'the river ____ deep'


def test_a_row_of_its_own_has_one_gap(text):
  batch = text.alone(np.array([1, 2]))
  mask = SPECIAL['mask']
  assert batch['input_ids'].tolist() == [
    [2, THE, RIVER, S, mask, RAN, DEEP, 3],
    [2, THE, RIVER, DEEP, DEEP, 3, 0, 0],  # as the masking left it, with another word
  ]
  assert batch['masked_positions'].tolist() == [[4, 0], [3, 0]]
  assert batch['masked_targets'].tolist() == [[COMMA, 0], [RAN, 0]]
  assert batch['masked_weights'].tolist() == [[1, 0], [1, 0]]


def test_whole_words_behind_a_mask_are_drawn_and_where_there_are_none_others(text):
  # 'river' goes on with '##s', ',' is no word, 'ran' has no mask
  assert masked.drawn(text, tokenizer(), 10, draw=0).tolist() == [2]
  whole = tokenizer()
  whole.word_starts[S] = True
  assert masked.drawn(text, whole, 10, draw=0).tolist() == [0]


def test_no_row_has_two_gaps_and_a_seed_draws_the_same_ones():
  rng = np.random.default_rng(0)
  rows = np.full((50, 12), RIVER)
  rows[:, [0, -1]] = SPECIAL['cls'], SPECIAL['sep']
  positions = np.array([rng.choice(np.arange(2, 10), 3, replace=False) for _ in rows])
  np.put_along_axis(rows, positions, SPECIAL['mask'], axis=1)
  text = masked_text(rows, positions, np.full((50, 3), RIVER))
  drawn = [masked.drawn(text, tokenizer(), 10, draw) for draw in (0, 0, 1)]
  assert len(set(text.row[drawn[0]])) == 10
  assert (drawn[0] == drawn[1]).all() and (drawn[0] != drawn[2]).any()


def test_a_long_sentence_is_cut_at_words_on_both_sides():
  text = masked_text([[2, *[RIVER] * 60, 3]], [[30]], [[RAN]])
  said = masked.sentence(text, 0, tokenizer())
  assert len(said) < 100 and said.startswith('… river') and said.endswith('river …')
  assert set(said.split()) == {'…', 'river', '____'}


VOCAB = 12


def split(tokens):
  offsets = np.array([0, len(tokens)], np.uint32)
  return splits.Split([splits.Shard(tokens.astype(np.uint16), offsets, offsets[:1].repeat(2))])


@pytest.fixture(scope='module')
def tokens():
  # id 0 never occurs; id n is often followed by n + 1
  rng = np.random.default_rng(0)
  steps = rng.choice([1, 1, 1, 2, 5], size=4000)
  return 1 + np.cumsum(steps) % (VOCAB - 1)


def pairs_of(tokens):
  """[first, second] → how often they stand side by side."""
  out = np.zeros((VOCAB, VOCAB))
  np.add.at(out, (tokens[:-1], tokens[1:]), 1)
  return out


def test_pairs_are_counted_as_they_stand(tokens):
  counted = bigrams.count(split(tokens), VOCAB)
  np.testing.assert_allclose(counted.share, np.bincount(tokens, minlength=VOCAB) / len(tokens))
  np.testing.assert_array_equal(counted.after.toarray(), pairs_of(tokens))
  np.testing.assert_array_equal(counted.before.toarray(), pairs_of(tokens).T)


def test_a_guess_is_the_likeliest_token_between_its_neighbours(tokens):
  counted = bigrams.count(split(tokens), VOCAB)
  pairs = pairs_of(tokens)
  after = lambda a: (pairs[a] + 30 * counted.share) / (pairs[a].sum() + 30)
  before = lambda b: (pairs[:, b] + 30 * counted.share) / (pairs[:, b].sum() + 30)
  known = counted.share > 0
  for left, right in ((3, 5), (3, -1), (-1, 5), (11, 2), (-1, -1)):
    chances = counted.share.copy()
    for token, side in ((left, after), (right, before)):
      if token >= 0:
        chances[known] *= side(token)[known] / counted.share[known]
    assert bigrams.guesses(counted, [left], [right]) == [chances.argmax()]
  assert bigrams.guesses(counted, [3], [5]) == [4]


def test_of_a_long_split_stretches_from_everywhere_are_counted():
  tokens = np.repeat(np.arange(1, 11), 1 << 16)
  counted = bigrams.count(split(tokens), VOCAB, most=5 << 16)
  assert counted.after.sum() == counted.before.sum() == 5 * ((1 << 16) - 1)
  assert np.flatnonzero(counted.share).tolist() == [1, 3, 5, 7, 9]
