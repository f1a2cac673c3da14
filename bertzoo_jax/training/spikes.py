"""Spikes: losses and gradient norms far above their recent values. The train step counts them."""

import jax.numpy as jnp

# The first steps of a phase are never spikes.
WARMUP = 100
# Time constant of the running means, in steps. It is short because losses fall: a long one would
# count the fall as variance.
MEMORY = 30
# Both must hold for a spike: standard deviations above the running mean of the logarithm,
DEVIATIONS = 6.0
# and a multiple of the usual value: (loss, gradient norm).
LEAST = (1.2, 3.0)
_SMALLEST = 1e-30  # lower limit, so that a loss of 0 has a logarithm


def fresh() -> dict:
  """The statistics before the first step: {'seen': int32, finite steps of the phase; 'mean',
  'variance': float32 [2], running, of log loss and log gradient norm; 'total': int32, spikes}.
  """
  return {
    'seen': jnp.zeros([], jnp.int32),
    'mean': jnp.zeros(2, jnp.float32),
    'variance': jnp.zeros(2, jnp.float32),
    'total': jnp.zeros([], jnp.int32),
  }


def entered(statistics: dict) -> dict:
  """The statistics at the start of another phase: fresh, but for the run's count of spikes."""
  return {**fresh(), 'total': statistics['total']}


def update(statistics: dict, loss, norm, counts) -> tuple:
  """Adds a step. Returns (statistics, whether the step is a spike).

  The test: x is the logarithm of the loss, or of the gradient norm. Each has a running mean m
  and a running variance v. They are exponential, with a time constant of MEMORY steps, and plain
  averages over the first steps of a phase. A step is a spike if, after the first WARMUP steps of
  its phase,

      x > m + max(DEVIATIONS · √v, log LEAST)

  for either of the two. Such an x enters m and v as the right-hand side: one spike hardly moves
  them, and a level that lasts becomes the usual one after some ten steps. A fall is never a spike.
  The first steps of a run and of each phase, where losses change for good reasons, cannot be one.
  The statistics are part of the train state, so a resumed run finds the same spikes.

  counts: bool; False leaves the statistics as they are (numbers that are not finite).
  """
  mean, variance = statistics['mean'], statistics['variance']
  x = jnp.log(jnp.maximum(jnp.stack([loss, norm]).astype(jnp.float32), _SMALLEST))
  limit = mean + jnp.maximum(DEVIATIONS * jnp.sqrt(variance), jnp.log(jnp.float32(LEAST)))
  known = statistics['seen'] >= WARMUP
  spike = counts & known & jnp.any(x > limit)
  x = jnp.where(known, jnp.minimum(x, limit), x)
  weight = jnp.maximum(1.0 / (statistics['seen'] + 1), 1.0 / MEMORY)
  delta = x - mean
  keep = lambda new, old: jnp.where(counts, new, old)
  return {
    'seen': statistics['seen'] + counts,
    'mean': keep(mean + weight * delta, mean),
    'variance': keep((1 - weight) * (variance + weight * delta**2), variance),
    'total': statistics['total'] + spike,
  }, spike
