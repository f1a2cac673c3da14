"""Vectors of texts from the vectors of their tokens. Legend: B batch, L length, D width."""

import jax
import jax.numpy as jnp

# The ways from the tokens of a row to its vector.
KINDS = ('mean', 'first')


def pooled(kind: str, encoder, hidden_BLD, batch) -> jax.Array:
  """The vectors of rows, float32 [B, D].

  kind: mean (of all tokens of the row, special ones included) | first (`encoder.pooled`: the vector
  that classifies a row). batch: its segment_ids [B, L] are 0 for padding.
  """
  if kind == 'first':
    return encoder.pooled(hidden_BLD, batch).astype(jnp.float32)
  return mean(hidden_BLD, batch['segment_ids'])


def mean(hidden_BLD, segment_ids_BL) -> jax.Array:
  """The mean vector of the tokens of each row, float32 [B, D]; 0 for a row of padding."""
  visible_BL1 = (segment_ids_BL > 0)[:, :, None].astype(jnp.float32)
  count_B1 = jnp.maximum(jnp.sum(visible_BL1, axis=1), 1.0)
  return jnp.sum(hidden_BLD.astype(jnp.float32) * visible_BL1, axis=1) / count_B1


def normalized(vectors) -> jax.Array:
  """The vectors [..., D] with length 1; 0, with gradient 0, for a vector of zeros."""
  squares = jnp.sum(jnp.square(vectors), axis=-1, keepdims=True)
  return vectors * jax.lax.rsqrt(jnp.maximum(squares, 1e-24))  # torch's normalize: norm ≥ 1e-12


def truncated(vectors, width: int) -> jax.Array:
  """The first `width` numbers of each vector, with length 1 (Kusupati et al. 2022: Matryoshka)."""
  return normalized(vectors[..., :width])
