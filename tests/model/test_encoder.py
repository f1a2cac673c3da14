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
from bertzoo_jax.model import stack
from bertzoo_jax.objectives import networks
from configs import albert
from configs import bert

ROW = ('input_ids', 'token_type_ids', 'segment_ids')
SHARING = [pytest.param(s, marks=[pytest.mark.slow] * (s != 'all')) for s in stack.SHARING]


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


# sharing, layers, groups, blocks per layer
STACKS = [('all', 4, 2, 2), ('attention', 6, 3, 1), ('feed_forward', 4, 2, 2)]


def encoder_of(sharing, layers, groups, inner, **fields):
  shared = dict(sharing=sharing, num_groups=groups, inner_group_num=inner)
  return small.encoder(num_layers=layers, **shared, **fields)


def copy_of(layer, block, layers, groups, inner):
  """The place of a shared parameter's copy that a layer's block uses, as transformers finds it."""
  return int(layer / (layers / groups)) * inner + block


@pytest.mark.parametrize('sharing, layers, groups, inner', STACKS)
def test_shared_parameters_act_as_equal_copies_in_every_layer_of_their_group(
  sharing, layers, groups, inner
):
  encoder, batch = encoder_of(sharing, layers, groups, inner), small.batch()
  shared, blocks = perturbed(encoder), [*np.ndindex(layers, inner)]
  for part in ('attention', 'feed_forward'):  # stored once per group and block
    copies = (groups if sharing in ('all', part) else layers) * inner
    for name in (part, f'{part}_norm'):
      assert {len(x) for x in jax.tree.leaves(shared['layers'][name])} == {copies}
  uses = np.array([copy_of(i, j, layers, groups, inner) for i, j in blocks])
  copied = jax.tree.map(lambda x: x if len(x) == len(uses) else x[uses], shared['layers'])
  plain = small.encoder(num_layers=layers * inner)
  shapes = jax.eval_shape(lambda: initial(plain))['layers']
  assert jax.tree.map(np.shape, copied) == jax.tree.map(np.shape, shapes)
  theirs = run(plain, {**shared, 'layers': copied}, batch)
  assert small.worst(run(encoder, shared, batch), theirs) < 2e-6


def test_copies_start_different_from_each_other():
  params = initial(encoder_of(*STACKS[0]))
  for path, leaf in jax.tree_util.tree_leaves_with_path(params['layers']):
    if path[-1].key == 'kernel':
      assert len(np.unique(np.asarray(leaf).reshape(len(leaf), -1)[:, 0])) == len(leaf), path


@pytest.mark.parametrize('sharing', SHARING)
def test_the_program_does_not_grow_with_depth(sharing):
  def lines(depth):
    encoder = small.encoder(num_layers=depth, sharing=sharing, dropout=0.1, attention_dropout=0.1)
    params = jax.eval_shape(lambda: initial(encoder))
    loss = lambda p, key: jnp.sum(run(encoder, p, small.batch(), key))
    return len(jax.jit(jax.grad(loss)).lower(params, jax.random.key(0)).as_text().splitlines())

  assert lines(4) == lines(12)


@pytest.mark.parametrize('layers, groups, inner', [(8, 1, 1), (4, 2, 2), (8, 8, 1)])
def test_each_block_draws_its_own_dropout(layers, groups, inner):
  def apply(_, x, turn):
    return x * 2 + row_keys.keep(turn.keys_B2, 0.5, (1, 1))[:, 0, 0], None

  plan = stack.Plan(layers, stack.SHARING['all'], groups, inner)
  params = {'w': jnp.zeros((groups * inner, 1))}
  keys_B2 = row_keys.batch_keys(jax.random.key(0), 64)
  draws, _ = stack.scan(apply, params, jnp.zeros(64, jnp.int32), keys_B2, plan)
  bits = np.asarray(draws)[:, None] >> np.arange(8) & 1
  assert 0.4 < bits.mean() < 0.6 and np.abs(np.corrcoef(bits.T) - np.eye(8)).max() < 0.5


