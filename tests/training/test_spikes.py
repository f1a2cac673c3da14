"""Spikes of loss or gradient norm: which steps count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from bertzoo_jax.training import phase_run as phase_runs
from bertzoo_jax.training import spikes

STEPS = 400


def noisy(level=2.0, deviation=0.05, seed=0):
  """(losses, norms) that fall at first and are noisy throughout."""
  draw = np.random.default_rng(seed)
  falling = level + 3 * np.exp(-np.arange(STEPS) / 30)
  return (
    falling * np.exp(deviation * draw.standard_normal(STEPS)),
    np.exp(0.3 * draw.standard_normal(STEPS)),
  )


def found(losses, norms, counts=None, start=None):
  """(numbers of the steps that are spikes, the statistics after them)."""
  counts = np.ones(len(losses), bool) if counts is None else counts
  statistics, flags = jax.jit(
    lambda start, turns: jax.lax.scan(lambda s, x: spikes.update(s, *x), start, turns)
  )(
    spikes.fresh() if start is None else start,
    (jnp.float32(losses), jnp.float32(norms), jnp.array(counts)),
  )
  return np.flatnonzero(flags).tolist(), statistics


@pytest.mark.parametrize('seed', range(5))
@pytest.mark.parametrize('deviation', [0.003, 0.05, 0.2])
def test_noise_and_a_falling_loss_are_no_spikes(seed, deviation):
  assert found(*noisy(deviation=deviation, seed=seed))[0] == []


@pytest.mark.parametrize('which, times', [(0, 1.6), (0, 1e4), (1, 10.0), (1, 1e4)])
def test_a_step_far_above_the_usual_is_one_spike_and_the_usual_stays(which, times):
  numbers = noisy()
  numbers[which][[250, 330]] *= times
  steps, statistics = found(*numbers)
  assert steps == [250, 330] and int(statistics['total']) == 2
  assert float(jnp.exp(statistics['mean'][0])) == pytest.approx(2.0, rel=0.1)


def test_the_first_steps_of_a_run_and_of_a_phase_are_no_spikes():
  losses, norms = noisy()
  losses[: spikes.WARMUP : 7] *= 100
  steps, before = found(losses, norms)
  assert steps == []
  after, statistics = found(50 * losses, norms, start=spikes.entered(before))
  assert after == [] and int(statistics['total']) == 0


def test_a_level_that_lasts_is_soon_the_usual_one():
  losses, norms = noisy()
  losses[200:] *= 3
  steps, _ = found(losses, norms)
  assert steps[0] == 200 and steps[-1] < 230


def test_numbers_that_are_not_finite_are_not_counted_here():
  losses, norms = noisy()
  counts = np.ones(STEPS, bool)
  losses[300], counts[300] = np.nan, False
  norms[310], counts[310] = np.inf, False
  losses[320] *= 10
  steps, statistics = found(losses, norms, counts)
  assert steps == [320] and np.isfinite(statistics['mean']).all()
  assert int(statistics['seen']) == STEPS - 2


def test_the_train_step_finds_a_gradient_scaled_by_ten_thousand(monkeypatch):
  monkeypatch.setattr(spikes, 'WARMUP', 5)
  phase_run = toys.phase_run(0, 20, objective=toys.amplified(toys.toy()), poison=(9,), weight=1e4)
  before, _ = toys.run(phase_run, 9)
  assert int(before.spikes['total']) == 0
  after, _ = toys.run(phase_run, 4, before)
  assert int(after.spikes['total']) == 1
  # another phase begins to count steps afresh, and goes on with the spikes
  entered = phase_runs.transition(after, phase_run)
  assert (int(entered.spikes['total']), int(entered.spikes['seen'])) == (1, 0)
