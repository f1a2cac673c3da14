"""The Transformer encoder with absolute positions: BERT's, RoBERTa's, ALBERT's and ELECTRA's.

Legend: B batch, L length, D width, E width of the tables, T token types.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertzoo_jax.common import errors
from bertzoo_jax.model import attention
from bertzoo_jax.model import blocks
from bertzoo_jax.model import layers
from bertzoo_jax.model import operations
from bertzoo_jax.model import protocol
from bertzoo_jax.model import stack
from bertzoo_jax.parts import encoders as definitions

# Axes of the embeddings that a mesh may split, as in blocks.AXES.
AXES = (
  (r'embeddings/word/embedding$', {'tensor': (-2, -1), 'fsdp': (-1, -2)}),
  (r'embeddings/position/embedding$', {'fsdp': (-1, -2)}),
  (r'embeddings/type/embedding$', {}),
  (r'embedding_projection/kernel$', {'fsdp': (-1, -2)}),
)


@protocol.encoder
class Transformer(definitions.Transformer, protocol.Given):
  """The post-norm Transformer encoder with learned positions (Devlin et al. 2018 §3; Vaswani et al.
  2017 §3.1). Optionally, tables have another width than the layers, and layers share parameters
  (Lan et al. 2019 §3.1).
  """

  left_to_right = True
  reads = ('input_ids', 'token_type_ids', 'segment_ids')
  axes = (*AXES, *blocks.AXES)
  pooled = protocol.first_token
  predictions = protocol.gathered

  def __post_init__(self):
    super().__post_init__()
    check(self)

  @property
  def plan(self) -> stack.Plan:
    return stack.Plan(
      self.num_layers, stack.SHARING[self.sharing], self.num_groups, self.inner_group_num
    )

  @property
  def embedding_width(self) -> int:
    """E, the width of the embeddings."""
    return self.embedding_size or self.hidden_size

  @property
  def kernel_init(self) -> Callable:
    """Initial values of kernels and tables."""
    return layers.initializer(self.initializer, self.initializer_range)

  def setup(self):
    self.embeddings = Embeddings(
      vocab_size=self.vocab_size,
      width=self.embedding_width,
      max_positions=self.max_positions,
      type_vocab_size=self.type_vocab_size,
      norm_eps=self.norm_eps,
      dropout=self.dropout,
      init_table=self.kernel_init,
      dtype=self.dtype,
    )
    if self.embedding_width != self.hidden_size:
      self.embedding_projection = layers.Dense((self.hidden_size,), self.kernel_init, self.dtype)
    width = self.hidden_size
    self.layers = self.param('layers', lambda k: blocks.init(self._block(), k, self.plan, width))

  def embed(self, batch):
    """The sum of the embeddings before its norm, float32 [B, L, E]."""
    return self.embeddings.sum(batch)

  def __call__(self, batch, dropout_keys_B2=None, ops=operations.PLAIN, embedded_BLE=None):
    """See protocol.Encoder. Raises UserError for rows longer than the position table."""
    embed_keys_B2, stack_keys_B2 = blocks.split_keys(dropout_keys_B2, 2)
    embedded_BLE = self.embed(batch) if embedded_BLE is None else embedded_BLE
    x_BLD = self.embeddings.finish(embedded_BLE, embed_keys_B2)
    if self.embedding_width != self.hidden_size:
      x_BLD = self.embedding_projection(x_BLD)
    block, visible = self._block(), attention.batch_visibility(batch)

    def apply(params, x_BLD, turn):
      return block.apply({'params': params}, x_BLD, visible, turn.keys_B2, ops), None

    return stack.scan(
      apply,
      self.layers,
      ops.constrain('hidden', x_BLD),
      stack_keys_B2,
      self.plan,
      unroll=self.unroll,
      remat=self.remat,
    )[0]

  @nn.nowrap
  def resized(self, width: float, depth: float, embedding_width: int | None = None):
    """A copy with `width` times its widths and `depth` times its layers; heads keep their width if
    possible. embedding_width: width of the embeddings; None: the layers'.

    Raises UserError for heads that do not divide the width.
    """
    sizes = protocol.shares(self, width, depth)
    hidden_size, num_layers = sizes['hidden_size'], sizes['num_layers']
    return self.clone(
      parent=None,
      num_groups=self.num_groups if num_layers % self.num_groups == 0 else 1,
      embedding_size=0 if embedding_width in (None, hidden_size) else embedding_width,
      **sizes,
    )

  @nn.nowrap
  def _block(self) -> blocks.Block:
    return post_norm(self, blocks.SelfAttention)


def post_norm(e, attention, *fields) -> blocks.Block:
  """A layer of the encoder `e`, with norms after the sublayers. fields: more of its attention's."""
  products = e.kernel_init, e.dtype
  return blocks.Block(
    attention=attention(e.num_heads, e.attention_dropout, *products, *fields, parent=None),
    feed_forward=blocks.FeedForward(e.intermediate_size, e.activation, *products, parent=None),
    norm=functools.partial(layers.Norm, e.norm_eps, e.dtype),
    dropout=e.dropout,
    parent=None,
  )


