"""Fine-tuning: one prediction per row. Legend: B batch, C outputs, D width.

All read `labels` and `label_weights` of the batch; the weight is 0 for a row that fills the last
batch. The mean over the rows of the whole batch is minimised. labels: names of the C classes;
dropout, input_dropout: rates, see head_modules.TaskHead; head: a key of head_modules.FORMS; sift:
fields of sift.py, or None.
"""

import jax
import jax.numpy as jnp
import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.model import operations
from bertzoo_jax.objectives import heads
from bertzoo_jax.objectives import networks
from bertzoo_jax.objectives import scored
from bertzoo_jax.objectives import sift as perturbing
from bertzoo_jax.parts import task_objectives as definitions


def classification(fields: definitions.Classification, encoder, ops=operations.PLAIN, *, labels):
  """Mean negative log-likelihood of the rows' classes, labels [B] int32 (Devlin et al. 2018 §4.1).

  class_weights w, label_smoothing ε: as in torch's CrossEntropyLoss, Σ ((1−ε)·w_y·nll_y +
  ε/C·Σ_c w_c·nll_c) / Σ w_y over the rows.

  Metrics under the total 'rows': class_loss (nats), class_accuracy; with weights both are weighted
  means. Raises UserError for fewer than two labels, or not one weight per label.
  """
  if len(labels) < 2:
    raise errors.UserError(
      f'objective=classification has {len(labels)} label(s): give two or more, or take '
      'objective=regression for a number.'
    )

  if fields.class_weights and len(fields.class_weights) != len(labels):
    raise errors.UserError(
      f'config.objective.class_weights has {len(fields.class_weights)} numbers, and there are '
      f'{len(labels)} labels ({", ".join(labels)}): give one for each, in this order.'
    )
  # only ratios matter; scaled to a minimum of 1, any batch with a row has a total of at least 1
  weights_C = np.asarray(fields.class_weights or [1.0] * len(labels), np.float32)
  weights_C = weights_C / weights_C.min()
  row_weights = lambda batch: jnp.asarray(weights_C)[batch['labels']]

  def measures(logits_BC, batch):
    nll_B, correct_B = networks.nll(logits_BC, batch['labels'])
    if fields.label_smoothing:
      spread_B = -jnp.mean(weights_C * jax.nn.log_softmax(logits_BC), axis=-1) / row_weights(batch)
      nll_B = (1 - fields.label_smoothing) * nll_B + fields.label_smoothing * spread_B
    return {'class_loss': nll_B, 'class_accuracy': correct_B}

  head = heads.row(fields.head, len(labels), fields.dropout, fields.input_dropout)
  unit_weights = row_weights if fields.class_weights else None
  return _row_objective(
    encoder, ops, fields.sift, head, 'classes', 'class_loss', measures, unit_weights
  )


def regression(fields: definitions.Regression, encoder, ops=operations.PLAIN):
  """Mean squared error of one number per row, labels [B] float32 (code of BERT's release for
  STS-B).

  Metrics under the total 'rows': squared_error.
  """

  def measures(logits_B1, batch):
    return {'squared_error': jnp.square(logits_B1[:, 0] - batch['labels'])}

  head = heads.row(fields.head, 1, fields.dropout, fields.input_dropout)
  return _row_objective(encoder, ops, fields.sift, head, 'number', 'squared_error', measures)


def multilabel(fields: definitions.Multilabel, encoder, ops=operations.PLAIN, *, labels):
  """Mean binary cross-entropy over rows and labels, labels [B, C] float32 of 0 and 1.

  Metrics under the total 'rows': label_loss (nats), label_accuracy (share of labels whose logit has
  the right sign; the threshold of predictions has no effect).
  """

  def measures(logits_BC, batch):
    truth_BC = batch['labels']
    losses_BC = jax.nn.softplus(logits_BC) - truth_BC * logits_BC
    right_BC = (logits_BC > 0) == (truth_BC > 0.5)
    return {
      'label_loss': losses_BC.mean(axis=-1),
      'label_accuracy': right_BC.astype(jnp.float32).mean(axis=-1),
    }

  head = heads.row(fields.head, len(labels), fields.dropout, fields.input_dropout)
  return _row_objective(encoder, ops, fields.sift, head, 'labels', 'label_loss', measures)


def _row_objective(encoder, ops, sift, head, form, loss_name, measures, unit_weights=None):
  """form, unit_weights: see scored.Scorer. measures: (logits_BC, batch) → {metric: [B]}."""
  measured = lambda outputs, batch: measures(outputs['row'], batch)
  scorer = scored.Scorer(head, 'rows', measured, {loss_name: 1.0}, {'row': form})
  scorer = scorer._replace(unit_weights=unit_weights)
  return perturbing.around(encoder, scorer, ops, sift)
