"""RoFormer's names and layouts in Hugging Face for the encoder of roformer.py."""

import numpy as np

from bertzoo_jax.hf import architecture
from bertzoo_jax.hf import keys
from bertzoo_jax.hf.architecture import FROM_HEADS_KERNEL
from bertzoo_jax.hf.architecture import HEADS_BIAS
from bertzoo_jax.hf.architecture import HEADS_KERNEL
from bertzoo_jax.hf.architecture import Row
from bertzoo_jax.hf.architecture import constant
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
  constant(ANGLES, angles),
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
# What the encoder computes in one way only is `fixed`.
KEYS = (
  *keys.COMMON,
  keys.Key('num_hidden_layers', 'num_layers'),
  keys.Key('hidden_size', 'hidden_size'),
  keys.Key('num_attention_heads', 'num_heads'),
  keys.Key('intermediate_size', 'intermediate_size'),
  keys.fixed('hidden_act', roformer.RoFormer.activation),
  keys.fixed('layer_norm_eps', roformer.RoFormer.norm_eps),
  keys.fixed('type_vocab_size', roformer.RoFormer.type_vocab_size),
  keys.fixed('max_position_embeddings', LONGEST),
  keys.fixed('rotary_value', False),
  keys.fixed('is_decoder', False),
  keys.refused('embedding_size', lambda content: content['hidden_size'])._replace(
    write=lambda at: at.encoder.hidden_size
  ),
  keys.written('hidden_dropout_prob', lambda at: at.encoder.dropout),
  keys.written('attention_probs_dropout_prob', 0.0),
)

MASKED_LM = architecture.Architecture(
  name='RoFormerForMaskedLM',
  model_type='roformer',
  rows=ROWS,
  sizes=architecture.plain_sizes,
  keys=KEYS,
  heads='It fills masks. There is no other head.',
  tied={'cls.predictions.decoder.weight': WORDS, 'cls.predictions.decoder.bias': BIAS},
  activations={'gelu': 'gelu'},
)
