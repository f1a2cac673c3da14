"""cuDNN's attention, for GPUs: without dropout, without relative terms, in 16 bits."""

import jax
import jax.numpy as jnp

from bertzoo_jax.common import errors
from bertzoo_jax.model import attention


def check(attention_dropout: float, relative: bool, dtype) -> None:
  """Raises UserError for arguments that cuDNN's attention does not support.

  Args:
    attention_dropout: rate of dropout of the attention probabilities.
    relative: whether scores have relative terms.
    dtype: of queries, keys and values.
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
  seen_BLM = attention.mask(visible)
  out_BLHK = jax.nn.dot_product_attention(
    q_BLHK, k_BMHK, v_BMHK, mask=seen_BLM[:, None], scale=scale, implementation=implementation
  )
  return attention.seeing(seen_BLM, out_BLHK)
