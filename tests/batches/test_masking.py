"""Token masking: exact counts, uniform choice, the declared shares, nothing else touched; the same
eagerly and in a graph.
"""

import numpy as np
import pytest
import tensorflow as tf

from bertzoo_jax.batches import masking
from bertzoo_jax.common import errors
from bertzoo_jax.common import hashing
from bertzoo_jax.corpus import corpus as corpora

V, SPECIAL = 1000, dict(pad=0, unk=100, cls=101, sep=102, mask=103)
CORPUS = corpora.in_memory([], [0], [0], V, SPECIAL)
BERT = dict(
  rate=0.15,
  corruption=(0.8, 0.1, 0.1),
  rounding='nearest',
  maskable='text',
  random_tokens='all',
  sampling='distinct',
  repeat=0,
)
FAIRSEQ = dict(BERT, rounding='random', maskable='all_but_padding', random_tokens='no_specials')
FIELDS = [
  BERT,
  FAIRSEQ,
  dict(BERT, rate=0.4),
  dict(BERT, rate=0.9, maskable='all_but_padding'),
  dict(BERT, corruption=(0.0, 1.0, 0.0)),
]


def _rows(lengths, length, seed=0):
  """Rows [CLS] text [SEP] padding of `lengths` tokens, with their keys."""
  draw = np.random.default_rng(seed)
  ids = draw.integers(104, V, (len(lengths), length)).astype(np.int32)
  lengths = np.asarray(lengths)
  column = np.arange(length)[None]
  used = column < lengths[:, None]
  ids[:, 0] = SPECIAL['cls']
  ids[np.arange(len(lengths)), np.maximum(lengths - 1, 0)] = SPECIAL['sep']
  ids[~used] = SPECIAL['pad']
  keys = np.stack(hashing.fold(hashing.new_key(seed), np.arange(len(lengths))), -1)
  return {
    'input_ids': ids,
    'segment_ids': np.zeros_like(ids),
    'pack_ids': used.astype(np.int32),
  }, keys


def _mask(features, keys, length, graph=False, **fields):
  mask = masking.token(length, CORPUS, **fields)
  apply = tf.function(mask.apply) if graph else mask.apply
  out = apply({k: tf.constant(v) for k, v in features.items()}, tf.constant(keys))
  return {k: v.numpy() for k, v in out.items()}, mask


def _real(out):
  """(row, position, target) of the real predictions."""
  row, slot = np.nonzero(out['masked_weights'])
  return row, out['masked_positions'][row, slot], out['masked_targets'][row, slot]


@pytest.mark.parametrize('fields', FIELDS)
def test_putting_the_targets_back_restores_the_row(fields):
  features, keys = _rows(np.random.default_rng(3).integers(2, 65, 400), 64)
  out, mask = _mask(features, keys, 64, **fields)
  row, position, target = _real(out)
  restored = out['input_ids'].copy()
  restored[row, position] = target
  np.testing.assert_array_equal(restored, features['input_ids'])
  assert out['masked_positions'].shape == (400, mask.num_predictions)
  assert (
    out['masked_positions'].dtype
    == out['masked_targets'].dtype
    == out['input_ids'].dtype
    == np.int32
  )
  assert out['masked_weights'].dtype == np.float32 and set(np.unique(out['masked_weights'])) <= {
    0.0,
    1.0,
  }


@pytest.mark.parametrize('fields', FIELDS)
def test_positions_ascend_without_repetition_and_fillers_are_zero(fields):
  features, keys = _rows(np.random.default_rng(4).integers(2, 65, 400), 64)
  out, _ = _mask(features, keys, 64, **fields)
  count = out['masked_weights'].sum(1).astype(int)
  for row in range(400):
    real = out['masked_positions'][row, : count[row]]
    assert (np.diff(real) > 0).all() and (features['pack_ids'][row, real] == 1).all()
    assert not out['masked_weights'][row, count[row] :].any()
    assert (
      not out['masked_positions'][row, count[row] :].any()
      and not out['masked_targets'][row, count[row] :].any()
    )
    if fields['maskable'] == 'text':
      assert not np.isin(features['input_ids'][row, real], [SPECIAL['cls'], SPECIAL['sep']]).any()


