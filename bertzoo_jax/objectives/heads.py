"""Heads: their inputs, modules and logits. Legend: B batch, L length, P predictions, D width, C
outputs.

An objective makes a head with the fields of its section, as `row('tanh', 3, dropout=0.1)`. Weights
without a config, such as those of a Hugging Face directory: `find` knows their heads by the
names of the parameters.
"""

import collections
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import core

from bertzoo_jax.common import row_keys
from bertzoo_jax.model import head_modules as modules
from bertzoo_jax.model import protocol

# Fields of a head's module that are copied from the encoder.
ENCODER_FIELDS = ('activation', 'norm_eps', 'kernel_init', 'dtype', 'use_bias')
# Added to a row's key, so that the head's dropout differs from the encoder's.
_DROPOUT = 1 << 16


def _row(encoder, params, hidden_BLD, batch):
  return (encoder.pooled(hidden_BLD, batch),)


def _words(encoder, params, vectors, batch):
  return vectors, params['encoder']['embeddings']['word']['embedding']


class Head(NamedTuple):
  """A head over an encoder."""

  name: str  # its name among the parameters of a network
  # class of the linen module; its fields in ENCODER_FIELDS are copied from the encoder
  module: type
  reads: str  # predictions | tokens | rows: the vectors that it reads
  # (encoder, params of the network, vectors, batch of rows) → arguments of the module
  inputs: Callable = lambda encoder, params, vectors, batch: (vectors,)
  fields: core.FrozenDict = core.FrozenDict()  # further fields of the module
  tied: bool = False  # whether it decodes by the word table
  finish: Callable = lambda logits, batch: logits  # (the module's result, batch) → logits
  # (logits, batch) → {name: output of `networks.predict`}; None: the logits by the name of the head
  outputs: Callable | None = None

  def made(self, encoder):
    """The linen module for an encoder."""
    names = (name for name in ENCODER_FIELDS if name in self.module.__dataclass_fields__)
    return self.module(**{**{name: getattr(encoder, name) for name in names}, **self.fields})

  def init(self, encoder, key) -> dict:
    """The head's parameters, float32. Raises UserError for an unknown kind."""
    words_VE = jnp.zeros((encoder.vocab_size, encoder.embedding_width))
    params = {'encoder': {'embeddings': {'word': {'embedding': words_VE}}}}
    batch = collections.defaultdict(lambda: jnp.zeros((1, 1), jnp.int32))
    inputs = self.inputs(encoder, params, jnp.zeros((1, 1, encoder.hidden_size)), batch)
    return self.made(encoder).init(key, *inputs)['params']

  def logits(self, encoder, params, vectors, batch, key=None, **more):
    """Logits, float32.

    encoder: linen module. params: parameters of the network. vectors: [B, P, D] if the head reads
    predictions, else [B, L, D] of all tokens. batch: the encoder's batch, with row_keys for
    dropout. For `choice`: the batch of units. key: dropout key, or None. The head draws other masks
    than the encoder. more: further arguments of the module.
    """
    rows = rows_of_options(batch)
    if key is not None:
      more['dropout_keys_B2'] = row_keys.fold_in(row_keys.join(rows['row_keys'], key), _DROPOUT)
    inputs = self.inputs(encoder, params, vectors, rows)
    return self.finish(
      self.made(encoder).apply({'params': params[self.name]}, *inputs, **more), batch
    )

  def named_outputs(self, logits, batch) -> dict:
    """{name: output}: the head's part of the result of `networks.predict`."""
    if self.outputs is not None:
      return self.outputs(logits, batch)
    return {self.name.removesuffix('_head'): logits}


def vocabulary(name='mlm_head', reads='predictions', transform=True) -> Head:
  """Logits of the vocabulary, [B, P, V] or [B, L, V]. transform: False for the decoder alone."""
  return Head(name, modules.MlmHead if transform else modules.WordHead, reads, _words, tied=True)


def next_token(transform=True) -> Head:
  """Logits of the token that follows each token, [B, L, V]."""
  return vocabulary('next_head', 'tokens', transform)


def boundary(num_offsets: int, offset_size: int) -> Head:
  """Logits [B, P, V] of the tokens of spans, from the vectors beside each span."""

  def inputs(encoder, params, hidden_BLD, batch):
    beside = (protocol.gather(hidden_BLD, batch[name]) for name in ('span_left', 'span_right'))
    return *beside, *_words(encoder, params, batch['span_offset'], batch)

  fields = core.FrozenDict(num_offsets=num_offsets, offset_size=offset_size)
  return Head('boundary_head', modules.BoundaryHead, 'predictions', inputs, fields, tied=True)


def pair() -> Head:
  """Logits [B, 2] of two kinds of pairs."""
  return Head('pair_head', modules.PairHead, 'rows', _row)


def replaced(kind: str) -> Head:
  """Logits [B, L] that each token was replaced. kind: token | token_and_row."""
  if kind == 'token':
    return Head('replaced_head', modules.ReplacedHead, 'tokens')
  return Head('replaced_head', modules.ReplacedHeadOfRow, 'tokens', _token_and_row)


def _token_and_row(encoder, params, hidden_BLD, batch):
  if 'position_ids' not in batch:
    return hidden_BLD, encoder.pooled(hidden_BLD, batch)[:, None]
  # the first token of each packed segment
  first_BL = jnp.arange(hidden_BLD.shape[1]) - batch['position_ids']
  return hidden_BLD, jnp.take_along_axis(hidden_BLD, first_BL[:, :, None], axis=1, mode='clip')


def token_score(name: str, reads: str) -> Head:
  """One number per vector."""
  return Head(name, modules.TokenScore, reads)


