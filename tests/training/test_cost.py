"""The cost of a step, against formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_networks as small

from bertzoo_jax import objectives
from bertzoo_jax import parts
from bertzoo_jax.model import encoder as encoders
from bertzoo_jax.training import cost
from configs import albert
from configs import bert
from configs import electra
from tests.found import call_part


def costed(config):
  """(objective, shapes of parameters) of a config."""
  fields = {k: v for k, v in config.encoder.items() if k != 'name'}
  encoder = encoders.BY_NAME['transformer'](
    vocab_size=config.tokenizer.vocab_size, dtype=jnp.float32, **fields
  )
  section = {k: v for k, v in config.objective.items() if k != 'name'}
  objective = call_part(objectives, config.objective.name, encoder, **section)
  return objective, jax.eval_shape(objective.init, jax.random.key(0))


def flops(config, features):
  features = dict.fromkeys(('token_type_ids', 'segment_ids'), features['input_ids']) | features
  positions = features['masked_positions']
  features |= dict.fromkeys(('masked_targets', 'masked_weights'), positions)
  features['pair_labels'] = positions[:1]
  dtypes = {'masked_weights': np.float32}
  batch = {k: jax.ShapeDtypeStruct(s, dtypes.get(k, np.int32)) for k, s in features.items()}
  return cost.step_flops(*costed(config), batch)


def test_operations_are_six_a_weight_and_token_plus_attention_plus_the_head_on_predictions_alone():
  n, d, f, v, p, rows, length = 12, 768, 3072, 30522, 20, 2, 128
  features = {'input_ids': (rows, length), 'masked_positions': (rows, p)}
  found = flops(bert.get_config('base'), features)
  weights = n * (4 * d * d + 2 * d * f)
  expected = rows * (
    6 * weights * length
    + 12 * n * length * length * d
    + 6 * p * (d * d + d * v)
    + 6 * (d * d + 2 * d)
  )
  assert found == pytest.approx(expected, rel=3e-3)


def test_shared_layers_cost_what_layers_of_their_own_cost():
  config, features = albert.get_config('base'), {'input_ids': (2, 128), 'masked_positions': (2, 20)}
  costs = []
  for sharing, groups in (('all', 3), ('attention', 1)):
    config.encoder.update(sharing=sharing, num_groups=groups)
    costs.append(flops(config, features))
  d, e, f, v = 768, 128, 3072, 30_000
  per_token = 12 * (4 * d * d + 2 * d * f) + d * e
  expected = 2 * (
    6 * per_token * 128 + 12 * 12 * 128 * 128 * d + 6 * 20 * (d * e + e * v) + 6 * (d * d + 2 * d)
  )
  assert costs == [pytest.approx(expected, rel=3e-3)] * 2


def test_both_networks_of_a_pair_cost_and_a_frozen_one_its_forward_pass():
  config = electra.get_config('small')
  features = {'input_ids': (2, 128), 'masked_positions': (2, 19)}
  body = lambda d: 12 * 12 * d * d + d * 128
  forward = {
    'main': 2 * 128 * (body(256) + 256 * 256 + 256) + 4 * 12 * 128 * 128 * 256,
    'generator': 2 * 128 * body(64) + 4 * 12 * 128 * 128 * 64 + 2 * 19 * (64 * 128 + 128 * 30_522),
  }
  assert flops(config, features) == pytest.approx(
    2 * 3 * (forward['main'] + forward['generator']), rel=3e-3
  )
  config.objective = parts.replaced_token_frozen()
  whole = 2 * 128 * body(256) + 4 * 12 * 128 * 128 * 256 + 2 * 19 * (256 * 128 + 128 * 30_522)
  assert flops(config, features) == pytest.approx(2 * (3 * forward['main'] + whole), rel=3e-3)


def test_a_head_that_sees_all_positions_costs_them_and_a_tied_one_the_word_table():
  config, features = electra.get_config('tiny'), {'input_ids': (2, 64), 'masked_positions': (2, 9)}
  config.objective = parts.replace_mlm(width=1.0, shared='none')
  few = flops(config, features)
  config.objective = parts.all_tokens_mlm(width=1.0, shared='none')
  d, v = config.encoder.hidden_size, config.tokenizer.vocab_size
  e = config.encoder.embedding_size or d
  extra = 3 * 2 * 2 * (64 - 9) * (d * e + e * v)
  assert flops(config, features) - few == pytest.approx(extra, rel=3e-3)


def test_an_objective_with_two_passes_costs_two():
  objective, shapes = costed(bert.get_config('tiny'))

  def twice(params, batch, *rest):
    value, found = objective.loss(params, batch, *rest)
    return value + objective.loss(params, batch, *rest)[0], found

  batch = small.batch(4, 32, 5)
  one, two = (
    cost.step_flops(o, shapes, batch) for o in (objective, objective._replace(loss=twice))
  )
  assert two == 2 * one > 0
