"""Predicts each token from the output at the token before, in left-to-right rows and in masked
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
  """The loss of `left_to_right` with the parameters of `mlm`: a phase or a run with objective=mlm
  can continue from it.

  Metrics and errors: those of `causal_masked` if all rows are read from left to right.
  """
  return _predicting_next(encoder, ops, 'causal_lm', None)


def causal_masked(
  fields: definitions.CausalMasked, encoder, ops=operations.PLAIN
) -> objective.Objective:
  """causal_share · next + (1 − causal_share) · mlm (Charpentier & Samuel 2024 §2, and code of the
  release for the weights).

  Rows whose feature `causal` is 1 are read from left to right, with their original tokens: `next`
  is the mean negative log-likelihood of each token but the first of a packed segment. The other
  rows are read from both sides: `mlm` is the mean over their masked tokens. Both predict a token
  from the output at the token before.

  Metrics under the total 'tokens': next_loss (nats), next_accuracy; under 'masked': mlm_loss,
  mlm_accuracy.

  Raises UserError: an encoder whose vectors depend on later tokens, or one with a query stream.
  """
  return _predicting_next(encoder, ops, 'causal_masked', fields.causal_share)


def _predicting_next(encoder, ops, name, share):
  """The Objective. share: weight of the loss of causal rows; None if all rows are causal."""
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
    """{total: [B, L] float32: number of times that a token's output predicts the next token}."""
    causal_B1 = causal_of(batch)[:, None]
    follows_BL = left_to_right.predicted(batch)
    weights = {'tokens': follows_BL * causal_B1}
    if share is not None:
      weights['masked'] = follows_BL * (1 - causal_B1) * _masked_next(batch)
    return weights

  def normalizers(batch):
    return {total: jnp.sum(x) for total, x in weights_of(batch).items()}

  def loss(params, batch, normalizers, carry, key, train):
    original_BL, _ = generator.fill(batch, batch['masked_targets'])
    causal_B = causal_of(batch)
    ids_BL = jnp.where(causal_B[:, None] > 0, original_BL, batch['input_ids'])
    row = networks.from_left_to_right({**batch, 'input_ids': ids_BL}, causal_B)
    states_BLD = networks.predict_all_positions(
      encoder, params['encoder'], row, key, ops
    ).states_BPD
    logits_BLV = networks.vocabulary_logits(encoder, params, states_BLD, ops.constrain)
    nll_BL, correct_BL = networks.nll(logits_BLV, left_to_right.following(original_BL))
    names, sums, value = {'tokens': 'next', 'masked': 'mlm'}, {}, 0.0
    shares = {'tokens': 1.0} if share is None else {'tokens': share, 'masked': 1.0 - share}
    for total, weights_BL in weights_of(batch).items():
      loss_name = f'{names[total]}_loss'
      sums[total] = {
        loss_name: jnp.sum(weights_BL * nll_BL),
        f'{names[total]}_accuracy': jnp.sum(weights_BL * correct_BL),
      }
      value += shares[total] * sums[total][loss_name] / objective.at_least_one(normalizers[total])
    return value, (carry, sums)

  reads = (*encoder.reads, *networks.MASKED, *([] if share is None else ['causal']))
  learned = (objective.LEFT_TO_RIGHT, *([] if share is None else [objective.MASKED]))
  (network,) = objective.whole(encoder, head)
  network = network._replace(learned=learned)
  return objective.Objective(init, normalizers, loss, reads, (network,))


def _masked_next(batch):
  """[B, L] float32: number of masked predictions of the token after each one."""
  before_BP = jnp.maximum(batch['masked_positions'] - 1, 0)
  weights_BP = jnp.where(batch['masked_positions'] > 0, batch['masked_weights'], 0.0)
  rows_B1 = jnp.arange(len(before_BP))[:, None]
  return jnp.zeros(batch['input_ids'].shape).at[rows_B1, before_BP].add(weights_BP)
