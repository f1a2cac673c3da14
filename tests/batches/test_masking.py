import numpy as np
import pytest

from bertzoo_jax import parts
from bertzoo_jax.common import hashing
from tests.batches import masking_rows
from tests.batches.masking_rows import SPECIAL
from tests.batches.masking_rows import V

CORPUS = masking_rows.corpus()


def _token(length, **fields):
  return masking_rows.build(parts.token(**fields), length, CORPUS)


def _mask(lengths, length, **fields):
  """(what is masked, the masking) of rows [CLS] text [SEP] padding of so many tokens."""
  features, keys = masking_rows.layout([[[n - 2]] for n in lengths], length)
  mask = _token(length, **fields)
  return masking_rows.run(mask, features, keys), mask


@pytest.mark.parametrize('rate', [0.15, 0.2, 0.5])
def test_nearest_rounding_masks_berts_number_of_tokens(rate):
  out, mask = _mask(range(2, 129), 128, rate=rate)
  # Python rounds halves to even, as Google's code does
  expected = [min(max(1, round(n * rate)), n - 2) for n in range(2, 129)]
  assert out['masked_weights'].sum(1).tolist() == expected
  assert mask.num_predictions == max(1, round(128 * rate))


def test_random_rounding_masks_the_rate_on_average():
  out, mask = _mask([29] * 20_000, 32, rounding='random')
  count = out['masked_weights'].sum(1)
  assert set(count.tolist()) == {4, 5}
  assert abs(count.mean() - 29 * 0.15) < 5 * (0.35 * 0.65 / 20_000) ** 0.5
  assert mask.num_predictions == 5
  assert _token(512, rounding='random').num_predictions == 77


@pytest.mark.parametrize('maskable', ['text', 'all_but_padding'])
def test_every_maskable_position_and_every_pair_of_them_is_equally_likely(maskable):
  rows, length = 40_000, 16
  out, _ = _mask([length - 1] * rows, length, rate=0.3, maskable=maskable)
  chosen = masking_rows.chosen(out).astype(float)
  candidates = np.arange(1, length - 2) if maskable == 'text' else np.arange(length - 1)
  m, n = len(candidates), round(0.3 * (length - 1))
  others = np.setdiff1d(np.arange(length), candidates)
  assert chosen[:, others].sum() == 0
  assert abs(chosen[:, candidates].mean(0) - n / m).max() < 5 * (n / m * (1 - n / m) / rows) ** 0.5
  together = chosen[:, candidates].T @ chosen[:, candidates] / rows
  pair = n * (n - 1) / m / (m - 1)
  assert abs(together[~np.eye(m, dtype=bool)] - pair).max() < 5 * (pair * (1 - pair) / rows) ** 0.5


@pytest.mark.parametrize('corruption', [(0.8, 0.1, 0.1), (0.6, 0.3, 0.1), (1, 0, 0), (0, 0, 1)])
def test_masked_tokens_are_corrupted_in_the_declared_shares(corruption):
  out, _ = _mask([128] * 4000, 128, corruption=corruption)
  row, slot = np.nonzero(out['masked_weights'])
  seen = out['input_ids'][row, out['masked_positions'][row, slot]]
  is_mask, is_kept = seen == SPECIAL['mask'], seen == out['masked_targets'][row, slot]
  as_mask, random, kept = corruption
  for share, expected in ((is_mask, as_mask + random / V), (is_kept, kept + random / V)):
    deviation = (expected * (1 - expected) / len(seen)) ** 0.5
    assert abs(share.mean() - expected) < 5 * deviation + 1e-9
  shares = np.zeros(4000)  # drawn for each token: rows differ as independent tokens do
  np.add.at(shares, row, is_mask)
  each = len(seen) / 4000
  assert abs(shares.var() - as_mask * (1 - as_mask) * each) < 0.1 * each


@pytest.mark.parametrize('random_tokens,never', [('all', []), ('no_specials', [0, 100, 101, 102])])
def test_random_tokens_are_uniform_over_what_is_allowed(random_tokens, never):
  fields = dict(rate=0.5, corruption=(0.0, 1.0, 0.0), random_tokens=random_tokens)
  out, _ = _mask([128] * 4000, 128, **fields)
  counts = np.bincount(out['input_ids'][masking_rows.chosen(out)], minlength=V)
  allowed = np.setdiff1d(np.arange(V), never)
  # the mask token may stand there, as in fairseq
  assert counts[never].sum() == 0 and counts[SPECIAL['mask']] > 0
  expected = counts.sum() / len(allowed)
  statistic = ((counts[allowed] - expected) ** 2 / expected).sum()
  assert abs(statistic - len(allowed)) < 5 * (2 * len(allowed)) ** 0.5


def test_neighbouring_rows_and_epochs_have_independent_masks():
  (features, _), mask, masks = masking_rows.full(2000, 64), _token(64), []
  for epoch in range(2):
    keys = np.stack(hashing.fold(hashing.fold(hashing.new_key(0), epoch), np.arange(2000)), -1)
    masks.append(masking_rows.chosen(masking_rows.run(mask, features, keys)).astype(float))
  n = mask.num_predictions
  expected, deviation = n * n / 62, (n * n / 62 * (1 - n / 62) ** 2 / 2000) ** 0.5
  assert abs((masks[0][1:] * masks[0][:-1]).sum(1).mean() - expected) < 5 * deviation
  assert abs((masks[0] * masks[1]).sum(1).mean() - expected) < 5 * deviation
