"""Tiles of queries and keys in the attention kernels without relative terms (flash.py): a
kernel's static arguments, its call, and the numbers of a tile.

Products read whole registers of lanes, in which one factor is 0 in the lanes of other heads: that
is faster than moving a head to the first lanes. All tiles of a program go through a step before the
next step: one tile alone has too little to do in parallel.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bertzoo_jax.kernels import bits
from bertzoo_jax.kernels.operands import LANES
from bertzoo_jax.kernels.operands import product
from bertzoo_jax.model.attention import HIDDEN

_WIDE = 256  # lanes of a program: some heads, so that there is enough to do in parallel
# Bytes for the sums and results of a row's queries; else a program takes fewer lanes.
_SUMS = 1 << 23
_MEMORY = 1 << 24  # bytes of fast memory that a kernel has by default
_LOG2_E = math.log2(math.e)


class Program(NamedTuple):
  """The static arguments of a kernel."""

  width: int  # width of a head
  lanes: int  # lanes of a program, those of its heads side by side
  scale: float  # factor of the scores
  rate: float  # of dropout
  window: tuple[int, int] | None  # None or (left, right)
  ordered: bool  # whether queries and keys have an order besides their packs
  block: int  # queries of a program
  tile: tuple[int, int]  # (queries, keys) of a tile
  halo: tuple[int, int] | None  # (keys before, keys after) that a program reads; None for all keys
  complete: bool  # whether a tile has all keys that its queries see
  hashed: bool  # draw dropout bits by row_keys.py
  interpret: bool  # run on any machine

  @property
  def heads(self) -> int:
    return self.lanes // self.width


def lanes_of(depth, width, bytes_of_lane=0) -> int:
  """Lanes of a program, of whole heads. bytes_of_lane: bytes that a program keeps for a whole
  row.
  """
  fits = [n for n in (_WIDE, LANES) if depth % n == 0 and n % width == 0]
  fits = fits or [max(width, min(depth, LANES))]
  return next((n for n in fits if n * bytes_of_lane <= _SUMS), fits[-1])


def call(program, kernel, arrays, seed, grid, out, specs, scratch, order, kept=0):
  """Runs a kernel. out: (shape, dtype, spec) of each result. order: semantics of the grid. kept:
  bytes of fast memory for a whole row.
  """
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
      dimension_semantics=order, vmem_limit_bytes=kept + _MEMORY if 2 * kept > _MEMORY else None
    ),
    name=name + '_order' * program.ordered + bits.variant(program, arrays[0].dtype),
  )(seed, *arrays)


def sizes(program, q_BLD, k_BLD):
  """(B, groups of lanes, blocks of queries, tiles of keys without a window)."""
  batch, length, depth = q_BLD.shape
  return batch, depth // program.lanes, length // program.block, k_BLD.shape[1] // program.tile[1]


class Head(NamedTuple):
  """A head in a register of lanes, which it may share with others."""

  number: int  # in the program
  rows: slice  # the head's rows in a transposed register
  mask_1K: jax.Array | None  # True for lanes that belong to the head; None if all do

  def masked(self, x_NK):
    """x_NK, 0 in lanes of other heads."""
    return x_NK if self.mask_1K is None else jnp.where(self.mask_1K, x_NK, jnp.zeros_like(x_NK))


def registers(program):
  """Yields (lanes, heads) of each register of the program's lanes."""
  size = min(max(LANES, program.width), program.lanes)
  lane_1K = jax.lax.broadcasted_iota(jnp.int32, (1, size), 1)
  for start in range(0, program.lanes, size):
    lanes, heads = slice(start, start + size), []
    for first in range(0, size, program.width):
      mask_1K = (lane_1K >= first) & (lane_1K < first + program.width)
      number, rows = (start + first) // program.width, slice(first, first + program.width)
      heads.append(Head(number, rows, mask_1K if program.width < size else None))
    yield lanes, heads


