"""Programs of the attention kernels for GPUs (gpu.py): a tile's scores, and loops over tiles.

Legend: Q queries and S keys of a tile; R elements of the side that a program holds, C of the side
that it loops over; K head width; U rows of a relative table. A tile of queries × keys begins at
`first`, (query, key). by_key: whether the program holds keys. Scores are exponents of 2.

A relative term is the product of all queries or keys with the rows of a table. It stands in memory
and is read by computed indices: Triton does not gather within values. Rows of a table ascend with
the distance, so those keys of a query that read the same row stand side by side. The gradient
of the product is then a difference of two running sums along a row of the tile, which are read from
memory, too. One program adds up all of a row, tile after tile: no order is left to chance.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from bertzoo_jax.kernels import bits
from bertzoo_jax.kernels.operands import product
from bertzoo_jax.model.attention import HIDDEN

try:
  from jax.experimental.pallas import triton
except ImportError:  # jax 0.12 calls it deprecated
  triton = None

_LOG2_E = math.log2(math.e)
TERMS = 'c2p', 'p2c'  # products with queries, with keys


class Program(NamedTuple):
  """The static arguments of a kernel."""

  scale: float  # factor of the scores
  rate: float  # of dropout
  window: tuple[int, int] | None  # None or (left, right)
  first_query: int  # place of query 0 among the keys
  ordered: bool  # whether queries and keys have an order besides their packs
  terms: tuple[str, ...]  # the relative terms, among TERMS
  tile: tuple[int, int]  # (queries, keys)
  interpret: bool  # run on any machine

  @property
  def span(self) -> int:
    """Most rows of a table that a tile reads, rounded up."""
    return 1 << (sum(self.tile) - 1).bit_length()


def forward(program, refs, out):
  """Writes the results of a tile of queries: out['q'], out['lse']."""
  queries, keys = program.tile
  number, *place = (pl.program_id(axis) for axis in range(3))
  rows = pl.ds(number * queries, queries)
  q_QK = refs['q'][rows, :]

  def step(tile, sums):
    top_Q, total_Q, sum_QK = sums
    first, columns = (rows.start, tile * keys), pl.ds(tile * keys, keys)
    scores_QS = _scores(program, refs, first, q_QK, refs['k'][columns, :], False)
    highest_Q = jnp.maximum(top_Q, jnp.max(scores_QS, axis=1))
    shrink_Q, e_QS = jnp.exp2(top_Q - highest_Q), jnp.exp2(scores_QS - highest_Q[:, None])
    total_Q = total_Q * shrink_Q + jnp.sum(e_QS, axis=1)
    if program.rate:
      e_QS = jnp.where(_keep(program, refs, place, first, False), e_QS, 0.0)
    v_SK = refs['v'][columns, :]
    added_QK = product(e_QS.astype(v_SK.dtype), v_SK, (1, 0))
    return highest_Q, total_Q, sum_QK * shrink_Q[:, None] + added_QK

  sums = jnp.full(queries, HIDDEN), jnp.zeros(queries), jnp.zeros(q_QK.shape, jnp.float32)
  top_Q, total_Q, sum_QK = _over_tiles(refs['q_tiles'], number, step, sums)
  sees_Q = top_Q > 0.5 * HIDDEN
  inverse_Q = jnp.where(sees_Q, 1.0 / (total_Q * (1.0 - program.rate)), 0.0)
  out['q'][rows, :] = (sum_QK * inverse_Q[:, None]).astype(q_QK.dtype)
  out['lse'][rows] = jnp.where(sees_Q, top_Q + jnp.log2(total_Q), -HIDDEN)


def backward(program, refs, out, by_key):
  """Writes the gradients of a tile of queries, or of keys and values: out['q'], or out['k'] and
  out['v']; and of their product with a table, before the scale.
  """
  side = int(by_key)
  held, others = (('q', 'grad'), ('k', 'v'))[:: -1 if by_key else 1]
  size, step_size = program.tile[side], program.tile[1 - side]
  number, *place = (pl.program_id(axis) for axis in range(3))
  rows = pl.ds(number * size, size)
  x_RK, y_RK = (refs[name][rows, :] for name in held)
  term = TERMS[side] if TERMS[side] in program.terms else None
  if term:
    for start in range(0, out[term].shape[1], program.span):
      out[term][rows, pl.ds(start, program.span)] = jnp.zeros((size, program.span), jnp.float32)
    _wait(program)

  def step(tile, sums):
    columns = pl.ds(tile * step_size, step_size)
    first = (columns.start, rows.start) if by_key else (rows.start, columns.start)
    x_CK, y_CK = (refs[name][columns, :] for name in others)
    scores_RC = _scores(program, refs, first, x_RK, x_CK, by_key)
    # Probabilities divided by 1 − rate: dropout scales the kept ones up.
    lse_1, delta_1 = (_along(refs[n][pl.ds(first[0], program.tile[0])], side) for n in _QUERIES)
    p_RC = jnp.exp2(scores_RC - (lse_1 + math.log2(1.0 - program.rate)))
    dp_RC = product(y_RK, y_CK, (1, 1))
    kept_RC = p_RC
    if program.rate:
      keep_RC = _keep(program, refs, place, first, by_key)
      kept_RC, dp_RC = (jnp.where(keep_RC, x, 0.0) for x in (p_RC, dp_RC))
    ds_RC = (p_RC * (dp_RC - delta_1 * (1.0 - program.rate))).astype(x_CK.dtype)
    if term:
      _add_by_row(program, refs, out, first, ds_RC, by_key)
    dx_RK = sums[0] + product(ds_RC, x_CK, (1, 0))
    if not by_key:
      return (dx_RK,)
    return dx_RK, sums[1] + product(kept_RC.astype(y_CK.dtype), y_CK, (1, 0))

  sums = (jnp.zeros(x_RK.shape, jnp.float32),) * (1 + side)
  dx_RK, *dy_RK = _over_tiles(refs['k_tiles' if by_key else 'q_tiles'], number, step, sums)
  out[held[0]][rows, :] = (dx_RK * program.scale).astype(x_RK.dtype)
  if by_key:
    out['v'][rows, :] = dy_RK[0].astype(y_RK.dtype)


_QUERIES = 'lse', 'delta'  # numbers of each query


def _over_tiles(ends, number, step, sums):
  """The result of step(tile, sums) for the tiles that the tile of this number sees."""
  return jax.lax.fori_loop(ends[number, 0], ends[number, 1], step, sums)


def _along(x, axis):
  """x [N] along the other axis of a tile: [N, 1] for axis 0, [1, N] for axis 1."""
  return x[None] if axis else x[:, None]


def _scores(program, refs, first, x_RK, x_CK, by_key):
  """float32 [R, C]: scores with their relative terms, HIDDEN where a query does not see a key."""
  scores_RC = product(x_RK, x_CK, (1, 1))
  for name in program.terms:
    term = _term(program, refs, name, first)
    scores_RC += term if by_key == (name == 'p2c') else term.T
  marks = [
    [_along(refs[name][n, pl.ds(start, size)], axis) for n in range(1 + program.ordered)]
    for name, start, size, axis in zip(
      ('q_marks', 'k_marks'), first, program.tile, (by_key, not by_key)
    )
  ]
  (q_packs, *q_order), (k_packs, *k_order) = marks
  seen_RC = q_packs == k_packs
  if program.ordered:
    seen_RC &= k_order[0] <= q_order[0]
  if program.window:
    size = scores_RC.shape
    distance_RC = first[0] - first[1] + program.first_query + _number(size, by_key)
    distance_RC -= _number(size, not by_key)
    seen_RC &= (distance_RC <= program.window[0]) & (distance_RC >= -program.window[1])
  return jnp.where(seen_RC, scores_RC * (program.scale * _LOG2_E), HIDDEN)


def _term(program, refs, name, first):
  """float32: the term of a tile, with the queries (c2p) or keys (p2c) down. Neighbours across a
  tile are then neighbours in memory.
  """
  by_key = name == 'p2c'
  size = program.tile[::-1] if by_key else program.tile
  place, lowest, highest = _table_rows(program, refs, first)

  def one():  # far from the diagonal
    term_R = refs[name][pl.ds(first[by_key], size[0]), lowest].astype(jnp.float32)
    return jnp.broadcast_to(term_R[:, None], size)

  def some():
    down_RC, across_RC = (_number(size, axis) for axis in (0, 1))
    row_RC = refs['rows'][place + (across_RC - down_RC if by_key else down_RC - across_RC)]
    return refs[name][first[by_key] + down_RC, row_RC].astype(jnp.float32)

  return jax.lax.cond(lowest == highest, one, some)


def _table_rows(program, refs, first):
  """(place in `rows` of the tile's first pair, the tile's lowest row of a table, its highest)."""
  place = refs['k'].shape[0] - 1 + first[0] - first[1]
  ends = place - (program.tile[1] - 1), place + program.tile[0] - 1
  return place, *(refs['rows'][end] for end in ends)


def _number(size, axis):
  return jax.lax.broadcasted_iota(jnp.int32, size, axis)


def _add_by_row(program, refs, out, first, ds_RC, by_key):
  """Adds a tile's gradients to those of the product of its queries, or keys, with a table."""
  grads, scratch = out[TERMS[by_key]], out['scratch']
  size, span = ds_RC.shape, program.span
  rows = pl.ds(first[by_key], size[0])
  place, lowest, highest = _table_rows(program, refs, first)

  def one():
    grads[rows, lowest] += jnp.sum(ds_RC.astype(jnp.float32), axis=1)
    _wait(program)

  def some():
    whole = (size[1], size[1])
    until = (_number(whole, 0) <= _number(whole, 1)).astype(ds_RC.dtype)
    scratch[...] = product(ds_RC, until, (1, 0))  # sums up to and with each column
    _wait(program)
    start = jnp.minimum(lowest, grads.shape[1] - span)
    # rows[begin:end] = row, for each row of the table from `start` on
    begin_1U, end_1U = (refs['edges'][pl.ds(start + n, span)][None] for n in (0, 1))
    down_RU = _number((size[0], span), 0)
    if by_key:
      before_RU, last_RU = (x_1U - 1 + down_RU - place for x_1U in (begin_1U, end_1U))
    else:
      before_RU, last_RU = (place + down_RU - x_1U for x_1U in (end_1U, begin_1U))

    def up_to(column_RU):
      sums_RU = scratch[down_RU, jnp.clip(column_RU, 0, size[1] - 1)]
      return jnp.where(column_RU < 0, 0.0, sums_RU)

    grads[rows, pl.ds(start, span)] += up_to(last_RU) - up_to(before_RU)
    _wait(program)

  jax.lax.cond(lowest == highest, one, some)


def _wait(program):
  """What the program has written to memory is there for all of its threads."""
  if not program.interpret:
    triton.debug_barrier()


def _keep(program, refs, place, first, by_key):
  """bool [R, C]: True where dropout keeps a probability. place: (head, row of the batch)."""
  head, row = place
  size, axes = (program.tile[::-1], (0, 1)) if by_key else (program.tile, (1, 0))
  return bits.keep(program.rate, True, refs['seed'], row, head, 0, first[::-1], size, axes)
