"""Fine-tuning: chooses one of several options. Legend: B batch, C options, L length, D width."""

from bertzoo_jax.model import operations
from bertzoo_jax.objectives import heads
from bertzoo_jax.objectives import networks
from bertzoo_jax.objectives import scored
from bertzoo_jax.objectives import sift as perturbing
from bertzoo_jax.parts import task_objectives as definitions


def choice(fields: definitions.Choice, encoder, ops=operations.PLAIN):
  """Mean negative log-likelihood of the right options, labels [B] int32 (Devlin et al. 2018 §4.4).

  Each option is a row, input_ids [B, C, L], and gets one score; the softmax is over the C options
  of a unit. option_weights [B, C] is 0 for an option that only fills a unit.

  Metrics under the total 'units': choice_loss (nats), choice_accuracy.
  """

  def measures(outputs, batch):
    nll_B, correct_B = networks.nll(outputs['choice'], batch['labels'])
    return {'choice_loss': nll_B, 'choice_accuracy': correct_B}

  scorer = scored.Scorer(
    heads.choice(fields.head, fields.dropout, fields.input_dropout),
    'units',
    measures,
    {'choice_loss': 1.0},
    {'choice': 'classes'},
    ('labels', 'label_weights', 'option_weights'),
  )
  return perturbing.around(encoder, scorer, ops, fields.sift)
