"""Objectives from outside the package whose loss of a row depends on other rows of the batch:
`tests.outside.coupled:coupled` in a config.
"""

import jax
import jax.numpy as jnp

from bertzoo_jax.model import operations
from bertzoo_jax.objectives import mlm
from bertzoo_jax.objectives import networks


def _contrast(x_BD):
  """Cross-entropy of each row among all rows, by their cosines."""
  x_BD /= jnp.linalg.norm(x_BD, axis=1, keepdims=True)
  return -jax.nn.log_softmax(x_BD @ x_BD.T)[jnp.arange(len(x_BD)), jnp.arange(len(x_BD))]


# Loss of each row, from the vectors of all rows.
HOW = {
  'contrast': _contrast,
  'centred': lambda x_BD: jnp.sum(jnp.square(x_BD - jnp.mean(x_BD, axis=0)), axis=1),
  'hardest': lambda x_BD: jax.nn.relu(jnp.sum(x_BD, axis=1) - jnp.min(jnp.sum(x_BD, axis=1))),
}


def coupled(encoder, ops=operations.PLAIN, *, how='contrast'):
  """The objective mlm, and for each row a loss that depends on all rows (HOW)."""
  plain = mlm.mlm(encoder, ops)

  def normalizers(batch):
    return {**plain.normalizers(batch), 'rows': jnp.float32(len(batch['input_ids']))}

  def loss(params, batch, normalizers, carry, key, train):
    value, (carry, sums) = plain.loss(params, batch, normalizers, carry, key, train)
    hidden_BLD = networks.encode(encoder, params['encoder'], batch, key, ops)
    of_rows = jnp.sum(HOW[how](hidden_BLD[:, 0].astype(jnp.float32)))
    return value + of_rows / normalizers['rows'], (carry, {**sums, 'rows': {'row_loss': of_rows}})

  return plain._replace(normalizers=normalizers, loss=loss, couples_rows=True)
