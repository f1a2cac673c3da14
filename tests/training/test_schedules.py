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

PEAK, W, T, D = 2.0, 100, 1000, 300
# Fields besides learning_rate and warmup.
FIELDS = {
  'linear_to_floor': dict(end_share=0.25),
  'cosine': dict(end_share=0.25),
  'warmup_stable_decay': dict(decay=D, shape='sqrt', end_share=0.25),
}

COSINE = 0.25 + 0.75 * (1 + math.cos(math.pi * (T / 2 - W) / (T - W))) / 2
BEFORE = (W - 1) / W  # the share before the end of warmup
# Rates at s = 0, 1, W − 1, W, T / 2, T (bert_roberta_albert_electra_spanbert facts, §1 and §8.4).
EXPECTED = {
  'linear_from_start': (0.0, 1 / W, BEFORE, 1 - W / T, 0.5, 0.0),
  'linear_after_warmup': (1 / W, 1 / W, BEFORE, 1.0, (T / 2) / (T - W), 0.0),
  'linear_jump': (1 / W, 1 / W, BEFORE, 1 - W / T, 0.5, 0.0),
  'linear_product': (0.0, (1 - 1 / T) / W, BEFORE * (1 - (W - 1) / T), 1 - W / T, 0.5, 0.0),
  'linear_to_floor': (0.0, 1 / W, BEFORE, 1.0, 0.25 + 0.75 * (T / 2) / (T - W), 0.25),
  'constant': (0.0, 1 / W, BEFORE, 1.0, 1.0, 1.0),
  'inverse_sqrt': (0.0, 1 / W, BEFORE, 1.0, (W / (T / 2)) ** 0.5, (W / T) ** 0.5),
  'cosine': (0.0, 1 / W, BEFORE, 1.0, COSINE, 0.25),
  'warmup_stable_decay': (0.0, 1 / W, BEFORE, 1.0, 1.0, 0.25),
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
  assert float(build(name, warmup=0)(0)) == PEAK


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
  ]
  for shape, kind in (('linear', 'linear'), ('cosine', 'cosine'), ('sqrt', '1-sqrt')):
    how = dict(num_training_steps=T, decay_type=kind)
    line = theirs(transformers.get_wsd_schedule, warmup, D, **how)
    cases.append(('warmup_stable_decay', dict(shape=shape, decay=D), line))
  if warmup:
    cases.append(('inverse_sqrt', {}, theirs(transformers.get_inverse_sqrt_schedule, warmup)))
  for name, fields, expected in cases:
    rate = build(name, warmup=warmup, **{**dict.fromkeys(FIELDS.get(name, {}), 0.0), **fields})
    ours = np.asarray(rate(np.arange(T + 1)))
    # fairseq's line starts with the rate of step 1
    first = 1 if name == 'linear_after_warmup' and warmup else 0
    wanted = [expected(max(s, first)) for s in range(T + 1)]
    np.testing.assert_allclose(ours, wanted, rtol=2e-5, atol=1e-6, err_msg=name)


def test_a_warmup_or_a_decay_that_does_not_fit_is_refused_and_none_is_constant():
  stable = 'warmup_stable_decay'
  refusals = [
    (stable, dict(decay=950), r'schedule.decay is 950 of 1000 steps, 100 of them'),
    (stable, dict(shape='square'), 'config.schedule.shape'),
    *((name, dict(warmup=T), 'schedule.warmup is 1000 of 1000 steps: it must') for name in FIELDS),
    *((name, dict(warmup=T + 1), 'schedule.warmup') for name in schedules.BY_NAME),
  ]
  for name, changes, words in refusals:
    with pytest.raises(errors.UserError, match=words):
      build(name, **changes)
  assert float(build(stable, decay=0)(T + 5)) == PEAK


def test_a_schedule_continues_or_restarts_across_phases():
  fields = dict(name='linear_from_start', learning_rate=PEAK, warmup=W)
  phase = lambda how: schedules.for_phase({**fields, 'across_phases': how}, 600, 400, T)
  assert float(phase('continue')(800)) == pytest.approx(PEAK * 0.2)
  again = [float(phase('restart')(s)) for s in (600, 650, 800)]
  assert again == pytest.approx([0.0, PEAK * 0.5, PEAK * 0.5])
  with pytest.raises(errors.UserError, match='across_phases'):
    phase('stop')
