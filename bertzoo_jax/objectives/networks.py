"""An encoder with heads, as every objective uses it. Legend: B batch, L length, P predictions, V
vocabulary, D width, C outputs of a row.
"""

import jax
import jax.numpy as jnp

from bertzoo_jax.common import row_keys
from bertzoo_jax.model import heads
from bertzoo_jax.model import layers
from bertzoo_jax.model import operations

# The heads that `predict` reads, and the names of what they say.
HEADS = {
  'mlm_head': 'mlm',
  'next_head': 'next',
  'pair_head': 'pair',
  'replaced_head': 'replaced',
  'row_head': 'row',
  'span_head': 'start',
  'choice_head': 'choice',
  'tag_head': 'tag',
}

BEAM = 20  # starts, and ends of each, that `predict` looks at

_ROW_HEAD = 1 << 16  # tells the keys of its dropout from those that encoders make of the rows'

MASKED = ('masked_positions', 'masked_targets', 'masked_weights')


def encode(encoder, params, batch, key, ops=operations.PLAIN, embedded_BLE=None):
  """hidden_BLD. params: of the encoder. key: of dropout, which is then drawn by `row_keys` of the
  batch; or None. embedded_BLE: the sum of embeddings to begin with; None for `embed`.
  """
  return encoder.apply({'params': params}, *_with_keys(batch, key), ops, embedded_BLE)


def embed(encoder, params, batch):
  """The sum of the embeddings before their norm, float32 [B, L, E]. params: of the encoder."""
  return encoder.apply({'params': params}, batch, method='embed')


def predictions(encoder, params, batch, key, ops=operations.PLAIN, memory=()):
  """protocol.Predictions at the masked positions; arguments: see `encode`."""
  batch, keys_B2 = _with_keys(batch, key)
  return encoder.apply({'params': params}, batch, keys_B2, ops, memory, method='predictions')


def _with_keys(batch, key):
  """(batch with common_key, dropout keys of the rows). common_key draws the dropout that is the
  same for all rows.
  """
  if key is None:
    return batch, None
  common_2 = row_keys.join(jnp.zeros(2, jnp.uint32), key)
  return {**batch, 'common_key': common_2}, row_keys.join(batch['row_keys'], key)


def init_encoder(encoder, key, predicts=True, also=()):
  """The encoder's parameters, float32.

  predicts: whether those that only `predictions` uses are among them.
  also: further batch features that the encoder gets.
  """
  names = (*encoder.reads, 'masked_positions', *also)
  batch = dict.fromkeys(names, jnp.zeros((1, 1), jnp.int32))
  method = 'predictions' if predicts else '__call__'
  return encoder.init({'params': key}, batch, method=method)['params']


def mlm_head(encoder):
  """The vocabulary head that fits an encoder."""
  return heads.MlmHead(
    encoder.activation, encoder.norm_eps, encoder.kernel_init, encoder.dtype, encoder.use_bias
  )


def init_mlm_head(encoder, key, transform=True):
  """Its parameters. transform: False for heads.WordHead, which has a bias alone."""
  words_VE = jnp.zeros((encoder.vocab_size, encoder.table_width))
  head = mlm_head(encoder) if transform else heads.WordHead()
  return head.init(key, _vectors(encoder), words_VE)['params']


def pair_head(encoder):
  """The head that tells two kinds of pairs by the vector of the row."""
  return heads.PairHead(encoder.kernel_init, encoder.dtype)


def init_pair_head(encoder, key):
  """Its parameters."""
  return pair_head(encoder).init(key, _vectors(encoder)[0])['params']


def init_replaced_head(encoder, key, kind='token'):
  """Parameters of the head that tells replaced tokens. kind: token or token_and_row."""
  vectors = (_vectors(encoder),) * (2 if kind == 'token_and_row' else 1)
  return _replaced_head(encoder, kind).init(key, *vectors)['params']


def replaced_logits(encoder, params, hidden_BLD, batch):
  """logits_BL, float32, that each token was replaced. params: of the network."""
  own = {'params': params['replaced_head']}
  if 'norm' not in params['replaced_head']:
    return _replaced_head(encoder, 'token').apply(own, hidden_BLD)
  if 'position_ids' in batch:  # each text of a packed row has its own first token
    first_BL = jnp.arange(hidden_BLD.shape[1]) - batch['position_ids']
    row_BLD = jnp.take_along_axis(hidden_BLD, first_BL[:, :, None], axis=1, mode='clip')
  else:
    row_BLD = encoder.row_vectors(hidden_BLD, batch)[:, None]
  return _replaced_head(encoder, 'token_and_row').apply(own, hidden_BLD, row_BLD)


