"""Fine-tuning: one prediction per row. Legend: B batch, C outputs, D width.

All read `labels` and `label_weights` of the batch; the weight is 0 for a row that fills the last
batch. The mean over the rows of the whole batch is minimised. labels: names of the classes, of
which there are C; dropout and input_dropout: rates, see model.heads.TaskHead; head: a kind
of FORMS there; sift: fields of sift.py, None for none.
"""

import jax
import jax.numpy as jnp

from bertzoo_jax.common import errors
from bertzoo_jax.model import operations
from bertzoo_jax.objectives import heads
from bertzoo_jax.objectives import networks
from bertzoo_jax.objectives import scored
from bertzoo_jax.objectives import sift as perturbing


def classification(
  encoder, ops=operations.PLAIN, *, labels, head, dropout, input_dropout, sift=None
):
  """Mean negative log-likelihood of the rows' classes, labels [B] int32 (Devlin et al. 2018 §4.1).

  Metrics under the total 'rows': class_loss (nats), class_accuracy.
  """
  if len(labels) < 2:
    raise errors.UserError(
      f'objective=classification has {len(labels)} label(s): give two or more, or take '
      'objective=regression for a number.'
    )

  def measures(logits_BC, batch):
    nll_B, correct_B = networks.nll(logits_BC, batch['labels'])
    return {'class_loss': nll_B, 'class_accuracy': correct_B}

  of_rows = heads.row(head, len(labels), dropout, input_dropout)
  return _of_rows(encoder, ops, sift, of_rows, 'classes', 'class_loss', measures)


def regression(encoder, ops=operations.PLAIN, *, head, dropout, input_dropout, sift=None):
  """Mean squared error of one number per row, labels [B] float32 (code of BERT's release for
  STS-B).

  Metrics under the total 'rows': squared_error.
  """

  def measures(logits_B1, batch):
    return {'squared_error': jnp.square(logits_B1[:, 0] - batch['labels'])}

  of_rows = heads.row(head, 1, dropout, input_dropout)
  return _of_rows(encoder, ops, sift, of_rows, 'number', 'squared_error', measures)


def multilabel(encoder, ops=operations.PLAIN, *, labels, head, dropout, input_dropout, sift=None):
  """Mean binary cross-entropy over rows and labels, labels [B, C] float32 of 0 and 1.

  Metrics under the total 'rows': label_loss (nats), label_accuracy (share of the labels that are on
  the right side of 0).
  """

  def measures(logits_BC, batch):
    truth_BC = batch['labels']
    losses_BC = jax.nn.softplus(logits_BC) - truth_BC * logits_BC
    right_BC = (logits_BC > 0) == (truth_BC > 0.5)
    return {
      'label_loss': losses_BC.mean(axis=-1),
      'label_accuracy': right_BC.astype(jnp.float32).mean(axis=-1),
    }

  of_rows = heads.row(head, len(labels), dropout, input_dropout)
  return _of_rows(encoder, ops, sift, of_rows, 'labels', 'label_loss', measures)


def _of_rows(encoder, ops, sift, head, form, loss_name, measures):
  """The Objective. form: see scored.Scorer. measures: (logits_BC, batch) → {metric: [B]}."""
  measured = lambda outputs, batch: measures(outputs['row'], batch)
  scorer = scored.Scorer(head, 'rows', measured, {loss_name: 1.0}, {'row': form})
  return perturbing.around(encoder, scorer, ops, sift)
