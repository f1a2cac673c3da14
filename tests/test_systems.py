import importlib

import jax
import ml_collections
import numpy as np
import pytest

from bertzoo_jax import objectives
from bertzoo_jax.batches import pipeline
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import trees
from bertzoo_jax.corpus import corpus as corpora
from bertzoo_jax.experiment import build
from bertzoo_jax.parts import named
from bertzoo_jax.training import optimizers
from bertzoo_jax.training import schedules
from bertzoo_jax.training import step as steps
from tests import found
from tests.batches import test_masking_replacement
from tests.found import call_part

SPECIAL = dict(pad=0, unk=1, cls=2, sep=3, mask=4, eod=5, eop=6)


def _objective(config, vocab_size):
  encoder = build.encoder(config, vocab_size)
  return named.build(config.objective, objectives.BY_NAME, 'objective', encoder=encoder)


def _pipelines(config, vocab_size):
  draw = np.random.default_rng(0)
  starts = np.append(0, np.cumsum(draw.integers(1, 20, 400)))
  tokens = draw.integers(5, vocab_size, starts[-1]), starts, np.arange(0, 401, 8)
  similar = test_masking_replacement._table()
  corpus = corpora.in_memory(*tokens, vocab_size, SPECIAL, similar=similar)
  for phase in configuration.phases(config):
    made = {name: phase.config[name] for name in ('format', 'masking', 'length')}
    yield pipeline.build(corpus, **made, batch_size=8, seed=config.seed, phase=phase.index)


def _kinds():
  """The sizes of all systems, without those whose parts have the names and choices of another's."""
  chosen = lambda section: {k: x for k, x in section.items() if isinstance(x, str | bool)}
  parts_of = lambda c: [chosen(c[x]) for x in ('format', 'masking', 'encoder', 'objective')]
  all_of = lambda one: str([parts_of(x.config) for x in configuration.phases(found.config(*one))])
  return {all_of(one): one for one in reversed(found.SIZES)}.values()


@pytest.mark.parametrize('system, size', _kinds())
def test_every_feature_that_is_read_is_written_in_every_phase(system, size):
  config = found.config(system, size)
  for phase, pipe in zip(configuration.phases(config), _pipelines(config, 1000)):
    assert set(_objective(phase.config, 1000).reads) <= set(pipe.features)


@pytest.mark.parametrize('name, size', found.counted())
def test_every_size_has_the_parameters_that_its_config_says(name, size):
  module = importlib.import_module(name)
  config = found.last_phase(ml_collections.ConfigDict(module.get_config(size)).lock())
  shapes = jax.eval_shape(_objective(config, config.tokenizer.vocab_size).init, jax.random.key(0))
  count = sum(x.size for x in jax.tree.leaves(shapes))
  assert count == module.PARAMETERS[size], f'{count:,}'


@pytest.mark.parametrize('system', found.SYSTEMS)
def test_every_tiny_config_takes_a_step_that_lowers_the_loss_of_its_batch(system):
  config = found.config(system, 'tiny')
  objective = _objective(config, 200)
  drawn, chosen = config.schedule.to_dict() | {'warmup': 0}, config.optimizer.to_dict()
  del drawn['across_phases']
  schedule = call_part(schedules, drawn.pop('name'), 1000, **drawn)
  paths = trees.paths_of(jax.eval_shape(objective.init, jax.random.key(0)))
  tx = call_part(optimizers, chosen.pop('name'), schedule, paths, **chosen)
  state = jax.jit(lambda: steps.init(objective, tx, config.seed, 8))()
  update = jax.jit(steps.make_train_step(objective, tx, schedule, seed=0))
  batch = next(_pipelines(config, 200)).batch(0)
  state, first = update(state, batch)
  state, second = update(state, batch)
  assert np.isfinite(first['grad_norm'])
  assert second['loss'] < first['loss']
  assert int(state.nonfinite['total']) == 0
