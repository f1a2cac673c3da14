"""Random bits of kernels: a function of a key and of a place in the whole batch, so the same in the backward pass and on any mesh."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu


def seed(dropout_key, origin: tuple) -> jax.Array:
  """int32 [4]: two words of the key (0 without one), and the first row and head of the whole batch that a kernel is given."""
  words = jnp.zeros(2, jnp.int32)
  if dropout_key is not None:
    words = jax.lax.bitcast_convert_type(jax.random.bits(dropout_key, (2,), jnp.uint32), jnp.int32)
  return jnp.concatenate([words, jnp.stack([jnp.asarray(n, jnp.int32) for n in origin])])


def keep(rate: float, hashed: bool, seed, row, head, block, first: tuple, size: tuple):
  """Booleans `size` that are true with probability 1 − rate. To be called inside a kernel.

  Args:
    rate: in (0, 1), rounded to 2^−32.
    hashed: draw by `hashed_bits`, and not by the generator of a TPU, which no other machine has.
    seed: as `seed` returns.
    row, head: of the arrays the kernel was given.
    block: number of the block among those of the row and head, and `first`, the place of its corner.
    size: two numbers.
  """
  row, head, threshold = seed[2] + row, seed[3] + head, np.uint32(round(rate * 2 ** 32))
  if hashed:
    return hashed_bits(seed[0], seed[1], row, head, first, size) >= threshold
  pltpu.prng_seed(seed[0] + row, seed[1] ^ (head * (1 << 16) + block))  # it takes two words
  return pltpu.bitcast(pltpu.prng_random_bits(size), jnp.uint32) >= threshold


def variant(program, dtype) -> str:
  """What a kernel's name says of its programs, since their cost depends on it."""
  drawn = '_dropout' * bool(program.rate) + '_hashed' * bool(program.rate and program.hashed)
  return drawn if dtype == jnp.bfloat16 else f'{drawn}_{dtype}'


def hashed_bits(word, other, row, head, first, size):
  """uint32 `size` by a hash of where they are. word, other: of the key; row, head, first (of two axes): int32."""
  word, other, row, head = (jnp.asarray(n, jnp.int32).astype(jnp.uint32) for n in (word, other, row, head))
  key = _mixed(_mixed(_mixed(_mixed(word) + other) + row) + head)
  place = [jax.lax.broadcasted_iota(jnp.int32, size, axis) + first[axis] for axis in (0, 1)]
  return _mixed(_mixed((place[0] * np.int32(1 << 16) + place[1]).astype(jnp.uint32) ^ key) + key)


def _mixed(x):
  """A bijection of 32 bits whose every bit depends on every bit of x: shifts and odd factors, as at the end of hash functions."""
  x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
  x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
  return x ^ (x >> np.uint32(16))
