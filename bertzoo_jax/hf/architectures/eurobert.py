"""EuroBERT's classes (Boizard et al. 2025), in transformers since 5: `encoder=modern` with RMS
norms and without windows. Its class with a vocabulary head is not among them: the head differs from
ours.
"""

import functools

from bertzoo_jax.common import errors
from bertzoo_jax.hf import architecture
from bertzoo_jax.hf import keys
from bertzoo_jax.hf import task_heads
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


def _base(content) -> float:
  return modernbert.base_of(modernbert.rotary_parameters(content), content['rope_theta'])


def _key_value_heads(content) -> None:
  """Raises UserError unless keys and values have as many heads as queries."""
  num_heads = content['num_attention_heads']
  if (key_value_heads := content.get('num_key_value_heads') or num_heads) != num_heads:
    raise errors.UserError(
      f'config.json says num_key_value_heads={key_value_heads}, and this encoder has {num_heads} '
      'only.'
    )


_KEYS = (
  *modernbert.COMMON,
  keys.only('window', 0),
  keys.only('norm', 'rms'),
  keys.only('embedding_norm', False),
  keys.Key('rms_norm_eps', 'norm_eps', 1e-5),
  keys.Key('attention_dropout', 'attention_dropout', 0.0),
  keys.Key('initializer_range', 'initializer_range', 0.02),
  keys.Key('num_key_value_heads', write=lambda at: at.encoder.num_heads, read=_key_value_heads),
  keys.written('head_dim', lambda at: at.encoder.hidden_size // at.encoder.num_heads),
  keys.activation('hidden_act', 'silu', known=modernbert.ACTIVATIONS),
  keys.fixed('attention_bias', False, usual=False),
  keys.fixed('mlp_bias', False, usual=False),
  keys.written(
    'rope_parameters',
    lambda at: {'rope_type': 'default', 'rope_theta': at.encoder.global_base},
  ),
  keys.Key('rope_theta', usual=10_000.0),
  keys.means('global_every', 1),
  keys.means('global_base', _base),
  keys.means('local_base', _base),
  keys.means('dropout', 0.0),
  keys.means('attention_output_dropout', 0.0),
  *keys.BEGIN_AND_END,
  keys.written('mask_token_id', lambda at: at.special['mask']),
  keys.Key('classifier_pooling', usual='late'),
)


_build = functools.partial(
  modernbert.build,
  'eurobert',
  _BODY,
  _KEYS,
  rename_legacy=architecture.prefixed('model', 'embed_', 'layers.', 'norm.'),
  unsaid=dict(initializer='truncated_normal', output_range='same'),
)
MODEL = bert_like.bare(_build, 'EuroBertModel')._replace(reads=True)
_FORMS = {
  task_heads.ROW: task_heads.Form(
    {'dense': 'dense', 'classifier': 'classifier'}, (), {'classifier_pooling': 'bos'}
  ),
  task_heads.TAG: task_heads.Form({'classifier': 'classifier'}),
}
TASKS = task_heads.classes(_build, 'EuroBert', _FORMS)
