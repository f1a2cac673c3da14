"""Attention in plain XLA, and the interface of every `attend`.

Legend: B batch, L number of queries, M of keys, H heads, K head width, N places of the queries
(L where there is a query at each), R = N + M − 1 distances between a query's place and a key.

    attend(q_BLHK, k_BMHK, v_BMHK, visible, dropout_rate=0.0, dropout_keys_B2=None,
           relative=None, scale=None) -> out_BLHK

visible: which keys each query sees (Visibility).
dropout_rate: probability with which an attention probability is set to 0.
dropout_keys_B2: keys of the rows (row_keys.py). None means no dropout.
relative: terms of the scores that depend on the distance of query and key, or on their segments
  (Relative). None means none.
scale: factor of the whole score, relative terms included. None means K ** -0.5.

A query that sees no key gets 0 and sends no gradient. Softmax and sums run in float32.

Long rows, and windows that leave out keys, are computed in blocks of queries (long_rows.py).
Queries at chosen places are not.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertzoo_jax.common import row_keys
from bertzoo_jax.model import layers
from bertzoo_jax.model import long_rows

# Finite: exp(HIDDEN − max) is 0 in float32, and a row that is all HIDDEN gives no NaN.
HIDDEN = -1e30


class Visibility(NamedTuple):
  """Which query sees which key. All conditions must hold.

  Integers and one_pack are static: pass the arrays of a Visibility through jax.jit, not the tuple.
  """

  # query_packs_BL, key_packs_BM: int32 segment ids. A query sees keys of its segment. Padding has
  # id 0, so padding sees padding: its results are finite and not used.
  query_packs_BL: jax.Array
  key_packs_BM: jax.Array
  # None or (left, right): the query at place i sees the keys at places i − left to i + right, both
  # included
  window: tuple[int, int] | None = None
  # query_order_BL, key_order_BM: None or int32. A query sees key j if key_order_j <= query_order_i.
  # Causal: both are the places. Permutation: both are the ranks. XLNet's query stream: keys have
  # their rank, queries their rank − 1.
  query_order_BL: jax.Array | None = None
  key_order_BM: jax.Array | None = None
  # number of keys, such as those of a memory, before place 0 of the queries: N = M − first_query
  first_query: int = 0
  # None or int32, from 0 to N − 1: the place of query i among the keys, counted from first_query; i
  # if None. Two queries may have the same place.
  query_places_BL: jax.Array | None = None
  one_pack: bool = False  # True if each row is one segment from its first place on, then padding

  def statics(self) -> dict:
    """{name: value} of the fields that are not arrays."""
    return dict(window=self.window, first_query=self.first_query, one_pack=self.one_pack)


class SameSegment(NamedTuple):
  """A term that is added to the scores of keys in the query's own segment:

  score_ij += number_i where key j has the segment of query i
  """

  numbers_BLH: jax.Array  # one per query and head; they get a gradient
  # query_segments_BL, key_segments_BM: int32 ids
  query_segments_BL: jax.Array
  key_segments_BM: jax.Array


class Relative(NamedTuple):
  """Terms of the scores by the distance d = first_query + place of query i − j, and by segments:

      score_ij += (q_i + c2p_query) · c2p[d] + k_j · p2c[d] + bias[d]

  Row r of a table belongs to the r-th of `distances`, from the smallest to the greatest, or row_R
  says which row each distance reads. All rows of the batch read the same tables, or each row reads
  one of two halves (half_B). Tables get a gradient. Any of them may be None.
  """

  # content to position (He et al. 2021 §3.1; Shaw et al. 2018; Dai et al. 2019)
  c2p_RHK: jax.Array | None = None
  p2c_RHK: jax.Array | None = None  # position to content (He et al. 2021 §3.1)
  bias_RH: jax.Array | None = None  # number per distance and head (Raffel et al. 2020 §2.1)
  # vector that is added to every query in the c2p term (Dai et al. 2019 §3.3)
  c2p_query_HK: jax.Array | None = None
  # None or int32. If given, a table has 2R rows: the first R for rows of the batch whose half_B is
  # 0, the others for rows whose half_B is 1.
  half_B: jax.Array | None = None
  same_segment: SameSegment | None = None  # the term by segments (Yang et al. 2019 §2.5)
  # None or integers, static: with them c2p_RHK and p2c_RHK may have fewer rows
  row_R: np.ndarray | None = None

  def by_distance(self):
    """A Relative with a row per distance; by exact products, faster than gathers."""
    if self.row_R is None:
      return self

    def spread(x_UHK):
      if x_UHK is None or np.array_equal(self.row_R, np.arange(len(x_UHK))):
        return x_UHK
      row_RU = jax.nn.one_hot(self.row_R, len(x_UHK), dtype=x_UHK.dtype)
      return jnp.einsum('RU,UHK->RHK', row_RU, x_UHK, precision=jax.lax.Precision.HIGHEST)

    return self._replace(c2p_RHK=spread(self.c2p_RHK), p2c_RHK=spread(self.p2c_RHK), row_R=None)

  def halves(self, table_R):
    """table_R as [1 or 2, R, …]."""
    return table_R.reshape(1 if self.half_B is None else 2, -1, *table_R.shape[1:])

  def apart(self):
    """((c2p, p2c, bias, c2p_query, numbers), a Relative without these).

    The arrays of the tuple get a gradient.
    """
    same = self.same_segment
    rest = same if same is None else same._replace(numbers_BLH=None)
    numbers_BLH = None if same is None else same.numbers_BLH
    rest = Relative(half_B=self.half_B, same_segment=rest, row_R=self.row_R)
    return (*self[:4], numbers_BLH), rest

  def joined(self, *learned):
    """The inverse of `apart`: this Relative with the arrays `learned`."""
    *tables, numbers_BLH = learned
    same = self.same_segment
    same = same if same is None else same._replace(numbers_BLH=numbers_BLH)
    return Relative(*tables, self.half_B, same, self.row_R)


def same_pack(segment_ids_BL, window=None) -> Visibility:
  """Self-attention in which a token sees its segment, inside a window if one is given."""
  return Visibility(segment_ids_BL, segment_ids_BL, window)


def batch_visibility(batch) -> Visibility:
  """Self-attention of a batch: tokens see their segment, and no token that comes after them in
  `order` [B, L] if the batch has one (places for left to right, ranks for a permutation). Rows of
  several segments have `position_ids`.
  """
  packs_BL, order_BL = batch['segment_ids'], batch.get('order')
  one_pack = 'position_ids' not in batch
  return Visibility(packs_BL, packs_BL, None, order_BL, order_BL, one_pack=one_pack)


def asked(visible: Visibility, places_BP) -> Visibility:
  """The Visibility of the queries at `places_BP` only: int32, from 0 to N − 1."""
  at = lambda x_BN: None if x_BN is None else at_places(x_BN, places_BP)
  packs_BP, order_BP = at(visible.query_packs_BL), at(visible.query_order_BL)
  return visible._replace(
    query_packs_BL=packs_BP, query_order_BL=order_BP, query_places_BL=places_BP
  )


def at_places(x_BN, places_BP):
  """x_BP: the elements of each row of x_BN at its places."""
  return jnp.take_along_axis(x_BN, places_BP, axis=1, mode='clip')


def distances(queries: int, keys: int, first_query: int = 0) -> np.ndarray:
  """int32 [R]: the distance first_query + i − j of each row of a table in Relative.

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
    place_BL = np.arange(queries) if visible.query_places_BL is None else visible.query_places_BL
    distance_BLM = visible.first_query + place_BL[..., None] - np.arange(keys)
    seen_BLM &= (-right <= distance_BLM) & (distance_BLM <= left)
  if visible.query_order_BL is not None:
    seen_BLM &= visible.key_order_BM[:, None] <= visible.query_order_BL[:, :, None]
  return seen_BLM


