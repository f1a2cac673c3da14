"""Fine-tuning: the answer to a question, a span of a passage. Legend: B batch, L length, D width.

Both read `labels` [B, 2] int32, the places of the answer's first and last token (both of the
special token if the row has no answer), and `label_weights` [B]; the weight is 0 for a row that
fills the last batch. The mean over the rows of the whole batch is minimised.
"""

import jax
import jax.numpy as jnp

from bertzoo_jax.model import head_modules as modules
from bertzoo_jax.model import operations
from bertzoo_jax.objectives import heads
from bertzoo_jax.objectives import networks
from bertzoo_jax.objectives import scored
from bertzoo_jax.objectives import sift as perturbing
from bertzoo_jax.parts import task_objectives as definitions


def span(fields: definitions.Span, encoder, ops=operations.PLAIN):
  """Mean of the negative log-likelihoods of start and end, each a softmax over the tokens of the
  row (Devlin et al. 2018 §4.2). head: a kind of head_modules.FORMS.

  Metrics under the total 'rows': span_loss (nats), start_accuracy, end_accuracy.
  """

  scores = heads.span(fields.head)

  def outputs(params, hidden_BLD, batch, key):
    del key
    logits = scores.logits(encoder, params, hidden_BLD, batch)
    mask = lambda x_BL: jnp.where(batch['segment_ids'] > 0, x_BL, modules.FORBIDDEN)
    return {name: mask(x_BL) for name, x_BL in zip(('start', 'end'), logits)}

  forms = {'start': 'classes', 'end': 'classes'}
  scorer = scored.Scorer(scores, 'rows', _measures, {'span_loss': 1.0}, forms, outputs=outputs)
  return perturbing.around(encoder, scorer, ops, fields.sift)


def span_conditional(fields: definitions.SpanConditional, encoder, ops=operations.PLAIN):
  """`span`, but the end is scored given the start, and no answer is scored too (Yang et al. 2019,
  Lan et al. 2019, Clark et al. 2020; code of the releases). In training the true start is given.
  Answers begin and end in the passage, or at the special token.

  Reads `answer_mask` [B, L] and `impossible` [B], 1.0 for a row without the answer.

  Metrics under the total 'rows': as `span`, and answerable_loss (nats), answerable_accuracy.
  """
  answerable = fields.answerable_weight > 0
  scores = heads.conditional_span(fields.head, fields.hidden_size, answerable, fields.dropout)

  def outputs(params, hidden_BLD, batch, key):
    start_BL, _, end_B1L, none_B = scores.logits(
      encoder, params, hidden_BLD, batch, key, starts_BK=batch['labels'][:, :1]
    )
    out = {'start': start_BL, 'end': end_B1L[:, 0]}
    return {**out, 'impossible': none_B} if answerable else out

  def measures(outputs, batch):
    out = _measures(outputs, batch)
    if answerable:
      none_B, truth_B = outputs['impossible'], batch['impossible']
      out['answerable_loss'] = jax.nn.softplus(none_B) - truth_B * none_B
      out['answerable_accuracy'] = ((none_B > 0) == (truth_B > 0.5)).astype(jnp.float32)
    return out

  minimised, forms = {'span_loss': 1.0}, {'start': 'classes', 'end': 'classes'}
  reads = 'labels', 'label_weights', 'answer_mask'
  if answerable:
    minimised['answerable_loss'], forms['impossible'] = fields.answerable_weight, 'labels'
    reads += ('impossible',)
  scorer = scored.Scorer(scores, 'rows', measures, minimised, forms, reads, outputs)
  return perturbing.around(encoder, scorer, ops, fields.sift)


def _measures(outputs, batch):
  start_loss_B, start_right_B = networks.nll(outputs['start'], batch['labels'][:, 0])
  end_loss_B, end_right_B = networks.nll(outputs['end'], batch['labels'][:, 1])
  return {
    'span_loss': (start_loss_B + end_loss_B) / 2,
    'start_accuracy': start_right_B,
    'end_accuracy': end_right_B,
  }
