"""ModernBERT's classes (Warner et al. 2024), in transformers since 4.48."""

import functools

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.hf import architecture
from bertzoo_jax.hf import keys
from bertzoo_jax.hf import task_heads
from bertzoo_jax.hf.architecture import FROM_HEADS_KERNEL
from bertzoo_jax.hf.architecture import HEADS_KERNEL
from bertzoo_jax.hf.architecture import KERNEL
from bertzoo_jax.hf.architecture import WORD_TABLE
from bertzoo_jax.hf.architecture import Row
from bertzoo_jax.hf.architecture import joined
from bertzoo_jax.hf.architectures import bert_like

_LAYERS, _WORDS = 'encoder/layers', 'model.embeddings.tok_embeddings.weight'
_KINDS = ('full_attention', 'sliding_attention')
QUERY_KEY_VALUE, INNER_AND_GATE = joined(*[HEADS_KERNEL] * 3), joined(KERNEL, KERNEL)

_BODY = (
  Row(WORD_TABLE, _WORDS),
  Row('encoder/embeddings/norm/scale', 'model.embeddings.norm.weight'),
  # The first layer has no norm before its attention; our copy of its scale is not used.
  Row(
    f'{_LAYERS}/attention_norm/scale',
    'model.layers.{i}.attn_norm.weight',
    where=lambda i, sizes: i > 0,
    without=lambda sizes: np.ones(sizes.hidden_size, np.float32),
  ),
  Row(
    tuple(f'{_LAYERS}/attention/{name}/kernel' for name in ('query', 'key', 'value')),
    'model.layers.{i}.attn.Wqkv.weight',
    QUERY_KEY_VALUE,
  ),
  Row(f'{_LAYERS}/attention/output/kernel', 'model.layers.{i}.attn.Wo.weight', FROM_HEADS_KERNEL),
  Row(f'{_LAYERS}/feed_forward_norm/scale', 'model.layers.{i}.mlp_norm.weight'),
  Row(
    (f'{_LAYERS}/feed_forward/in/kernel', f'{_LAYERS}/feed_forward/gate/kernel'),
    'model.layers.{i}.mlp.Wi.weight',
    INNER_AND_GATE,
  ),
  Row(f'{_LAYERS}/feed_forward/out/kernel', 'model.layers.{i}.mlp.Wo.weight', KERNEL),
  Row('encoder/final_norm/scale', 'model.final_norm.weight'),
)
ACTIVATIONS = {**keys.ACTIVATIONS, 'silu': 'silu'}


def base_of(rope, usual) -> float:
  """The base of rotary positions that config.json says. Raises UserError for scaled ones."""
  base = rope.get('rope_theta', usual) if isinstance(rope, dict) else None
  kind = isinstance(rope, dict) and rope.get('rope_type', rope.get('type', 'default'))
  if not isinstance(base, int | float) or kind != 'default':
    raise errors.UserError(
      f'config.json says of rotary positions {str(rope)[:80]}, but an encoder here has plain ones '
      'with one base for global and one for local layers.'
    )
  return float(base)


def rotary_parameters(content):
  """rope_parameters of config.json. Raises UserError for rope_scaling, the older key."""
  base_of(content.get('rope_scaling') or {}, 1.0)
  return content.get('rope_parameters') or {}


def _base(number: int):
  """content → the base of the layers of _KINDS[number]."""

  def read(content):
    rope, kind = rotary_parameters(content), _KINDS[number]
    by_kind = isinstance(rope, dict) and rope.keys() <= {*_KINDS}
    usual = content[('global_rope_theta', 'local_rope_theta')[number]]
    return base_of((rope.get(kind) or {}) if by_kind else rope, usual)

  return read


def _every(encoder) -> int:
  return encoder.global_every if encoder.window else 1


def _pattern(layers: int, every: int) -> list[str]:
  return [_KINDS[i % every > 0] for i in range(layers)]


def _global_every(content) -> int:
  layers, every = content['num_hidden_layers'], content['global_attn_every_n_layers']
  kinds = content['layer_types'] or _pattern(layers, every)
  if kinds != _pattern(layers, every):  # transformers 5 writes the list alone
    whole = [i for i, x in enumerate(kinds if isinstance(kinds, list) else ()) if x == _KINDS[0]]
    every = whole[1] if len(whole) > 1 else layers
  if kinds != _pattern(layers, every):
    raise errors.UserError(
      f'config.json says layer_types={kinds}: an encoder here has a global layer first and then '
      'after equal numbers of local ones.'
    )
  if content['local_attention'] < 2 and _KINDS[1] in kinds:
    raise errors.UserError(
      'config.json says local_attention=1, so that a token of a local layer sees itself alone: no '
      'encoder here computes it.'
    )
  return every


