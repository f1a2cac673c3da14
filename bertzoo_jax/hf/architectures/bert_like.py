"""The common part of classes that descend from BERT's code: rows, config.json, old file names."""

import functools
import re
import types
from typing import Any

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.hf import architecture
from bertzoo_jax.hf import heads
from bertzoo_jax.hf.architecture import FROM_HEADS_KERNEL
from bertzoo_jax.hf.architecture import HEADS_BIAS
from bertzoo_jax.hf.architecture import HEADS_KERNEL
from bertzoo_jax.hf.architecture import KERNEL
from bertzoo_jax.hf.architecture import POSITION_TABLE
from bertzoo_jax.hf.architecture import POSITIONS
from bertzoo_jax.hf.architecture import SAME
from bertzoo_jax.hf.architecture import TYPE_TABLE
from bertzoo_jax.hf.architecture import WORD_TABLE
from bertzoo_jax.hf.architecture import Row
from bertzoo_jax.hf.architecture import Sizes

PROJECTION = 'encoder/embedding_projection'

NO_PAIR_HEAD = 'There is no pooler and no pair head: transformers starts them at random if asked.'
NO_POOLER = 'There is no pooler: transformers starts one at random if asked.'
WITHOUT_POOLER = {'add_pooling_layer': False}  # of a class that else starts one at random

FIELDS = {  # the encoder's field and theirs, where only the name differs
  'num_layers': 'num_hidden_layers',
  'hidden_size': 'hidden_size',
  'num_heads': 'num_attention_heads',
  'intermediate_size': 'intermediate_size',
  'norm_eps': 'layer_norm_eps',
  'dropout': 'hidden_dropout_prob',
  'attention_dropout': 'attention_probs_dropout_prob',
  'initializer_range': 'initializer_range',
}
DEFAULTS = dict(  # of transformers, where config.json leaves a key out
  num_hidden_layers=12,
  hidden_size=768,
  num_attention_heads=12,
  intermediate_size=3072,
  layer_norm_eps=1e-12,
  hidden_dropout_prob=0.1,
  attention_probs_dropout_prob=0.1,
  initializer_range=0.02,
  hidden_act='gelu',
  max_position_embeddings=512,
  type_vocab_size=2,
)
_OF_BERT = dict(is_decoder=False, position_embedding_type='absolute', pad_token_id=None)


def norm(ours: str, theirs: str) -> tuple[Row, ...]:
  """Rows of a layer norm."""
  return Row(f'{ours}/scale', f'{theirs}.weight'), Row(f'{ours}/bias', f'{theirs}.bias')


def dense(ours: str, theirs: str, kernel=KERNEL, bias=SAME) -> tuple[Row, ...]:
  """Rows of a dense layer."""
  return Row(f'{ours}/kernel', f'{theirs}.weight', kernel), Row(
    f'{ours}/bias', f'{theirs}.bias', bias
  )


def embeddings(prefix: str, segments: int) -> tuple[Row, ...]:
  """The tables and their norm. segments: rows of zeros written where the encoder has no table."""
  at, theirs = 'encoder/embeddings', f'{prefix}.embeddings'
  return (
    Row(WORD_TABLE, f'{theirs}.word_embeddings.weight'),
    Row(POSITION_TABLE, f'{theirs}.position_embeddings.weight', POSITIONS),
    Row(
      TYPE_TABLE,
      f'{theirs}.token_type_embeddings.weight',
      SAME,
      lambda s: np.zeros((segments, s.table_width), np.float32),
    ),
    *norm(f'{at}/norm', f'{theirs}.LayerNorm'),
  )


def projection(theirs: str, absent_kernel, absent_bias) -> tuple[Row, ...]:
  """From tables of another width than the layers. absent_…: see Row."""
  return (
    Row(f'{PROJECTION}/kernel', f'{theirs}.weight', KERNEL, absent_kernel),
    Row(f'{PROJECTION}/bias', f'{theirs}.bias', SAME, absent_bias),
  )


def encoder(prefix: str, segments: int) -> tuple[Row, ...]:
  """Embeddings and layers."""
  layer, layers = f'{prefix}.encoder.layer.{{i}}', 'encoder/layers'
  return (
    *embeddings(prefix, segments),
    *dense(f'{layers}/attention/query', f'{layer}.attention.self.query', HEADS_KERNEL, HEADS_BIAS),
    *dense(f'{layers}/attention/key', f'{layer}.attention.self.key', HEADS_KERNEL, HEADS_BIAS),
    *dense(f'{layers}/attention/value', f'{layer}.attention.self.value', HEADS_KERNEL, HEADS_BIAS),
    *dense(f'{layers}/attention/output', f'{layer}.attention.output.dense', FROM_HEADS_KERNEL),
    *norm(f'{layers}/attention_norm', f'{layer}.attention.output.LayerNorm'),
    *dense(f'{layers}/feed_forward/in', f'{layer}.intermediate.dense'),
    *dense(f'{layers}/feed_forward/out', f'{layer}.output.dense'),
    *norm(f'{layers}/feed_forward_norm', f'{layer}.output.LayerNorm'),
  )


def common_fields(content) -> dict:
  """Fields of an encoder that config.json gives for every class with such layers."""
  width = content.get('embedding_size', content['hidden_size'])
  return {
    **{ours: content[theirs] for ours, theirs in FIELDS.items()},
    'embedding_size': 0 if width == content['hidden_size'] else width,
    'sharing': 'none',
    'num_groups': 1,
    'inner_group_num': 1,
    'activation': architecture.activation(content['hidden_act']),
    'max_positions': content['max_position_embeddings'],
  }


