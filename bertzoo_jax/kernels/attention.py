"""Fused attention for encoder lengths, forward and backward, as TPU kernels.

Legend as in model/attention.py: B batch, L length of the queries, M of the keys, H heads, K head
width; D = H·K.

A program of the grid holds all scores of some queries in fast memory, [M, L] for each head: keys
down and queries across, so that a softmax reduces over rows. Up to 512 tokens these are all queries
of a row of the batch, beyond it a block of them. Keys are always whole, so no softmax is corrected
afterwards. Nothing of size L × M reaches the main memory: the backward pass computes the scores
again and draws the same dropout bits again. Softmax and sums are float32.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bertzoo_jax.kernels import bits

_HIDDEN = -1e30  # its exponential is 0, and a row of it alone still gives no NaN
_LANES = 128
_WHOLE = 512  # a length up to which a program takes all queries of a row


class _Program(NamedTuple):
  """What a program is made for: heads and their width, rate of dropout, source of its bits, the
  relative term of the scores.
  """

  heads: int
  width: int
  rate: float
  hashed: bool
  interpret: bool
  relative: Callable | None


def attend(
  q_BLHK,
  k_BLHK,
  v_BLHK,
  pack_ids_BL,
  dropout_rate=0.0,
  dropout_keys_B2=None,
  relative=None,
  tables=(),
  *,
  first_head=0,
  hashed=False,
  interpret=False,
):
  """What model.attention.attend computes, fused.

  Args:
    q_BLHK, k_BLHK, v_BLHK, pack_ids_BL, dropout_rate, dropout_keys_B2, tables: as there.
    relative: as there, computed and differentiated in fast memory. Beyond 512 tokens its L are a
      block of queries, and its keys are filled up to whole lanes.
    first_head: its number among all heads. The bits of a score depend on the key of its row, its
      head and its place, so they are the same on any mesh.
    hashed: as of `bits.keep`.
    interpret: run on any machine, slowly.
  """
  batch, length, heads, width = q_BLHK.shape
  keys_B2 = dropout_keys_B2 if dropout_rate else None
  seed = bits.seed(keys_B2, batch, first_head)
  padding = -length % (_LANES if length > _WHOLE else 1)
  flat = lambda x: jnp.pad(x.reshape(batch, length, heads * width), ((0, 0), (0, padding), (0, 0)))
  ids_B1L = jnp.pad(pack_ids_BL, ((0, 0), (0, padding)), constant_values=-1)[:, None]
  program = _Program(
    heads, width, float(dropout_rate) if keys_B2 is not None else 0.0, hashed, interpret, relative
  )
  tables = tuple(t.reshape(len(t), heads * width) for t in tables)
  return _attend(program, flat(q_BLHK), flat(k_BLHK), flat(v_BLHK), tables, ids_B1L, seed)[
    :, :length
  ].reshape(q_BLHK.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(program, q_BLD, k_BLD, v_BLD, tables, ids_B1L, seed):
  return _call(_forward, program, (q_BLD, k_BLD, v_BLD), tables, ids_B1L, seed)[0]


def _attend_backward(program, kept, grad_BLD):
  q_BLD, k_BLD, v_BLD, tables, ids_B1L, seed = kept
  dq, dk, dv, *of_tables = _call(
    _backward, program, (q_BLD, k_BLD, v_BLD, grad_BLD), tables, ids_B1L, seed
  )
  return (
    dq,
    dk,
    dv,
    tuple(jnp.sum(t, axis=0).astype(own.dtype) for t, own in zip(of_tables, tables)),
    None,
    None,
  )


_attend.defvjp(lambda program, *args: (_attend(program, *args), args), _attend_backward)


def _call(kernel, program, arrays, tables, ids_B1L, seed):
  """Runs a program for every row, some heads and some queries. arrays: q, k, v and, for the
  backward pass, the gradient.
  """
  backward = kernel is _backward
  batch, length, depth = arrays[0].shape
  together = _heads_together(program.heads, program.width, backward)
  queries = _block(length)
  wide = together * program.width
  of_queries = pl.BlockSpec((1, queries, wide), lambda b, h, i, _: (b, i, h))
  of_keys = pl.BlockSpec((1, length, wide), lambda b, h, i, _: (b, 0, h))
  of_tables = [pl.BlockSpec((len(t), wide), lambda b, h, i, _: (0, h)) for t in tables]
  of_ids = [
    pl.BlockSpec((1, 1, queries), lambda b, h, i, _: (b, 0, i)),
    pl.BlockSpec((1, 1, length), lambda b, h, i, _: (b, 0, 0)),
  ]
  like = lambda rows: jax.ShapeDtypeStruct((batch, rows, depth), arrays[0].dtype)
  out, places, sums = [like(length)], [of_queries], []
  if backward:
    out += [like(length)] * 2 + [like(len(t)) for t in tables]
    places += [of_keys] * 2 + [
      pl.BlockSpec((1, len(t), wide), lambda b, h, i, _: (b, 0, h)) for t in tables
    ]
    sums = [
      pltpu.VMEM((rows, wide), jnp.float32) for rows in (length, length, *(len(t) for t in tables))
    ]
  products, scores = 5 if backward else 2, batch * program.heads * length * length
  cost = pl.CostEstimate(
    flops=2 * products * scores * program.width,
    transcendentals=scores,
    bytes_accessed=sum(x.size * x.dtype.itemsize for x in (*arrays, *out)),
  )
  return pl.pallas_call(
    functools.partial(kernel, program, together, len(tables)),
    out_shape=out,
    cost_estimate=cost,
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=(batch, program.heads // together, length // queries),
      out_specs=places,
      scratch_shapes=sums,
      in_specs=[
        of_queries,
        of_keys,
        of_keys,
        *([of_queries] if backward else []),
        *of_tables,
        *of_ids,
      ],
    ),
    compiler_params=pltpu.CompilerParams(dimension_semantics=('parallel', 'parallel', 'arbitrary')),
    interpret=program.interpret,
    name=f'attention{kernel.__name__}_k{program.width}' + bits.variant(program, arrays[0].dtype),
  )(seed, *arrays, *tables, ids_B1L, ids_B1L)


def steps(heads: int, width: int, length: int) -> tuple[int, int]:
  """Programs that a row of the batch takes, forward and backward."""
  return tuple(
    heads // _heads_together(heads, width, backward) * (length // _block(length))
    for backward in (False, True)
  )


def _heads_together(heads: int, width: int, backward: bool) -> int:
  """How many heads a program takes: side by side they fill whole lanes, unless all of them do
  not.
  """
  fits = [n for n in range(1, heads + 1) if heads % n == 0 and n * width % _LANES == 0]
  return max((n for n in fits if n <= (2 if backward else 4)), default=min(fits, default=heads))


def _block(length: int) -> int:
  """Queries of a program: all of a row up to 512 tokens, beyond as many scores as there, or a row
  of lanes.
  """
  if length <= _WHOLE:
    return length
  most = max(1, _WHOLE * _WHOLE // length // _LANES)
  return _LANES * max(n for n in range(1, most + 1) if length // _LANES % n == 0)


def _forward(program, together, num_tables, seed, q, k, v, *refs):
  *tables, query_ids, key_ids, out = refs
  bias_ML, relative = _bias(query_ids, key_ids), _relative(program, q)
  for head in range(together):
    own = slice(head * program.width, (head + 1) * program.width)
    e_ML, total_1L = _exponentials(
      q[0, :, own], k[0, :, own], relative, [t[:, own] for t in tables], bias_ML
    )
    if program.rate:
      e_ML = jnp.where(_keep(program, seed, together, head, e_ML.shape), e_ML, 0.0)
    out_KL = _product(v[0, :, own], e_ML.astype(v.dtype), (0, 0)) * (
      1.0 / (total_1L * (1.0 - program.rate))
    )
    out[0, :, own] = out_KL.T.astype(out.dtype)


def _backward(program, together, num_tables, seed, q, k, v, grad, *refs):
  tables, (query_ids, key_ids, dq, *results) = refs[:num_tables], refs[num_tables:]
  results, sums = results[: num_tables + 2], results[num_tables + 2 :]
  bias_ML, relative = _bias(query_ids, key_ids), _relative(program, q)
  for head in range(together):
    own = slice(head * program.width, (head + 1) * program.width)
    q_LK, k_MK, grad_LK, of_head = (
      q[0, :, own],
      k[0, :, own],
      grad[0, :, own],
      [t[:, own] for t in tables],
    )
    e_ML, total_1L = _exponentials(q_LK, k_MK, relative, of_head, bias_ML)
    p_ML = e_ML * (1.0 / total_1L)
    kept_ML, dp_ML = p_ML, _product(v[0, :, own], grad_LK, (1, 1))
    if program.rate:
      keep_ML = _keep(program, seed, together, head, p_ML.shape)
      kept_ML, dp_ML = (
        jnp.where(keep_ML, x * (1.0 / (1.0 - program.rate)), 0.0) for x in (p_ML, dp_ML)
      )
    ds_ML = p_ML * (dp_ML - jnp.sum(p_ML * dp_ML, axis=0, keepdims=True))
    scaled_ML = (ds_ML * program.width**-0.5).astype(q_LK.dtype)
    dq_LK, dk_MK, of_tables = (
      _product(scaled_ML, k_MK, (0, 0)),
      _product(scaled_ML, q_LK, (1, 0)),
      (),
    )
    if relative:
      added_LK, added_MK, *of_tables = jax.vjp(relative, q_LK, k_MK, *of_head)[1](ds_ML)
      dq_LK, dk_MK = dq_LK + added_LK, dk_MK + added_MK
    dq[0, :, own] = dq_LK.astype(dq.dtype)
    _add(
      results, sums, own, (dk_MK, _product(kept_ML.astype(grad.dtype), grad_LK, (1, 0)), *of_tables)
    )


def _add(results, sums, own, parts):
  """Adds what one block of queries gives to what belongs to all of them, and writes it after the
  last.
  """
  block, blocks = pl.program_id(2), pl.num_programs(2)
  for result, total, part in zip(results, sums, parts):
    total[:, own] = jnp.where(block == 0, 0.0, total[:, own]) + part.astype(jnp.float32)

    @pl.when(block == blocks - 1)
    def _(result=result, total=total):
      result[0, :, own] = total[:, own].astype(result.dtype)


def _product(a, b, axes):
  """a · b over one axis of each, summed in float32."""
  exact = (
    jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else jax.lax.Precision.DEFAULT
  )  # whatever jax is set to
  return jax.lax.dot_general(
    a, b, (((axes[0],), (axes[1],)), ((), ())), preferred_element_type=jnp.float32, precision=exact
  )


def _bias(query_ids, key_ids):
  """0 where a query sees a key, and what hides it elsewhere; the same for all heads."""
  ids_M1 = jnp.broadcast_to(key_ids[0], (8, key_ids.shape[2])).T[:, :1]
  return jnp.where(ids_M1 == query_ids[0], 0.0, _HIDDEN)


def _relative(program, q):
  """The relative term of a head: (q_LK, k_MK, *tables) → [M, L]; None without one."""
  if program.relative is None:
    return None
  first_query = pl.program_id(2) * q.shape[1]
  return lambda q_LK, k_MK, *tables: program.relative(q_LK, k_MK, first_query, *tables)


def _exponentials(q_LK, k_MK, relative, tables, bias_ML):
  """exp(score − the highest of its query), and their sums over the keys."""
  scores_ML = _product(k_MK, q_LK, (1, 1)) * q_LK.shape[1] ** -0.5 + bias_ML
  if relative:
    scores_ML += relative(q_LK, k_MK, *tables)
  e_ML = jnp.exp(scores_ML - jnp.max(scores_ML, axis=0, keepdims=True))
  return e_ML, jnp.sum(e_ML, axis=0, keepdims=True)


def _keep(program, seed, together, head, size):
  """Which scores of a head stay."""
  block = pl.program_id(2)
  return bits.keep(
    program.rate,
    program.hashed,
    seed,
    pl.program_id(0),
    pl.program_id(1) * together + head,
    block,
    (0, block * size[1]),
    size,
  )