def _replaced_head(encoder, kind):
  made = encoder.activation, encoder.kernel_init, encoder.dtype
  if kind == 'token':
    return heads.ReplacedHead(*made)
  return heads.ReplacedHeadOfRow(*made, encoder.norm_eps)


def token_score(encoder):
  """One number per token."""
  return heads.TokenScore(encoder.dtype)


def init_token_score(encoder, key):
  """Its parameters."""
  return token_score(encoder).init(key, _vectors(encoder))['params']


def vocabulary_logits(encoder, params, hidden_BPD, constrain=layers.unconstrained):
  """logits_BPV, float32. params: of the network."""
  words_VE = params['encoder']['embeddings']['word']['embedding']
  head = mlm_head(encoder) if 'transform' in params['mlm_head'] else heads.WordHead()
  return head.apply({'params': params['mlm_head']}, hidden_BPD, words_VE, constrain)


def next_logits(encoder, params, hidden_BLD, constrain=layers.unconstrained):
  """logits_BLV, float32, of the token that follows each token. params: of the network."""
  own = {'encoder': params['encoder'], 'mlm_head': params['next_head']}
  return vocabulary_logits(encoder, own, hidden_BLD, constrain)


def from_left_to_right(batch):
  """The batch with the `order` in which no token sees a later one. Only an encoder whose member
  `left_to_right` is True obeys it.
  """
  rows, length = batch['input_ids'].shape
  return {**batch, 'order': jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (rows, length))}


def pair_logits(encoder, params, hidden_BLD, batch):
  """logits_B2, float32. params: of the network."""
  row_BD = encoder.row_vectors(hidden_BLD, batch)
  return pair_head(encoder).apply({'params': params['pair_head']}, row_BD)


def row_head(
  encoder, kind: str, num_outputs: int, dropout: float = 0.0, input_dropout: float = 0.0
):
  """The head that scores a row by its vector. kind: of heads.ROW_HEADS."""
  return heads.RowHead(
    kind, num_outputs, encoder.kernel_init, encoder.dtype, dropout, input_dropout
  )


def init_row_head(encoder, key, kind: str, num_outputs: int):
  """Its parameters. Raises UserError for an unknown kind."""
  return row_head(encoder, kind, num_outputs).init(key, _vectors(encoder)[0])['params']


def row_head_kind(params) -> str:
  """The kind of a row head, by the names of its parameters."""
  return next(k for k, layer in heads.ROW_HEADS.items() if layer is None or layer[0] in params)


def row_logits(
  encoder, params, hidden_BLD, batch, key=None, dropout=0.0, input_dropout=0.0, name='row_head'
):
  """logits_BC, float32, of each row.

  Args:
    encoder: linen module.
    params: of the network.
    hidden_BLD: the vectors that `encode` returned.
    batch: the batch that the encoder read; with dropout it has row_keys.
    key: key of dropout, None without dropout. The head draws other masks than `encode`.
    dropout, input_dropout: rates, see heads.RowHead.
    name: the head's name among the parameters.
  """
  own, keys_B2 = params[name], _head_keys(batch, key)
  num_outputs = own['classifier']['bias'].shape[0]
  head = row_head(encoder, row_head_kind(own), num_outputs, dropout, input_dropout)
  return head.apply({'params': own}, encoder.row_vectors(hidden_BLD, batch), keys_B2)


def rows_of_options(batch):
  """The batch of B·C rows that a batch of units [B, C, L] has. Each row has its own dropout keys. A
  batch [B, L] is returned as it is.
  """
  if batch['input_ids'].ndim == 2:
    return batch
  units, options, _ = batch['input_ids'].shape
  rows = {
    name: x.reshape(units * options, *x.shape[2:]) for name, x in batch.items() if x.ndim == 3
  }
  if 'row_keys' in batch:
    keys_BC2 = row_keys.fold_in(batch['row_keys'][:, None], jnp.arange(options))
    rows['row_keys'] = keys_BC2.reshape(units * options, 2)
  return rows


def choice_logits(encoder, params, hidden, batch, key=None, dropout=0.0, input_dropout=0.0):
  """logits_BC, float32, of the options of each unit; heads.FORBIDDEN of those that only fill it.

  Args:
    hidden: of the rows of `rows_of_options`, [B·C, L, D].
    batch: of units; option_weights [B, C] is 0 for options that only fill.
    others: see `row_logits`.
  """
  found = row_logits(
    encoder,
    params,
    hidden,
    rows_of_options(batch),
    key,
    dropout,
    input_dropout,
    name='choice_head',
  )
  logits_BC = found.reshape(batch['input_ids'].shape[:2])
  if 'option_weights' not in batch:
    return logits_BC
  return jnp.where(batch['option_weights'] > 0, logits_BC, heads.FORBIDDEN)


