"""ModernBERT's classes (Warner et al. 2024), in transformers since 4.48."""

import functools
import types

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.hf import architecture
from bertzoo_jax.hf import heads
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
_FIELDS = {
  'num_layers': 'num_hidden_layers',
  'hidden_size': 'hidden_size',
  'num_heads': 'num_attention_heads',
  'intermediate_size': 'intermediate_size',
  'max_positions': 'max_position_embeddings',
  'norm_eps': 'norm_eps',
  'dropout': 'embedding_dropout',
  'attention_dropout': 'attention_dropout',
  'attention_output_dropout': 'attention_dropout',
  'initializer_range': 'initializer_range',
}
ACTIVATIONS = {**architecture.ACTIVATIONS, 'silu': 'silu'}
# The only values of these classes: fields of the encoder, and keys of config.json.
_FIXED_FIELDS = dict(
  type_vocab_size=0,
  norms='before',
  norm='layer',
  embedding_norm=True,
  feed_forward='gated',
  use_bias=False,
)
_FIXED = {
  **dict.fromkeys(('norm_bias', 'attention_bias', 'mlp_bias', 'classifier_bias'), False),
  'decoder_bias': True,
}
_DEFAULTS = {
  **_FIXED,
  'hidden_size': 768,
  'intermediate_size': 1152,
  'num_hidden_layers': 22,
  'num_attention_heads': 12,
  'hidden_activation': 'gelu',
  'classifier_activation': 'gelu',
  'max_position_embeddings': 8192,
  'initializer_range': 0.02,
  'norm_eps': 1e-5,
  'attention_dropout': 0.0,
  'embedding_dropout': 0.0,
  'mlp_dropout': 0.0,
  'local_attention': 128,
  'global_attn_every_n_layers': 3,
  'global_rope_theta': 160_000.0,
  'local_rope_theta': 10_000.0,
  'layer_types': [],
  'classifier_pooling': 'cls',
}


def _head(name: str) -> tuple[Row, ...]:
  """Rows of the parameters before the last layer of each head."""
  return (
    Row(f'{name}/transform/kernel', 'head.dense.weight', KERNEL),
    Row(f'{name}/norm/scale', 'head.norm.weight'),
  )


def check_encoder(name, encoder, fixed) -> None:
  """Raises UserError for an encoder that a class does not compute. fixed: {field: only value}."""
  for field, value in fixed.items():
    if (own := getattr(encoder, field, None)) != value:
      raise errors.UserError(
        f'{name} has encoder.{field}={value}, this model was trained with {own}: no class of '
        'Hugging Face known here computes it.'
      )


def check_content(content, wanted) -> None:
  """Raises UserError for a config.json with other values. wanted: {key: only value}."""
  for key, value in wanted.items():
    if content[key] != value:
      raise errors.UserError(
        f'config.json says {key}={content[key]}, and this encoder has {value} only.'
      )


def _to_config(name, encoder, special, vocab_size):
  check_encoder(name, encoder, _FIXED_FIELDS)
  every = encoder.global_every if encoder.window else 1
  applied = ACTIVATIONS[encoder.activation]
  return {
    **architecture.common_config(name, 'modernbert', special, vocab_size),
    **{theirs: getattr(encoder, ours) for ours, theirs in _FIELDS.items()},
    # their one rate is for the probabilities and for the output of attention
    'attention_dropout': encoder.attention_dropout,
    **_FIXED,
    'hidden_activation': applied,
    'classifier_activation': applied,
    'mlp_dropout': encoder.dropout,
    'classifier_pooling': 'cls',
    # one base and one kind per layer, as transformers 5 reads them and as 4 does
    'layer_types': [_KINDS[i % every > 0] for i in range(encoder.num_layers)],
    'global_attn_every_n_layers': every,
    'local_attention': encoder.window or 128,
    'rope_parameters': {
      kind: {'rope_type': 'default', 'rope_theta': base}
      for kind, base in zip(_KINDS, (encoder.global_base, encoder.local_base))
    },
    'global_rope_theta': encoder.global_base,
    'local_rope_theta': encoder.local_base,
    **{f'{role}_token_id': special[role] for role in ('cls', 'sep')},
    'bos_token_id': special['cls'],
    'eos_token_id': special['sep'],
  }


