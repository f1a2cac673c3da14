"""Every config: its parts fit each other, and its tiny size takes a step on rows of its own
pipeline.
"""

import importlib

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import pytest

from bertzoo_jax import objectives
from bertzoo_jax.batches import pipeline
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.corpus import corpus as corpora
from bertzoo_jax.model import encoder as encoders
from bertzoo_jax.training import optimizers
from bertzoo_jax.training import schedules
from bertzoo_jax.training import step as steps
from tests import test_laws
from tests.batches import test_masking_replacement

SPECIAL = dict(pad=0, unk=1, cls=2, sep=3, mask=4, eod=5, eop=6)
# Sizes of the papers' networks with their heads, as they train here: BERT §3; RoBERTa without
# Hugging Face's two padding positions and its segment row (124,697,433 and 355,412,057 with them).
PARAMETERS = {
  ('bert', 'small'): 29_058_876,
  ('bert', 'base'): 110_106_428,
  ('bert', 'large'): 336_226_108,
  ('roberta', 'base'): 124_697_433 - 3 * 768,
  ('roberta', 'large'): 355_412_057 - 3 * 1024,
  **{
    ('albert', f'{size}{version}'): count
    for version in ('', '_v2')
    for size, count in (
      ('base', 11_813_810),
      ('large', 17_847_474),
      ('xlarge', 59_021_490),
      ('xxlarge', 223_158_450),
    )
  },
  ('electra', 'small'): 14_196_219,
  ('electra', 'base'): 119_386_427,
  ('electra', 'large'): 354_655_291,
  # Two bodies of base, the head of each; nothing shared.
  ('electra', 'base_two_stage'): 2 * 108_891_648 + 591_361 + (768 * 768 + 768) + 2 * 768 + 30_522,
}
TRAINING = [
  s
  for s in test_laws.CONFIGS
  if importlib.import_module(f'configs.{s}').get_config('tiny').objective.name != 'input_only'
]
SIZES = [
  (system, size)
  for system in test_laws.CONFIGS
  for size in importlib.import_module(f'configs.{system}').SIZES
]


def _config(system, size):
  return ml_collections.ConfigDict(
    importlib.import_module(f'configs.{system}').get_config(size)
  ).lock()


def _section(section, *drop):
  fields = {k: v for k, v in section.items() if k not in drop}
  return fields.pop('name'), fields


def _objective(config, vocab_size):
  name, fields = _section(config.encoder)
  encoder = encoders.BY_NAME[name](
    vocab_size=vocab_size, dtype=jnp.dtype(config.run.dtype), **fields
  )
  name, fields = _section(config.objective)
  return objectives.BY_NAME[name](encoder=encoder, **fields)


def _pipelines(config, vocab_size):
  draw = np.random.default_rng(0)
  starts = np.append(0, np.cumsum(draw.integers(1, 20, 400)))
  corpus = corpora.in_memory(
    draw.integers(5, vocab_size, starts[-1]),
    starts,
    np.arange(0, 401, 8),
    vocab_size,
    SPECIAL,
    similar=test_masking_replacement._table(),
  )
  for phase in configuration.phases(config):
    yield pipeline.build(
      corpus,
      format=phase.config.format,
      masking=phase.config.masking,
      length=phase.config.length,
      batch_size=8,
      seed=config.seed,
      phase=phase.index,
    )


@pytest.mark.parametrize('system, size', SIZES)
def test_every_feature_that_is_read_is_written_in_every_phase(system, size):
  config = _config(system, size)
  for phase, pipe in zip(configuration.phases(config), _pipelines(config, 1000)):
    assert set(_objective(phase.config, 1000).reads) <= set(pipe.features)


@pytest.mark.parametrize('system, size', [key for key in SIZES if not key[1].startswith('tiny')])
def test_every_published_size_has_the_papers_parameters(system, size):
  config = configuration.phases(_config(system, size))[-1].config
  shapes = jax.eval_shape(_objective(config, config.tokenizer.vocab_size).init, jax.random.key(0))
  assert sum(x.size for x in jax.tree.leaves(shapes)) == PARAMETERS[system, size]


@pytest.mark.parametrize('system', sorted(set(test_laws.CONFIGS) - set(TRAINING)))
def test_a_config_that_is_only_input_ready_refuses_to_train(system):
  with pytest.raises(errors.UserError, match='input ready'):
    jax.eval_shape(_objective(_config(system, 'tiny'), 200).init, jax.random.key(0))


@pytest.mark.parametrize('system', TRAINING)
def test_every_tiny_config_takes_a_step_that_lowers_the_loss_of_its_batch(system):
  config = _config(system, 'tiny')
  objective = _objective(config, 200)
  name, fields = _section(config.schedule, 'across_phases')
  schedule = schedules.BY_NAME[name](1000, **{**fields, 'warmup': 0})
  name, fields = _section(config.optimizer)
  tx = optimizers.BY_NAME[name](
    schedule, optimizers.paths_of(jax.eval_shape(objective.init, jax.random.key(0))), **fields
  )
  state = jax.jit(lambda: steps.init(objective, tx, config.seed, 8))()
  update = jax.jit(steps.make_train_step(objective, tx, schedule, seed=0))
  batch = next(_pipelines(config, 200)).batch(0)
  state, first = update(state, batch)
  state, second = update(state, batch)
  assert (
    np.isfinite(first['grad_norm'])
    and second['loss'] < first['loss']
    and int(state.nonfinite['total']) == 0
  )
