"""Fine-tuning: makes an Objective of a Scorer, which is a head over an encoder, and its loss."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from bertzoo_jax.model import operations
from bertzoo_jax.objectives import heads
from bertzoo_jax.objectives import networks
from bertzoo_jax.objectives import objective


class Scorer(NamedTuple):
  """The head and the loss of a task, over an encoder.

  Each unit of its loss has a weight in the batch's `label_weights`: a row, [B], or a token, [B, L].
  The loss is a mean over the units of the whole batch.
  """

  head: heads.Head  # over the encoder
  total: str  # name of the total, which counts the units of a batch
  measures: Callable  # (outputs, batch) → {metric: float32, one number per unit}
  minimised: dict[str, float]  # {metric: its weight in the loss}
  # {name of an output: classes | labels | number}, for sift.py: the last axis has the logits of one
  # distribution, of independent labels, or numbers
  forms: dict[str, str]
  # batch features that the scorer needs beside those of the encoder
  reads: tuple[str, ...] = ('labels', 'label_weights')
  # (params of the network, hidden_BLD of the rows that the encoder read, batch, dropout key or
  # None) → {name: float32 array}; None: the outputs of the head in `networks.predict`
  outputs: Callable | None = None
  # batch → weight of each unit, at least 1: all metrics become weighted means. None: equal weights.
  unit_weights: Callable | None = None

  def scores(self, encoder, params, hidden_BLD, batch, key) -> dict[str, jax.Array]:
    """{name: output}, see the attribute `outputs`."""
    if self.outputs is not None:
      return self.outputs(params, hidden_BLD, batch, key)
    return self.head.named_outputs(self.head.logits(encoder, params, hidden_BLD, batch, key), batch)

  def normalizers(self, batch) -> dict[str, jax.Array]:
    """See objective.Objective."""
    return {self.total: jnp.sum(self._weights(batch))}

  def sums(self, outputs, batch) -> dict[str, dict[str, jax.Array]]:
    """{total: {metric: float32 numerator}}."""
    values, weights = self.measures(outputs, batch), self._weights(batch)
    return {self.total: {name: jnp.sum(weights * x) for name, x in values.items()}}

  def _weights(self, batch):
    weights = batch['label_weights']
    return weights if self.unit_weights is None else weights * self.unit_weights(batch)

  def loss(self, sums, normalizers) -> jax.Array:
    """The loss, a scalar."""
    value = sum(weight * sums[self.total][name] for name, weight in self.minimised.items())
    return value / objective.at_least_one(normalizers[self.total])


def objective_of(encoder, scorer: Scorer, ops=operations.PLAIN) -> objective.Objective:
  """The Objective that trains an encoder and the head of a scorer."""

  def init(key):
    return networks.init(encoder, jax.random.split(key), scorer.head, predicts=False)

  def loss(params, batch, normalizers, carry, key, train):
    hidden_BLD = networks.encode(encoder, params['encoder'], heads.rows_of_options(batch), key, ops)
    sums = scorer.sums(scorer.scores(encoder, params, hidden_BLD, batch, key), batch)
    return scorer.loss(sums, normalizers), (carry, sums)

  reads = (*encoder.reads, *scorer.reads)
  return objective.Objective(init, scorer.normalizers, loss, reads, objective.whole(encoder))
