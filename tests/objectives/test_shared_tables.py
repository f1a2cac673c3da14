"""Word vectors of two networks (He et al. 2021 §3.2–3.3): one table (ES), two (NES), or a sum whose
first part gets no gradient (GDES). The two losses, each alone, tell which gradient reaches what.
"""

import contextlib
import functools
import types

import jax
import numpy as np
import pytest
import small_networks as small

from bertzoo_jax import parts
from bertzoo_jax.common import errors
from bertzoo_jax.experiment import build
from bertzoo_jax.experiment import check
from bertzoo_jax.hf import weights
from bertzoo_jax.objectives import generator as generators

WORD = 'encoder/embeddings/word/embedding'
SIZES = dict(num_layers=2, hidden_size=32, num_heads=2, intermediate_size=32, activation='gelu')
DISENTANGLED = {
  **parts.disentangled(max_positions=40, max_distance=20, buckets=8, dropout=0.0),
  **SIZES,
  'attention_dropout': 0.0,
}
V3 = dict(width=1.0, depth=0.5)


@functools.cache
def batch():
  """With given samples, so that all ways of sharing fill in the same tokens."""
  made = small.rows()
  sampled = np.random.default_rng(1).integers(5, small.VOCAB, made['masked_targets'].shape)
  return {**made, 'sampled_ids': sampled.astype(np.int32)}


@functools.cache
def objective_of(shared, **how):
  sizes = {'head': 'token', **SIZES, **V3}
  return small.objective('replaced_token', **sizes, shared=shared, **how)


@functools.cache
def start():
  """{path: array} of networks whose word vectors are a sum."""
  return weights.flatten(small.parameters(objective_of('added'), seed=1, scale=0.05))


def vectors(shared):
  """Parameters of the same two networks under a way of sharing."""
  flat = dict(start())
  if shared != 'added':
    flat[WORD] = flat[WORD] + flat[f'generator/{WORD}']
  return flat


def gradients(shared, *, of):
  """{path: gradient} of one of the two losses."""
  off = {'generator': 'discriminator_weight', 'main': 'generator_weight'}[of]
  params, objective = weights.unflatten(vectors(shared)), objective_of(shared, **{off: 0.0})
  return weights.flatten(small.evaluate(objective, params, batch())[1])


def test_the_discriminator_s_gradients_are_those_of_a_table_of_its_own_that_equals_the_sum():
  added, apart = (gradients(shared, of='main') for shared in ('added', 'none'))
  own = {path: x for path, x in added.items() if path.startswith('generator/')}
  assert f'generator/{WORD}' in own and all(not x.any() for x in own.values())  # exactly
  assert added[WORD].any() and added['replaced_head/dense/kernel'].any()
  scale = np.abs(apart[WORD]).max()
  for path, x in apart.items():
    if path in added and not path.startswith('generator/'):
      assert small.worst(added[path], x) <= 1e-6 * max(1.0, scale), path
  mine = gradients('added', of='generator')
  assert all(not x.any() for path, x in mine.items() if not path.startswith('generator/'))
  assert mine[f'generator/{WORD}'].any()


def test_the_discriminator_is_seen_with_the_sum_bit_for_bit_and_the_sum_is_taken_apart_again():
  network, flat = objective_of('added').networks[0], start()
  seen = weights.flatten(network.extract(weights.unflatten(flat)))
  assert (seen[WORD] == flat[WORD] + flat[f'generator/{WORD}']).all()
  again = network.insert({path: np.asarray(x) for path, x in seen.items()}, flat)
  assert small.worst(again[WORD], flat[WORD]) < 1e-7
  assert network.places(weights.unflatten(flat))[WORD] == WORD


def test_the_own_part_starts_at_zero_so_that_both_networks_start_with_one_table():
  objective = objective_of('added')

  @jax.jit
  def tables(key):
    start = objective.init(key)
    read = (weights.flatten(n.extract(start))[WORD] for n in objective.networks)
    return weights.flatten(start)[WORD], *read

  own, main, generator = map(np.asarray, tables(jax.random.key(0)))
  assert not own.any() and generator.any() and (main == generator).all()


@pytest.mark.parametrize('shared', generators.SHARED)
def test_each_way_of_sharing_names_the_tables_that_are_one_or_a_sum(shared):
  encoder = small.encoder(**DISENTANGLED)
  depth = 1.0 if shared == 'all' else 0.5
  generator = generators.build(encoder, width=1.0, depth=depth, shared=shared)
  tables = lambda paths: {path.split('/')[1] for path in paths if path.startswith('embeddings/')}
  known = {
    'none': (set(), set()),
    'token': ({'word'}, set()),
    'embeddings': ({'word', 'norm'}, set()),
    'all': ({'word', 'norm'}, set()),
    'added': (set(), {'word'}),
  }
  assert (tables(generator.tied), tables(generator.residual)) == known[shared]
  assert ('relative/embedding' in generator.tied) == (shared == 'all')
  # Of the generator's table of positions the discriminator shows a copy where it is exported.
  assert tables(generator.export_only) == ({'position'} if shared == 'added' else set())
  if shared == 'added':
    own = weights.flatten(jax.eval_shape(generator.init, jax.random.key(0)))
    assert 'encoder/embeddings/position/embedding' in own


@pytest.mark.parametrize(
  'first, second', [('none', 'added'), ('added', 'none'), ('generator_mlm', 'added')]
)
def test_a_phase_may_not_read_a_summand_as_a_whole_table(first, second):
  built = {}
  for index, name in enumerate((first, second)):
    pair = dict(shared=name, width=1.0, depth=1.0)
    kind, own = (name, {}) if name == 'generator_mlm' else ('replaced_token', pair)
    objective = small.objective(kind, **own, num_layers=1)
    shapes = jax.eval_shape(objective.init, jax.random.key(0))
    built[index, None, None] = build.Network(None, objective, shapes, None, None)
  run = types.SimpleNamespace(built=built)
  phases = [types.SimpleNamespace(index=index) for index in (0, 1)]
  refused = pytest.raises(errors.UserError, match='Only one of phase 1 and the phase before it')
  with contextlib.nullcontext() if first == 'generator_mlm' else refused:
    check.order(run, phases, None, None)
