"""The modern Transformer encoder: norms before the sublayers, rotary positions, gated feed-forward,
local layers between global ones (Warner et al. 2024, ModernBERT).

Its fields also make networks like EuroBERT (RMS norms, no norm of the embeddings, every layer
global) and RoFormer (norms after the sublayers, biases, plain feed-forward, segments).
"""

import functools
import math

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


def rotary(base: float, q_BLHK, k_BLHK):
  """Queries and keys rotated by their positions, so that scores depend on distances only (Su et al.
  2021, eq. 34; feature i is paired with feature i + K/2).

  Returns (q, k, None), as `positions` of blocks.SelfAttention.
  """
  length, width = q_BLHK.shape[1], q_BLHK.shape[-1]
  angles = jnp.arange(length)[:, None] * base ** -(jnp.arange(0, width, 2) / width)
  angles_L1K = jnp.tile(angles, 2)[:, None]

  def rotated(x):
    low, high = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    quarter = jnp.concatenate([-high, low], axis=-1)
    return (x * jnp.cos(angles_L1K) + quarter * jnp.sin(angles_L1K)).astype(x.dtype)

  return rotated(q_BLHK), rotated(k_BLHK), None


@protocol.encoder
class Modern(definitions.Modern, protocol.Given):
  """The encoder.

  Layer i is global if global_every divides i. A first layer without a norm before its attention
  runs separately; the others are scanned in periods.
  """

  left_to_right = True
  axes = (*transformer.AXES, *blocks.AXES)
  kernel_init = transformer.Transformer.kernel_init
  embed = transformer.Transformer.embed

  def __post_init__(self):
    super().__post_init__()
    transformer.check_widths(self)
    if self.hidden_size // self.num_heads % 2:
      raise errors.UserError(
        f'encoder.hidden_size={self.hidden_size} and num_heads={self.num_heads} make heads of '
        f'{self.hidden_size // self.num_heads}: rotary positions need an even number.'
      )
    if self.window % 2:
      raise errors.UserError(
        f'encoder.window={self.window} counts both sides together: an even number is needed.'
      )
    if self.norms == 'after' and not self.embedding_norm:
      raise errors.UserError(
        'encoder.embedding_norm=False is for encoder.norms=before: with norms after the sublayers, '
        'the first layer would read unnormalised embeddings.'
      )

  @property
  def reads(self) -> tuple[str, ...]:
    return ('input_ids', *['token_type_ids'] * bool(self.type_vocab_size), 'segment_ids')

  @property
  def plan(self) -> stack.Plan:
    return stack.Plan(self.num_layers)

  def setup(self):
    self.embeddings = transformer.Embeddings(
      vocab_size=self.vocab_size,
      width=self.hidden_size,
      norm_eps=self.norm_eps,
      dropout=self.dropout,
      init_table=self.kernel_init,
      dtype=self.dtype,
      type_vocab_size=self.type_vocab_size,
      make_norm=self._make_norm() if self.embedding_norm else None,
    )
    if self.norms == 'before':
      self.final_norm = self._make_norm()(self.norm_eps, self.dtype)
    block, width = self._block(0), self.hidden_size
    self.layers = self.param('layers', lambda key: blocks.init(block, key, self.plan, width))

  def __call__(self, batch, dropout_keys_B2=None, ops=operations.PLAIN, embedded_BLE=None):
    """hidden_BLD in `dtype`. Arguments as in protocol.Encoder.

    Raises UserError for rows longer than max_positions.
    """
    transformer.check_length(batch, self.max_positions)
    keys = blocks.split_keys(dropout_keys_B2, 2)
    x_BLD = self.embed(batch) if embedded_BLE is None else embedded_BLE
    x_BLD = ops.constrain('hidden', self.embeddings.finish(x_BLD, keys[0]))
    visible = attention.batch_visibility(batch)

    def run(x_BLD, first, end, turns):
      def apply(params, x_BLD, turn):
        return turns[turn.place].apply({'params': params}, x_BLD, visible, turn.keys_B2, ops), None

      blocks_run = dict(first=first, end=end, period=len(turns))
      options = dict(unroll=self.unroll, remat=self.remat)
      return stack.scan(apply, self.layers, x_BLD, keys[1], self.plan, **blocks_run, **options)[0]

    first = int(self.norms == 'before' and self.embedding_norm)
    if first:
      x_BLD = run(x_BLD, 0, 1, [self._block(0, attention_norm=False)])
    if first < self.num_layers:
      x_BLD = run(x_BLD, first, self.num_layers, self._period())
    return self.final_norm(x_BLD) if self.norms == 'before' else x_BLD

  @nn.nowrap
  def _period(self) -> list[blocks.Block]:
    """Blocks of a global layer and of the local ones that follow it."""
    return [self._block(i) for i in range(self.global_every if self.window else 1)]

  @nn.nowrap
  def _make_norm(self):
    """(eps, dtype, name=) → a norm."""
    kinds = {'layer': functools.partial(layers.Norm, use_bias=self.use_bias), 'rms': layers.RMSNorm}
    return errors.choose(self.norm, kinds, 'config.encoder.norm')

  @nn.nowrap
  def _block(self, place: int, attention_norm: bool = True) -> blocks.Block:
    """A global layer at place 0 of a period, else a local one."""
    base, side = self.global_base, None
    if place:
      base, side = self.local_base, self.window // 2
    deviation = self.initializer_range
    if self.output_range == 'by_depth':
      deviation /= math.sqrt(2 * self.num_layers)
    shared = dict(
      kernel_init=self.kernel_init,
      output_init=layers.initializer(self.initializer, deviation),
      dtype=self.dtype,
      use_bias=self.use_bias,
      parent=None,
    )
    kinds = {'gated': blocks.GatedFeedForward, 'plain': blocks.FeedForward}
    feed_forward = errors.choose(self.feed_forward, kinds, 'config.encoder.feed_forward')
    return blocks.Block(
      attention=blocks.SelfAttention(
        self.num_heads,
        self.attention_dropout,
        window=side and (side, side),
        positions=functools.partial(rotary, base),
        **shared,
      ),
      feed_forward=feed_forward(self.intermediate_size, self.activation, **shared),
      norm=functools.partial(self._make_norm(), self.norm_eps, self.dtype),
      dropout=self.dropout,
      attention_dropout=self.attention_output_dropout,
      norm_first=self.norms == 'before',
      attention_norm=attention_norm,
      parent=None,
    )
