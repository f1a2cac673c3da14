"""Fine-tuning: a tag per token. Legend: B batch, L length, C tags, D width."""

import jax.numpy as jnp

from bertzoo_jax.common import errors
from bertzoo_jax.model import operations
from bertzoo_jax.objectives import networks
from bertzoo_jax.objectives import scored
from bertzoo_jax.objectives import sift as perturbing


def tagging(encoder, ops=operations.PLAIN, *, labels, dropout, sift=None):
  """Mean negative log-likelihood of the tags, labels [B, L] int32 (Devlin et al. 2018 §5.3).

  label_weights [B, L] is 1 for the first token of a word, else 0; the mean is over these tokens of
  the whole batch.

  Metrics under the total 'words': tag_loss (nats), tag_accuracy.
  """
  if len(labels) < 2:
    raise errors.UserError(f'objective=tagging has {len(labels)} tag(s): give two or more.')

  def logits(params, hidden_BLD, batch, key):
    return {'tag': networks.tag_logits(encoder, params, hidden_BLD, batch, key, dropout)}

  def sums(logits, batch):
    nll_BL, correct_BL = networks.nll(logits['tag'], batch['labels'])
    weights_BL = batch['label_weights']
    return {
      'words': {
        'tag_loss': jnp.sum(weights_BL * nll_BL),
        'tag_accuracy': jnp.sum(weights_BL * correct_BL),
      }
    }

  scorer = scored.Scorer(
    init=lambda key: {'tag_head': networks.init_tag_head(encoder, key, len(labels))},
    logits=logits,
    normalizers=lambda batch: {'words': jnp.sum(batch['label_weights'])},
    sums=sums,
    loss=scored.mean('words', 'tag_loss'),
    reads=('labels', 'label_weights'),
    units=lambda batch: batch['label_weights'],
    forms={'tag': 'classes'},
  )
  return perturbing.around(encoder, scorer, ops, sift)
