"""Masked language modelling, alone and with a pair loss. Legend: B batch, L length, P predictions,
D width.
"""

import jax

from bertzoo_jax.model import operations
from bertzoo_jax.objectives import heads
from bertzoo_jax.objectives import networks
from bertzoo_jax.objectives import objective


def mlm(encoder, ops=operations.PLAIN) -> objective.Objective:
  """Mean negative log-likelihood of the masked tokens (Devlin et al. 2018 §3.1, task 1).

  Metrics under the total 'masked': mlm_loss (nats), mlm_accuracy.
  """

  def normalizers(batch):
    return {'masked': networks.masked_normalizer(batch)}

  def loss(params, batch, normalizers, carry, key, train):
    states_BPD, _, _ = networks.predictions(encoder, params['encoder'], batch, key, ops)
    sums = _mlm_sums(encoder, params, states_BPD, batch, ops)
    value = sums['mlm_loss'] / objective.at_least_one(normalizers['masked'])
    return value, (carry, {'masked': sums})

  init = lambda key: networks.init(encoder, jax.random.split(key), heads.vocabulary())
  reads = encoder.reads + networks.MASKED
  return objective.Objective(init, normalizers, loss, reads, objective.whole(encoder))


def mlm_pair(encoder, ops=operations.PLAIN, *, pair_weight) -> objective.Objective:
  """mlm + pair_weight · pair, where pair is the mean negative log-likelihood of pair_labels (Devlin
  et al. 2018 A.2).

  Metrics: see `mlm`, and under the total 'pairs': pair_loss (nats), pair_accuracy.
  """

  def normalizers(batch):
    pairs = networks.pair_normalizer(batch)
    return {'masked': networks.masked_normalizer(batch), 'pairs': pairs}

  def loss(params, batch, normalizers, carry, key, train):
    states_BPD, hidden_BLD, _ = networks.predictions(encoder, params['encoder'], batch, key, ops)
    masked = _mlm_sums(encoder, params, states_BPD, batch, ops)
    pairs = networks.pair_sums(encoder, params, hidden_BLD, batch)
    totals = {name: objective.at_least_one(total) for name, total in normalizers.items()}
    value = masked['mlm_loss'] / totals['masked']
    value += pair_weight * pairs['pair_loss'] / totals['pairs']
    return value, (carry, {'masked': masked, 'pairs': pairs})

  def init(key):
    return networks.init(encoder, jax.random.split(key, 3), heads.vocabulary(), heads.pair())

  reads = (*encoder.reads, *networks.MASKED, 'pair_labels')
  return objective.Objective(init, normalizers, loss, reads, objective.whole(encoder))


def _mlm_sums(encoder, params, states_BPD, batch, ops):
  logits_BPV = networks.vocabulary_logits(encoder, params, states_BPD, ops.constrain)
  return networks.masked_sums(logits_BPV, batch)
