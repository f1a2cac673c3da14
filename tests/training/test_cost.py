"""The cost of a step, against formulas."""

import jax
import pytest
import small_networks as small

from bertzoo_jax.training import cost
from configs import albert
from configs import bert


def flops(section, vocab_size, length, predictions):
  """Operations of a step of masked tokens and pairs, of two rows."""
  objective = small.objective('mlm_pair', section=section, vocab_size=vocab_size)
  batch = small.batch(2, length, predictions)
  return cost.step_flops(objective, jax.eval_shape(objective.init, jax.random.key(0)), batch)


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
  assert flops({**config.encoder}, v, length, p) == pytest.approx(expected, rel=3e-3)
