import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_networks as small

from bertzoo_jax import parts
from bertzoo_jax.batches import pipeline
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import moving
from bertzoo_jax.corpus import corpus as corpora
from bertzoo_jax.experiment import build
from bertzoo_jax.experiment import resolve
from bertzoo_jax.parts import ranges
from bertzoo_jax.training import step as steps
from configs import bert
from configs import electra
from configs import xlnet
from tests.refused import refused

RATE = ('masking.rate', 0.4, 0.1, 2, 10, 'linear')


def config(*rows, **changes):
  made = bert.get_config('tiny')
  made.phases, made.batch_size, made.length = ((6, {}), (6, {})), 4, 32
  made.moving, made.schedule.warmup = rows, 2
  for key, value in changes.items():
    made[key] = value
  return made.lock()


@pytest.mark.parametrize('shape', ['linear', 'cosine'])
def test_a_number_goes_from_one_value_to_the_other_by_its_shape(shape):
  move = moving.Move('masking.rate', 0.4, 0.1, 2, 10, shape)
  for step in range(14):
    x = min(max((step - 2) / 8, 0.0), 1.0)
    x = (1 - math.cos(math.pi * x)) / 2 if shape == 'cosine' else x
    assert move.at(step) == pytest.approx(0.4 - 0.3 * x)
    assert float(move.at(jnp.int32(step), jnp)) == pytest.approx(0.4 - 0.3 * x, rel=1e-5)


@pytest.fixture(scope='module')
def corpus():
  draw = np.random.default_rng(0)
  text = draw.integers(5, 200, 900), np.arange(0, 901, 10), np.arange(0, 91, 6)
  special = dict(pad=0, unk=1, cls=2, sep=3, mask=4)
  return corpora.in_memory(*text, 200, special, held_out=text)


def of_phases(corpus, made, **options):
  return [pipeline.for_phase(corpus, p, **options) for p in configuration.phases(made)]


def test_the_batches_of_a_moving_rate_are_those_of_each_rate_alone(corpus):
  made = config(RATE)
  move = moving.Move(*RATE)
  for phase, line in zip(configuration.phases(made), of_phases(corpus, made)):
    assert line.num_predictions == line.features['masked_positions'][0][1]
    for step, batch in enumerate(line.iterate(0, phase.steps)):
      if step % 2:
        continue
      rate = move.at(phase.first_step + step)
      fixed = phase.config.copy_and_resolve_references().unlock()
      fixed.masking.rate, fixed.moving = rate, ()
      alone = pipeline.for_phase(corpus, type(phase)(**{**vars(phase), 'config': fixed}))
      alone = alone.batch(step)
      # BERT's rate counts the tokens of the row with its special ones
      excess_B = batch['masked_weights'].sum(1) - rate * (batch['segment_ids'] > 0).sum(1)
      assert np.abs(excess_B).max() <= 1, 'tokens more or less than the rate asks of a row'
      many = alone['masked_positions'].shape[1]
      assert batch['masked_positions'].shape[1] == line.num_predictions >= many
      again = line.batch(step)
      for name, x in batch.items():
        np.testing.assert_array_equal(x, again[name], err_msg=name)
        if name.startswith('masked'):
          assert not x[:, many:].any()
          x = x[:, :many]
        np.testing.assert_array_equal(x, alone[name], err_msg=name)


def test_held_out_rows_do_not_move(corpus):
  both = (of_phases(corpus, c, split='held_out')[0] for c in (config(), config(RATE)))
  for still, moved in zip(*(line.evaluation_batches(2) for line in both)):
    jax.tree.map(np.testing.assert_array_equal, still, moved)