def _rotary(at) -> dict:
  bases = at.encoder.global_base, at.encoder.local_base
  return {kind: {'rope_type': 'default', 'rope_theta': x} for kind, x in zip(_KINDS, bases)}


# Keys of all classes of encoder=modern.
COMMON = (
  *keys.COMMON,
  keys.only('type_vocab_size', 0),
  keys.only('norms', 'before'),
  keys.only('feed_forward', 'gated'),
  keys.only('use_bias', False),
  keys.Key('num_hidden_layers', 'num_layers', 12),
  keys.Key('hidden_size', 'hidden_size', 768),
  keys.Key('num_attention_heads', 'num_heads', 12),
  keys.Key('intermediate_size', 'intermediate_size', 3072),
  keys.Key('max_position_embeddings', 'max_positions', 8192),
)
_KEYS = (
  *COMMON,
  keys.only('norm', 'layer'),
  keys.only('embedding_norm', True),
  keys.Key('num_hidden_layers', 'num_layers', 22),
  keys.Key('intermediate_size', 'intermediate_size', 1152),
  keys.Key('norm_eps', 'norm_eps', 1e-5),
  keys.Key('embedding_dropout', 'dropout', 0.0),
  # their one rate is for the probabilities and for the output of attention
  keys.Key('attention_dropout', 'attention_dropout', 0.0),
  keys.means('attention_output_dropout', lambda content: content['attention_dropout']),
  keys.Key('initializer_range', 'initializer_range', 0.02),
  *(
    keys.fixed(f'{what}_bias', False, usual=False)
    for what in ('norm', 'attention', 'mlp', 'classifier')
  ),
  keys.fixed('decoder_bias', True, usual=True),
  keys.activation('hidden_activation', 'gelu', known=ACTIVATIONS),
  keys.refused('classifier_activation', lambda content: content['hidden_activation'])._replace(
    write=lambda at: ACTIVATIONS[at.encoder.activation], usual='gelu'
  ),
  keys.written('mlp_dropout', lambda at: at.encoder.dropout, usual=0.0),
  keys.written('classifier_pooling', 'cls', usual='cls'),
  # one base and one kind per layer, as transformers 5 reads them and as 4 does
  keys.written(
    'layer_types', lambda at: _pattern(at.encoder.num_layers, _every(at.encoder)), usual=[]
  ),
  keys.Key(
    'global_attn_every_n_layers',
    'global_every',
    3,
    lambda at: _every(at.encoder),
    _global_every,
  ),
  keys.Key(
    'local_attention',
    'window',
    128,
    lambda at: at.encoder.window or 128,
    lambda content: content['local_attention'] // 2 * 2,
  ),
  keys.written('rope_parameters', _rotary),
  keys.Key('global_rope_theta', 'global_base', 160_000.0, read=_base(0)),
  keys.Key('local_rope_theta', 'local_base', 10_000.0, read=_base(1)),
  keys.written('cls_token_id', lambda at: at.special['cls']),
  keys.written('sep_token_id', lambda at: at.special['sep']),
  *keys.BEGIN_AND_END,
)


def _head(name: str) -> tuple[Row, ...]:
  """Rows of the parameters before the last layer of each head."""
  return (
    Row(f'{name}/transform/kernel', 'head.dense.weight', KERNEL),
    Row(f'{name}/norm/scale', 'head.norm.weight'),
  )


def build(model_type, body, family, name, *rows, config=(), **rest):
  """A class of encoder=modern. body, rows: of its layers, of its head; family, config: of
  config.json; rest: further fields of Architecture.
  """
  return architecture.Architecture(
    name=name,
    model_type=model_type,
    rows=(*body, *rows),
    sizes=architecture.plain_sizes,
    keys=keys.joined((*family, *config)),
    part='modern',
    activations=ACTIVATIONS,
    **rest,
  )


_build = functools.partial(
  build,
  'modernbert',
  _BODY,
  _KEYS,
  rename_legacy=architecture.prefixed('model', 'embeddings.', 'layers.', 'final_norm.'),
  unsaid=dict(initializer='truncated_normal', output_range='by_depth'),
)


MASKED_LM = _build(
  'ModernBertForMaskedLM',
  *_head('mlm_head'),
  Row('mlm_head/bias', 'decoder.bias'),
  heads='It fills masks. There is no other head.',
  tied={'decoder.weight': _WORDS},
)
MODEL = bert_like.bare(_build, 'ModernBertModel')
_FORM = task_heads.Form(
  {'classifier': 'classifier'}, ('classifier_dropout',), {'classifier_pooling': 'cls'}, also=_head
)
_FORMS = {**dict.fromkeys(task_heads.KINDS, _FORM), task_heads.SPAN: _FORM._replace(rates=())}
TASKS = task_heads.classes(_build, 'ModernBert', _FORMS)
