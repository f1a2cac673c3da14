"""Attention in plain XLA, and what every `attend` promises.

Legend: B batch, L length of the queries, M of the keys, H heads, K head width, D width,
R = L + M − 1 distances between a query and a key.

    attend(q_BLHK, k_BMHK, v_BMHK, visible, dropout_rate=0.0, dropout_keys_B2=None,
           relative=None, scale=None) -> out_BLHK

visible: who sees whom (Visibility).
dropout_rate: probability with which an attention probability is set to 0.
dropout_keys_B2: keys of the rows (row_keys.py). None means no dropout.
relative: terms of the scores that depend on the distance of query and key, or on their segments
  (Relative). None means none.
scale: factor of the whole score, relative terms included. None means K ** -0.5.

A query that sees no key gets 0 and sends no gradient. Softmax and sums run in float32.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertzoo_jax.common import row_keys
from bertzoo_jax.model import layers

# Finite: exp(HIDDEN − max) is 0 in float32, and a row of it alone still gives no NaN.
HIDDEN = -1e30


class Visibility(NamedTuple):
  """Which query sees which key. All conditions must hold.

  Integers are static: pass the arrays of a Visibility through jax.jit, not the tuple.

  Attributes:
    query_packs_BL, key_packs_BM: int32 ids of packs. A query sees keys of its own pack. Padding has
      id 0, so padding sees padding: these rows are finite and nobody reads them.
    window: None or (left, right): the query at place i sees the keys at places i − left to
      i + right, both included.
    query_order_BL, key_order_BM: None or int32. A query sees key j if key_order_j <= query_order_i.
      Causal: both are the places. Permutation: both are the ranks. XLNet's query stream: keys have
      2 · rank, queries 2 · rank − 1.
    first_query: place of query 0 among the places of the keys. Keys of a memory stand before:
      L = M − first_query.
  """

  query_packs_BL: jax.Array
  key_packs_BM: jax.Array
  window: tuple[int, int] | None = None
  query_order_BL: jax.Array | None = None
  key_order_BM: jax.Array | None = None
  first_query: int = 0


class SameSegment(NamedTuple):
  """A term of the scores of keys in the query's own segment:

      score_ij += number_i where key j has the segment of query i

  Attributes:
    numbers_BLH: of queries; they get a gradient.
    query_segments_BL, key_segments_BM: int32 ids.
  """

  numbers_BLH: jax.Array
  query_segments_BL: jax.Array
  key_segments_BM: jax.Array


class Relative(NamedTuple):
  """Terms by distance d = first_query + i − j of query i and key j, and by their segments:

      score_ij += (q_i + c2p_query) · c2p[d] + k_j · p2c[d] + bias[d]

  Row r belongs to the r-th of `distances`, from the smallest to the greatest. Tables are common to
  all rows of the batch and get a gradient. Each may be None. Fused kernels have the first three
  only (`simple`).

  Attributes:
    c2p_RHK: content to position (He et al. 2021 §3.1; Shaw et al. 2018; Dai et al. 2019).
    p2c_RHK: position to content (He et al. 2021 §3.1).
    bias_RH: number per distance and head (Raffel et al. 2020 §2.1).
    c2p_query_HK: a vector that is added to every query in the c2p term (Dai et al. 2019 §3.3).
    mirrored_RHK, mirrored_B: rows of the batch where mirrored_B is true have this table in place of
      c2p_RHK.
    same_segment: the term by segments (Yang et al. 2019 §2.5).
  """

  c2p_RHK: jax.Array | None = None
  p2c_RHK: jax.Array | None = None
  bias_RH: jax.Array | None = None
  c2p_query_HK: jax.Array | None = None
  mirrored_RHK: jax.Array | None = None
  mirrored_B: jax.Array | None = None
  same_segment: SameSegment | None = None

  @property
  def simple(self) -> bool:
    """Whether there are no other terms than c2p, p2c and bias."""
    return all(term is None for term in self[3:])


def same_pack(pack_ids_BL, window=None) -> Visibility:
  """Self-attention in which a token sees its own pack, inside a window if one is given."""
  return Visibility(pack_ids_BL, pack_ids_BL, window)


def of_batch(batch) -> Visibility:
  """Self-attention of a batch: tokens see their own pack, and no token that comes after them in
  `order` [B, L] if the batch has one (places for left to right, ranks for a permutation).
  """
  packs_BL, order_BL = batch['pack_ids'], batch.get('order')
  return Visibility(packs_BL, packs_BL, None, order_BL, order_BL)


def distances(queries: int, keys: int, first_query: int = 0) -> np.ndarray:
  """int32 [R]: the distance first_query + i − j that each row of a table in Relative belongs to.

  A table of buckets is expanded by one gather of its rows: `table[buckets(distances(L, M))]`.
  """
  return np.arange(queries + keys - 1, dtype=np.int32) + (first_query - keys + 1)


def mask(visible: Visibility):
  """Boolean [B, L, M]: whether a query sees a key."""
  packs_BL1, packs_B1M = visible.query_packs_BL[:, :, None], visible.key_packs_BM[:, None]
  seen_BLM = packs_BL1 == packs_B1M
  if visible.window is not None:
    left, right = visible.window
    queries, keys = seen_BLM.shape[1:]
    distance_LM = visible.first_query + np.arange(queries)[:, None] - np.arange(keys)
    seen_BLM &= (-right <= distance_LM) & (distance_LM <= left)
  if visible.query_order_BL is not None:
    seen_BLM &= visible.key_order_BM[:, None] <= visible.query_order_BL[:, :, None]
  return seen_BLM


def attend(
  q_BLHK, k_BMHK, v_BMHK, visible, dropout_rate=0.0, dropout_keys_B2=None, relative=None, scale=None
):
  """Scaled dot-product attention (Vaswani et al. 2017 §3.2.1); arguments as in the module."""
  seen_BLM = mask(visible)
  scores_BHLM = jnp.einsum('BLHK,BMHK->BHLM', q_BLHK, k_BMHK, preferred_element_type=jnp.float32)
  if relative is not None:
    scores_BHLM = _add_relative(scores_BHLM, q_BLHK, k_BMHK, relative)
  scores_BHLM *= q_BLHK.shape[-1] ** -0.5 if scale is None else scale
  scores_BHLM = jnp.where(seen_BLM[:, None], scores_BHLM, HIDDEN)
  probs_BHLM = jax.nn.softmax(scores_BHLM, axis=-1).astype(q_BLHK.dtype)
  if dropout_rate and dropout_keys_B2 is not None:
    keys_BH2 = row_keys.fold_in(dropout_keys_B2[:, None], jnp.arange(q_BLHK.shape[2]))
    # Keys down and queries across, as in the fused kernels.
    probs_BHLM = layers.dropout(probs_BHLM.mT, dropout_rate, keys_BH2).mT
  out_BLHK = jnp.einsum('BHLM,BMHK->BLHK', probs_BHLM, v_BMHK)
  return out_BLHK if _sees_itself(visible) else seeing(seen_BLM, out_BLHK)


def _sees_itself(visible: Visibility) -> bool:
  """Whether it is known, without the numbers, that each query sees the key at its own place."""
  window = visible.window is None or min(visible.window) >= 0
  same = visible.query_packs_BL is visible.key_packs_BM
  return same and visible.query_order_BL is visible.key_order_BM and window


def seeing(seen_BLM, out_BLHK):
  """out_BLHK with 0 for each query that sees no key."""
  return jnp.where(jnp.any(seen_BLM, axis=-1)[:, :, None, None], out_BLHK, 0)


def _add_relative(scores_BHLM, q_BLHK, k_BMHK, relative):
  """Scores are not gathered: products with all R rows are slid into place."""
  queries, keys = q_BLHK.shape[1], k_BMHK.shape[1]
  if relative.c2p_RHK is not None:
    reversed_rows = lambda table_RHK: table_RHK[::-1].astype(q_BLHK.dtype)
    table_RHK, asks_BLHK = reversed_rows(relative.c2p_RHK), q_BLHK
    if relative.c2p_query_HK is not None:
      asks_BLHK = q_BLHK + relative.c2p_query_HK.astype(q_BLHK.dtype)
    if relative.mirrored_B is None:
      scores_BHLM += _by_distance(asks_BLHK, table_RHK).swapaxes(0, 1)
    else:
      mirrored_B111 = relative.mirrored_B[:, None, None, None]
      table_BRHK = jnp.where(mirrored_B111, reversed_rows(relative.mirrored_RHK), table_RHK)
      table_BRHK = jnp.pad(table_BRHK, ((0, 0), (0, 1), (0, 0), (0, 0)))
      rows_BHLR = jnp.einsum(
        'BLHK,BRHK->BHLR', asks_BLHK, table_BRHK, preferred_element_type=jnp.float32
      )
      scores_BHLM += slide(rows_BHLR, keys)
  if relative.p2c_RHK is not None:
    table = relative.p2c_RHK.astype(k_BMHK.dtype)
    scores_BHLM += _by_distance(k_BMHK, table).swapaxes(0, 1).mT
  if relative.bias_RH is not None:
    bias_HR = jnp.pad(relative.bias_RH[::-1].T, ((0, 0), (0, 1)))
    rows_HLR = jnp.broadcast_to(bias_HR[:, None], (q_BLHK.shape[2], queries, queries + keys))
    scores_BHLM += slide(rows_HLR.astype(jnp.float32), keys)
  if relative.same_segment is not None:
    numbers_BLH, queries_BL, keys_BM = relative.same_segment
    same_BLM = queries_BL[:, :, None] == keys_BM[:, None]
    numbers_BHL1 = numbers_BLH.mT[..., None].astype(jnp.float32)
    scores_BHLM += jnp.where(same_BLM[:, None], numbers_BHL1, 0.0)
  return scores_BHLM


@jax.custom_vjp
def _by_distance(x_BNHK, table_RHK):
  """out[h, b, i, j] = x_i · table[j + N − 1 − i], float32 [H, B, N, R + 1 − N].

  All rows of the batch are one product per head. The gradients are written out, in the order of
  axes in which a CPU multiplies without turning the largest array round: as jax derives them, they
  take a quarter longer.
  """
  heads, keys = x_BNHK.shape[2], len(table_RHK) + 1 - x_BNHK.shape[1]
  table_HKR = jnp.pad(table_RHK.transpose(1, 2, 0), ((0, 0), (0, 0), (0, 1)))
  # The row of zeros gives rows a length that slides by reshaping.
  y_HNR = _product(x_BNHK.transpose(2, 0, 1, 3).reshape(heads, -1, x_BNHK.shape[3]), table_HKR)
  return slide(y_HNR.reshape(heads, *x_BNHK.shape[:2], -1), keys)


def _by_distance_backward(kept, grad_HBNM):
  x_BNHK, table_RHK = kept
  heads, batch, rows, keys = grad_HBNM.shape
  y_HNR = slid_back(grad_HBNM).reshape(heads, batch * rows, rows + keys)
  y_HNR = jax.lax.optimization_barrier(y_HNR)  # or it is made twice, once for each product
  table_HRK = jnp.pad(table_RHK.transpose(1, 0, 2), ((0, 0), (0, 1), (0, 0)))
  x_HBNK = _product(y_HNR, table_HRK).reshape(heads, batch, rows, -1)
  table_HKR = _product(x_BNHK.transpose(2, 3, 0, 1).reshape(heads, -1, batch * rows), y_HNR)
  return (
    x_HBNK.transpose(1, 2, 0, 3).astype(x_BNHK.dtype),
    table_HKR[:, :, :-1].transpose(2, 0, 1).astype(table_RHK.dtype),
  )


_by_distance.defvjp(lambda x, table: (_by_distance(x, table), (x, table)), _by_distance_backward)


def _product(a_HMK, b_HKN):
  return jnp.einsum('HMK,HKN->HMN', a_HMK, b_HKN, preferred_element_type=jnp.float32)


def slide(x, size: int):
  """out[..., i, j] = x[..., i, j + N − 1 − i] for x [..., N, N + size] and j < size."""
  *lead, rows, columns = x.shape
  flat = x.reshape(*lead, rows * columns)
  flat = jax.lax.slice_in_dim(flat, rows - 1, rows - 1 + rows * (columns - 1), axis=-1)
  return flat.reshape(*lead, rows, columns - 1)[..., :size]


def slid_back(x):
  """The transpose of `slide`, elsewhere 0: [..., N, N + size] of [..., N, size]."""
  *lead, rows, size = x.shape
  pad = lambda x, before, after: jnp.pad(x, (*((0, 0),) * (x.ndim - 1), (before, after)))
  flat = pad(pad(x, 0, rows - 1).reshape(*lead, -1), rows - 1, 1)
  return flat.reshape(*lead, rows, rows + size)
