"""A block of a stack and its parts: self-attention, feed-forward, and how they are joined.

Legend: B batch, L length, N = B·L tokens, D width, H heads, K head width, F feed-forward width.

An encoder builds a block of parts; those shipped here are a choice, not a base:

    Block(attention=SelfAttention(…), feed_forward=FeedForward(…), norm=…, dropout=0.1)

    attention: (x_BLD, visible, dropout_keys_B2, ops, *context) → y_BLD
    feed_forward: (x_ND, ops) → y_ND
    norm: name= → a module x → normalised x. layers.Norm is fused with the sum before it; another
      norm (RMSNorm) is called with the sum

`context` is everything else that an encoder passes to its attention: a table that layers share, a
memory. Parts of a scanned block are made with parent=None, or they would belong to the module that
makes them.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from bertzoo_jax.common import row_keys
from bertzoo_jax.model import attention
from bertzoo_jax.model import layers
from bertzoo_jax.model import operations
from bertzoo_jax.model import stack

# How a mesh may split the parameters of these modules (training.sharding): path regex → {axis of
# the mesh: axes of the parameter, from its end}.
AXES = (
  (r'attention/(query|key|value)/kernel$', {'tensor': (-2,), 'fsdp': (-3,)}),
  (r'attention/(query|key|value)/bias$', {'tensor': (-2,)}),
  (r'attention/output/kernel$', {'tensor': (-3,), 'fsdp': (-1,)}),
  (r'feed_forward/(in|gate)/kernel$', {'tensor': (-1,), 'fsdp': (-2,)}),
  (r'feed_forward/(in|gate)/bias$', {'tensor': (-1,)}),
  (r'feed_forward/out/kernel$', {'tensor': (-2,), 'fsdp': (-1,)}),
)


class SelfAttention(nn.Module):
  """Multi-head self-attention (Vaswani et al. 2017 §3.2): query, key, value, output."""

  num_heads: int  # H, which divides the width
  dropout_rate: float  # dropout rate of the attention probabilities
  # kernel_init, dtype, use_bias: initializer, dtype and biases of the four products.
  kernel_init: Callable
  dtype: Any
  use_bias: bool = True
  # (left, right) neighbours that a token sees, as in attention.Visibility; None for all
  window: tuple[int, int] | None = None
  # adds positions to queries and keys: (q_BLHK, k_BLHK) → (q_BLHK, k_BLHK, attention.Relative or
  # None), a function or a linen module; None: no positions
  positions: Callable | None = None
  output_init: Callable | None = None  # initializer of the output product; None: kernel_init

  @nn.compact
  def __call__(self, x_BLD, visible, dropout_keys_B2, ops):
    width = x_BLD.shape[-1]
    dense = layers.dense_of(self, ops, use_bias=self.use_bias)
    heads = (self.num_heads, width // self.num_heads)
    q_BLHK, k_BLHK, v_BLHK = (
      ops.constrain('heads', dense(heads, name=name)(x_BLD)) for name in ('query', 'key', 'value')
    )
    relative = None
    if self.positions is not None:
      q_BLHK, k_BLHK, relative = self.positions(q_BLHK, k_BLHK)
    if self.window is not None:
      visible = visible._replace(window=self.window)
    out_BLHK = ops.attend(
      q_BLHK, k_BLHK, v_BLHK, visible, self.dropout_rate, dropout_keys_B2, relative
    )
    init = self.output_init or self.kernel_init
    output = dense((width,), kernel_init=init, in_axes=2, input_name='attended', name='output')
    return output(ops.constrain('heads', out_BLHK))


class FeedForward(nn.Module):
  """out(activation(in(x))) (Vaswani et al. 2017 §3.3). output_init: of `out`; None: kernel_init."""

  intermediate_size: int
  activation: str
  kernel_init: Callable
  dtype: Any
  use_bias: bool = True
  output_init: Callable | None = None

  @nn.compact
  def __call__(self, x_ND, ops):
    h_NF = self._dense(ops, 'in', (self.intermediate_size,))(x_ND)
    out = self._dense(ops, 'out', x_ND.shape[-1:], before=layers.activation(self.activation))
    return out(ops.constrain('feed_forward', h_NF))

  def _dense(self, ops, name, features, before=None):
    return layers.Dense(
      features,
      self.output_init if name == 'out' and self.output_init else self.kernel_init,
      self.dtype,
      before=before,
      use_bias=self.use_bias,
      kernel_gradients=ops.kernel_gradients,
      name=name,
    )


class GatedFeedForward(FeedForward):
  """out(activation(in(x)) · gate(x)) (Shazeer 2020, eq. 6)."""

  @nn.compact
  def __call__(self, x_ND, ops):
    inner, gate = (self._dense(ops, x, (self.intermediate_size,))(x_ND) for x in ('in', 'gate'))
    h_NF = ops.constrain('feed_forward', layers.activation(self.activation)(inner) * gate)
    return self._dense(ops, 'out', x_ND.shape[-1:])(h_NF)


class Block(nn.Module):
  """Attention and feed-forward, each with dropout, a residual connection and a norm.

  The norm follows the sum (Vaswani et al. 2017 §3.1), or, with norm_first, precedes the sublayer
  (Xiong et al. 2020 §2.2). Then the sum is passed on, and the encoder ends with a final norm.
  """

  attention: Any
  feed_forward: Any
  norm: Callable
  dropout: float  # rate on the output of each sublayer
  norm_first: bool = False  # whether the norm precedes the sublayer
  # with norm_first, whether a norm precedes attention. A block without this norm can be the first
  # of its stack, run separately.
  attention_norm: bool = True
  attention_dropout: float | None = None  # rate on the output of attention; None: `dropout`

  @nn.compact
  def __call__(self, x_BLD, visible, dropout_keys_B2, ops, *context):
    if not (self.attention_norm or self.norm_first):
      raise ValueError('attention_norm=False is for blocks with norm_first')
    keys = split_keys(dropout_keys_B2, 3)
    pin = lambda x: jax.tree.map(functools.partial(ops.constrain, 'hidden'), x)
    norms = {name: self.norm(name=f'{name}_norm') for name in ('attention', 'feed_forward')}

    attention_rate = self.dropout if self.attention_dropout is None else self.attention_dropout

    def join(name, x_BLD, y_BLD, rate, keys_B2):
      """The norm of x + dropout(y); with norm_first the sum, too."""
      norm, drop = norms[name], dict(dropout_rate=rate, dropout_keys_B2=keys_B2)
      if getattr(norm, 'fuses_residual', False):
        add = functools.partial(ops.add_norm, with_sum=self.norm_first, **drop)
        return pin(norm(x_BLD, y_BLD, norm=add))
      sum_BLD = (x_BLD + layers.dropout(y_BLD, rate, keys_B2)).astype(x_BLD.dtype)
      return pin((sum_BLD, norm(sum_BLD)) if self.norm_first else norm(sum_BLD))

    def attend(x_BLD):
      y_BLD = self.attention(x_BLD, visible, keys[0], ops, *context)
      return checkpoint_name(y_BLD, 'attention_output')

    def feed(x_ND):
      y_ND = self.feed_forward(x_ND, ops)
      return checkpoint_name(y_ND.reshape(x_BLD.shape), 'feed_forward_output')

    # Both uses read the tokens as rows, so that the sum of their gradients is part of a product.
    tokens = lambda x_BLD: x_BLD.reshape(-1, x_BLD.shape[-1])
    if self.norm_first:
      y_BLD = attend(norms['attention'](x_BLD) if self.attention_norm else x_BLD)
      x_BLD, h_BLD = join('feed_forward', x_BLD, y_BLD, attention_rate, keys[1])
      y_BLD = layers.dropout(feed(tokens(h_BLD)), self.dropout, keys[2])
      return pin((x_BLD + y_BLD).astype(x_BLD.dtype))
    x_BLD = join('attention', x_BLD, attend(x_BLD), attention_rate, keys[1])
    x_ND = tokens(x_BLD)
    y_BLD, x_BLD = feed(x_ND), x_ND.reshape(x_BLD.shape)
    return join('feed_forward', x_BLD, y_BLD, self.dropout, keys[2])


def init(block, key, plan: stack.Plan, width: int, *context):
  """Parameters of a stack of blocks, with their copies in the first axis. width: D. context: an
  example of the attention's context.
  """
  x_BLD, visible = jnp.zeros((1, 1, width)), attention.same_pack(jnp.zeros((1, 1), jnp.int32))
  make = lambda key: block.init(key, x_BLD, visible, None, operations.PLAIN, *context)['params']
  return stack.init(make, key, plan)


def split_keys(keys_B2, parts: int) -> list:
  """A list of `parts` different keys [B, 2] of the rows, or of `parts` Nones."""
  return [None if keys_B2 is None else row_keys.fold_in(keys_B2, i) for i in range(parts)]
