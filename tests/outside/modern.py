"""An encoder from outside the package: pre-norm, rotary positions, gated feed-forward, no biases,
two local layers after each global one (Warner et al. 2024). Name: `tests.outside.modern:Modern`.
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


def rotary(theta, q_BLHK, k_BLHK):
  """Queries and keys turned by their places (Su et al. 2021): scores depend on distances alone."""
  length, width = q_BLHK.shape[1], q_BLHK.shape[-1]
  angles = jnp.arange(length)[:, None] * theta ** -(jnp.arange(0, width, 2) / width)
  angles_L1K = jnp.tile(angles, 2)[:, None]

  def turn(x):
    low, high = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([-high, low], axis=-1)
    return (x * jnp.cos(angles_L1K) + turned * jnp.sin(angles_L1K)).astype(x.dtype)

  return turn(q_BLHK), turn(k_BLHK), None


class Gated(nn.Module):
  """out(gelu(in(x)) · gate(x)) (Shazeer 2020). dense: the maker of its products."""

  size: int
  dense: Any

  @nn.compact
  def __call__(self, x_ND, ops):
    dense = partial(self.dense, kernel_gradients=ops.kernel_gradients)
    inner, gate = (dense((self.size,), name=name)(x_ND) for name in ('in', 'gate'))
    h_NF = ops.constrain('feed_forward', layers.activation('gelu')(inner) * gate)
    return dense(x_ND.shape[-1:], name='out')(h_NF)

  @nn.nowrap
  def flops(self, length, width):
    return 6.0 * length * width * self.size


@protocol.encoder
class Modern(nn.Module):
  """The encoder. reach: of a local layer, to each side."""

  vocab_size: int
  dtype: Any
  unroll: int = 1
  remat: str = 'none'
  _: dataclasses.KW_ONLY
  num_layers: int
  hidden_size: int
  num_heads: int
  intermediate_size: int
  reach: int
  dropout: float = 0.0

  reads = ('input_ids', 'pack_ids')
  activation, norm_eps, use_bias, thetas = 'gelu', 1e-5, False, (160_000.0, 10_000.0)
  kernel_init = property(lambda self: layers.initializer('normal', 0.02))
  axes = (*transformer.AXES, *blocks.AXES)
  plan = property(lambda self: stack.Plan(self.num_layers))

  def setup(self):
    sizes = (self.vocab_size, self.hidden_size, self.norm_eps, self.dropout)
    self.embeddings = transformer.Embeddings(*sizes, self.kernel_init, self.dtype, use_bias=False)
    self.final_norm = layers.Norm(self.norm_eps, self.dtype, use_bias=False)
    block, width = self._blocks()[1], self.hidden_size
    self.layers = self.param('layers', lambda key: blocks.init(block, key, self.plan, width))

  def embed(self, batch):
    return self.embeddings.sum(batch)

  def __call__(self, batch, dropout_keys_B2=None, ops=operations.PLAIN, embedded_BLE=None):
    keys, (first, *others) = blocks.split_keys(dropout_keys_B2, 2), self._blocks()
    x_BLD = self.embed(batch) if embedded_BLE is None else embedded_BLE
    x_BLD = ops.constrain('hidden', self.embeddings.finish(x_BLD, keys[0]))
    visible = attention.of_batch(batch)

    def run(turns, x_BLD, **which):
      def apply(params, x_BLD, turn):
        block = turns[turn.place]
        return block.apply({'params': params}, x_BLD, visible, turn.keys_B2, ops), None

      how = dict(unroll=self.unroll, remat=self.remat)
      return stack.scan(apply, self.layers, x_BLD, keys[1], self.plan, **which, **how)[0]

    x_BLD = run(others, run([first], x_BLD, end=1), first=1, period=3)
    return self.final_norm(x_BLD)

  @nn.nowrap
  def flops(self, length, predictions=0, features=()):
    each = [block.flops(length, self.hidden_size) for block in self._blocks()[1:]]
    return sum(each[i % 3] for i in range(self.num_layers))

  @nn.nowrap
  def _blocks(self):
    """The first, without a norm before its attention; then one global and two local, in turns."""
    made = dict(kernel_init=self.kernel_init, dtype=self.dtype, use_bias=False)
    norm = partial(layers.Norm, self.norm_eps, self.dtype, use_bias=False)

    def block(theta, reach, normed=True):
      how = dict(window=reach and (reach, reach), positions=partial(rotary, theta))
      heads = blocks.SelfAttention(self.num_heads, 0.0, **made, **how, parent=None)
      fed = Gated(self.intermediate_size, partial(layers.Dense, **made), parent=None)
      where = dict(norm_first=True, attention_norm=normed)
      return blocks.Block(heads, fed, norm, self.dropout, **where, parent=None)

    whole, local = block(self.thetas[0], None), block(self.thetas[1], self.reach)
    return block(self.thetas[0], None, normed=False), whole, local, local
