"""Random bits of a row of the batch: a hash of the row's key and of a place in the row.

A row's bits do not depend on other rows, on the mesh or on microbatches. A device draws only the
bits of its rows, where it uses them, and draws them again in the backward pass.

A row's key is two uint32s, keys [..., 2]. The hash mixes each of them by a bijection of 32 bits
whose every bit depends on all (shifts and odd factors; constants of Wellons' hash prospector,
2018).
"""

import jax
import jax.numpy as jnp
import numpy as np

# 2^32 over the golden ratio: places of a row do not collide, up to 2^13 times 2^17 of them
_ROW = np.int32(0x9E3779B9 - (1 << 32))


def batch_keys(key: jax.Array, rows: int) -> jax.Array:
  """keys_B2 of the first `rows` rows of a batch. key: a jax.random key of the batch."""
  return jax.random.key_data(jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(rows)))


def join(keys: jax.Array, key: jax.Array) -> jax.Array:
  """The row keys, folded with a jax.random key."""
  for number in jax.random.key_data(key):
    keys = fold_in(keys, number)
  return keys


def fold_in(keys: jax.Array, number) -> jax.Array:
  """The row keys, folded with a number, which broadcasts to keys[..., 0]."""
  return jnp.stack(jnp.broadcast_arrays(*folded(keys[..., 0], keys[..., 1], number)), axis=-1)


def folded(one, other, number):
  """`fold_in` of the two uint32s of a key: a bijection of them for every number."""
  number = jnp.asarray(number).astype(jnp.uint32)
  return _mixed(_mixed(one + number) + other), _mixed(other + _mixed(number))


def bits(keys: jax.Array, size: tuple[int, int], first: tuple = (0, 0)) -> jax.Array:
  """uint32 [..., *size] from the place `first` on, for keys [..., 2]."""
  return bits_at(keys[..., 0, None, None], keys[..., 1, None, None], first, size)


def bits_at(one, other, first: tuple, size: tuple[int, int], axes=(0, 1)) -> jax.Array:
  """As `bits`. one, other: the two uint32s of keys, which broadcast to `size`. axes: the axes of
  `size` along which the two numbers of a place grow.
  """
  one, other = (jnp.asarray(n).astype(jnp.uint32) for n in (one, other))
  place = [jax.lax.broadcasted_iota(jnp.int32, size, n) + start for n, start in zip(axes, first)]
  return _mixed(_mixed((place[0] * _ROW + place[1]).astype(jnp.uint32) ^ one) + other)


def keep(keys: jax.Array, rate: float, size: tuple[int, int], first: tuple = (0, 0)) -> jax.Array:
  """Booleans [..., *size], true with probability 1 − rate, to within 2^−32. first: see `bits`."""
  return bits(keys, size, first) >= threshold(rate)


def normal(keys: jax.Array, size: tuple[int, int]) -> jax.Array:
  """float32 [..., *size], standard normal: one of 2^23 values, below 5.4 in size."""
  parts = (bits(keys, size) >> np.uint32(9)).astype(jnp.float32)
  middles = (parts + 0.5) * np.float32(2.0**-22) - 1.0  # of equal parts of −1 to 1, exactly
  return np.float32(2**0.5) * jax.lax.erf_inv(middles)


def threshold(rate: float) -> np.uint32:
  """The uint32 that random bits are below with probability `rate`."""
  return np.uint32(min(round(rate * 2**32), 2**32 - 1))


def _mixed(x):
  x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
  x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
  return x ^ (x >> np.uint32(16))