@pytest.mark.parametrize('rate', [0.15, 0.2, 0.5])
def test_nearest_rounding_masks_berts_number_of_tokens(rate):
  lengths = np.arange(2, 129)
  features, keys = _rows(lengths, 128)
  out, mask = _mask(features, keys, 128, **dict(BERT, rate=rate))
  # Python rounds halves to even, as Google's code does
  expected = [min(max(1, round(n * rate)), n - 2) for n in lengths.tolist()]
  assert out['masked_weights'].sum(1).tolist() == expected
  assert mask.num_predictions == max(1, round(128 * rate))


def test_random_rounding_masks_the_rate_on_average():
  features, keys = _rows(np.full(20_000, 29), 32)
  out, mask = _mask(features, keys, 32, **dict(BERT, rounding='random'))
  count = out['masked_weights'].sum(1)
  assert set(count.tolist()) == {4, 5}
  assert abs(count.mean() - 29 * 0.15) < 5 * (0.35 * 0.65 / 20_000) ** 0.5
  assert mask.num_predictions == 5
  assert masking.token(512, CORPUS, **FAIRSEQ).num_predictions == 77


@pytest.mark.parametrize('maskable', ['text', 'all_but_padding'])
def test_every_maskable_position_and_every_pair_of_them_is_equally_likely(maskable):
  rows, length = 40_000, 16
  features, keys = _rows(np.full(rows, length - 1), length)
  out, _ = _mask(features, keys, length, **dict(BERT, rate=0.3, maskable=maskable))
  row, position, _ = _real(out)
  chosen = np.zeros((rows, length))
  chosen[row, position] = 1
  candidates = np.arange(1, length - 2) if maskable == 'text' else np.arange(length - 1)
  m, n = len(candidates), round(0.3 * (length - 1))
  others = np.setdiff1d(np.arange(length), candidates)
  assert chosen[:, others].sum() == 0
  assert abs(chosen[:, candidates].mean(0) - n / m).max() < 5 * (n / m * (1 - n / m) / rows) ** 0.5
  together = chosen[:, candidates].T @ chosen[:, candidates] / rows
  pair = n * (n - 1) / m / (m - 1)
  assert abs(together[~np.eye(m, dtype=bool)] - pair).max() < 5 * (pair * (1 - pair) / rows) ** 0.5


@pytest.mark.parametrize(
  'corruption', [(0.8, 0.1, 0.1), (0.6, 0.3, 0.1), (1.0, 0.0, 0.0), (0.0, 0.0, 1.0)]
)
def test_masked_tokens_are_corrupted_in_the_declared_shares(corruption):
  features, keys = _rows(np.full(4000, 128), 128)
  out, _ = _mask(features, keys, 128, **dict(BERT, corruption=corruption))
  row, position, target = _real(out)
  seen = out['input_ids'][row, position]
  n = len(seen)
  as_mask, random, kept = corruption
  for share, expected in (
    ((seen == SPECIAL['mask']).mean(), as_mask + random / V),
    ((seen == target).mean(), kept + random / V),
  ):
    assert abs(share - expected) < 5 * (expected * (1 - expected) / n) ** 0.5 + 1e-9
  shares = np.zeros(4000)  # drawn for each token: rows differ as independent tokens do
  np.add.at(shares, row, seen == SPECIAL['mask'])
  assert abs(shares.var() - as_mask * (1 - as_mask) * n / 4000) < 0.1 * n / 4000


