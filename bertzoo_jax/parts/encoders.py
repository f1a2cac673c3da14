"""Encoders: the network.

A field without an explanation means the same as in the nearest part above that explains it.
"""

from bertzoo_jax.parts import fields


@fields.section
def transformer(
  *,
  num_layers: fields.LAYERS = 12,
  hidden_size: fields.UNITS = 768,
  num_heads: fields.UNITS = 12,
  intermediate_size: fields.UNITS = 3072,
  embedding_size: fields.UNITS_OR_0 = 0,
  max_positions: fields.TOKENS = 512,
  type_vocab_size: fields.PIECES_OR_0 = 2,
  sharing: fields.one_of('none', 'all', 'attention', 'feed_forward') = 'none',
  num_groups: fields.LAYERS = 1,
  inner_group_num: fields.LAYERS = 1,
  activation: fields.one_of('gelu_tanh', 'gelu', 'relu') = 'gelu_tanh',
  norm_eps: fields.ABOVE_0 = 1e-12,
  dropout: fields.SHARE_BELOW_1 = 0.1,
  attention_dropout: fields.SHARE_BELOW_1 = 0.1,
  initializer: fields.one_of('truncated_normal', 'normal') = 'truncated_normal',
  initializer_range: fields.ABOVE_0 = 0.02,
):
  """The post-LN Transformer encoder with learned positions (Devlin et al. 2018 §3).

  num_layers: of the stack.
  hidden_size: width of a layer.
  num_heads: of attention; divides hidden_size.
  intermediate_size: width of the feed-forward part.
  embedding_size: width of the tables, projected to hidden_size; 0: the same, and no projection.
  max_positions: rows of the position table: the longest row.
  type_vocab_size: number of segments; 0 for no segment table.
  sharing: parameters that layers share: none | all | attention | feed_forward (Lan et al. 2019
    §3.1, Table 4; each with its norm).
  num_groups: of consecutive layers; layers share in their group only.
  inner_group_num: blocks, each with its own parameters, that make a layer.
  activation: gelu_tanh (Google's BERT) | gelu (the exact one) | relu.
  norm_eps: added to the variance in a norm.
  dropout: of embeddings and sublayers.
  attention_dropout: of attention weights.
  initializer: truncated_normal (cut at two deviations, not rescaled) | normal. The detection head's
    output layer is Glorot-uniform.
  initializer_range: its standard deviation.
  """


@fields.section
def disentangled(
  *,
  num_layers: fields.LAYERS = 12,
  hidden_size: fields.UNITS = 768,
  num_heads: fields.UNITS = 12,
  intermediate_size: fields.UNITS = 3072,
  embedding_size: fields.UNITS_OR_0 = 0,
  vocab_multiple: fields.PIECES = 1,
  max_positions: fields.TOKENS = 512,
  type_vocab_size: fields.PIECES_OR_0 = 0,
  absolute_positions: fields.one_of('decoder', 'input', 'none') = 'decoder',
  content_to_position: bool = True,
  position_to_content: bool = True,
  max_distance: fields.whole(2, 2**22) = 512,
  buckets: fields.UNITS_OR_0 = 256,
  norm_relative: bool = True,
  shared_projections: bool = True,
  key_bias: bool = True,
  convolution_size: fields.UNITS_OR_0 = 0,
  convolution_activation: fields.one_of('gelu_tanh', 'gelu', 'relu') = 'gelu',
  sharing: fields.one_of('none', 'all', 'attention', 'feed_forward') = 'none',
  num_groups: fields.LAYERS = 1,
  inner_group_num: fields.LAYERS = 1,
  activation: fields.one_of('gelu_tanh', 'gelu', 'relu') = 'gelu',
  norm_eps: fields.ABOVE_0 = 1e-7,
  dropout: fields.SHARE_BELOW_1 = 0.1,
  attention_dropout: fields.SHARE_BELOW_1 = 0.1,
  initializer: fields.one_of('truncated_normal', 'normal') = 'normal',
  initializer_range: fields.ABOVE_0 = 0.02,
):
  """Disentangled attention and the enhanced mask decoder (He et al. 2020 §3).

  The usual values are v2's without its convolution; v1 has buckets=0, norm_relative=False,
  shared_projections=False, key_bias=False.

  vocab_multiple: the number of rows of the word table is rounded up to a multiple of it (v2, V3:
    100). The last rows belong to no piece.
  absolute_positions: decoder (the enhanced mask decoder) | input (added to the words) | none.
  content_to_position, position_to_content: the two relative terms of a score, each on or off.
  max_distance: all distances from this one on share a row of the relative table.
  buckets: rows of the relative table to each side, in logarithmic steps beyond half of them; 0 for
    a row per distance.
  norm_relative: whether the relative table has a norm.
  shared_projections: whether the layer's query and key kernels also project the relative table;
    else it has kernels of its own.
  key_bias: whether keys have a bias.
  convolution_size: width in tokens of the convolution beside the first layer (v2 XLarge, XXLarge:
    3); 0 for none.
  convolution_activation: its activation: gelu_tanh | gelu | relu.
  """


