"""Fine-tuning: a tag per token. Legend: B batch, L length, C tags, D width."""

from bertzoo_jax.common import errors
from bertzoo_jax.model import operations
from bertzoo_jax.objectives import heads
from bertzoo_jax.objectives import networks
from bertzoo_jax.objectives import scored
from bertzoo_jax.objectives import sift as perturbing
from bertzoo_jax.parts import task_objectives as definitions


def tagging(fields: definitions.Tagging, encoder, ops=operations.PLAIN, *, labels):
  """Mean negative log-likelihood of the tags, labels [B, L] int32 (Devlin et al. 2018 §5.3).

  label_weights [B, L] is 1 for the first token of a word, else 0; the mean is over these tokens of
  the whole batch.

  head: a key of head_modules.FORMS. Metrics under the total 'words': tag_loss (nats), tag_accuracy.
  """
  if len(labels) < 2:
    raise errors.UserError(f'objective=tagging has {len(labels)} tag(s): give two or more.')

  def measures(outputs, batch):
    nll_BL, correct_BL = networks.nll(outputs['tag'], batch['labels'])
    return {'tag_loss': nll_BL, 'tag_accuracy': correct_BL}

  head = heads.tag(fields.head, len(labels), fields.dropout)
  scorer = scored.Scorer(head, 'words', measures, {'tag_loss': 1.0}, {'tag': 'classes'})
  return perturbing.around(encoder, scorer, ops, fields.sift)
