"""Replaced token detection: predicts which tokens of a row were replaced (Clark et al. 2020).

The discriminator is an encoder and `params['replaced_head']`. Its encoder is `params['encoder']`,
or a sum (generator.py). `params['generator']` fills the masks.
Legend: B batch, L length, P predictions, V vocabulary, D width.
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

# Histogram of logits for the area under the ROC curve and the average precision: bins of width 1/8
# from −16 to 16. Counts add up over batches, so both cover all tokens of an evaluation.
_BINS, _WIDTH = 256, 0.125


def replaced_token(
  fields: definitions.ReplacedToken, encoder, ops=operations.PLAIN
) -> objective.Objective:
  """generator_weight · MLM of the generator + discriminator_weight · binary cross-entropy of the
  discriminator (Clark et al. 2020 §2), in one update. No gradient passes the sampled tokens.

  With shared='added' and head='token_and_row' it is DeBERTaV3's objective (He et al. 2021 §3). Here
  both networks are updated at once, from the same word vectors. The released code updates the
  generator first, so its discriminator sees the new word vectors.

  Metrics of the generator under 'masked': mlm_loss (nats), mlm_accuracy. Of the discriminator:
  rtd_loss (nats per token of loss_over). Over all tokens: rtd_accuracy, rtd_base_rate (accuracy of
  predicting "original" everywhere), rtd_precision, rtd_recall, rtd_auc and rtd_average_precision of
  replaced tokens, and rtd_token_rms (of the vectors around the mean of their row).
  """
  sizes = dict(width=fields.width, depth=fields.depth, shared=fields.shared)
  generator, guess, detect, extract = _both(fields, encoder, ops, **sizes)

  def loss(params, batch, normalizers, carry, key, train):
    keys = (None, None) if key is None else jax.random.split(key)
    guessed = guess(generator.extract(params), batch, keys[0])
    masked = networks.masked_sums(guessed.logits_BPV, batch)
    _, value, sums = detect(extract(params), batch, guessed.rows, normalizers, keys[1])
    learned = masked['mlm_loss'] / objective.at_least_one(normalizers['masked'])
    value = fields.discriminator_weight * value + fields.generator_weight * learned
    return value, (carry, _joined(sums, masked))

  return _objective(generator, loss, fields.head)


def replaced_token_frozen(
  fields: definitions.ReplacedTokenFrozen, encoder, ops=operations.PLAIN
) -> objective.Objective:
  """The second of two stages (Clark et al. 2020 §3.2): trains the discriminator with the frozen
  generator of `generator_mlm`.

  A discriminator that joins in this phase starts with the weights of the generator, which has the
  same size. Metrics: see `replaced_token`.
  """
  generator, guess, detect, extract = _both(fields, encoder, ops, **_SAME_SIZE)

  def loss(params, batch, normalizers, carry, key, train):
    # Without dropout: the generator predicts and does not learn.
    guessed = guess(jax.lax.stop_gradient(generator.extract(params)), batch, None)
    _, value, sums = detect(extract(params), batch, guessed.rows, normalizers, key)
    sums = _joined(sums, networks.masked_sums(guessed.logits_BPV, batch))
    return fields.discriminator_weight * value, (carry, sums)

  base = _objective(generator, loss, fields.head)
  discriminator, frozen_generator = base.networks
  return base._replace(
    networks=(discriminator, frozen_generator),
    frozen=('^generator/',),
    inherits=(('^encoder/', 'generator/encoder/'),),
  )


def generator_mlm(encoder, ops=operations.PLAIN) -> objective.Objective:
  """The first of two stages: `mlm`, with its metrics, by a generator of the network's size."""
  generator = generators.build(encoder, **_SAME_SIZE)

  def loss(params, batch, normalizers, carry, key, train):
    logits_BPV, _ = generators.logits(generator, generator.extract(params), batch, key, ops)
    sums = networks.masked_sums(logits_BPV, batch)
    value = sums['mlm_loss'] / objective.at_least_one(normalizers['masked'])
    return value, (carry, {'masked': sums})

  init, reads = lambda key: {'generator': generator.init(key)}, encoder.reads + networks.MASKED
  return objective.Objective(init, networks.totals('masked'), loss, reads, (generator.network(),))


