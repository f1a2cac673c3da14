"""Masked language modelling on rows whose masks a generator filled: the two objectives between
BERT's and replaced token detection (Clark et al. 2020 §3.5). Legend: B batch, L length, P
predictions, V vocabulary, D width.
"""

import functools

import jax
import jax.numpy as jnp

from bertzoo_jax.model import operations
from bertzoo_jax.objectives import generator as generators
from bertzoo_jax.objectives import heads
from bertzoo_jax.objectives import networks
from bertzoo_jax.objectives import objective
from bertzoo_jax.parts import objectives as definitions


def replace_mlm(
  fields: definitions.ReplaceMlm, encoder, ops=operations.PLAIN
) -> objective.Objective:
  """MLM at the masked positions, with the generator's tokens in place of the masks, +
  generator_weight · the generator's MLM.

  Metrics under 'masked': mlm_loss, mlm_accuracy (of the network), generator_loss,
  generator_accuracy.
  """
  generator = generators.build(
    encoder, width=fields.width, depth=fields.depth, shared=fields.shared, predicts=True
  )
  fill = functools.partial(_filled, generator, ops, fields)
  both = generator.main_network('main', 'mlm_head'), generator.network()
  init, totals = functools.partial(_init, encoder, generator), networks.totals('masked')

  def loss(params, batch, normalizers, carry, key, train):
    filled, learned, key = fill(params, batch, key)
    main = both[0].extract(params)
    states_BPD, _, _ = networks.predictions(encoder, main['encoder'], filled, key, ops)
    logits_BPV = networks.vocabulary_logits(encoder, main, states_BPD, ops.constrain)
    sums = networks.masked_sums(logits_BPV, batch)
    value = sums['mlm_loss'] + fields.generator_weight * learned['generator_loss']
    value /= objective.at_least_one(normalizers['masked'])
    return value, (carry, {'masked': {**sums, **learned}})

  return objective.Objective(init, totals, loss, encoder.reads + networks.MASKED, both)


def all_tokens_mlm(
  fields: definitions.AllTokensMlm, encoder, ops=operations.PLAIN
) -> objective.Objective:
  """As `replace_mlm`, but predicts every token of the row, with a copy mechanism: p = c · [is the
  input] + (1 − c) · softmax, where c is the sigmoid of a linear function of the token's vector.

  Metrics: under 'tokens' all_tokens_loss, which is minimised, and all_tokens_accuracy. Under
  'masked' are the metrics of `replace_mlm`, computed with the same p.
  """
  generator = generators.build(
    encoder, width=fields.width, depth=fields.depth, shared=fields.shared
  )
  head, copy = heads.vocabulary(reads='tokens'), heads.token_score('copy_head', 'tokens')
  fill = functools.partial(_filled, generator, ops, fields)
  both = generator.main_network('main', 'mlm_head', heads=(head,)), generator.network()

  def init(key):
    return {
      **_init(encoder, generator, key),
      'copy_head': copy.init(encoder, jax.random.fold_in(key, 3)),
    }

  def loss(params, batch, normalizers, carry, key, train):
    filled, learned, key = fill(params, batch, key)
    original_BL, _ = generators.fill(batch, batch['masked_targets'])
    main = both[0].extract(params)
    hidden_BLD = networks.encode(encoder, main['encoder'], filled, key, ops)
    nll_BL, correct_BL = _copied_nll(
      networks.vocabulary_logits(encoder, main, hidden_BLD, ops.constrain),
      copy.logits(encoder, params, hidden_BLD, batch),
      filled['input_ids'],
      original_BL,
    )
    real_BL = (batch['segment_ids'] > 0).astype(jnp.float32)
    all_tokens = {
      'all_tokens_loss': jnp.sum(real_BL * nll_BL),
      'all_tokens_accuracy': jnp.sum(real_BL * correct_BL),
    }
    at_masked = lambda x_BL: jnp.sum(
      batch['masked_weights'] * jnp.take_along_axis(x_BL, batch['masked_positions'], axis=1)
    )
    masked = {'mlm_loss': at_masked(nll_BL), 'mlm_accuracy': at_masked(correct_BL), **learned}
    counts = {name: objective.at_least_one(total) for name, total in normalizers.items()}
    value = all_tokens['all_tokens_loss'] / counts['tokens']
    value += fields.generator_weight * learned['generator_loss'] / counts['masked']
    return value, (carry, {'tokens': all_tokens, 'masked': masked})

  totals = networks.totals('masked', 'tokens')
  return objective.Objective(init, totals, loss, encoder.reads + networks.MASKED, both)


def _copied_nll(logits_BLV, copy_BL, input_BL, target_BL):
  """(nats of the target, 1.0 if no token is likelier) of c · [is the input] + (1 − c) · softmax."""
  nll_BL, highest_BL = networks.nll(logits_BLV, target_BL)
  is_input_BL = input_BL == target_BL
  generated_BL = -nll_BL - jax.nn.softplus(copy_BL)  # log (1 − c) p
  copied_BL = jnp.where(is_input_BL, -jax.nn.softplus(-copy_BL), -jnp.inf)
  likely_BL = jnp.logaddexp(copied_BL, generated_BL)
  # Only the input token or the likeliest token of the softmax can beat the target.
  best_BL = jnp.max(jax.nn.log_softmax(logits_BLV), axis=-1) - jax.nn.softplus(copy_BL)
  input_share_BL = jnp.logaddexp(
    -jax.nn.softplus(-copy_BL), -networks.nll(logits_BLV, input_BL)[0] - jax.nn.softplus(copy_BL)
  )
  correct_BL = jnp.where(
    is_input_BL, likely_BL >= best_BL, (highest_BL > 0) & (likely_BL >= input_share_BL)
  )
  return -likely_BL, correct_BL.astype(jnp.float32)


def _filled(generator, ops, fields, params, batch, key):
  """(the batch with masks filled, the generator's sums, the key of the main network's dropout)."""
  keys = (None, None) if key is None else jax.random.split(key)
  guess = generators.guess(generator, ops, fields, generator.extract(params), batch, keys[0])
  filled = {**batch, 'input_ids': guess.rows[1]}
  return filled, networks.masked_sums(guess.logits_BPV, batch, 'generator'), keys[1]


def _init(encoder, generator, key):
  encoder_key, head_key, generator_key = jax.random.split(key, 3)
  return {
    'encoder': generator.init_main(encoder_key),
    'mlm_head': heads.vocabulary().init(encoder, head_key),
    'generator': generator.init(generator_key),
  }
