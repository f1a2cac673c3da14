"""Tensor names and config.json of all classes of DeBERTa (He et al. 2020, 2021; released code)."""

import functools
import json
import re

from bertzoo_jax.common import errors
from bertzoo_jax.hf import architecture
from bertzoo_jax.hf import keys
from bertzoo_jax.hf import task_heads
from bertzoo_jax.hf.architecture import FROM_HEADS_KERNEL
from bertzoo_jax.hf.architecture import KERNEL
from bertzoo_jax.hf.architecture import POSITION_TABLE
from bertzoo_jax.hf.architecture import TYPE_TABLE
from bertzoo_jax.hf.architecture import WORD_TABLE
from bertzoo_jax.hf.architecture import Row
from bertzoo_jax.hf.architecture import dense
from bertzoo_jax.hf.architecture import norm
from bertzoo_jax.hf.architectures import bert_like

PREFIX = 'deberta'
POSITIONS = 'deberta.embeddings.position_embeddings.weight'
ATTENTION, THEIR_ATTENTION = 'encoder/layers/attention', 'deberta.encoder.layer.{i}.attention.self'

NO_POOLER = bert_like.NO_POOLER
_NO_DECODER = (
  '**Do not fill masks with transformers.** This network was trained with the enhanced mask '
  'decoder (He et al. 2020 §3.2), which no class of transformers has. So the guesses of its '
  '`fill-mask` are wrong. `python -m bertzoo_jax.fill_mask` uses the decoder, which reads '
  f'`{POSITIONS}`. transformers ignores this tensor. Fine-tuning needs neither.'
)

_TERMS = ('c2p', 'p2c')


def may_lack(rows: tuple[Row, ...]) -> tuple[Row, ...]:
  """The rows, made optional: the encoder may lack their parameters."""
  return tuple(row._replace(absent=lambda sizes: None) for row in rows)


def encoder(*attention: Row) -> tuple[Row, ...]:
  """Embeddings, relative table and layers. attention: rows of queries, keys and values."""
  ours, theirs = 'encoder/layers', 'deberta.encoder.layer.{i}'
  return (
    Row(WORD_TABLE, 'deberta.embeddings.word_embeddings.weight'),
    *may_lack(
      (
        Row(POSITION_TABLE, POSITIONS),
        Row(TYPE_TABLE, 'deberta.embeddings.token_type_embeddings.weight'),
        Row(f'{bert_like.PROJECTION}/kernel', 'deberta.embeddings.embed_proj.weight', KERNEL),
        Row('encoder/relative/embedding', 'deberta.encoder.rel_embeddings.weight'),
      )
    ),
    *norm('encoder/embeddings/norm', 'deberta.embeddings.LayerNorm'),
    *attention,
    *dense(f'{ATTENTION}/output', theirs + '.attention.output.dense', FROM_HEADS_KERNEL),
    *norm(f'{ours}/attention_norm', theirs + '.attention.output.LayerNorm'),
    *dense(f'{ours}/feed_forward/in', theirs + '.intermediate.dense'),
    *dense(f'{ours}/feed_forward/out', theirs + '.output.dense'),
    *norm(f'{ours}/feed_forward_norm', theirs + '.output.LayerNorm'),
  )


MLM_HEAD = bert_like.vocabulary_head('cls.predictions.transform', 'cls.predictions')


def _terms_of(at) -> list[str]:
  """pos_att_type of an encoder."""
  has = at.encoder.content_to_position, at.encoder.position_to_content
  return [term for term, used in zip(_TERMS, has) if used]


def _terms(content) -> list[str]:
  """The relative terms of a config.json, which has them as a list or a text. Raises UserError for
  terms other than c2p and p2c, and for terms without relative attention (which would only change
  the scale of the scores).
  """
  value = content.get('pos_att_type') or []
  terms = value.lower().split('|') if isinstance(value, str) else value
  terms = [term.strip() if isinstance(term, str) else term for term in terms]
  terms = [] if terms == ['none'] else terms
  strange = [term for term in terms if term not in _TERMS]
  if strange or len(set(terms)) < len(terms) or (terms and not content['relative_attention']):
    raise errors.UserError(
      f'config.json says pos_att_type={str(value)[:40]} and relative_attention='
      f'{json.dumps(content["relative_attention"])}, which no encoder here can express: it has the '
      'terms c2p and p2c, each at most once, and none without relative attention.'
    )
  return terms


