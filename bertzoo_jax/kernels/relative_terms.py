"""The relative terms and the mask of one head, inside a program of kernels/attention.py.

Legend: L queries of the program, M keys; else as in kernels/attention.py.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from bertzoo_jax.kernels import slides
from bertzoo_jax.kernels.operands import LANES
from bertzoo_jax.kernels.operands import product
from bertzoo_jax.model.attention import HIDDEN


class Pairs(NamedTuple):
  """Facts about pairs of a query and a key, the same for all heads of a program."""

  hidden_ML: jax.Array  # 0 where a query sees a key and HIDDEN elsewhere, float32
  # whether query and key have the same segment; None without a term by segments
  same_ML: jax.Array | None
  place_1L: jax.Array | None  # places of the queries; None if query i has place i

  @classmethod
  def read(cls, program, place, query_marks, key_marks):
    queries, keys = query_marks.shape[2], key_marks.shape[2]

    def pair(name):
      i = program.marks.index(name)
      column_M8 = jnp.broadcast_to(key_marks[0, i : i + 1], (8, keys)).T
      return column_M8[:, :1], query_marks[0, i : i + 1]

    column, row = pair('packs')
    seen_ML, same_ML, place_1L = column == row, None, None
    if 'order' in program.marks:
      column, row = pair('order')
      seen_ML &= column <= row
    if 'segments' in program.marks:
      column, row = pair('segments')
      same_ML = column == row
    if 'places' in program.marks:
      place_1L = query_marks[0, len(program.marks) - 1 :]
    if program.window is not None:
      left, right = program.window
      at = lambda axis: jax.lax.broadcasted_iota(jnp.int32, (keys, queries), axis)
      distance_ML = (at(1) + place.query if place_1L is None else place_1L) - at(0)
      distance_ML += program.first_query
      seen_ML &= (distance_ML <= left) & (distance_ML >= -right)
    return cls(jnp.where(seen_ML, 0.0, HIDDEN), same_ML, place_1L)


class Lanes(NamedTuple):
  """The lanes that products of one head read and write.

  They are a whole register, which other heads may share. Multiplying the lanes of other heads by
  zeros is faster than moving the head to the first lanes.
  """

  lanes: slice  # a slice of the lanes of the program's heads
  mask_1K: jax.Array | None  # True for lanes that belong to the head; None if all do

  @classmethod
  def plain(cls, program, head):
    return cls(slice(head * program.width, (head + 1) * program.width), None)

  @classmethod
  def register(cls, program, head, together):
    width = program.width
    if LANES % width or together * width % LANES:
      return cls.plain(program, head)
    start = head * width // LANES * LANES
    lane_1K = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1) + start
    mask_1K = (lane_1K >= head * width) & (lane_1K < (head + 1) * width)
    return cls(slice(start, start + LANES), mask_1K)

  def read(self, ref):
    """ref[0], [L, lanes], 0 in lanes of other heads."""
    return self.chosen(ref[0, :, self.lanes], 0)

  def write(self, ref, x):
    """Writes the head's part of x to ref[0]."""
    ref[0, :, self.lanes] = self.chosen(x.astype(ref.dtype), ref[0, :, self.lanes])

  def chosen(self, x, other):
    """x in the head's lanes, else `other`."""
    return x if self.mask_1K is None else jnp.where(self.mask_1K, x, jnp.asarray(other, x.dtype))


