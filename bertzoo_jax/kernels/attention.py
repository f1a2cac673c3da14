"""Fused attention, forward and backward, as TPU kernels with relative terms, or with a window
around given places. flash.py has all other cases.

Legend as in model/attention.py: B batch, L number of queries, M of keys, H heads, K head width, N
places of the queries, R rows of a table of distances; D = H·K.

A program holds all scores of some queries and heads in fast memory, [M, L] per head: keys down and
queries across, so that a softmax reduces over rows. Up to 512 tokens these are all queries of a row
of the batch; above, a block of them. Keys are always whole, so no softmax is corrected afterwards.

Nothing of size L × M reaches main memory. The forward pass keeps the logarithm of each query's sum
of exponentials; with it the backward pass computes the probabilities in one step. It draws the same
dropout bits again. Softmax and sums are float32.

Relative terms (relative_terms.py) are products with a window of the table, which slides.py shifts
into place. Their kernels loop over all rows of the batch for a group of heads, so the gradients of
the tables are summed in fast memory, in float32. Queries at given places are multiplied with the
whole table. Terms of keys are computed for all N places, of which each query picks one.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bertzoo_jax.kernels import bits
from bertzoo_jax.kernels import flash
from bertzoo_jax.kernels import operands
from bertzoo_jax.kernels.operands import LANES
from bertzoo_jax.kernels.operands import product
from bertzoo_jax.kernels.relative_terms import Lanes
from bertzoo_jax.kernels.relative_terms import Pairs
from bertzoo_jax.kernels.relative_terms import Terms
from bertzoo_jax.model.attention import HIDDEN
from bertzoo_jax.model.attention import Relative

_WHOLE = 512  # tokens up to which a program takes all queries of a row
_TABLES = 'c2p', 'p2c', 'bias', 'query'  # the first terms of a Relative
_FORWARD, _BACKWARD = 1 << 17, 1 << 16  # keys × lanes of the heads that a program takes


class _Program(NamedTuple):
  """The static arguments of a kernel."""

  # heads, width: number and width of the heads
  heads: int
  width: int
  scale: float  # factor of the scores
  rate: float  # dropout rate
  terms: tuple[str, ...]  # names of the relative terms, among c2p, p2c, bias and query
  halves: int  # 2 if each row of the batch reads one of two halves of a table; else 1
  window: tuple[int, int] | None  # None or (left, right)
  first_query: int  # place of query 0 among the keys
  # names of the integers of each query: packs, and optionally order, segments and places. Keys have
  # the same integers except places.
  marks: tuple[str, ...]
  places: int  # N with padding
  gather: bool  # whether the chip moves sublanes by indices (not on TPU v4)
  hashed: bool  # draw dropout bits by row_keys.py
  interpret: bool  # run on any machine


def attend(
  q_BLHK,
  k_BMHK,
  v_BMHK,
  visible,
  dropout_rate=0.0,
  dropout_keys_B2=None,
  relative=None,
  scale=None,
  *,
  first_head=0,
  keep=False,
  kept=None,
  gather=True,
  hashed=False,
  interpret=False,
):
  """model.attention.attend, fused.

  Args:
    q_BLHK, k_BMHK, v_BMHK, visible, dropout_rate, dropout_keys_B2, relative, scale: as in model.
    first_head: number of the first head of q among all heads. Dropout bits of a score depend on the
      key of its row, its head and its place, so they are the same on any mesh.
    keep: return (out_BLHK, kept), where kept is what the backward pass needs besides the arguments:
      (lse_BH1L, out_BLHK), or (lse_BH1L, None).
    kept: from an earlier call with the same arguments, to run only the backward pass: the result is
      not computed, and must not be used.
    gather: False for TPU v4, which cannot move sublanes by indices: its relative terms are slower.
    hashed: see `bits.keep`.
    interpret: run on any machine, slowly.
  """
  batch, length, heads, width = q_BLHK.shape
  keys = k_BMHK.shape[1]
  keys_B2 = dropout_keys_B2 if dropout_rate else None
  relative = relative and relative.by_distance()
  if flash.takes(length, keys, visible, relative):
    out_BLHK, kept = flash.attend(
      *(q_BLHK, k_BMHK, v_BMHK, visible, dropout_rate, keys_B2, scale, first_head, kept),
      hashed=hashed,
      interpret=interpret,
    )
    return (out_BLHK, kept) if keep else out_BLHK
  relative = Relative() if relative is None else relative
  tables = {n: x for n, x in zip(_TABLES, relative) if x is not None}
  query_marks, key_marks = operands.marks(visible, relative.same_segment, bool(tables))
  rows, columns = operands.up(length), operands.up(keys)
  places = _places(length, keys, relative, tables) if 'places' in query_marks else (length, rows)
  program = _Program(
    heads,
    width,
    width**-0.5 if scale is None else float(scale),
    float(dropout_rate) if keys_B2 is not None else 0.0,
    tuple(tables),
    1 if relative.half_B is None else 2,
    visible.window,
    visible.first_query,
    tuple(query_marks),
    places[1],
    gather,
    hashed,
    interpret,
  )
  flat = lambda x, size: operands.pad(x.reshape(*x.shape[:2], heads * width), size, 1)
  arrays = flat(q_BLHK, rows), flat(k_BMHK, columns), flat(v_BMHK, columns)
  numbers_BH1L = None
  if relative.same_segment is not None:
    numbers_BH1L = operands.pad(relative.same_segment.numbers_BLH.mT, rows, 2)[:, :, None]
    numbers_BH1L = numbers_BH1L.astype(jnp.float32)
  tables = tuple(
    _table(name, relative, table, places, (keys, columns), q_BLHK.dtype)
    for name, table in tables.items()
  )
  marks = operands.stacked(query_marks, rows, -1), operands.stacked(key_marks, columns, -2)
  half_B = jnp.zeros(batch) if relative.half_B is None else relative.half_B
  scalars = bits.seed(keys_B2, batch, first_head), half_B.astype(jnp.int32)
  kept = None if kept is None else kept[0]
  out_BLD, lse_BH1L = _attend(program, *arrays, numbers_BH1L, tables, marks, scalars, kept)
  out_BLHK = out_BLD[:, :length].reshape(q_BLHK.shape)
  return (out_BLHK, (lse_BH1L, None)) if keep else out_BLHK


def _places(length, keys, relative, tables) -> tuple[int, int]:
  """(N, by the size of a table; N rounded up to whole registers of lanes)."""
  table = next(iter(tables.values()), None)
  places = length if table is None else relative.halves(table).shape[1] + 1 - keys
  return places, operands.up(places)


def _table(name, relative, table, places, keys, dtype):
  """A table in the layout of the kernels, one half after the other: [halves · rows, D] in `dtype`;
  a bias is [H, 1, halves · rows] in float32. c2p_query_HK is a table of one row.

  p2c begins with the smallest distance. c2p and bias begin with the greatest.

  places, keys: (number, number with padding).
  """
  if name == 'query':
    return table.reshape(1, -1).astype(dtype)
  halves = relative.halves(table)
  front = keys[1] - keys[0] if name == 'p2c' else places[1] - places[0]
  back = places[1] + keys[1] - halves.shape[1] - front
  halves = halves if name == 'p2c' else halves[:, ::-1]
  halves = jnp.pad(halves, ((0, 0), (front, back), *((0, 0),) * (table.ndim - 1)))
  if name == 'bias':
    return halves.reshape(-1, table.shape[1]).T[:, None].astype(jnp.float32)
  return halves.reshape(halves.shape[0] * halves.shape[1], -1).astype(dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(program, q_BLD, k_BMD, v_BMD, numbers_BH1L, tables, marks, scalars, kept):
  """(out_BLD, lse_BH1L). The second gets no gradient."""
  if kept is not None:
    return jnp.zeros_like(q_BLD), kept
  return _call(_forward, program, (q_BLD, k_BMD, v_BMD), numbers_BH1L, tables, marks, scalars)


def _attend_forward(program, *args):
  out_BLD, lse_BH1L = _attend(program, *args)
  # A policy of jax.checkpoint that saves the output of attention must save this, too: else the
  # backward pass would compute both again.
  return (out_BLD, lse_BH1L), (args[:-1], checkpoint_name(lse_BH1L, 'attended'))


def _attend_backward(program, kept, grads):
  (q_BLD, k_BMD, v_BMD, *rest), lse_BH1L = kept
  arrays = q_BLD, k_BMD, v_BMD, grads[0], lse_BH1L
  dq, dk, dv, *others = _call(_backward, program, arrays, *rest)
  numbers_grad = others.pop(0) if 'segments' in program.marks else None
  table_grads = tuple(x.astype(table.dtype) for x, table in zip(others, rest[1]))
  return dq, dk, dv, numbers_grad, table_grads, None, None, None


_attend.defvjp(_attend_forward, _attend_backward)


def _call(kernel, program, arrays, numbers_BH1L, tables, marks, scalars):
  """Results of a kernel that runs for each row, group of heads and block of queries.

  arrays: q, k, v and, for the backward pass, gradient and log-sum-exp.
  """
  backward = kernel is _backward
  batch, length, depth = arrays[0].shape
  keys = arrays[1].shape[1]
  together = _heads_together(program.heads, program.width, keys, backward)
  queries = _block(length, keys)
  wide, blocks = together * program.width, length // queries
  numbers = () if numbers_BH1L is None else (numbers_BH1L,)

  # Rows are the inner axis, so that a group's gradients of tables stay in fast memory.
  def spec(shape, index):
    return pl.BlockSpec(shape, lambda h, b, i, *_: index(b, h, i))

  q_spec = spec((1, queries, wide), lambda b, h, i: (b, i, h))
  k_spec = spec((1, keys, wide), lambda b, h, i: (b, 0, h))
  lse_spec = spec((1, together, 1, queries), lambda b, h, i: (b, h, 0, i))
  mark_specs = [
    spec((1, marks[0].shape[1], queries), lambda b, h, i: (b, 0, i)),
    spec((1, marks[1].shape[1], keys), lambda b, h, i: (b, 0, 0)),
  ]
  table_specs = [
    spec((together, 1, t.shape[2]), lambda b, h, i: (h, 0, 0))
    if t.ndim == 3
    else spec((len(t), wide), lambda b, h, i: (0, h))
    for t in tables
  ]
  like = lambda rows: jax.ShapeDtypeStruct((batch, rows, depth), arrays[0].dtype)
  if backward:
    out = [like(length), like(keys), like(keys)]
    out += [jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in (*numbers, *tables)]
    places = [q_spec, k_spec, k_spec, *(lse_spec for _ in numbers), *table_specs]
    places_in = [q_spec, k_spec, k_spec, q_spec, lse_spec]
    scratch = [pltpu.VMEM((keys, wide), jnp.float32)] * (2 if blocks > 1 else 0)
  else:
    out = [like(length), jax.ShapeDtypeStruct((batch, program.heads, 1, length), jnp.float32)]
    places, places_in, scratch = [q_spec, lse_spec], [q_spec, k_spec, k_spec], []
  semantics = ('parallel', 'arbitrary', 'arbitrary')
  return pl.pallas_call(
    functools.partial(kernel, program, together, blocks),
    out_shape=out,
    interpret=program.interpret,
    cost_estimate=_cost(program, backward, *arrays[:2], (*arrays, *tables, *out)),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=len(scalars),
      grid=(program.heads // together, batch, blocks),
      out_specs=places,
      scratch_shapes=scratch,
      in_specs=[*places_in, *(lse_spec for _ in numbers), *table_specs, *mark_specs],
    ),
    compiler_params=pltpu.CompilerParams(dimension_semantics=semantics),
    name=f'attention{kernel.__name__}{_variant(program, length, keys)}'
    + bits.variant(program, arrays[0].dtype),
  )(*scalars, *arrays, *numbers, *tables, *marks)


def _variant(program, length, keys) -> str:
  """The part of a kernel's name that its cost depends on."""
  parts = [
    f'_k{program.width}',
    f'_m{keys}' * (keys != length),
    *(f'_{t}' for t in program.terms),
    '_halves' * (program.halves > 1),
    '_window' * (program.window is not None),
    *(f'_{mark}' for mark in program.marks if mark in ('order', 'segments')),
    f'_at{program.places}' * ('places' in program.marks),
  ]
  return ''.join(parts)


