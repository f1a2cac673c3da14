"""Randomness without state: bits that are a function of (seed, epoch, row, position, purpose), and the shuffle of an epoch.

A key is a pair of uint32 arrays. `fold` derives a key, `bits` draws 32 bits for a counter; both give the same values
from numpy arrays and from TensorFlow tensors, on any machine, and work on whole arrays. Counters count modulo 2³².
"""

import numpy as np

# What a draw is for: two draws of one row never share bits.
SHUFFLE, PHASE, ROW, SHORT, TARGET, COIN, CUT, DOCUMENT, SENTENCE, TRIM_A, TRIM_B, SELECT, ROUND, CORRUPT, REPLACE = range(1, 16)

_STEP, _MIX_1, _MIX_2, _CROSS = 0x9E3779B9, 0x7FEB352D, 0x846CA68B, 0x85EBCA6B  # 2³²/φ; C. Wellons's "lowbias32"; murmur3
_ROUNDS = 12


def new_key(seed: int):
  """The key of a seed (any integer; 64 bits of it count), as two numpy arrays of shape [1]."""
  seed = int(seed) & (2**64 - 1)
  root = (np.array([seed & 0xFFFFFFFF], np.uint32), np.array([seed >> 32], np.uint32))
  return fold(root, 0)


def fold(key, number):
  """The key derived from a key by a number: independent bits for each number. Shapes broadcast."""
  lo, hi = key
  return bits((lo, hi), number), bits((_xor(hi, _constant(hi, _CROSS)), lo), number)


def bits(key, counter):
  """32 uniform bits for every counter.

  Args:
    key: pair of uint32 arrays or tensors.
    counter: integers (numpy of any integer type; TensorFlow uint32), of a shape that broadcasts with the key's.

  Returns:
    uint32 of the broadcast shape.
  """
  lo, hi = key
  if _is_numpy(lo):
    counter = np.atleast_1d(np.asarray(counter)).astype(np.uint32)
  elif isinstance(counter, int):
    counter = _constant(lo, counter)
  x = counter * _constant(lo, _STEP) + lo
  x = _xor(x, _shift(x, 16)) * _constant(lo, _MIX_1)
  x = x + hi
  x = _xor(x, _shift(x, 15)) * _constant(lo, _MIX_2)
  return _xor(x, _shift(x, 16))


def below(random, bound):
  """Uniform integers in [0, bound) from 32 random bits each, as int64; bound up to 2³¹ (bias below bound · 2⁻³²)."""
  if _is_numpy(random):
    return ((random.astype(np.uint64) * np.asarray(bound).astype(np.uint64)) >> np.uint64(32)).astype(np.int64)
  import tensorflow as tf
  return tf.bitwise.right_shift(tf.cast(random, tf.int64) * bound, tf.constant(32, tf.int64))


def threshold(share: float) -> int:
  """Bits (as an integer) below this hold with the probability `share`; 2³² for 1."""
  return round(share * 2**32)


def permute(key, size: int, items):
  """Where a keyed permutation of range(size) sends `items`: a shuffle in O(len(items)), nothing stored.

  A Feistel network over the next power of two, walked until it is back in the range (Black & Rogaway 2002).

  Args:
    key: numpy key.
    size: how many there are to permute, at most 2⁶².
    items: int64 array with values in [0, size).

  Returns:
    int64 array of the shape of `items`.
  """
  width = max(2, (int(size) - 1).bit_length())
  low = width // 2
  keys = [fold(key, i) for i in range(_ROUNDS)]
  out = np.array(items, np.int64)
  outside = np.ones(out.shape, bool)
  while outside.any():
    out[outside] = _feistel(keys, low, width - low, out[outside])
    outside = out >= size
  return out


def _feistel(keys, low, high, x):
  left, right = x >> low, x & ((1 << low) - 1)
  for i, key in enumerate(keys):
    if i % 2:
      right = right ^ (bits(key, left).astype(np.int64) & ((1 << low) - 1))
    else:
      left = left ^ (bits(key, right).astype(np.int64) & ((1 << high) - 1))
  return left << low | right


def _is_numpy(x):
  return isinstance(x, (np.ndarray, np.generic))


def _constant(like, value):
  if _is_numpy(like):
    return np.uint32(value)
  import tensorflow as tf
  return tf.constant(value, tf.uint32)


def _xor(a, b):
  if _is_numpy(a):
    return a ^ b
  import tensorflow as tf
  return tf.bitwise.bitwise_xor(a, b)


def _shift(x, n):
  if _is_numpy(x):
    return x >> np.uint32(n)
  import tensorflow as tf
  return tf.bitwise.right_shift(x, tf.constant(n, tf.uint32))
