"""Fused attention without relative terms, forward and backward, as TPU kernels over tiles of
queries and keys. Legend: attention.py; Q queries and S keys of a tile, whose scores are [S, Q].

The kernels are in all_keys.py and windows.py. The forward and the backward pass have the same
tiles, so they draw the same dropout bits.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from bertzoo_jax.kernels import all_keys
from bertzoo_jax.kernels import bits
from bertzoo_jax.kernels import operands
from bertzoo_jax.kernels import tiles
from bertzoo_jax.kernels import windows
from bertzoo_jax.kernels.operands import LANES

_SHORT = 512  # queries and keys up to which a tile is a whole row
_BLOCKS = 512, 384, 256, 128  # queries of a program, and keys of a tile without a window
_HALO = 64  # a halo is this, times a power of two


def takes(length: int, keys: int, visible, relative) -> bool:
  """Whether `attend` computes this; relative terms and windows at places are in attention.py."""
  elsewhere = visible.query_places_BL is not None or visible.first_query
  return relative is None and not (visible.window is not None and elsewhere)


def steps(heads: int, width: int, length: int, keys: int, window) -> tuple[int, int]:
  """Programs per row of the batch, forward and backward, in bfloat16. A window's last program only
  writes, and is not counted.
  """
  halo, padded = _halo(length, keys, window), width_of(heads, width)
  tile = _tile(length, keys, halo, jnp.dtype(jnp.bfloat16), min(heads, LANES // padded))
  blocks, num_tiles = -(-length // tile[0]), -(-keys // tile[1])
  kept = 8 * blocks * tile[0] if not halo and blocks * num_tiles > 1 else 0
  programs = blocks if halo else blocks * num_tiles
  lanes = tiles.lanes_of(heads * padded, padded), tiles.lanes_of(heads * padded, padded, kept)
  return tuple(heads * padded // n * programs for n in lanes)


def _halo(length, keys, window) -> tuple[int, int] | None:
  """(keys before, keys after) a block that a program reads; None if it reads all keys."""
  if window is None or min(window) < 0 or length != keys:
    return None
  halo = tuple(_HALO << max(0, math.ceil(n / _HALO) - 1).bit_length() for n in window)
  return halo if max(halo) <= 2 * LANES and sum(halo) + LANES < keys else None


def _tile(length, keys, halo, dtype, together) -> tuple[int, int]:
  """(queries of a program, keys of a tile without a window): a whole row, or the size with the
  least padding, then the largest. Fewer fit in float32, and with more than 4 heads in a register.
  """
  most = 2 * _BLOCKS[0] // dtype.itemsize
  most = most if halo else max(LANES, most * 4 // max(4, together))
  if not halo and max(length, keys) <= min(most, _SHORT):
    return operands.up(length), operands.up(keys)
  fits = [n for n in _BLOCKS if n <= most and not any(n % keys for keys in halo or ())]
  return (min(fits, key=lambda n: (-max(length, keys) % n, -n)),) * 2


def width_of(heads, width) -> int:
  """Lanes per head: the fewest such that heads do not cross registers, and all heads together fill
  whole registers or a part of one.
  """
  sizes = 8, 16, 32, 64, LANES, operands.up(width)
  fills = lambda lanes: lanes < LANES or lanes % LANES == 0
  return next(n for n in sizes if n >= width and fills(heads * n))


def attend(
  q_BLHK, k_BMHK, v_BMHK, visible, rate, keys_B2, scale, first_head, kept, hashed, interpret
):
  """(out_BLHK, (lse_BH1L, out_BLHK or None)): arguments and results as of attention.attend."""
  batch, length, heads, width = q_BLHK.shape
  keys = k_BMHK.shape[1]
  halo = _halo(length, keys, visible.window)
  padded = width_of(heads, width)
  tile = _tile(length, keys, halo, q_BLHK.dtype, min(heads, LANES // padded))
  query_marks, key_marks = operands.marks(visible)
  rows, columns = (-(-n // size) * size for n, size in zip((length, keys), tile))
  wide = lambda x: operands.pad(x, padded, 3).reshape(*x.shape[:2], heads * padded)
  flat = lambda x, size: operands.pad(wide(x), size, 1)
  arrays = flat(q_BLHK, rows), flat(k_BMHK, columns), flat(v_BMHK, columns)
  program = tiles.Program(
    padded,
    tiles.lanes_of(arrays[0].shape[2], padded),
    width**-0.5 if scale is None else float(scale),
    float(rate) if keys_B2 is not None else 0.0,
    visible.window,
    'order' in query_marks,
    tile[0],
    (LANES, LANES + sum(halo)) if halo else tile,
    halo,
    bool(halo) or (rows, columns) == tile,
    hashed,
    interpret,
  )
  marks = operands.stacked(query_marks, rows, -1), operands.stacked(key_marks, columns, -2)
  starts = range(0, columns, program.tile[1])
  if halo:
    starts = range(-halo[0], rows - halo[0], LANES)
  marks = marks[0], _cut(marks[1], starts, program.tile[1])
  seed = bits.seed(keys_B2, batch, first_head)
  if kept is not None and kept[1] is not None:
    kept = kept[0], flat(kept[1], rows)
  out_BLD, (lse_BH1L, kept_out) = _attend(program, *arrays, *marks, seed, kept)
  out_BLHK = out_BLD[:, :length].reshape(batch, length, heads, padded)[..., :width]
  return out_BLHK, (lse_BH1L, None if kept_out is None else out_BLHK)


def _cut(marks_BNM, starts, size):
  """[B, num_tiles, N, size]: the marks of each tile's keys; −2 outside the row, which none sees."""
  before, after = max(0, -starts[0]), max(0, starts[-1] + size - marks_BNM.shape[2])
  marks_BNM = jnp.pad(marks_BNM, ((0, 0), (0, 0), (before, after)), constant_values=-2)
  return jnp.stack([marks_BNM[..., s + before : s + before + size] for s in starts], axis=1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(program, q_BLD, k_BLD, v_BLD, q_marks_BNL, k_marks_BTNS, seed, kept):
  """(out_BLD, (lse_BH1L, out_BLD)). The second gets no gradient."""
  if kept is not None:
    return jnp.zeros_like(q_BLD), kept
  run = windows.forward if program.halo else all_keys.forward
  out_BLD, lse_BH1L = run(program, q_BLD, k_BLD, v_BLD, q_marks_BNL, k_marks_BTNS, seed)
  return out_BLD, (lse_BH1L, None if program.complete else out_BLD)


def _attend_forward(program, *args):
  out, kept = _attend(program, *args)
  kept = jax.tree.map(lambda x: checkpoint_name(x, 'attended'), kept)
  return (out, kept), (args[:-1], kept)


def _attend_backward(program, saved, grads):
  (q_BLD, k_BLD, v_BLD, *rest), (lse_BH1L, out_BLD) = saved
  if program.halo:
    d = windows.backward(program, q_BLD, k_BLD, v_BLD, grads[0], lse_BH1L, *rest)
  else:
    deltas = [] if program.complete else [_by_head(out_BLD, grads[0], lse_BH1L.shape[1])]
    d = all_keys.backward(program, q_BLD, k_BLD, v_BLD, grads[0], lse_BH1L, deltas, *rest)
  return *d, None, None, None, None


_attend.defvjp(_attend_forward, _attend_backward)


def _by_head(x_BLD, y_BLD, heads):
  """float32 [B, H, 1, L]: the scalar products of each head."""
  split = lambda x: x.astype(jnp.float32).reshape(*x.shape[:2], heads, -1)
  return jnp.einsum('BLHK,BLHK->BHL', split(x_BLD), split(y_BLD))[:, :, None]
