"""Fine-tuning: a scorer, which is a head over an encoder with its loss, as an Objective."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from bertzoo_jax.model import operations
from bertzoo_jax.objectives import networks
from bertzoo_jax.objectives import objective


class Scorer(NamedTuple):
  """What a task asks of an encoder.

  Attributes:
    init: key → parameters of the heads, {name of a head: arrays}.
    logits: (params, hidden_BLD, batch, key) → {name of an output: float32 array}. params are the
      network's, hidden_BLD is what `networks.encode` returned, key is dropout's key or None.
    normalizers: batch → {name of a total: float32 scalar}, see objective.Objective.
    sums: (logits, batch) → {name of a total: {metric: float32 numerator}}.
    loss: (sums, normalizers) → float32 scalar.
    reads: features of the batch that it needs beside those of the encoder.
    rows: batch → the batch of rows that the encoder reads.
    units: batch → weights of the units of the loss: [B] of rows, [B, L] of tokens. sift.py takes a
      mean over them.
    forms: {name of an output: classes | labels | number}, for sift.py: the last axis has the logits
      of one distribution, labels that are each true or false, or numbers.
  """

  init: Callable
  logits: Callable
  normalizers: Callable
  sums: Callable
  loss: Callable
  reads: tuple[str, ...]
  rows: Callable = lambda batch: batch
  units: Callable | None = None
  forms: dict[str, str] = {}


def objective_of(encoder, scorer: Scorer, ops=operations.PLAIN) -> objective.Objective:
  """The Objective that trains an encoder and the heads of a scorer."""

  def init(key):
    encoder_key, head_key = jax.random.split(key)
    return {
      'encoder': networks.init_encoder(encoder, encoder_key, predicts=False),
      **scorer.init(head_key),
    }

  def loss(params, batch, normalizers, carry, key, train):
    rows = scorer.rows(batch)
    hidden_BLD = networks.encode(encoder, params['encoder'], rows, key, ops)
    sums = scorer.sums(scorer.logits(params, hidden_BLD, batch, key), batch)
    return scorer.loss(sums, normalizers), (carry, sums)

  return objective.Objective(
    init,
    scorer.normalizers,
    lambda batch_size: (),
    loss,
    (*encoder.reads, *scorer.reads),
    (objective.Network('', encoder, lambda params: params),),
  )


def mean(total: str, metric: str) -> Callable:
  """The `loss` of a scorer that minimises the mean of one metric under one total."""
  return lambda sums, normalizers: sums[total][metric] / objective.at_least_one(normalizers[total])
