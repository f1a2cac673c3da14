"""Shifts columns of an array by as many rows as each column's place: relative terms of attention.

A score's relative term belongs to the distance of its query and its key. A product of queries with
a table has a column per query and a row per distance. Shifted so, its rows are keys. No element is
gathered from main memory, and no array larger than the product is made.

A tile of float32 has 8 sublanes. Shifts by multiples of 8 rows move whole registers; shifts by less
move sublanes inside them.
"""

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

_LANES = 128
_SUBLANES = 8


def shear(x, gather: bool):
  """out[m, r] = x[m + 127 − r, r], for float32 x [size + 128, 128] and m < size.

  Args:
    x: size is a multiple of 8.
    gather: move sublanes by indices. TPU v4 has no such instruction; it moves them bit by bit.
  """
  shift, size = _shift(), len(x) - _LANES
  for bit in (64, 32, 16, 8):
    x = jnp.where(shift & bit > 0, x[bit : bit + size + bit], x[: size + bit])
  if not gather:
    for bit in (4, 2, 1):
      x = jnp.where(shift & bit > 0, pltpu.roll(x, len(x) - bit, 0), x)
    return x[:size]
  sublane = _sublane() + (shift & 7)
  tiles = [jnp.take_along_axis(tile, sublane & 7, axis=0) for tile in _tiles(x)]
  pairs = zip(tiles, tiles[1:])
  return jnp.concatenate([jnp.where(sublane > 7, after, tile) for tile, after in pairs])


def unshear(x, gather: bool):
  """The transpose of `shear`: out[m + 127 − r, r] = x[m, r], elsewhere 0; [size + 128, 128]."""
  shift = _shift()
  zeros = lambda rows: jnp.zeros((rows, _LANES), x.dtype)
  if gather:
    sublane = _sublane() - (shift & 7)
    tiles = [jnp.take_along_axis(tile, sublane & 7, axis=0) for tile in _tiles(x)]
    tiles = [zeros(_SUBLANES), *tiles, zeros(_SUBLANES)]
    pairs = zip(tiles, tiles[1:])
    x = jnp.concatenate([jnp.where(sublane < 0, before, tile) for before, tile in pairs])
  else:
    x = jnp.concatenate([x, zeros(_SUBLANES)])
    for bit in (1, 2, 4):
      x = jnp.where(shift & bit > 0, pltpu.roll(x, bit, 0), x)
  for bit in (8, 16, 32, 64):
    moved, stayed = jnp.concatenate([zeros(bit), x]), jnp.concatenate([x, zeros(bit)])
    x = jnp.where(shift & bit > 0, moved, stayed)
  return x


def _shift():
  """int32 [1, 128]: by how many rows each column moves."""
  return _LANES - 1 - jax.lax.broadcasted_iota(jnp.int32, (1, _LANES), 1)


def _sublane():
  return jax.lax.broadcasted_iota(jnp.int32, (_SUBLANES, _LANES), 0)


def _tiles(x):
  return [x[i : i + _SUBLANES] for i in range(0, len(x), _SUBLANES)]
