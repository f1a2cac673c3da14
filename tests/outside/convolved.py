"""An encoder from outside the package: in each block attention over half of the width, and beside
it a convolution over neighbours. `tests.outside.convolved:Convolved` in a config.
"""

import dataclasses
from functools import partial
from typing import Annotated
from typing import Any

from flax import linen as nn

from bertzoo_jax.model import blocks
from bertzoo_jax.model import layers
from bertzoo_jax.model import operations
from bertzoo_jax.model import protocol
from bertzoo_jax.model import stack
from bertzoo_jax.model import transformer
from bertzoo_jax.parts import fields
from tests.outside import roformer

AXES = (
  (r'(query|key|value)/kernel$', {'tensor': (-2,), 'fsdp': (-3,)}),
  (r'(query|key|value)/bias$', {'tensor': (-2,)}),
  (r'output/kernel$', {'tensor': (-3,), 'fsdp': (-1,)}),
  (r'convolution/kernel$', {'tensor': (-2,), 'fsdp': (-1,)}),
)


class Mixed(nn.Module):
  """A post-norm block. num_heads: share half of the width. reach: of the convolution, a side."""

  num_heads: int
  reach: int
  feed_forward: Any
  dense: Any
  norm: Any
  dropout: float

  @nn.compact
  def __call__(self, x_BLD, visible, dropout_keys_B2, ops):
    keys, width = blocks.split_keys(dropout_keys_B2, 3), x_BLD.shape[-1]
    dense = partial(self.dense, kernel_gradients=ops.kernel_gradients)
    heads = (self.num_heads, width // 2 // self.num_heads)
    qkv = [dense(heads, name=name)(x_BLD) for name in ('query', 'key', 'value')]
    qkv = [ops.constrain('heads', x_BLHK) for x_BLHK in qkv]
    mixed_BLHK = ops.attend(*qkv, visible, self.dropout, keys[0])
    around = layers.neighbours(x_BLD, visible.query_packs_BL, 2 * self.reach + 1)
    y_BLD = dense((width,), in_axes=2, name='output')(ops.constrain('heads', mixed_BLHK))
    y_BLD += dense((width,), in_axes=2, name='convolution')(around)

    def join(name, x_BLD, y_BLD, keys):
      add = partial(ops.add_norm, dropout_rate=self.dropout, dropout_keys_B2=keys)
      return ops.constrain('hidden', self.norm(name=name)(x_BLD, y_BLD, norm=add))

    x_BLD = join('first_norm', x_BLD, y_BLD, keys[1])
    y_BLD = self.feed_forward(x_BLD.reshape(-1, width), ops).reshape(x_BLD.shape)
    return join('second_norm', x_BLD, y_BLD, keys[2])


@protocol.encoder
class Convolved(nn.Module):
  vocab_size: int
  dtype: Any
  unroll: int = 1
  remat: str = 'none'
  _: dataclasses.KW_ONLY
  num_layers: int
  hidden_size: int
  num_heads: int
  intermediate_size: int
  max_positions: int
  reach: Annotated[fields.COUNT, 'tokens that a token reads on each side.'] = 2
  dropout: float = 0.1

  reads, activation, norm_eps = ('input_ids', 'segment_ids'), 'relu', 1e-6
  axes = (*AXES, *transformer.AXES, *blocks.AXES)
  kernel_init = property(lambda self: layers.initializer('normal', 0.02))
  attention_dropout = property(lambda self: self.dropout)
  plan = property(lambda self: stack.Plan(self.num_layers))

  def setup(self):
    sizes = (self.vocab_size, self.hidden_size, self.norm_eps, self.dropout)
    tables = (self.kernel_init, self.dtype, self.max_positions)
    self.embeddings = transformer.Embeddings(*sizes, *tables)
    block, width = self._block(), self.hidden_size
    self.layers = self.param('layers', lambda key: blocks.init(block, key, self.plan, width))

  def embed(self, batch):
    return self.embeddings.sum(batch)

  def __call__(self, batch, dropout_keys_B2=None, ops=operations.PLAIN, embedded_BLE=None):
    return roformer.embedded_and_scanned(self, batch, dropout_keys_B2, ops, embedded_BLE)

  @nn.nowrap
  def _block(self):
    made = dict(kernel_init=self.kernel_init, dtype=self.dtype)
    fed = blocks.FeedForward(self.intermediate_size, self.activation, **made, parent=None)
    parts = fed, partial(layers.Dense, **made), partial(layers.Norm, self.norm_eps, self.dtype)
    return Mixed(self.num_heads, self.reach, *parts, self.dropout, parent=None)
