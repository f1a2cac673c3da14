"""Functions of an encoder with heads, for all objectives. Legend: B batch, L length, P predictions,
V vocabulary, D width, C outputs of a row.
"""

import jax
import jax.numpy as jnp
import numpy as np

from bertzoo_jax.common import row_keys
from bertzoo_jax.model import layers
from bertzoo_jax.model import operations
from bertzoo_jax.objectives import heads

MASKED = ('masked_positions', 'masked_targets', 'masked_weights')


def encode(encoder, params, batch, key, ops=operations.PLAIN, embedded_BLE=None):
  """hidden_BLD. params: of the encoder. key: dropout key, joined with the batch's `row_keys`; None:
  no dropout. embedded_BLE: the sum of embeddings to begin with; None for `embed`.
  """
  return encoder.apply({'params': params}, *_with_keys(batch, key), ops, embedded_BLE)


def embed(encoder, params, batch):
  """The sum of the embeddings before their norm, float32 [B, L, E]. params: of the encoder."""
  return encoder.apply({'params': params}, batch, method='embed')


def predictions(encoder, params, batch, key, ops=operations.PLAIN, memory=()):
  """protocol.Predictions at the masked positions; arguments: see `encode`."""
  batch, keys_B2 = _with_keys(batch, key)
  return encoder.apply({'params': params}, batch, keys_B2, ops, memory, method='predictions')


def predict_all_positions(encoder, params, batch, key, ops=operations.PLAIN):
  """protocol.Predictions at all tokens; arguments: see `encode`."""
  rows, length = batch['input_ids'].shape
  # a numpy array, so that `protocol.gather` sees that these are all positions
  places_BL = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))
  return predictions(encoder, params, {**batch, 'masked_positions': places_BL}, key, ops)


def shifted_left(batch):
  """The batch with each prediction moved to the token before; weight 0 for the first token of a
  packed segment. For networks that learned from left to right (objective.Network.learned).
  """
  at_BP, packs_BL = batch['masked_positions'], batch['segment_ids']
  before_BP = jnp.maximum(at_BP - 1, 0)
  pack_at = lambda places_BP: jnp.take_along_axis(jnp.asarray(packs_BL), places_BP, axis=1)
  same_BP = (at_BP > 0) & (pack_at(at_BP) == pack_at(before_BP))
  weights_BP = jnp.where(same_BP, batch['masked_weights'], 0.0)
  return {**batch, 'masked_positions': before_BP, 'masked_weights': weights_BP}


def _with_keys(batch, key):
  """(batch with `common_key`, for dropout that all rows share; dropout keys [B, 2] of the rows)."""
  if key is None:
    return batch, None
  common_2 = row_keys.join(jnp.zeros(2, jnp.uint32), key)
  return {**batch, 'common_key': common_2}, row_keys.join(batch['row_keys'], key)


def init(encoder, keys, *used: heads.Head, **options) -> dict:
  """Parameters of a network. keys: for the encoder, then each head. options: see `init_encoder`."""
  first, *others = keys
  head_params = {head.name: head.init(encoder, key) for head, key in zip(used, others)}
  return {'encoder': init_encoder(encoder, first, **options), **head_params}


def init_encoder(encoder, key, predicts=True, also=()):
  """The encoder's parameters, float32.

  predicts: whether to include parameters that only `predictions` uses.
  also: further batch features that the encoder gets.
  """
  batch = dict.fromkeys((*encoder.reads, 'masked_positions', *also), jnp.zeros((1, 1), jnp.int32))
  method = 'predictions' if predicts else '__call__'
  return encoder.init({'params': key}, batch, method=method)['params']


def vocabulary_logits(
  encoder, params, hidden, constrain=layers.unconstrained, name='mlm_head'
) -> jax.Array:
  """Logits [..., V], float32, of a vocabulary head. params: of the network. name: of the head;
  next_head predicts the next token.
  """
  return heads.TABLE[name](params[name]).logits(encoder, params, hidden, {}, constrain=constrain)


def from_left_to_right(batch, causal_B=None):
  """The batch with an `order` that hides later tokens; in rows whose causal_B is 0, tokens see all.
  Only an encoder whose member `left_to_right` is True obeys it.
  """
  rows, length = batch['input_ids'].shape
  order_BL = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (rows, length))
  return {**batch, 'order': order_BL if causal_B is None else order_BL * causal_B[:, None]}


