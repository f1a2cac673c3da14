"""The scanned stack: shared layers, groups, blocks within layers, a program that does not grow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_networks as small
from test_encoder import initial
from test_encoder import perturbed
from test_encoder import run

from bertzoo_jax.common import errors
from bertzoo_jax.common import row_keys
from bertzoo_jax.model import stack

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
  uses = np.array([copy_of(i, j, layers, groups, inner) for i, j in blocks])
  copied = jax.tree.map(lambda x: x if len(x) == len(uses) else x[uses], shared['layers'])
  plain = small.encoder(num_layers=layers * inner)
  shapes = jax.eval_shape(lambda: initial(plain))['layers']
  assert jax.tree.map(np.shape, copied) == jax.tree.map(np.shape, shapes)
  theirs = run(plain, {**shared, 'layers': copied}, batch)
  assert small.worst(run(encoder, shared, batch), theirs) < 2e-6


@pytest.mark.parametrize('sharing, layers, groups, inner', [*STACKS, ('all', 6, 1, 1)])
def test_a_shared_parameter_is_stored_once_a_group_and_block(sharing, layers, groups, inner):
  encoder = encoder_of(sharing, layers, groups, inner)
  shapes = jax.eval_shape(lambda: initial(encoder))['layers']
  for part in ('attention', 'feed_forward'):
    copies = (groups if sharing in ('all', part) else layers) * inner
    for name in (part, f'{part}_norm'):
      assert {x.shape[0] for x in jax.tree.leaves(shapes[name])} == {copies}


@pytest.mark.parametrize('sharing, layers, groups, inner', STACKS[:2])
def test_copies_start_different_from_each_other(sharing, layers, groups, inner):
  params = initial(encoder_of(sharing, layers, groups, inner))
  for path, leaf in jax.tree_util.tree_leaves_with_path(params['layers']):
    if path[-1].key == 'kernel':
      assert len(np.unique(np.asarray(leaf).reshape(len(leaf), -1)[:, 0])) == len(leaf), path


SHARING = [pytest.param(s, marks=[pytest.mark.slow] * (s != 'all')) for s in stack.SHARING]


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
  params, keys_B2 = (
    {'w': jnp.zeros((groups * inner, 1))},
    row_keys.batch_keys(jax.random.key(0), 64),
  )
  draws, _ = stack.scan(apply, params, jnp.zeros(64, jnp.int32), keys_B2, plan)
  bits = np.asarray(draws)[:, None] >> np.arange(8) & 1
  assert 0.4 < bits.mean() < 0.6 and np.abs(np.corrcoef(bits.T) - np.eye(8)).max() < 0.5


# A block that tells what it was given: x ← 3·x + w_i + 10·place + input_i.
NUMBERED = {'w': jnp.arange(1.0, 8.0)[:, None]}


def tell(params, x, turn):
  x = 3.0 * x + params['w'] + 10.0 * turn.place + turn.inputs
  return x, (turn.number, x)


def told(first, end, period, x=1.0):
  """The same, one block after the other."""
  outs = []
  for i in range(first, end):
    x = 3.0 * x + (i + 1.0) + 10.0 * (i % period) + 0.5 * i
    outs.append((i, x))
  return x, outs


# Each two of blocks, period and remat meet.
@pytest.mark.parametrize(
  'first, end, period, remat',
  [
    (*blocks, period, ('none', 'full')[(i + j) % 2])
    for i, blocks in enumerate([(0, 7), (1, 7), (2, 3)])
    for j, period in enumerate([1, 3, 5])
  ],
)
def test_a_block_knows_its_number_place_and_input_and_gives_an_output(first, end, period, remat):
  how = dict(inputs=0.5 * jnp.arange(7.0), first=first, end=end, period=period, remat=remat)
  scan = lambda params: stack.scan(tell, params, jnp.ones(1), None, stack.Plan(7), **how)
  x, (numbers, outs) = jax.jit(scan)(NUMBERED)
  expected, each = told(first, end, period)
  np.testing.assert_allclose(x, [expected], rtol=1e-6)
  np.testing.assert_array_equal(numbers, [i for i, _ in each])
  np.testing.assert_allclose(outs[:, 0], [out for _, out in each], rtol=1e-6)


@pytest.mark.parametrize('sharing, groups', [('all', 1), ('all', 3), ('attention', 3)])
def test_shared_blocks_alternate_and_run_in_whole_groups(sharing, groups):
  plan = stack.Plan(6, stack.SHARING[sharing], groups)
  copies = groups if sharing == 'all' else 6
  params = {'w': jnp.arange(1.0, copies + 1)[:, None]}
  expected, period, begin = 1.0, 2, 2 if groups > 1 else 1
  how = dict(inputs=jnp.zeros(6), first=begin, period=period)
  x, (numbers, _) = stack.scan(tell, params, jnp.ones(1), None, plan, **how)
  for i in range(begin, 6):
    own = i if copies == 6 else i * groups // 6
    expected = 3.0 * expected + own + 1.0 + 10.0 * (i % period)
  np.testing.assert_allclose(x, [expected], rtol=1e-6)
  np.testing.assert_array_equal(numbers, range(begin, 6))


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
