"""Fine-tuning: one of several options. Legend: B batch, C options, L length, D width."""

import jax.numpy as jnp

from bertzoo_jax.model import operations
from bertzoo_jax.objectives import networks
from bertzoo_jax.objectives import scored
from bertzoo_jax.objectives import sift as perturbing


def choice(encoder, ops=operations.PLAIN, *, head, dropout, input_dropout, sift=None):
  """Mean negative log-likelihood of the right options, labels [B] int32 (Devlin et al. 2018 §4.4).

  Each option is a row of its own, input_ids [B, C, L], and gets one score; the softmax is over the
  options of a unit. option_weights [B, C] is 0 for an option that only fills a unit.

  Metrics under the total 'units': choice_loss (nats), choice_accuracy.
  """

  def logits(params, hidden, batch, key):
    rates = dropout, input_dropout
    return {'choice': networks.choice_logits(encoder, params, hidden, batch, key, *rates)}

  def sums(logits, batch):
    nll_B, correct_B = networks.nll(logits['choice'], batch['labels'])
    weights_B = batch['label_weights']
    return {
      'units': {
        'choice_loss': jnp.sum(weights_B * nll_B),
        'choice_accuracy': jnp.sum(weights_B * correct_B),
      }
    }

  scorer = scored.Scorer(
    init=lambda key: {'choice_head': networks.init_row_head(encoder, key, head, 1)},
    logits=logits,
    normalizers=lambda batch: {'units': jnp.sum(batch['label_weights'])},
    sums=sums,
    loss=scored.mean('units', 'choice_loss'),
    reads=('labels', 'label_weights', 'option_weights'),
    rows=networks.rows_of_options,
    units=lambda batch: batch['label_weights'],
    forms={'choice': 'classes'},
  )
  return perturbing.around(encoder, scorer, ops, sift)
