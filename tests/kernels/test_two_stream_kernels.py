"""Both streams with a memory, rows of both directions and dropout: fused kernels beside plain XLA.

The kernels are interpreted and draw the bits that plain XLA draws.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_networks as small
from jax.flatten_util import ravel_pytree

from bertzoo_jax import kernels
from bertzoo_jax.common import row_keys
from bertzoo_jax.model import operations
from bertzoo_jax.objectives import networks

FUSED = operations.Operations(*kernels.fused(hashed=True, interpret=True, gather=False)[:2])


@pytest.fixture(scope='module')
def found():
  """operations → (vectors of predictions, gradients of all parameters)."""
  objective = small.with_memory(
    num_layers=2, num_heads=2, hidden_size=32, dropout=0.1, attention_dropout=0.1
  )
  encoder, params = objective.networks[0].encoder, small.parameters(objective)['encoder']
  batch = {**next(small.lane_batches()), 'row_keys': row_keys.of_batch(jax.random.key(1), 4)}
  assert len(set(batch['direction'])) == 2
  batch['resets'] = np.array([0, 1, 0, 0], np.int32)
  drawn = np.random.default_rng(2).normal(size=objective.carry(4).shape)
  memory = jnp.asarray(drawn, jnp.float32)

  @functools.cache
  def run(ops):
    def loss(p):
      of_batch = encoder, p, batch, jax.random.key(2), ops
      states_BPD = networks.predictions(*of_batch, memory=memory).states_BPD
      return jnp.sum(states_BPD**3), states_BPD

    gradients, vectors = jax.jit(jax.grad(loss, has_aux=True))(params)
    return vectors, gradients

  return run


def test_fused_kernels_give_the_vectors_of_plain_xla(found):
  ours, theirs = found(FUSED)[0], found(operations.PLAIN)[0]
  assert small.worst(ours, theirs) < 2e-5
  assert jnp.abs(theirs).max() > 0.1


def test_fused_kernels_give_all_gradients_of_plain_xla(found):
  ours, theirs = found(FUSED)[1], found(operations.PLAIN)[1]
  scale = float(jnp.abs(ravel_pytree(theirs)[0]).max())
  assert small.worst(ours, theirs) < 2e-5 * scale
  for path, x in jax.tree_util.tree_leaves_with_path(theirs):
    assert jnp.abs(x).max() > 1e-6 * scale, path
