"""Which kernels a run gets."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from bertzoo_jax import kernels
from bertzoo_jax.common import errors
from bertzoo_jax.kernels import cudnn
from bertzoo_jax.model import attention


def device(kind):
  return types.SimpleNamespace(
    device_kind=kind, platform={'T': 'tpu', 'N': 'gpu', 'c': 'cpu'}[kind[0]]
  )


@pytest.mark.parametrize(
  'kind,dropout,chosen',
  [
    ('TPU v4', 0.1, 'fused'),
    ('TPU v5 lite', 0.0, 'fused'),
    ('TPU v3', 0.1, 'xla'),
    ('TPU v2', 0.1, 'xla'),
    ('NVIDIA H200', 0.0, 'cudnn'),
    ('NVIDIA H200', 0.1, 'xla'),
    ('cpu', 0.0, 'xla'),
  ],
)
def test_auto_takes_what_a_device_is_fast_with(kind, dropout, chosen):
  assert kernels.choose('auto', device(kind), dropout) is kernels.BY_NAME[chosen]


@pytest.mark.parametrize(
  'name,kind',
  [('cudnn', 'cpu'), ('cudnn', 'TPU v4'), ('fused', 'TPU v3'), ('fused_hashed', 'TPU v2')],
)
def test_kernels_that_a_device_does_not_have_are_refused(name, kind):
  with pytest.raises(
    errors.UserError, match=f'run.kernels={name} does not exist on {kind}: take auto or xla'
  ):
    kernels.choose(name, device(kind), 0.1)


def test_fused_kernels_are_interpreted_where_there_is_no_tpu():
  rows, ids = jnp.ones((1, 4, 1, 2)), jnp.ones((1, 4), jnp.int32)
  np.testing.assert_allclose(
    kernels.choose('fused', device('cpu'), 0.1).attend(rows, rows, rows, ids), rows, atol=1e-6
  )


def test_cudnn_s_call_hides_what_ours_hides():
  draw = np.random.default_rng(0)
  q, k, v = (jnp.asarray(draw.normal(size=(2, 8, 2, 16)), jnp.bfloat16) for _ in range(3))
  ids = jnp.asarray([[1, 1, 1, 2, 2, 2, 0, 0], [1] * 8], jnp.int32)
  # the same call without a GPU
  ours = cudnn.attend(q, k, v, ids, implementation='xla').astype(jnp.float32)
  np.testing.assert_allclose(ours, attention.attend(q, k, v, ids).astype(jnp.float32), atol=0.02)