def base_of(said, usual) -> float:
  """The base of rotary positions that config.json says. Raises UserError for scaled ones."""
  base = said.get('rope_theta', usual) if isinstance(said, dict) else None
  kind = isinstance(said, dict) and said.get('rope_type', said.get('type', 'default'))
  if not isinstance(base, int | float) or kind != 'default':
    raise errors.UserError(
      f'config.json says of rotary positions {str(said)[:80]}, and an encoder here has plain ones '
      'with one base for global and one for local layers.'
    )
  return float(base)


def rotary_said(content):
  """rope_parameters of config.json. Raises UserError for scaled ones, an older rope_scaling."""
  base_of(content.get('rope_scaling') or {}, 1.0)
  return content.get('rope_parameters') or {}


def _to_encoder(content):
  applied = architecture.activation(content['hidden_activation'], 'hidden_activation', ACTIVATIONS)
  check_content(content, {**_FIXED, 'classifier_activation': content['hidden_activation']})
  said = rotary_said(content)
  usual = content['global_rope_theta'], content['local_rope_theta']
  by_kind = isinstance(said, dict) and said.keys() <= {*_KINDS}
  of_kind = lambda kind: (said.get(kind) or {}) if by_kind else said
  bases = [base_of(of_kind(kind), base) for kind, base in zip(_KINDS, usual)]
  layers, every = content['num_hidden_layers'], content['global_attn_every_n_layers']
  pattern = lambda every: [_KINDS[i % every > 0] for i in range(layers)]
  kinds = content['layer_types'] or pattern(every)
  if kinds != pattern(every):  # transformers 5 writes the list alone
    whole = [i for i, x in enumerate(kinds if isinstance(kinds, list) else ()) if x == _KINDS[0]]
    every = whole[1] if len(whole) > 1 else layers
  if kinds != pattern(every):
    raise errors.UserError(
      f'config.json says layer_types={kinds}: an encoder here has a global layer first and then '
      'after equal numbers of local ones.'
    )
  if content['local_attention'] < 2 and _KINDS[1] in kinds:
    raise errors.UserError(
      'config.json says local_attention=1, so that a token of a local layer sees itself alone: no '
      'encoder here computes it.'
    )
  fields = {
    **_FIXED_FIELDS,
    **{ours: content[theirs] for ours, theirs in _FIELDS.items()},
    'activation': applied,
    'global_every': every,
    'window': content['local_attention'] // 2 * 2,
    **dict(zip(('global_base', 'local_base'), bases)),
  }
  return fields, architecture.plain_sizes(types.SimpleNamespace(**fields))


def _modern(name: str) -> str:
  """Bare bodies lack the prefix."""
  return f'model.{name}' if name.startswith(('embeddings.', 'layers.', 'final_norm.')) else name


def build(model_type, body, to_config, name, *rows, **rest):
  """A class of encoder=modern. body, rows: of its layers, of its head; to_config: as of
  Architecture, with the class's name before; rest: further fields of Architecture.
  """
  return architecture.Architecture(
    name=name,
    model_type=model_type,
    rows=(*body, *rows),
    sizes=architecture.plain_sizes,
    to_config=functools.partial(to_config, name),
    part='modern',
    activations=ACTIVATIONS,
    **rest,
  )


_build = functools.partial(
  build,
  'modernbert',
  _BODY,
  _to_config,
  to_encoder=_to_encoder,
  defaults=_DEFAULTS,
  modern=_modern,
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
_FORM = heads.Form(
  {'classifier': 'classifier'}, ('classifier_dropout',), {'classifier_pooling': 'cls'}, also=_head
)
_FORMS = {**dict.fromkeys(heads.KINDS, _FORM), heads.SPAN: _FORM._replace(rates=())}
TASKS = heads.classes(_build, 'ModernBert', _FORMS)