def within(program, first):
  """bool [S, Q]: whether the key is in the query's window; None without a window.

  first: the place of a tile's first query minus the place of its first key.
  """
  if not program.window:
    return None
  at = lambda axis: jax.lax.broadcasted_iota(jnp.int32, program.tile[::-1], axis)
  distance_SQ = at(1) - at(0) + first
  return (distance_SQ <= program.window[0]) & (distance_SQ >= -program.window[1])


def hidden(program, q_marks, k_marks, within_SQ):
  """float32 [S, Q]: 0 where a query sees a key, else HIDDEN. Marks: int32 [N, Q] and [N, S]."""
  column = lambda n: jnp.broadcast_to(k_marks[n : n + 1], (8, k_marks.shape[1])).T[:, :1]
  seen_SQ = column(0) == q_marks[:1]
  if program.ordered:
    seen_SQ &= column(1) <= q_marks[1:2]
  if within_SQ is not None:
    seen_SQ &= within_SQ
  return jnp.where(seen_SQ, 0.0, HIDDEN)


def scores(program, q_QK, k_SK, hidden_SQ):
  """Scores of a tile, as exponents of 2: a chip has no exponential of another base."""
  return product(k_SK, q_QK, (1, 1)) * (program.scale * _LOG2_E) + hidden_SQ


class Tile(NamedTuple):
  """The inputs of a head's gradients in a tile.

  q and grad are 0 in lanes of other heads; k_KS has the rows of the head alone. delta_1Q: None if
  the tile has all keys. keep_SQ: True where dropout keeps a probability; None without dropout.
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


def gradients(program, tiles: list[Tile]):
  """[(dq_KQ, dk_SK, dv_SK)] of each tile."""
  # Probabilities divided by 1 − rate: dropout scales the kept ones up.
  more = math.log2(1.0 - program.rate)
  powers = [scores(program, t.q_QK, t.k_SK, t.hidden_SQ) for t in tiles]
  dp = [product(t.v_SK, t.grad_QK, (1, 1)) for t in tiles]
  p = [jnp.exp2(x_SQ - (t.lse_1Q + more)) for x_SQ, t in zip(powers, tiles)]
  kept, low = p, lambda x, t: x.astype(t.q_QK.dtype)
  if program.rate:
    kept, dp = (
      [jnp.where(t.keep_SQ, x_SQ, 0.0) for x_SQ, t in zip(all_SQ, tiles)] for all_SQ in (p, dp)
    )
  dv = [product(low(x_SQ, t), t.grad_QK, (1, 0)) for x_SQ, t in zip(kept, tiles)]
  deltas = [
    jnp.sum(p_SQ * dp_SQ, axis=0, keepdims=True) if t.delta_1Q is None else t.delta_1Q
    for p_SQ, dp_SQ, t in zip(p, dp, tiles)
  ]
  ds = [
    low(p_SQ * (dp_SQ - delta_1Q * (1.0 - program.rate)), t)
    for p_SQ, dp_SQ, delta_1Q, t in zip(p, dp, deltas, tiles)
  ]
  dk = [product(ds_SQ, t.q_QK, (1, 0)) * program.scale for ds_SQ, t in zip(ds, tiles)]
  dq = [product(t.k_KS, ds_SQ, (1, 0)) * program.scale for ds_SQ, t in zip(ds, tiles)]
  return list(zip(dq, dk, dv))


def finished(program, top_1Q, total_1Q, sum_KQ):
  """(out_KQ, lse_1Q to base 2); out is 0 for a query that sees no key."""
  sees_1Q = top_1Q > 0.5 * HIDDEN
  inverse_1Q = jnp.where(sees_1Q, 1.0 / (total_1Q * (1.0 - program.rate)), 0.0)
  return sum_KQ * inverse_1Q, jnp.where(sees_1Q, top_1Q + jnp.log2(total_1Q), -HIDDEN)


def keep(program, seed, place, head, tile, first):
  """bool [S, Q]: True where dropout keeps a probability of a tile; None without dropout.

  place: (row of the batch, group of heads). tile: its number. first: its first (key, query).
  """
  if not program.rate:
    return None
  head = place[1] * program.heads + head.number
  size = program.tile[::-1]
  return bits.keep(program.rate, program.hashed, seed, place[0], head, tile, first, size)