def check(e):
  """Raises UserError for widths, groups and sharing that exclude each other."""
  check_widths(e)
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


def check_widths(e):
  """Raises UserError for heads that do not divide the width."""
  if e.hidden_size % e.num_heads:
    raise errors.UserError(
      f'encoder.hidden_size={e.hidden_size} does not divide by num_heads={e.num_heads}: choose a '
      'multiple.'
    )


def check_length(batch, max_positions: int):
  """Raises UserError for rows longer than max_positions."""
  if (length := batch['input_ids'].shape[1]) > max_positions:
    raise errors.UserError(
      f'Rows of {length} tokens exceed the {max_positions} positions of the encoder: '
      f'set --config.encoder.max_positions={length} or a smaller --config.length.'
    )


class Embeddings(nn.Module):
  """Word + position + token type vectors, norm, dropout (Devlin et al. 2018 §3, Figure 2).

  The sum is float32. max_positions None: no table of positions. type_vocab_size 0: no table of
  token types. make_norm: (eps, dtype) → the norm; None: no norm.
  """

  vocab_size: int
  width: int
  norm_eps: float
  dropout: float
  init_table: Callable
  dtype: Any
  max_positions: int | None = None
  type_vocab_size: int = 0
  make_norm: Callable | None = layers.Norm

  def setup(self):
    table = lambda size: layers.Embedding(size, self.width, self.init_table)
    self.word = table(self.vocab_size)
    if self.max_positions is not None:
      self.position = table(self.max_positions)
    if self.type_vocab_size:
      self.type = table(self.type_vocab_size)
    if self.make_norm is not None:
      self.norm = self.make_norm(self.norm_eps, self.dtype)

  def sum(self, batch):
    """The sum, [B, L, E]."""
    if self.max_positions is not None:
      check_length(batch, self.max_positions)
    x_BLE, length = self.word()[batch['input_ids']], batch['input_ids'].shape[1]
    if self.max_positions is not None:
      positions = self.position()
      x_BLE += positions[batch['position_ids']] if 'position_ids' in batch else positions[:length]
    if self.type_vocab_size:
      # A product with 0 and 1 is exact, and its gradient is not a scatter onto two rows.
      segments_BLT = jax.nn.one_hot(
        batch['token_type_ids'], self.type_vocab_size, dtype=jnp.float32
      )
      exact = jax.lax.Precision.HIGHEST
      x_BLE += jnp.einsum('BLT,TE->BLE', segments_BLT, self.type(), precision=exact)
    return x_BLE

  def finish(self, x_BLE, dropout_keys_B2):
    """Norm and dropout of the sum."""
    x_BLE = self.norm(x_BLE) if self.make_norm is not None else x_BLE.astype(self.dtype)
    return layers.dropout(x_BLE, self.dropout, dropout_keys_B2)

  def __call__(self, batch, dropout_keys_B2):
    """`finish` of `sum`."""
    return self.finish(self.sum(batch), dropout_keys_B2)
