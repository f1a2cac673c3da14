"""mlm with the span boundary objective. B batch, L length, P predictions, D width."""

import jax
import jax.numpy as jnp

from bertzoo_jax.model import operations
from bertzoo_jax.objectives import heads
from bertzoo_jax.objectives import networks
from bertzoo_jax.objectives import objective
from bertzoo_jax.parts import objectives as definitions

# Features that describe the span of each prediction.
SPANS = ('span_left', 'span_right', 'span_offset')


def mlm_span_boundary(
  fields: definitions.MlmSpanBoundary, encoder, ops=operations.PLAIN
) -> objective.Objective:
  """mlm + boundary_weight · boundary. boundary is the mean negative log-likelihood of the tokens of
  masked spans. Each is predicted from the vectors of the two tokens beside its span and from its
  place in the span (Joshi et al. 2020 §3.2).

  The paper adds the two losses of a token. Here, as in the release, each loss is a mean over its
  predictions: spans at the first or last token of a text have no boundary loss.

  Metrics: see `mlm.mlm`, and under the total 'boundary': boundary_loss (nats), boundary_accuracy.
  """
  head = heads.boundary(fields.num_offsets, fields.offset_size)

  def init(key):
    return networks.init(encoder, jax.random.split(key, 3), heads.vocabulary(), head)

  def normalizers(batch):
    boundary = jnp.sum(boundary_weights(batch, fields.num_offsets))
    return {**networks.totals('masked')(batch), 'boundary': boundary}

  def loss(params, batch, normalizers, carry, key, train):
    states_BPD, hidden_BLD, _ = networks.predictions(encoder, params['encoder'], batch, key, ops)
    logits_BPV = networks.vocabulary_logits(encoder, params, states_BPD, ops.constrain)
    masked = networks.masked_sums(logits_BPV, batch)
    boundary = boundary_sums(head, encoder, params, hidden_BLD, batch, ops.constrain)
    totals = {name: objective.at_least_one(total) for name, total in normalizers.items()}
    value = masked['mlm_loss'] / totals['masked']
    value += fields.boundary_weight * boundary['boundary_loss'] / totals['boundary']
    return value, (carry, {'masked': masked, 'boundary': boundary})

  reads = (*encoder.reads, *networks.MASKED, *SPANS)
  return objective.Objective(init, normalizers, loss, reads, objective.whole(encoder, head))


def boundary_weights(batch, num_offsets: int) -> jax.Array:
  """[B, P] float32: the masked weight of a prediction if it is one of the first num_offsets tokens
  of a span with a token on each side; else 0.
  """
  learns_BP = (batch['span_right'] > 0) & (batch['span_offset'] < num_offsets)
  return batch['masked_weights'] * learns_BP


def boundary_sums(
  head: heads.Head, encoder, params, hidden_BLD, batch, constrain
) -> dict[str, jax.Array]:
  """{'boundary_loss', 'boundary_accuracy'}: sums over the predictions of a batch. The total
  'boundary' is their denominator. params: of the network.
  """
  logits_BPV = head.logits(encoder, params, hidden_BLD, batch, constrain=constrain)
  weights_BP = boundary_weights(batch, head.fields['num_offsets'])
  return networks.masked_sums(logits_BPV, {**batch, 'masked_weights': weights_BP}, 'boundary')
