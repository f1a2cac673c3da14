"""cuDNN's attention, for GPUs: without dropout, without relative terms, without padding before a
row's tokens, in 16 bits. Also the norm that is used with it.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import layout

from bertzoo_jax.common import errors
from bertzoo_jax.model import attention
from bertzoo_jax.model import layers

_SIZE = 128  # queries of a block


def check(attention_dropout: float, relative: bool, dtype, padding_side: str = 'right') -> None:
  """Raises UserError for arguments that cuDNN's attention does not support.

  attention_dropout: rate of dropout of the attention probabilities. relative: whether scores have
  relative terms. dtype: dtype of queries, keys and values. padding_side: 'left' if padding may
  stand before a row's tokens, else 'right'.
  """
  if attention_dropout:
    raise errors.UserError(
      'run.kernels=cudnn has no dropout of attention: '
      'take auto or xla, or encoder.attention_dropout=0.'
    )
  if relative:
    raise errors.UserError(
      'run.kernels=cudnn has no relative terms of attention: take auto or xla.'
    )
  if padding_side == 'left':
    raise errors.UserError(
      'run.kernels=cudnn counts the tokens of a row from its start, and this encoder pads there: '
      'take auto or xla.'
    )
  if jnp.dtype(dtype).itemsize != 2:
    raise errors.UserError(
      f'run.kernels=cudnn does not compute in {jnp.dtype(dtype)}: '
      'take auto or xla, or run.dtype=bfloat16.'
    )


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
  implementation='cudnn',
):
  """model.attention.attend by cuDNN. Raises UserError as `check`."""
  check(dropout_rate if dropout_keys_B2 is not None else 0.0, relative is not None, q_BLHK.dtype)
  call = functools.partial(jax.nn.dot_product_attention, scale=scale, implementation=implementation)
  if attention.by_lengths(visible):
    length_B = jnp.maximum(jnp.sum(visible.key_packs_BM > 0, axis=1, dtype=jnp.int32), 1)
    return call(q_BLHK, k_BMHK, v_BMHK, query_seq_lengths=length_B, key_value_seq_lengths=length_B)
  if _local(visible, q_BLHK.shape[1]):
    return _in_blocks(call, q_BLHK, k_BMHK, v_BMHK, visible)
  seen_BLM = attention.mask(visible)
  out_BLHK = call(q_BLHK, k_BMHK, v_BMHK, mask=seen_BLM[:, None])
  return out_BLHK if attention.sees_itself(visible) else attention.seeing(seen_BLM, out_BLHK)


def _local(visible, length) -> bool:
  """Whether a block of queries and its window are shorter than the row. cuDNN needs an even number
  of keys.
  """
  window = visible.window
  if window is None or visible.query_order_BL is not None or not attention.sees_itself(visible):
    return False
  return length % _SIZE == 0 and sum(window) % 2 == 0 and _SIZE + sum(window) < length


def _in_blocks(call, q_BLHK, k_BLHK, v_BLHK, visible):
  """Attention as one call whose rows are blocks of queries, each with the keys that it sees.
  Gradients of keys and values are summed over the blocks in float32.
  """
  window, count = visible.window, q_BLHK.shape[1] // _SIZE
  blocks = lambda x_BL: x_BL.reshape(-1, _SIZE, *x_BL.shape[2:])

  def near(x_BL, beyond):
    sides = ((0, 0), window, *((0, 0),) * (x_BL.ndim - 2))
    x_BN = jnp.pad(x_BL, sides, constant_values=beyond)
    starts = range(0, count * _SIZE, _SIZE)
    parts = [x_BN[:, start : start + _SIZE + sum(window)] for start in starts]
    return jnp.stack(parts, axis=1).reshape(-1, *parts[0].shape[1:])

  seen = attention.mask(
    visible._replace(
      query_packs_BL=blocks(visible.query_packs_BL),
      key_packs_BM=near(visible.key_packs_BM, -1),
      first_query=window[0],
    )
  )
  k, v = (near(x.astype(jnp.float32), 0).astype(x.dtype) for x in (k_BLHK, v_BLHK))
  return call(blocks(q_BLHK), k, v, mask=seen[:, None]).reshape(q_BLHK.shape)


def add_norm(x_BLD, y_BLD, *rest, **named):
  """model.layers.add_norm, with the width as the last axis of its arrays in memory. In unrolled
  layers XLA would take the layout of a gather's gradient, whose last axis is the batch. With XLA's
  attention it is not worth it: DeBERTaV3-base's step takes 133 in place of 137 ms on an H200, but
  19 in place of 15 GB.
  """
  return jax.tree.map(_rows, layers.add_norm(_rows(x_BLD), _rows(y_BLD), *rest, **named))


def _rows(x):
  return layout.with_layout_constraint(x, layout.Layout(tuple(range(x.ndim))))
