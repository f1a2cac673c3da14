"""Queries at some places of a row, attended as if there were one at each place.

Legend: B batch, L length, P predictions, H heads, K head width.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

_EXACT = jax.lax.Precision.HIGHEST


class Asked(NamedTuple):
  """Predictions at some places.

  Relative terms need the queries of whole rows. So the predictions' queries are spread to their
  places in the row, all places are attended, and the results are gathered.

  Attributes:
    at_BPL: 1 at the place of each prediction, in the dtype of products.
    first_BPL: the same, with 0 for a prediction at a place that an earlier prediction has.
    k_BLHK, v_BLHK: keys and values, where they are known already.
  """

  at_BPL: jax.Array
  first_BPL: jax.Array
  k_BLHK: jax.Array | None = None
  v_BLHK: jax.Array | None = None

  @classmethod
  def of(cls, at_BP, x_BLD, keys_values=()):
    """For the predictions at at_BP, in rows and dtype of x_BLD. keys_values: k_BLHK, v_BLHK; ()
    for none.
    """
    at_BPL = jax.nn.one_hot(at_BP, x_BLD.shape[1], dtype=x_BLD.dtype)
    again_BP = jnp.any(jnp.tril(at_BP[:, :, None] == at_BP[:, None], -1), axis=-1)
    return cls(at_BPL, jnp.where(again_BP[:, :, None], 0, at_BPL), *keys_values)

  # Products with 0 and 1 are exact, and their gradients are no scatters. With heads and their width
  # in one axis the compiler need not lay out queries anew.

  def spread(self, q_BPHK):
    """q_BLHK, 0 at places without a prediction."""
    q_BPD = q_BPHK.reshape(*q_BPHK.shape[:2], -1)
    q_BLD = jnp.einsum('BPL,BPD->BLD', self.first_BPL, q_BPD, precision=_EXACT)
    return q_BLD.reshape(*q_BLD.shape[:2], *q_BPHK.shape[2:])

  def gather(self, out_BLHK):
    """out_BPHK."""
    out_BLD = out_BLHK.reshape(*out_BLHK.shape[:2], -1)
    out_BPD = jnp.einsum('BPL,BLD->BPD', self.at_BPL, out_BLD, precision=_EXACT)
    return out_BPD.reshape(*out_BPD.shape[:2], *out_BLHK.shape[2:])