def attend(
  q_BLHK,
  k_BMHK,
  v_BMHK,
  visible,
  dropout_rate=0.0,
  dropout_keys_B2=None,
  relative=None,
  scale=None,
  first_head=0,
):
  """Scaled dot-product attention (Vaswani et al. 2017 §3.2.1); arguments as in the module.
  first_head: number of the first head of q among all heads, for dropout.
  """
  relative = relative and relative.by_distance()
  arguments = q_BLHK, k_BMHK, v_BMHK, visible, dropout_rate, dropout_keys_B2, relative, scale
  blocked = long_rows.takes(q_BLHK.shape[1], k_BMHK.shape[1], visible.window)
  if blocked and visible.query_places_BL is None:
    return long_rows.in_blocks(functools.partial(_attend, first_head), *arguments)
  return _attend(first_head, *arguments)


def _attend(
  first_head,
  q_BLHK,
  k_BMHK,
  v_BMHK,
  visible,
  dropout_rate,
  dropout_keys_B2,
  relative,
  scale,
  first=(0, 0),
):
  """`attend` of all queries at once. first: places of the first key and query, for dropout."""
  seen_BLM = mask(visible)
  scores_BHLM = jnp.einsum('BLHK,BMHK->BHLM', q_BLHK, k_BMHK, preferred_element_type=jnp.float32)
  if relative is not None:
    scores_BHLM = _add_relative(scores_BHLM, q_BLHK, k_BMHK, visible.query_places_BL, relative)
  scores_BHLM *= q_BLHK.shape[-1] ** -0.5 if scale is None else scale
  scores_BHLM = jnp.where(seen_BLM[:, None], scores_BHLM, HIDDEN)
  probs_BHLM = jax.nn.softmax(scores_BHLM, axis=-1).astype(q_BLHK.dtype)
  if dropout_rate and dropout_keys_B2 is not None:
    head_H = first_head + jnp.arange(q_BLHK.shape[2])
    keys_BH2 = row_keys.fold_in(dropout_keys_B2[:, None], head_H)
    # Keys down and queries across, as in the fused kernels.
    probs_BHLM = layers.dropout(probs_BHLM.mT, dropout_rate, keys_BH2, first).mT
  out_BLHK = jnp.einsum('BHLM,BMHK->BLHK', probs_BHLM, v_BMHK)
  return out_BLHK if sees_itself(visible) else seeing(seen_BLM, out_BLHK)


