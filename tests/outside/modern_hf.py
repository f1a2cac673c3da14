"""ModernBERT's names and layouts in Hugging Face for the encoder of modern.py."""

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.hf import architecture
from bertzoo_jax.hf.architecture import FROM_HEADS_KERNEL
from bertzoo_jax.hf.architecture import HEADS_KERNEL
from bertzoo_jax.hf.architecture import KERNEL
from bertzoo_jax.hf.architecture import Row
from bertzoo_jax.hf.architecture import joined
from tests.outside import modern

EVERY = 3  # one global layer, then two local ones
LAYERS, WORDS = 'encoder/layers', 'model.embeddings.tok_embeddings.weight'
KINDS = ('full_attention', 'sliding_attention')

ROWS = (
  Row('encoder/embeddings/word/embedding', WORDS),
  Row('encoder/embeddings/norm/scale', 'model.embeddings.norm.weight'),
  # The first layer has no norm before its attention; our copy of its scale is not used.
  Row(
    f'{LAYERS}/attention_norm/scale',
    'model.layers.{i}.attn_norm.weight',
    where=lambda i, sizes: i > 0,
    without=lambda sizes: np.ones(sizes.hidden_size, np.float32),
  ),
  Row(
    tuple(f'{LAYERS}/attention/{name}/kernel' for name in ('query', 'key', 'value')),
    'model.layers.{i}.attn.Wqkv.weight',
    joined(HEADS_KERNEL, HEADS_KERNEL, HEADS_KERNEL),
  ),
  Row(f'{LAYERS}/attention/output/kernel', 'model.layers.{i}.attn.Wo.weight', FROM_HEADS_KERNEL),
  Row(f'{LAYERS}/feed_forward_norm/scale', 'model.layers.{i}.mlp_norm.weight'),
  Row(
    (f'{LAYERS}/feed_forward/in/kernel', f'{LAYERS}/feed_forward/gate/kernel'),
    'model.layers.{i}.mlp.Wi.weight',
    joined(KERNEL, KERNEL),
  ),
  Row(f'{LAYERS}/feed_forward/out/kernel', 'model.layers.{i}.mlp.Wo.weight', KERNEL),
  Row('encoder/final_norm/scale', 'model.final_norm.weight'),
  Row('mlm_head/transform/kernel', 'head.dense.weight', KERNEL),
  Row('mlm_head/norm/scale', 'head.norm.weight'),
  Row('mlm_head/bias', 'decoder.bias'),
)
_FIELDS = {
  'num_layers': 'num_hidden_layers',
  'hidden_size': 'hidden_size',
  'num_heads': 'num_attention_heads',
  'intermediate_size': 'intermediate_size',
}
# All that the encoder computes in one way only, as config.json says it.
_FIXED = {
  'hidden_activation': 'gelu',
  'classifier_activation': 'gelu',
  'norm_eps': modern.Modern.norm_eps,
  **dict.fromkeys(('norm_bias', 'attention_bias', 'mlp_bias', 'classifier_bias'), False),
  'decoder_bias': True,
  'rope_parameters': {
    kind: {'rope_type': 'default', 'rope_theta': theta}
    for kind, theta in zip(KINDS, modern.Modern.thetas)
  },
}


def _layer_types(num_layers):
  return [KINDS[i % EVERY > 0] for i in range(num_layers)]


def _sizes(encoder, special=None):
  n, width = encoder.num_layers, encoder.hidden_size
  return architecture.Sizes(encoder.num_heads, n, n, width, width)


def _to_config(encoder, special, vocab_size):
  return {
    'architectures': ['ModernBertForMaskedLM'],
    'model_type': 'modernbert',
    'vocab_size': vocab_size,
    **{theirs: getattr(encoder, ours) for ours, theirs in _FIELDS.items()},
    **_FIXED,
    'layer_types': _layer_types(encoder.num_layers),
    'local_attention': 2 * encoder.reach,
    'max_position_embeddings': 8192,  # a hint: the angles of any place are computed
    'embedding_dropout': encoder.dropout,
    'tie_word_embeddings': True,
    **{f'{role}_token_id': special[role] for role in ('pad', 'cls', 'sep')},
    'bos_token_id': special['cls'],
    'eos_token_id': special['sep'],
    'dtype': 'float32',
  }


def _to_encoder(content):
  wanted = {**_FIXED, 'layer_types': _layer_types(content['num_hidden_layers'])}
  for key, value in wanted.items():
    if content.get(key, value) != value:
      raise errors.UserError(
        f'config.json says {key}={content[key]}, and this encoder has {value} only.'
      )
  fields = {ours: content[theirs] for ours, theirs in _FIELDS.items()}
  fields['reach'] = content['local_attention'] // 2
  return fields, _sizes(modern.Modern(content['vocab_size'], None, **fields))


MASKED_LM = architecture.Architecture(
  name='ModernBertForMaskedLM',
  model_type='modernbert',
  rows=ROWS,
  sizes=_sizes,
  to_config=_to_config,
  to_encoder=_to_encoder,
  heads='It fills masks. There is no other head.',
  tied={'decoder.weight': WORDS},
  activations={'gelu': 'gelu'},
)
