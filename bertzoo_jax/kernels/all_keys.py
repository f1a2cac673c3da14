"""Attention of long rows over all keys, as TPU kernels (Dao et al. 2022, §3.1).

The forward pass goes through the tiles of keys for a block of queries, and corrects its sums when
the largest score grows. The backward pass goes through the blocks of queries for a tile of keys. It
sums the gradients of a whole row's queries in fast memory.
"""

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bertzoo_jax.kernels import tiles
from bertzoo_jax.kernels.operands import product
from bertzoo_jax.model.attention import HIDDEN


def forward(program, q_BLD, k_BLD, v_BLD, own_BNL, others_BTNS, seed):
  batch, groups, blocks, num_tiles = tiles.sizes(program, q_BLD, k_BLD)
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
  grid = batch, groups, blocks, num_tiles
  return tiles.call(program, _forward_tiles, arrays, seed, grid, out, specs, scratch, order)


def backward(program, q_BLD, k_BLD, v_BLD, grad, lse, delta, own_BNL, others_BTNS, seed):
  of_lane = q_BLD.shape[1] * (4 + 2 * q_BLD.dtype.itemsize)
  program = program._replace(lanes=tiles.lanes_of(q_BLD.shape[2], program.width, of_lane))
  batch, groups, blocks, num_tiles = tiles.sizes(program, q_BLD, k_BLD)
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
  grid = batch, groups, num_tiles, blocks
  kept = of_lane * program.lanes
  return tiles.call(program, _backward_tiles, arrays, seed, grid, out, specs, scratch, order, kept)


def _forward_tiles(program, seed, q, k, v, own, others, out, lse, tops, totals, sums):
  *place, i, j = (pl.program_id(axis) for axis in range(4))
  num_tiles = pl.num_programs(3)
  hidden_SQ = tiles.hidden(
    program, own[0], others[0, 0], tiles.within(program, (i - j) * program.block)
  )

  @pl.when(j == 0)
  def _():
    tops[...] = jnp.full_like(tops, HIDDEN)
    totals[...], sums[...] = jnp.zeros_like(totals), jnp.zeros_like(sums)

  for lanes, heads in tiles.registers(program):
    q_QK, k_SK, v_KS = q[0, :, lanes], k[0, :, lanes], v[0, :, lanes].T
    numbers, first = [head.number for head in heads], (j * program.block, i * program.block)
    scores = [tiles.scores(program, head.own(q_QK), k_SK, hidden_SQ) for head in heads]
    largest = [
      jnp.maximum(tops[n], jnp.max(x_SQ, axis=0, keepdims=True)) for n, x_SQ in zip(numbers, scores)
    ]
    powers = [jnp.exp2(x_SQ - top_1Q) for x_SQ, top_1Q in zip(scores, largest)]
    added = [jnp.sum(e_SQ, axis=0, keepdims=True) for e_SQ in powers]
    if program.rate:
      keep = [tiles.keep(program, seed, place, head, i * num_tiles + j, first) for head in heads]
      powers = [jnp.where(keep_SQ, e_SQ, 0.0) for keep_SQ, e_SQ in zip(keep, powers)]
    parts = [
      product(v_KS[head.rows], e_SQ.astype(v.dtype), (1, 0)) for head, e_SQ in zip(heads, powers)
    ]
    for n, top_1Q, added_1Q, part_KQ in zip(numbers, largest, added, parts):
      smaller_1Q = jnp.exp2(tops[n] - top_1Q)
      totals[n], sums[n] = totals[n] * smaller_1Q + added_1Q, sums[n] * smaller_1Q + part_KQ
      tops[n] = top_1Q

  @pl.when(j == num_tiles - 1)
  def _():
    for lanes, heads in tiles.registers(program):
      out_KQ = []
      for head in heads:
        n = head.number
        own_KQ, lse[0, n] = tiles.finished(program, tops[n], totals[n], sums[n])
        out_KQ.append(own_KQ)
      out[0, :, lanes] = jnp.concatenate(out_KQ).T.astype(out.dtype)


def _backward_tiles(
  program, seed, q, k, v, grad, lse, delta, own, others, dq, dk, dv, sum_q, sum_k, sum_v
):
  row, group, j, i = (pl.program_id(axis) for axis in range(4))
  num_tiles, blocks = pl.num_programs(2), pl.num_programs(3)
  hidden_SQ = tiles.hidden(
    program, own[0], others[0, 0], tiles.within(program, (i - j) * program.block)
  )
  here = pl.ds(pl.multiple_of(i * program.block, program.block), program.block)

  @pl.when(j == 0)
  def _():
    sum_q[here] = jnp.zeros((program.block, sum_q.shape[1]), jnp.float32)

  @pl.when(i == 0)
  def _():
    sum_k[...], sum_v[...] = jnp.zeros_like(sum_k), jnp.zeros_like(sum_v)

  for lanes, heads in tiles.registers(program):
    q_QK, k_SK, v_SK, grad_QK = (x[0, :, lanes] for x in (q, k, v, grad))
    k_KS, first = k_SK.T, (j * program.block, i * program.block)
    found = tiles.gradients(
      program,
      [
        tiles.Tile(
          *(head.own(q_QK), k_SK, k_KS[head.rows], v_SK, head.own(grad_QK), hidden_SQ),
          *(lse[0, head.number], delta[0, head.number]),
          tiles.keep(program, seed, (row, group), head, i * num_tiles + j, first),
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

  @pl.when(j == num_tiles - 1)
  def _():
    dq[0, here] = sum_q[here].astype(dq.dtype)
