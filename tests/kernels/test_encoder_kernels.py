"""Whole encoders with relative terms and dropout: fused kernels beside plain XLA.

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
from bertzoo_jax import parts
from bertzoo_jax.common import row_keys
from bertzoo_jax.model import operations
from bertzoo_jax.objectives import networks

SIZES = dict(num_layers=2, hidden_size=32, num_heads=2, intermediate_size=32, max_positions=24)
V1 = dict(buckets=0, norm_relative=False, shared_projections=False, key_bias=False)
V2 = dict(buckets=8, convolution_size=3)
FUSED = operations.Operations(*kernels.fused(hashed=True, interpret=True, gather=False)[:2])


def disentangled(changes):
  """(encoder, parameters, batch, memory) with the decoder, and with changes."""
  encoder = small.encoder(**parts.disentangled(**SIZES, max_distance=12, **changes))
  assert encoder.dropout == encoder.attention_dropout == 0.1
  params = small.perturbed(
    jax.tree.map(
      lambda x: np.zeros(x.shape, np.float32),
      jax.eval_shape(functools.partial(networks.init_encoder, encoder), jax.random.key(0)),
    )
  )
  return encoder, params, small.batch(rows=2), ()


def two_stream():
  """The same of both streams with a memory and rows of both directions."""
  objective = small.with_memory(
    num_layers=2, num_heads=2, hidden_size=32, dropout=0.1, attention_dropout=0.1
  )
  encoder, params = objective.networks[0].encoder, small.parameters(objective)['encoder']
  batch = {**next(small.lane_batches()), 'resets': np.array([0, 1, 0, 0], np.int32)}
  assert len(set(batch['direction'])) == 2
  drawn = np.random.default_rng(2).normal(size=objective.carry(4).shape)
  return encoder, params, batch, jnp.asarray(drawn, jnp.float32)


@pytest.fixture(
  scope='module',
  params=[
    pytest.param(lambda: disentangled(V1), id='v1', marks=pytest.mark.slow),
    pytest.param(lambda: disentangled(V2), id='v2'),
    pytest.param(two_stream, id='two_stream', marks=pytest.mark.slow),
  ],
)
def found(request):
  """operations → (vectors of predictions, gradients of all parameters)."""
  encoder, params, batch, memory = request.param()
  keys_B2 = row_keys.batch_keys(jax.random.key(1), len(batch['input_ids']))
  batch = {**batch, 'row_keys': keys_B2}

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
