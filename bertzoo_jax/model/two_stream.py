"""An encoder with two streams, relative positions and a memory (Yang et al. 2019).

Legend: B batch, L length, P predictions, M tokens of the memory, C = M + L keys, D width, H heads,
K head width, n layers, T rows of the table of positions, R distances of a query and a key.
"""

import functools
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

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
from bertzoo_jax.model import transformer
from bertzoo_jax.parts import encoders as definitions

# Axes that a mesh may split, of the parameters that a transformer lacks; as blocks.AXES.
AXES = (
  (r'attention/position/kernel$', {'tensor': (-2,), 'fsdp': (-3,)}),
  (r'attention/((content|position|segment)_query|segment)$', {'tensor': (-2,)}),
  (r'embeddings/query/embedding$', {}),
)


@protocol.encoder
class TwoStream(definitions.TwoStream, protocol.Given):
  """A post-norm encoder with a content and a query stream (Yang et al. 2019 §2.3), relative
  positions and a memory (§2.4; Dai et al. 2019 §3.2, 3.3).

  The content stream h is an ordinary encoder. If the batch has an `order`, token i sees the tokens
  j with order_j ≤ order_i; else it sees all tokens of its packed segment.

  The query stream g has one vector per prediction; all start as the same learned vector. The vector
  of place i reads the vectors of h with order_j < order_i, so it depends on its place but not on
  its token. Both streams have the same weights. `predictions` returns vectors of g if the batch has
  an order, else of h.

  The score of query i and key j, at the distance δ = i − j, is (Dai et al. 2019 §3.3; Yang et al.
  2019 §2.5)

      ((q_i + u)·k_j + (q_i + v)·r[δ] + (q_i + w)·s[segments of i and j differ]) / √K

  r is a projection of sinusoids. No projection of the attention has a bias. Rows with `direction` 1
  are read from right to left: there δ = j − i.

  The memory holds the last M inputs of each layer. Each batch appends its first `reuse_length`
  tokens. All tokens of the first packed segment see the memory. Its token type is 0, and it gets no
  gradient. It starts as zeros, which are attended to (code of the release), and is reset to zero
  in rows whose `resets` is 1.

  Dropout is not as in the release, see configs/xlnet.py.
  """

  relative_attention = True
  query_stream = True
  embedding_norm = False
  left_to_right = True
  type_vocab_size = 3  # two segments and the classifier
  reads = ('input_ids', 'token_type_ids', 'segment_ids')
  padding_side = 'left'
  axes = (*AXES, *transformer.AXES, *blocks.AXES)
  kernel_init = transformer.Transformer.kernel_init

  def __post_init__(self):
    super().__post_init__()
    transformer.check_widths(self)
    if self.hidden_size % 2:
      raise errors.UserError(
        f'encoder.hidden_size={self.hidden_size} is odd, but sinusoids come in pairs: give an even '
        'width.'
      )

  @property
  def plan(self) -> stack.Plan:
    return stack.Plan(self.num_layers)

  def setup(self):
    width = self.hidden_size
    self.embeddings = Embeddings(self.vocab_size, width, self.kernel_init)
    example = _Context(jnp.zeros((1, width)), jnp.zeros((1, 1), jnp.int32))
    self.layers = self.param(
      'layers', lambda k: blocks.init(self._block(), k, self.plan, width, example)
    )

  @nn.nowrap
  def first_memory(self, rows: int):
    """The memory before the first batch: zeros [B, n, M, D] in `dtype`; () without memory."""
    if not self.memory_length:
      return ()
    return jnp.zeros((rows, self.num_layers, self.memory_length, self.hidden_size), self.dtype)

  def embed(self, batch):
    """The word vectors, float32 [B, L, D]."""
    return self.embeddings.word()[batch['input_ids']]

  def __call__(self, batch, dropout_keys_B2=None, ops=operations.PLAIN, embedded_BLE=None):
    """hidden_BLD of the content stream, without memory; see protocol.Encoder. Also read: order,
    direction.
    """
    run, h_BLD, keys = self._start(batch, dropout_keys_B2, ops, (), embedded_BLE)
    return layers.dropout(run(h_BLD, 0, self.num_layers)[0], self.dropout, keys[0])

  def predictions(self, batch, dropout_keys_B2=None, ops=operations.PLAIN, memory=()):
    """Predictions at batch['masked_positions']: of the query stream if the batch has an `order`,
    else of the content stream.

    memory: from `first_memory` or the batch before; () for none. Rows with `resets` 1 read zeros.

    Raises UserError for rows shorter than reuse_length.
    """
    run, h_BLD, keys = self._start(batch, dropout_keys_B2, ops, memory)
    at_BP, last, end = batch['masked_positions'], self.num_layers - 1, self.num_layers
    out = lambda x, keys_B2: layers.dropout(x, self.dropout, keys_B2)
    if 'order' not in batch:
      h_BLD, kept = run(h_BLD, 0, end)
      h_BLD = out(h_BLD, keys[0])
      return protocol.Predictions(protocol.gather(h_BLD, at_BP), h_BLD, _stacked_memory(kept))
    g_BPD = self.embeddings.query().astype(self.dtype)
    g_BPD = out(jnp.broadcast_to(g_BPD, (*at_BP.shape, self.hidden_size)), keys[1])
    x_BXD, kept = run(jnp.concatenate([h_BLD, g_BPD], axis=1), 0, last, at_BP)
    h_BLD, g_BPD = jnp.split(x_BXD, [h_BLD.shape[1]], axis=1)
    g_BPD, last_kept = run(g_BPD, last, end, at_BP, h_BLD)
    h_BLD, _ = run(h_BLD, last, end)  # jit drops it if nothing reads it
    memory = _stacked_memory(kept, last_kept)
    return protocol.Predictions(out(g_BPD, keys[2]), out(h_BLD, keys[0]), memory)

  def _start(self, batch, dropout_keys_B2, ops, memory, embedded_BLE=None):
    """(run, h_BLD, keys of dropout for `predictions`).

    run(x, first, end, at_BP, content_BLD) → (x after the layers first … end − 1, their next memory
    [end − first, B, M, D] or None). x is one of

    * h;
    * [h; g], with the places at_BP of g;
    * g, with at_BP and the content_BLD that it reads.
    """
    embed_2, layers_2, *others = blocks.split_keys(dropout_keys_B2, 5)
    h_BLD = self.embed(batch) if embedded_BLE is None else embedded_BLE
    h_BLD = layers.dropout(h_BLD.astype(self.dtype), self.dropout, embed_2)
    length, memory_nBMD = h_BLD.shape[1], None
    if not isinstance(memory, tuple):
      memory_nBMD = jnp.moveaxis(self._remembered(memory, batch, length), 1, 0)
    size = 0 if memory_nBMD is None else self.memory_length
    block, visible = self._block(), _visibility(batch, size)
    segments_BL = batch['token_type_ids']
    mirrored_B = batch.get('direction')
    table_TD = self._sinusoids(size + length)
    if dropout_keys_B2 is not None:
      table_TD = layers.dropout(table_TD, self.dropout, batch['common_key'])

    def run(x, first, end, at_BP=None, content_BLD=None):
      g_visible = g_segments_BP = None
      if at_BP is not None:
        g_visible, g_segments_BP = _earlier(visible, at_BP), attention.at_places(segments_BL, at_BP)

      def apply(params, x, turn):
        streams = g_visible, g_segments_BP, content_BLD
        context = _Context(table_TD, segments_BL, turn.inputs, mirrored_B, *streams)
        keys_B2 = turn.keys_B2
        if content_BLD is not None:
          keys_B2 = blocks.split_keys(keys_B2, 4)[3]  # a block splits its key into three
        h_BLD = context.content(x)
        x = block.apply({'params': params}, x, visible, keys_B2, ops, context)
        return x, None if turn.inputs is None else self._next_memory(turn.inputs, h_BLD)

      if first == end:
        return x, None
      options = dict(first=first, end=end, unroll=self.unroll, remat=self.remat)
      return stack.scan(apply, self.layers, x, layers_2, self.plan, inputs=memory_nBMD, **options)

    return run, ops.constrain('hidden', h_BLD), others

  def _remembered(self, memory, batch, length):
    """The memory without gradient, with zeros in the rows whose `resets` is 1."""
    if length < self.reuse_length:
      raise errors.UserError(
        f'Rows of {length} tokens are shorter than encoder.reuse_length={self.reuse_length}: set '
        'encoder.reuse_length and format.reuse_length to less.'
      )
    begins_B = batch['resets'] > 0
    return jax.lax.stop_gradient(jnp.where(begins_B[:, None, None, None], 0, memory))

  def _next_memory(self, memory_BMD, h_BLD):
    """The last M vectors of the memory followed by a layer's first `reuse_length` inputs."""
    inputs_BCD = jnp.concatenate([memory_BMD, h_BLD[:, : self.reuse_length]], axis=1)
    return jax.lax.stop_gradient(inputs_BCD[:, self.reuse_length :])

  def _sinusoids(self, keys: int):
    """table_TD, float32: sines, then cosines, of the distances 1 − C to C − 1, for C keys (Vaswani
    et al. 2017 §3.5). Distances beyond clamp_length count as clamp_length.
    """
    distance_T = jnp.arange(1 - keys, keys, dtype=jnp.float32)
    if self.clamp_length:
      distance_T = jnp.clip(distance_T, -self.clamp_length, self.clamp_length)
    evens = jnp.arange(0, self.hidden_size, 2, dtype=jnp.float32)
    angle = distance_T[:, None] / 10_000 ** (evens / self.hidden_size)
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=1)

  def pooled(self, hidden_BLD, batch):
    """[B, D]: the last token of each row, its classifier."""
    length = hidden_BLD.shape[1]
    last_B = jnp.max(jnp.where(batch['segment_ids'] > 0, jnp.arange(length), 0), axis=1)
    return protocol.gather(hidden_BLD, last_B[:, None])[:, 0]

  @nn.nowrap
  def _block(self) -> blocks.Block:
    return transformer.post_norm(self, TwoStreamAttention)


