"""The encoder with disentangled attention and its enhanced mask decoder: DeBERTa v1, v2 and V3's.

Legend: B batch, L length, P predictions, D width, E width of the tables, H heads, K head width,
T rows of the relative table, R = 2L − 1 distances of two tokens.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertzoo_jax.common import errors
from bertzoo_jax.common import row_keys
from bertzoo_jax.model import attention
from bertzoo_jax.model import blocks
from bertzoo_jax.model import layers
from bertzoo_jax.model import operations
from bertzoo_jax.model import places
from bertzoo_jax.model import protocol
from bertzoo_jax.model import stack
from bertzoo_jax.model import transformer

# What a mesh may split of what a transformer lacks, as blocks.AXES.
AXES = (
  (r'attention/position_(query|key)/kernel$', {'tensor': (-2,), 'fsdp': (-3,)}),
  (r'attention/position_query/bias$', {'tensor': (-2,)}),
  (r'relative/embedding$', {'fsdp': (-1, -2)}),
  (r'convolution/kernel$', {'fsdp': (-1, -2)}),
)

# Where vectors of absolute positions are added.
ABSOLUTE = ('none', 'input', 'decoder')

_PASSES = 2  # of the decoder's layer (He et al. 2020 A.8)


class Disentangled(nn.Module):
  """The post-norm encoder whose attention scores have terms of content and of relative position (He
  et al. 2020 §3.1), and whose predictions come from the enhanced mask decoder (§3.2).

  The score of query i and key j, at the relative position δ = i − j, is (A.7 and code of the
  release)

      (Qc_i · Kc_j + Qc_i · Kr[δ] + Qr[δ] · Kc_j) / √(K · (1 + number of the relative terms))

  Both relative terms use the same δ; eq. 4 prints δ(j, i) for the second. Kr and Qr are products of
  a table of relative positions, which all layers have in common.

  The decoder is the last layer applied twice to the output H of the layer before it. Keys and
  values are those of H. Queries start as H + vectors of the absolute positions. What the last layer
  would give after H is not used (code of the release). It is computed for the predictions alone.

  Rows longer than `max_distance`: distances beyond it count as the greatest ones, as in
  transformers. Microsoft's code gives −max_distance and what lies beyond the row of
  1 − max_distance.

  vocab_size, dtype (of products), unroll (layers per turn of the scan) and remat (stack.REMAT) are
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
  absolute_positions: str
  content_to_position: bool
  position_to_content: bool
  max_distance: int
  buckets: int
  norm_relative: bool
  shared_projections: bool
  key_bias: bool
  convolution_size: int
  convolution_activation: str
  sharing: str
  num_groups: int
  inner_group_num: int
  activation: str
  norm_eps: float
  dropout: float
  attention_dropout: float
  initializer: str
  initializer_range: float

  use_bias = True
  reads = ('input_ids', 'segment_ids', 'pack_ids')
  padding_side = 'right'
  axes = (*AXES, *transformer.AXES, *blocks.AXES)
  row_vectors = protocol.first_token
  plan = transformer.Transformer.plan
  table_width = transformer.Transformer.table_width
  kernel_init = transformer.Transformer.kernel_init
  resized = transformer.Transformer.resized

  def __post_init__(self):
    super().__post_init__()
    transformer.check(self)
    _check(self)

  @property
  def relative_attention(self) -> bool:
    """Whether scores have a relative term."""
    return self.content_to_position or self.position_to_content

  def setup(self):
    width = self.hidden_size
    self.embeddings = Embeddings(
      vocab_size=self.vocab_size,
      width=self.table_width,
      norm_eps=self.norm_eps,
      dropout=self.dropout,
      init_table=self.kernel_init,
      dtype=self.dtype,
      max_positions=self.max_positions if self.absolute_positions == 'input' else None,
      type_vocab_size=self.type_vocab_size,
      decoder_size=(self.max_positions, width) if self.absolute_positions == 'decoder' else None,
    )
    if self.table_width != width:
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
    example = (Relation(jnp.zeros((1, width)), np.zeros(1, int), None, 0.0),)
    self.layers = self.param(
      'layers', lambda k: blocks.init(self._block(), k, self.plan, width, *example)
    )

  def embed(self, batch):
    """The sum of the embeddings before its norm, float32 [B, L, E]."""
    return self.embeddings.sum(batch)

  def __call__(self, batch, dropout_keys_B2=None, ops=operations.PLAIN, embedded_BLE=None):
    """hidden_BLD in `dtype`.

    Args:
      batch: input_ids, segment_ids, pack_ids, and with dropout common_key.
      dropout_keys_B2: keys of its rows (row_keys.py); None without dropout.
      ops: operations that depend on the devices.
      embedded_BLE: the sum to begin with; None for `embed(batch)`.

    Raises UserError for rows longer than max_positions.
    """
    run, x_BLD = self._start(batch, dropout_keys_B2, ops, embedded_BLE)
    return run(x_BLD, 0, self.plan.blocks)

  def predictions(self, batch, dropout_keys_B2=None, ops=operations.PLAIN, memory=()):
    """Predictions at batch['masked_positions'], by the enhanced mask decoder where
    absolute_positions is 'decoder' (He et al. 2020 §3.2, A.8).
    """
    if self.absolute_positions != 'decoder':
      return protocol.gathered(self, batch, dropout_keys_B2, ops, memory)
    run, x_BLD = self._start(batch, dropout_keys_B2, ops)
    last = self.plan.blocks - 1
    x_BLD = run(x_BLD, 0, last)
    at_BP, table = batch['masked_positions'], self.embeddings.position()
    position_ids = batch.get('position_ids')
    places_BP = at_BP if position_ids is None else jnp.take_along_axis(position_ids, at_BP, axis=1)
    start_BPD = (table[places_BP] + protocol.gather(x_BLD, at_BP)).astype(x_BLD.dtype)
    asked = places.Asked.of(at_BP, x_BLD)
    states_BPD = run(x_BLD, last, last + 1, (start_BPD, asked))
    return protocol.Predictions(states_BPD, run(x_BLD, last, last + 1), memory)

  def _start(self, batch, dropout_keys_B2, ops, embedded_BLE=None):
    """(run, input of the first block): run(x_BLD, first, end) gives the output of the blocks, and
    run(x_BLD, last, end, decoded) the vectors of the decoder.
    """
    if (length := batch['input_ids'].shape[1]) > self.max_positions:
      raise errors.UserError(
        f'Rows of {length} tokens exceed the {self.max_positions} positions of the encoder: '
        f'set --config.encoder.max_positions={length} or a smaller --config.length.'
      )
    keys = blocks.split_keys(dropout_keys_B2, 3)
    embedded_BLE = self.embed(batch) if embedded_BLE is None else embedded_BLE
    if self.table_width != self.hidden_size:
      embedded_BLE = self.embedding_projection(embedded_BLE)
    real_BL1 = batch['pack_ids'][:, :, None] > 0
    x_BLD = jnp.where(real_BL1, self.embeddings.finish(embedded_BLE, keys[0]), 0)
    block, visible, first_BLD = self._block(), attention.of_batch(batch), x_BLD
    relation = self._relation(batch, length, dropout_keys_B2 is not None)

    def layer(params, x_BLD, turn):
      its = relation.of_layer(turn.number)
      return block.apply({'params': params}, x_BLD, visible, turn.keys_B2, ops, its), None

    def decode(params, x_BLD, turn, z_BPD, asked):
      params = {'params': params}
      of_keys = lambda block: block.attention(x_BLD, None, None, ops, None)
      read = asked._replace(keys_values=block.apply(params, method=of_keys))
      keys_B2s = blocks.split_keys(turn.keys_B2, _PASSES)
      for number, keys_B2 in enumerate(keys_B2s):
        its = relation.of_layer(turn.number).of_layer(1 + number)
        z_BPD = block.apply(params, z_BPD, visible, keys_B2, ops, its, read)
      return x_BLD, z_BPD

    def run(x_BLD, first, end, decoded=None):
      if first == end:
        return x_BLD
      apply = layer
      if decoded is not None:
        apply = lambda params, x_BLD, turn: decode(params, x_BLD, turn, *decoded)
      if self.convolution_size and first == 0 and decoded is None:
        x_BLD = scan(layer, x_BLD, 0, 1)[0]
        x_BLD = jnp.where(real_BL1, self._convolve(x_BLD, first_BLD, batch, keys[2]), 0)
        return run(x_BLD, 1, end)
      x_BLD, outputs = scan(apply, x_BLD, first, end)
      return x_BLD if decoded is None else outputs[0]

    def scan(apply, x_BLD, first, end):
      how = dict(first=first, end=end, unroll=self.unroll, remat=self.remat)
      return stack.scan(apply, self.layers, x_BLD, keys[1], self.plan, **how)

    return run, ops.constrain('hidden', x_BLD)

  def _convolve(self, x_BLD, first_BLD, batch, dropout_keys_B2):
    """The norm of the first layer's output and a convolution of the embeddings (He et al. 2020
    §A.7, code of the release).
    """
    around = layers.neighbours(first_BLD, batch['pack_ids'], self.convolution_size)
    y_BLD = layers.dropout(self.convolution(around), self.dropout, dropout_keys_B2)
    return self.convolution_norm(x_BLD + layers.activation(self.convolution_activation)(y_BLD))

  def _relation(self, batch, length, with_dropout):
    """The rows of the relative table that tokens of such rows meet."""
    if not self.relative_attention:
      return Relation(None, None, None, 0.0)
    key_2 = None
    if with_dropout and self.dropout:
      key_2 = batch['common_key']
    used, rows_R = np.unique(
      table_rows(length, self.max_distance, self.buckets), return_inverse=True
    )
    table_TD = self.relative()
    if self.norm_relative:
      table_TD = self.relative_norm(table_TD)
    return Relation(table_TD[used], rows_R, key_2, self.dropout)

  @nn.nowrap
  def flops(self, length: int, predictions: int = 0) -> float:
    """Operations of a forward pass over one row: of all blocks, of the projection and of the
    convolution; with predictions, of the decoder in place of the last block. Products of the
    relative table are one for a whole batch, and are not counted.
    """
    d, block, n = self.hidden_size, self._block(), self.plan.blocks
    total = 2.0 * length * self.table_width * d if self.table_width != d else 0.0
    total += 2.0 * length * self.convolution_size * d**2
    if not predictions or self.absolute_positions != 'decoder':
      return total + n * block.flops(length, d)
    scores = block.attention.of_scores(length, d) + block.attention.of_mixture(length, d)
    of_states = 4.0 * predictions * d**2 + block.feed_forward.flops(predictions, d)
    decoder = 4.0 * length * d**2 + _PASSES * (of_states + scores * predictions / length)
    return total + (n - 1) * block.flops(length, d) + decoder

  @nn.nowrap
  def _block(self) -> blocks.Block:
    kernel_init = self.kernel_init
    return blocks.Block(
      attention=DisentangledAttention(
        self.num_heads,
        self.attention_dropout,
        kernel_init,
        self.dtype,
        self.content_to_position,
        self.position_to_content,
        self.shared_projections,
        self.key_bias,
        parent=None,
      ),
      feed_forward=blocks.FeedForward(
        self.intermediate_size, self.activation, kernel_init, self.dtype, parent=None
      ),
      norm=functools.partial(layers.Norm, self.norm_eps, self.dtype),
      dropout=self.dropout,
      parent=None,
    )


