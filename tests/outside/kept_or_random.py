"""An objective from outside the package: MLM, and at predicted tokens that are shown without a mask
whether the shown token is the original one. `tests.outside.kept_or_random:kept_or_random` in a
config.
"""

from typing import Annotated

import jax
import jax.numpy as jnp

from bertzoo_jax.model import layers
from bertzoo_jax.model import operations
from bertzoo_jax.objectives import heads
from bertzoo_jax.objectives import mlm
from bertzoo_jax.objectives import networks
from bertzoo_jax.objectives import objective
from bertzoo_jax.parts import fields


def kept_or_random(
  encoder,
  ops=operations.PLAIN,
  *,
  mask_id: Annotated[fields.COUNT_OR_0, 'the id of the mask token.'],
  weight: Annotated[fields.AT_LEAST_0, 'of the second loss.'] = 1.0,
):
  """mlm + weight · binary cross-entropy.

  Metrics: those of `mlm`, and under the total 'shown': kept_loss (nats), kept_accuracy.
  """
  plain = mlm.mlm(encoder, ops)
  fields = dict(features=(1,), use_bias=True)
  head = heads.Head('kept_head', layers.Dense, 'predictions', fields=fields)

  def init(key):
    return {**plain.init(key), 'kept_head': head.init(encoder, jax.random.fold_in(key, 1))}

  def shown(batch):
    """(tokens at the predictions, weights of those that are shown without a mask)."""
    tokens_BP = jnp.take_along_axis(batch['input_ids'], batch['masked_positions'], axis=1)
    return tokens_BP, batch['masked_weights'] * (tokens_BP != mask_id)

  def normalizers(batch):
    return {**plain.normalizers(batch), 'shown': jnp.sum(shown(batch)[1])}

  def loss(params, batch, normalizers, carry, key, train):
    states_BPD = networks.predictions(encoder, params['encoder'], batch, key, ops).states_BPD
    logits_BPV = networks.vocabulary_logits(encoder, params, states_BPD, ops.constrain)
    masked = networks.masked_sums(logits_BPV, batch)
    tokens_BP, weights_BP = shown(batch)
    logits_BP1 = head.logits(encoder, params, states_BPD, batch)
    logits_BP = logits_BP1[..., 0].astype(jnp.float32)
    kept_BP = tokens_BP == batch['masked_targets']
    nll_BP = jax.nn.softplus(jnp.where(kept_BP, -logits_BP, logits_BP))
    sums = {
      'kept_loss': jnp.sum(weights_BP * nll_BP),
      'kept_accuracy': jnp.sum(weights_BP * ((logits_BP > 0) == kept_BP)),
    }
    totals = {name: objective.at_least_one(total) for name, total in normalizers.items()}
    value = masked['mlm_loss'] / totals['masked'] + weight * sums['kept_loss'] / totals['shown']
    return value, (carry, {'masked': masked, 'shown': sums})

  own = dict(networks=objective.whole(encoder, head), axes=((r'kept_head/', {}),))
  return plain._replace(init=init, normalizers=normalizers, loss=loss, **own)