def by_lengths(visible: Visibility) -> bool:
  """Whether it is known statically that each token sees all tokens of its row but padding."""
  free = visible.window is None and visible.query_order_BL is None
  return visible.one_pack and free and visible.query_packs_BL is visible.key_packs_BM


def sees_itself(visible: Visibility) -> bool:
  """Whether it is known statically that each query sees the key at its place."""
  window = visible.window is None or min(visible.window) >= 0
  same = visible.query_packs_BL is visible.key_packs_BM
  return same and visible.query_order_BL is visible.key_order_BM and window


def seeing(seen_BLM, out_BLHK):
  """out_BLHK with 0 for each query that sees no key."""
  return jnp.where(jnp.any(seen_BLM, axis=-1)[:, :, None, None], out_BLHK, 0)


def _add_relative(scores_BHLM, q_BLHK, k_BMHK, places_BL, relative):
  """scores_BHLM with the terms of `relative`: products with all R rows, shifted, not gathered."""
  terms = _Terms(relative, places_BL, q_BLHK.shape[1], k_BMHK.shape[1])
  if relative.c2p_RHK is not None:
    scores_BHLM += terms.c2p(q_BLHK)
  if relative.p2c_RHK is not None:
    scores_BHLM += terms.p2c(k_BMHK)
  if relative.bias_RH is not None:
    scores_BHLM += terms.bias()
  if relative.same_segment is not None:
    numbers_BLH, queries_BL, keys_BM = relative.same_segment
    same_BLM = queries_BL[:, :, None] == keys_BM[:, None]
    numbers_BHL1 = numbers_BLH.mT[..., None].astype(jnp.float32)
    scores_BHLM += jnp.where(same_BLM[:, None], numbers_BHL1, 0.0)
  return scores_BHLM


