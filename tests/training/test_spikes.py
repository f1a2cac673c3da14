"""Spikes of loss or gradient norm: which steps count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertzoo_jax.training import spikes

STEPS = 400


def noisy(deviation=0.05, seed=0):
  """(losses, norms) that fall at first and are noisy throughout."""
  draw = np.random.default_rng(seed)
  falling = 2.0 + 3 * np.exp(-np.arange(STEPS) / 30)
  losses = falling * np.exp(deviation * draw.standard_normal(STEPS))
  return losses, np.exp(0.3 * draw.standard_normal(STEPS))


@jax.jit
def scanned(start, turns):
  return jax.lax.scan(lambda statistics, turn: spikes.update(statistics, *turn), start, turns)


def counted(losses, norms, counts=None, start=None):
  """(numbers of the steps that are spikes, the statistics after them)."""
  counts = np.ones(STEPS, bool) if counts is None else counts
  turns = jnp.float32(losses), jnp.float32(norms), jnp.array(counts)
  statistics, flags = scanned(spikes.fresh() if start is None else start, turns)
  return np.flatnonzero(flags).tolist(), statistics


@pytest.mark.parametrize('deviation', [0.003, 0.05, 0.2])
def test_noise_and_a_falling_loss_are_no_spikes(deviation):
  for seed in range(5):
    assert counted(*noisy(deviation, seed))[0] == [], seed


@pytest.mark.parametrize('which, times', [(0, 1.6), (0, 1e4), (1, 10.0), (1, 1e4)])
def test_a_step_far_above_the_usual_is_one_spike_and_the_usual_stays(which, times):
  numbers = noisy()
  numbers[which][[250, 330]] *= times
  steps, statistics = counted(*numbers)
  assert steps == [250, 330] and int(statistics['total']) == 2
  assert float(jnp.exp(statistics['mean'][0])) == pytest.approx(2.0, rel=0.1)


def test_the_first_steps_of_a_run_and_of_a_phase_are_no_spikes():
  losses, norms = noisy()
  losses[: spikes.WARMUP : 7] *= 100
  steps, before = counted(losses, norms)
  assert steps == []
  after, statistics = counted(50 * losses, norms, start=spikes.entered(before))
  assert after == [] and int(statistics['total']) == 0
  # a phase counts steps from 0 and keeps the spikes
  entered = spikes.entered({**before, 'total': jnp.int32(3)})
  assert (int(entered['total']), int(entered['seen'])) == (3, 0)


def test_a_level_that_lasts_is_soon_the_usual_one():
  losses, norms = noisy()
  losses[200:] *= 3
  steps, _ = counted(losses, norms)
  assert steps[0] == 200 and steps[-1] < 230


def test_numbers_that_are_not_finite_are_not_counted_here():
  losses, norms = noisy()
  counts = np.ones(STEPS, bool)
  losses[300], counts[300] = np.nan, False
  norms[310], counts[310] = np.inf, False
  losses[320] *= 10
  steps, statistics = counted(losses, norms, counts)
  assert steps == [320] and np.isfinite(statistics['mean']).all()
  assert int(statistics['seen']) == STEPS - 2
