"""ERNIE 1.0 (Sun et al. 2019): BERT's tensors by other names, and no task ids."""

from bertzoo_jax.common import errors
from bertzoo_jax.hf.architectures import bert


def _more_fields(content):
  """No further fields. Raises UserError for a network with task ids."""
  if content['use_task_id']:
    raise errors.UserError(
      'config.json says use_task_id=true: task ids (ERNIE 2.0 and 3.0) have no place in an encoder '
      'here, so it cannot be read.'
    )
  return {}


PRETRAINING, MASKED_LM, TASKS, MODEL = bert.family(
  'ernie',
  'Ernie',
  more=lambda encoder, special, sizes: {'use_task_id': False},
  more_fields=_more_fields,
  defaults=dict(use_task_id=False),
)