class _Terms(NamedTuple):
  """The terms by distance, float32, each broadcasting to [B, H, L, M].

  places_BL: of the queries, or None. queries, keys: L and M.
  """

  relative: Relative
  places_BL: jax.Array | None
  queries: int
  keys: int

  def c2p(self, q_BLHK):
    """Queries times the table."""
    queries_BLHK, table = q_BLHK, self._select(self.relative.c2p_RHK.astype(q_BLHK.dtype), True)
    if self.relative.c2p_query_HK is not None:
      queries_BLHK = q_BLHK + self.relative.c2p_query_HK.astype(q_BLHK.dtype)
    if table.ndim == 3 and self.places_BL is None:
      return _by_distance(queries_BLHK, table).swapaxes(0, 1)
    return self._by_query(_rows(queries_BLHK, table))

  def p2c(self, k_BMHK):
    """Keys times the table."""
    table = self._select(self.relative.p2c_RHK.astype(k_BMHK.dtype), False)
    if table.ndim == 3:
      terms_BHMN = _by_distance(k_BMHK, table).swapaxes(0, 1)
    else:
      terms_BHMN = slide(_rows(k_BMHK, table), table.shape[1] + 1 - self.keys)
    if self.places_BL is None:
      return terms_BHMN.mT
    at_BLN = jax.nn.one_hot(self.places_BL, terms_BHMN.shape[-1], dtype=jnp.float32)
    # Products with 0 and 1 are exact, and their gradients are no scatters.
    return jnp.einsum('BLN,BHMN->BHLM', at_BLN, terms_BHMN, precision=jax.lax.Precision.HIGHEST)

  def bias(self):
    """A number per distance and head."""
    rows = self._select(self.relative.bias_RH.astype(jnp.float32), True).mT[..., None, :]
    rows = jnp.broadcast_to(rows, (*rows.shape[:-2], self.queries, rows.shape[-1]))
    return self._by_query(jnp.pad(rows, ((0, 0),) * (rows.ndim - 1) + ((0, 1),)))

  def _select(self, table, turned: bool):
    """The table [R, …] of all rows of the batch, or with half_B [B, R, …], the half of each row.

    turned: begin with the greatest distance.
    """
    halves, half_B = self.relative.halves(table), self.relative.half_B
    halves = halves[:, ::-1] if turned else halves
    if half_B is None:
      return halves[0]
    return jnp.where(half_B.reshape(-1, *(1,) * table.ndim) > 0, halves[1], halves[0])

  def _by_query(self, rows):
    """[…, L, M], terms by key, from [..., L, R + 1], terms by distance from the greatest on."""
    if self.places_BL is None:
      return slide(rows, self.keys)
    shift_BL = rows.shape[-1] - 1 - self.keys - self.places_BL
    return shifted(rows, shift_BL[:, None, :, None], self.keys)


def _rows(x_BNHK, table):
  """x · table with a column of zeros, [B, H, N, R + 1]. table: [R, H, K], or [B, R, H, K]."""
  table = jnp.pad(table, ((0, 0),) * (table.ndim - 3) + ((0, 1), (0, 0), (0, 0)))
  rows = 'BRHK'[4 - table.ndim :]
  return jnp.einsum(f'BNHK,{rows}->BHNR', x_BNHK, table, preferred_element_type=jnp.float32)


@jax.custom_vjp
def _by_distance(x_BNHK, table_RHK):
  """out[h, b, i, j] = x_i · table[j + N − 1 − i], float32 [H, B, N, R + 1 − N].

  All rows of the batch are one product per head. The gradients are written by hand, with axes in an
  order that saves a CPU the transpose of the largest array; jax's gradients take a quarter longer.
  """
  heads, keys = x_BNHK.shape[2], len(table_RHK) + 1 - x_BNHK.shape[1]
  table_HKR = jnp.pad(table_RHK.transpose(1, 2, 0), ((0, 0), (0, 0), (0, 1)))
  # With the row of zeros, rows have the length that `slide` needs.
  y_HNR = _product(x_BNHK.transpose(2, 0, 1, 3).reshape(heads, -1, x_BNHK.shape[3]), table_HKR)
  return slide(y_HNR.reshape(heads, *x_BNHK.shape[:2], -1), keys)


def _by_distance_backward(kept, grad_HBNM):
  x_BNHK, table_RHK = kept
  heads, batch, rows, keys = grad_HBNM.shape
  y_HNR = slid_back(grad_HBNM).reshape(heads, batch * rows, rows + keys)
  y_HNR = jax.lax.optimization_barrier(y_HNR)  # else it is computed once for each product
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


def shifted(x, shift, size: int):
  """out[..., j] = x[..., j + shift] for j < size.

  Shifts by one bit of `shift` at a time. On a CPU this and its gradient are several times as fast
  as a gather.

  shift: integers from 0 to the length of x − size; they broadcast to [..., 1].
  """
  bits = (x.shape[-1] - size).bit_length()
  more = size + (1 << bits) - 1 - x.shape[-1]
  x = jnp.pad(x, (*((0, 0),) * (x.ndim - 1), (0, more)))
  for bit in reversed([1 << n for n in range(bits)]):
    length = size + bit - 1  # the smaller bits need no more
    x = jnp.where(shift & bit > 0, x[..., bit : bit + length], x[..., :length])
  return x


def slid_back(x):
  """The transpose of `slide`: [..., N, N + size] from [..., N, size]; other elements are 0."""
  *lead, rows, size = x.shape
  pad = lambda x, before, after: jnp.pad(x, (*((0, 0),) * (x.ndim - 1), (before, after)))
  flat = pad(pad(x, 0, rows - 1).reshape(*lead, -1), rows - 1, 1)
  return flat.reshape(*lead, rows, rows + size)
