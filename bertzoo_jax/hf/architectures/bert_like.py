"""The common part of classes that descend from BERT's code: rows, config.json, old file names."""

import functools
import re

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.hf import architecture
from bertzoo_jax.hf import keys
from bertzoo_jax.hf import task_heads
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
from bertzoo_jax.hf.architecture import dense
from bertzoo_jax.hf.architecture import norm

PROJECTION = 'encoder/embedding_projection'

NO_PAIR_HEAD = 'There is no pooler and no pair head: transformers starts them at random if asked.'
NO_POOLER = 'There is no pooler: transformers starts one at random if asked.'
WITHOUT_POOLER = {'add_pooling_layer': False}  # else the class starts one at random

# Keys of every stack of BERT's layers. Defaults are transformers' for BERT.
STACK = (
  keys.Key(
    'num_hidden_layers',
    'num_layers',
    12,
    lambda at: at.encoder.num_layers * at.encoder.inner_group_num,
  ),
  keys.Key('hidden_size', 'hidden_size', 768),
  keys.Key('num_attention_heads', 'num_heads', 12),
  keys.Key('intermediate_size', 'intermediate_size', 3072),
  keys.Key('layer_norm_eps', 'norm_eps', 1e-12),
  keys.Key('hidden_dropout_prob', 'dropout', 0.1),
  keys.Key('attention_probs_dropout_prob', 'attention_dropout', 0.1),
  keys.Key('initializer_range', 'initializer_range', 0.02),
)
# Layers that share are written one by one.
UNSHARED = (
  keys.means('sharing', 'none'),
  keys.means('num_groups', 1),
  keys.means('inner_group_num', 1),
)


def _narrower(content) -> int:
  """embedding_size of the encoder: 0 for tables as wide as the layers."""
  width = content.get('embedding_size', content['hidden_size'])
  return 0 if width == content['hidden_size'] else width


KEYS = (
  *keys.COMMON,
  *STACK,
  *UNSHARED,
  keys.means('embedding_size', _narrower),
  keys.activation('hidden_act', 'gelu'),
  keys.Key('max_position_embeddings', 'max_positions', 512),
)
_BERT_KEYS = (
  *KEYS,
  keys.written('pad_token_id', lambda at: at.special['pad'], usual=None),
  keys.Key(
    'type_vocab_size',
    'type_vocab_size',
    2,
    lambda at: at.encoder.type_vocab_size or at.a.segments,
    # one row for every token is part of the positions
    lambda content: 0 if content['type_vocab_size'] == 1 else content['type_vocab_size'],
  ),
  keys.fixed('is_decoder', False, usual=False),
  keys.written('add_cross_attention', False),
  keys.written('classifier_dropout', None),
  keys.written('use_cache', True),
  # read before transformers 5
  keys.fixed('position_embedding_type', 'absolute', usual='absolute'),
)


def _behind_padding(content) -> int:
  """max_positions of a class whose positions count from pad id + 1."""
  pad, rows = content['pad_token_id'], content['max_position_embeddings']
  first = (1 if pad is None else pad) + 1
  if first >= rows:
    raise errors.UserError(
      f'config.json says pad_token_id={pad} and max_position_embeddings={rows}: positions begin '
      'after the id of padding, so none is left.'
    )
  return rows - first


BEHIND_PADDING = keys.Key(
  'max_position_embeddings',
  'max_positions',
  512,
  lambda at: at.encoder.max_positions + at.sizes.position_offset,
  _behind_padding,
)


def vocabulary_head(transform: str, bias: str, name='mlm_head', norms='LayerNorm'):
  """Rows of a vocabulary head. name: ours of it; transform, bias, norms: theirs of its parts."""
  return (
    *dense(f'{name}/transform', f'{transform}.dense'),
    *norm(f'{name}/norm', f'{transform}.{norms}'),
    Row(f'{name}/bias', f'{bias}.bias'),
  )


