import numpy as np
import pytest

from bertzoo_jax import parts
from bertzoo_jax.batches import masking
from bertzoo_jax.common import errors
from tests.batches import masking_rows
from tests.batches.masking_rows import SPECIAL

LENGTH, BLOCK = 64, 32
CORPUS = masking_rows.corpus()


def _build(length=LENGTH, **fields):
  section = parts.permutation(**dict(num_predictions=11, block=BLOCK) | fields)
  return masking_rows.build(section, length, CORPUS)


def _lane(rows, seed=0):
  """Rows as the release lays them out: a block of text, then A [SEP] B [SEP] [CLS]."""
  draw = np.random.default_rng(seed)
  features, keys = masking_rows.full(rows, LENGTH, seed, direction=True)
  ids = draw.integers(104, masking_rows.V, (rows, LENGTH)).astype(np.int32)
  ids[:, [45, LENGTH - 2]], ids[:, -1] = SPECIAL['sep'], SPECIAL['cls']
  features['input_ids'], features['units'] = ids, (draw.random(ids.shape) < 0.3).astype(np.int32)
  return features, keys


def _release_mask(ids, is_target, index, block):
  """[L, L], 1: i cannot see j. The release's rule for each block, blind to later blocks and open to
  earlier ones.
  """
  is_special = np.isin(ids, [SPECIAL['sep'], SPECIAL['cls']])
  hidden = np.ones((len(ids), len(ids)), int)
  for low in range(0, len(ids), block):
    part = slice(low, low + block)
    normal = ~is_target[part] & ~is_special[part]
    place = np.where(normal, -1, index[part])
    own = np.where(is_target[part], place, place + 1)
    hidden[part, part] = (own[:, None] <= place[None]) & ~normal[None]
    hidden[part, :low] = 0
  return hidden


@pytest.mark.parametrize('block', [BLOCK, 24, LENGTH])
def test_the_order_says_what_the_perm_mask_of_the_release_says(block):
  features, keys = _lane(60)
  out = masking_rows.run(_build(block=block), features, keys)
  targets, order = masking_rows.chosen(out), out['order']
  # the random index of targets and special tokens, read off the order
  index = order - np.arange(LENGTH) // block * (block + 1) - 1
  for r in range(60):
    for low in range(0, LENGTH, block):
      drawn = index[r, low : low + block][index[r, low : low + block] >= 0]
      assert len(set(drawn)) == len(drawn) and (drawn < block).all()
    sees = order[r][None] < (order[r] + ~targets[r])[:, None]
    hidden = _release_mask(features['input_ids'][r], targets[r], index[r], block)
    np.testing.assert_array_equal(~sees, hidden > 0)


def test_every_order_of_a_blocks_predictions_is_equally_likely():
  features, keys = _lane(4000, 2)
  out = masking_rows.run(_build(), features, keys)
  order = np.where(masking_rows.chosen(out), out['order'], -1)[:, :BLOCK]
  places = np.argsort(np.argsort(-order, axis=1), axis=1)  # 0: the last one said
  where = np.array([[(places[:, c] == k).sum() for k in range(3)] for c in range(BLOCK)])
  share = where / np.maximum(where.sum(1, keepdims=True), 1)
  enough = where.sum(1) > 100
  deviation = (1 / 3 * 2 / 3 / where.sum(1)[enough]) ** 0.5
  assert enough.sum() > 20 and (abs(share[enough] - 1 / 3) < 5 * deviation[:, None]).all()


def test_full_rows_predict_exactly_what_is_declared_and_nothing_in_the_row_changes():
  features, keys = _lane(200)
  out = masking_rows.run(_build(), features, keys)
  assert _build().num_predictions == 11 and (out['masked_weights'].sum(1) == 11).all()
  # the first block has the odd one, as 43 and 42 of 85
  assert (masking_rows.chosen(out)[:, :BLOCK].sum(1) == 6).all()
  np.testing.assert_array_equal(out['input_ids'], features['input_ids'])


def test_a_row_read_from_the_right_is_the_mirror_image_of_one_read_from_the_left():
  features, keys = _lane(300, 3)
  features['input_ids'][:], features['units'][:] = 500, 0  # text only: single tokens are rare
  mask = _build(num_predictions=2, max_span=1, context=3)
  run = lambda features: masking_rows.chosen(masking_rows.run(mask, features, keys))
  right, left = (run({**features, 'direction': np.full(300, d, np.int32)}) for d in (0, 1))
  np.testing.assert_array_equal(right[:, :BLOCK], left[:, :BLOCK][:, ::-1])
  np.testing.assert_array_equal(right[:, BLOCK:], left[:, BLOCK:][:, ::-1])
  del features['direction']
  np.testing.assert_array_equal(right, run(features))


def test_without_spans_each_token_of_the_text_is_chosen_as_often_as_any_other():
  features, keys = _lane(2000, 5)
  features['input_ids'][:], features['units'][:] = 500, 0  # text only
  both = {}
  for max_span in (0, 5):
    mask = _build(num_predictions=10, max_span=max_span)
    chosen_BL = masking_rows.chosen(masking_rows.run(mask, features, keys))
    assert (chosen_BL.sum(1) == 10).all()
    both[max_span] = (chosen_BL[:, 1:] & chosen_BL[:, :-1]).mean()
    assert max_span or abs(chosen_BL.mean(0) - 10 / LENGTH).max() < 0.03
  # five of the 32 tokens of each block: neighbours are both chosen with probability 5/32 · 4/31
  np.testing.assert_allclose(both[0], 5 / 32 * 4 / 31, rtol=0.1)
  assert both[5] > 2 * both[0]
  with pytest.raises(errors.UserError, match='more than the 64 tokens .*num_predictions=10 '):
    _build(num_predictions=LENGTH + 1)


def test_in_order_predicts_all_text_and_each_token_sees_those_before_it():
  features, keys = _lane(20)
  features['segment_ids'][5, 40:] = 0
  out = masking_rows.run(masking.in_order(LENGTH, CORPUS), features, keys)
  found, order = masking_rows.chosen(out), out['order']
  frame = np.isin(features['input_ids'], [SPECIAL['sep'], SPECIAL['cls']])
  np.testing.assert_array_equal(found, (features['segment_ids'] > 0) & ~frame)
  sees = order[:, None] < order[:, :, None]  # of predictions
  np.testing.assert_array_equal(sees, np.broadcast_to(np.tri(LENGTH, k=-1, dtype=bool), sees.shape))
