"""Shifts each column of an array by its own number of rows, for relative terms of attention.

A relative term depends on the distance of query and key. A product of queries with a table has a
column per query and a row per distance. If each column is shifted by its query's place, the rows
are keys. No element is gathered from main memory, and no array larger than the product is made.

A tile of float32 has 8 sublanes. Shifts by multiples of 8 rows move whole registers; shifts by less
move sublanes inside them.
"""

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

_LANES = 128
_SUBLANES = 8


def shear(x, size: int, gather: bool, shift=None):
  """out[m, r] = x[m + shift[r], r] for m < size, of float32 x [size + more, 128].

  x: `more` is greater than all shifts. `more` and `size` are multiples of 8. size: rows of the
  result. gather: move sublanes by indices. TPU v4 has no such instruction; it moves them bit by
  bit. shift: int32 [1, 128]. None: 127 − r.
  """
  shift, more = _steps() if shift is None else shift, len(x) - size
  bits = _bits(more)
  x = _concatenated(x, _zeros(2 * bits[0] - more, x))
  for bit in bits:
    x = jnp.where(shift & bit > 0, x[bit : bit + size + bit], x[: size + bit])
  if not gather:
    for bit in (4, 2, 1):
      x = jnp.where(shift & bit > 0, pltpu.roll(x, len(x) - bit, 0), x)
    return x[:size]
  sublane = _sublane() + (shift & 7)
  tiles = [jnp.take_along_axis(tile, sublane & 7, axis=0) for tile in _tiles(x)]
  pairs = zip(tiles, tiles[1:])
  return jnp.concatenate([jnp.where(sublane > 7, after, tile) for tile, after in pairs])


def unshear(x, more: int, gather: bool, shift=None):
  """The transpose of `shear`: out[m + shift[r], r] = x[m, r], elsewhere 0; [size + more, 128]."""
  shift, size = _steps() if shift is None else shift, len(x)
  if gather:
    sublane = _sublane() - (shift & 7)
    tiles = [jnp.take_along_axis(tile, sublane & 7, axis=0) for tile in _tiles(x)]
    tiles = [_zeros(_SUBLANES, x), *tiles, _zeros(_SUBLANES, x)]
    pairs = zip(tiles, tiles[1:])
    x = jnp.concatenate([jnp.where(sublane < 0, before, tile) for before, tile in pairs])
  else:
    x = jnp.concatenate([x, _zeros(_SUBLANES, x)])
    for bit in (1, 2, 4):
      x = jnp.where(shift & bit > 0, pltpu.roll(x, bit, 0), x)
  for bit in reversed(_bits(more)):
    moved, stayed = jnp.concatenate([_zeros(bit, x), x]), jnp.concatenate([x, _zeros(bit, x)])
    x = jnp.where(shift & bit > 0, moved, stayed)
  return x[: size + more]


def pick(x, place):
  """out[m, q] = x[m, place[q] + 127 − m], of float32 x [128, N + 128]. The result is chosen columns
  of `shear` of the transpose of x, transposed. Lanes move inside a register, by indices.

  place: int32 [1, Q], below N; Q is whole lanes.
  """
  return _concatenated(*(_picked(x, place[:, q : q + _LANES]) for q in _starts(place)), axis=1)


def _picked(x, place):
  tiles = []
  for row in range(0, _LANES, _SUBLANES):
    at = place + (_LANES - 1 - row) - _sublane()
    tile = 0.0
    for n in _starts(x):
      part = x[row : row + _SUBLANES, n : n + _LANES]
      moved = jnp.take_along_axis(part, at & (_LANES - 1), axis=1)
      tile = jnp.where(at - (at & (_LANES - 1)) == n, moved, tile)
    tiles.append(tile)
  return jnp.concatenate(tiles)


def _starts(x):
  return range(0, x.shape[1], _LANES)


def _bits(more: int) -> list[int]:
  """Powers of two, from the greatest to 8, whose sums are all shifts below `more` by registers."""
  return [1 << n for n in reversed(range(3, (more - 1).bit_length()))]


def _zeros(rows: int, x):
  return jnp.zeros((rows, x.shape[1]), x.dtype)


def _concatenated(*parts, axis=0):
  parts = [part for part in parts if part.shape[axis]]
  return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=axis)


def _steps():
  """int32 [1, 128]: each column moves by one row less than the one before it."""
  return _LANES - 1 - jax.lax.broadcasted_iota(jnp.int32, (1, _LANES), 1)


def _sublane():
  return jax.lax.broadcasted_iota(jnp.int32, (_SUBLANES, _LANES), 0)


def _tiles(x):
  return [x[i : i + _SUBLANES] for i in range(0, len(x), _SUBLANES)]
