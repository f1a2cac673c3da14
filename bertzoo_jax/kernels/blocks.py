"""Attention of long rows in plain XLA, a block of queries at a time: the scores of one block are in
memory, in the backward pass too, and never those of all queries.

A local layer's block is given the keys of its window alone.
"""

import math

import jax
import jax.numpy as jnp

from bertzoo_jax.common import row_keys
from bertzoo_jax.model import attention

WHOLE = 1024  # queries up to which all scores are computed at once
SIZE = 256  # queries of a block


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
  whole=WHOLE,
  size=SIZE,
):
  """What model.attention.attend computes. Dropout of rows in blocks draws other bits.

  whole: rows of at most so many queries are computed by model.attention.attend.
  size: queries of a block.
  """
  length, keys = q_BLHK.shape[1], k_BMHK.shape[1]
  if length <= whole:
    return attention.attend(
      q_BLHK, k_BMHK, v_BMHK, visible, dropout_rate, dropout_keys_B2, relative, scale
    )
  count = math.ceil(length / size)
  dtype = q_BLHK.dtype
  places_BL = visible.query_places_BL
  if places_BL is None:
    places_BL = jnp.broadcast_to(jnp.arange(length), visible.query_packs_BL.shape)
  of_queries = dict(
    q=q_BLHK, packs=visible.query_packs_BL, order=visible.query_order_BL, places=places_BL
  )
  if relative is not None and relative.same_segment is not None:
    of_queries |= dict(zip(('numbers', 'segments'), relative.same_segment[:2]))
  # Queries that fill the last block repeat the last one; nobody reads what they get.
  at = jnp.minimum(jnp.arange(count * size), length - 1)
  blocks = jax.tree.map(lambda x: _blocks(x[:, at], count), of_queries)
  of_keys = dict(packs=visible.key_packs_BM, order=visible.key_order_BM)
  # Their gradients are sums over the blocks: in float32.
  of_keys |= dict(k=k_BMHK.astype(jnp.float32), v=v_BMHK.astype(jnp.float32))
  window = visible.window
  near = window and visible.query_places_BL is None and relative is None and not visible.first_query
  seen = size + sum(window) if near else keys

  @jax.checkpoint
  def one(number, own):
    first = 0
    theirs = of_keys
    if near and seen < keys:
      first = jnp.clip(number * size - window[0], 0, keys - seen)
      cut = lambda x: jax.lax.dynamic_slice_in_dim(x, first, seen, axis=1)
      theirs = jax.tree.map(cut, of_keys)
    part = visible._replace(
      query_packs_BL=own['packs'],
      query_order_BL=own['order'],
      query_places_BL=own['places'],
      key_packs_BM=theirs['packs'],
      key_order_BM=theirs['order'],
      first_query=visible.first_query - first,
    )
    terms = relative
    if 'numbers' in own:
      same = relative.same_segment._replace(
        numbers_BLH=own['numbers'], query_segments_BL=own['segments']
      )
      terms = relative._replace(same_segment=same)
    row_keys_B2 = None if dropout_keys_B2 is None else row_keys.fold_in(dropout_keys_B2, number)
    k, v = theirs['k'].astype(dtype), theirs['v'].astype(dtype)
    return attention.attend(own['q'], k, v, part, dropout_rate, row_keys_B2, terms, scale)

  out = jax.lax.map(lambda turn: one(*turn), (jnp.arange(count), blocks))
  return out.swapaxes(0, 1).reshape(out.shape[1], -1, *out.shape[3:])[:, :length]


def _blocks(x_BN, count):
  """[count, B, size, …] from [B, count·size, …]."""
  return x_BN.reshape(x_BN.shape[0], count, -1, *x_BN.shape[2:]).swapaxes(0, 1)
