"""Attention over all keys, as TPU kernels (Dao et al. 2022, §3.1).

Up to 512 tokens, a program has a whole row of some heads in one tile. Above, the forward pass loops
over the tiles of keys for a block of queries, and corrects its sums when the largest score grows.
The backward pass loops over the blocks of queries for a tile of keys. It sums the gradients of a
whole row's queries in fast memory.
"""

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bertzoo_jax.kernels import tiles
from bertzoo_jax.kernels.operands import product
from bertzoo_jax.model.attention import HIDDEN


def _specs(program, num_marks, to_tile):
  """Block specs of queries, keys, log-sum-exp, marks of queries and of keys. to_tile: the
  last two indices of the grid → (block of queries, tile of keys).
  """
  (rows, keys), lanes = program.tile, program.lanes
  at = lambda shape, index: pl.BlockSpec(shape, lambda b, h, *ij: index(b, h, *to_tile(*ij[:2])))
  return (
    at((1, rows, lanes), lambda b, h, i, j: (b, i, h)),
    at((1, keys, lanes), lambda b, h, i, j: (b, j, h)),
    at((1, program.heads, 1, rows), lambda b, h, i, j: (b, h, 0, i)),
    at((1, num_marks, rows), lambda b, h, i, j: (b, 0, i)),
    at((1, 1, num_marks, keys), lambda b, h, i, j: (b, j, 0, 0)),
  )


