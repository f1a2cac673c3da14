"""The place of an objective that is not written yet, in a config whose rows can be made already."""

from bertzoo_jax.common import errors
from bertzoo_jax.objectives import objective


def input_only(*, encoder, ops=None, reads) -> objective.Objective:
  """An objective that names the features its successor will read, and refuses to train.

  Args:
    encoder, ops: not used.
    reads: names of batch features.

  Raises:
    UserError: as soon as parameters, normalizers or a loss are asked for.
  """

  return objective.Objective(
    init=refuse, normalizers=refuse, carry=refuse, loss=refuse, reads=tuple(reads)
  )


def refuse(*_, **__):
  """Raises the UserError that says what works, and what trains instead."""
  raise errors.UserError(
    'This config is input ready: prepare and show work, its network and objective are still to '
    'be written. '
    'encoder=transformer trains on rows whose masking hides what it asks for: add '
    ',objective=mlm to --config, and '
    '--config.hf=BertForMaskedLM.'
  )
