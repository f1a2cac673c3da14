"""Names of a Hugging Face directory for the encoder of convolved.py, and a reference in torch:
transformers has no such class.
"""

import json
import pathlib

import safetensors.numpy

from bertzoo_jax.hf import architecture
from bertzoo_jax.hf import keys
from bertzoo_jax.hf.architecture import FROM_HEADS_KERNEL
from bertzoo_jax.hf.architecture import HEADS_BIAS
from bertzoo_jax.hf.architecture import HEADS_KERNEL
from bertzoo_jax.hf.architecture import Row
from bertzoo_jax.hf.architectures.bert_like import dense
from bertzoo_jax.hf.architectures.bert_like import norm

# [places, D, D] and torch's [out, in, places].
CONVOLUTION = architecture.Transform(lambda x, s: x.transpose(2, 1, 0), lambda y, s: y.T)

ROWS = (
  Row('encoder/embeddings/word/embedding', 'words.weight'),
  Row('encoder/embeddings/position/embedding', 'places.weight'),
  *norm('encoder/embeddings/norm', 'norm'),
  *(
    row
    for name in ('query', 'key', 'value')
    for row in dense(f'encoder/layers/{name}', f'blocks.{{i}}.{name}', HEADS_KERNEL, HEADS_BIAS)
  ),
  *dense('encoder/layers/output', 'blocks.{i}.output', FROM_HEADS_KERNEL),
  *dense('encoder/layers/convolution', 'blocks.{i}.convolution', CONVOLUTION),
  *norm('encoder/layers/first_norm', 'blocks.{i}.first_norm'),
  *dense('encoder/layers/feed_forward/in', 'blocks.{i}.in'),
  *dense('encoder/layers/feed_forward/out', 'blocks.{i}.out'),
  *norm('encoder/layers/second_norm', 'blocks.{i}.second_norm'),
  *dense('mlm_head/transform', 'head.dense'),
  *norm('mlm_head/norm', 'head.norm'),
  Row('mlm_head/bias', 'head.bias'),
)
_FIELDS = ('num_layers', 'hidden_size', 'num_heads', 'intermediate_size', 'max_positions', 'reach')


def logits(directory, batch):
  """The reference, from the files alone."""
  import torch
  from torch.nn import functional

  directory = pathlib.Path(directory)
  config = json.loads((directory / 'config.json').read_text())
  tensors = safetensors.numpy.load_file(str(directory / 'model.safetensors'))
  left = set(tensors)

  def take(name):
    left.discard(name)
    return torch.from_numpy(tensors[name])

  def dense(x, name):
    return functional.linear(x, take(f'{name}.weight'), take(f'{name}.bias'))

  def norm(x, name):
    scale, shift = take(f'{name}.weight'), take(f'{name}.bias')
    return functional.layer_norm(x, scale.shape, scale, shift, config['norm_eps'])

  ids, real = (
    torch.from_numpy(batch['input_ids']).long(),
    torch.from_numpy(batch['segment_ids']) > 0,
  )
  words, heads = take('words.weight'), config['num_heads']
  x = norm(words[ids] + take('places.weight')[: ids.shape[1]], 'norm')
  for i in range(config['num_layers']):
    at = f'blocks.{i}'
    q, k, v = (
      dense(x, f'{at}.{name}').unflatten(-1, (heads, -1)).transpose(1, 2)
      for name in ('query', 'key', 'value')
    )
    mixed = functional.scaled_dot_product_attention(q, k, v, real[:, None, None])
    around = functional.conv1d(
      (x * real[:, :, None]).transpose(1, 2),
      take(f'{at}.convolution.weight'),
      take(f'{at}.convolution.bias'),
      padding=config['reach'],
    )
    y = dense(mixed.transpose(1, 2).flatten(2), f'{at}.output') + around.transpose(1, 2)
    x = norm(x + y, f'{at}.first_norm')
    y = dense(functional.relu(dense(x, f'{at}.in')), f'{at}.out')
    x = norm(x + y, f'{at}.second_norm')
  x = norm(functional.relu(dense(x, 'head.dense')), 'head.norm')
  return {'mlm': (x @ words.T + take('head.bias')).numpy(), 'unloaded': sorted(left)}


KEYS = (
  keys.written('architectures', ['ConvolvedForMaskedLM']),
  keys.written('model_type', 'convolved'),
  keys.written('vocab_size', lambda at: at.vocab_size),
  *(keys.Key(name, name) for name in _FIELDS),
  keys.written('norm_eps', lambda at: at.encoder.norm_eps),
  keys.written('pad_token_id', lambda at: at.special['pad']),
)
MASKED_LM = architecture.Architecture(
  name='ConvolvedForMaskedLM',
  model_type='convolved',
  rows=ROWS,
  sizes=architecture.plain_sizes,
  keys=KEYS,
  heads='It fills masks. transformers has no such class: load the tensors by name.',
  pipeline='',
  activations={'relu': 'relu'},
  logits=logits,
)