def tag_head(encoder, num_outputs: int, dropout: float = 0.0):
  """The head that scores each token by its vector."""
  return heads.TagHead(num_outputs, encoder.kernel_init, dropout)


def init_tag_head(encoder, key, num_outputs: int):
  """Its parameters."""
  return tag_head(encoder, num_outputs).init(key, _vectors(encoder))['params']


def tag_logits(encoder, params, hidden_BLD, batch, key=None, dropout=0.0):
  """logits_BLC, float32, of each token. Arguments: see `row_logits`."""
  own = params['tag_head']
  head = tag_head(encoder, own['classifier']['bias'].shape[0], dropout)
  return head.apply({'params': own}, hidden_BLD, _head_keys(batch, key))


def _head_keys(batch, key):
  """Keys of a head's dropout, [B, 2]; None without."""
  if key is None:
    return None
  return row_keys.fold_in(row_keys.join(batch['row_keys'], key), _ROW_HEAD)


def span_head(encoder):
  """The head that scores tokens as starts and ends of answers."""
  return heads.SpanHead(encoder.kernel_init)


def init_span_head(encoder, key):
  """Its parameters."""
  return span_head(encoder).init(key, _vectors(encoder))['params']


def span_logits(encoder, params, hidden_BLD):
  """(start_BL, end_BL), float32. params: of the network."""
  logits_BL2 = span_head(encoder).apply({'params': params['span_head']}, hidden_BLD)
  return logits_BL2[..., 0], logits_BL2[..., 1]


def init_conditional_span_head(encoder, key, kind: str, hidden_size: int, answerable: bool):
  """Parameters of heads.ConditionalSpanHead. Raises UserError for an unknown kind."""
  vectors_11D = _vectors(encoder)
  head = heads.ConditionalSpanHead(
    kind, hidden_size, answerable, encoder.kernel_init, encoder.dtype, encoder.norm_eps
  )
  allowed = jnp.ones((1, 1), bool)
  return head.init(key, vectors_11D, vectors_11D[0], allowed, beam=1)['params']


def conditional_span_logits(
  encoder, params, hidden_BLD, batch, starts_BK=None, key=None, dropout=0.0
):
  """(start_BL, starts_BK, end_BKL, none_B) of heads.ConditionalSpanHead.

  Args:
    encoder: linen module.
    params: of the network.
    hidden_BLD: of `encode`.
    batch: what the encoder read; answer_mask, without which every token may be part of an answer.
    starts_BK: int32, places of starts; None for the BEAM best ones.
    key: of dropout, None without it; dropout: its rate.
  """
  own, keys_B2 = params['span_head'], None
  if key is not None:
    keys_B2 = row_keys.fold_in(row_keys.join(batch['row_keys'], key), _ROW_HEAD)
  kind = 'tanh' if 'end_norm' in own else 'gelu'
  width = own['end_token']['bias'].shape[0]
  head = heads.ConditionalSpanHead(
    kind, width, 'answer' in own, encoder.kernel_init, encoder.dtype, encoder.norm_eps, dropout
  )
  allowed_BL = batch['answer_mask' if 'answer_mask' in batch else 'pack_ids'] > 0
  row_BD = encoder.row_vectors(hidden_BLD, batch)
  return head.apply(
    {'params': own}, hidden_BLD, row_BD, allowed_BL, starts_BK, BEAM, dropout_keys_B2=keys_B2
  )