def predict(encoder, params: dict, batch: dict) -> dict[str, jax.Array]:
  """The outputs of a network's trained heads, without dropout, float32.

  Each head of the network that is in heads.TABLE gives its entries of {'mlm': logits_BLV, 'pair':
  logits_B2, 'replaced': logits_BL, 'row': logits_BC, 'choice': logits_BC, 'tag': logits_BLC,
  'start': logits_BL, 'end': logits_BL}. A conditional head for answers gives the outputs of
  `heads.conditional_span`. A network that predicts the next token returns {'next': logits_BLV}. A
  batch of B questions with C options, [B, C, L], counts as B·C rows; only 'choice' has one row per
  question.
  """
  return {name: x for name, x in outputs(encoder, params, batch).items() if name != 'vectors'}


def outputs(encoder, params: dict, batch: dict) -> dict[str, jax.Array]:
  """The result of `predict`, plus {'vectors': hidden_BLD} of all tokens, float32."""
  units, batch = batch, heads.rows_of_options(batch)
  known = heads.find(params)
  if 'next_head' in known:
    known = {'next_head': known['next_head']}
    batch = units = from_left_to_right(batch)
  if 'mlm_head' in known:
    states_BLD, hidden_BLD, _ = predict_all_positions(encoder, params['encoder'], batch, None)
  else:
    states_BLD = hidden_BLD = encode(encoder, params['encoder'], batch, None)
  out = {'vectors': hidden_BLD.astype(jnp.float32)}
  for name, head in known.items():
    vectors = states_BLD if head.reads == 'predictions' else hidden_BLD
    read = units if name == 'choice_head' else batch
    out |= head.named_outputs(head.logits(encoder, params, vectors, read), read)
  return out


def nll(logits: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
  """(negative log-likelihood in nats, 1.0 if no class scores above the target), float32 [...].

  logits [..., V] float32, targets [...] int32. A comparison replaces a gather, so the gradient is
  elementwise and not a scatter; accuracy reuses the maximum that the logarithm needs.
  """
  highest = jax.lax.stop_gradient(jnp.max(logits, axis=-1))
  normaliser = highest + jnp.log(jnp.sum(jnp.exp(logits - highest[..., None]), axis=-1))
  is_target = targets[..., None] == jnp.arange(logits.shape[-1], dtype=targets.dtype)
  target = jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1)
  return normaliser - target, (target >= highest).astype(jnp.float32)


def masked_sums(logits_BPV, batch, name='mlm') -> dict[str, jax.Array]:
  """{'mlm_loss', 'mlm_accuracy'}: sums over the predictions of a batch; total 'masked'."""
  nll_BP, correct_BP = nll(logits_BPV, batch['masked_targets'])
  weights_BP = batch['masked_weights']
  return {
    f'{name}_loss': jnp.sum(nll_BP * weights_BP),
    f'{name}_accuracy': jnp.sum(correct_BP * weights_BP),
  }


def row_weights(batch) -> jax.Array:
  """[B] float32: 1 for a row of text, 0 for one that fills the last held-out batch."""
  return jnp.any(batch['segment_ids'] > 0, axis=1).astype(jnp.float32)


def pair_sums(encoder, params, hidden_BLD, batch) -> dict[str, jax.Array]:
  """{'pair_loss', 'pair_accuracy'}: sums over the rows of a batch; total 'pairs'."""
  logits_B2 = heads.pair().logits(encoder, params, hidden_BLD, batch)
  metrics = dict(zip(('pair_loss', 'pair_accuracy'), nll(logits_B2, batch['pair_labels'])))
  return {name: jnp.sum(x_B * row_weights(batch)) for name, x_B in metrics.items()}


_TOTALS = {
  'masked': lambda batch: jnp.sum(batch['masked_weights']),
  'pairs': lambda batch: jnp.sum(row_weights(batch)),
  'tokens': lambda batch: jnp.sum((batch['segment_ids'] > 0).astype(jnp.float32)),
}


def totals(*names: str):
  """An Objective.normalizers: counts 'masked' predictions, 'pairs' (rows) and 'tokens' (no
  padding)."""
  return lambda batch: {name: _TOTALS[name](batch) for name in names}
