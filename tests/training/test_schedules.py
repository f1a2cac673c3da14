"""Learning rates against the four published lines, at the points where they differ."""

import pytest

from bertzoo_jax.common import errors
from bertzoo_jax.training import schedules

PEAK, W, T = 2.0, 100, 1000

# Fields besides learning_rate and warmup.
FIELDS = {'linear_to_floor': dict(end_share=0.25)}

# Rates at s = 0, 1, W − 1, W, T / 2, T (bert_roberta_albert_electra_spanbert facts, §1 and §8.4).
EXPECTED = {
  'linear_from_start': (0.0, 1 / W, (W - 1) / W, 1 - W / T, 0.5, 0.0),
  'linear_after_warmup': (1 / W, 1 / W, (W - 1) / W, 1.0, (T / 2) / (T - W), 0.0),
  'linear_jump': (1 / W, 1 / W, (W - 1) / W, 1 - W / T, 0.5, 0.0),
  'linear_product': (
    0.0,
    (1 / W) * (1 - 1 / T),
    (W - 1) / W * (1 - (W - 1) / T),
    1 - W / T,
    0.5,
    0.0,
  ),
  'linear_to_floor': (
    0.0,
    1 / W,
    (W - 1) / W,
    1.0,
    0.25 + 0.75 * (T / 2) / (T - W),
    0.25,
  ),
}


def build(name, steps=T, warmup=W, **changes):
  fields = {**FIELDS.get(name, {}), **changes}
  return schedules.BY_NAME[name](steps, learning_rate=PEAK, warmup=warmup, **fields)


@pytest.mark.parametrize('name', schedules.BY_NAME)
def test_rates_are_the_published_lines(name):
  rate = build(name)
  for s, share in zip((0, 1, W - 1, W, T // 2, T), EXPECTED[name]):
    assert float(rate(s)) == pytest.approx(PEAK * share, rel=1e-5, abs=1e-9), s
  assert float(rate(T + 5)) == PEAK * EXPECTED[name][-1]


@pytest.mark.parametrize('name', schedules.BY_NAME)
def test_no_warmup_starts_at_the_peak(name):
  assert float(build(name, warmup=0)(0)) == PEAK


@pytest.mark.parametrize('warmup', [T, T + 1])
def test_a_warmup_that_does_not_fit_is_refused(warmup):
  for name in schedules.BY_NAME:
    with pytest.raises(errors.UserError, match='warmup'):
      build(name, warmup=warmup)


def test_a_schedule_continues_or_restarts_across_phases():
  fields = dict(name='linear_from_start', learning_rate=PEAK, warmup=W)
  one = schedules.for_phase({**fields, 'across_phases': 'continue'}, 600, 400, T)
  again = schedules.for_phase({**fields, 'across_phases': 'restart'}, 600, 400, T)
  assert float(one(800)) == pytest.approx(PEAK * 0.2)
  assert float(again(600)) == 0.0
  assert float(again(650)) == pytest.approx(PEAK * 0.5)
  assert float(again(800)) == pytest.approx(PEAK * 0.5)
  with pytest.raises(errors.UserError, match='across_phases'):
    schedules.for_phase({**fields, 'across_phases': 'stop'}, 0, T, T)
