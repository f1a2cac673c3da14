"""DeBERTaV3's two networks on any mesh, in any number of microbatches, with any kernels: the same
run. With all dropouts, so that of the relative table, too.
"""

import functools
import math

import jax
import numpy as np
import pytest
import small_networks as small
import toys

from bertzoo_jax import kernels
from bertzoo_jax import objectives
from bertzoo_jax import parts
from bertzoo_jax.training import sharding
from tests.found import call_part

ROWS, STEPS, VOCAB = 16, 4, 104
ENCODER = parts.disentangled(
  num_layers=2,
  hidden_size=32,
  num_heads=2,
  intermediate_size=32,
  max_positions=16,
  max_distance=16,  # 15 rows of the table are used: as in published sizes, no mesh divides them
  buckets=8,
)
OBJECTIVE = parts.replaced_token(width=1.0, depth=0.5, shared='added', head='token_and_row')
FUSED = kernels.fused(hashed=True, interpret=True, gather=False)


def phase_run(mesh, accumulation=1, chosen=kernels.XLA):
  encoder = small.encoder(**ENCODER, vocab_size=VOCAB)
  assert encoder.dropout == encoder.attention_dropout == 0.1
  fields = {k: v for k, v in OBJECTIVE.items() if k != 'name'}
  make = functools.partial(call_part, objectives, OBJECTIVE.name, **fields)
  devices = sharding.mesh(mesh, jax.devices()[: math.prod(mesh)])
  sizes = dict(rows=ROWS, length=16, accumulation=accumulation)
  return toys.of_an_encoder(make, encoder, devices, chosen, **sizes)


@functools.cache
def straight():
  """(parameters, losses) of one device."""
  state, losses = toys.run(phase_run((1, 1, 1)), STEPS)
  return toys.flat(state.params), losses


# Heads along tensor: as many as there are, more than there are, a number that does not divide them.
@pytest.mark.parametrize(
  'mesh, accumulation, chosen',
  [
    pytest.param((1, 4, 1), 2, kernels.XLA, id='fsdp, 2 parts', marks=pytest.mark.slow),
    pytest.param((1, 2, 4), 1, kernels.XLA, id='fsdp and tensor', marks=pytest.mark.slow),
    pytest.param((1, 1, 3), 1, kernels.XLA, id='3 along tensor', marks=pytest.mark.slow),
    pytest.param((2, 1, 2), 2, FUSED, id='fused, 2 parts', marks=pytest.mark.slow),
  ],
)
def test_losses_and_weights_are_the_same(mesh, accumulation, chosen):
  state, losses = toys.run(phase_run(mesh, accumulation, chosen), STEPS)
  params, wanted = straight()
  np.testing.assert_allclose(losses, wanted, rtol=1e-5)
  assert len(set(losses)) == STEPS
  for path, x in toys.flat(state.params).items():
    # A bias of all keys moves no softmax: its gradient is what rounding leaves, and Adam follows.
    if not path.endswith('key/bias'):
      np.testing.assert_allclose(x, params[path], atol=2e-4, err_msg=path)