class Relation(NamedTuple):
  """What attention is told of relative positions.

  Attributes:
    table_UD: rows of the relative table, float32; None without relative terms.
    rows_R: static; which of them belongs to each distance, from the smallest to the greatest.
    key_2: of the table's dropout, which is common to all rows of the batch; None without.
    rate: of that dropout.
  """

  table_UD: jax.Array | None
  rows_R: np.ndarray | None
  key_2: jax.Array | None
  rate: float

  def of_layer(self, number):
    """With another key for each layer."""
    return self if self.key_2 is None else self._replace(key_2=row_keys.fold_in(self.key_2, number))

  def dropped(self):
    """table_UD after its dropout."""
    return layers.dropout(self.table_UD, self.rate, self.key_2)


class DisentangledAttention(nn.Module):
  """Multi-head attention with relative terms (He et al. 2020 §3.1).

  Attributes:
    num_heads: H, which divides the width.
    dropout_rate: of the attention probabilities.
    kernel_init, dtype: of the products.
    content_to_position, position_to_content: which terms scores have.
    shared_projections: the table is projected as contents are, by `key` and `query`; else by
      products of its own.
    key_bias: whether keys have a bias.
  """

  num_heads: int
  dropout_rate: float
  kernel_init: Callable
  dtype: Any
  content_to_position: bool
  position_to_content: bool
  shared_projections: bool
  key_bias: bool

  @nn.compact
  def __call__(self, x_BLD, visible, dropout_keys_B2, ops, relation, asked=None):
    """y_BLD; without `visible` (k_BLHK, v_BLHK); with `asked` y_BPD of x_BPD."""
    width = x_BLD.shape[-1]
    heads = (self.num_heads, width // self.num_heads)
    dense = functools.partial(
      layers.Dense,
      kernel_init=self.kernel_init,
      dtype=self.dtype,
      kernel_gradients=ops.kernel_gradients,
    )
    query, value = dense(heads, name='query'), dense(heads, name='value')
    key = dense(heads, use_bias=self.key_bias, name='key')
    pin = functools.partial(ops.constrain, 'heads')
    if asked is None:
      k_BLHK, v_BLHK = pin(key(x_BLD)), pin(value(x_BLD))
    else:
      k_BLHK, v_BLHK = asked.keys_values
    if visible is None:
      return k_BLHK, v_BLHK
    q_BLHK = query(x_BLD)
    q_BLHK = pin(q_BLHK if asked is None else asked.spread(q_BLHK))

    tables = {}
    if self.content_to_position or self.position_to_content:
      table_UD = relation.dropped()
      rows = lambda x_UHK: x_UHK[relation.rows_R]
      if self.content_to_position:
        project = key
        if not self.shared_projections:
          project = dense(heads, use_bias=False, name='position_key')
        tables['c2p_RHK'] = rows(project(table_UD))
      if self.position_to_content:
        project = query if self.shared_projections else dense(heads, name='position_query')
        tables['p2c_RHK'] = rows(project(table_UD))
    out_BLHK = ops.attend(
      q_BLHK,
      k_BLHK,
      v_BLHK,
      visible,
      self.dropout_rate,
      dropout_keys_B2,
      attention.Relative(**tables) if tables else None,
      (heads[1] * (1 + len(tables))) ** -0.5,
    )
    out_BLHK = pin(out_BLHK if asked is None else asked.gather(out_BLHK))
    return dense((width,), in_axes=2, input_name='attended', name='output')(out_BLHK)

  @nn.nowrap
  def flops(self, length: int, width: int) -> float:
    """Four products, scores with their relative terms, and their mixture."""
    return 8.0 * length * width**2 + self.of_scores(length, width) + self.of_mixture(length, width)

  @nn.nowrap
  def of_scores(self, length: int, width: int) -> float:
    """Operations of all scores: a query and a key meet 2L rows of a table each."""
    terms = self.content_to_position + self.position_to_content
    return 2.0 * length**2 * width * (1 + 2 * terms)

  @nn.nowrap
  def of_mixture(self, length: int, width: int) -> float:
    """Operations of the mixtures of all values."""
    return 2.0 * length**2 * width


class Embeddings(transformer.Embeddings):
  """Those of a transformer, and the table of positions that the decoder reads.

  decoder_size: (positions, D) of that table; None for none.
  """

  decoder_size: tuple[int, int] | None = None

  def setup(self):
    super().setup()
    if self.decoder_size is not None:
      self.position = layers.Embedding(*self.decoder_size, self.init_table)


def buckets_of(distances: np.ndarray, buckets: int, max_distance: int) -> np.ndarray:
  """The bucket of each distance (code of the release, make_log_bucket_position): itself up to
  buckets / 2, beyond in logarithmic steps, with the sign of the distance. On the host, in float64.
  """
  middle = buckets // 2
  size = np.maximum(np.abs(distances), middle).astype(np.float64)
  steps = np.log(size / middle) / np.log((max_distance - 1) / middle) * (middle - 1)
  far = np.sign(distances) * (np.ceil(steps).astype(np.int64) + middle)
  return np.where(np.abs(distances) <= middle, distances, far)


def table_rows(length: int, max_distance: int, buckets: int = 0) -> np.ndarray:
  """Row of the relative table for each distance of two tokens of a row, in attend's order.

  Args:
    length: L.
    max_distance: distances from there on share the outermost rows.
    buckets: 0 for a row per distance, else number of rows to each side.
  """
  distances, half = attention.distances(length, length), buckets or max_distance
  if buckets:
    distances = buckets_of(distances, buckets, max_distance)
  return np.clip(distances + half, 0, 2 * half - 1)


def _check(e: Disentangled):
  """Raises UserError for choices that cannot be built."""
  errors.choose(e.absolute_positions, dict.fromkeys(ABSOLUTE), 'encoder.absolute_positions')
  layers.activation(e.convolution_activation)
  if e.max_distance < 2:
    raise errors.UserError(f'encoder.max_distance={e.max_distance}: at least 2 is needed.')
  if e.buckets < 0 or e.buckets % 2 or e.buckets // 2 >= e.max_distance - 1:
    raise errors.UserError(
      f'encoder.buckets={e.buckets}: give an even number of buckets to each side, below twice '
      f'max_distance={e.max_distance}, or 0 for a row per distance.'
    )
  if e.convolution_size < 0 or (e.convolution_size and e.convolution_size % 2 == 0):
    raise errors.UserError(
      f'encoder.convolution_size={e.convolution_size}: give an odd number of tokens, or 0 for none.'
    )
