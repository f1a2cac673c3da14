"""Vectors of texts from the vectors of their tokens. Legend: B rows, L length, D width, C texts."""

import jax.numpy as jnp

from bertzoo_jax.model import operations
from bertzoo_jax.objectives import heads
from bertzoo_jax.objectives import networks


def pooled(encoder, hidden_BLD, batch, pooling: str):
  """[B, D] float32. pooling: mean (of all tokens) | first (the token that classifies a row)."""
  if pooling == 'first':
    return encoder.pooled(hidden_BLD, batch).astype(jnp.float32)
  real_BL1 = (batch['segment_ids'] > 0)[:, :, None].astype(jnp.float32)
  total_BD = jnp.sum(hidden_BLD.astype(jnp.float32) * real_BL1, axis=1)
  return total_BD / jnp.maximum(jnp.sum(real_BL1, axis=1), 1.0)


def normalized(x_BD):
  """Vectors of length 1."""
  return x_BD / jnp.maximum(jnp.linalg.norm(x_BD, axis=-1, keepdims=True), 1e-12)


def unit_vectors(encoder, params, batch, pooling: str, key=None, ops=operations.PLAIN):
  """[B, C, D] float32 of units of C texts. params: of the network. key: see networks.encode."""
  rows = heads.rows_of_options(batch)
  hidden = networks.encode(encoder, params['encoder'], rows, key, ops)
  return pooled(encoder, hidden, rows, pooling).reshape(*batch['input_ids'].shape[:2], -1)
