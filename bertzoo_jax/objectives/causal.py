"""Predicting each token by the output before it, in rows read from left to right and in masked
rows, with the parameters of `mlm`. Legend: B batch, L length, D width, V vocabulary.
"""

import jax
import jax.numpy as jnp

from bertzoo_jax.common import errors
from bertzoo_jax.model import operations
from bertzoo_jax.objectives import generator
from bertzoo_jax.objectives import heads
from bertzoo_jax.objectives import left_to_right
from bertzoo_jax.objectives import networks
from bertzoo_jax.objectives import objective
from bertzoo_jax.parts import objectives as definitions


def causal_lm(encoder, ops=operations.PLAIN) -> objective.Objective:
  """The loss of `left_to_right`, by the states and the head that `mlm` reads. So a phase or a run
  with objective=mlm continues with all parameters.

  Metrics and errors: see `causal_masked`, of rows that are all read from left to right.
  """
  return _predicting_next(encoder, ops, 'causal_lm', None)


def causal_masked(
  fields: definitions.CausalMasked, encoder, ops=operations.PLAIN
) -> objective.Objective:
  """causal_share · next + (1 − causal_share) · mlm (Charpentier & Samuel 2024 §2, and code of the
  release for the weights).

  Rows whose feature `causal` is 1 are read from left to right, with their masked tokens put back:
  next is the mean negative log-likelihood of each token that follows one of its packed segment. The
  other rows are read from both sides: mlm is that of their masked tokens. Both are predicted by the
  output at the token before.

  Metrics under the total 'tokens': next_loss (nats), next_accuracy; under 'masked': mlm_loss,
  mlm_accuracy.

  Raises:
    UserError: an encoder whose vectors depend on later tokens, or one with a query stream.
  """
  return _predicting_next(encoder, ops, 'causal_masked', fields.causal_share)


def _predicting_next(encoder, ops, name, share):
  """share: of the loss of causal rows; None if all rows are."""
  left_to_right.check(encoder, name)
  if encoder.query_stream:
    raise errors.UserError(
      f'objective={name} needs an encoder whose outputs predict the token after their own; a query '
      'stream predicts its own: take objective=permutation_lm,masking=in_order, or another encoder.'
    )
  head = heads.vocabulary(reads='tokens')

  def init(key):
    return networks.init(encoder, jax.random.split(key), head)

  def causal_of(batch):
    rows = len(batch['input_ids'])
    return jnp.ones(rows, jnp.int32) if share is None else jnp.asarray(batch['causal'])

  def weights_of(batch):
    """{total: [B, L] float32: how often the output at a token predicts the next one}."""
    causal_B1 = causal_of(batch)[:, None]
    follows_BL = left_to_right.predicted(batch)
    found = {'tokens': follows_BL * causal_B1}
    if share is not None:
      found['masked'] = follows_BL * (1 - causal_B1) * _masked_next(batch)
    return found

  def normalizers(batch):
    return {total: jnp.sum(x) for total, x in weights_of(batch).items()}

  def loss(params, batch, normalizers, carry, key, train):
    original_BL, _ = generator.fill(batch, batch['masked_targets'])
    causal_B = causal_of(batch)
    ids_BL = jnp.where(causal_B[:, None] > 0, original_BL, batch['input_ids'])
    row = networks.from_left_to_right({**batch, 'input_ids': ids_BL}, causal_B)
    states_BLD = networks.everywhere(encoder, params['encoder'], row, key, ops).states_BPD
    logits_BLV = networks.vocabulary_logits(encoder, params, states_BLD, ops.constrain)
    nll_BL, correct_BL = networks.nll(logits_BLV, left_to_right.following(original_BL))
    names, sums, value = {'tokens': 'next', 'masked': 'mlm'}, {}, 0.0
    shares = {'tokens': 1.0} if share is None else {'tokens': share, 'masked': 1.0 - share}
    for total, weights_BL in weights_of(batch).items():
      own = f'{names[total]}_loss'
      sums[total] = {
        own: jnp.sum(weights_BL * nll_BL),
        f'{names[total]}_accuracy': jnp.sum(weights_BL * correct_BL),
      }
      value += shares[total] * sums[total][own] / objective.at_least_one(normalizers[total])
    return value, (carry, sums)

  reads = (*encoder.reads, *networks.MASKED, *([] if share is None else ['causal']))
  learned = (objective.LEFT_TO_RIGHT, *([] if share is None else [objective.MASKED]))
  (network,) = objective.whole(encoder, head)
  network = network._replace(learned=learned)
  return objective.Objective(init, normalizers, loss, reads, (network,))


def _masked_next(batch):
  """[B, L] float32: how many predictions are of the token after each one."""
  before_BP = jnp.maximum(batch['masked_positions'] - 1, 0)
  weights_BP = jnp.where(batch['masked_positions'] > 0, batch['masked_weights'], 0.0)
  rows_B1 = jnp.arange(len(before_BP))[:, None]
  return jnp.zeros(batch['input_ids'].shape).at[rows_B1, before_BP].add(weights_BP)
