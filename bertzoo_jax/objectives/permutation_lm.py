"""Objectives of an encoder with a memory: permutation language modelling, and masked language
modelling. Legend: B batch, L length, P predictions, D width.
"""

import jax

from bertzoo_jax.common import errors
from bertzoo_jax.model import operations
from bertzoo_jax.objectives import mlm
from bertzoo_jax.objectives import objective
from bertzoo_jax.parts import objectives as definitions


def permutation_lm(
  fields: definitions.PermutationLm, encoder, ops=operations.PLAIN
) -> objective.Objective:
  """Mean negative log-likelihood of the predicted tokens, given the tokens before each in the
  batch's `order` and the memory (Yang et al. 2019, eq. 3 and §2.3, partial prediction).

  With masking=in_order it is a language model from left to right.

  Metrics under the total 'masked': mlm_loss (nats), mlm_accuracy. With a pair loss, which reads the
  row's last token (last row of Table 6), also the pair metrics of `mlm.mlm_pair`.

  Raises UserError: an encoder without query stream.
  """
  if not encoder.query_stream:
    raise errors.UserError(
      'objective=permutation_lm needs an encoder that predicts a token without seeing it: take '
      'encoder=two_stream.'
    )
  return _with_memory(encoder, ops, fields.pair_weight, ('order',))


def memory_mlm(fields: definitions.MemoryMlm, encoder, ops=operations.PLAIN) -> objective.Objective:
  """Mean negative log-likelihood of the masked tokens by the content stream and its memory: the
  denoising autoencoder of Yang et al. 2019, Table 6. Metrics: see `permutation_lm`.

  Raises UserError: an encoder without memory.
  """
  if encoder.first_memory is None:
    raise errors.UserError(
      'objective=memory_mlm needs an encoder with a memory: take encoder=two_stream, or '
      'objective=mlm.'
    )
  return _with_memory(encoder, ops, fields.pair_weight, ())


def _with_memory(encoder, ops, pair_weight, features):
  """An objective whose predictions read the memory. features: further batch features."""
  lanes = ('resets',)
  options = dict(carry=encoder.first_memory, may_read=('direction', *lanes))
  without = isinstance(pair_weight, int | float) and not pair_weight  # a moving weight is traced
  base = mlm.predicting(encoder, ops, None if without else pair_weight, False, features, **options)
  remembers = bool(jax.tree.leaves(jax.eval_shape(lambda: encoder.first_memory(1))))
  return base._replace(reads=(*base.reads, *(lanes if remembers else ())))
