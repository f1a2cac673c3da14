"""Attention in plain XLA. Legend: B batch, L length (M the same, of keys), H heads, K head width, D
width, R rows of a table.

What every `attend` promises, this one and the fused ones that may replace it:

    attend(q_BLHK, k_BLHK, v_BLHK, pack_ids_BL, dropout_rate, dropout_keys_B2, relative, tables) ->
    out_BLHK

tokens see the tokens of their row with the same pack id. Padding has id 0 and so sees padding: its
rows are finite and nobody reads them. `dropout_keys_B2` are those of rows (row_keys.py), None means
no dropout. `relative` None, or what joins the scores of a head after their scaling:

    relative(q_LK, k_MK, first_query, *tables_RK) -> added_ML

a pure function of some queries of a row, the first of which stands at first_query, of all its keys,
and of the head's part of the tables [R, H, K], which are common to all rows and get a gradient.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertzoo_jax.common import row_keys
from bertzoo_jax.model import layers

# Finite: exp(_HIDDEN − max) is 0 in float32, and a row of it alone would still not give NaN.
_HIDDEN = -1e30


def attend(
  q_BLHK,
  k_BLHK,
  v_BLHK,
  pack_ids_BL,
  dropout_rate=0.0,
  dropout_keys_B2=None,
  relative=None,
  tables=(),
):
  """Scaled dot-product attention (Vaswani et al. 2017 §3.2.1) among tokens of one pack; softmax in
  float32.
  """
  scores_BHLM = jnp.einsum('BLHK,BMHK->BHLM', q_BLHK, k_BLHK, preferred_element_type=jnp.float32)
  same_B1LM = pack_ids_BL[:, None, :, None] == pack_ids_BL[:, None, None, :]
  scores_BHLM *= q_BLHK.shape[-1] ** -0.5
  if relative is not None:
    of_head = lambda q_LK, k_MK, *tables: relative(q_LK, k_MK, 0, *tables).T
    scores_BHLM += jax.vmap(
      lambda q_LHK, k_MHK: jax.vmap(of_head, in_axes=1)(q_LHK, k_MHK, *tables)
    )(q_BLHK, k_BLHK)
  scores_BHLM = jnp.where(same_B1LM, scores_BHLM, _HIDDEN)
  probs_BHLM = jax.nn.softmax(scores_BHLM, axis=-1).astype(q_BLHK.dtype)
  if dropout_rate and dropout_keys_B2 is not None:
    keys_BH2 = row_keys.fold_in(dropout_keys_B2[:, None], jnp.arange(q_BLHK.shape[2]))
    probs_BHLM = layers.dropout(
      probs_BHLM.mT, dropout_rate, keys_BH2
    ).mT  # keys down and queries across, as in the fused ones
  return jnp.einsum('BHLM,BMHK->BLHK', probs_BHLM, v_BLHK)


class SelfAttention(nn.Module):
  """Multi-head self-attention with biases everywhere (Devlin et al. 2018): query, key, value,
  output.
  """

  num_heads: int
  dropout_rate: float
  kernel_init: Callable
  dtype: Any

  @nn.compact
  def __call__(self, x_BLD, pack_ids_BL, dropout_keys_B2, ops):
    width = x_BLD.shape[-1]
    heads = (self.num_heads, width // self.num_heads)
    q_BLHK, k_BLHK, v_BLHK = (
      ops.constrain(
        'heads',
        layers.Dense(
          heads, self.kernel_init, self.dtype, kernel_gradients=ops.kernel_gradients, name=name
        )(x_BLD),
      )
      for name in ('query', 'key', 'value')
    )
    out_BLHK = ops.attend(q_BLHK, k_BLHK, v_BLHK, pack_ids_BL, self.dropout_rate, dropout_keys_B2)
    output = layers.Dense(
      (width,),
      self.kernel_init,
      self.dtype,
      in_axes=2,
      input_name='attended',
      kernel_gradients=ops.kernel_gradients,
      name='output',
    )
    return output(ops.constrain('heads', out_BLHK))