def build(
  name: str,
  model_type: str,
  rows: tuple[Row, ...],
  *,
  segments: int,
  positions_after_padding: bool = False,
  decoder: bool = False,
  blocks=lambda encoder: encoder.num_layers * encoder.inner_group_num,
  more=lambda encoder, special, sizes: {},
  more_fields=lambda content: {},
  defaults: dict[str, Any] | None = None,
  **rest,
) -> architecture.Architecture:
  """An architecture of BERT's kind.

  Args:
    name, model_type, rows: see Architecture.
    segments: rows of the segment table that is written where the encoder has none.
    positions_after_padding: whether positions count from pad id + 1 (else from 0).
    decoder: whether tokens see no later ones.
    blocks: encoder → how many blocks there are tensors of.
    more: (encoder, special, sizes) → keys of config.json besides the common ones.
    more_fields: config.json → the fields of the encoder that are read in another way.
    defaults: where they are not BERT's.
    rest: of Architecture.
  """

  def sizes(encoder, special):
    offset = special['pad'] + 1 if positions_after_padding else 0
    made = architecture.grouped_sizes(encoder)
    return made._replace(blocks=blocks(encoder), position_offset=offset)

  def to_config(encoder, special, vocab_size):
    size = sizes(encoder, special)
    return {
      **architecture.common_config(name, model_type, special, vocab_size),
      **{theirs: getattr(encoder, ours) for ours, theirs in FIELDS.items()},
      'num_hidden_layers': encoder.num_layers * encoder.inner_group_num,
      'hidden_act': architecture.ACTIVATIONS[encoder.activation],
      'max_position_embeddings': encoder.max_positions + size.position_offset,
      'type_vocab_size': encoder.type_vocab_size or segments,
      'is_decoder': decoder,
      'add_cross_attention': False,
      'classifier_dropout': None,
      'use_cache': True,
      'position_embedding_type': 'absolute',  # read before transformers 5
      **more(encoder, special, size),
    }

  def to_encoder(content):
    _check_kind(content, decoder)
    pad = content['pad_token_id']
    special = {'pad': 1 if pad is None else pad}
    fields = {
      **common_fields(content),
      # One row for every token is part of the positions.
      'type_vocab_size': 0 if content['type_vocab_size'] == 1 else content['type_vocab_size'],
      **more_fields(content),
    }
    size = sizes(types.SimpleNamespace(**fields), special)
    if size.position_offset >= fields['max_positions']:
      raise errors.UserError(
        f'config.json says pad_token_id={pad} and max_position_embeddings='
        f'{fields["max_positions"]}: positions begin behind the id of padding, so none is left.'
      )
    return {**fields, 'max_positions': fields['max_positions'] - size.position_offset}, size

  return architecture.Architecture(
    name=name,
    model_type=model_type,
    rows=rows,
    sizes=sizes,
    to_config=to_config,
    to_encoder=to_encoder,
    defaults={**DEFAULTS, **_OF_BERT, **(defaults or {})},
    buffers=('embeddings.position_ids', 'embeddings.token_type_ids'),
    modern=functools.partial(_modern, model_type),
    settle=_settle,
    segments=segments,
    **rest,
  )


def forms(row: heads.Form, choice: heads.Form | None, rates=(), said: str = '') -> dict:
  """{head: its Form}. rates: of the class that tags; said: for the cards of answers and tags."""
  own = {
    heads.ROW: row,
    heads.SPAN: heads.Form({'classifier': 'qa_outputs'}, said=said),
    heads.TAG: heads.Form({'classifier': 'classifier'}, rates, said=said),
  }
  return own if choice is None else {**own, heads.CHOICE: choice}


def bare(build, name: str, said: str = '', **rest):
  """An architecture without a head. build: (name, **fields) → one. said: more for the card."""
  said = f'The network without a head. {NO_POOLER} {said}'.strip()
  return build(name, heads=said, pipeline='feature-extraction', reads=False, **rest)


def _check_kind(content, decoder: bool) -> None:
  """Raises UserError for a config.json of another kind of network."""
  if content['is_decoder'] != decoder or content['position_embedding_type'] != 'absolute':
    other, own = ('an encoder', 'decoders') if decoder else ('a decoder', 'encoders')
    raise errors.UserError(
      f'config.json describes {other} or relative positions; only {own} with learned absolute '
      'positions can be read.'
    )


def _modern(model_type: str, name: str) -> str:
  """Norms of early checkpoints say gamma and beta; bare bodies lack the prefix."""
  name = re.sub(r'LayerNorm\.gamma$', 'LayerNorm.weight', name)
  name = re.sub(r'LayerNorm\.beta$', 'LayerNorm.bias', name)
  body = re.match(r'(embeddings|embeddings_project|encoder|pooler)\.', name)
  return f'{model_type}.{name}' if body else name


def _settle(params: dict[str, np.ndarray], sizes: Sizes) -> dict[str, np.ndarray]:
  """A segment table of one row is the same vector for every token: it is added to the positions.
  Raises UserError for a projection that the encoder would not have.
  """
  if TYPE_TABLE in params and POSITION_TABLE in params and len(params[TYPE_TABLE]) == 1:
    params[POSITION_TABLE] = params[POSITION_TABLE] + params.pop(TYPE_TABLE)
  if sizes.table_width == sizes.hidden_size and f'{PROJECTION}/kernel' in params:
    kernel, bias = params.pop(f'{PROJECTION}/kernel'), params.pop(f'{PROJECTION}/bias')
    if bias.any() or not np.array_equal(kernel, np.eye(len(kernel))):
      raise errors.UserError(
        'The checkpoint has tables as wide as its layers and a projection between them, which an '
        'encoder here has only where the widths differ: it cannot be read.'
      )
  return params
