"""Masked language modelling, alone and with a pair loss. Legend: B batch, L length, P predictions, V vocabulary, D width."""

import jax
import jax.numpy as jnp

from bertzoo_jax.model import attention
from bertzoo_jax.model import heads
from bertzoo_jax.model import layers
from bertzoo_jax.objectives import objective

_ROW = ('input_ids', 'segment_ids', 'pack_ids')
_MASKED = ('masked_positions', 'masked_targets', 'masked_weights')


def mlm(encoder, attend=attention.attend, constrain=layers.unconstrained) -> objective.Objective:
  """Mean negative log-likelihood of the masked tokens (Devlin et al. 2018 §3.1, task 1).

  Metrics under the total 'masked': mlm_loss (nats), mlm_accuracy.
  """
  head = _mlm_head(encoder)

  def init(key):
    encoder_key, head_key = jax.random.split(key)
    return {'encoder': _init_encoder(encoder, encoder_key), 'mlm_head': _init_mlm(head, encoder, head_key)}

  def totals(batch):
    return {'masked': jnp.sum(batch['masked_weights'])}

  def loss(params, batch, totals, carry, key, train):
    hidden_BLD = _encode(encoder, params, batch, key, train, attend, constrain)
    sums = _mlm_sums(head, params, hidden_BLD, batch, constrain)
    return sums['mlm_loss'] / objective.at_least_one(totals['masked']), (carry, {'masked': sums})

  return objective.Objective(init, totals, lambda batch_size: (), loss, _ROW + _MASKED)


def mlm_pair(encoder, attend=attention.attend, constrain=layers.unconstrained, *, pair_weight) -> objective.Objective:
  """mlm + pair_weight · pair, where pair is the mean negative log-likelihood of pair_labels (Devlin et al. 2018 A.2).

  Metrics as of `mlm`, and under the total 'pairs': pair_loss (nats), pair_accuracy.
  """
  head = _mlm_head(encoder)
  pair_head = heads.PairHead(_kernel_init(encoder), encoder.dtype)

  def init(key):
    encoder_key, head_key, pair_key = jax.random.split(key, 3)
    return {'encoder': _init_encoder(encoder, encoder_key), 'mlm_head': _init_mlm(head, encoder, head_key),
            'pair_head': pair_head.init(pair_key, jnp.zeros((1, encoder.hidden_size)))['params']}

  def totals(batch):
    return {'masked': jnp.sum(batch['masked_weights']), 'pairs': jnp.asarray(batch['pair_labels'].shape[0], jnp.float32)}

  def loss(params, batch, totals, carry, key, train):
    hidden_BLD = _encode(encoder, params, batch, key, train, attend, constrain)
    masked = _mlm_sums(head, params, hidden_BLD, batch, constrain)
    logits_B2 = pair_head.apply({'params': params['pair_head']}, hidden_BLD[:, 0])
    nll_B, correct_B = nll(logits_B2, batch['pair_labels'])
    pairs = {'pair_loss': jnp.sum(nll_B), 'pair_accuracy': jnp.sum(correct_B)}
    value = (masked['mlm_loss'] / objective.at_least_one(totals['masked'])
             + pair_weight * pairs['pair_loss'] / objective.at_least_one(totals['pairs']))
    return value, (carry, {'masked': masked, 'pairs': pairs})

  return objective.Objective(init, totals, lambda batch_size: (), loss, _ROW + _MASKED + ('pair_labels',))


def predict(encoder, params: dict, batch: dict) -> dict[str, jax.Array]:
  """What trained heads say, without dropout: {'mlm': logits_BLV, and 'pair': logits_B2 if there is a pair head}, float32."""
  hidden_BLD = _encode(encoder, params, batch, None, False, attention.attend, layers.unconstrained)
  words_VE = params['encoder']['embeddings']['word']['embedding']
  out = {'mlm': _mlm_head(encoder).apply({'params': params['mlm_head']}, hidden_BLD, words_VE)}
  if 'pair_head' in params:
    out['pair'] = heads.PairHead(_kernel_init(encoder), encoder.dtype).apply({'params': params['pair_head']}, hidden_BLD[:, 0])
  return out


def nll(logits: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Negative log-likelihood in nats, and 1.0 where no class scores above the target.

  logits [..., V] float32, targets [...] int32. Written with a comparison in place of a gather: the gradient is then
  elementwise, where a gather's would be a scatter; accuracy needs the maximum that the logarithm already has.
  """
  highest = jax.lax.stop_gradient(jnp.max(logits, axis=-1))
  normaliser = highest + jnp.log(jnp.sum(jnp.exp(logits - highest[..., None]), axis=-1))
  is_target = targets[..., None] == jnp.arange(logits.shape[-1], dtype=targets.dtype)
  target = jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1)
  return normaliser - target, (target >= highest).astype(jnp.float32)


def _encode(encoder, params, batch, key, train, attend, constrain):
  rngs = {} if key is None else {'dropout': key}
  return encoder.apply({'params': params['encoder']}, batch, train=train, attend=attend, constrain=constrain, rngs=rngs)


def _mlm_sums(head, params, hidden_BLD, batch, constrain):
  hidden_BPD = heads.gather(hidden_BLD, batch['masked_positions'])
  logits_BPV = head.apply({'params': params['mlm_head']}, hidden_BPD, params['encoder']['embeddings']['word']['embedding'], constrain)
  nll_BP, correct_BP = nll(logits_BPV, batch['masked_targets'])
  weights_BP = batch['masked_weights']
  return {'mlm_loss': jnp.sum(nll_BP * weights_BP), 'mlm_accuracy': jnp.sum(correct_BP * weights_BP)}


def _mlm_head(encoder):
  return heads.MlmHead(encoder.activation, encoder.norm_eps, _kernel_init(encoder), encoder.dtype)


def _kernel_init(encoder):
  return layers.initializer(encoder.initializer, encoder.initializer_range)


def _init_encoder(encoder, key):
  row_BL = jnp.zeros((1, 1), jnp.int32)
  return encoder.init({'params': key}, dict.fromkeys(_ROW, row_BL), train=False)['params']


def _init_mlm(head, encoder, key):
  words_VE = jnp.zeros((encoder.vocab_size, encoder.hidden_size))
  return head.init(key, jnp.zeros((1, 1, encoder.hidden_size)), words_VE)['params']
