import collections
import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bertzoo_jax.common import hashing


def _chi_square(counts):
  """Deviations of a chi-square statistic from its mean; below 5 for a sound generator."""
  counts = np.asarray(counts, float)
  expected, free = counts.sum() / counts.size, counts.size - 1
  return (((counts - expected) ** 2 / expected).sum() - free) / np.sqrt(2 * free)


def test_bits_never_change():
  """Golden numbers: another value here means that no resumed run sees its batches again."""
  key, golden = hashing.new_key(0), [3878439305, 1973154077, 2050584047]
  assert hashing.bits(key, np.arange(3)).tolist() == golden
  assert hashing.permute(key, 10, np.arange(10)).tolist() == [0, 5, 8, 2, 9, 6, 4, 1, 7, 3]


def test_every_byte_of_the_bits_is_uniform_along_positions_and_along_rows():
  lo, hi = hashing.fold(hashing.new_key(1), np.arange(512))
  bits = hashing.bits((lo[:, None], hi[:, None]), np.arange(512)[None])
  for shift in (0, 8, 16, 24):
    byte = bits >> shift & 255
    assert abs(_chi_square(np.bincount(byte.reshape(-1), minlength=256))) < 5
    # neighbours in position, and in row number
    for a, b in ((byte[:, 1:], byte[:, :-1]), (byte[1:], byte[:-1])):
      pairs = np.bincount((a >> 4 << 4 | b >> 4).reshape(-1), minlength=256)
      assert abs(_chi_square(pairs)) < 5


def test_each_bit_of_a_counter_flips_half_of_the_bits_drawn():
  counters = np.arange(20_000)
  key = hashing.new_key(3)
  for derive in (lambda n: hashing.bits(key, n), lambda n: hashing.fold(key, n)[1]):
    for bit in range(0, 32, 3):
      flipped = derive(counters) ^ derive(counters ^ (1 << bit))
      shares = np.array([(flipped >> np.uint32(i) & 1).mean() for i in range(32)])
      assert abs(shares - 0.5).max() < 0.025, bit


def test_keys_of_neighbouring_seeds_epochs_rows_and_purposes_are_distinct():
  keys = []
  for seed, epoch, purpose in itertools.product(range(4), range(4), range(1, 5)):
    key = hashing.fold(hashing.fold(hashing.new_key(seed), epoch), purpose)
    keys.append(np.stack(hashing.fold(key, np.arange(1000)), -1))
  keys = np.concatenate(keys)
  assert len(np.unique(keys, axis=0)) == len(keys)
  seeds = (0, 1, 2**31, 2**32, 2**63, -1)  # all 64 bits count
  assert len({int(hashing.bits(hashing.new_key(seed), 0)[0]) for seed in seeds}) == len(seeds)


@given(st.integers(1, 5000), st.integers(0, 2**64))
def test_the_shuffle_is_a_permutation(size, seed):
  shuffled = hashing.permute(hashing.new_key(seed), size, np.arange(size))
  np.testing.assert_array_equal(np.sort(shuffled), np.arange(size))


def test_every_row_comes_at_every_place_equally_often():
  counts, orders = np.zeros((7, 7)), collections.Counter()
  for seed in range(3000):
    key = hashing.new_key(seed)
    counts[np.arange(7), hashing.permute(key, 7, np.arange(7))] += 1
    orders[tuple(hashing.permute(key, 4, np.arange(4)))] += 1
  assert abs(_chi_square(counts)) < 5
  assert len(orders) == 24 and max(orders.values()) < 2 * min(orders.values())


def test_neighbours_do_not_stay_neighbours_in_the_shuffle_and_few_rows_are_those_of_the_whole():
  size = 100_000
  order = hashing.permute(hashing.new_key(9), size, np.arange(size))
  assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.015
  gaps = np.bincount((order[1:] - order[:-1]) % size // (size // 100), minlength=100)[:100]
  assert abs(_chi_square(gaps)) < 5
  some = np.array([3, 99_999, 0, 50_000])
  np.testing.assert_array_equal(order[some], hashing.permute(hashing.new_key(9), size, some))