@fields.section
def two_stream(
  *,
  num_layers: fields.LAYERS = 12,
  hidden_size: fields.UNITS = 768,
  num_heads: fields.UNITS = 12,
  intermediate_size: fields.UNITS = 3072,
  memory_length: fields.TOKENS_OR_0 = 384,
  reuse_length: fields.TOKENS = 256,
  clamp_length: fields.TOKENS_OR_0 = 0,
  activation: fields.one_of('gelu_tanh', 'gelu', 'relu') = 'gelu_tanh',
  norm_eps: fields.ABOVE_0 = 1e-12,
  dropout: fields.SHARE_BELOW_1 = 0.1,
  attention_dropout: fields.SHARE_BELOW_1 = 0.1,
  initializer: fields.one_of('truncated_normal', 'normal') = 'normal',
  initializer_range: fields.ABOVE_0 = 0.02,
):
  """A content and a query stream, relative positions and a memory (Yang et al. 2019 §2.3 to 2.5;
  code of the release).

  memory_length: tokens of earlier rows that each layer remembers; 0 for none.
  reuse_length: tokens of a row that enter the memory; must equal the format's reuse_length.
  clamp_length: greater distances count as this one; 0 for no limit.
  """


@fields.section
def modern(
  *,
  num_layers: fields.LAYERS = 22,
  hidden_size: fields.UNITS = 768,
  num_heads: fields.UNITS = 12,
  intermediate_size: fields.UNITS = 1152,
  max_positions: fields.TOKENS = 8192,
  type_vocab_size: fields.PIECES_OR_0 = 0,
  global_every: fields.LAYERS = 3,
  window: fields.TOKENS_OR_0 = 128,
  global_base: fields.ABOVE_0 = 160_000.0,
  local_base: fields.ABOVE_0 = 10_000.0,
  norms: fields.one_of('before', 'after') = 'before',
  norm: fields.one_of('layer', 'rms') = 'layer',
  norm_eps: fields.ABOVE_0 = 1e-5,
  embedding_norm: bool = True,
  feed_forward: fields.one_of('gated', 'plain') = 'gated',
  activation: fields.one_of('gelu_tanh', 'gelu', 'relu', 'silu') = 'gelu',
  use_bias: bool = False,
  dropout: fields.SHARE_BELOW_1 = 0.0,
  attention_dropout: fields.SHARE_BELOW_1 = 0.0,
  attention_output_dropout: fields.SHARE_BELOW_1 = 0.1,
  initializer: fields.one_of('truncated_normal', 'normal') = 'truncated_normal',
  initializer_range: fields.ABOVE_0 = 0.02,
  output_range: fields.one_of('by_depth', 'same') = 'by_depth',
):
  """The encoder of today: rotary positions, norms before the sublayers, gated feed-forward, local
  layers between global ones (Warner et al. 2024).

  max_positions: the longest row; there is no table of positions.
  global_every: layer i sees the whole row if this divides i, else a window.
  window: tokens that a local layer sees, half of them to each side; 0: every layer is global.
  global_base, local_base: of the rotary angles (Su et al. 2021).
  norms: before | after the sublayers. Before: with embedding_norm the first layer has none before
    its attention, and a norm ends the stack.
  norm: layer | rms (Zhang and Sennrich 2019).
  embedding_norm: whether a norm follows the embeddings.
  feed_forward: gated (Shazeer 2020) | plain.
  activation: gelu_tanh | gelu | relu | silu.
  use_bias: of products and norms of the layers and of the vocabulary head.
  dropout: of embeddings and of the output of the feed-forward part.
  attention_output_dropout: of the output of attention.
  output_range: deviation of the products that end a sublayer: by_depth (over √(2·num_layers)) |
    same.
  """


__all__ = fields.sections(vars())
