import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_networks as small
import torch

from bertzoo_jax.common import row_keys
from bertzoo_jax.model import attention
from bertzoo_jax.model import blocks
from bertzoo_jax.model import layers
from bertzoo_jax.model import operations
from bertzoo_jax.model import stack

D, H, F = 12, 3, 20
PLAIN = layers.initializer('normal', 1.0)
PACKS = np.asarray([[1, 1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 1, 1, 1]])
X = np.random.default_rng(0).normal(size=(2, 7, D)).astype(np.float32)


def block(dropout=0.0, **where):
  made = dict(kernel_init=layers.initializer('normal', 0.3), dtype=jnp.float32)
  return blocks.Block(
    attention=blocks.SelfAttention(H, 0.0, **made, parent=None),
    feed_forward=blocks.FeedForward(F, 'gelu', **made, parent=None),
    norm=functools.partial(layers.Norm, 1e-5, jnp.float32),
    dropout=dropout,
    parent=None,
    **where,
  )


def parameters(b):
  init = lambda key: jax.tree.map(lambda x: x[0], blocks.init(b, key, stack.Plan(1), D))
  made = types.SimpleNamespace(init=init)
  return small.parameters(made, scale=0.3)


def run(b, params, x=X, keys=None):
  visible = attention.same_pack(jnp.asarray(PACKS))
  apply = lambda params, x: b.apply({'params': params}, x, visible, keys, operations.PLAIN)
  return jax.jit(apply)(params, jnp.asarray(x))


def test_a_first_block_without_its_norm_is_a_pre_norm_block():
  with pytest.raises(ValueError, match='norm_first'):
    parameters(block(attention_norm=False))


@pytest.mark.parametrize('norm_first', [False, True])
def test_each_sublayer_drops_units_of_its_own(norm_first, monkeypatch):
  b, drawn = block(dropout=0.5, norm_first=norm_first), []
  params, keys = parameters(b), row_keys.batch_keys(jax.random.key(0), 2)
  dropped = layers._dropped
  draw = lambda rate, x, keys, first: drawn.append(keys) or dropped(rate, x, keys, first)
  monkeypatch.setattr(layers, '_dropped', draw)
  visible = attention.same_pack(jnp.asarray(PACKS))
  apply = lambda p: (b.apply({'params': p}, X, visible, keys, operations.PLAIN), jnp.stack(drawn))
  out, used = jax.jit(apply)(params)
  assert not np.allclose(out, run(b, params))
  assert used.shape == (2, 2, 2) and len(np.unique(used.reshape(4, 2), axis=0)) == 4


@pytest.mark.parametrize('norm_first', [False, True])
def test_the_stream_keeps_its_own_precision(norm_first):
  b = block(norm_first=norm_first)
  params = parameters(b)
  half = b.clone(norm=functools.partial(layers.Norm, 1e-5, jnp.bfloat16))
  out = run(half, params)
  assert out.dtype == (jnp.float32 if norm_first else jnp.bfloat16)
  # Small steps on a large stream: in bfloat16 they would be lost.
  if norm_first:
    assert small.worst(*(run(x, params, 64 * X) for x in (half, b))) < 0.15


@pytest.mark.parametrize('before', [None, jax.nn.gelu])
def test_a_product_without_a_bias_has_the_gradients_of_the_formula(before):
  dense = layers.Dense((5,), PLAIN, jnp.float32, before=before, use_bias=False)
  kernel = np.random.default_rng(1).normal(size=(D, 5)).astype(np.float32)
  ours = lambda x, kernel: jnp.sum(dense.apply({'params': {'kernel': kernel}}, x) ** 2)
  plain = lambda x, kernel: jnp.sum(((before or (lambda x: x))(x) @ kernel) ** 2)
  both = jax.jit(lambda *of: [jax.grad(f, argnums=(0, 1))(*of) for f in (ours, plain)])
  assert small.worst(*both(X, kernel)) < 1e-3


@pytest.mark.parametrize('rate', [0.1, 0.5, 0.003])
def test_dropout_keeps_the_share_it_says_and_the_mean(rate):
  keys = row_keys.batch_keys(jax.random.key(0), 10)
  x = layers.dropout(jnp.full((10, 100, 1001), 3.0), rate, keys)
  deviation = (rate * (1 - rate) / x.size) ** 0.5
  assert abs(float((x > 0).mean()) - (1 - rate)) < 4 * deviation
  assert abs(float(x.mean()) - 3) < 12 * deviation / (1 - rate)
  np.testing.assert_allclose(np.unique(x), [0, 3 / (1 - rate)], rtol=1e-6)


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