def replaced_token_adversarial(
  fields: definitions.ReplacedTokenAdversarial, encoder, ops=operations.PLAIN
) -> objective.Objective:
  """As `replaced_token`, with a generator that learns to fool the discriminator (Clark et al. 2020,
  appendix F; REINFORCE).

  The reward of a sampled token is the discriminator's negative log-likelihood at that token only.
  Its baseline is −log σ(v), where v is linear in the generator's vector; σ(v) learns by
  cross-entropy the discriminator's probability of the right answer. The baseline's gradient stops
  at the vector.

  Metrics: see `replaced_token`, and under 'masked': reward (nats), baseline_loss (nats).
  """
  sizes = dict(width=fields.width, depth=fields.depth, shared=fields.shared)
  generator, guess, detect, extract = _both(fields, encoder, ops, **sizes)
  baseline = heads.token_score('baseline_head', 'predictions')

  def loss(params, batch, normalizers, carry, key, train):
    keys = (None, None) if key is None else jax.random.split(key)
    guessed = guess(generator.extract(params), batch, keys[0])
    masked = networks.masked_sums(guessed.logits_BPV, batch)
    scores_BL, value, sums = detect(extract(params), batch, guessed.rows, normalizers, keys[1])
    scores_BP = jax.lax.stop_gradient(
      jnp.take_along_axis(scores_BL, batch['masked_positions'], axis=1, mode='clip')
    )
    reward_BP = _nll(scores_BP, guessed.sampled_BP != batch['masked_targets'])
    hidden_BPD = jax.lax.stop_gradient(guessed.states_BPD)
    guess_BP = baseline.logits(generator.encoder, params, hidden_BPD, batch)
    advantage_BP = jax.lax.stop_gradient(reward_BP - jax.nn.softplus(-guess_BP))
    right_BP = jnp.exp(-reward_BP)
    weights_BP = batch['masked_weights']
    policy = -jnp.sum(
      weights_BP * advantage_BP * -networks.nll(guessed.tempered_BPV, guessed.sampled_BP)[0]
    )
    learned = jnp.sum(
      weights_BP
      * (right_BP * jax.nn.softplus(-guess_BP) + (1.0 - right_BP) * jax.nn.softplus(guess_BP))
    )
    masked.update(reward=jnp.sum(weights_BP * reward_BP), baseline_loss=learned)
    learned = (policy + learned) / objective.at_least_one(normalizers['masked'])
    value = fields.discriminator_weight * value + fields.generator_weight * learned
    return value, (carry, _joined(sums, masked))

  base = _objective(generator, loss, fields.head)

  def init(key):
    baseline_params = baseline.init(generator.encoder, jax.random.fold_in(key, 3))
    return {**base.init(key), baseline.name: baseline_params}

  return base._replace(init=init)


def corruption_detection(
  fields: definitions.CorruptionDetection, encoder, ops=operations.PLAIN
) -> objective.Objective:
  """Detection without a generator: the masking replaces the tokens.

  With masking=token, corruption (0, 1, 0) and random_tokens 'all' or 'unigrams' these are the
  uniform and the unigram generator of Clark et al. 2020 §3.2. Metrics of the discriminator: see
  `replaced_token`.
  """
  detect = functools.partial(_discriminate, encoder, fields, ops)

  def init(key):
    head = heads.replaced(fields.head)
    return networks.init(encoder, jax.random.split(key), head, predicts=False)

  def loss(params, batch, normalizers, carry, key, train):
    original_BL, _ = generators.fill(batch, batch['masked_targets'])
    rows = original_BL, batch['input_ids']
    _, value, sums = detect(params, batch, rows, normalizers, key)
    return value, (carry, sums)

  return _detecting(encoder, init, loss, objective.whole(encoder))


def finalize_metrics(means: dict) -> dict:
  """Computes the discriminator's metrics from means over all tokens; keeps all other metrics."""
  means = dict(means)
  replaced, flagged, correct, counts, spread = (
    means.pop(f'rtd_{name}') for name in ('replaced', 'flagged', 'found', 'counts', 'spread')
  )
  share = lambda part, whole: jnp.where(whole > 0, part / jnp.where(whole > 0, whole, 1.0), 0.0)
  original, hit = counts[0], counts[1]
  below = jnp.cumsum(original) - original / 2
  # counts of logits above a threshold at the lower end of each bin
  above = jnp.cumsum(counts[:, ::-1], axis=1)[:, ::-1]
  return {
    **means,
    'rtd_base_rate': 1.0 - replaced,
    'rtd_precision': share(correct, flagged),
    'rtd_recall': share(correct, replaced),
    'rtd_auc': share(jnp.sum(hit * below), jnp.sum(hit) * jnp.sum(original)),
    'rtd_average_precision': share(jnp.sum(hit * share(above[1], above.sum(axis=0))), jnp.sum(hit)),
    'rtd_token_rms': jnp.sqrt(spread),
  }


