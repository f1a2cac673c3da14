import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_networks as small

from bertzoo_jax.common import errors
from bertzoo_jax.common import row_keys
from bertzoo_jax.model import layers
from bertzoo_jax.objectives import networks
from configs import albert
from configs import bert

ROW = ('input_ids', 'token_type_ids', 'segment_ids')


@functools.partial(jax.jit, static_argnums=0)
def initial(encoder, seed=0):
  batch = {name: jnp.zeros((1, 1), jnp.int32) for name in ROW}
  return encoder.init(jax.random.key(seed), batch)['params']


@functools.partial(jax.jit, static_argnames=('encoder', 'ops'))
def run(encoder, params, batch, key=None, **how):
  keys_B2 = None if key is None else row_keys.batch_keys(key, len(batch['input_ids']))
  return encoder.apply({'params': params}, batch, keys_B2, **how)


def perturbed(encoder):
  """Parameters off their initial values, without a program that draws those."""
  made = types.SimpleNamespace(init=functools.partial(networks.init_encoder, encoder))
  return small.parameters(made)


@pytest.fixture(scope='module')
def params():
  return perturbed(small.encoder())


@functools.partial(jax.jit, static_argnums=0)
def value_and_gradient(encoder, params, key):
  return jax.value_and_grad(lambda p: jnp.mean(run(encoder, p, small.batch(), key) ** 3))(params)


def program(encoder, params):
  traced = jax.make_jaxpr(value_and_gradient, static_argnums=0)
  return str(traced(encoder, params, jax.random.key(3)))


def test_the_mixture_of_values_is_saved_without_a_pass_of_its_own(params):
  # jax rounds what is both saved and used; what joins the residual is, in the product that makes
  # it.
  jaxpr = program(small.encoder(remat='sublayers', dropout=0.1, attention_dropout=0.1), params)
  assert jaxpr.count('name=attended') > 0
  assert jaxpr.count('= reduce_precision') == 2, 'of a layer, what its two sublayers give'


V2 = {**small.SECTION, **small.DISENTANGLED, 'convolution_size': 3}


@pytest.mark.parametrize(
  'section, name, bound, deviation',
  [
    (small.SECTION, 'truncated_normal', 0.04, 0.02 * 0.8796),
    (small.SECTION, 'normal', 0.2, 0.02),
    (V2, 'normal', 0.2, 0.02),
  ],
  ids=['truncated', 'normal', 'disentangled'],
)
def test_weights_start_as_the_papers_codes_draw_them_with_biases_0_and_norms_1(
  section, name, bound, deviation
):
  params = initial(small.encoder(section=section, vocab_size=2000, initializer=name))
  words = np.asarray(params['embeddings']['word']['embedding'])
  assert abs(words.std() / deviation - 1) < 0.02 and abs(words.mean()) < 2e-4
  assert (name == 'normal') * 0.06 < np.abs(words).max() <= bound
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    if path[-1].key in ('bias', 'scale'):
      assert (leaf == (path[-1].key == 'scale')).all(), path
    else:
      assert leaf.std() > 0.8 * deviation, path


@functools.partial(jax.jit, static_argnums=0)
def gradient_of(encoder, params, batch, weights_BLD):
  loss = lambda p: jnp.sum(run(encoder, p, batch).astype(jnp.float32) * weights_BLD)
  return jax.grad(loss)(params)


def test_bfloat16_gives_the_gradients_of_float32(params):
  batch = {name: x for name, x in small.batch(rows=96).items() if name in ROW}
  # All rows pull one way: sums over them grow far beyond what a bfloat16 can count.
  weights_D = 0.5 + np.random.default_rng(0).normal(0, 0.1, 48).astype(np.float32)
  weights_BLD = np.broadcast_to(weights_D, (96, 24, 48))
  exact, half = (
    gradient_of(small.encoder(dtype=dtype), params, batch, weights_BLD)['layers']
    for dtype in (jnp.float32, jnp.bfloat16)
  )
  errors_of = {}
  for path, x in jax.tree_util.tree_leaves_with_path(exact):
    # adding to all keys changes no share: that gradient is 0
    if path[-1].key == 'bias' and path[-2].key != 'key':
      y = functools.reduce(lambda tree, k: tree[k.key], path, half)
      errors_of[jax.tree_util.keystr(path)] = float(jnp.linalg.norm(y - x) / jnp.linalg.norm(x))
  assert max(errors_of.values()) < 0.03, errors_of


def test_dropout_has_bert_s_four_sites_and_is_off_in_evaluation(params):
  encoder, batch = small.encoder(dropout=0.1, attention_dropout=0.1), small.batch()
  drawn = []
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(layers, '_dropped', lambda rate, x, *_: drawn.append(x.shape) or x)
    keys_B2 = row_keys.batch_keys(jax.random.key(0), 4)
    jax.eval_shape(lambda: encoder.apply({'params': params}, batch, keys_B2))
    # Embeddings; and in each layer: attention shares, attention output, feed-forward output.
    hidden, shares = (4, 24, 48), (4, 4, 24, 24)
    assert drawn == [hidden, shares, hidden, hidden]
    drawn.clear()
    jax.eval_shape(lambda: encoder.apply({'params': params}, batch))
    assert not drawn


def test_an_impossible_encoder_is_refused_with_a_remedy(params):
  for changes, words in (
    (dict(num_heads=5), 'does not divide'),
    (dict(sharing='all', num_groups=2), 'divide num_layers=3'),
    (dict(num_groups=3), 'set encoder.sharing'),
    (dict(inner_group_num=2), 'set encoder.sharing'),
  ):
    with pytest.raises(errors.UserError, match=words):
      small.encoder(**changes)
  with pytest.raises(errors.UserError, match='max_positions=41'):
    run(small.encoder(), params, small.batch(length=41))


def size(tree):
  return sum(x.size for x in jax.tree.leaves(tree))


def test_the_configured_bert_has_as_many_parameters_with_the_cased_vocabulary():
  objective = small.objective('mlm_pair', vocab_size=28996, **bert.get_config('base').encoder)
  assert size(jax.eval_shape(objective.init, jax.random.key(0))) == 108_932_934


# Table 4 of the paper, of the encoder with its pooler.
TABLE_4 = {
  0: dict(all=31.11, attention=83.08, feed_forward=57.12, none=109.08),
  128: dict(all=11.68, attention=63.65, feed_forward=37.69, none=89.65),
}


@pytest.mark.parametrize('width', TABLE_4)
def test_albert_s_sharing_has_the_counts_of_its_table_4(width):
  config = albert.get_config('base')
  for sharing, millions in TABLE_4[width].items():
    config.encoder.update(sharing=sharing, embedding_size=width)
    objective = small.objective('mlm_pair', vocab_size=30_000, **config.encoder)
    shapes = jax.eval_shape(objective.init, jax.random.key(0))
    body = size([shapes['encoder'], shapes['pair_head']['pooler']])
    assert round(body / 1e6, 2) == millions, sharing
