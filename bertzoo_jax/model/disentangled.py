"""An encoder with disentangled attention and the enhanced mask decoder (He et al. 2020).

Legend: B batch, L length, P predictions, D width, E width of the tables, K head width, T rows
of the relative table.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertzoo_jax.common import errors
from bertzoo_jax.model import attention
from bertzoo_jax.model import blocks
from bertzoo_jax.model import disentangled_attention
from bertzoo_jax.model import layers
from bertzoo_jax.model import operations
from bertzoo_jax.model import protocol
from bertzoo_jax.model import stack
from bertzoo_jax.model import transformer
from bertzoo_jax.parts import encoders as definitions

# Axes that a mesh may split, of the parameters that a transformer lacks; as blocks.AXES.
AXES = (
  (r'attention/position_(query|key)/kernel$', {'tensor': (-2,), 'fsdp': (-3,)}),
  (r'attention/position_query/bias$', {'tensor': (-2,)}),
  (r'relative/embedding$', {'fsdp': (-1, -2)}),
  (r'convolution/kernel$', {'fsdp': (-1, -2)}),
)

PASSES = 2  # of the decoder's layer (He et al. 2020 A.8)


@protocol.encoder
class Disentangled(definitions.Disentangled, protocol.Given):
  """A post-norm encoder. Its attention scores have terms of content and of relative position (He et
  al. 2020 §3.1). Its predictions come from the enhanced mask decoder (§3.2).

  The score of query i and key j, at the relative position δ = i − j, is (A.7 and code of the
  release)

      (Qc_i · Kc_j + Qc_i · Kr[δ] + Qr[δ] · Kc_j) / √(K · (1 + number of the relative terms))

  Both relative terms use the same δ; eq. 4 prints δ(j, i) for the second. Kr and Qr are projections
  of the relative table, which all layers share.

  The decoder applies the last layer twice, for the predictions only. Both times, keys and values
  come from the output H of the layer before. Its queries start as H + the vectors of the absolute
  positions. The ordinary output of the last layer is not used (code of the release).

  Distances beyond `max_distance` read the outermost rows of the table, as in transformers. In
  Microsoft's code −max_distance and all distances below read the row of 1 − max_distance.

  vocab_size, the number of rows of the word table, is rounded up to a multiple of vocab_multiple.
  """

  reads = ('input_ids', 'token_type_ids', 'segment_ids')
  axes = (*AXES, *transformer.AXES, *blocks.AXES)
  pooled = protocol.first_token
  plan = transformer.Transformer.plan
  embedding_width = transformer.Transformer.embedding_width
  kernel_init = transformer.Transformer.kernel_init
  embed = transformer.Transformer.embed
  resized = transformer.Transformer.resized

  def __post_init__(self):
    self.vocab_size += -self.vocab_size % self.vocab_multiple
    super().__post_init__()
    transformer.check(self)
    _check(self)

  @property
  def relative_attention(self) -> bool:
    """Whether scores have a relative term."""
    return self.content_to_position or self.position_to_content

  @property
  def left_to_right(self) -> bool:
    """Whether later tokens can be hidden. With a convolution they cannot: it reads both sides."""
    return not self.convolution_size

  def setup(self):
    width = self.hidden_size
    self.embeddings = Embeddings(
      vocab_size=self.vocab_size,
      width=self.embedding_width,
      norm_eps=self.norm_eps,
      dropout=self.dropout,
      init_table=self.kernel_init,
      dtype=self.dtype,
      max_positions=self.max_positions if self.absolute_positions == 'input' else None,
      type_vocab_size=self.type_vocab_size,
      decoder_size=(self.max_positions, width) if self.absolute_positions == 'decoder' else None,
    )
    if self.embedding_width != width:
      self.embedding_projection = layers.Dense(
        (width,), self.kernel_init, self.dtype, use_bias=False
      )
    if self.relative_attention:
      rows = 2 * (self.buckets or self.max_distance)
      self.relative = layers.Embedding(rows, width, self.kernel_init)
    if self.relative_attention and self.norm_relative:
      self.relative_norm = layers.Norm(self.norm_eps, jnp.float32)
    if self.convolution_size:
      self.convolution = layers.Dense((width,), self.kernel_init, self.dtype, in_axes=2)
      self.convolution_norm = layers.Norm(self.norm_eps, self.dtype)
    example = disentangled_attention.Relation(jnp.zeros((1, width)), np.zeros(1, int), None, 0.0)
    self.layers = self.param(
      'layers', lambda k: blocks.init(self._block(), k, self.plan, width, example)
    )

  def __call__(self, batch, dropout_keys_B2=None, ops=operations.PLAIN, embedded_BLE=None):
    """See protocol.Encoder.

    Raises UserError: rows longer than max_positions. Raises ValueError: dropout of the relative
    table without common_key.
    """
    args = self._start(batch, dropout_keys_B2, ops, embedded_BLE)
    return self._run(args, args.embedded_BLD, 0, self.plan.blocks)

  def predictions(self, batch, dropout_keys_B2=None, ops=operations.PLAIN, memory=()):
    """Predictions at batch['masked_positions'], from the enhanced mask decoder (He et al. 2020
    §3.2, A.8). If absolute_positions is not 'decoder', they are the last layer's vectors. Arguments
    and errors: see `__call__`.
    """
    if self.absolute_positions != 'decoder':
      return protocol.gathered(self, batch, dropout_keys_B2, ops, memory)
    args, last = self._start(batch, dropout_keys_B2, ops), self.plan.blocks - 1
    x_BLD = self._run(args, args.embedded_BLD, 0, last)
    hidden_BLD = self._run(args, x_BLD, last, last + 1)  # jit drops it if nothing reads it
    return protocol.Predictions(self._decode(args, x_BLD), hidden_BLD, memory)

  def _start(self, batch, dropout_keys_B2, ops, embedded_BLE=None):
    """The _Shared of a pass."""
    transformer.check_length(batch, self.max_positions)
    embed_keys_B2, *keys = blocks.split_keys(dropout_keys_B2, 3)
    x_BLD = self.embed(batch) if embedded_BLE is None else embedded_BLE
    if self.embedding_width != self.hidden_size:
      x_BLD = self.embedding_projection(x_BLD)
    x_BLD = ops.constrain('hidden', _real(self.embeddings.finish(x_BLD, embed_keys_B2), batch))
    dropped = dropout_keys_B2 is not None and self.dropout > 0.0
    relation = self._relation(batch['input_ids'].shape[1], _common_key(batch) if dropped else None)
    return _Shared(batch, attention.batch_visibility(batch), relation, x_BLD, *keys, ops)

  def _run(self, args, x_BLD, first, end):
    """The output of the blocks first … end − 1. The convolution follows block 0."""
    block = self._block()

    def apply(params, x_BLD, turn):
      relation = args.relation.with_key_of(turn.number)
      out = block.apply({'params': params}, x_BLD, args.visible, turn.keys_B2, args.ops, relation)
      return out, None

    if self.convolution_size and first == 0 < end:
      x_BLD, _ = self._scan(apply, args, x_BLD, 0, 1)
      x_BLD, first = self._convolve(args, x_BLD), 1
    return self._scan(apply, args, x_BLD, first, end)[0] if first < end else x_BLD

  def _decode(self, args, x_BLD):
    """states_BPD of the decoder: the last block twice, both times with keys and values of x_BLD.

    x_BLD: the output of the block before.
    """
    block, at_BP = self._block(), args.batch['masked_positions']
    place_BP, position_ids_BL = at_BP, args.batch.get('position_ids')
    if position_ids_BL is not None:
      place_BP = jnp.take_along_axis(position_ids_BL, at_BP, axis=1)
    absolute_BPD = self.embeddings.position()[place_BP]
    start_BPD = (absolute_BPD + protocol.gather(x_BLD, at_BP)).astype(x_BLD.dtype)
    decoder_visible = attention.asked(args.visible, at_BP)

    def apply(params, x_BLD, turn):
      params, relation = {'params': params}, args.relation.with_key_of(turn.number)
      project = lambda block: block.attention(x_BLD, None, None, args.ops, None)
      keys_values = block.apply(params, method=project)
      z_BPD = start_BPD
      for number, keys_B2 in enumerate(blocks.split_keys(turn.keys_B2, PASSES)):
        context = relation.with_key_of(number), keys_values
        z_BPD = block.apply(params, z_BPD, decoder_visible, keys_B2, args.ops, *context)
      return x_BLD, z_BPD

    last = self.plan.blocks - 1
    return self._scan(apply, args, x_BLD, last, last + 1)[1][0]

  def _scan(self, apply, args, x_BLD, first, end):
    options = dict(first=first, end=end, unroll=self.unroll, remat=self.remat)
    return stack.scan(apply, self.layers, x_BLD, args.keys_B2, self.plan, **options)

  def _convolve(self, args, x_BLD):
    """norm(x_BLD + a convolution of the first layer's input) (He et al. 2020 §A.7, code)."""
    near = layers.neighbours(args.embedded_BLD, args.batch['segment_ids'], self.convolution_size)
    y_BLD = layers.dropout(self.convolution(near), self.dropout, args.convolution_keys_B2)
    y_BLD = layers.activation(self.convolution_activation)(y_BLD)
    return _real(self.convolution_norm(x_BLD + y_BLD), args.batch)

  def _relation(self, length, key_2):
    """The Relation of rows of `length` tokens. key_2: dropout key of the table, or None."""
    if not self.relative_attention:
      return disentangled_attention.Relation(None, None, None, 0.0)
    rows_R = disentangled_attention.table_rows(length, self.max_distance, self.buckets)
    used, which_R = np.unique(rows_R, return_inverse=True)
    table_TD = self.relative()
    if self.norm_relative:
      table_TD = self.relative_norm(table_TD)
    return disentangled_attention.Relation(table_TD[used], which_R, key_2, self.dropout)

  @nn.nowrap
  def _block(self) -> blocks.Block:
    return transformer.post_norm(
      self,
      disentangled_attention.DisentangledAttention,
      self.content_to_position,
      self.position_to_content,
      self.shared_projections,
      self.key_bias,
    )


class Embeddings(transformer.Embeddings):
  """A transformer's embeddings, and the position table of the decoder.

  decoder_size: (positions, D) of the decoder's table; None: no such table.
  """

  decoder_size: tuple[int, int] | None = None

  def setup(self):
    super().setup()
    if self.decoder_size is not None:
      self.position = layers.Embedding(*self.decoder_size, self.init_table)


def _real(x_BLD, batch):
  """x_BLD with 0 for padding."""
  return jnp.where(batch['segment_ids'][:, :, None] > 0, x_BLD, 0)


def _common_key(batch):
  if 'common_key' not in batch:
    raise ValueError(
      'Dropout of the relative table is the same for all rows and has a key of its own: put '
      'common_key, uint32 [2], into the batch, as objectives.networks does.'
    )
  return batch['common_key']


class _Shared(NamedTuple):
  """Arguments that all layers of a pass share."""

  batch: dict  # the features
  # visible, relation: arguments of the attention
  visible: attention.Visibility
  relation: disentangled_attention.Relation
  embedded_BLD: jax.Array  # input of the first layer; the convolution reads it, too
  # keys_B2, convolution_keys_B2: row keys for dropout in the layers and after the convolution
  keys_B2: jax.Array | None
  convolution_keys_B2: jax.Array | None
  ops: operations.Operations  # operations that depend on the devices


def _check(e: Disentangled):
  """Raises UserError for a wrong number of buckets, or an even convolution_size."""
  if e.buckets % 2 or e.buckets // 2 >= e.max_distance - 1:
    raise errors.UserError(
      f'encoder.buckets={e.buckets}: with max_distance={e.max_distance} give an even number of at '
      f'most {2 * e.max_distance - 4}, or 0 for a row per distance.'
    )
  if e.convolution_size and e.convolution_size % 2 == 0:
    raise errors.UserError(
      f'encoder.convolution_size={e.convolution_size}: give an odd number of tokens, or 0 for none.'
    )