def test_a_moving_weight_is_that_of_the_step_in_the_compiled_step(corpus):
  run = resolve.run(config(('objective.pair_weight', 0.0, 2.0, 0, 4, 'linear')))
  network = build.network(run, run.phases[0], corpus.vocab_size)
  how = dict(seed=0, objective_at=network.objective_at)
  step = jax.jit(steps.make_train_step(network.objective, network.tx, network.schedule, **how))
  params = small.parameters(network.objective, scale=0.02)
  state = small.state(network.objective, network.tx, params, 4)
  batch = of_phases(corpus, config())[0].batch(0)
  for number in (0, 2, 4):
    found = step(state.replace(step=jnp.int32(number)), batch)[1]
    expected = found['mlm_loss'] + number / 2 * found['pair_loss']
    assert float(found['loss']) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.filterwarnings('ignore:Split')
def test_rows_from_left_to_right_are_drawn_per_row_by_the_share_of_the_step(corpus):
  row = ('objective.causal_share', 0.0, 1.0, 0, 12, 'linear')
  mixture = dict(objective=parts.causal_masked(causal_share=0.5))
  made = config(row, format=parts.full_sentences(), batch_size=64, **mixture)
  first, second = of_phases(corpus, made)  # rows repeat in a batch of 64
  assert first.features['causal'] == ((64,), np.int32)
  shares = [line.batch(step)['causal'].mean() for line in (first, second) for step in range(6)]
  assert shares[0] == 0 and np.abs(np.array(shares) - np.arange(12) / 12).max() < 0.2
  for step, batch in enumerate(second.iterate(0, 3)):
    hosts = [of_phases(corpus, made, host=(h, 2))[1].batch(step)['causal'] for h in (0, 1)]
    np.testing.assert_array_equal(batch['causal'], np.concatenate(hosts))
  rows = dict(format=parts.full_sentences(), batch_size=64)
  drawn = of_phases(corpus, config(**rows, **mixture))[0].batch(2)
  masked = of_phases(corpus, config(**rows, objective=parts.mlm()))[0].batch(2)
  assert 0.3 < drawn.pop('causal').mean() < 0.7 and drawn.keys() == masked.keys()
  jax.tree.map(np.testing.assert_array_equal, drawn, masked)  # the draw changes nothing else
  both = (made, config(**rows, seed=5, **mixture))
  held_out = (of_phases(corpus, c, split='held_out')[0].evaluation_batches(1) for c in both)
  np.testing.assert_array_equal(*(next(batches)['causal'] for batches in held_out))


def test_a_move_that_cannot_be_meant_is_refused():
  for row, words in (
    (('masking.rate', 0.4), 'a row is'),
    (('masking.rat', 0.4, 0.1, 0, 9, 'linear'), "Did you mean 'masking.rate'"),
    (('masking.repeat', 0.4, 0.1, 0, 9, 'linear'), 'number of masking or objective'),
    (('optimizer.b1', 0.4, 0.1, 0, 9, 'linear'), 'number of masking or objective'),
    (('masking.rate', 0.4, 1.1, 0, 9, 'linear'), 'above 0 and below 1'),
    (('masking.rate', 0.4, 0.1, 9, 9, 'linear'), 'the last must come after the first'),
    (('masking.rate', 0.4, 0.1, -5, 9, 'linear'), 'steps count from 0'),
    (('masking.rate', 0.4, 0.1, 0, 9, 'liner'), "Did you mean 'linear'"),
  ):
    refused(words, ranges.check, config(row))
  phases = ((6, {}), (6, {'masking': parts.permutation()}))  # which has no such field
  words = "can move in phase 1 is called 'masking.rate'"
  refused(words, ranges.check, config(RATE, phases=phases))


def test_a_number_moves_only_within_one_network():
  for system, field, now, fits in (
    (electra, 'width', 0.25, False),
    (electra, 'temperature', 1.0, True),
    (xlnet, 'pair_weight', 0.0, False),
    (xlnet, 'pair_weight', 0.5, True),
  ):
    made = system.get_config('tiny')
    made.objective[field], made.moving = now, ((f'objective.{field}', 0.5, 1.0, 0, 9, 'linear'),)
    run = resolve.run(made)
    network = run, run.phases[0], 99
    if fits:
      assert build.network(*network).objective_at is not None
    else:
      refused(f'objective.{field}, whose values make different', build.network, *network)