def forward(program, q_BLD, k_BLD, v_BLD, q_marks_BNL, k_marks_BTNS, seed):
  batch, groups, blocks, num_tiles = tiles.sizes(program, q_BLD, k_BLD)
  q_spec, k_spec, lse_spec, *marks = _specs(program, q_marks_BNL.shape[1], lambda i, j: (i, j))
  out = [
    (q_BLD.shape, q_BLD.dtype, q_spec),
    ((batch, q_BLD.shape[2] // program.width, 1, q_BLD.shape[1]), jnp.float32, lse_spec),
  ]
  sums = [pltpu.VMEM((program.heads, m, program.block), jnp.float32) for m in (1, 1, program.width)]
  scratch = [] if program.complete else sums
  order = 'parallel', 'parallel', 'parallel', 'arbitrary'
  arrays = q_BLD, k_BLD, v_BLD, q_marks_BNL, k_marks_BTNS
  specs = [q_spec, k_spec, k_spec, *marks]
  grid = batch, groups, blocks, num_tiles
  return tiles.call(program, _forward, arrays, seed, grid, out, specs, scratch, order)


def backward(program, q_BLD, k_BLD, v_BLD, grad, lse, deltas, q_marks_BNL, k_marks_BTNS, seed):
  """(dq, dk, dv). deltas: [] if tiles are complete, else [float32 [B, H, 1, L]], the scalar
  products of results and their gradients.
  """
  lane_bytes = 0 if program.complete else q_BLD.shape[1] * (4 + 2 * q_BLD.dtype.itemsize)
  program = program._replace(lanes=tiles.lanes_of(q_BLD.shape[2], program.width, lane_bytes))
  batch, groups, blocks, num_tiles = tiles.sizes(program, q_BLD, k_BLD)
  q_spec, k_spec, lse_spec, *marks = _specs(program, q_marks_BNL.shape[1], lambda j, i: (i, j))
  whole = pl.BlockSpec((1, q_BLD.shape[1], program.lanes), lambda b, h, j, i, _: (b, 0, h))
  out = [
    (q_BLD.shape, q_BLD.dtype, whole),
    (k_BLD.shape, k_BLD.dtype, k_spec),
    (v_BLD.shape, v_BLD.dtype, k_spec),
  ]
  sizes = q_BLD.shape[1], program.tile[1], program.tile[1]
  sums = [pltpu.VMEM((size, program.lanes), jnp.float32) for size in sizes]
  scratch = [] if program.complete else sums
  order = 'parallel', 'parallel', 'arbitrary', 'arbitrary'
  arrays = q_BLD, k_BLD, v_BLD, grad, lse, *deltas, q_marks_BNL, k_marks_BTNS
  specs = [q_spec, k_spec, k_spec, q_spec, lse_spec, *(lse_spec for _ in deltas), *marks]
  grid = batch, groups, num_tiles, blocks
  kept = lane_bytes * program.lanes
  return tiles.call(program, _backward, arrays, seed, grid, out, specs, scratch, order, kept)


def _forward(program, seed, q, k, v, q_marks, k_marks, out, lse, *sums):
  *place, i, j = (pl.program_id(axis) for axis in range(4))
  num_tiles, (queries, keys) = pl.num_programs(3), program.tile
  within_SQ = tiles.within(program, i * queries - j * keys)
  hidden_SQ = tiles.hidden(program, q_marks[0], k_marks[0, 0], within_SQ)

  if sums:

    @pl.when(j == 0)
    def _():
      for ref, value in zip(sums, (HIDDEN, 0.0, 0.0)):
        ref[...] = jnp.full_like(ref, value)

  for lanes, heads in tiles.registers(program):
    q_QK, k_SK, v_KS = q[0, :, lanes], k[0, :, lanes], v[0, :, lanes].T
    first = j * keys, i * queries
    scores = [tiles.scores(program, head.masked(q_QK), k_SK, hidden_SQ) for head in heads]
    largest = [jnp.max(x_SQ, axis=0, keepdims=True) for x_SQ in scores]
    if sums:
      largest = [jnp.maximum(sums[0][head.number], x) for head, x in zip(heads, largest)]
    powers = [jnp.exp2(x_SQ - top_1Q) for x_SQ, top_1Q in zip(scores, largest)]
    added = [jnp.sum(e_SQ, axis=0, keepdims=True) for e_SQ in powers]
    if program.rate:
      keep = [tiles.keep(program, seed, place, head, i * num_tiles + j, first) for head in heads]
      powers = [jnp.where(keep_SQ, e_SQ, 0.0) for keep_SQ, e_SQ in zip(keep, powers)]
    parts = [
      product(v_KS[head.rows], e_SQ.astype(v.dtype), (1, 0)) for head, e_SQ in zip(heads, powers)
    ]
    if not sums:
      _write(program, lanes, heads, zip(largest, added, parts), out, lse)
      continue
    tops, totals, mixed = sums
    for head, top_1Q, added_1Q, part_KQ in zip(heads, largest, added, parts):
      n = head.number
      smaller_1Q = jnp.exp2(tops[n] - top_1Q)
      totals[n], mixed[n] = totals[n] * smaller_1Q + added_1Q, mixed[n] * smaller_1Q + part_KQ
      tops[n] = top_1Q

  if sums:

    @pl.when(j == num_tiles - 1)
    def _():
      for lanes, heads in tiles.registers(program):
        head_sums = [[ref[head.number] for ref in sums] for head in heads]
        _write(program, lanes, heads, head_sums, out, lse)


def _write(program, lanes, heads, sums, out, lse):
  """Writes the results of a register. sums: (top, Σ exponentials, Σ values) of each head."""
  results = [tiles.finished(program, *head_sums) for head_sums in sums]
  for head, (_, lse_1Q) in zip(heads, results):
    lse[0, head.number] = lse_1Q
  out[0, :, lanes] = jnp.concatenate([out_KQ for out_KQ, _ in results]).T.astype(out.dtype)


def _backward(program, seed, q, k, v, grad, lse, *refs):
  delta, refs = (None, refs) if program.complete else (refs[0], refs[1:])
  q_marks, k_marks, dq, dk, dv, *sums = refs
  row, group, j, i = (pl.program_id(axis) for axis in range(4))
  num_tiles, blocks, (queries, keys) = pl.num_programs(2), pl.num_programs(3), program.tile
  within_SQ = tiles.within(program, i * queries - j * keys)
  hidden_SQ = tiles.hidden(program, q_marks[0], k_marks[0, 0], within_SQ)

  if sums:
    sum_q, sum_k, sum_v = sums
    q_rows = pl.ds(pl.multiple_of(i * queries, queries), queries)

    @pl.when(j == 0)
    def _():
      sum_q[q_rows] = jnp.zeros((queries, sum_q.shape[1]), jnp.float32)

    @pl.when(i == 0)
    def _():
      sum_k[...], sum_v[...] = jnp.zeros_like(sum_k), jnp.zeros_like(sum_v)

  for lanes, heads in tiles.registers(program):
    q_QK, k_SK, v_SK, grad_QK = (x[0, :, lanes] for x in (q, k, v, grad))
    k_KS, first = k_SK.T, (j * keys, i * queries)
    grads = tiles.gradients(
      program,
      [
        tiles.Tile(
          *(head.masked(q_QK), k_SK, k_KS[head.rows], v_SK, head.masked(grad_QK), hidden_SQ),
          *(lse[0, head.number], None if delta is None else delta[0, head.number]),
          tiles.keep(program, seed, (row, group), head, i * num_tiles + j, first),
        )
        for head in heads
      ],
    )
    dq_parts, dk_parts, dv_parts = zip(*grads)
    parts = jnp.concatenate(dq_parts).T, sum(dk_parts), sum(dv_parts)
    if sums:
      sum_q[q_rows, lanes] += parts[0]
      sum_k[:, lanes] += parts[1]
      sum_v[:, lanes] += parts[2]
    else:
      for ref, part in zip((dq, dk, dv), parts):
        ref[0, :, lanes] = part.astype(ref.dtype)

  if sums:

    @pl.when(i == blocks - 1)
    def _():
      dk[0], dv[0] = sum_k[...].astype(dk.dtype), sum_v[...].astype(dv.dtype)

    @pl.when(j == num_tiles - 1)
    def _():
      dq[0, q_rows] = sum_q[q_rows].astype(dq.dtype)