def row(kind: str, num_outputs: int, dropout=0.0, input_dropout=0.0, name='row_head') -> Head:
  """Logits [B, C] of rows. kind: of head_modules.FORMS; dropout, input_dropout: rates."""
  rates = dict(dropout=dropout, input_dropout=input_dropout)
  fields = core.FrozenDict(kind=kind, num_outputs=num_outputs, **rates)
  return Head(name, modules.TaskHead, 'rows', _row, fields)


def choice(kind: str, dropout=0.0, input_dropout=0.0) -> Head:
  """Logits [B, C] of the options of units; head_modules.FORBIDDEN for options whose option_weights
  [B, C] is 0, which only fill a unit. Its vectors are of the rows of `rows_of_options`. Arguments:
  see `row`.
  """
  return row(kind, 1, dropout, input_dropout, 'choice_head')._replace(
    finish=_unit_logits,
    outputs=lambda logits, batch: {'choice': logits} if batch['input_ids'].ndim == 3 else {},
  )


def _unit_logits(logits, batch):
  if batch['input_ids'].ndim == 2:
    return logits
  logits_BC = logits.reshape(batch['input_ids'].shape[:2])
  if 'option_weights' not in batch:
    return logits_BC
  return jnp.where(batch['option_weights'] > 0, logits_BC, modules.FORBIDDEN)


def rows_of_options(batch):
  """The B·C rows of a batch of units [B, C, L], each with a row key; a batch [B, L] unchanged."""
  if 'input_ids' not in batch or batch['input_ids'].ndim == 2:
    return batch
  units, options, _ = batch['input_ids'].shape
  rows = {
    name: x.reshape(units * options, *x.shape[2:]) for name, x in batch.items() if x.ndim == 3
  }
  if 'row_keys' in batch:
    keys_BC2 = row_keys.fold_in(batch['row_keys'][:, None], jnp.arange(options))
    rows['row_keys'] = keys_BC2.reshape(units * options, 2)
  return rows


def tag(kind: str, num_outputs: int, dropout=0.0) -> Head:
  """Logits [B, L, C] of tokens. kind: of head_modules.FORMS."""
  fields = core.FrozenDict(kind=kind, num_outputs=num_outputs, dropout=dropout)
  return Head('tag_head', modules.TaskHead, 'tokens', fields=fields)


def span(kind: str) -> Head:
  """(start_BL, end_BL): logits of tokens as starts and as ends of answers. kind: see `tag`."""
  return Head(
    'span_head',
    modules.TaskHead,
    'tokens',
    fields=core.FrozenDict(kind=kind, num_outputs=2),
    finish=lambda logits_BL2, batch: (logits_BL2[..., 0], logits_BL2[..., 1]),
    outputs=lambda logits, batch: dict(zip(('start', 'end'), logits)),
  )


def conditional_span(kind: str, hidden_size: int, answerable: bool, dropout=0.0) -> Head:
  """(start_BL, starts_BK, end_BKL, none_B) of head_modules.ConditionalSpanHead. Answers lie where
  the batch's answer_mask is 1, or at any token without it.
  """

  def inputs(encoder, params, hidden_BLD, batch):
    allowed_BL = batch['answer_mask' if 'answer_mask' in batch else 'segment_ids'] > 0
    return hidden_BLD, encoder.pooled(hidden_BLD, batch), allowed_BL

  fields = core.FrozenDict(
    kind=kind, hidden_size=hidden_size, answerable=answerable, dropout=dropout
  )
  module = modules.ConditionalSpanHead
  return Head('span_head', module, 'tokens', inputs, fields, outputs=_best_answers)


def _best_answers(logits, batch):
  """start_share, start_place [B, K], end_share, end_place [B, K, K]: probabilities, and places from
  the row's first token, K = BEAM, the best first; impossible [B], 0 if the head does not score it.
  If fewer places are allowed, the rest has probability 0 and place −1.
  """
  start_BL, starts_BK, end_BKL, none_B = logits
  first_B = jnp.argmax(batch['segment_ids'] > 0, axis=1).astype(jnp.int32)
  shares_BK = jnp.take_along_axis(jax.nn.softmax(start_BL), starts_BK, axis=1)
  ends_BKK, places_BKK = jax.lax.top_k(jax.nn.softmax(end_BKL), starts_BK.shape[1])
  ends_BKK = jnp.where(shares_BK[:, :, None] > 0, ends_BKK, 0.0)
  missing = modules.BEAM - starts_BK.shape[1]  # rows shorter than the beam
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


# The heads that `networks.predict` reads: {name: parameters of the head → Head}.
TABLE = {
  'mlm_head': lambda tree: vocabulary(transform='transform' in tree),
  'next_head': lambda tree: next_token('transform' in tree),
  'pair_head': lambda tree: pair(),
  'replaced_head': lambda tree: replaced('token_and_row' if 'norm' in tree else 'token'),
  'row_head': lambda tree: row(_kind(tree), *tree['classifier']['bias'].shape),
  'choice_head': lambda tree: choice(_kind(tree)),
  'tag_head': lambda tree: tag(_kind(tree), *tree['classifier']['bias'].shape),
  'span_head': lambda tree: span(_kind(tree)) if 'classifier' in tree else _conditional_span(tree),
}


def find(params: dict) -> dict[str, Head]:
  """{name: Head} of the known heads among the parameters (or shapes) of a network."""
  return {name: TABLE[name](tree) for name, tree in params.items() if name in TABLE}


def _kind(tree):
  return next(kind for kind, layer in modules.FORMS.items() if layer is None or layer[0] in tree)


def _conditional_span(tree):
  kind, width = 'tanh' if 'end_norm' in tree else 'gelu', tree['end_token']['bias'].shape[0]
  return conditional_span(kind, width, 'answer' in tree)
