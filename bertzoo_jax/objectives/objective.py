"""What is learned, as pure functions in the manner of optax: one train step serves all objectives."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp


class Objective(NamedTuple):
  """An objective.

  A loss is a sum over the data divided by a total of the data, so a batch may be split anywhere: totals are taken once
  over the whole global batch, and the gradients of its parts are added, never averaged again.

  Attributes:
    init: key → params, float32.
    totals: batch → {name: float32 scalar}, the denominators, from data only. Take them over the global batch and guard
      with `at_least_one` where dividing.
    carry: batch size → pytree handed from step to step; () where there is none.
    loss: (params, batch, totals, carry, key, train) → (Σ weight·sum/total, (carry, sums)). `batch` may be a part of what
      `totals` saw. sums = {name of a total: {metric: float32 numerator}}; metric = Σ sums / total.
      key: of dropout and sampling; None if train is False.
    reads: names of the batch features it needs.
  """
  init: Callable
  totals: Callable
  carry: Callable
  loss: Callable
  reads: tuple[str, ...]


def at_least_one(total):
  """A total as denominator: a batch with nothing to count has loss 0, not NaN."""
  return jnp.maximum(total, 1.0)