class Terms:
  """The relative terms of one head. Terms by distance are computed for 128 queries or keys at once.

  A block of 128 queries and all keys have M + 128 distances, a window of the table. The product of
  the window and the block has a row per distance. `slides.shear` shifts each column by its query's
  place, so that rows become keys. For p2c queries and keys are exchanged and the result transposed.

  Queries at given places may have all N + M distances, so the window is the whole table. p2c has a
  column for each place, of which each query picks one.
  """

  def __init__(self, program, place, head, lanes, halves, pairs, refs, queries, keys, gradients=()):
    self.program, self.place, self.head, self.halves = program, place, head, halves
    self.lanes, self.columns, self.pairs = lanes, lanes.lanes, pairs
    self.queries, self.keys = queries, keys
    names = ('segments',) * ('segments' in program.marks) + program.terms
    self.refs, self.gradients = dict(zip(names, refs)), dict(zip(names, gradients))
    self.placed = pairs.place_1L is not None

  def _window_by_query(self, b):
    """The rows of c2p and bias for block b of the program's queries."""
    if self.placed:
      return self._window(0, 0, self.program.places + self.keys)
    start = self.queries * self.place.blocks - LANES * (b + 1)
    return self._window(start, -1, self.keys + LANES)

  def _window_by_key(self, c):
    """The rows of p2c for block c of the keys."""
    if self.placed:
      return self._window(self.keys - LANES * (c + 1), 0, self.program.places + LANES)
    return self._window(self.keys - LANES * (c + 1), 1, self.queries + LANES)

  def _window(self, start, sign, size):
    """`size` rows from `start` on. sign: direction in which they move with the block of queries."""
    if sign and self.place.blocks > 1:
      start += sign * self.place.query
    if self.program.halves > 1:
      start += self.halves[self.place.row] * (self.program.places + self.keys)
    return pl.ds(pl.multiple_of(start, LANES) if not isinstance(start, int) else start, size)

  def _shift(self, b):
    """The shift of slides.shear for block b of the queries."""
    if not self.placed:
      return None
    return self.program.places - 1 - self.pairs.place_1L[:, block_of(b)]

  def _query_block(self, q_LK, b):
    """[128, K]: block b of the queries, plus c2p_query."""
    block_LK = q_LK[block_of(b)]
    if 'query' in self.refs:
      block_LK += self.lanes.chosen(self.refs['query'][:, self.columns], 0)
    return block_LK

  def by_query(self, q_LK, b):
    """[M, 128]: c2p and bias of block b of the queries."""
    window, rows_RL = self._window_by_query(b), 0.0
    if 'c2p' in self.refs:
      rows_RL = product(self.refs['c2p'][window, self.columns], self._query_block(q_LK, b), (1, 1))
    if 'bias' in self.refs:
      bias_1R = self.refs['bias'][self.head, :, window]
      rows_RL += jnp.broadcast_to(bias_1R, (LANES, bias_1R.shape[1])).T
    return slides.shear(rows_RL, self.keys, self.program.gather, self._shift(b))

  def by_query_backward(self, q_LK, b, ds_ML):
    """The gradient [128, K] of block b of the queries, before the scale; None without c2p."""
    window, scale = self._window_by_query(b), self.program.scale
    more = window.size - self.keys
    rows_RL = slides.unshear(ds_ML[:, block_of(b)], more, self.program.gather, self._shift(b))
    rows_RL = rows_RL.astype(q_LK.dtype)
    if 'bias' in self.refs:
      ones = jnp.ones((8, LANES), rows_RL.dtype)
      sums_1R = product(ones, rows_RL, (1, 1))[:1] * scale
      self.gradients['bias'][self.head, :, window] += sums_1R
    if 'c2p' not in self.refs:
      return None
    gradient_RK = product(rows_RL, self._query_block(q_LK, b), (1, 0)) * scale
    self.gradients['c2p'][window, self.columns] += gradient_RK
    mixed_LK = self._mixed('c2p', window, rows_RL)
    if 'query' in self.refs:
      self.gradients['query'][:, self.columns] += jnp.sum(mixed_LK, axis=0, keepdims=True) * scale
    return mixed_LK

  def by_key(self, k_MK, c):
    """[128, L]: p2c of block c of the keys."""
    window = self._window_by_key(c)
    if self.placed:
      rows_MR = product(k_MK[block_of(c)], self.refs['p2c'][window, self.columns], (1, 1))
      return slides.pick(rows_MR, self.pairs.place_1L)
    rows_RM = product(self.refs['p2c'][window, self.columns], k_MK[block_of(c)], (1, 1))
    return slides.shear(rows_RM, self.queries, self.program.gather).T

  def by_key_backward(self, k_MK, c, ds_ML):
    """The gradient [128, K] of block c of the keys, before the scale."""
    window, ds_ML = self._window_by_key(c), ds_ML[block_of(c)]
    if self.placed:
      place_1L = self.pairs.place_1L
      size = self.program.places, place_1L.shape[1]
      is_place_NL = jax.lax.broadcasted_iota(jnp.int32, size, 0) == place_1L
      columns_NM = product(is_place_NL.astype(k_MK.dtype), ds_ML.astype(k_MK.dtype), (1, 1))
    else:
      columns_NM = ds_ML.T
    rows_RM = slides.unshear(columns_NM, LANES, self.program.gather).astype(k_MK.dtype)
    gradient_RK = product(rows_RM, k_MK[block_of(c)], (1, 0)) * self.program.scale
    self.gradients['p2c'][window, self.columns] += gradient_RK
    return self._mixed('p2c', window, rows_RM)

  def by_segments(self):
    """[M, L]: the query's number where query and key have the same segment, else 0."""
    return jnp.where(self.pairs.same_ML, self.refs['segments'][0, self.head], 0.0)

  def by_segments_backward(self, ds_ML):
    """Writes the gradient of the numbers."""
    grad_1L = jnp.sum(jnp.where(self.pairs.same_ML, ds_ML, 0.0), axis=0, keepdims=True)
    self.gradients['segments'][0, self.head] = grad_1L * self.program.scale

  def _mixed(self, name, window, rows_RN):
    """rowsᵀ · the table: [128, lanes], 0 in lanes of other heads.

    Computed as the transpose of tableᵀ · rows: the head has fewer columns of the table than a block
    has tokens, so the matrix unit has less to do.
    """
    columns_KR, width = self.refs[name][window, self.columns].T, self.program.width
    first = self.head * width - self.columns.start
    mixed_KN = product(columns_KR[first : first + width], rows_RN, (1, 0))
    around = first, len(columns_KR) - first - width
    before, after = (jnp.zeros((n, LANES), mixed_KN.dtype) for n in around)
    return jnp.concatenate([x for x in (before, mixed_KN, after) if len(x)]).T


def block_of(i):
  return slice(i * LANES, (i + 1) * LANES)
