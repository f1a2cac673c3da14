"""Masked language modelling, also with a pair loss. B batch, L length, P predictions, D width."""

import jax

from bertzoo_jax.model import operations
from bertzoo_jax.objectives import heads
from bertzoo_jax.objectives import networks
from bertzoo_jax.objectives import objective
from bertzoo_jax.parts import objectives as definitions


def mlm(encoder, ops=operations.PLAIN) -> objective.Objective:
  """Mean negative log-likelihood of the masked tokens (Devlin et al. 2018 §3.1, task 1).

  Metrics under the total 'masked': mlm_loss (nats), mlm_accuracy.
  """
  return predicting(encoder, ops)


def mlm_pair(fields: definitions.MlmPair, encoder, ops=operations.PLAIN) -> objective.Objective:
  """mlm + pair_weight · pair, where pair is the mean negative log-likelihood of pair_labels (Devlin
  et al. 2018 A.2).

  Metrics: see `mlm`, and under the total 'pairs': pair_loss (nats), pair_accuracy.
  """
  return predicting(encoder, ops, fields.pair_weight)


def predicting(
  encoder, ops, pair_weight=None, transform=True, features=(), **more
) -> objective.Objective:
  """An objective that predicts the masked tokens.

  encoder: linen module. ops: operations that depend on the devices. pair_weight: weight of the pair
  loss; None for no pair head. transform: see heads.vocabulary. features: further batch features
  that the encoder's `predictions` reads. more: fields of Objective.
  """
  used = (heads.vocabulary(transform=transform), *([] if pair_weight is None else [heads.pair()]))

  def init(key):
    return networks.init(encoder, jax.random.split(key, 1 + len(used)), *used, also=features)

  def loss(params, batch, normalizers, carry, key, train):
    # Given an order, the encoder would compute its query stream.
    unordered = {name: x for name, x in batch.items() if name != 'order'}
    batch = {**unordered, **{name: batch[name] for name in features}}
    outputs = networks.predictions(encoder, params['encoder'], batch, key, ops, carry)
    logits_BPV = networks.vocabulary_logits(encoder, params, outputs.states_BPD, ops.constrain)
    sums = {'masked': networks.masked_sums(logits_BPV, batch)}
    value = sums['masked']['mlm_loss'] / objective.at_least_one(normalizers['masked'])
    if pair_weight is not None:
      sums['pairs'] = networks.pair_sums(encoder, params, outputs.hidden_BLD, batch)
      pairs = objective.at_least_one(normalizers['pairs'])
      value += pair_weight * sums['pairs']['pair_loss'] / pairs
    return value, (outputs.memory, sums)

  pairs, totals = ('pair_labels',), networks.totals('masked', 'pairs')
  if pair_weight is None:
    pairs, totals = (), networks.totals('masked')
  reads = (*encoder.reads, *networks.MASKED, *features, *pairs)
  return objective.Objective(init, totals, loss, reads, objective.whole(encoder), **more)
