"""Encoders: batch → hidden_BLD. Legend: B batch, L length, D width, H heads, T segments, n layers.

    encoder = BY_NAME['transformer'](vocab_size=V, dtype=jnp.bfloat16, num_layers=12, …)
    hidden_BLD = encoder.apply({'params': params}, batch, dropout_keys_B2, ops)

A model knows no mesh: what depends on one is handed in (model/operations.py).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from bertzoo_jax.common import errors
from bertzoo_jax.common import row_keys
from bertzoo_jax.model import attention
from bertzoo_jax.model import layers
from bertzoo_jax.model import operations
from bertzoo_jax.model import stack


class Transformer(nn.Module):
  """The post-LN Transformer encoder with learned positions (Devlin et al. 2018 §3; Vaswani et al.
  2017 §3.1), with tables of another width than the layers and with layers that share parameters
  where the sizes say so (Lan et al. 2019 §3.1).

  vocab_size, dtype (of products), unroll (layers a turn of the scan) and remat (stack.REMAT) are
  given by the program; the keyword-only rest is the config's section, explained there.
  """

  vocab_size: int
  dtype: Any
  unroll: int = 1
  remat: str = 'none'
  _: dataclasses.KW_ONLY
  num_layers: int
  hidden_size: int
  num_heads: int
  intermediate_size: int
  embedding_size: int
  max_positions: int
  type_vocab_size: int
  sharing: str
  num_groups: int
  inner_group_num: int
  activation: str
  norm_eps: float
  dropout: float
  attention_dropout: float
  initializer: str
  initializer_range: float

  def __post_init__(self):
    super().__post_init__()
    _check(self)

  @property
  def plan(self) -> stack.Plan:
    """How the layers make a stack."""
    return stack.Plan(
      self.num_layers, stack.SHARING[self.sharing], self.num_groups, self.inner_group_num
    )

  @property
  def table_width(self) -> int:
    """E, of the embeddings."""
    return self.embedding_size or self.hidden_size

  @nn.compact
  def __call__(self, batch, dropout_keys_B2=None, ops=operations.PLAIN):
    """hidden_BLD in `dtype`.

    Args:
      batch: input_ids, segment_ids, pack_ids and, if positions are not 0 … L−1, position_ids.
      dropout_keys_B2: of its rows (row_keys.py); None without dropout.
      ops: what depends on the devices.

    Raises UserError for rows longer than the position table.
    """
    embed_keys_B2, stack_keys_B2 = _split(dropout_keys_B2, 2)
    kernel_init = layers.initializer(self.initializer, self.initializer_range)
    x_BLD = Embeddings(
      vocab_size=self.vocab_size,
      width=self.table_width,
      max_positions=self.max_positions,
      type_vocab_size=self.type_vocab_size,
      norm_eps=self.norm_eps,
      dropout=self.dropout,
      init_table=kernel_init,
      dtype=self.dtype,
      name='embeddings',
    )(batch, embed_keys_B2)
    if self.table_width != self.hidden_size:
      x_BLD = layers.Dense(
        (self.hidden_size,), kernel_init, self.dtype, name='embedding_projection'
      )(x_BLD)
    layer = Layer(
      num_heads=self.num_heads,
      intermediate_size=self.intermediate_size,
      activation=self.activation,
      norm_eps=self.norm_eps,
      dropout=self.dropout,
      attention_dropout=self.attention_dropout,
      kernel_init=kernel_init,
      dtype=self.dtype,
      parent=None,
    )

    def apply(params, x_BLD, keys_B2):
      return layer.apply({'params': params}, x_BLD, batch['pack_ids'], keys_B2, ops)

    example_BLD = jnp.zeros((1, 1, self.hidden_size), self.dtype)
    params = self.param(
      'layers',
      lambda key: stack.init(
        lambda k: layer.init(k, example_BLD, jnp.zeros((1, 1), jnp.int32), None, operations.PLAIN)[
          'params'
        ],
        key,
        self.plan,
      ),
    )
    return stack.scan(
      apply,
      params,
      ops.constrain('hidden', x_BLD),
      stack_keys_B2,
      self.plan,
      unroll=self.unroll,
      remat=self.remat,
    )


def _check(e: Transformer):
  """Raises UserError for sizes that cannot be built."""
  errors.choose(e.remat, stack.REMAT, 'run.remat')
  errors.choose(e.sharing, stack.SHARING, 'encoder.sharing')
  layers.activation(e.activation)
  layers.initializer(e.initializer, e.initializer_range)
  for name in (
    'num_layers',
    'hidden_size',
    'num_heads',
    'intermediate_size',
    'max_positions',
    'vocab_size',
    'unroll',
    'num_groups',
    'inner_group_num',
  ):
    if getattr(e, name) < 1:
      raise errors.UserError(f'{name}={getattr(e, name)}: at least 1 is needed.')
  if e.hidden_size % e.num_heads:
    raise errors.UserError(
      f'encoder.hidden_size={e.hidden_size} does not divide by num_heads={e.num_heads}: choose a '
      'multiple.'
    )
  if e.embedding_size < 0:
    raise errors.UserError(
      f'encoder.embedding_size={e.embedding_size}: give the width of the tables, or 0 for that of '
      'the layers.'
    )
  if e.num_layers % e.num_groups:
    raise errors.UserError(
      f'encoder.num_groups={e.num_groups} does not divide num_layers={e.num_layers}: choose a '
      'divisor.'
    )
  if e.sharing == 'none' and (e.num_groups, e.inner_group_num) != (1, 1):
    raise errors.UserError(
      'encoder.num_groups and inner_group_num are about layers that share: leave both at 1, or set '
      'encoder.sharing.'
    )
  if e.type_vocab_size < 0:
    raise errors.UserError(
      f'encoder.type_vocab_size={e.type_vocab_size}: give the number of segments, or 0 for none.'
    )
  for name in ('norm_eps', 'initializer_range'):
    if not getattr(e, name) > 0.0:
      raise errors.UserError(f'encoder.{name}={getattr(e, name)}: it must be above 0.')
  for name in ('dropout', 'attention_dropout'):
    if not 0.0 <= getattr(e, name) < 1.0:
      raise errors.UserError(
        f'encoder.{name}={getattr(e, name)}: a rate is at least 0 and below 1.'
      )


class Embeddings(nn.Module):
  """Word + position (+ segment) vectors, norm, dropout (Devlin et al. 2018 §3, Figure 2). The sum
  is float32.
  """

  vocab_size: int
  width: int
  max_positions: int
  type_vocab_size: int
  norm_eps: float
  dropout: float
  init_table: Callable
  dtype: Any

  @nn.compact
  def __call__(self, batch, dropout_keys_B2):
    length = batch['input_ids'].shape[1]
    if length > self.max_positions:
      raise errors.UserError(
        f'Rows of {length} tokens exceed the {self.max_positions} positions of the encoder: '
        f'set --config.encoder.max_positions={length} or a smaller --config.length.'
      )
    table = lambda size, name: layers.Embedding(size, self.width, self.init_table, name=name)()
    words, positions = table(self.vocab_size, 'word'), table(self.max_positions, 'position')
    x_BLD = words[batch['input_ids']]
    x_BLD += positions[batch['position_ids']] if 'position_ids' in batch else positions[:length]
    if self.type_vocab_size:
      # A product with 0 and 1 is exact, and its gradient is no scatter onto two rows.
      segments_BLT = jax.nn.one_hot(batch['segment_ids'], self.type_vocab_size, dtype=jnp.float32)
      x_BLD += jnp.einsum(
        'BLT,TD->BLD',
        segments_BLT,
        table(self.type_vocab_size, 'type'),
        precision=jax.lax.Precision.HIGHEST,
      )
    return layers.dropout(
      layers.Norm(self.norm_eps, self.dtype, name='norm')(x_BLD), self.dropout, dropout_keys_B2
    )


class Layer(nn.Module):
  """Self-attention and feed-forward, each followed by dropout, residual and norm."""

  num_heads: int
  intermediate_size: int
  activation: str
  norm_eps: float
  dropout: float
  attention_dropout: float
  kernel_init: Callable
  dtype: Any

  @nn.compact
  def __call__(self, x_BLD, pack_ids_BL, dropout_keys_B2, ops):
    keys = _split(dropout_keys_B2, 3)
    heads = attention.SelfAttention(
      self.num_heads, self.attention_dropout, self.kernel_init, self.dtype, name='attention'
    )
    y_BLD = heads(x_BLD, pack_ids_BL, keys[0], ops)
    x_BLD = self._add(x_BLD, y_BLD, keys[1], ops, 'attention')
    x_ND = x_BLD.reshape(
      -1, x_BLD.shape[-1]
    )  # for both uses: the sum of their gradients is then a part of a product
    y_ND = FeedForward(
      self.intermediate_size, self.activation, self.kernel_init, self.dtype, name='feed_forward'
    )(x_ND, ops)
    return self._add(
      x_ND.reshape(x_BLD.shape), y_ND.reshape(x_BLD.shape), keys[2], ops, 'feed_forward'
    )

  def _add(self, x_BLD, y_BLD, keys_B2, ops, name):
    y_BLD = checkpoint_name(y_BLD, f'{name}_output')
    norm = functools.partial(ops.add_norm, dropout_rate=self.dropout, dropout_keys_B2=keys_B2)
    return ops.constrain(
      'hidden', layers.Norm(self.norm_eps, self.dtype, name=f'{name}_norm')(x_BLD, y_BLD, norm=norm)
    )


class FeedForward(nn.Module):
  """out(activation(in(x))), of N = B·L tokens."""

  intermediate_size: int
  activation: str
  kernel_init: Callable
  dtype: Any

  @nn.compact
  def __call__(self, x_ND, ops):
    dense = functools.partial(
      layers.Dense,
      kernel_init=self.kernel_init,
      dtype=self.dtype,
      kernel_gradients=ops.kernel_gradients,
    )
    h_NF = dense((self.intermediate_size,), name='in')(x_ND)
    out = dense(x_ND.shape[-1:], before=layers.activation(self.activation), name='out')
    return out(ops.constrain('feed_forward', h_NF))


def _split(keys_B2, parts):
  """So many keys of the same rows, or None."""
  return [None if keys_B2 is None else row_keys.fold_in(keys_B2, i) for i in range(parts)]


BY_NAME = {'transformer': Transformer}
