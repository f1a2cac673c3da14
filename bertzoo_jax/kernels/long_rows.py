"""Fused attention of long rows, forward and backward, as TPU kernels: by tiles of queries and keys.

Legend as in attention.py. Q queries and S keys of a tile; scores of a tile are [S, Q].

Without a window (Dao et al. 2022, §3.1): the forward pass goes through the tiles of keys for a
block of queries, and corrects its sums when the largest score grows. The backward pass goes through
the blocks of queries for a tile of keys. It sums the gradients of a whole row's queries in fast
memory.

With a window: a program has a block of queries, the keys beside them, and some keys before and
after (the halo). Its tiles are 128 queries and all keys that one of them sees. So no sum is
corrected, and no other key is read. The gradients of a block's keys are written when the next block
has added its own.

Both passes have the same tiles, so they draw the same dropout bits. Products read whole registers
of lanes, in which one factor is 0 in the lanes of other heads: that is faster than moving a head to
the first lanes. All tiles of a program go through a step before the next step: one tile alone has
too little to do in parallel.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bertzoo_jax.kernels import bits
from bertzoo_jax.kernels import operands
from bertzoo_jax.kernels.operands import LANES
from bertzoo_jax.kernels.operands import product
from bertzoo_jax.model.attention import HIDDEN

_SHORT = 512  # queries and keys up to which all scores of a head are in fast memory (attention.py)
_BLOCKS = 512, 384, 256, 128  # queries of a program, and keys of a tile without a window
_HALO = 64  # a halo is one of these, or two, four
_WIDE = 256  # lanes of a program: some heads, so that there is enough to do in parallel
_SUMS = (
  1 << 23
)  # bytes for the sums and results of a row's queries; else a program takes fewer lanes
_MEMORY = 1 << 24  # bytes of fast memory that a kernel has without asking
_LOG2_E = math.log2(math.e)


class _Program(NamedTuple):
  """What a program is compiled for.

  Attributes:
    width: of a head. lanes: of a program, side by side the lanes of its heads.
    scale: factor of the scores. rate: of dropout.
    window: None or (left, right).
    ordered: whether queries and keys have an order besides their packs.
    block: queries of a program. halo: (keys before, keys after) that it reads; None for all keys.
    hashed: draw dropout bits by row_keys.py. interpret: run on any machine.
  """

  width: int
  lanes: int
  scale: float
  rate: float
  window: tuple[int, int] | None
  ordered: bool
  block: int
  halo: tuple[int, int] | None
  hashed: bool
  interpret: bool

  @property
  def tile(self) -> tuple[int, int]:
    """(queries, keys)."""
    return (LANES, LANES + sum(self.halo)) if self.halo else (self.block, self.block)

  @property
  def heads(self) -> int:
    return self.lanes // self.width


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
  blocks, tiles = (-(-n // block) for n in (length, keys))
  tiles = blocks if halo else blocks * tiles
  lanes = _lanes(depth, own), _lanes(depth, own, 0 if halo else 8 * blocks * block)
  return tuple(depth // n * tiles for n in lanes)


def _halo(length, keys, window) -> tuple[int, int] | None:
  """(keys before, keys after) a block that a program reads; None if it reads all keys."""
  if window is None or min(window) < 0 or length != keys:
    return None
  halo = tuple(_HALO << max(0, math.ceil(n / _HALO) - 1).bit_length() for n in window)
  return halo if max(halo) <= 2 * LANES and sum(halo) + LANES < keys else None


def _block(tokens, halo, dtype) -> int:
  """Queries of a program: those that fill least; of such, the most. In float32 half as many fit."""
  most = 2 * _BLOCKS[0] // dtype.itemsize
  fits = [n for n in _BLOCKS if n <= most and not any(n % keys for keys in halo or ())]
  return min(fits, key=lambda n: (-tokens % n, -n))


def _width(width) -> int:
  """Lanes of a head: a part of a register that divides it, or whole registers."""
  return next(n for n in (8, 16, 32, 64, LANES, operands.up(width)) if n >= width)


def _lanes(depth, width, bytes_of_lane=0) -> int:
  """Lanes of a program, of whole heads. bytes_of_lane: what a program keeps for a whole row."""
  fits = [n for n in (_WIDE, LANES) if depth % n == 0 and n % width == 0] or [width]
  return next((n for n in fits if n * bytes_of_lane <= _SUMS), fits[-1])


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
  program = _Program(
    own,
    _lanes(arrays[0].shape[2], own),
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
  tiles = range(0, columns, program.tile[1])
  if halo:
    tiles = range(-halo[0], rows - halo[0], LANES)
  marks = marks[0], _cut(marks[1], tiles, program.tile[1])
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
  """[B, tiles, N, size]: the marks of each tile's keys; beyond the row there is nobody."""
  before, after = max(0, -starts[0]), max(0, starts[-1] + size - marks_BNM.shape[2])
  marks_BNM = jnp.pad(marks_BNM, ((0, 0), (0, 0), (before, after)), constant_values=-2)
  return jnp.stack([marks_BNM[..., s + before : s + before + size] for s in starts], axis=1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(program, q_BLD, k_BLD, v_BLD, own_BNL, others_BTNS, seed, kept):
  """(out_BLD, (lse_BH1L, out_BLD)). The second gets no gradient."""
  if kept is not None:
    return jnp.zeros_like(q_BLD), kept
  run = _call_forward_near if program.halo else _call_forward
  out_BLD, lse_BH1L = run(program, q_BLD, k_BLD, v_BLD, own_BNL, others_BTNS, seed)
  return out_BLD, (lse_BH1L, None if program.halo else out_BLD)


def _attend_forward(program, *args):
  out, kept = _attend(program, *args)
  kept = jax.tree.map(lambda x: checkpoint_name(x, 'attended'), kept)
  return (out, kept), (args[:-1], kept)


def _attend_backward(program, saved, grads):
  (q_BLD, k_BLD, v_BLD, *rest), (lse_BH1L, out_BLD) = saved
  if program.halo:
    d = _call_backward_near(program, q_BLD, k_BLD, v_BLD, grads[0], lse_BH1L, *rest)
  else:
    delta_BH1L = _by_head(out_BLD, grads[0], lse_BH1L.shape[1])
    d = _call_backward(program, q_BLD, k_BLD, v_BLD, grads[0], lse_BH1L, delta_BH1L, *rest)
  return *d, None, None, None, None


_attend.defvjp(_attend_forward, _attend_backward)


def _by_head(x_BLD, y_BLD, heads):
  """float32 [B, H, 1, L]: the scalar products of each head."""
  split = lambda x: x.astype(jnp.float32).reshape(*x.shape[:2], heads, -1)
  return jnp.einsum('BLHK,BLHK->BHL', split(x_BLD), split(y_BLD))[:, :, None]


# --- calls --------------------------------------------------------------------------------------


def _call(program, kernel, arrays, seed, grid, out, specs, scratch, order):
  """Runs a kernel. out: (shape, dtype, spec) of each result. order: semantics of the grid."""
  shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype, _ in out]
  length, keys = arrays[0].shape[1], arrays[1].shape[1]
  width = program.tile[1] if program.halo else keys
  products = 5 if 'backward' in kernel.__name__ else 2
  pairs = len(seed) // 2 * arrays[0].shape[2] // program.width * length * width
  name = f'attention{kernel.__name__}_k{program.width}' + f'_m{keys}' * (keys != length)
  name += '_window{}_{}'.format(*program.window) if program.window else ''
  return pl.pallas_call(
    functools.partial(kernel, program),
    out_shape=shapes,
    interpret=program.interpret,
    cost_estimate=pl.CostEstimate(
      flops=2 * products * pairs * program.width,
      transcendentals=pairs,
      bytes_accessed=sum(x.size * x.dtype.itemsize for x in (*arrays, *shapes)),
    ),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=grid,
      in_specs=specs,
      out_specs=[spec for *_, spec in out],
      scratch_shapes=scratch,
    ),
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=order, vmem_limit_bytes=_memory(program, arrays, kernel)
    ),
    name=name + '_order' * program.ordered + bits.variant(program, arrays[0].dtype),
  )(seed, *arrays)


