"""A block and its parts against the formulas written out."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_networks as small

from bertzoo_jax.common import row_keys
from bertzoo_jax.model import attention
from bertzoo_jax.model import blocks
from bertzoo_jax.model import layers
from bertzoo_jax.model import operations
from bertzoo_jax.model import stack

D, H, F = 12, 3, 20
PACKS = np.asarray([[1, 1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 1, 1, 1]])
X = np.random.default_rng(0).normal(size=(2, 7, D)).astype(np.float32)


def block(dropout=0.0, use_bias=True, window=None, positions=None, **where):
  made = dict(kernel_init=layers.initializer('normal', 0.3), dtype=jnp.float32, use_bias=use_bias)
  return blocks.Block(
    attention=blocks.SelfAttention(H, 0.0, **made, window=window, positions=positions, parent=None),
    feed_forward=blocks.FeedForward(F, 'gelu', **made, parent=None),
    norm=functools.partial(layers.Norm, 1e-5, jnp.float32, use_bias),
    dropout=dropout,
    parent=None,
    **where,
  )


def parameters(b):
  stacked = blocks.init(b, jax.random.key(0), stack.Plan(1), D)
  return small.perturbed(jax.tree.map(lambda x: x[0], stacked))


def run(b, params, x=X, keys=None):
  visible = attention.same_pack(jnp.asarray(PACKS))
  return b.apply({'params': params}, jnp.asarray(x), visible, keys, operations.PLAIN)


def textbook(params, x, norm_first, first_norm=True, window=None):
  """The same, a row and a head at a time."""

  def norm(x, p):
    z = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return z * p['scale'] + p.get('bias', 0.0)

  def attend(x):
    p, out = params['attention'], np.zeros_like(x)
    project = lambda name, h: x @ p[name]['kernel'][:, h] + p[name].get('bias', np.zeros((H, 1)))[h]
    for b in range(len(x)):
      for h in range(H):
        q, k, v = (project(name, h)[b] for name in ('query', 'key', 'value'))
        seen = PACKS[b][:, None] == PACKS[b]
        if window:
          distance = np.arange(7)[:, None] - np.arange(7)
          seen &= (distance <= window[0]) & (-distance <= window[1])
        e = np.where(seen, np.exp(q @ k.T / np.sqrt(D // H)), 0.0)
        out[b] += (e / e.sum(-1, keepdims=True)) @ v @ p['output']['kernel'][h]
    return out + p['output'].get('bias', 0.0)

  def feed(x):
    p = params['feed_forward']
    h = x @ p['in']['kernel'] + p['in'].get('bias', 0.0)
    return np.asarray(jax.nn.gelu(h, approximate=False)) @ p['out']['kernel'] + p['out'].get(
      'bias', 0.0
    )

  one, two = (lambda x, n=n: norm(x, params[f'{n}_norm']) for n in ('attention', 'feed_forward'))
  if norm_first:
    x = x + attend(one(x) if first_norm else x)
    return x + feed(two(x))
  x = one(x + attend(x))
  return two(x + feed(x))


@pytest.mark.parametrize('norm_first', [False, True])
@pytest.mark.parametrize('use_bias', [False, True])
@pytest.mark.parametrize('window', [None, (2, 1)])
def test_a_block_is_the_textbook_s(norm_first, use_bias, window):
  b = block(use_bias=use_bias, window=window, norm_first=norm_first)
  params = parameters(b)
  assert (
    ('bias' in params['attention']['query']) == ('bias' in params['attention_norm']) == use_bias
  )
  assert np.allclose(run(b, params), textbook(params, X, norm_first, window=window), atol=1e-5)


def test_a_block_without_its_first_norm_has_no_parameter_for_it():
  b = block(norm_first=True, attention_norm=False)
  params = parameters(b)
  assert 'attention_norm' not in params
  assert np.allclose(run(b, params), textbook(params, X, True, first_norm=False), atol=1e-5)


@pytest.mark.parametrize('norm_first', [False, True])
def test_both_sublayers_drop_and_each_other_units(norm_first):
  b = block(dropout=0.5, norm_first=norm_first)
  params, keys = parameters(b), row_keys.of_batch(jax.random.key(0), 2)
  for part in ('attention', 'feed_forward'):
    silent = jax.tree_util.tree_map_with_path(
      lambda path, x, part=part: (
        x if path[0].key in (part, f'{part}_norm') else 0 * x + ('norm' in path[0].key) * x
      ),
      params,
    )
    assert not np.allclose(run(b, silent), run(b, silent, keys=keys))
  assert np.allclose(run(b, params, keys=keys), run(b, params, keys=keys))


def test_what_attention_does_with_places_is_a_part():
  seen = []

  def positions(q_BLHK, k_BLHK):
    seen.append(q_BLHK.shape)
    length = q_BLHK.shape[1]
    bias_RH = jnp.zeros((2 * length - 1, H)).at[length:].set(-1e9)
    return q_BLHK, 0 * k_BLHK, attention.Relative(bias_RH=bias_RH)

  b = block(positions=positions)
  params = parameters(b)
  out = run(b, params)  # all keys alike, and only those that are not before the query
  changed = X.copy()
  changed[1, :3] += 1.0
  assert (2, 7, H, D // H) in seen
  assert np.allclose(out[1, 3:], run(b, params, changed)[1, 3:], atol=1e-5)
  assert not np.allclose(out[1, 3:], run(block(), params, changed)[1, 3:], atol=1e-3)


@pytest.mark.parametrize('size', [1, 2, 3, 4])
def test_a_convolution_sees_neither_padding_nor_another_pack(size):
  kernel = np.random.default_rng(1).normal(size=(size, D, 5)).astype(np.float32)
  dense = layers.Dense(
    (5,), layers.initializer('normal', 1.0), jnp.float32, in_axes=2, use_bias=False
  )
  near = layers.neighbours(jnp.asarray(X), jnp.asarray(PACKS), size)
  out = np.asarray(dense.apply({'params': {'kernel': kernel}}, near))
  for b in range(2):
    for i in range(7):
      expected = np.zeros(5, np.float32)
      for o in range(size):
        j = i + o - size // 2
        if 0 <= j < 7 and PACKS[b, j] == PACKS[b, i] > 0:
          expected += X[b, j] @ kernel[o]
      assert np.allclose(out[b, i], expected, atol=1e-5), (b, i)


@pytest.mark.parametrize('before', [None, jax.nn.gelu])
def test_a_product_without_a_bias_has_the_gradients_of_the_formula(before):
  dense = layers.Dense(
    (5,), layers.initializer('normal', 1.0), jnp.float32, before=before, use_bias=False
  )
  kernel = np.random.default_rng(1).normal(size=(D, 5)).astype(np.float32)
  ours = lambda x, kernel: jnp.sum(dense.apply({'params': {'kernel': kernel}}, x) ** 2)
  plain = lambda x, kernel: jnp.sum(((before or (lambda x: x))(x) @ kernel) ** 2)
  a, b = (jax.grad(f, argnums=(0, 1))(jnp.asarray(X), jnp.asarray(kernel)) for f in (ours, plain))
  assert small.worst(a, b) < 1e-3 and jax.tree.structure(a) == jax.tree.structure(b)


def test_operations_of_a_block_are_its_products_and_the_keys_that_a_token_sees():
  assert block().flops(100, D) == 100 * (8 * D * D + 4 * 100 * D + 4 * D * F)
  assert block(window=(3, 4)).flops(100, D) == 100 * (8 * D * D + 4 * 8 * D + 4 * D * F)