def _span_outputs(encoder, params, hidden_BLD, batch):
  """What a head for answers says: start, end [B, L]. Of a conditional head: start_share,
  start_place [B, K], end_share, end_place [B, K, K], probabilities and places from the row's first
  token, K = BEAM, the best first; impossible [B], 0 if it is not scored. Where fewer places are
  allowed, the probability is 0 and the place −1.
  """
  if 'classifier' in params['span_head']:
    start_BL, end_BL = span_logits(encoder, params, hidden_BLD)
    return {'start': start_BL, 'end': end_BL}
  start_BL, starts_BK, end_BKL, none_B = conditional_span_logits(encoder, params, hidden_BLD, batch)
  first_B = jnp.argmax(batch['pack_ids'] > 0, axis=1).astype(jnp.int32)
  shares_BK = jnp.take_along_axis(jax.nn.softmax(start_BL), starts_BK, axis=1)
  ends_BKK, places_BKK = jax.lax.top_k(jax.nn.softmax(end_BKL), starts_BK.shape[1])
  ends_BKK = jnp.where(shares_BK[:, :, None] > 0, ends_BKK, 0.0)
  missing = BEAM - starts_BK.shape[1]  # rows shorter than the beam
  out = {}
  for name, shares, places in (
    ('start', shares_BK, starts_BK - first_B[:, None]),
    ('end', ends_BKK, places_BKK - first_B[:, None, None]),
  ):
    sides = [(0, 0)] + [(0, missing)] * (shares.ndim - 1)
    places = jnp.where(shares > 0, places, -1).astype(jnp.float32)
    out[f'{name}_share'] = jnp.pad(shares, sides)
    out[f'{name}_place'] = jnp.pad(places, sides, constant_values=-1)
  return {**out, 'impossible': jnp.zeros(len(first_B)) if none_B is None else none_B}


def predict(encoder, params: dict, batch: dict) -> dict[str, jax.Array]:
  """The outputs of a network's trained heads, without dropout, float32.

  Each head that the network has gives one entry of {'mlm': logits_BLV, 'pair': logits_B2,
  'replaced': logits_BL, 'row': logits_BC, 'choice': logits_BC, 'tag': logits_BLC}. A head for
  answers gives those of `_span_outputs`. A network that predicts the next token returns
  {'next': logits_BLV}. A batch of B questions with C options, [B, C, L], counts as B·C rows; only
  'choice' has one row per question.
  """
  return {name: x for name, x in outputs(encoder, params, batch).items() if name != 'vectors'}


def outputs(encoder, params: dict, batch: dict) -> dict[str, jax.Array]:
  """As `predict`, and {'vectors': hidden_BLD} of all tokens, float32."""
  units, batch = batch, rows_of_options(batch)
  rows, length = batch['input_ids'].shape
  out = {}
  if 'next_head' in params:
    hidden_BLD = encode(encoder, params['encoder'], from_left_to_right(batch), None)
    out['next'] = next_logits(encoder, params, hidden_BLD)
    return {'vectors': hidden_BLD.astype(jnp.float32), **out}
  if 'mlm_head' in params:
    everywhere_BL = jnp.broadcast_to(jnp.arange(length), (rows, length))
    states_BLD, hidden_BLD, _ = predictions(
      encoder, params['encoder'], {**batch, 'masked_positions': everywhere_BL}, None
    )
    out['mlm'] = vocabulary_logits(encoder, params, states_BLD)
  else:
    hidden_BLD = encode(encoder, params['encoder'], batch, None)
  if 'pair_head' in params:
    out['pair'] = pair_logits(encoder, params, hidden_BLD, batch)
  if 'replaced_head' in params:
    out['replaced'] = replaced_logits(encoder, params, hidden_BLD, batch)
  if 'row_head' in params:
    out['row'] = row_logits(encoder, params, hidden_BLD, batch)
  if 'tag_head' in params:
    out['tag'] = tag_logits(encoder, params, hidden_BLD, batch)
  if 'choice_head' in params and units['input_ids'].ndim == 3:
    out['choice'] = choice_logits(encoder, params, hidden_BLD, units)
  if 'span_head' in params:
    out |= _span_outputs(encoder, params, hidden_BLD, batch)
  return {'vectors': hidden_BLD.astype(jnp.float32), **out}


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


def pair_sums(encoder, params, hidden_BLD, batch) -> dict[str, jax.Array]:
  """{'pair_loss', 'pair_accuracy'}: sums over the rows of a batch. The total 'pairs' is their
  denominator. params: of the network.
  """
  logits_B2 = pair_logits(encoder, params, hidden_BLD, batch)
  nll_B, correct_B = nll(logits_B2, batch['pair_labels'])
  return {'pair_loss': jnp.sum(nll_B), 'pair_accuracy': jnp.sum(correct_B)}


def pair_normalizer(batch) -> jax.Array:
  """The total 'pairs': the number of rows of a batch."""
  return jnp.asarray(batch['pair_labels'].shape[0], jnp.float32)


def token_normalizer(batch) -> jax.Array:
  """The total 'tokens': tokens of a batch that are no padding."""
  return jnp.sum((batch['pack_ids'] > 0).astype(jnp.float32))


def _vectors(encoder):
  return jnp.zeros((1, 1, encoder.hidden_size))
