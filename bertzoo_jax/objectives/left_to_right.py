"""A left-to-right language model. Legend: B batch, L length, D width."""

import jax
import jax.numpy as jnp

from bertzoo_jax.common import errors
from bertzoo_jax.model import operations
from bertzoo_jax.objectives import generator
from bertzoo_jax.objectives import heads
from bertzoo_jax.objectives import networks
from bertzoo_jax.objectives import objective


def left_to_right(encoder, ops=operations.PLAIN) -> objective.Objective:
  """Mean negative log-likelihood of each token given those before it: the left-to-right baseline of
  Devlin et al. 2018 §5.1 ("LTR & No NSP" of Table 5).

  A token sees itself and the tokens before it in its packed segment. Its vector predicts the next
  token of the segment. The first token is not predicted; separators are. The original tokens are
  read, so the masking has no effect.

  Metrics under the total 'tokens': next_loss (nats), next_accuracy.

  Raises UserError: an encoder whose vectors depend on later tokens.
  """
  check(encoder, 'left_to_right')
  head = heads.next_token()

  def init(key):
    return networks.init(encoder, jax.random.split(key), head, predicts=False)

  def normalizers(batch):
    return {'tokens': jnp.sum(predicted(batch))}

  def loss(params, batch, normalizers, carry, key, train):
    original_BL, _ = generator.fill(batch, batch['masked_targets'])
    row = networks.from_left_to_right({**batch, 'input_ids': original_BL})
    hidden_BLD = networks.encode(encoder, params['encoder'], row, key, ops)
    logits_BLV = head.logits(encoder, params, hidden_BLD, row, constrain=ops.constrain)
    nll_BL, correct_BL = networks.nll(logits_BLV, following(original_BL))
    weights_BL = predicted(batch)
    sums = {
      'next_loss': jnp.sum(weights_BL * nll_BL),
      'next_accuracy': jnp.sum(weights_BL * correct_BL),
    }
    value = sums['next_loss'] / objective.at_least_one(normalizers['tokens'])
    return value, (carry, {'tokens': sums})

  reads = (*encoder.reads, *networks.MASKED)
  return objective.Objective(init, normalizers, loss, reads, objective.whole(encoder))


def check(encoder, name):
  """Raises UserError for an encoder whose vectors depend on later tokens."""
  if not encoder.left_to_right:
    convolves = getattr(encoder, 'convolution_size', 0)
    raise errors.UserError(
      f'objective={name} needs an encoder that can hide later tokens, which this one cannot'
      f'{" (a convolution reads both sides)" * bool(convolves)}: take encoder=transformer'
      f'{", or --config.encoder.convolution_size=0" * bool(convolves)}.'
    )


def following(x_BL):
  """[B, L]: the element after each one; 0 after the last."""
  return jnp.pad(x_BL[:, 1:], ((0, 0), (0, 1)))


def predicted(batch):
  """[B, L] float32: 1 if the next token belongs to the same packed segment."""
  packs_BL = batch['segment_ids']
  return ((packs_BL > 0) & (following(packs_BL) == packs_BL)).astype(jnp.float32)
