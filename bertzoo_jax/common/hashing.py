"""Randomness without state: bits that are a function of (seed, epoch, row, position, purpose), and
the shuffle of an epoch.

A key is a pair of uint32 arrays. `fold` derives a key, `bits` draws 32 bits for a counter; both
work on whole arrays, and give the same values on any machine. Counters count modulo 2³².
"""

import math

import numpy as np

# Purposes of draws: with different purposes, draws of a row never share bits.
PHASE, SHUFFLE, EPOCH, ROW, SHORT, TARGET, COIN, CUT = range(1, 9)
DOCUMENT, SENTENCE, TRIM_A, TRIM_B, SELECT, ROUND, CORRUPT, REPLACE = range(9, 17)
COUNT, CONTEXT, SPREAD, PERMUTE, SIMILAR, PARTS, CORPUS, CAUSAL, DRAW = range(17, 26)

# 2³²/φ; C. Wellons's "lowbias32"; murmur3
_STEP, _MIX_1, _MIX_2, _CROSS = (0x9E3779B9, 0x7FEB352D, 0x846CA68B, 0x85EBCA6B)
# Rounds of the shuffle: with four, a few outputs look random already; small ranges need more.
_ROUNDS = 10


def new_key(seed: int):
  """The key of a seed (any integer, modulo 2⁶⁴), as two numpy arrays of shape [1]."""
  seed = int(seed) & (2**64 - 1)
  root = (np.array([seed & 0xFFFFFFFF], np.uint32), np.array([seed >> 32], np.uint32))
  return fold(root, 0)


def fold(key, number):
  """The key derived from a key by a number: independent bits for each number. Shapes broadcast."""
  lo, hi = key
  return bits((lo, hi), number), bits((hi ^ _CROSS, lo), number)


def bits(key, counter):
  """32 uniform bits for every counter: uint32 of the broadcast shape. key: pair of uint32 arrays.
  counter: an int, or an array of integers.
  """
  lo, hi = key
  if isinstance(counter, int):
    x = lo + (counter * _STEP & 0xFFFFFFFF)
  else:
    x = lo + counter.astype(np.uint32) * _STEP
  x ^= x >> 16
  x *= _MIX_1
  x += hi
  x ^= x >> 15
  x *= _MIX_2
  x ^= x >> 16
  return x


def below(random, bound):
  """Uniform int64 in [0, bound) from 32 random bits; bound up to 2³¹ (bias below bound · 2⁻³²)."""
  return random.astype(np.int64) * bound >> 32


def threshold(share: float) -> int:
  """The integer that 32 random bits are below with probability `share`; 2³² for 1."""
  return round(share * 2**32)


def permute(key, size: int, items):
  """`items` under a keyed permutation of range(size): a shuffle in O(len(items)) that stores
  nothing.

  A Feistel network over the smallest near-square grid that holds the range, walked until it is back
  in the range (Black & Rogaway 2002, "Ciphers with arbitrary finite domains"). key: numpy, of shape
  [1]. size: at most 2⁶⁰. items: int64 [n] with values in [0, size), as the result.
  """
  rows = math.isqrt(size - 1) + 1
  columns = -(-size // rows)
  keys = fold(key, np.arange(_ROUNDS))
  out = np.array(items, np.int64)
  outside = np.arange(len(out))
  while len(outside):
    out[outside] = _feistel(keys, rows, columns, out[outside])
    outside = outside[out[outside] >= size]
  return out


def _feistel(keys, rows, columns, x):
  row, column = np.divmod(x, columns)
  for i in range(0, _ROUNDS, 2):
    row = (row + below(bits((keys[0][i : i + 1], keys[1][i : i + 1]), column), rows)) % rows
    column = (
      column + below(bits((keys[0][i + 1 : i + 2], keys[1][i + 1 : i + 2]), row), columns)
    ) % columns
  return row * columns + column
