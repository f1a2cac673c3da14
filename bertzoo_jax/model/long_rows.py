"""Attention of long rows and of windows, a block of queries at a time. Only the scores of one block
are in memory, in the backward pass too. Legend as in attention.py.

A block of a local layer gets only the keys of its window, and the rows of the tables of distances
that it reads.
"""

import math

import jax
import jax.numpy as jnp

WHOLE = 512  # queries of a row whose scores with all keys are in memory at once
_SIZE, _SIZE_OF_WINDOWS = 256, 128  # queries of a block


def takes(length: int, num_keys: int, window) -> bool:
  """Whether `in_blocks` should compute this: long rows, and windows that leave out keys."""
  return length > WHOLE or (window is not None and _SIZE_OF_WINDOWS + sum(window) < num_keys)


def in_blocks(attend, q_BLHK, k_BMHK, v_BMHK, visible, dropout_rate, keys_B2, relative, scale):
  """The result of `attend` for all queries, by one call per block of queries, with the same bits of
  dropout. Arguments as in attention.py. attend: also takes the places of the first key and the
  first query.
  """
  length, num_keys, dtype = q_BLHK.shape[1], k_BMHK.shape[1], q_BLHK.dtype
  window = visible.window
  size = _SIZE if window is None else _SIZE_OF_WINDOWS
  count = math.ceil(length / size)
  query_arrays = dict(q=q_BLHK, packs=visible.query_packs_BL, order=visible.query_order_BL)
  # Gradients of keys and values are sums over the blocks: in float32.
  key_arrays = dict(
    k=k_BMHK.astype(jnp.float32),
    v=v_BMHK.astype(jnp.float32),
    packs=visible.key_packs_BM,
    order=visible.key_order_BM,
  )
  same, tables = None, {}
  if relative is not None:
    same = relative.same_segment
    # One more row per query of padding in the last block.
    filled = lambda x: jnp.pad(x, ((0, 0), (0, count * size - length), *((0, 0),) * (x.ndim - 2)))
    named = {name: getattr(relative, name) for name in ('c2p_RHK', 'p2c_RHK', 'bias_RH')}
    tables = {n: filled(relative.halves(x)) for n, x in named.items() if x is not None}
  if same is not None:
    query_arrays |= dict(numbers=same.numbers_BLH, segments=same.query_segments_BL)
    key_arrays |= dict(segments=same.key_segments_BM)
  # Copies of the last query pad the last block; their results are dropped.
  at = jnp.minimum(jnp.arange(count * size), length - 1)
  blocks = jax.tree.map(  # [count, B, size, …] from [B, L, …]
    lambda x: x[:, at].reshape(len(x), count, size, *x.shape[2:]).swapaxes(0, 1), query_arrays
  )
  seen = num_keys if window is None else min(num_keys, size + sum(window))
  part_of = lambda x, start, rows: jax.lax.dynamic_slice_in_dim(x, start, rows, axis=1)

  @jax.checkpoint
  def one_block(number, block):
    place = visible.first_query + number * size  # place of the first query among the keys
    first = 0 if seen == num_keys else jnp.clip(place - window[0], 0, num_keys - seen)
    near = jax.tree.map(lambda x_BM: part_of(x_BM, first, seen), key_arrays)
    terms = relative
    if relative is not None:
      start = number * size + num_keys - first - seen
      rows = {name: part_of(x, start, size + seen - 1) for name, x in tables.items()}
      terms = relative._replace(**{n: x.reshape(-1, *x.shape[2:]) for n, x in rows.items()})
    if same is not None:
      segments = block['numbers'], block['segments'], near['segments']
      terms = terms._replace(same_segment=type(same)(*segments))
    part = visible._replace(
      query_packs_BL=block['packs'],
      query_order_BL=block['order'],
      key_packs_BM=near['packs'],
      key_order_BM=near['order'],
      first_query=place - first,
    )
    k, v = near['k'].astype(dtype), near['v'].astype(dtype)
    places = first, number * size
    return attend(block['q'], k, v, part, dropout_rate, keys_B2, terms, scale, places)

  out = jax.lax.map(lambda turn: one_block(*turn), (jnp.arange(count), blocks))
  return out.swapaxes(0, 1).reshape(out.shape[1], -1, *out.shape[3:])[:, :length]
