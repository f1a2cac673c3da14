"""An encoder and its Hugging Face architectures as somebody outside the package would write them.

Pre-norm layers with gated feed-forward, of which the first has no attention norm. Names and layouts
are ModernBERT's (Warner et al. 2024); transformers has no class that adds learned positions and
biases of attention, so the reference is our own.
"""

import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from flax import linen as nn

from bertzoo_jax.hf import architecture
from bertzoo_jax.hf.architecture import FROM_HEADS_KERNEL
from bertzoo_jax.hf.architecture import HEADS_BIAS
from bertzoo_jax.hf.architecture import HEADS_KERNEL
from bertzoo_jax.hf.architecture import KERNEL
from bertzoo_jax.hf.architecture import SAME
from bertzoo_jax.hf.architecture import Row
from bertzoo_jax.hf.architecture import joined
from bertzoo_jax.model import layers
from bertzoo_jax.model import protocol


class PreNorm(nn.Module):
  """Has other fields than the Transformer of this package: no segments, `heads`, `width`."""

  vocab_size: int
  dtype: Any
  unroll: int = 1
  remat: str = 'none'
  depth: int = 3
  width: int = 24
  heads: int = 4
  inner: int = 40
  max_positions: int = 32
  activation: str = 'gelu'
  norm_eps: float = 1e-5
  initializer_range: float = 0.02

  type_vocab_size, padding_side, use_bias = 0, 'right', True  # no fields of the section
  kernel_init = property(lambda self: layers.initializer('normal', self.initializer_range))
  predictions, row_vectors = protocol.gathered, protocol.first_token

  @property
  def hidden_size(self):
    return self.width

  @property
  def table_width(self):
    return self.width

  @nn.compact
  def __call__(self, batch, dropout_keys_B2=None, ops=None):
    init = nn.initializers.normal(self.initializer_range)
    embeddings = Embeddings(self.vocab_size, self.max_positions, self.width, name='embeddings')
    x_BLD = embeddings(batch['input_ids'])
    seen_BLL = batch['pack_ids'][:, None] == batch['pack_ids'][:, :, None]
    n, d, h, f = self.depth, self.width, self.heads, self.inner
    zeros, ones = nn.initializers.zeros, nn.initializers.ones
    shapes = {
      'attention_norm/scale': ((n, d), ones),
      **{f'attention/{x}/kernel': ((n, d, h, d // h), init) for x in ('query', 'key', 'value')},
      **{f'attention/{x}/bias': ((n, h, d // h), zeros) for x in ('query', 'key', 'value')},
      'attention/output/kernel': ((n, h, d // h, d), init),
      'mlp_norm/scale': ((n, d), ones),
      'mlp/in/kernel': ((n, d, f), init),
      'mlp/gate/kernel': ((n, d, f), init),
      'mlp/out/kernel': ((n, f, d), init),
    }

    def start(key):
      out = {}
      for path, (shape, make) in shapes.items():
        *parents, last = path.split('/')
        node = out
        for parent in parents:
          node = node.setdefault(parent, {})
        node[last] = make(key, shape, jnp.float32)
      return out

    params = self.param('layers', start)
    act = layers.activation(self.activation)
    for i in range(n):
      layer = jax.tree.map(lambda x, i=i: x[i], params)
      y_BLD = self._norm(x_BLD, layer['attention_norm']['scale']) if i else x_BLD
      q, k, v = (
        jnp.einsum('BLD,DHK->BLHK', y_BLD, layer['attention'][x]['kernel'])
        + layer['attention'][x]['bias']
        for x in ('query', 'key', 'value')
      )
      scores = jnp.einsum('BLHK,BMHK->BHLM', q, k) / np.sqrt(d // h)
      p = jax.nn.softmax(jnp.where(seen_BLL[:, None], scores, -1e30), axis=-1)
      o = jnp.einsum('BHLM,BMHK->BLHK', p, v)
      x_BLD += jnp.einsum('BLHK,HKD->BLD', o, layer['attention']['output']['kernel'])
      y_BLD, mlp = self._norm(x_BLD, layer['mlp_norm']['scale']), layer['mlp']
      gated = act(y_BLD @ mlp['in']['kernel']) * (y_BLD @ mlp['gate']['kernel'])
      x_BLD += gated @ mlp['out']['kernel']
    return self._norm(x_BLD, self.param('final_norm', lambda key: {'scale': jnp.ones(d)})['scale'])

  def _norm(self, x, scale):
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + self.norm_eps) * scale


class Embeddings(nn.Module):
  vocab_size: int
  max_positions: int
  width: int

  @nn.compact
  def __call__(self, ids_BL):
    table = lambda size, name: layers.Embedding(
      size, self.width, nn.initializers.normal(0.02), name=name
    )()
    return (
      table(self.vocab_size, 'word')[ids_BL]
      + table(self.max_positions, 'position')[: ids_BL.shape[1]]
    )


def body(prefix: str = 'model') -> tuple[Row, ...]:
  """Rows of the encoder that have ModernBERT's names."""
  at, layer = 'encoder/layers', f'{prefix}.layers.{{i}}'
  qkv = ('query', 'key', 'value')
  return (
    Row('encoder/embeddings/word/embedding', f'{prefix}.embeddings.tok_embeddings.weight'),
    Row(
      f'{at}/attention_norm/scale',
      f'{layer}.attn_norm.weight',
      where=lambda i, sizes: i > 0,
      without=lambda sizes: np.ones(sizes.hidden_size, np.float32),
    ),
    Row(
      tuple(f'{at}/attention/{x}/kernel' for x in qkv),
      f'{layer}.attn.Wqkv.weight',
      joined(HEADS_KERNEL, HEADS_KERNEL, HEADS_KERNEL),
    ),
    Row(f'{at}/attention/output/kernel', f'{layer}.attn.Wo.weight', FROM_HEADS_KERNEL),
    Row(f'{at}/mlp_norm/scale', f'{layer}.mlp_norm.weight'),
    Row(
      (f'{at}/mlp/in/kernel', f'{at}/mlp/gate/kernel'),
      f'{layer}.mlp.Wi.weight',
      joined(KERNEL, KERNEL),
    ),
    Row(f'{at}/mlp/out/kernel', f'{layer}.mlp.Wo.weight', KERNEL),
    Row('encoder/final_norm/scale', f'{prefix}.final_norm.weight'),
    # What ModernBERT has only where its config.json asks for biases.
    Row(
      tuple(f'{at}/attention/{x}/bias' for x in qkv),
      f'{layer}.attn.Wqkv.bias',
      joined(HEADS_BIAS, HEADS_BIAS, HEADS_BIAS),
      lambda sizes: None,
    ),
  )


MLM = (
  Row('mlm_head/transform/kernel', 'head.dense.weight', KERNEL),
  Row('mlm_head/transform/bias', 'head.dense.bias', SAME, lambda sizes: None),
  Row('mlm_head/norm/scale', 'head.norm.weight'),
  Row('mlm_head/norm/bias', 'head.norm.bias', SAME, lambda sizes: None),
  Row('mlm_head/bias', 'decoder.bias'),
)
PAIR = tuple(
  Row(f'pair_head/{x}/{y}', f'pair.{x}.{theirs}', KERNEL if y == 'kernel' else SAME)
  for x in ('pooler', 'classifier')
  for y, theirs in (('kernel', 'weight'), ('bias', 'bias'))
)
TIED = {'decoder.weight': 'model.embeddings.tok_embeddings.weight'}
_FIELDS = {
  'depth': 'num_hidden_layers',
  'width': 'hidden_size',
  'heads': 'num_attention_heads',
  'inner': 'intermediate_size',
  'max_positions': 'max_position_embeddings',
  'norm_eps': 'norm_eps',
}


class Sizes:
  """Its own object in the place of architecture.Sizes: what the machinery reads, and no more."""

  num_groups, inner_group_num = 1, 1

  def __init__(self, depth, heads, width):
    self.num_layers = self.blocks = depth
    self.num_heads, self.hidden_size = heads, width


def sizes(encoder, special):
  return Sizes(encoder.depth, encoder.heads, encoder.width)


def _to_config(encoder, special, vocab_size):
  return {
    'architectures': ['PreNormForMaskedLM'],
    'model_type': 'pre-norm',
    'vocab_size': vocab_size,
    **{theirs: getattr(encoder, ours) for ours, theirs in _FIELDS.items()},
    'hidden_activation': encoder.activation,
    'pad_token_id': special['pad'],
  }


def _to_encoder(content):
  fields = {ours: content[theirs] for ours, theirs in _FIELDS.items()}
  return {**fields, 'activation': content['hidden_activation']}, Sizes(
    fields['depth'], fields['heads'], fields['width']
  )


def logits(directory, batch):
  """The reference in torch, from the files alone."""
  import torch

  config, tensors = _files(directory)
  left = set(tensors)

  def take(name):
    left.discard(name)
    return torch.from_numpy(tensors[name])

  x, norm = _body(config, take, batch)
  x = torch.nn.functional.gelu(x @ take('head.dense.weight').T + take('head.dense.bias'))
  x = norm(x, 'head.norm', take('head.norm.bias'))
  words = take('model.embeddings.tok_embeddings.weight')
  return {'mlm': (x @ words.T + take('decoder.bias')).numpy(), 'unloaded': sorted(left)}


def vectors(directory, batch):
  """The same without the head."""
  import torch

  config, tensors = _files(directory)
  return _body(config, lambda name: torch.from_numpy(tensors[name]), batch)[0].numpy()


def _files(directory):
  directory = pathlib.Path(directory)
  return json.loads((directory / 'config.json').read_text()), safetensors.numpy.load_file(
    str(directory / 'model.safetensors')
  )


def _body(config, take, batch):
  import torch

  def norm(x, name, bias=None):
    weight = take(f'{name}.weight')
    return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, config['norm_eps'])

  ids, heads = torch.from_numpy(batch['input_ids']).long(), config['num_attention_heads']
  pad = torch.from_numpy(batch['pack_ids']) == 0
  x = take('model.embeddings.tok_embeddings.weight')[ids]
  x = x + take('model.embeddings.positions.weight')[: ids.shape[1]]
  for i in range(config['num_hidden_layers']):
    at = f'model.layers.{i}'
    y = norm(x, f'{at}.attn_norm') if i else x
    qkv = y @ take(f'{at}.attn.Wqkv.weight').T + take(f'{at}.attn.Wqkv.bias')
    q, k, v = (z.unflatten(-1, (heads, -1)).transpose(1, 2) for z in qkv.chunk(3, -1))
    o = torch.nn.functional.scaled_dot_product_attention(q, k, v, ~pad[:, None, None])
    x = x + o.transpose(1, 2).flatten(2) @ take(f'{at}.attn.Wo.weight').T
    a, gate = (norm(x, f'{at}.mlp_norm') @ take(f'{at}.mlp.Wi.weight').T).chunk(2, -1)
    x = x + (torch.nn.functional.gelu(a) * gate) @ take(f'{at}.mlp.Wo.weight').T
  return norm(x, 'model.final_norm'), norm


def _build(name, rows, **changes):
  """An Architecture of this encoder."""
  return architecture.Architecture(
    **{
      **dict(
        name=name,
        model_type='pre-norm',
        rows=rows,
        sizes=sizes,
        to_config=_to_config,
        to_encoder=_to_encoder,
        heads='It fills masks.',
        pipeline='',
        tied=TIED,
        activations={'gelu': 'gelu'},
        logits=logits,
      ),
      **changes,
    }
  )


POSITIONS = Row('encoder/embeddings/position/embedding', 'model.embeddings.positions.weight')
MASKED_LM = _build('PreNormForMaskedLM', (*body(), POSITIONS, *MLM))
PRETRAINING = _build('PreNormForPreTraining', (*body(), POSITIONS, *MLM, *PAIR))
WITHOUT_TOKENIZER = _build('PreNormForMaskedLM', MASKED_LM.rows, tokens=None)
NORM = Row('encoder/embeddings/norm/scale', 'model.embeddings.norm.weight')
MODERN_BERT = _build('ModernBertForMaskedLM', (*body(), NORM, *MLM), logits=None)
