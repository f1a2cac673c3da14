"""Fine-tuning: the answer to a question, a span of a passage. Legend: B batch, L length, D width.

Both read `labels` [B, 2] int32, the places of the answer's first and last token (both of the
special token if the row has no answer), and `label_weights` [B]; the weight is 0 for a row that
fills the last batch. The mean over the rows of the whole batch is minimised.
"""

import jax
import jax.numpy as jnp

from bertzoo_jax.model import heads
from bertzoo_jax.model import operations
from bertzoo_jax.objectives import networks
from bertzoo_jax.objectives import objective
from bertzoo_jax.objectives import scored
from bertzoo_jax.objectives import sift as perturbing


def span(encoder, ops=operations.PLAIN, *, sift=None):
  """Mean of the negative log-likelihoods of start and end, each a softmax over the tokens of the
  row (Devlin et al. 2018 §4.2).

  Metrics under the total 'rows': span_loss (nats), start_accuracy, end_accuracy.
  """

  def logits(params, hidden_BLD, batch, key):
    del key
    found = networks.span_logits(encoder, params, hidden_BLD)
    return {
      name: jnp.where(batch['pack_ids'] > 0, x_BL, heads.FORBIDDEN)
      for name, x_BL in zip(('start', 'end'), found)
    }

  scorer = scored.Scorer(
    init=lambda key: {'span_head': networks.init_span_head(encoder, key)},
    logits=logits,
    normalizers=_normalizers,
    sums=_sums,
    loss=scored.mean('rows', 'span_loss'),
    reads=('labels', 'label_weights'),
    units=lambda batch: batch['label_weights'],
    forms={'start': 'classes', 'end': 'classes'},
  )
  return perturbing.around(encoder, scorer, ops, sift)


def span_conditional(
  encoder, ops=operations.PLAIN, *, head, hidden_size, answerable_weight, dropout, sift=None
):
  """The same with the end scored given the start, and whether the row has no answer (Yang et al.
  2019, Lan et al. 2019, Clark et al. 2020; code of the releases). Training gives the true start.
  Answers begin and end in the passage, or at the special token.

  Reads `answer_mask` [B, L] and `impossible` [B], 1.0 for a row without the answer.

  Metrics under the total 'rows': as `span`, and answerable_loss (nats), answerable_accuracy.
  """
  answerable = answerable_weight > 0

  def init(key):
    own = networks.init_conditional_span_head(encoder, key, head, hidden_size, answerable)
    return {'span_head': own}

  def logits(params, hidden_BLD, batch, key):
    start_BL, _, end_B1L, none_B = networks.conditional_span_logits(
      encoder, params, hidden_BLD, batch, batch['labels'][:, :1], key, dropout
    )
    out = {'start': start_BL, 'end': end_B1L[:, 0]}
    return {**out, 'impossible': none_B} if answerable else out

  def sums(logits, batch):
    out = _sums(logits, batch)
    if answerable:
      none_B, truth_B = logits['impossible'], batch['impossible']
      loss_B = jax.nn.softplus(none_B) - truth_B * none_B
      right_B = ((none_B > 0) == (truth_B > 0.5)).astype(jnp.float32)
      weights_B = batch['label_weights']
      out['rows'] |= {
        'answerable_loss': jnp.sum(weights_B * loss_B),
        'answerable_accuracy': jnp.sum(weights_B * right_B),
      }
    return out

  def loss(sums, normalizers):
    value = sums['rows']['span_loss']
    if answerable:
      value += answerable_weight * sums['rows']['answerable_loss']
    return value / objective.at_least_one(normalizers['rows'])

  scorer = scored.Scorer(
    init=init,
    logits=logits,
    normalizers=_normalizers,
    sums=sums,
    loss=loss,
    reads=('labels', 'label_weights', 'answer_mask', *(('impossible',) if answerable else ())),
    units=lambda batch: batch['label_weights'],
    forms={
      **{'start': 'classes', 'end': 'classes'},
      **({'impossible': 'labels'} if answerable else {}),
    },
  )
  return perturbing.around(encoder, scorer, ops, sift)


def _normalizers(batch):
  return {'rows': jnp.sum(batch['label_weights'])}


def _sums(logits, batch):
  weights_B = batch['label_weights']
  start_loss_B, start_right_B = networks.nll(logits['start'], batch['labels'][:, 0])
  end_loss_B, end_right_B = networks.nll(logits['end'], batch['labels'][:, 1])
  found = {
    'span_loss': (start_loss_B + end_loss_B) / 2,
    'start_accuracy': start_right_B,
    'end_accuracy': end_right_B,
  }
  return {'rows': {name: jnp.sum(weights_B * x_B) for name, x_B in found.items()}}
