import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertzoo_jax.common import row_keys

SIZE = (512, 512)


def keys(seed=0, rows=4):
  return row_keys.batch_keys(jax.random.key(seed), rows)


@pytest.fixture(scope='module')
def drawn():
  """uint32 bits of a row, and of other rows, steps and folded keys."""
  one, other, *_ = keys()
  folded = [row_keys.fold_in(one, n) for n in (0, 1, 2, 1 << 16)]
  again, joined = row_keys.fold_in(folded[0], 0), row_keys.join(one, jax.random.key(1))
  every = jnp.stack([one, other, keys(seed=1)[0], *folded, again, joined])
  return np.asarray(row_keys.bits(every, SIZE))


def test_bits_are_like_coins_and_as_many_are_kept_as_asked(drawn):
  one = drawn[0]
  assert abs(np.mean(row_keys.keep(keys()[0], 0.1, SIZE)) - 0.9) < 5 * np.sqrt(0.09 / one.size)
  ones = np.unpackbits(one.view(np.uint8)).reshape(-1, 32).mean(axis=0)
  assert np.abs(ones - 0.5).max() < 5 * 0.5 / np.sqrt(one.size)
  counts = np.bincount(one.reshape(-1) >> 24, minlength=256)
  assert ((counts - 1024) ** 2 / 1024).sum() < 255 + 5 * np.sqrt(2 * 255)


def test_bits_of_neighbours_of_other_rows_heads_layers_and_steps_have_nothing_in_common(drawn):
  one = drawn[0]
  bits = *drawn, np.roll(one, 1, 0), np.roll(one, 1, 1), one.T
  coins = [(x >> 31).astype(np.float64) * 2 - 1 for x in bits]
  for i, a in enumerate(coins):
    for b in coins[:i]:
      assert abs(np.mean(a * b)) < 5 / np.sqrt(a.size)


def test_places_of_a_row_do_not_meet_and_folding_keeps_keys_apart():
  # predictions by a large vocabulary
  wide = np.asarray(row_keys.bits(keys()[0], (20, 128_100))).reshape(-1)
  assert np.diff(np.sort(wide)).all()  # the hash is a bijection of places
  folded = np.asarray(row_keys.fold_in(keys(rows=1000)[:, None], jnp.arange(64))).reshape(-1, 2)
  assert len(np.unique(folded, axis=0)) == 64_000
  assert all(len(np.unique(half)) > 63_980 for half in folded.T)  # the number is in both halves


def test_a_row_has_its_bits_in_any_batch_and_a_block_those_of_its_place():
  many = keys(rows=8)
  whole = row_keys.bits(many, (64, 64))
  np.testing.assert_array_equal(row_keys.bits(many[3:4], (64, 64))[0], whole[3])
  np.testing.assert_array_equal(many[:4], keys(rows=4))
  block = row_keys.bits_at(*many[3], (8, 16), (16, 32))
  np.testing.assert_array_equal(block, whole[3, 8:24, 16:48])