def _cost(program, backward, q_BLD, k_BMD, arrays):
  (batch, length, _), keys = q_BLD.shape, k_BMD.shape[1]
  slid = length * ('c2p' in program.terms) + program.places * ('p2c' in program.terms)
  products = 5 * length + 3 * slid if backward else 2 * length + slid
  return pl.CostEstimate(
    flops=2 * batch * program.heads * keys * products * program.width,
    transcendentals=batch * program.heads * length * keys,
    bytes_accessed=sum(x.size * x.dtype.itemsize for x in arrays),
  )


def steps(
  heads: int, width: int, length: int, keys: int | None = None, relative=False, window=None
) -> tuple[int, int]:
  """Programs per row of the batch, forward and backward. keys: as many as queries if None."""
  keys = length if keys is None else keys
  if not relative:
    return flash.steps(heads, width, length, keys, window)
  length, keys = operands.up(length), operands.up(keys)
  blocks = length // _block(length, keys)
  return tuple(
    heads // _heads_together(heads, width, keys, backward) * blocks for backward in (False, True)
  )


def _heads_together(heads: int, width: int, keys: int, backward: bool) -> int:
  """Heads per program: side by side they fill whole registers of lanes, if possible.

  Two cores share the groups of heads: their number is even if possible.
  """
  fits = [n for n in range(1, heads + 1) if heads % n == 0 and n * width % LANES == 0]
  most = (_BACKWARD if backward else _FORWARD) // (keys * width)
  fits = [n for n in fits if heads // n % 2 == 0] or fits
  return max((n for n in fits if n <= most), default=min(fits, default=heads))


def _block(length: int, keys: int) -> int:
  """Queries per program: all, or a multiple of LANES with at most 512 × 512 scores."""
  if length <= LANES or max(length, keys) <= _WHOLE:
    return length
  most = max(1, _WHOLE * _WHOLE // keys // LANES)
  return LANES * max(n for n in range(1, most + 1) if length // LANES % n == 0)


# --- inside a program ---------------------------------------------------------------------------


class _Place(NamedTuple):
  """A program's row of the batch, first head, block of queries, number of blocks, first query."""

  row: jax.Array
  head: jax.Array
  block: jax.Array
  blocks: int
  query: jax.Array

  @classmethod
  def current(cls, together, blocks, queries):
    group, row, block = (pl.program_id(axis) for axis in range(3))
    return cls(row, group * together, block, blocks, block * queries)


def _forward(program, together, blocks, seed, halves, q, k, v, *refs):
  *term_refs, query_marks, key_marks, out, lse = refs
  place = _Place.current(together, blocks, q.shape[1])
  pairs = Pairs.read(program, place, query_marks, key_marks)
  for head in range(together):
    plain, lanes = (
      Lanes.plain(program, head),
      Lanes.register(program, head, together),
    )
    terms = Terms(program, place, head, lanes, halves, pairs, term_refs, q.shape[1], k.shape[1])
    scores_ML = _scores(program, lanes.read(q), lanes.read(k), terms)
    top_1L = jnp.max(scores_ML, axis=0, keepdims=True)
    e_ML = jnp.exp(scores_ML - top_1L)
    total_1L = jnp.sum(e_ML, axis=0, keepdims=True)
    if program.rate:
      e_ML = jnp.where(_keep(program, seed, place, head, e_ML.shape), e_ML, 0.0)
    sees_1L = top_1L > 0.5 * HIDDEN
    inverse_1L = jnp.where(sees_1L, 1.0 / (total_1L * (1.0 - program.rate)), 0.0)
    out_KL = product(plain.read(v), e_ML.astype(v.dtype), (0, 0)) * inverse_1L
    plain.write(out, out_KL.T)
    lse[0, head] = jnp.where(sees_1L, top_1L + jnp.log(total_1L), -HIDDEN)


def _backward(program, together, blocks, seed, halves, q, k, v, grad, lse, *refs):
  count, segments = len(program.terms), int('segments' in program.marks)
  term_refs, refs = refs[: segments + count], refs[segments + count :]
  query_marks, key_marks, dq, dk, dv, *refs = refs
  gradients, sums = refs[: segments + count], refs[segments + count :]
  place = _Place.current(together, blocks, q.shape[1])
  pairs = Pairs.read(program, place, query_marks, key_marks)

  if count:

    @pl.when((place.row == 0) & (place.block == 0))
    def _():
      for ref in gradients[segments:]:
        ref[...] = jnp.zeros_like(ref)

  for head in range(together):
    lanes = Lanes.register(program, head, together)
    q_LK, k_MK, grad_LK = (lanes.read(x) for x in (q, k, grad))
    sizes = q.shape[1], k.shape[1]
    terms = Terms(program, place, head, lanes, halves, pairs, term_refs, *sizes, gradients)
    # Probabilities divided by 1 − rate: dropout scales the kept ones up.
    to_subtract = lse[0, head] + jnp.log(1.0 - program.rate) if program.rate else lse[0, head]
    p_ML = jnp.exp(_scores(program, q_LK, k_MK, terms) - to_subtract)
    dp_ML = product(v[0, :, lanes.lanes], grad_LK, (1, 1))
    kept_ML = p_ML
    if program.rate:
      keep_ML = _keep(program, seed, place, head, p_ML.shape)
      kept_ML, dp_ML = (jnp.where(keep_ML, x, 0.0) for x in (p_ML, dp_ML))
    delta_1L = jnp.sum(p_ML * dp_ML, axis=0, keepdims=True)
    ds_ML = p_ML * (dp_ML - (delta_1L * (1.0 - program.rate) if program.rate else delta_1L))
    dv_MK = product(kept_ML.astype(grad.dtype), grad_LK, (1, 0))
    low_ML = ds_ML.astype(q.dtype)
    dq_LK, dk_MK = (
      product(low_ML, k_MK, (0, 0)),
      product(low_ML, q_LK, (1, 0)),
    )
    if term_refs:
      added_LK, added_MK = _relative_gradients(program, terms, q_LK, k_MK, ds_ML)
      dq_LK, dk_MK = dq_LK + added_LK, dk_MK + added_MK
    lanes.write(dq, dq_LK * program.scale)
    _add((dk, dv), sums, place, lanes, (dk_MK * program.scale, dv_MK))


def _add(results, sums, place, lanes, parts):
  """Adds the gradients of one block of queries to the sums over all blocks."""
  if place.blocks == 1:
    for result, part in zip(results, parts):
      lanes.write(result, part)
    return
  columns = lanes.lanes
  for result, total, part in zip(results, sums, parts):
    before = jnp.where(place.block == 0, 0.0, total[:, columns])
    total[:, columns] = lanes.chosen(before + part, total[:, columns])

    @pl.when(place.block == place.blocks - 1)
    def _(result=result, total=total):
      lanes.write(result, total[:, columns])


def _keep(program, seed, place, head, size):
  """bool `size`: True where dropout keeps a probability of a head."""
  return bits.keep(
    program.rate,
    program.hashed,
    seed,
    place.row,
    place.head + head,
    place.block,
    (0, place.query),
    size,
  )


def _scores(program, q_LK, k_MK, terms):
  scores_ML = product(k_MK, q_LK, (1, 1))
  if 'c2p' in program.terms or 'bias' in program.terms:
    blocks = [terms.by_query(q_LK, b) for b in range(len(q_LK) // LANES)]
    scores_ML += jnp.concatenate(blocks, axis=1)
  if 'p2c' in program.terms:
    blocks = [terms.by_key(k_MK, c) for c in range(len(k_MK) // LANES)]
    scores_ML += jnp.concatenate(blocks, axis=0)
  if terms.pairs.same_ML is not None:
    scores_ML += terms.by_segments()
  return scores_ML * program.scale + terms.pairs.hidden_ML


def _relative_gradients(program, terms, q_LK, k_MK, ds_ML):
  """(part of dq_LK, part of dk_MK), before the scale; also adds to the gradients of the terms."""
  dq_LK, dk_MK = 0.0, 0.0
  if 'c2p' in program.terms or 'bias' in program.terms:
    parts = [terms.by_query_backward(q_LK, b, ds_ML) for b in range(len(q_LK) // LANES)]
    dq_LK = jnp.concatenate(parts, axis=0) if 'c2p' in program.terms else 0.0
  if 'p2c' in program.terms:
    parts = [terms.by_key_backward(k_MK, c, ds_ML) for c in range(len(k_MK) // LANES)]
    dk_MK = jnp.concatenate(parts, axis=0)
  if terms.pairs.same_ML is not None:
    terms.by_segments_backward(ds_ML)
  return dq_LK, dk_MK
