"""EuroBERT's classes (Boizard et al. 2025), in transformers since 5: `encoder=modern` with RMS
norms and without windows. Its class with a vocabulary head is not among them: the head differs from
ours.
"""

import functools
import types

from bertzoo_jax.hf import architecture
from bertzoo_jax.hf import heads
from bertzoo_jax.hf.architecture import FROM_HEADS_KERNEL
from bertzoo_jax.hf.architecture import HEADS_KERNEL
from bertzoo_jax.hf.architecture import KERNEL
from bertzoo_jax.hf.architecture import WORD_TABLE
from bertzoo_jax.hf.architecture import Row
from bertzoo_jax.hf.architectures import bert_like
from bertzoo_jax.hf.architectures import modernbert

_OURS, _THEIRS = 'encoder/layers', 'model.layers.{i}'
_KERNELS = {
  **{f'attention/{x}': (f'self_attn.{x[0]}_proj', HEADS_KERNEL) for x in ('query', 'key', 'value')},
  'attention/output': ('self_attn.o_proj', FROM_HEADS_KERNEL),
  'feed_forward/in': ('mlp.gate_proj', KERNEL),
  'feed_forward/gate': ('mlp.up_proj', KERNEL),
  'feed_forward/out': ('mlp.down_proj', KERNEL),
}
_BODY = (
  Row(WORD_TABLE, 'model.embed_tokens.weight'),
  *(
    Row(f'{_OURS}/{ours}/kernel', f'{_THEIRS}.{theirs}.weight', transform)
    for ours, (theirs, transform) in _KERNELS.items()
  ),
  Row(f'{_OURS}/attention_norm/scale', f'{_THEIRS}.input_layernorm.weight'),
  Row(f'{_OURS}/feed_forward_norm/scale', f'{_THEIRS}.post_attention_layernorm.weight'),
  Row('encoder/final_norm/scale', 'model.norm.weight'),
)
_FIELDS = {
  'num_layers': 'num_hidden_layers',
  'hidden_size': 'hidden_size',
  'num_heads': 'num_attention_heads',
  'intermediate_size': 'intermediate_size',
  'max_positions': 'max_position_embeddings',
  'norm_eps': 'rms_norm_eps',
  'attention_dropout': 'attention_dropout',
  'initializer_range': 'initializer_range',
}
# The encoder's fields of which these classes have one value only.
_FIXED = dict(
  type_vocab_size=0,
  window=0,
  norms='before',
  norm='rms',
  embedding_norm=False,
  feed_forward='gated',
  use_bias=False,
)
_DEFAULTS = dict(
  hidden_size=768,
  intermediate_size=3072,
  num_hidden_layers=12,
  num_attention_heads=12,
  hidden_act='silu',
  max_position_embeddings=8192,
  initializer_range=0.02,
  rms_norm_eps=1e-5,
  attention_dropout=0.0,
  attention_bias=False,
  mlp_bias=False,
  rope_theta=10_000.0,
  classifier_pooling='late',
)


def _to_config(name, encoder, special, vocab_size):
  modernbert.check_encoder(name, encoder, _FIXED)
  return {
    **architecture.common_config(name, 'eurobert', special, vocab_size),
    **{theirs: getattr(encoder, ours) for ours, theirs in _FIELDS.items()},
    'num_key_value_heads': encoder.num_heads,
    'head_dim': encoder.hidden_size // encoder.num_heads,
    'hidden_act': modernbert.ACTIVATIONS[encoder.activation],
    'attention_bias': False,
    'mlp_bias': False,
    'rope_parameters': {'rope_type': 'default', 'rope_theta': encoder.global_base},
    'bos_token_id': special['cls'],
    'eos_token_id': special['sep'],
    'mask_token_id': special['mask'],
  }


def _to_encoder(content):
  own = content['num_attention_heads']
  modernbert.check_content(
    {**content, 'num_key_value_heads': content.get('num_key_value_heads') or own},
    dict(attention_bias=False, mlp_bias=False, num_key_value_heads=own),
  )
  base = modernbert.base_of(modernbert.rotary_said(content), content['rope_theta'])
  fields = {
    **_FIXED,
    **{ours: content[theirs] for ours, theirs in _FIELDS.items()},
    'activation': architecture.activation(content['hidden_act'], known=modernbert.ACTIVATIONS),
    'global_every': 1,
    'global_base': base,
    'local_base': base,
    'dropout': 0.0,
    'attention_output_dropout': 0.0,
  }
  return fields, architecture.plain_sizes(types.SimpleNamespace(**fields))


_build = functools.partial(
  modernbert.build,
  'eurobert',
  _BODY,
  _to_config,
  to_encoder=_to_encoder,
  defaults=_DEFAULTS,
  modern=lambda name: f'model.{name}' if name.startswith(('embed_', 'layers.', 'norm.')) else name,
  unsaid=dict(initializer='truncated_normal', output_range='same'),
)
MODEL = bert_like.bare(_build, 'EuroBertModel')._replace(reads=True)
_FORMS = {
  heads.ROW: heads.Form(
    {'dense': 'dense', 'classifier': 'classifier'}, (), {'classifier_pooling': 'bos'}
  ),
  heads.TAG: heads.Form({'classifier': 'classifier'}),
}
TASKS = heads.classes(_build, 'EuroBert', _FORMS)