def _memory(program, arrays, kernel) -> int | None:
  """Bytes of fast memory to ask for; None for those that there are without."""
  if kernel is not _backward_tiles:
    return None
  q_BLD = arrays[0]
  sums = q_BLD.shape[1] * program.lanes * (4 + 2 * q_BLD.dtype.itemsize)
  return None if 2 * sums <= _MEMORY else sums + _MEMORY


def _sizes(program, q_BLD, k_BLD):
  """(B, groups of lanes, blocks of queries, tiles of keys without a window)."""
  batch, length, depth = q_BLD.shape
  return batch, depth // program.lanes, length // program.block, k_BLD.shape[1] // program.block


def _call_forward(program, q_BLD, k_BLD, v_BLD, own_BNL, others_BTNS, seed):
  batch, groups, blocks, tiles = _sizes(program, q_BLD, k_BLD)
  rows, n = program.block, own_BNL.shape[1]
  of_queries = pl.BlockSpec((1, rows, program.lanes), lambda b, h, i, j, _: (b, i, h))
  of_keys = pl.BlockSpec((1, rows, program.lanes), lambda b, h, i, j, _: (b, j, h))
  of_lse = pl.BlockSpec((1, program.heads, 1, rows), lambda b, h, i, j, _: (b, h, 0, i))
  marks = (
    pl.BlockSpec((1, n, rows), lambda b, h, i, j, _: (b, 0, i)),
    pl.BlockSpec((1, 1, n, rows), lambda b, h, i, j, _: (b, j, 0, 0)),
  )
  out = [
    (q_BLD.shape, q_BLD.dtype, of_queries),
    ((batch, q_BLD.shape[2] // program.width, 1, q_BLD.shape[1]), jnp.float32, of_lse),
  ]
  row = pltpu.VMEM((program.heads, 1, rows), jnp.float32)
  scratch = [row, row, pltpu.VMEM((program.heads, program.width, rows), jnp.float32)]
  order = 'parallel', 'parallel', 'parallel', 'arbitrary'
  arrays = q_BLD, k_BLD, v_BLD, own_BNL, others_BTNS
  specs = [of_queries, of_keys, of_keys, *marks]
  grid = batch, groups, blocks, tiles
  return _call(program, _forward_tiles, arrays, seed, grid, out, specs, scratch, order)


def _call_backward(program, q_BLD, k_BLD, v_BLD, grad, lse, delta, own_BNL, others_BTNS, seed):
  of_lane = q_BLD.shape[1] * (4 + 2 * q_BLD.dtype.itemsize)
  program = program._replace(lanes=_lanes(q_BLD.shape[2], program.width, of_lane))
  batch, groups, blocks, tiles = _sizes(program, q_BLD, k_BLD)
  rows, n = program.block, own_BNL.shape[1]
  of_queries = pl.BlockSpec((1, rows, program.lanes), lambda b, h, j, i, _: (b, i, h))
  of_keys = pl.BlockSpec((1, rows, program.lanes), lambda b, h, j, i, _: (b, j, h))
  of_lse = pl.BlockSpec((1, program.heads, 1, rows), lambda b, h, j, i, _: (b, h, 0, i))
  marks = (
    pl.BlockSpec((1, n, rows), lambda b, h, j, i, _: (b, 0, i)),
    pl.BlockSpec((1, 1, n, rows), lambda b, h, j, i, _: (b, j, 0, 0)),
  )
  whole = pl.BlockSpec((1, q_BLD.shape[1], program.lanes), lambda b, h, j, i, _: (b, 0, h))
  out = [
    (q_BLD.shape, q_BLD.dtype, whole),
    (k_BLD.shape, k_BLD.dtype, of_keys),
    (v_BLD.shape, v_BLD.dtype, of_keys),
  ]
  of_tile = pltpu.VMEM((rows, program.lanes), jnp.float32)
  scratch = [pltpu.VMEM((q_BLD.shape[1], program.lanes), jnp.float32), of_tile, of_tile]
  order = 'parallel', 'parallel', 'arbitrary', 'arbitrary'
  arrays = q_BLD, k_BLD, v_BLD, grad, lse, delta, own_BNL, others_BTNS
  specs = [of_queries, of_keys, of_keys, of_queries, of_lse, of_lse, *marks]
  grid = batch, groups, tiles, blocks
  return _call(program, _backward_tiles, arrays, seed, grid, out, specs, scratch, order)


def _near_specs(program, blocks, marks):
  """{what: spec} of a program for block i; past the last block, those of the last again."""
  rows, (before, after) = program.block, program.halo
  last = blocks - 1
  own = lambda i: jnp.minimum(i, last)
  end = blocks * rows // after - 1
  tiles = rows // program.tile[0]
  at = lambda shape, index: pl.BlockSpec(shape, lambda b, h, i, _: index(b, h, i))
  return dict(
    block=at((1, rows, program.lanes), lambda b, h, i: (b, own(i), h)),
    before=at(
      (1, before, program.lanes),
      lambda b, h, i: (b, jnp.maximum(own(i) * (rows // before) - 1, 0), h),
    ),
    after=at(
      (1, after, program.lanes),
      lambda b, h, i: (b, jnp.minimum((own(i) + 1) * (rows // after), end), h),
    ),
    late=at((1, rows, program.lanes), lambda b, h, i: (b, jnp.maximum(i - 1, 0), h)),
    lse=at((1, program.heads, 1, rows), lambda b, h, i: (b, h, 0, own(i))),
    own=at((1, marks, rows), lambda b, h, i: (b, 0, own(i))),
    others=at((1, tiles, marks, program.tile[1]), lambda b, h, i: (b, own(i), 0, 0)),
  )


def _call_forward_near(program, q_BLD, k_BLD, v_BLD, own_BNL, others_BTNS, seed):
  batch, groups, blocks, _ = _sizes(program, q_BLD, k_BLD)
  at = _near_specs(program, blocks, own_BNL.shape[1])
  out = [
    (q_BLD.shape, q_BLD.dtype, at['block']),
    ((batch, q_BLD.shape[2] // program.width, 1, q_BLD.shape[1]), jnp.float32, at['lse']),
  ]
  near = [at['before'], at['block'], at['after']]
  arrays = q_BLD, *(k_BLD,) * 3, *(v_BLD,) * 3, own_BNL, others_BTNS
  specs = [at['block'], *near, *near, at['own'], at['others']]
  grid, order = (batch, groups, blocks), ('parallel',) * 3
  return _call(program, _forward_near, arrays, seed, grid, out, specs, (), order)


def _call_backward_near(program, q_BLD, k_BLD, v_BLD, grad, lse, own_BNL, others_BTNS, seed):
  batch, groups, blocks, _ = _sizes(program, q_BLD, k_BLD)
  at = _near_specs(program, blocks, own_BNL.shape[1])
  out = [
    (q_BLD.shape, q_BLD.dtype, at['block']),
    (k_BLD.shape, k_BLD.dtype, at['late']),
    (v_BLD.shape, v_BLD.dtype, at['late']),
  ]
  near = [at['before'], at['block'], at['after']]
  arrays = q_BLD, *(k_BLD,) * 3, *(v_BLD,) * 3, grad, lse, own_BNL, others_BTNS
  specs = [at['block'], *near, *near, at['block'], at['lse'], at['own'], at['others']]
  # gradients of the block before, of this one, and of the halo after it
  sums = pltpu.VMEM((2 * program.block + program.halo[1], program.lanes), jnp.float32)
  grid, order = (batch, groups, blocks + 1), ('parallel', 'parallel', 'arbitrary')
  return _call(program, _backward_near, arrays, seed, grid, out, specs, [sums, sums], order)


# --- inside a program ---------------------------------------------------------------------------


class _Head(NamedTuple):
  """A head, and the register of lanes that it shares with others.

  Products read whole registers in which one factor is 0 in the lanes of other heads: that is faster
  than moving a head to the first lanes.

  Attributes:
    number: in the program. lanes: of the register. rows: the head's, in a transposed register.
    mine_1K: which lanes of the register are the head's; None for all.
  """

  number: int
  lanes: slice
  rows: slice
  mine_1K: jax.Array | None

  def own(self, x_NK):
    """x_NK, 0 in lanes of other heads."""
    return x_NK if self.mine_1K is None else jnp.where(self.mine_1K, x_NK, jnp.zeros_like(x_NK))


def _registers(program):
  """[lanes, its heads] of each register of the program's lanes."""
  size = max(LANES, program.width)
  lane_1K = jax.lax.broadcasted_iota(jnp.int32, (1, size), 1)
  for start in range(0, program.lanes, size):
    lanes, heads = slice(start, start + size), []
    for first in range(0, size, program.width):
      mine_1K = (lane_1K >= first) & (lane_1K < first + program.width)
      number, rows = (start + first) // program.width, slice(first, first + program.width)
      heads.append(_Head(number, lanes, rows, mine_1K if program.width < size else None))
    yield lanes, heads


def _within(program, first):
  """bool [S, Q]: whether a window has the key; None without one.

  first: place of the first query of a tile, less that of its first key.
  """
  if not program.window:
    return None
  at = lambda axis: jax.lax.broadcasted_iota(jnp.int32, program.tile[::-1], axis)
  distance_SQ = at(1) - at(0) + first
  return (distance_SQ <= program.window[0]) & (distance_SQ >= -program.window[1])


def _hidden(program, own, others, within_SQ):
  """float32 [S, Q]: 0 where a query sees a key, else HIDDEN. own: int32 [N, Q]. others: [N, S]."""
  column = lambda n: jnp.broadcast_to(others[n : n + 1], (8, others.shape[1])).T[:, :1]
  seen_SQ = column(0) == own[:1]
  if program.ordered:
    seen_SQ &= column(1) <= own[1:2]
  if within_SQ is not None:
    seen_SQ &= within_SQ
  return jnp.where(seen_SQ, 0.0, HIDDEN)


def _scores(program, q_QK, k_SK, hidden_SQ):
  """Of a tile, as powers of 2: a chip has no others."""
  return product(k_SK, q_QK, (1, 1)) * (program.scale * _LOG2_E) + hidden_SQ


class _Tile(NamedTuple):
  """What the gradients of a head in a tile need. q and grad are 0 in lanes of other heads; k_KS has
  the rows of the head alone. delta_1Q: None if the tile has all keys. keep_SQ: which probabilities
  stay, None for all.
  """

  q_QK: jax.Array
  k_SK: jax.Array
  k_KS: jax.Array
  v_SK: jax.Array
  grad_QK: jax.Array
  hidden_SQ: jax.Array
  lse_1Q: jax.Array
  delta_1Q: jax.Array | None
  keep_SQ: jax.Array | None


def _gradients(program, tiles: list[_Tile]):
  """[(dq_KQ, dk_SK, dv_SK)] of each tile. All go through a step before the next: one alone has too
  little to do in parallel.
  """
  # Probabilities divided by 1 − rate: dropout scales the kept ones up.
  more = math.log2(1.0 - program.rate)
  scores = [_scores(program, t.q_QK, t.k_SK, t.hidden_SQ) for t in tiles]
  dp = [product(t.v_SK, t.grad_QK, (1, 1)) for t in tiles]
  p = [jnp.exp2(x_SQ - (t.lse_1Q + more)) for x_SQ, t in zip(scores, tiles)]
  kept, low = p, lambda x, t: x.astype(t.q_QK.dtype)
  if program.rate:
    kept, dp = (
      [jnp.where(t.keep_SQ, x_SQ, 0.0) for x_SQ, t in zip(all_SQ, tiles)] for all_SQ in (p, dp)
    )
  of_values = [product(low(x_SQ, t), t.grad_QK, (1, 0)) for x_SQ, t in zip(kept, tiles)]
  deltas = [
    jnp.sum(p_SQ * dp_SQ, axis=0, keepdims=True) if t.delta_1Q is None else t.delta_1Q
    for p_SQ, dp_SQ, t in zip(p, dp, tiles)
  ]
  ds = [
    low(p_SQ * (dp_SQ - delta_1Q * (1.0 - program.rate)), t)
    for p_SQ, dp_SQ, delta_1Q, t in zip(p, dp, deltas, tiles)
  ]
  of_keys = [product(ds_SQ, t.q_QK, (1, 0)) * program.scale for ds_SQ, t in zip(ds, tiles)]
  of_queries = [product(t.k_KS, ds_SQ, (1, 0)) * program.scale for ds_SQ, t in zip(ds, tiles)]
  return list(zip(of_queries, of_keys, of_values))


def _finished(program, top_1Q, total_1Q, sum_KQ):
  """(out_KQ, lse_1Q, of base 2); who sees no key gets 0."""
  sees_1Q = top_1Q > 0.5 * HIDDEN
  inverse_1Q = jnp.where(sees_1Q, 1.0 / (total_1Q * (1.0 - program.rate)), 0.0)
  return sum_KQ * inverse_1Q, jnp.where(sees_1Q, top_1Q + jnp.log2(total_1Q), -HIDDEN)


def _keep(program, seed, place, head, tile, first):
  """Which probabilities of a tile stay; None for all.

  place: (row of the batch, group of heads). tile: its number. first: its first (key, query).
  """
  if not program.rate:
    return None
  head = place[1] * program.heads + head.number
  size = program.tile[::-1]
  return bits.keep(program.rate, program.hashed, seed, place[0], head, tile, first, size)


def _forward_tiles(program, seed, q, k, v, own, others, out, lse, tops, totals, sums):
  *place, i, j = (pl.program_id(axis) for axis in range(4))
  tiles = pl.num_programs(3)
  hidden_SQ = _hidden(program, own[0], others[0, 0], _within(program, (i - j) * program.block))

  @pl.when(j == 0)
  def _():
    tops[...] = jnp.full_like(tops, HIDDEN)
    totals[...], sums[...] = jnp.zeros_like(totals), jnp.zeros_like(sums)

  for lanes, heads in _registers(program):
    q_QK, k_SK, v_KS = q[0, :, lanes], k[0, :, lanes], v[0, :, lanes].T
    numbers, first = [head.number for head in heads], (j * program.block, i * program.block)
    scores = [_scores(program, head.own(q_QK), k_SK, hidden_SQ) for head in heads]
    largest = [
      jnp.maximum(tops[n], jnp.max(x_SQ, axis=0, keepdims=True)) for n, x_SQ in zip(numbers, scores)
    ]
    powers = [jnp.exp2(x_SQ - top_1Q) for x_SQ, top_1Q in zip(scores, largest)]
    added = [jnp.sum(e_SQ, axis=0, keepdims=True) for e_SQ in powers]
    if program.rate:
      keep = [_keep(program, seed, place, head, i * tiles + j, first) for head in heads]
      powers = [jnp.where(keep_SQ, e_SQ, 0.0) for keep_SQ, e_SQ in zip(keep, powers)]
    parts = [
      product(v_KS[head.rows], e_SQ.astype(v.dtype), (1, 0)) for head, e_SQ in zip(heads, powers)
    ]
    for n, top_1Q, added_1Q, part_KQ in zip(numbers, largest, added, parts):
      smaller_1Q = jnp.exp2(tops[n] - top_1Q)
      totals[n], sums[n] = totals[n] * smaller_1Q + added_1Q, sums[n] * smaller_1Q + part_KQ
      tops[n] = top_1Q

  @pl.when(j == tiles - 1)
  def _():
    for lanes, heads in _registers(program):
      out_KQ = []
      for head in heads:
        n = head.number
        own_KQ, lse[0, n] = _finished(program, tops[n], totals[n], sums[n])
        out_KQ.append(own_KQ)
      out[0, :, lanes] = jnp.concatenate(out_KQ).T.astype(out.dtype)


def _backward_tiles(
  program, seed, q, k, v, grad, lse, delta, own, others, dq, dk, dv, sum_q, sum_k, sum_v
):
  row, group, j, i = (pl.program_id(axis) for axis in range(4))
  tiles, blocks = pl.num_programs(2), pl.num_programs(3)
  hidden_SQ = _hidden(program, own[0], others[0, 0], _within(program, (i - j) * program.block))
  here = pl.ds(pl.multiple_of(i * program.block, program.block), program.block)

  @pl.when(j == 0)
  def _():
    sum_q[here] = jnp.zeros((program.block, sum_q.shape[1]), jnp.float32)

  @pl.when(i == 0)
  def _():
    sum_k[...], sum_v[...] = jnp.zeros_like(sum_k), jnp.zeros_like(sum_v)

  for lanes, heads in _registers(program):
    q_QK, k_SK, v_SK, grad_QK = (x[0, :, lanes] for x in (q, k, v, grad))
    k_KS, first = k_SK.T, (j * program.block, i * program.block)
    found = _gradients(
      program,
      [
        _Tile(
          *(head.own(q_QK), k_SK, k_KS[head.rows], v_SK, head.own(grad_QK), hidden_SQ),
          *(lse[0, head.number], delta[0, head.number]),
          _keep(program, seed, (row, group), head, i * tiles + j, first),
        )
        for head in heads
      ],
    )
    of_queries, of_keys, of_values = zip(*found)
    sum_q[here, lanes] += jnp.concatenate(of_queries).T
    sum_k[:, lanes] += sum(of_keys)
    sum_v[:, lanes] += sum(of_values)

  @pl.when(i == blocks - 1)
  def _():
    dk[0], dv[0] = sum_k[...].astype(dk.dtype), sum_v[...].astype(dv.dtype)

  @pl.when(j == tiles - 1)
  def _():
    dq[0, here] = sum_q[here].astype(dq.dtype)


class _Near:
  """The tiles of a program with a window: 128 queries each, and the keys that they see."""

  def __init__(self, program, seed, own, others):
    self._program, self._seed = program, seed
    self.place = tuple(pl.program_id(axis) for axis in range(3))
    within_SQ = _within(program, program.halo[0])
    self._hidden = [
      _hidden(program, own[0, :, self.queries(t)], others[0, t], within_SQ) for t in self.numbers
    ]

  numbers = property(lambda self: range(self._program.block // LANES))
  queries = staticmethod(lambda t: slice(t * LANES, (t + 1) * LANES))

  def keys(self, t):
    """Those of tile t, among the halo, the block and the halo."""
    return slice(t * LANES, t * LANES + self._program.tile[1])

  def hidden(self, t):
    return self._hidden[t]

  def keep(self, head, t):
    """As _keep of tile t."""
    tile = self.place[2] * len(self.numbers) + t
    first = tile * LANES - self._program.halo[0], tile * LANES
    return _keep(self._program, self._seed, self.place[:2], head, tile, first)


def _beside(refs, lanes):
  """The keys or values of the halo, the block and the halo."""
  return jnp.concatenate([ref[0, :, lanes] for ref in refs])


def _forward_near(program, seed, q, *refs):
  keys, values, (own, others, out, lse) = refs[:3], refs[3:6], refs[6:]
  near = _Near(program, seed, own, others)
  for lanes, heads in _registers(program):
    k_NK, v_KN = _beside(keys, lanes), _beside(values, lanes).T
    # All tiles go through a step before the next: one alone has too little to do in parallel.
    tiles = [(head, t) for t in near.numbers for head in heads]
    scores = [
      _scores(program, head.own(q[0, near.queries(t), lanes]), k_NK[near.keys(t)], near.hidden(t))
      for head, t in tiles
    ]
    tops = [jnp.max(x_SQ, axis=0, keepdims=True) for x_SQ in scores]
    powers = [jnp.exp2(x_SQ - top_1Q) for x_SQ, top_1Q in zip(scores, tops)]
    totals = [jnp.sum(e_SQ, axis=0, keepdims=True) for e_SQ in powers]
    if program.rate:
      powers = [jnp.where(near.keep(*tile), e_SQ, 0.0) for tile, e_SQ in zip(tiles, powers)]
    sums = [
      product(v_KN[head.rows, near.keys(t)], e_SQ.astype(v_KN.dtype), (1, 0))
      for (head, t), e_SQ in zip(tiles, powers)
    ]
    found = [_finished(program, *x) for x in zip(tops, totals, sums)]
    for (head, t), (_, lse_1Q) in zip(tiles, found):
      lse[0, head.number, :, near.queries(t)] = lse_1Q
    for t in near.numbers:
      out_KQ = jnp.concatenate([x_KQ for (_, at), (x_KQ, _) in zip(tiles, found) if at == t])
      out[0, near.queries(t), lanes] = out_KQ.T.astype(out.dtype)


def _backward_near(program, seed, q, *refs):
  keys, values, (grad, lse, own, others, dq, dk, dv, sum_k, sum_v) = refs[:3], refs[3:6], refs[6:]
  near, last = _Near(program, seed, own, others), pl.num_programs(2) - 1
  rows, (before, after) = program.block, program.halo

  @pl.when(near.place[2] == 0)
  def _():
    for x in (sum_k, sum_v):
      x[...] = jnp.zeros_like(x)

  @pl.when(near.place[2] > 0)  # what was this block's is now the one before's
  def _():
    for x in (sum_k, sum_v):
      x[: rows + after] = x[rows:]
      x[rows + after :] = jnp.zeros((rows, x.shape[1]), jnp.float32)

  @pl.when(near.place[2] < last)
  def _():
    for lanes, heads in _registers(program):
      k_NK, v_NK = _beside(keys, lanes), _beside(values, lanes)
      k_KN = k_NK.T
      tiles = [
        _Tile(
          head.own(q[0, near.queries(t), lanes]),
          *(k_NK[near.keys(t)], k_KN[head.rows, near.keys(t)], v_NK[near.keys(t)]),
          *(head.own(grad[0, near.queries(t), lanes]), near.hidden(t)),
          *(lse[0, head.number, :, near.queries(t)], None, near.keep(head, t)),
        )
        for t in near.numbers
        for head in heads
      ]
      found = _gradients(program, tiles)
      for t in near.numbers:
        of_queries, of_keys, of_values = zip(*found[t * len(heads) : (t + 1) * len(heads)])
        dq[0, near.queries(t), lanes] = jnp.concatenate(of_queries).T.astype(dq.dtype)
        there = near.keys(t)
        at = slice(rows - before + there.start, rows - before + there.stop)
        sum_k[at, lanes] += sum(of_keys)
        sum_v[at, lanes] += sum(of_values)

  dk[0], dv[0] = sum_k[:rows].astype(dk.dtype), sum_v[:rows].astype(dv.dtype)
