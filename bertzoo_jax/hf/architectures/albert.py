"""ALBERT (Lan et al. 2019): layers share all in groups, and a group may be several blocks."""

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.hf import architecture
from bertzoo_jax.hf import keys
from bertzoo_jax.hf import task_heads
from bertzoo_jax.hf.architecture import FROM_HEADS_KERNEL
from bertzoo_jax.hf.architecture import HEADS_BIAS
from bertzoo_jax.hf.architecture import HEADS_KERNEL
from bertzoo_jax.hf.architecture import dense
from bertzoo_jax.hf.architecture import norm
from bertzoo_jax.hf.architectures import bert_like


def _sizes(encoder, special) -> architecture.Sizes:
  """Layers that share all are written once for each group."""
  layers = encoder.num_groups if encoder.sharing == 'all' else encoder.num_layers
  return architecture.grouped_sizes(encoder)._replace(blocks=layers * encoder.inner_group_num)


def _groups(content) -> int:
  layers, groups = content['num_hidden_layers'], content['num_hidden_groups']
  if layers % groups:
    raise errors.UserError(
      f'config.json says num_hidden_groups={groups}, which does not divide '
      f'num_hidden_layers={layers}: groups here have the same number of layers.'
    )
  return groups


_KEYS = (
  keys.Key('num_hidden_layers', 'num_layers', 12, lambda at: at.encoder.num_layers),
  keys.Key('embedding_size', usual=128, write=lambda at: at.sizes.embedding_width),
  keys.Key('hidden_size', 'hidden_size', 4096),
  keys.Key('num_attention_heads', 'num_heads', 64),
  keys.Key('intermediate_size', 'intermediate_size', 16384),
  keys.Key('hidden_dropout_prob', 'dropout', 0.0),
  keys.Key('attention_probs_dropout_prob', 'attention_dropout', 0.0),
  keys.activation('hidden_act', 'gelu_new'),
  keys.means('sharing', 'all'),
  keys.Key(
    'num_hidden_groups',
    usual=1,
    write=lambda at: at.sizes.blocks // at.encoder.inner_group_num,
  ),
  keys.means('num_groups', _groups),
  keys.Key('inner_group_num', 'inner_group_num', 1),
  keys.written('classifier_dropout_prob', 0.1),
  *keys.BEGIN_AND_END,
)


def _build(name, *head_rows, config=(), **rest):
  layer, layers = 'albert.encoder.albert_layer_groups.{g}.albert_layers.{j}', 'encoder/layers'
  rows = (
    *bert_like.embeddings('albert', 2),
    # Tables as wide as the layers have no projection here; there it is the identity.
    *bert_like.projection(
      'albert.encoder.embedding_hidden_mapping_in',
      lambda s: np.eye(s.hidden_size, dtype=np.float32),
      lambda s: np.zeros(s.hidden_size, np.float32),
    ),
    *dense(f'{layers}/attention/query', f'{layer}.attention.query', HEADS_KERNEL, HEADS_BIAS),
    *dense(f'{layers}/attention/key', f'{layer}.attention.key', HEADS_KERNEL, HEADS_BIAS),
    *dense(f'{layers}/attention/value', f'{layer}.attention.value', HEADS_KERNEL, HEADS_BIAS),
    *dense(f'{layers}/attention/output', f'{layer}.attention.dense', FROM_HEADS_KERNEL),
    *norm(f'{layers}/attention_norm', f'{layer}.attention.LayerNorm'),
    *dense(f'{layers}/feed_forward/in', f'{layer}.ffn'),
    *dense(f'{layers}/feed_forward/out', f'{layer}.ffn_output'),
    *norm(f'{layers}/feed_forward_norm', f'{layer}.full_layer_layer_norm'),
    *head_rows,
  )
  return bert_like.build(
    name,
    'albert',
    rows,
    segments=2,
    sizes=_sizes,
    config=(*_KEYS, *config),
    **rest,
  )


_MLM_HEAD = bert_like.vocabulary_head('predictions', 'predictions')
_TIED = bert_like.tied('predictions', 'albert')
PRETRAINING = _build(
  'AlbertForPreTraining',
  *_MLM_HEAD,
  *task_heads.rows('pair_head', pooler='albert.pooler', classifier='sop_classifier.classifier'),
  tied=_TIED,
  heads='The pair head (`sop_classifier`) tells how the second text relates to the first.',
)
MASKED_LM = _build(
  'AlbertForMaskedLM', *_MLM_HEAD, tied=_TIED, heads=bert_like.NO_PAIR_HEAD, reads=False
)
_RATES = ('classifier_dropout_prob',)
_POOLED = task_heads.Form({'pooler': 'albert.pooler', 'classifier': 'classifier'}, _RATES)
TASKS = task_heads.classes(_build, 'Albert', bert_like.forms(_POOLED, _POOLED, _RATES))
MODEL = bert_like.bare(_build, 'AlbertModel', load_args=bert_like.WITHOUT_POOLER)
