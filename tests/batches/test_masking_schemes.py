import numpy as np
import pytest

from bertzoo_jax import parts
from tests.batches import masking_reference as reference
from tests.batches import masking_rows

LENGTH = 64
CORPUS = masking_rows.corpus()


def whole_word(rate, level='word'):
  section = parts.whole_word(rate=rate, level=level)
  return section, lambda row: reference.whole_word(row, rate), dict(level=level)


def independent(level):
  how = dict(selection='independent', max_predictions=LENGTH)
  section = parts.whole_word(level=level, **how)
  return section, lambda row: reference.independent(row, 0.15), dict(level=level)


def shuffled(weights, rate):
  section = parts.ngram(weights=weights, rate=rate)
  return section, lambda row: reference.shuffled(row, rate, weights), {}


def left_to_right(weights):
  section = parts.ngram(weights=weights, order='left_to_right')
  return section, lambda row: reference.left_to_right(row, 0.15, weights), {}


def span(rate, p, most, overflow):
  section = parts.span(overflow=overflow, rate=rate, p=p, max_words=most)
  return section, lambda row: reference.span(row, rate, p, most, overflow == 'cut'), {}


def windows(scan, rate, most):
  section = parts.ngram_windows(scan=scan, rate=rate, max_gram=most)
  define = lambda row: reference.windows(row, rate, most, scan == 'spread')
  return section, define, dict(exclude=('mask', 'unk'))


FOUR = 0.4, 0.3, 0.2, 0.1
SCHEMES = [
  *(whole_word(rate, level) for rate in (0.15, 0.5) for level in ('word', 'phrase', 'entity')),
  *(independent(level) for level in ('word', 'phrase')),
  *(shuffled(w, rate) for w in ((6, 3, 2), (1,), FOUR, (1, 0, 5)) for rate in (0.15, 0.6)),
  *(left_to_right(weights) for weights in ((6, 3, 2), FOUR)),
  *(span(*x, o) for x in ((0.15, 0.2, 10), (0.5, 0.5, 3)) for o in ('skip', 'cut')),
  *(windows(scan, *x) for x in ((0.15, 3), (0.3, 2)) for scan in ('left_to_right', 'spread')),
]
ALONE = [shuffled((1, 1, 1, 3), 0.5), span(0.5, 0.2, 10, 'skip'), whole_word(0.15)]


@pytest.mark.parametrize(
  'section, define, fields', SCHEMES + ALONE, ids=lambda x: getattr(x, 'name', '')
)
def test_what_is_predicted_is_what_the_definition_takes(section, define, fields):
  """Of ALONE: and nothing crosses the border of a piece without a special token there."""
  features, keys = masking_rows.some_layout(60, LENGTH)
  if (section, define, fields) in ALONE:
    features, keys = masking_rows.some_layout(60, LENGTH, 4, long=0.7)
    pack = np.where(features['segment_ids'] > 0, 1 + np.arange(LENGTH) // 9, 0)
    features['segment_ids'] = pack.astype(np.int32)
  mask = masking_rows.build(section, LENGTH, CORPUS)
  predicted = masking_rows.chosen(masking_rows.run(mask, features, keys))
  for r in range(60):
    wanted = define(reference.Row(features, keys, r, **fields))
    assert np.flatnonzero(predicted[r]).tolist() == sorted(wanted), f'row {r}'


@pytest.mark.parametrize('span_units', ['words', 'pieces'])
@pytest.mark.parametrize('direction', [False, True])
@pytest.mark.parametrize('block', [LENGTH // 2, 24])
def test_permutation_targets_are_the_spans_of_each_block_and_then_single_tokens(
  span_units, direction, block
):
  features, keys = masking_rows.some_layout(60, LENGTH, 1, direction=direction)
  section = parts.permutation(num_predictions=11, block=block, span_units=span_units)
  out = masking_rows.run(masking_rows.build(section, LENGTH, CORPUS), features, keys)
  found = masking_rows.chosen(out)
  ends = [min(b * block, LENGTH) for b in range(-(-LENGTH // block) + 1)]
  full = [-(-b * 11 // LENGTH) - -(-a * 11 // LENGTH) for a, b in zip(ends, ends[1:])]
  topped_up = 0
  for r in range(60):
    row = reference.Row(features, keys, r)
    used = [sum(p > 0 for p in row.pack[a:b]) for a, b in zip(ends, ends[1:])]
    goals = [(f * u + (b - a) // 2) // (b - a) for f, u, a, b in zip(full, used, ends, ends[1:])]
    reverse = direction and features['direction'][r]
    spans = reference.xlnet_spans(row, block, goals, 6, 5, span_units == 'pieces', reverse)
    wanted = set(spans)
    for b, (low, high) in enumerate(zip(ends, ends[1:])):
      wanted |= reference.single_tokens(row, b, low, high, block, goals[b], spans)
    assert np.flatnonzero(found[r]).tolist() == sorted(wanted), f'row {r}'
    topped_up += found[r].sum() - len(spans)
  assert 0.05 * found.sum() < topped_up < 0.5 * found.sum()
