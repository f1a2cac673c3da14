"""Every sequential masking equals its definition, written once more row by row, position by
position.
"""

import numpy as np
import pytest

from bertzoo_jax import parts
from tests.batches import masking_reference as reference
from tests.batches import masking_rows

LENGTH = 64
CORPUS = masking_rows.corpus()


def _compare(section, define, seed=0, rows=150, direction=False, **fields):
  """Runs a masking on rows of all kinds and compares what each row predicts with `define(row)`."""
  features, keys = masking_rows.some_layout(rows, LENGTH, seed, direction=direction)
  out = masking_rows.run(masking_rows.build(section, LENGTH, CORPUS), features, keys)
  found = masking_rows.chosen(out)
  for r in range(rows):
    wanted = define(reference.Row(features, keys, r, **fields))
    assert np.flatnonzero(found[r]).tolist() == sorted(wanted), f'row {r}'
  return found


@pytest.mark.parametrize('level', ['word', 'phrase', 'entity'])
@pytest.mark.parametrize('rate', [0.15, 0.5])
def test_whole_words_are_taken_in_random_order_and_those_that_exceed_the_budget_are_skipped(
  rate, level
):
  _compare(
    parts.whole_word(rate=rate, level=level),
    lambda row: reference.whole_word(row, rate),
    level=level,
  )


@pytest.mark.parametrize('level', ['word', 'phrase'])
def test_independent_units_each_have_their_coin(level):
  _compare(
    parts.whole_word(level=level, selection='independent', max_predictions=LENGTH),
    lambda row: reference.independent(row, 0.15),
    level=level,
  )


@pytest.mark.parametrize('weights', [(6, 3, 2), (1,), (0.4, 0.3, 0.2, 0.1), (1, 0, 5)])
@pytest.mark.parametrize('rate', [0.15, 0.6])
def test_shuffled_ngrams_back_off_from_the_budget_and_never_touch(weights, rate):
  _compare(
    parts.ngram(weights=weights, rate=rate), lambda row: reference.shuffled(row, rate, weights)
  )


@pytest.mark.parametrize('weights', [(6, 3, 2), (0.4, 0.3, 0.2, 0.1)])
def test_ngrams_from_left_to_right_go_on_behind_each_run(weights):
  _compare(
    parts.ngram(weights=weights, order='left_to_right'),
    lambda row: reference.left_to_right(row, 0.15, weights),
  )


@pytest.mark.parametrize('overflow', ['skip', 'cut'])
@pytest.mark.parametrize('rate,p,most', [(0.15, 0.2, 10), (0.5, 0.5, 3)])
def test_spans_begin_at_words_of_uniform_tokens_and_end_with_the_budget(overflow, rate, p, most):
  section = parts.span(overflow=overflow, rate=rate, p=p, max_words=most)
  _compare(section, lambda row: reference.span(row, rate, p, most, overflow == 'cut'))


@pytest.mark.parametrize('scan', ['left_to_right', 'spread'])
@pytest.mark.parametrize('rate,max_gram', [(0.15, 3), (0.3, 2)])
def test_windows_have_one_ngram_each(scan, rate, max_gram):
  section = parts.ngram_windows(scan=scan, rate=rate, max_gram=max_gram)
  _compare(
    section,
    lambda row: reference.windows(row, rate, max_gram, scan == 'spread'),
    exclude=('mask', 'unk'),
  )


@pytest.mark.parametrize('span_units', ['words', 'pieces'])
@pytest.mark.parametrize('direction', [False, True])
@pytest.mark.parametrize('block', [LENGTH // 2, 24])
def test_permutation_targets_are_the_spans_of_each_block_and_then_single_tokens(
  span_units, direction, block
):
  features, keys = masking_rows.some_layout(150, LENGTH, 1, direction=direction)
  section = parts.permutation(num_predictions=11, block=block, span_units=span_units)
  out = masking_rows.run(masking_rows.build(section, LENGTH, CORPUS), features, keys)
  found = masking_rows.chosen(out)
  ends = [min(b * block, LENGTH) for b in range(-(-LENGTH // block) + 1)]
  full = [-(-b * 11 // LENGTH) - -(-a * 11 // LENGTH) for a, b in zip(ends, ends[1:])]
  topped_up = 0
  for r in range(150):
    row = reference.Row(features, keys, r)
    used = [sum(p > 0 for p in row.pack[a:b]) for a, b in zip(ends, ends[1:])]
    goals = [(f * u + (b - a) // 2) // (b - a) for f, u, a, b in zip(full, used, ends, ends[1:])]
    spans = reference.xlnet_spans(
      row, block, goals, 6, 5, span_units == 'pieces', direction and features['direction'][r]
    )
    wanted = set(spans)
    for b, (low, high) in enumerate(zip(ends, ends[1:])):
      wanted |= reference.single_tokens(row, b, low, high, block, goals[b], spans)
    assert np.flatnonzero(found[r]).tolist() == sorted(wanted), f'row {r}'
    topped_up += found[r].sum() - len(spans)
  assert 0.05 * found.sum() < topped_up < 0.5 * found.sum()


@pytest.mark.parametrize(
  'section,define',
  [
    (
      parts.ngram(weights=(1, 1, 1, 3), rate=0.5),
      lambda row: reference.shuffled(row, 0.5, (1, 1, 1, 3)),
    ),
    (parts.span(rate=0.5), lambda row: reference.span(row, 0.5, 0.2, 10, False)),
    (parts.whole_word(), lambda row: reference.whole_word(row, 0.15)),
  ],
  ids=lambda x: getattr(x, 'name', ''),
)
def test_nothing_crosses_the_border_of_a_piece_even_without_a_special_token_there(section, define):
  features, keys = masking_rows.some_layout(150, LENGTH, 4, long=0.7)
  features['segment_ids'] = np.where(
    features['segment_ids'] > 0, 1 + np.arange(LENGTH) // 9, 0
  ).astype(np.int32)
  found = masking_rows.chosen(
    masking_rows.run(masking_rows.build(section, LENGTH, CORPUS), features, keys)
  )
  for r in range(150):
    assert np.flatnonzero(found[r]).tolist() == sorted(define(reference.Row(features, keys, r))), (
      f'row {r}'
    )
