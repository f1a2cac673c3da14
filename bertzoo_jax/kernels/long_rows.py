"""Fused attention of long rows and of windows, forward and backward, as TPU kernels, by tiles of
queries and keys. Legend as in attention.py. Q queries and S keys of a tile; scores of a tile are
[S, Q].

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

_SHORT = 512  # queries and keys up to which all scores of a head are in fast memory (attention.py)
_BLOCKS = 512, 384, 256, 128  # queries of a program, and keys of a tile without a window
_HALO = 64  # a halo is one of these, or two, four


def takes(length: int, keys: int, visible, relative) -> bool:
  """Whether `attend` computes this: long rows, or a window that leaves out keys, both without
  relative terms. Else attention.attend does.
  """
  elsewhere = visible.query_places_BL is not None or visible.first_query
  if relative is not None or (visible.window is not None and elsewhere):
    return False
  return is_long(length, keys, visible.window)


def is_long(length: int, keys: int, window) -> bool:
  return max(length, keys) > _SHORT or bool(_halo(length, keys, window))


def steps(heads: int, width: int, length: int, keys: int, window) -> tuple[int, int]:
  """Programs per row of the batch, forward and backward, in bfloat16. A window's last program only
  writes, and is not counted.
  """
  halo, own = _halo(length, keys, window), _width(width)
  depth = operands.up(heads * own)
  block = _block(max(length, keys), halo, jnp.dtype(jnp.bfloat16))
  blocks, num_tiles = (-(-n // block) for n in (length, keys))
  num_tiles = blocks if halo else blocks * num_tiles
  lanes = tiles.lanes_of(depth, own), tiles.lanes_of(depth, own, 0 if halo else 8 * blocks * block)
  return tuple(depth // n * num_tiles for n in lanes)


def _halo(length, keys, window) -> tuple[int, int] | None:
  """(keys before, keys after) a block that a program reads; None if it reads all keys."""
  if window is None or min(window) < 0 or length != keys:
    return None
  halo = tuple(_HALO << max(0, math.ceil(n / _HALO) - 1).bit_length() for n in window)
  return halo if max(halo) <= 2 * LANES and sum(halo) + LANES < keys else None


def _block(tokens, halo, dtype) -> int:
  """Queries of a program: the least padding, then the most queries. In float32 half as many fit."""
  most = 2 * _BLOCKS[0] // dtype.itemsize
  fits = [n for n in _BLOCKS if n <= most and not any(n % keys for keys in halo or ())]
  return min(fits, key=lambda n: (-tokens % n, -n))


def _width(width) -> int:
  """Lanes of a head: a part of a register that divides it, or whole registers."""
  return next(n for n in (8, 16, 32, 64, LANES, operands.up(width)) if n >= width)


def attend(
  q_BLHK, k_BMHK, v_BMHK, visible, rate, keys_B2, scale, first_head, kept, hashed, interpret
):
  """(out_BLHK, (lse_BH1L, out_BLHK or None)): arguments and results as of attention.attend."""
  batch, length, heads, width = q_BLHK.shape
  keys = k_BMHK.shape[1]
  halo = _halo(length, keys, visible.window)
  block = _block(max(length, keys), halo, q_BLHK.dtype)
  of_queries, of_keys = operands.marks(visible)
  own = _width(width)
  rows, columns = (-(-n // block) * block for n in (length, keys))
  flat = lambda x, size: operands.pad(_whole_registers(x, own), size, 1)
  arrays = flat(q_BLHK, rows), flat(k_BMHK, columns), flat(v_BMHK, columns)
  program = tiles.Program(
    own,
    tiles.lanes_of(arrays[0].shape[2], own),
    width**-0.5 if scale is None else float(scale),
    float(rate) if keys_B2 is not None else 0.0,
    visible.window,
    'order' in of_queries,
    block,
    halo,
    hashed,
    interpret,
  )
  marks = operands.stacked(of_queries, rows, -1), operands.stacked(of_keys, columns, -2)
  starts = range(0, columns, program.tile[1])
  if halo:
    starts = range(-halo[0], rows - halo[0], LANES)
  marks = marks[0], _cut(marks[1], starts, program.tile[1])
  seed = bits.seed(keys_B2, batch, first_head)
  if kept is not None and kept[1] is not None:
    kept = kept[0], flat(kept[1], rows)
  out_BLD, (lse_BH1L, out_too) = _attend(program, *arrays, *marks, seed, kept)
  out_BLHK = out_BLD[:, :length].reshape(batch, length, -1, own)[:, :, :heads, :width]
  return out_BLHK, (lse_BH1L, None if out_too is None else out_BLHK)


def _whole_registers(x_BLHK, width):
  """x_BLD of heads that are `width` wide, with heads of zeros until registers are full."""
  heads = max(1, LANES // width)
  x_BLHK = operands.pad(operands.pad(x_BLHK, width, 3), -(-x_BLHK.shape[2] // heads) * heads, 2)
  return x_BLHK.reshape(*x_BLHK.shape[:2], -1)


def _cut(marks_BNM, starts, size):
  """[B, num_tiles, N, size]: the marks of each tile's keys; beyond the row there is nobody."""
  before, after = max(0, -starts[0]), max(0, starts[-1] + size - marks_BNM.shape[2])
  marks_BNM = jnp.pad(marks_BNM, ((0, 0), (0, 0), (before, after)), constant_values=-2)
  return jnp.stack([marks_BNM[..., s + before : s + before + size] for s in starts], axis=1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(program, q_BLD, k_BLD, v_BLD, own_BNL, others_BTNS, seed, kept):
  """(out_BLD, (lse_BH1L, out_BLD)). The second gets no gradient."""
  if kept is not None:
    return jnp.zeros_like(q_BLD), kept
  run = windows.forward if program.halo else all_keys.forward
  out_BLD, lse_BH1L = run(program, q_BLD, k_BLD, v_BLD, own_BNL, others_BTNS, seed)
  return out_BLD, (lse_BH1L, None if program.halo else out_BLD)


def _attend_forward(program, *args):
  out, kept = _attend(program, *args)
  kept = jax.tree.map(lambda x: checkpoint_name(x, 'attended'), kept)
  return (out, kept), (args[:-1], kept)


def _attend_backward(program, saved, grads):
  (q_BLD, k_BLD, v_BLD, *rest), (lse_BH1L, out_BLD) = saved
  if program.halo:
    d = windows.backward(program, q_BLD, k_BLD, v_BLD, grads[0], lse_BH1L, *rest)
  else:
    delta_BH1L = _by_head(out_BLD, grads[0], lse_BH1L.shape[1])
    d = all_keys.backward(program, q_BLD, k_BLD, v_BLD, grads[0], lse_BH1L, delta_BH1L, *rest)
  return *d, None, None, None, None


_attend.defvjp(_attend_forward, _attend_backward)


def _by_head(x_BLD, y_BLD, heads):
  """float32 [B, H, 1, L]: the scalar products of each head."""
  split = lambda x: x.astype(jnp.float32).reshape(*x.shape[:2], heads, -1)
  return jnp.einsum('BLHK,BLHK->BHL', split(x_BLD), split(y_BLD))[:, :, None]