KEYS = (
  *keys.COMMON,
  *bert_like.STACK,
  keys.written('embedding_size', lambda at: at.encoder.embedding_size or at.encoder.hidden_size),
  *bert_like.KEYS,
  keys.refused('attention_head_size', lambda c: c['hidden_size'] // c['num_attention_heads']),
  keys.refused('talking_head', False),
  keys.Key('layer_norm_eps', 'norm_eps', 1e-7),
  keys.written('pad_token_id', lambda at: at.special['pad'], usual=0),
  keys.Key('type_vocab_size', 'type_vocab_size', 0),
  keys.written('relative_attention', lambda at: bool(_terms_of(at)), usual=False),
  keys.written('pos_att_type', _terms_of),
  keys.means('content_to_position', lambda content: 'c2p' in _terms(content)),
  keys.means('position_to_content', lambda content: 'p2c' in _terms(content)),
  keys.Key(
    'max_relative_positions',
    'max_distance',
    -1,
    lambda at: -1 if (e := at.encoder).max_distance == e.max_positions else e.max_distance,
    lambda c: max(0, c['max_relative_positions']) or c['max_position_embeddings'],
  ),
  keys.Key(
    'position_biased_input',
    'absolute_positions',
    True,
    lambda at: at.encoder.absolute_positions == 'input',
    lambda content: 'input' if content['position_biased_input'] else 'decoder',
  ),
  keys.written('pooler_hidden_size', lambda at: at.encoder.hidden_size),
  keys.written('pooler_hidden_act', 'gelu'),
  keys.written('pooler_dropout', 0),
  # the names of the head that both versions of transformers read
  keys.written('legacy', True, usual=True),
)


def build(
  name: str, model_type: str, rows: tuple[Row, ...], config, **rest
) -> architecture.Architecture:
  """An architecture of DeBERTa's kind. config: rows besides KEYS; others: see Architecture."""
  return architecture.Architecture(
    name=name,
    model_type=model_type,
    rows=rows,
    sizes=architecture.grouped_sizes,
    keys=keys.joined((*KEYS, *config)),
    part='disentangled',
    tied=bert_like.tied('cls.predictions', PREFIX),
    buffers=('embeddings.position_ids',),
    rename_legacy=_rename_legacy,
    post_read=_post_read,
    **rest,
  )


def family(build, name: str, may_choose: bool) -> tuple[dict, architecture.Architecture]:
  """(classes for tasks by head, class without a head). build: (name, *rows of heads, **fields) → an
  architecture. may_choose: whether there is a class that chooses.
  """
  build_task = functools.partial(build, computes=_for_rows)
  pooled = task_heads.Form(
    {'dense': 'pooler.dense', 'classifier': 'classifier'},
    ('cls_dropout', 'pooler_dropout'),
    {'pooler_hidden_act': 'gelu'},
  )
  forms = bert_like.forms(pooled, pooled if may_choose else None)
  return task_heads.classes(build_task, name, forms), bert_like.bare(build_task, f'{name}Model')


def _for_rows(encoder) -> architecture.Computed:
  """The Computed of a class that reads the last layer's vectors: the decoder never changes them."""
  computed = without_decoder(encoder)
  note = f'The enhanced mask decoder has no part in it, and `{POSITIONS}` is not read.'
  return computed._replace(note=note if computed.note else '', pipeline=None)


def without_decoder(encoder) -> architecture.Computed:
  """The Computed of an encoder whose class predicts from the last layer, without the decoder."""
  if encoder.absolute_positions != 'decoder':
    return architecture.Computed(encoder)
  plain = encoder.clone(absolute_positions='none')
  return architecture.Computed(plain, (POSITIONS,), _NO_DECODER, 'feature-extraction')


def _post_read(params, fields):
  """Drops the decoder if there is no position table for it."""
  lacks = fields['absolute_positions'] == 'decoder' and POSITION_TABLE not in params
  return params, {**fields, 'absolute_positions': 'none'} if lacks else fields


def _rename_legacy(name: str) -> str:
  """Renames Microsoft's head lm_predictions.lm_head, the name that transformers uses without
  `legacy`; adds the prefix that bare bodies lack.
  """
  name = re.sub(
    r'^lm_predictions\.lm_head\.(dense|LayerNorm)\.', r'cls.predictions.transform.\1.', name
  )
  name = re.sub(r'^lm_predictions\.lm_head\.bias$', 'cls.predictions.bias', name)
  return f'{PREFIX}.{name}' if re.match(r'(embeddings|encoder)\.', name) else name
