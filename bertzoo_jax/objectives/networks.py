"""An encoder with heads, as every objective uses it. Legend: B batch, L length, P predictions, V
vocabulary, D width.
"""

import jax
import jax.numpy as jnp

from bertzoo_jax.common import row_keys
from bertzoo_jax.model import heads
from bertzoo_jax.model import layers
from bertzoo_jax.model import operations

# The heads that `predict` reads, and the names of what they say.
HEADS = {'mlm_head': 'mlm', 'pair_head': 'pair', 'replaced_head': 'replaced'}

MASKED = ('masked_positions', 'masked_targets', 'masked_weights')


def encode(encoder, params, batch, key, ops=operations.PLAIN):
  """hidden_BLD. params: of the encoder. key: of dropout, which is then drawn by `row_keys` of the
  batch; or None.
  """
  keys_B2 = None if key is None else row_keys.join(batch['row_keys'], key)
  return encoder.apply({'params': params}, batch, keys_B2, ops)


def predictions(encoder, params, batch, key, ops=operations.PLAIN, memory=()):
  """protocol.Predictions at the masked positions; arguments as of `encode`."""
  keys_B2 = None if key is None else row_keys.join(batch['row_keys'], key)
  return encoder.apply({'params': params}, batch, keys_B2, ops, memory, method='predictions')


def init_encoder(encoder, key):
  """The encoder's parameters, float32; those that only `predictions` uses are among them."""
  names = (*encoder.reads, 'masked_positions')
  batch = dict.fromkeys(names, jnp.zeros((1, 1), jnp.int32))
  return encoder.init({'params': key}, batch, method='predictions')['params']


def mlm_head(encoder):
  """The vocabulary head that fits an encoder."""
  return heads.MlmHead(
    encoder.activation, encoder.norm_eps, encoder.kernel_init, encoder.dtype, encoder.use_bias
  )


def init_mlm_head(encoder, key):
  """Its parameters."""
  words_VE = jnp.zeros((encoder.vocab_size, encoder.table_width))
  return mlm_head(encoder).init(key, _vectors(encoder), words_VE)['params']


def pair_head(encoder):
  """The head that tells two kinds of pairs by the vector of the row."""
  return heads.PairHead(encoder.kernel_init, encoder.dtype)


def init_pair_head(encoder, key):
  """Its parameters."""
  return pair_head(encoder).init(key, _vectors(encoder)[0])['params']


def replaced_head(encoder):
  """The head that tells replaced tokens."""
  return heads.ReplacedHead(encoder.activation, encoder.kernel_init, encoder.dtype)


def init_replaced_head(encoder, key):
  """Its parameters."""
  return replaced_head(encoder).init(key, _vectors(encoder))['params']


def token_score(encoder):
  """One number per token."""
  return heads.TokenScore(encoder.dtype)


def init_token_score(encoder, key):
  """Its parameters."""
  return token_score(encoder).init(key, _vectors(encoder))['params']


def vocabulary_logits(encoder, params, hidden_BPD, constrain=layers.unconstrained):
  """logits_BPV, float32. params: of the network."""
  words_VE = params['encoder']['embeddings']['word']['embedding']
  return mlm_head(encoder).apply({'params': params['mlm_head']}, hidden_BPD, words_VE, constrain)


def pair_logits(encoder, params, hidden_BLD, batch):
  """logits_B2, float32. params: of the network."""
  row_BD = encoder.row_vectors(hidden_BLD, batch)
  return pair_head(encoder).apply({'params': params['pair_head']}, row_BD)


def predict(encoder, params: dict, batch: dict) -> dict[str, jax.Array]:
  """What trained heads say, without dropout, float32: of 'mlm' logits_BLV, 'pair' logits_B2,
  'replaced' logits_BL those that the network has."""
  rows, length = batch['input_ids'].shape
  everywhere_BL = jnp.broadcast_to(jnp.arange(length), (rows, length))
  states_BLD, hidden_BLD, _ = predictions(
    encoder, params['encoder'], {**batch, 'masked_positions': everywhere_BL}, None
  )
  out = {}
  if 'mlm_head' in params:
    out['mlm'] = vocabulary_logits(encoder, params, states_BLD)
  if 'pair_head' in params:
    out['pair'] = pair_logits(encoder, params, hidden_BLD, batch)
  if 'replaced_head' in params:
    out['replaced'] = replaced_head(encoder).apply({'params': params['replaced_head']}, hidden_BLD)
  return out


def nll(logits: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Negative log-likelihood in nats, and 1.0 where no class scores above the target.

  logits [..., V] float32, targets [...] int32. Written with a comparison in place of a gather: the
  gradient is then elementwise, where a gather's would be a scatter; accuracy needs the maximum that
  the logarithm already has.
  """
  highest = jax.lax.stop_gradient(jnp.max(logits, axis=-1))
  normaliser = highest + jnp.log(jnp.sum(jnp.exp(logits - highest[..., None]), axis=-1))
  is_target = targets[..., None] == jnp.arange(logits.shape[-1], dtype=targets.dtype)
  target = jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1)
  return normaliser - target, (target >= highest).astype(jnp.float32)


def masked_sums(logits_BPV, batch, name='mlm') -> dict[str, jax.Array]:
  """{'mlm_loss', 'mlm_accuracy'}: numerators over the predictions of a batch, to be divided by the
  total 'masked'.
  """
  nll_BP, correct_BP = nll(logits_BPV, batch['masked_targets'])
  weights_BP = batch['masked_weights']
  return {
    f'{name}_loss': jnp.sum(nll_BP * weights_BP),
    f'{name}_accuracy': jnp.sum(correct_BP * weights_BP),
  }


def masked_normalizer(batch) -> jax.Array:
  """The total 'masked': predictions of a batch."""
  return jnp.sum(batch['masked_weights'])


def token_normalizer(batch) -> jax.Array:
  """The total 'tokens': tokens of a batch that are no padding."""
  return jnp.sum((batch['pack_ids'] > 0).astype(jnp.float32))


def _vectors(encoder):
  return jnp.zeros((1, 1, encoder.hidden_size))
