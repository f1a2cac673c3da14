"""What is learned, as pure functions in the manner of optax: one train step serves all
objectives.
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax.numpy as jnp


class Network(NamedTuple):
  """A network that an objective trains, as all others see it: what it costs, how it is exported.

  Attributes:
    name: '' where there is one, else what tells it from the others.
    encoder: linen module.
    of: params → its parameters, {'encoder': …, 'mlm_head': …}, with the heads it has.
    predicts_all_positions: whether its vocabulary head sees all positions, not the predictions
      alone.
    trained: whether it learns.
  """

  name: str
  encoder: Any
  of: Callable
  predicts_all_positions: bool = False
  trained: bool = True


class Objective(NamedTuple):
  """An objective.

  A loss is a sum over the data divided by a total of the data, so a batch may be split anywhere:
  normalizers are taken once over the whole global batch, and the gradients of its parts are added,
  never averaged again.

  Attributes:
    init: key → params, float32.
    normalizers: batch → {name: float32 scalar}, the denominators, from data only. Take them over
      the global batch and guard with `at_least_one` where dividing.
    carry: batch size → pytree handed from step to step; () where there is none.
    loss: (params, batch, normalizers, carry, key, train) → (Σ weight·sum/total, (carry, sums)).
      `batch` may be a part of what `normalizers` saw. sums = {name of a total: {metric: float32
      numerator, of any shape}}; metric = Σ sums / total.
      key: of dropout, for `networks.encode`, the same in all microbatches; None if train is False.
      Rows have keys of their own in `row_keys` of the batch, which the step adds: what is dropped
      depends on both, what is sampled on those alone.
    reads: names of the batch features it needs.
    networks: the networks it trains, for those who look from outside.
    finalize_metrics: {metric: mean} → {metric: scalar}, what is made of means that are not yet
      metrics.
    frozen: regexes of the paths of parameters that it does not update.
    inherits: ordered (regex, replacement): a parameter that a phase adds starts as the one whose
      path the first matching regex makes of its own, if the phase before has it.
  """

  init: Callable
  normalizers: Callable
  carry: Callable
  loss: Callable
  reads: tuple[str, ...]
  networks: tuple[Network, ...] = ()
  finalize_metrics: Callable = lambda means: means
  frozen: tuple[str, ...] = ()
  inherits: tuple[tuple[str, str], ...] = ()


def at_least_one(total):
  """A total as denominator: a batch with nothing to count has loss 0, not NaN."""
  return jnp.maximum(total, 1.0)
