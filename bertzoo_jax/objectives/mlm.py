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

  def init(key):
    encoder_key, head_key = jax.random.split(key)
    return {
      'encoder': networks.init_encoder(encoder, encoder_key),
      'mlm_head': heads.vocabulary().init(encoder, head_key),
    }

  def normalizers(batch):
    return {'masked': networks.masked_normalizer(batch)}

  def loss(params, batch, normalizers, carry, key, train):
    states_BPD, _, _ = networks.predictions(encoder, params['encoder'], batch, key, ops)
    sums = _mlm_sums(encoder, params, states_BPD, batch, ops)
    return sums['mlm_loss'] / objective.at_least_one(normalizers['masked']), (
      carry,
      {'masked': sums},
    )

  return objective.Objective(
    init, normalizers, lambda batch_size: (), loss, encoder.reads + networks.MASKED, _whole(encoder)
  )


def mlm_pair(encoder, ops=operations.PLAIN, *, pair_weight) -> objective.Objective:
  """mlm + pair_weight · pair, where pair is the mean negative log-likelihood of pair_labels (Devlin
  et al. 2018 A.2).

  Metrics: see `mlm`, and under the total 'pairs': pair_loss (nats), pair_accuracy.
  """

  def init(key):
    encoder_key, head_key, pair_key = jax.random.split(key, 3)
    return {
      'encoder': networks.init_encoder(encoder, encoder_key),
      'mlm_head': heads.vocabulary().init(encoder, head_key),
      'pair_head': heads.pair().init(encoder, pair_key),
    }

  def normalizers(batch):
    return {
      'masked': networks.masked_normalizer(batch),
      'pairs': networks.pair_normalizer(batch),
    }

  def loss(params, batch, normalizers, carry, key, train):
    states_BPD, hidden_BLD, _ = networks.predictions(encoder, params['encoder'], batch, key, ops)
    masked = _mlm_sums(encoder, params, states_BPD, batch, ops)
    pairs = networks.pair_sums(encoder, params, hidden_BLD, batch)
    value = masked['mlm_loss'] / objective.at_least_one(
      normalizers['masked']
    ) + pair_weight * pairs['pair_loss'] / objective.at_least_one(normalizers['pairs'])
    return value, (carry, {'masked': masked, 'pairs': pairs})

  return objective.Objective(
    init,
    normalizers,
    lambda batch_size: (),
    loss,
    encoder.reads + networks.MASKED + ('pair_labels',),
    _whole(encoder),
  )


def _whole(encoder):
  return (objective.Network('', encoder, lambda params: params),)


def _mlm_sums(encoder, params, states_BPD, batch, ops):
  logits_BPV = networks.vocabulary_logits(encoder, params, states_BPD, ops.constrain)
  return networks.masked_sums(logits_BPV, batch)