class _Context(NamedTuple):
  """Further arguments of the attention."""

  table_TD: jax.Array  # sinusoids of the distances 1 − C to C − 1
  segments_BL: jax.Array  # token types
  memory_BMD: jax.Array | None = None  # of this layer, or None
  # 1 for rows that are read from right to left; None if the batch has no `direction`
  mirrored_B: jax.Array | None = None
  # g_visible, g_segments_BP: the keys that the query stream g sees, and its token types; None
  # without a query stream
  g_visible: attention.Visibility | None = None
  g_segments_BP: jax.Array | None = None
  # the content stream, if x is only the query stream; else None
  content_BLD: jax.Array | None = None

  def content(self, x):
    """h_BLD: the first part of x, or content_BLD if it is given."""
    return x[:, : self.segments_BL.shape[1]] if self.content_BLD is None else self.content_BLD


class TwoStreamAttention(nn.Module):
  """Multi-head attention of both streams to the memory and the content (Yang et al. 2019 §2.3 to
  2.5; the score as in TwoStream).
  """

  num_heads: int  # H, which divides the width
  dropout_rate: float  # dropout rate of the attention probabilities
  kernel_init: Callable
  dtype: Any

  @nn.compact
  def __call__(self, x_BXD, visible, dropout_keys_B2, ops, context):
    """y_BXD. x_BXD: h, [h; g] or g, see `_Context`. visible: of the content stream."""
    width, length = x_BXD.shape[-1], context.segments_BL.shape[1]
    heads = (self.num_heads, width // self.num_heads)
    dense = layers.dense_of(self, ops, use_bias=False)
    pin = functools.partial(ops.constrain, 'heads')
    learned = lambda name, *shape: self.param(name, self.kernel_init, (*shape, *heads))
    memory_BMD, seen_BCD = context.memory_BMD, context.content(x_BXD)
    if memory_BMD is not None:
      seen_BCD = jnp.concatenate([memory_BMD.astype(seen_BCD.dtype), seen_BCD], axis=1)
    q_BXHK = pin(dense(heads, name='query')(x_BXD))
    k_BCHK, v_BCHK = (pin(dense(heads, name=name)(seen_BCD)) for name in ('key', 'value'))

    table_THK = dense(heads, name='position')(context.table_TD)
    forward = seen_BCD.shape[1] - length  # attend's first distance is this row of the table
    to_content, to_position, to_segment = (
      learned(f'{name}_query') for name in ('content', 'position', 'segment')
    )
    same, other = learned('segment', 2)
    tables_RHK = table_THK[forward:]
    if context.mirrored_B is not None:
      tables_RHK = jnp.concatenate([tables_RHK, table_THK[::-1][forward:]])
    terms = attention.Relative(
      tables_RHK, c2p_query_HK=to_position - to_content, half_B=context.mirrored_B
    )
    key_segments_BC = jnp.pad(context.segments_BL, ((0, 0), (forward, 0)))

    def attend(q_BLHK, visible, segments_BL, keys_B2):
      # Only the difference of the two segment terms matters: softmax ignores a common summand.
      numbers_BLH = jnp.einsum(
        'BLHK,HK->BLH',
        q_BLHK + to_segment.astype(q_BLHK.dtype),
        (same - other).astype(q_BLHK.dtype),
      )
      segments = attention.SameSegment(numbers_BLH, segments_BL, key_segments_BC)
      q_BLHK += to_content.astype(q_BLHK.dtype)
      relative = terms._replace(same_segment=segments)
      return ops.attend(q_BLHK, k_BCHK, v_BCHK, visible, self.dropout_rate, keys_B2, relative)

    keys, outs, g_visible = blocks.split_keys(dropout_keys_B2, 2), [], context.g_visible
    if context.content_BLD is None:
      outs.append(attend(q_BXHK[:, :length], visible, context.segments_BL, keys[0]))
    if g_visible is not None:
      predictions = g_visible.query_places_BL.shape[1]
      outs.append(attend(q_BXHK[:, -predictions:], g_visible, context.g_segments_BP, keys[1]))
    out_BXHK = pin(jnp.concatenate(outs, axis=1))
    return dense((width,), in_axes=2, input_name='attended', name='output')(out_BXHK)


class Embeddings(nn.Module):
  """Word vectors, without norm, and the initial vector of the query stream."""

  vocab_size: int
  width: int
  init_table: Callable

  def setup(self):
    self.word = layers.Embedding(self.vocab_size, self.width, self.init_table)
    self.query = layers.Embedding(1, self.width, self.init_table)


def _visibility(batch, memory: int) -> attention.Visibility:
  """Visibility in the content stream: all tokens of the first packed segment see the memory too."""
  visible = attention.batch_visibility(batch)
  if not memory:
    return visible
  before = lambda x_BL, value: jnp.pad(x_BL, ((0, 0), (memory, 0)), constant_values=value)
  order_BL = visible.key_order_BM
  return visible._replace(
    key_packs_BM=before(visible.key_packs_BM, 1),
    key_order_BM=None if order_BL is None else before(order_BL, -1),
    first_query=memory,
  )


def _earlier(visible: attention.Visibility, at_BP) -> attention.Visibility:
  """Visibility in the query stream: predictions at at_BP see the tokens earlier in the order."""
  queries = attention.asked(visible, at_BP)
  return queries._replace(query_order_BL=queries.query_order_BL - 1)


def _stacked_memory(*kept):
  """The memory [B, n, M, D] from its parts, each [layers, B, M, D] or None; () if all are None."""
  kept = [x for x in kept if x is not None]
  return jnp.moveaxis(jnp.concatenate(kept), 0, 1) if kept else ()
