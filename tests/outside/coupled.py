"""Objectives from outside the package whose loss of a row depends on other rows of the batch:
`tests.outside.coupled:coupled` in a config.
"""

import jax
import jax.numpy as jnp

from bertzoo_jax.model import operations
from bertzoo_jax.objectives import mlm
from bertzoo_jax.objectives import networks
from bertzoo_jax.objectives import objective


def _contrast(x_BD, real_B):
  """Cross-entropy of each row among all rows, by their cosines."""
  x_BD /= jnp.linalg.norm(x_BD, axis=1, keepdims=True)
  likeness_BB = jnp.where(real_B > 0, x_BD @ x_BD.T, -jnp.inf)
  return -jax.nn.log_softmax(likeness_BB)[jnp.arange(len(x_BD)), jnp.arange(len(x_BD))]


def _centred(x_BD, real_B):
  mean_D = real_B @ x_BD / jnp.sum(real_B)
  return jnp.sum(jnp.square(x_BD - mean_D), axis=1)


def _hardest(x_BD, real_B):
  of_row_B = jnp.sum(x_BD, axis=1)
  return jax.nn.relu(of_row_B - jnp.min(of_row_B, where=real_B > 0, initial=jnp.inf))


# Loss of each row, from the vectors of all rows and whether each is one (networks.row_weights).
HOW = {'contrast': _contrast, 'centred': _centred, 'hardest': _hardest}


def coupled(encoder, ops=operations.PLAIN, *, how='contrast'):
  """The objective mlm, and for each row a loss that depends on all rows (HOW)."""
  plain = mlm.mlm(encoder, ops)

  def normalizers(batch):
    return {**plain.normalizers(batch), 'rows': jnp.sum(networks.row_weights(batch))}

  def vectors(params, batch, normalizers, carry, key, train):
    hidden_BLD = networks.encode(encoder, params['encoder'], batch, key, ops)
    rest = plain.loss(params, batch, normalizers, carry, key, train)
    return hidden_BLD[:, 0].astype(jnp.float32), rest

  def couple(x_BD, batch, normalizers):
    real_B = networks.row_weights(batch)
    row_loss = jnp.sum(jnp.where(real_B > 0, HOW[how](x_BD, real_B), 0.0))
    return row_loss / objective.at_least_one(normalizers['rows']), {'rows': {'row_loss': row_loss}}

  return objective.coupled(plain._replace(normalizers=normalizers), vectors, couple)
