"""cuDNN's attention, for GPUs; it has no dropout that jax can ask for."""

import jax

from bertzoo_jax.model import attention


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
  implementation='cudnn',
):
  """What model.attention.attend computes, by cuDNN where no share is dropped, nothing joins the
  scores and the products are in 16 bits, else by XLA."""
  if (
    (dropout_rate and dropout_keys_B2 is not None)
    or relative is not None
    or q_BLHK.dtype.itemsize != 2
  ):
    return attention.attend(
      q_BLHK, k_BLHK, v_BLHK, pack_ids_BL, dropout_rate, dropout_keys_B2, relative, tables
    )
  same_B1LM = pack_ids_BL[:, None, :, None] == pack_ids_BL[:, None, None, :]
  return jax.nn.dot_product_attention(
    q_BLHK, k_BLHK, v_BLHK, mask=same_B1LM, implementation=implementation
  )
