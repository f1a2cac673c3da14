import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from bertzoo_jax import parts
from tests.batches import masking_reference as reference
from tests.batches import masking_rows
from tests.batches.masking_rows import SPECIAL

LENGTH = 40
CORPUS = masking_rows.corpus()
SECTIONS = {
  'token': parts.token(),
  'token everywhere': parts.token(
    maskable='all_but_padding', rounding='random', random_tokens='no_specials', rate=0.5
  ),
  'token independent': parts.token(sampling='independent', corruption=(0.85, 0.0, 0.15)),
  'whole word': parts.whole_word(),
  'phrase': parts.whole_word(level='phrase', corrupted='units', max_predictions=4),
  'entity': parts.whole_word(level='entity', selection='independent', max_predictions=5),
  'ngram': parts.ngram(rate=0.4),
  'left to right': parts.ngram(order='left_to_right', weights=(4, 3, 2, 1), corrupted='units'),
  'span': parts.span(),
  'span cut': parts.span(overflow='cut', rate=0.5, corrupted='pieces'),
  'windows': parts.ngram_windows(),
  'windows spread': parts.ngram_windows(scan='spread', max_gram=1, corruption=(1.0, 0.0, 0.0)),
  'permutation': parts.permutation(num_predictions=7, block=16),
  'permutation of pieces': parts.permutation(num_predictions=9, span_units='pieces'),
  'in order': parts.in_order(),
}


def _build(name, length=LENGTH):
  return masking_rows.build(SECTIONS[name], length, CORPUS)


@st.composite
def layouts(draw):
  """One to five rows of segments of runs of text, empty ones among them, that fit LENGTH."""
  size = st.one_of(st.sampled_from([0, 1, LENGTH]), st.integers(0, LENGTH))
  rows = []
  for _ in range(draw(st.integers(1, 5))):
    left, segments = LENGTH, []
    while left >= 2 and draw(st.booleans()):
      left -= 1
      runs = []
      while left >= 1 and (not runs or draw(st.booleans())):
        runs.append(min(left - 1, draw(size)))
        left -= runs[-1] + 1
      segments.append(runs)
    rows.append(segments)
  return rows


@pytest.mark.parametrize('name', SECTIONS)
@hypothesis.settings(max_examples=15, deadline=None, derandomize=True)
@hypothesis.given(rows=layouts(), seed=st.integers(0, 2**31), long=st.sampled_from([0.0, 0.3, 1]))
def test_tokens_are_conserved_and_predictions_fit_the_row(name, rows, seed, long):
  features, keys = masking_rows.layout(rows, LENGTH, seed, long=long, direction=True)
  mask = _build(name)
  out = masking_rows.run(mask, features, keys)
  before, ids, pack = features['input_ids'], out['input_ids'], features['segment_ids']
  positions, targets, weights = (out[f'masked_{k}'] for k in ('positions', 'targets', 'weights'))
  kind = lambda shape, dtype: (shape, np.dtype(dtype))
  kept = {k: kind(v.shape[1:], v.dtype) for k, v in features.items() if k != 'units'}
  types = dict(positions=np.int32, targets=np.int32, weights=np.float32)
  made = {f'masked_{k}': kind((mask.num_predictions,), d) for k, d in types.items()}
  made |= {k: kind(*x) for k, x in mask.features.items()}
  assert {k: kind(v.shape[1:], v.dtype) for k, v in out.items()} == kept | made
  row, slot = np.nonzero(weights)
  restored = ids.copy()
  restored[row, positions[row, slot]] = targets[row, slot]
  # putting the targets back restores the row, so nothing else was touched
  np.testing.assert_array_equal(restored, before)
  np.testing.assert_array_equal(targets[row, slot], before[row, positions[row, slot]])
  for feature in kept.keys() - {'input_ids'}:
    np.testing.assert_array_equal(out[feature], features[feature])
  count = weights.sum(1).astype(int)
  assert set(np.unique(weights)) <= {0.0, 1.0}
  for r in range(len(rows)):
    real = positions[r, : count[r]]
    steps = np.diff(real)
    assert (steps >= 0).all() if name == 'token independent' else (steps > 0).all()
    assert not any(x[r, count[r] :].any() for x in (positions, targets, weights))
    assert (pack[r, real] > 0).all()
    if name != 'token everywhere':
      assert not np.isin(before[r, real], [SPECIAL['cls'], SPECIAL['sep']]).any()
      text = (pack[r] > 0) & ~np.isin(before[r], [SPECIAL['cls'], SPECIAL['sep']])
      # larger units may all exceed the budget, coins may all fall on one side, short blocks may
      # get no prediction
      may = long > 0 or any(word in name for word in ('phrase', 'entity', 'permutation'))
      assert may or not text.any() or count[r] > 0


@pytest.mark.parametrize(
  'name', 'whole word, phrase, entity, ngram, left to right, span, windows'.split(', ')
)
def test_whole_words_stay_whole_where_the_masking_takes_words(name):
  features, keys = masking_rows.some_layout(200, LENGTH, 5)
  predicted = masking_rows.chosen(masking_rows.run(_build(name), features, keys))
  level = name if name in ('phrase', 'entity') else 'word'
  exclude, multi = ('mask', 'unk') if name == 'windows' else (), 0
  for r in range(200):
    for a, b in reference.Row(features, keys, r, level=level, exclude=exclude).words:
      assert predicted[r, a:b].all() or not predicted[r, a:b].any(), (r, a, b)
      multi += b - a > 1 and predicted[r, a]
  assert multi > 50


@pytest.mark.parametrize('name', SECTIONS)
def test_a_row_does_not_depend_on_its_batch_mates(name):
  features, keys = masking_rows.some_layout(50, LENGTH, 3, direction=True)
  mask = _build(name)
  whole = masking_rows.run(mask, features, keys)
  for pick in map(np.array, ([7], [49, 3, 3, 0], range(10, 40))):
    some = masking_rows.run(mask, {k: v[pick] for k, v in features.items()}, keys[pick])
    for key in whole:
      np.testing.assert_array_equal(whole[key][pick], some[key], err_msg=key)


@pytest.mark.parametrize('name', SECTIONS)
def test_short_rows_work_and_other_keys_give_other_masks(name):
  for length in (3, 4, 16, 17):
    features, keys = masking_rows.full(20, length)
    section = dict(SECTIONS[name])
    if 'num_predictions' in section:
      section['num_predictions'] = 2
    mask = masking_rows.build(section, length, CORPUS)
    weights = masking_rows.run(mask, features, keys)['masked_weights']
    assert (weights.sum(1) <= mask.num_predictions).all() and weights.any()
  features, keys = masking_rows.full(200, LENGTH)
  run = lambda keys: masking_rows.chosen(masking_rows.run(_build(name), features, keys))
  differ = (run(keys) != run(keys[::-1])).any(axis=1).mean()
  assert differ > 0.95 or name == 'in order'