_SAME_SIZE = dict(width=1.0, depth=1.0, shared='none')  # a generator of the network's size


def _both(fields, encoder, ops, **sizes):
  """(the Generator, its `guess`, the discriminator's `detect`, and how to extract its params)."""
  generator = generators.build(encoder, **sizes)
  guess = functools.partial(generators.guess, generator, ops, fields)
  detect = functools.partial(_discriminate, encoder, fields, ops)
  return generator, guess, detect, generator.main_network('discriminator', 'replaced_head').extract


def _objective(generator, loss, head):
  """The Objective that trains both networks with a loss."""
  encoder = generator.main

  def init(key):
    main_key, generator_key = jax.random.split(key)
    encoder_key, head_key = jax.random.split(main_key)
    return {
      'encoder': generator.init_main(encoder_key),
      'replaced_head': heads.replaced(head).init(encoder, head_key),
      'generator': generator.init(generator_key),
    }

  both = generator.main_network('discriminator', 'replaced_head'), generator.network()
  return _detecting(encoder, init, loss, both)


def _detecting(encoder, init, loss, trained):
  reads, totals = encoder.reads + networks.MASKED, networks.totals('masked', 'tokens')
  return objective.Objective(init, totals, loss, reads, trained, finalize_metrics=finalize_metrics)


def _discriminate(encoder, fields, ops, params, batch, rows, normalizers, key):
  """(logits_BL, loss, sums) of the discriminator. params: of its network; rows: of Guess."""
  original_BL, filled_BL = rows
  filled = {**batch, 'input_ids': filled_BL}
  hidden_BLD = networks.encode(encoder, params['encoder'], filled, key, ops)
  logits_BL = heads.replaced(fields.head).logits(encoder, params, hidden_BLD, batch)
  replaced_BL = filled_BL != original_BL
  real_BL = (batch['segment_ids'] > 0).astype(jnp.float32)
  total, weights_BL = 'tokens', real_BL
  if fields.loss_over == 'masked':
    total, row_B1 = 'masked', jnp.arange(len(real_BL))[:, None]
    weights_BL = jnp.zeros_like(real_BL)
    weights_BL = weights_BL.at[row_B1, batch['masked_positions']].add(batch['masked_weights'])
  summed = jnp.sum(weights_BL * _nll(logits_BL, replaced_BL))
  flagged_BL = logits_BL > 0
  count = lambda x_BL: jnp.sum(real_BL * x_BL)
  vectors_BLD = hidden_BLD.astype(jnp.float32)
  mean_BD = jnp.einsum('bl,bld->bd', real_BL, vectors_BLD) / objective.at_least_one(
    jnp.sum(real_BL, axis=1, keepdims=True)
  )
  spread_BL = jnp.mean(jnp.square(vectors_BLD - mean_BD[:, None]), axis=2)
  bins_BL = jnp.clip(logits_BL / _WIDTH + _BINS // 2, 0, _BINS - 1).astype(jnp.int32)
  sums = {
    'tokens': {
      'rtd_accuracy': count(flagged_BL == replaced_BL),
      'rtd_replaced': count(replaced_BL),
      'rtd_flagged': count(flagged_BL),
      'rtd_found': count(flagged_BL & replaced_BL),
      'rtd_spread': count(spread_BL),
      'rtd_counts': jnp.zeros((2, _BINS)).at[replaced_BL.astype(jnp.int32), bins_BL].add(real_BL),
    }
  }
  sums = _joined(sums, {'rtd_loss': summed}, total)
  return logits_BL, summed / objective.at_least_one(normalizers[total]), sums


def _nll(logits, replaced):
  """Negative log-likelihood of the right answer, nats. logits: that a token was replaced."""
  return jax.nn.softplus(jnp.where(replaced, -logits, logits))


def _joined(sums, more, total='masked'):
  return {**sums, total: {**sums.get(total, {}), **more}}
