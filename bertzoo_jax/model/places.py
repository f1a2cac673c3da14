"""Queries at some places of a row, attended as if there were one at each place.

Legend: B batch, L length, P predictions, H heads, K head width.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

_EXACT = jax.lax.Precision.HIGHEST


class Asked(NamedTuple):
  """The places that are asked for.

  Attributes:
    at_BPL: 1 at the place of each prediction, in the dtype of products.
    first_BPL: the same without predictions whose place an earlier one has.
    keys_values: k_BLHK and v_BLHK where they are known already; else None.
  """

  at_BPL: jax.Array
  first_BPL: jax.Array
  keys_values: tuple | None

  @classmethod
  def of(cls, at_BP, x_BLD):
    """Of the places at_BP of rows as long as x_BLD, in its dtype."""
    length, dtype = x_BLD.shape[1], x_BLD.dtype
    same_BPP = at_BP[:, :, None] == at_BP[:, None]
    again_BP = jnp.any(jnp.tril(same_BPP, -1), axis=-1)
    at_BPL = jax.nn.one_hot(at_BP, length, dtype=dtype)
    return cls(at_BPL, jnp.where(again_BP[:, :, None], 0, at_BPL), None)

  def spread(self, x_BPHK):
    """x_BLHK, 0 where nothing is asked for. A product with 0 and 1 is exact, and its gradient is no
    scatter."""
    return jnp.einsum('BPL,BPHK->BLHK', self.first_BPL, x_BPHK, precision=_EXACT)

  def gather(self, x_BLHK):
    """x_BPHK."""
    return jnp.einsum('BPL,BLHK->BPHK', self.at_BPL, x_BLHK, precision=_EXACT)