def tied(head: str, prefix: str) -> dict[str, str]:
  """{tensor of a vocabulary head: the tensor that it repeats}, Architecture.tied."""
  words = f'{prefix}.embeddings.word_embeddings.weight'
  return {f'{head}.decoder.weight': words, f'{head}.decoder.bias': f'{head}.bias'}


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
      lambda s: np.zeros((segments, s.embedding_width), np.float32),
    ),
    *norm(f'{at}/norm', f'{theirs}.LayerNorm'),
  )


def projection(theirs: str, absent_kernel, absent_bias) -> tuple[Row, ...]:
  """Rows of the projection from tables of another width than the layers. absent_…: see Row."""
  return (
    Row(f'{PROJECTION}/kernel', f'{theirs}.weight', KERNEL, absent_kernel),
    Row(f'{PROJECTION}/bias', f'{theirs}.bias', SAME, absent_bias),
  )


def encoder(prefix: str, segments: int) -> tuple[Row, ...]:
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


def build(
  name: str,
  model_type: str,
  rows: tuple[Row, ...],
  *,
  segments: int,
  sizes=architecture.grouped_sizes,
  config=(),
  **rest,
) -> architecture.Architecture:
  """An architecture of BERT's kind.

  Args:
    name, model_type, rows, sizes, rest: see Architecture.
    segments: rows of the segment table that is written where the encoder has none.
    config: rows of config.json, added to BERT's or replacing them.
  """
  return architecture.Architecture(
    name=name,
    model_type=model_type,
    rows=rows,
    sizes=sizes,
    keys=keys.joined((*_BERT_KEYS, *config)),
    buffers=('embeddings.position_ids', 'embeddings.token_type_ids'),
    rename_legacy=functools.partial(_rename_legacy, model_type),
    post_read=_post_read,
    segments=segments,
    **rest,
  )


def forms(row: task_heads.Form, choice: task_heads.Form | None, rates=(), note: str = '') -> dict:
  """{head: its Form}. rates: of the class that tags; note: for the cards of answers and tags."""
  by_head = {
    task_heads.ROW: row,
    task_heads.SPAN: task_heads.Form({'classifier': 'qa_outputs'}, note=note),
    task_heads.TAG: task_heads.Form({'classifier': 'classifier'}, rates, note=note),
  }
  return by_head if choice is None else {**by_head, task_heads.CHOICE: choice}


def bare(build, name: str, note: str = '', **rest):
  """An architecture without a head. build: (name, **fields) → Architecture. note: for the card."""
  note = f'The network without a head. {NO_POOLER} {note}'.strip()
  return build(name, heads=note, pipeline='feature-extraction', reads=False, **rest)


def _rename_legacy(model_type: str, name: str) -> str:
  """Renames gamma and beta of early checkpoints; adds the prefix that bare bodies lack."""
  name = re.sub(r'LayerNorm\.gamma$', 'LayerNorm.weight', name)
  name = re.sub(r'LayerNorm\.beta$', 'LayerNorm.bias', name)
  body = re.match(r'(embeddings|embeddings_project|encoder|pooler)\.', name)
  return f'{model_type}.{name}' if body else name


def _post_read(params, fields):
  """Adds a segment table of one row, the same vector for every token, to the positions. Raises
  UserError for a projection that the encoder would not have.
  """
  if TYPE_TABLE in params and POSITION_TABLE in params and len(params[TYPE_TABLE]) == 1:
    params[POSITION_TABLE] = params[POSITION_TABLE] + params.pop(TYPE_TABLE)
  if not fields['embedding_size'] and f'{PROJECTION}/kernel' in params:
    kernel, bias = params.pop(f'{PROJECTION}/kernel'), params.pop(f'{PROJECTION}/bias')
    if bias.any() or not np.array_equal(kernel, np.eye(len(kernel))):
      raise errors.UserError(
        'The checkpoint has tables as wide as its layers and a projection between them, which an '
        'encoder here has only where the widths differ: it cannot be read.'
      )
  return params, fields