@pytest.mark.parametrize('random_tokens,never', [('all', []), ('no_specials', [0, 100, 101, 102])])
def test_random_tokens_are_uniform_over_what_is_allowed(random_tokens, never):
  features, keys = _rows(np.full(4000, 128), 128)
  out, _ = _mask(
    features,
    keys,
    128,
    **dict(BERT, rate=0.5, corruption=(0.0, 1.0, 0.0), random_tokens=random_tokens),
  )
  row, position, _ = _real(out)
  counts = np.bincount(out['input_ids'][row, position], minlength=V)
  allowed = np.setdiff1d(np.arange(V), never)
  # the mask token may stand there, as in fairseq
  assert counts[never].sum() == 0 and counts[SPECIAL['mask']] > 0
  expected = counts.sum() / len(allowed)
  statistic = ((counts[allowed] - expected) ** 2 / expected).sum()
  assert abs(statistic - len(allowed)) < 5 * (2 * len(allowed)) ** 0.5


@pytest.mark.parametrize('fields', FIELDS)
def test_eager_graph_and_tf_data_agree_bit_for_bit(fields):
  features, keys = _rows(np.random.default_rng(5).integers(2, 65, 96), 64)
  eager, mask = _mask(features, keys, 64, **fields)
  graph, _ = _mask(features, keys, 64, graph=True, **fields)
  data = tf.data.Dataset.from_tensor_slices((features, keys)).batch(96).map(mask.apply)
  piped = next(data.as_numpy_iterator())
  for name in eager:
    np.testing.assert_array_equal(eager[name], graph[name])
    np.testing.assert_array_equal(eager[name], piped[name])


def test_the_mask_of_a_row_does_not_depend_on_its_batch():
  features, keys = _rows(np.random.default_rng(6).integers(2, 65, 96), 64)
  whole, _ = _mask(features, keys, 64, **FAIRSEQ)
  pick = np.array([90, 3, 3])
  some, _ = _mask({k: v[pick] for k, v in features.items()}, keys[pick], 64, **FAIRSEQ)
  for name in whole:
    np.testing.assert_array_equal(whole[name][pick], some[name])


def test_rows_with_nothing_to_mask_are_left_alone():
  features, keys = _rows(np.array([2, 2, 64]), 64)  # [CLS] [SEP] only
  features['input_ids'][0], features['pack_ids'][0] = SPECIAL['pad'], 0  # nothing at all
  for fields in FIELDS:
    out, _ = _mask(features, keys, 64, **fields)
    assert out['masked_weights'][0].sum() == 0
    np.testing.assert_array_equal(out['input_ids'][0], features['input_ids'][0])
    if fields['maskable'] == 'text':
      assert out['masked_weights'][1].sum() == 0
    assert out['masked_weights'][2].sum() > 0


@pytest.mark.parametrize('length', [3, 5, 127, 128, 130])
def test_lengths_that_are_no_power_of_two_work(length):
  features, keys = _rows(np.full(300, length), length)
  out, _ = _mask(features, keys, length, **dict(BERT, rate=0.3))
  row, position, _ = _real(out)
  assert set(position.tolist()) == set(range(1, length - 1))
  assert (out['masked_weights'].sum(1) == min(max(1, round(0.3 * length)), length - 2)).all()


def test_neighbouring_rows_and_epochs_have_independent_masks():
  features, _ = _rows(np.full(2000, 64), 64)
  masks = []
  for epoch in range(2):
    keys = np.stack(hashing.fold(hashing.fold(hashing.new_key(0), epoch), np.arange(2000)), -1)
    out, mask = _mask(features, keys, 64, **BERT)
    chosen = np.zeros((2000, 64))
    row, position, _ = _real(out)
    chosen[row, position] = 1
    masks.append(chosen)
  n = mask.num_predictions
  expected, deviation = n * n / 62, (n * n / 62 * (1 - n / 62) ** 2 / 2000) ** 0.5
  assert abs((masks[0][1:] * masks[0][:-1]).sum(1).mean() - expected) < 5 * deviation
  assert abs((masks[0] * masks[1]).sum(1).mean() - expected) < 5 * deviation


def test_shares_of_two_or_of_another_sum_are_refused():
  for corruption in ((0.8, 0.1), (0.8, 0.1, 0.2)):
    with pytest.raises(errors.UserError, match='three shares that sum to 1'):
      masking.token(64, CORPUS, **dict(BERT, corruption=corruption))
