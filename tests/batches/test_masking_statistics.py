"""Statistics of half a million tokens and more beside the published numbers."""

import numpy as np
import pytest

from bertzoo_jax import parts
from bertzoo_jax.batches.masking import contract
from bertzoo_jax.common import hashing
from tests.batches import masking_rows

LENGTH, ROWS = 512, 1024  # 2¹⁹ tokens
CORPUS = masking_rows.corpus()


@pytest.fixture(scope='module')
def rows():
  return masking_rows.full(ROWS, LENGTH, long=0.25)


def _predicted(section, rows):
  """(bool [B, L], P) of a masking of full rows."""
  mask = masking_rows.build(section, LENGTH, CORPUS)
  return masking_rows.chosen(masking_rows.run(mask, *rows)), mask.num_predictions


GEOMETRIC = [0.2241, 0.1792, 0.1434, 0.1147, 0.0918, 0.0734, 0.0587, 0.0470, 0.0376, 0.0301]
LENGTHS = [
  (parts.ngram().weights, [0.5455, 0.2727, 0.1818]),
  ((0.4, 0.3, 0.2, 0.1), [0.4, 0.3, 0.2, 0.1]),
  ((1 - parts.span().p) ** np.arange(parts.span().max_words), GEOMETRIC),
]


@pytest.mark.parametrize('weights, published', LENGTHS, ids=['1/n', 'four', 'geometric'])
def test_lengths_are_drawn_with_the_published_shares(weights, published):
  random = hashing.bits(hashing.new_key(3), np.arange(1_000_000))
  drawn = contract.draw_length(random, contract.cumulative(weights, ''))
  shares = np.bincount(drawn, minlength=len(published) + 1)[1:] / len(drawn)
  assert abs(shares - published).max() < 0.002
  fewer = contract.draw_length(random, contract.cumulative(weights, ''), np.full(1_000_000, 2))
  # the proportions stay
  assert abs((fewer == 1).mean() - published[0] / sum(published[:2])) < 0.002 and fewer.max() == 2


SECTIONS = [
  *(parts.token(), parts.whole_word(), parts.ngram(), parts.ngram(order='left_to_right')),
  *(parts.span(), parts.ngram_windows(scan='spread'), parts.permutation()),
]


@pytest.mark.parametrize('section', SECTIONS, ids=lambda s: s.name)
def test_budgets_are_spent_and_never_exceeded_evenly_over_the_row(section, rows):
  predicted, most = _predicted(section, rows)
  count = predicted.sum(1)
  assert count.max() <= most == (85 if section.name == 'permutation' else 77)
  assert count.mean() > 0.99 * most
  tenths = np.array([part.mean() for part in np.array_split(predicted[:, 1:-1], 10, axis=1)])
  # a row's last window may be short
  uneven = abs(tenths / count.mean() * (LENGTH - 2) - 1).max()
  assert uneven < (0.1 if section.name == 'permutation' else 0.06)


def test_independent_units_are_predicted_at_the_rate(rows):
  for level in ('word', 'phrase'):
    predicted, most = _predicted(parts.whole_word(level=level, selection='independent'), rows)
    assert most == 133 and predicted.sum(1).max() <= most
    assert abs(predicted[:, 1:-1].mean() - 0.15) < 0.002


def test_the_budget_of_spans_is_the_least_number_that_reaches_the_rate():
  assert contract.upwards(100, 0.15)[[0, 1, 20, 21, 40, 60, 100]].tolist() == [0, 1, 3, 4, 6, 9, 15]
  # 0.07 · 100 is a little more than 7 in floating point
  assert contract.upwards(100, 0.07)[100] == 7


@pytest.mark.parametrize('max_gram', [1, 3])
@pytest.mark.parametrize('length', [64, 128])
def test_windows_round_the_row_mask_the_rate_and_no_place_more_than_another(length, max_gram):
  mask = masking_rows.build(parts.ngram_windows(scan='spread', max_gram=max_gram), length, CORPUS)
  count = 8192
  rows = masking_rows.full(count, length, long=0.25)
  found = masking_rows.chosen(masking_rows.run(mask, *rows))
  assert abs(found.mean() * length / round(0.15 * length) - 1) < 0.01
  places = found[:, 1:-1].mean(0) / found[:, 1:-1].mean()
  deviation = 1 / np.sqrt(count * 0.15)  # of one place; neighbours are not independent
  # No run begins before the row, so its first words are in fewer runs.
  inner = places[0 if max_gram == 1 else 3 * max_gram :]
  assert abs(inner / inner.mean() - 1).max() < 5 * deviation
  tenths = np.array([part.mean() for part in np.array_split(places, 10)])
  assert abs(tenths - 1).max() < (0.03 if max_gram == 1 else 0.1)
