"""An encoder from outside the package: BERT's blocks with rotary positions in place of a table (Su
et al. 2021, RoFormer). Name: `tests.outside.roformer:RoFormer`.
"""

import dataclasses
from functools import partial
from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from bertzoo_jax.model import attention
from bertzoo_jax.model import blocks
from bertzoo_jax.model import layers
from bertzoo_jax.model import operations
from bertzoo_jax.model import protocol
from bertzoo_jax.model import stack
from bertzoo_jax.model import transformer


def rotary(base, q_BLHK, k_BLHK):
  """Queries and keys turned by their places (eq. 34), so that scores depend on distances alone."""
  length, width = q_BLHK.shape[1], q_BLHK.shape[-1]
  angles_L1K = (jnp.arange(length)[:, None] * base ** -(jnp.arange(0, width, 2) / width))[:, None]
  sin, cos = jnp.sin(angles_L1K), jnp.cos(angles_L1K)

  def turned(x):
    a, b = jnp.moveaxis(x.astype(jnp.float32).reshape(*x.shape[:-1], -1, 2), -1, 0)  # neighbours
    return jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(x.shape)

  return turned(q_BLHK).astype(q_BLHK.dtype), turned(k_BLHK).astype(k_BLHK.dtype), None


def embedded_and_scanned(encoder, batch, dropout_keys_B2, ops, embedded_BLE):
  """hidden_BLD: the sum of the embeddings, finished, through the blocks of `encoder.plan`."""
  keys, block = blocks.split_keys(dropout_keys_B2, 2), encoder._block()
  x_BLD = encoder.embed(batch) if embedded_BLE is None else embedded_BLE
  x_BLD = ops.constrain('hidden', encoder.embeddings.finish(x_BLD, keys[0]))
  visible = attention.batch_visibility(batch)

  def apply(params, x_BLD, turn):
    return block.apply({'params': params}, x_BLD, visible, turn.keys_B2, ops), None

  how = dict(unroll=encoder.unroll, remat=encoder.remat)
  return stack.scan(apply, encoder.layers, x_BLD, keys[1], encoder.plan, **how)[0]


@protocol.encoder
class RoFormer(nn.Module):
  vocab_size: int
  dtype: Any
  unroll: int = 1
  remat: str = 'none'
  _: dataclasses.KW_ONLY
  num_layers: int
  hidden_size: int
  num_heads: int
  intermediate_size: int
  dropout: float = 0.0

  reads = ('input_ids', 'token_type_ids', 'segment_ids')
  activation, norm_eps, base, type_vocab_size = 'gelu', 1e-12, 10_000.0, 2
  kernel_init = property(lambda self: layers.initializer('truncated_normal', 0.02))
  axes = (*transformer.AXES, *blocks.AXES)
  plan = property(lambda self: stack.Plan(self.num_layers))

  def setup(self):
    sizes = (self.vocab_size, self.hidden_size, self.norm_eps, self.dropout)
    self.embeddings = transformer.Embeddings(
      *sizes, self.kernel_init, self.dtype, type_vocab_size=self.type_vocab_size
    )
    width = self.hidden_size
    self.layers = self.param(
      'layers', lambda key: blocks.init(self._block(), key, self.plan, width)
    )

  def embed(self, batch):
    return self.embeddings.sum(batch)

  def __call__(self, batch, dropout_keys_B2=None, ops=operations.PLAIN, embedded_BLE=None):
    return embedded_and_scanned(self, batch, dropout_keys_B2, ops, embedded_BLE)

  @nn.nowrap
  def _block(self):
    made = dict(kernel_init=self.kernel_init, dtype=self.dtype, parent=None)
    heads = blocks.SelfAttention(self.num_heads, 0.0, positions=partial(rotary, self.base), **made)
    fed = blocks.FeedForward(self.intermediate_size, self.activation, **made)
    norm = partial(layers.Norm, self.norm_eps, self.dtype)
    return blocks.Block(heads, fed, norm, self.dropout, parent=None)
