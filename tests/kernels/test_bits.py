"""The hash that stands for the random generator of a TPU."""

import numpy as np

from bertzoo_jax.kernels import bits


def test_the_hash_keeps_as_many_as_asked_and_its_bits_are_like_coins():
  size = (512, 512)
  one = np.asarray(bits.hashed_bits(1, 2, 3, 4, (0, 0), size))
  share = np.mean(one >= np.uint32(round(0.1 * 2 ** 32)))
  assert abs(share - 0.9) < 5 * np.sqrt(0.09 / one.size)
  ones = np.unpackbits(one.view(np.uint8)).reshape(-1, 32).mean(axis=0)
  assert np.abs(ones - 0.5).max() < 5 * 0.5 / np.sqrt(one.size)
  counts = np.bincount(one.reshape(-1) >> 24, minlength=256)
  assert ((counts - 1024) ** 2 / 1024).sum() < 255 + 5 * np.sqrt(2 * 255)
  coin = lambda x: (x >> 31).astype(np.float64) * 2 - 1
  others = [np.asarray(bits.hashed_bits(*where, (0, 0), size)) for where in ((1, 2, 3, 5), (1, 2, 4, 4), (1, 3, 3, 4), (2, 2, 3, 4))]
  for other in (np.roll(one, 1, 0), np.roll(one, 1, 1), one.T, *others):
    assert abs(np.mean(coin(one) * coin(other))) < 5 / np.sqrt(one.size)


def test_a_block_has_the_bits_of_its_place():
  whole = bits.hashed_bits(7, 8, 0, 1, (0, 0), (64, 64))
  np.testing.assert_array_equal(bits.hashed_bits(7, 8, 0, 1, (0, 16), (64, 32)), whole[:, 16:48])
