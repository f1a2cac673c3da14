"""The cost of a step, against formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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


def flops(config, length, predictions, rows=2):
  ids = dict.fromkeys(('input_ids', 'token_type_ids', 'segment_ids'), (rows, length))
  masked = (f'masked_{name}' for name in ('positions', 'targets', 'weights'))
  features = ids | dict.fromkeys(masked, (rows, predictions)) | {'pair_labels': (rows,)}
  dtypes = {'masked_weights': np.float32}
  batch = {k: jax.ShapeDtypeStruct(s, dtypes.get(k, np.int32)) for k, s in features.items()}
  return cost.step_flops(*costed(config), batch)


ALBERT = dict(sharing='all', num_groups=3), dict(sharing='attention', num_groups=1)


@pytest.mark.parametrize(
  'system, changes, e, v', [(bert, {}, 768, 30522), *((albert, x, 128, 30_000) for x in ALBERT)]
)
def test_operations_are_six_a_weight_and_token_plus_attention_plus_the_head_on_predictions_alone(
  system, changes, e, v
):
  config, d, f, length, p = system.get_config('base'), 768, 3072, 128, 20
  config.encoder.update(changes)
  per_token = 12 * (4 * d * d + 2 * d * f) + (d * e if e < d else 0)
  attention = 12 * 12 * length * length * d
  heads = 6 * p * (d * e + e * v) + 6 * (d * d + 2 * d)
  expected = 2 * (6 * per_token * length + attention + heads)
  assert flops(config, length, p) == pytest.approx(expected, rel=3e-3)


def test_both_networks_of_a_pair_cost_and_a_frozen_one_its_forward_pass():
  config = electra.get_config('small')
  body = lambda d: 12 * 12 * d * d + d * 128
  forward = {
    'main': 2 * 128 * (body(256) + 256 * 256 + 256) + 4 * 12 * 128 * 128 * 256,
    'generator': 2 * 128 * body(64) + 4 * 12 * 128 * 128 * 64 + 2 * 19 * (64 * 128 + 128 * 30_522),
  }
  assert flops(config, 128, 19) == pytest.approx(
    2 * 3 * (forward['main'] + forward['generator']), rel=3e-3
  )
  config.objective = parts.replaced_token_frozen()
  whole = 2 * 128 * body(256) + 4 * 12 * 128 * 128 * 256 + 2 * 19 * (256 * 128 + 128 * 30_522)
  assert flops(config, 128, 19) == pytest.approx(2 * (3 * forward['main'] + whole), rel=3e-3)
