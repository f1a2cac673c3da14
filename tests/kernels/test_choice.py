"""Which kernels a run gets."""

import jax.numpy as jnp
import numpy as np
import pytest

from bertzoo_jax import kernels
from bertzoo_jax.kernels import cudnn
from bertzoo_jax.model import attention


@pytest.mark.parametrize('platform,dropout,chosen', [('tpu', 0.1, 'fused'), ('gpu', 0.0, 'cudnn'), ('gpu', 0.1, 'xla'), ('cpu', 0.0, 'xla')])
def test_auto_takes_what_a_platform_is_fast_with(platform, dropout, chosen):
  assert kernels.choose('auto', platform, dropout) is kernels.BY_NAME[chosen]


def test_fused_kernels_are_interpreted_where_there_is_no_tpu():
  rows, ids = jnp.ones((1, 4, 1, 2)), jnp.ones((1, 4), jnp.int32)
  np.testing.assert_allclose(kernels.choose('fused', 'cpu', 0.1).attend(rows, rows, rows, ids), rows, atol=1e-6)


def test_cudnn_s_call_hides_what_ours_hides():
  draw = np.random.default_rng(0)
  q, k, v = (jnp.asarray(draw.normal(size=(2, 8, 2, 16)), jnp.bfloat16) for _ in range(3))
  ids = jnp.asarray([[1, 1, 1, 2, 2, 2, 0, 0], [1] * 8], jnp.int32)
  ours = cudnn.attend(q, k, v, ids, implementation='xla').astype(jnp.float32)  # the same call without a GPU
  np.testing.assert_allclose(ours, attention.attend(q, k, v, ids).astype(jnp.float32), atol=0.02)
