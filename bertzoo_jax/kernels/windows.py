"""Attention of long rows with a window, as TPU kernels.

A program has a block of queries, the keys at the same places, and some keys before and after (the
halo). Its tiles are 128 queries and all keys that one of them sees, so no sum is corrected, and no
other key is read. A block's gradients of keys are written after the next block has added its part.
"""

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bertzoo_jax.kernels import tiles
from bertzoo_jax.kernels.operands import LANES
from bertzoo_jax.kernels.operands import product


def _near_specs(program, blocks, marks):
  """{array: spec} of a program for block i; past the last block, the specs of the last block."""
  rows, (before, after) = program.block, program.halo
  last = blocks - 1
  clipped = lambda i: jnp.minimum(i, last)
  end = blocks * rows // after - 1
  num_tiles = rows // program.tile[0]
  at = lambda shape, index: pl.BlockSpec(shape, lambda b, h, i, _: index(b, h, i))
  return dict(
    block=at((1, rows, program.lanes), lambda b, h, i: (b, clipped(i), h)),
    before=at(
      (1, before, program.lanes),
      lambda b, h, i: (b, jnp.maximum(clipped(i) * (rows // before) - 1, 0), h),
    ),
    after=at(
      (1, after, program.lanes),
      lambda b, h, i: (b, jnp.minimum((clipped(i) + 1) * (rows // after), end), h),
    ),
    late=at((1, rows, program.lanes), lambda b, h, i: (b, jnp.maximum(i - 1, 0), h)),
    lse=at((1, program.heads, 1, rows), lambda b, h, i: (b, h, 0, clipped(i))),
    q_marks=at((1, marks, rows), lambda b, h, i: (b, 0, clipped(i))),
    k_marks=at((1, num_tiles, marks, program.tile[1]), lambda b, h, i: (b, clipped(i), 0, 0)),
  )


def forward(program, q_BLD, k_BLD, v_BLD, q_marks_BNL, k_marks_BTNS, seed):
  batch, groups, blocks, _ = tiles.sizes(program, q_BLD, k_BLD)
  at = _near_specs(program, blocks, q_marks_BNL.shape[1])
  out = [
    (q_BLD.shape, q_BLD.dtype, at['block']),
    ((batch, q_BLD.shape[2] // program.width, 1, q_BLD.shape[1]), jnp.float32, at['lse']),
  ]
  near = [at['before'], at['block'], at['after']]
  arrays = q_BLD, *(k_BLD,) * 3, *(v_BLD,) * 3, q_marks_BNL, k_marks_BTNS
  specs = [at['block'], *near, *near, at['q_marks'], at['k_marks']]
  grid, order = (batch, groups, blocks), ('parallel',) * 3
  return tiles.call(program, _forward_near, arrays, seed, grid, out, specs, (), order)


def backward(program, q_BLD, k_BLD, v_BLD, grad, lse, q_marks_BNL, k_marks_BTNS, seed):
  batch, groups, blocks, _ = tiles.sizes(program, q_BLD, k_BLD)
  at = _near_specs(program, blocks, q_marks_BNL.shape[1])
  out = [
    (q_BLD.shape, q_BLD.dtype, at['block']),
    (k_BLD.shape, k_BLD.dtype, at['late']),
    (v_BLD.shape, v_BLD.dtype, at['late']),
  ]
  near = [at['before'], at['block'], at['after']]
  arrays = q_BLD, *(k_BLD,) * 3, *(v_BLD,) * 3, grad, lse, q_marks_BNL, k_marks_BTNS
  specs = [at['block'], *near, *near, at['block'], at['lse'], at['q_marks'], at['k_marks']]
  # gradients of the block before, of this one, and of the halo after it
  sums = pltpu.VMEM((2 * program.block + program.halo[1], program.lanes), jnp.float32)
  grid, order = (batch, groups, blocks + 1), ('parallel', 'parallel', 'arbitrary')
  return tiles.call(program, _backward_near, arrays, seed, grid, out, specs, [sums, sums], order)


class _Near:
  """The tiles of a program with a window: 128 queries each, and the keys that they see."""

  def __init__(self, program, seed, q_marks, k_marks):
    self._program, self._seed = program, seed
    self.place = tuple(pl.program_id(axis) for axis in range(3))
    within_SQ = tiles.within(program, program.halo[0])
    self.hidden = [
      tiles.hidden(program, q_marks[0, :, self.queries(t)], k_marks[0, t], within_SQ)
      for t in self.numbers
    ]

  numbers = property(lambda self: range(self._program.block // LANES))
  queries = staticmethod(lambda t: slice(t * LANES, (t + 1) * LANES))

  def keys(self, t):
    """The keys of tile t, as a slice of halo, block and halo."""
    return slice(t * LANES, t * LANES + self._program.tile[1])

  def keep(self, head, t):
    """tiles.keep of tile t."""
    tile = self.place[2] * len(self.numbers) + t
    first = tile * LANES - self._program.halo[0], tile * LANES
    return tiles.keep(self._program, self._seed, self.place[:2], head, tile, first)


def _beside(refs, lanes):
  """The keys or values of halo, block and halo."""
  return jnp.concatenate([ref[0, :, lanes] for ref in refs])


def _forward_near(program, seed, q, *refs):
  keys, values, (q_marks, k_marks, out, lse) = refs[:3], refs[3:6], refs[6:]
  near = _Near(program, seed, q_marks, k_marks)
  for lanes, heads in tiles.registers(program):
    k_NK, v_KN = _beside(keys, lanes), _beside(values, lanes).T
    pairs = [(head, t) for t in near.numbers for head in heads]
    scores = [
      tiles.scores(
        program, head.masked(q[0, near.queries(t), lanes]), k_NK[near.keys(t)], near.hidden[t]
      )
      for head, t in pairs
    ]
    tops = [jnp.max(x_SQ, axis=0, keepdims=True) for x_SQ in scores]
    powers = [jnp.exp2(x_SQ - top_1Q) for x_SQ, top_1Q in zip(scores, tops)]
    totals = [jnp.sum(e_SQ, axis=0, keepdims=True) for e_SQ in powers]
    if program.rate:
      powers = [jnp.where(near.keep(*tile), e_SQ, 0.0) for tile, e_SQ in zip(pairs, powers)]
    sums = [
      product(v_KN[head.rows, near.keys(t)], e_SQ.astype(v_KN.dtype), (1, 0))
      for (head, t), e_SQ in zip(pairs, powers)
    ]
    results = [tiles.finished(program, *x) for x in zip(tops, totals, sums)]
    for (head, t), (_, lse_1Q) in zip(pairs, results):
      lse[0, head.number, :, near.queries(t)] = lse_1Q
    for t in near.numbers:
      out_KQ = jnp.concatenate([x_KQ for (_, at), (x_KQ, _) in zip(pairs, results) if at == t])
      out[0, near.queries(t), lanes] = out_KQ.T.astype(out.dtype)


def _backward_near(program, seed, q, *refs):
  keys, values, refs = refs[:3], refs[3:6], refs[6:]
  grad, lse, q_marks, k_marks, dq, dk, dv, sum_k, sum_v = refs
  near, last = _Near(program, seed, q_marks, k_marks), pl.num_programs(2) - 1
  rows, (before, after) = program.block, program.halo

  @pl.when(near.place[2] == 0)
  def _():
    for x in (sum_k, sum_v):
      x[...] = jnp.zeros_like(x)

  @pl.when(near.place[2] > 0)  # this block's sums become the previous block's
  def _():
    for x in (sum_k, sum_v):
      x[: rows + after] = x[rows:]
      x[rows + after :] = jnp.zeros((rows, x.shape[1]), jnp.float32)

  @pl.when(near.place[2] < last)
  def _():
    for lanes, heads in tiles.registers(program):
      k_NK, v_NK = _beside(keys, lanes), _beside(values, lanes)
      k_KN = k_NK.T
      near_tiles = [
        tiles.Tile(
          head.masked(q[0, near.queries(t), lanes]),
          *(k_NK[near.keys(t)], k_KN[head.rows, near.keys(t)], v_NK[near.keys(t)]),
          *(head.masked(grad[0, near.queries(t), lanes]), near.hidden[t]),
          *(lse[0, head.number, :, near.queries(t)], None, near.keep(head, t)),
        )
        for t in near.numbers
        for head in heads
      ]
      grads = tiles.gradients(program, near_tiles)
      for t in near.numbers:
        dq_parts, dk_parts, dv_parts = zip(*grads[t * len(heads) : (t + 1) * len(heads)])
        dq[0, near.queries(t), lanes] = jnp.concatenate(dq_parts).T.astype(dq.dtype)
        tile_keys = near.keys(t)
        at = slice(rows - before + tile_keys.start, rows - before + tile_keys.stop)
        sum_k[at, lanes] += sum(dk_parts)
        sum_v[at, lanes] += sum(dv_parts)

  dk[0], dv[0] = sum_k[:rows].astype(dk.dtype), sum_v[:rows].astype(dv.dtype)
