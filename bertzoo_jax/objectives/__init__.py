"""Objectives by name: BY_NAME[name](declared fields, encoder=…, ops=…) → Objective.

Fields: bertzoo_jax/parts/objectives.py and task_objectives.py.
"""

import jax.numpy as jnp

from bertzoo_jax.common import errors
from bertzoo_jax.model import encoder as encoders
from bertzoo_jax.model import operations
from bertzoo_jax.objectives import causal
from bertzoo_jax.objectives import contrastive
from bertzoo_jax.objectives import filled_mlm
from bertzoo_jax.objectives import left_to_right
from bertzoo_jax.objectives import mlm
from bertzoo_jax.objectives import multiple_choice
from bertzoo_jax.objectives import permutation_lm
from bertzoo_jax.objectives import replaced_token
from bertzoo_jax.objectives import rows
from bertzoo_jax.objectives import similar
from bertzoo_jax.objectives import span_boundary
from bertzoo_jax.objectives import spans
from bertzoo_jax.objectives import tokens
from bertzoo_jax.parts import named

BY_NAME = {
  'mlm': mlm.mlm,
  'mlm_pair': mlm.mlm_pair,
  'mlm_span_boundary': span_boundary.mlm_span_boundary,
  'left_to_right': left_to_right.left_to_right,
  'causal_lm': causal.causal_lm,
  'causal_masked': causal.causal_masked,
  'replaced_token': replaced_token.replaced_token,
  'replaced_token_adversarial': replaced_token.replaced_token_adversarial,
  'generator_mlm': replaced_token.generator_mlm,
  'replaced_token_frozen': replaced_token.replaced_token_frozen,
  'corruption_detection': replaced_token.corruption_detection,
  'replace_mlm': filled_mlm.replace_mlm,
  'all_tokens_mlm': filled_mlm.all_tokens_mlm,
  'contrastive': contrastive.contrastive,
  'permutation_lm': permutation_lm.permutation_lm,
  'memory_mlm': permutation_lm.memory_mlm,
  'classification': rows.classification,
  'regression': rows.regression,
  'multilabel': rows.multilabel,
  'span': spans.span,
  'span_conditional': spans.span_conditional,
  'tagging': tokens.tagging,
  'choice': multiple_choice.choice,
  'cosine_regression': similar.cosine_regression,
  'cosent': similar.cosent,
  'in_batch_negatives': similar.in_batch_negatives,
}


def build(config, vocab_size: int):
  """The objective of a config in float32, without kernels."""
  encoder = named.build(
    config.encoder, encoders.BY_NAME, 'encoder', vocab_size=vocab_size, dtype=jnp.float32
  )
  return named.build(config.objective, BY_NAME, 'objective', encoder=encoder, ops=operations.PLAIN)


def build_networks(config, vocab_size: int):
  """The networks of a config's objective, in float32. Raises UserError if there are none."""
  networks = build(config, vocab_size).networks
  if not networks:
    raise errors.UserError(
      f'objective={config.objective.name} trains no network: give the --workdir of another run.'
    )
  return networks
