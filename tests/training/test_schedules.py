"""Learning rates against the published lines, at the points where they differ, and against those of
transformers at every step.
"""

import math

import numpy as np
import pytest
import torch
import transformers

from bertzoo_jax.common import errors
from bertzoo_jax.training import schedules
from tests.found import call_part

PEAK, W, T = 2.0, 100, 1000

# Fields besides learning_rate and warmup.
D = 300
FIELDS = {
  'linear_to_floor': dict(end_share=0.25),
  'cosine': dict(end_share=0.25),
  'warmup_stable_decay': dict(decay=D, shape='sqrt', end_share=0.25),
}

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
  'linear_to_floor': (0.0, 1 / W, (W - 1) / W, 1.0, 0.25 + 0.75 * (T / 2) / (T - W), 0.25),
  'constant': (0.0, 1 / W, (W - 1) / W, 1.0, 1.0, 1.0),
  'inverse_sqrt': (0.0, 1 / W, (W - 1) / W, 1.0, (W / (T / 2)) ** 0.5, (W / T) ** 0.5),
  'cosine': (
    0.0,
    1 / W,
    (W - 1) / W,
    1.0,
    0.25 + 0.75 * (1 + math.cos(math.pi * (T / 2 - W) / (T - W))) / 2,
    0.25,
  ),
  'warmup_stable_decay': (0.0, 1 / W, (W - 1) / W, 1.0, 1.0, 0.25),
}


def build(name, steps=T, warmup=W, **changes):
  fields = {**FIELDS.get(name, {}), **changes}
  return call_part(schedules, name, steps, learning_rate=PEAK, warmup=warmup, **fields)


@pytest.mark.parametrize('name', schedules.BY_NAME)
def test_rates_are_the_published_lines(name):
  rate = build(name)
  for s, share in zip((0, 1, W - 1, W, T // 2, T), EXPECTED[name]):
    assert float(rate(s)) == pytest.approx(PEAK * share, rel=1e-5, abs=1e-9), s
  if name != 'inverse_sqrt':
    assert float(rate(T + 5)) == PEAK * EXPECTED[name][-1]


def theirs(make, *args, **kwargs):
  """The learning rate of each step by a schedule of transformers."""
  optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
  [share] = make(optimizer, *args, **kwargs).lr_lambdas
  return lambda s: PEAK * share(s)


@pytest.mark.parametrize('warmup', [W, 0])
def test_every_step_has_the_rate_that_transformers_gives_it(warmup):
  cases = [
    ('constant', {}, theirs(transformers.get_constant_schedule_with_warmup, warmup)),
    ('cosine', {}, theirs(transformers.get_cosine_schedule_with_warmup, warmup, T)),
    ('linear_after_warmup', {}, theirs(transformers.get_linear_schedule_with_warmup, warmup, T)),
  ] + [
    (
      'warmup_stable_decay',
      dict(shape=shape, decay=D),
      theirs(transformers.get_wsd_schedule, warmup, D, num_training_steps=T, decay_type=kind),
    )
    for shape, kind in (('linear', 'linear'), ('cosine', 'cosine'), ('sqrt', '1-sqrt'))
  ]
  if warmup:
    cases.append(('inverse_sqrt', {}, theirs(transformers.get_inverse_sqrt_schedule, warmup)))
  for name, fields, expected in cases:
    rate = build(name, warmup=warmup, **{**dict.fromkeys(FIELDS.get(name, {}), 0.0), **fields})
    ours = np.asarray(rate(np.arange(T + 1)))
    # fairseq's line starts with the rate of step 1
    first = 1 if name == 'linear_after_warmup' and warmup else 0
    wanted = [expected(max(s, first)) for s in range(T + 1)]
    np.testing.assert_allclose(ours, wanted, rtol=2e-5, atol=1e-6, err_msg=name)


def test_a_decay_that_does_not_fit_is_refused_and_none_is_constant():
  with pytest.raises(errors.UserError, match=r'schedule.decay is 950 of 1000 steps, 100 of them'):
    build('warmup_stable_decay', decay=950)
  with pytest.raises(errors.UserError, match=r'schedule.warmup is 1000 of 1000 steps: it must be'):
    build('warmup_stable_decay', warmup=T)
  with pytest.raises(errors.UserError, match='config.schedule.shape'):
    build('warmup_stable_decay', shape='square')
  assert float(build('warmup_stable_decay', decay=0)(T + 5)) == PEAK


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