def tell(params, x, turn):
  x = 3.0 * x + params['w'] + 10.0 * turn.place + turn.inputs
  return x, (turn.number, x)


# Each two of blocks, period and remat meet; and shared blocks, in whole groups.
@pytest.mark.parametrize(
  'sharing, groups, first, end, period, remat',
  [
    ('none', 1, 0, 6, 1, 'none'),
    ('none', 1, 0, 6, 3, 'full'),
    ('none', 1, 1, 6, 3, 'none'),
    ('none', 1, 1, 6, 5, 'full'),
    ('none', 1, 2, 3, 1, 'full'),
    ('none', 1, 2, 3, 5, 'none'),
    ('all', 1, 1, 6, 2, 'none'),
    ('all', 3, 2, 6, 2, 'none'),
    ('attention', 3, 2, 6, 2, 'none'),
  ],
)
def test_a_block_knows_its_number_place_and_input_and_gives_an_output(
  sharing, groups, first, end, period, remat
):
  copies = groups if sharing == 'all' else 6
  plan, params = stack.Plan(6, stack.SHARING[sharing], groups), jnp.arange(1.0, copies + 1)[:, None]
  how = dict(inputs=0.5 * jnp.arange(6.0), first=first, end=end, period=period, remat=remat)
  scan = lambda params: stack.scan(tell, {'w': params}, jnp.ones(1), None, plan, **how)
  x, (numbers, outs) = jax.jit(scan)(params)
  expected, each = 1.0, []
  for i in range(first, end):  # one block after the other
    expected = 3.0 * expected + (i * copies // 6 + 1.0) + 10.0 * (i % period) + 0.5 * i
    each.append(expected)
  np.testing.assert_allclose(x, [expected], rtol=1e-6)
  np.testing.assert_array_equal(numbers, range(first, end))
  np.testing.assert_allclose(outs[:, 0], each, rtol=1e-6)


def test_blocks_that_cannot_run_are_refused_in_a_sentence():
  all_in = lambda layers, groups, inner: stack.Plan(layers, stack.SHARING['all'], groups, inner)
  layer, few = 'break a layer', 'and it has 1: raise encoder.num_layers'
  for plan, fields, words in (
    (all_in(6, 3, 1), dict(first=1), 'break a group'),
    *((all_in(2, 1, 2), dict(first=a, end=b), layer) for a, b in ((1, 3), (0, 3), (1, 4))),
    (stack.Plan(1), dict(first=1), few),
    (stack.Plan(1), dict(end=0), few),
  ):
    params = {'w': jnp.ones((plan.num_groups * plan.inner_group_num, 1))}
    with pytest.raises(errors.UserError, match=words):
      stack.scan(tell, params, jnp.ones(1), None, plan, inputs=jnp.zeros(6), **fields)
  with pytest.raises(errors.UserError, match='no rule'):  # a table that leaves a parameter out
    plan = stack.Plan(2, (('attention', 'broadcast'),))
    stack.init(lambda key: {'norm': {'scale': jnp.ones(3)}}, jax.random.key(0), plan)


@pytest.mark.parametrize('which', [dict(end=1), dict(period=2), dict(first=1, period=2)])
def test_blocks_outside_a_loop_are_recomputed_too(which):
  def apply(params, x, turn):
    return jnp.tanh(x @ params['w']), None

  def tanhs(remat):
    plan = stack.Plan(2 + which.get('first', 0))
    params = {'w': jnp.ones((plan.num_layers, 8, 8))}
    loss = lambda p, x: stack.scan(apply, p, x, None, plan, remat=remat, **which)[0].sum()
    program = jax.jit(jax.value_and_grad(loss)).lower(params, jnp.ones((4, 8))).compile().as_text()
    return len([line for line in program.splitlines() if ' tanh(' in line])

  assert tanhs('full') > tanhs('none')
