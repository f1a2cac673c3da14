"""RoFormer's names and layouts in Hugging Face for the encoder of roformer.py."""

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.hf import architecture
from bertzoo_jax.hf.architecture import FROM_HEADS_KERNEL
from bertzoo_jax.hf.architecture import HEADS_BIAS
from bertzoo_jax.hf.architecture import HEADS_KERNEL
from bertzoo_jax.hf.architecture import Row
from bertzoo_jax.hf.architectures.bert_like import dense
from bertzoo_jax.hf.architectures.bert_like import norm
from tests.outside import roformer

LONGEST = 1536
LAYERS, THEIRS = 'encoder/layers', 'roformer.encoder.layer.{i}'
WORDS = 'roformer.embeddings.word_embeddings.weight'
ANGLES, BIAS = 'roformer.encoder.embed_positions.weight', 'cls.predictions.bias'


def angles(sizes):
  """Their table of sines and cosines, which we compute."""
  width = sizes.hidden_size // sizes.num_heads
  x = np.arange(LONGEST)[:, None] * roformer.RoFormer.base ** -(np.arange(0, width, 2) / width)
  return np.concatenate([np.sin(x), np.cos(x)], axis=1).astype(np.float32)


HEADS = HEADS_KERNEL, HEADS_BIAS
ROWS = (
  Row('encoder/embeddings/word/embedding', WORDS),
  Row('encoder/embeddings/type/embedding', 'roformer.embeddings.token_type_embeddings.weight'),
  *norm('encoder/embeddings/norm', 'roformer.embeddings.LayerNorm'),
  Row('encoder/angles', ANGLES, absent=angles),  # which the encoder lacks
  *(
    row
    for name in ('query', 'key', 'value')
    for row in dense(f'{LAYERS}/attention/{name}', f'{THEIRS}.attention.self.{name}', *HEADS)
  ),
  *dense(f'{LAYERS}/attention/output', f'{THEIRS}.attention.output.dense', FROM_HEADS_KERNEL),
  *norm(f'{LAYERS}/attention_norm', f'{THEIRS}.attention.output.LayerNorm'),
  *dense(f'{LAYERS}/feed_forward/in', f'{THEIRS}.intermediate.dense'),
  *dense(f'{LAYERS}/feed_forward/out', f'{THEIRS}.output.dense'),
  *norm(f'{LAYERS}/feed_forward_norm', f'{THEIRS}.output.LayerNorm'),
  *dense('mlm_head/transform', 'cls.predictions.transform.dense'),
  *norm('mlm_head/norm', 'cls.predictions.transform.LayerNorm'),
  Row('mlm_head/bias', BIAS),
)
_FIELDS = {
  'num_layers': 'num_hidden_layers',
  'hidden_size': 'hidden_size',
  'num_heads': 'num_attention_heads',
  'intermediate_size': 'intermediate_size',
}
# All that the encoder computes in one way only, as config.json says it.
_FIXED = {
  'hidden_act': roformer.RoFormer.activation,
  'layer_norm_eps': roformer.RoFormer.norm_eps,
  'type_vocab_size': roformer.RoFormer.type_vocab_size,
  'max_position_embeddings': LONGEST,
  'rotary_value': False,
  'is_decoder': False,
}


def _to_config(encoder, special, vocab_size):
  return {
    **architecture.common_config('RoFormerForMaskedLM', 'roformer', special, vocab_size),
    **{theirs: getattr(encoder, ours) for ours, theirs in _FIELDS.items()},
    **_FIXED,
    'embedding_size': encoder.hidden_size,
    'hidden_dropout_prob': encoder.dropout,
    'attention_probs_dropout_prob': 0.0,
  }


def _to_encoder(content):
  for key, value in {**_FIXED, 'embedding_size': content['hidden_size']}.items():
    if content.get(key, value) != value:
      raise errors.UserError(
        f'config.json says {key}={content[key]}, and this encoder has {value} only.'
      )
  fields = {ours: content[theirs] for ours, theirs in _FIELDS.items()}
  return fields, architecture.plain_sizes(roformer.RoFormer(content['vocab_size'], None, **fields))


MASKED_LM = architecture.Architecture(
  name='RoFormerForMaskedLM',
  model_type='roformer',
  rows=ROWS,
  sizes=architecture.plain_sizes,
  to_config=_to_config,
  to_encoder=_to_encoder,
  heads='It fills masks. There is no other head.',
  tied={'cls.predictions.decoder.weight': WORDS, 'cls.predictions.decoder.bias': BIAS},
  settle=lambda params, sizes: {k: x for k, x in params.items() if k != 'encoder/angles'},
  activations={'gelu': 'gelu'},
)
