import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_networks as small
import torch

from bertzoo_jax.common import row_keys
from bertzoo_jax.model import attention
from bertzoo_jax.model import layers


@pytest.mark.parametrize('rate', [0.1, 0.5, 0.003])
def test_dropout_keeps_the_share_it_says_and_the_mean(rate):
  x = layers.dropout(
    jnp.full((10, 100, 1001), 3.0), rate, row_keys.batch_keys(jax.random.key(0), 10)
  )
  deviation = (rate * (1 - rate) / x.size) ** 0.5
  assert abs(float((x > 0).mean()) - (1 - rate)) < 4 * deviation
  assert abs(float(x.mean()) - 3) < 12 * deviation / (1 - rate)
  np.testing.assert_allclose(np.unique(x), [0, 3 / (1 - rate)], rtol=1e-6)


@pytest.mark.parametrize('features', [(8,), (2, 4)])
def test_a_bias_s_gradient_of_many_rows_in_bfloat16_is_that_of_float32(features):
  x = np.random.default_rng(0).normal(size=(64, 1024, 4)).astype(np.float32)
  # a bfloat16 that counts one by one stops at 256
  above = np.ones((64, 1024, *features), np.float32)
  params = small.perturbed({'kernel': np.zeros((4, *features)), 'bias': np.zeros(features)})

  @jax.jit
  def both(params, x, above):
    out = []
    for dtype in (jnp.float32, jnp.bfloat16):
      dense = layers.Dense(features, layers.initializer('normal', 0.1), dtype)
      pull = jax.vjp(lambda p, dense=dense: dense.apply({'params': p}, x), params)[1]
      out.append(pull(above.astype(dtype))[0])
    return out

  exact, half = both(jax.tree.map(jnp.float32, params), x, above)
  for name, expected in exact.items():
    assert half[name].dtype == jnp.float32
    assert small.worst(half[name], expected) < 0.01 * np.abs(expected).max(), name


def test_norm_equals_torch_s_also_far_from_zero():
  x = np.random.default_rng(0).normal(100, 0.1, (50, 64)).astype(np.float32)
  params = small.perturbed({'scale': np.ones(64, np.float32), 'bias': np.zeros(64, np.float32)})
  scale, bias = (torch.as_tensor(params[n]) for n in ('scale', 'bias'))
  theirs = torch.nn.functional.layer_norm(torch.as_tensor(x), (64,), scale, bias, 1e-12)
  ours = layers.Norm(1e-12, jnp.float32).apply({'params': params}, x)
  assert small.worst(ours, theirs.numpy()) < 1e-3  # x itself is rounded to 4e-6 / 0.1


def test_activations_are_the_two_gelus_and_the_exact_one_is_rounded_once():
  x = torch.linspace(-6, 6, 1000)
  for name, how in (('gelu', 'none'), ('gelu_tanh', 'tanh')):
    theirs = torch.nn.functional.gelu(x, approximate=how).numpy()
    assert small.worst(layers.activation(name)(x.numpy()), theirs) < 1e-6
  gelu, x = layers.activation('gelu'), jnp.linspace(-6, 6, 1000).astype(jnp.bfloat16)
  assert (gelu(x) == gelu(x.astype(jnp.float32)).astype(jnp.bfloat16)).all()


@pytest.mark.parametrize('length, window', [(4096, None), (4096, (8, 8)), (512, (8, 8))])
def test_scores_of_long_rows_and_of_windows_are_never_all_in_memory(length, window):
  heads, width = 2, 8

  def loss(q, k, v):
    visible = attention.same_pack(jnp.ones((1, length), jnp.int32), window)
    return attention.attend(q, k, v, visible).sum()

  x = jax.ShapeDtypeStruct((1, length, heads, width), jnp.float32)
  compiled = jax.jit(jax.grad(loss, (0, 1, 2))).lower(x, x, x).compile()
  all_scores = 4 * heads * length * length
  assert compiled.memory_analysis().temp_size_in_bytes < all_scores / 2
