"""Encoders: the network."""

from typing import Annotated

from bertzoo_jax.parts import fields

NUM_LAYERS = Annotated[fields.LAYERS, 'of the stack.']
INTERMEDIATE_SIZE = Annotated[fields.UNITS, 'width of the feed-forward part.']
TYPE_VOCAB_SIZE = Annotated[fields.PIECES_OR_0, 'number of token types; 0 for no such table.']
ACTIVATION = fields.one_of(gelu_tanh="Google's BERT", gelu='the exact one', relu='')
NORM_EPS = Annotated[fields.ABOVE_0, 'added to the variance in a norm.']
DROPOUT = Annotated[fields.SHARE_BELOW_1, 'of embeddings and sublayers.']
ATTENTION_DROPOUT = Annotated[fields.SHARE_BELOW_1, 'of attention weights.']
INITIALIZER = Annotated[
  fields.one_of('truncated_normal', 'normal'),
  "truncated_normal (cut at two deviations, not rescaled) | normal. The detection head's output "
  'layer is Glorot-uniform.',
]
RELATIVE_TERM = Annotated[bool, 'the two relative terms of a score, each on or off.']
ROTARY_BASE = Annotated[fields.ABOVE_0, 'of the rotary angles (Su et al. 2021).']


@fields.part(frozen=False)
class Layers:
  """Fields of every encoder."""

  num_layers: NUM_LAYERS = 12
  hidden_size: Annotated[fields.UNITS, 'width of a layer.'] = 768
  num_heads: Annotated[fields.UNITS, 'of attention; divides hidden_size.'] = 12
  intermediate_size: INTERMEDIATE_SIZE = 3072
  activation: ACTIVATION = 'gelu_tanh'
  norm_eps: NORM_EPS = 1e-12
  dropout: DROPOUT = 0.1
  attention_dropout: ATTENTION_DROPOUT = 0.1
  initializer: INITIALIZER = 'truncated_normal'
  initializer_range: Annotated[fields.ABOVE_0, 'standard deviation of the initializer.'] = 0.02


@fields.part('transformer', frozen=False)
class Transformer(Layers):
  """The post-LN Transformer encoder with learned positions (Devlin et al. 2018 §3)."""

  embedding_size: Annotated[
    fields.UNITS_OR_0,
    'width of the tables, projected to hidden_size; 0: the same, and no projection.',
  ] = 0
  max_positions: Annotated[fields.TOKENS, 'rows of the position table: the longest row.'] = 512
  type_vocab_size: TYPE_VOCAB_SIZE = 2
  sharing: Annotated[
    fields.one_of('none', 'all', 'attention', 'feed_forward'),
    'parameters that layers share: none | all | attention | feed_forward (Lan et al. 2019 §3.1, '
    'Table 4; each with its norm).',
  ] = 'none'
  num_groups: Annotated[
    fields.LAYERS, 'groups of consecutive layers; parameters are shared within a group only.'
  ] = 1
  inner_group_num: Annotated[fields.LAYERS, 'blocks per layer, each with its own parameters.'] = 1


@fields.part('disentangled', frozen=False)
class Disentangled(Transformer):
  """Disentangled attention and the enhanced mask decoder (He et al. 2020 §3).

  The defaults are v2's without its convolution; v1 has buckets=0, norm_relative=False,
  shared_projections=False, key_bias=False.
  """

  vocab_multiple: Annotated[
    fields.PIECES,
    'the number of rows of the word table is rounded up to a multiple of this (v2, V3: 100). The '
    'added rows belong to no piece.',
  ] = 1
  type_vocab_size: TYPE_VOCAB_SIZE = 0
  absolute_positions: fields.one_of(
    decoder='the enhanced mask decoder', input='added to the words', none=''
  ) = 'decoder'
  content_to_position: RELATIVE_TERM = True
  position_to_content: RELATIVE_TERM = True
  max_distance: Annotated[
    fields.whole(2, 2**22), 'all distances from this one on share a row of the relative table.'
  ] = 512
  buckets: Annotated[
    fields.UNITS_OR_0,
    'rows of the relative table to each side, in logarithmic steps beyond half of them; 0 for a '
    'row per distance.',
  ] = 256
  norm_relative: Annotated[bool, 'whether the relative table has a norm.'] = True
  shared_projections: Annotated[
    bool,
    "whether the layer's query and key kernels also project the relative table; else other "
    'kernels do.',
  ] = True
  key_bias: Annotated[bool, 'whether keys have a bias.'] = True
  convolution_size: Annotated[
    fields.UNITS_OR_0,
    'width in tokens of the convolution beside the first layer (v2 XLarge, XXLarge: 3); 0 for '
    'none.',
  ] = 0
  convolution_activation: Annotated[
    fields.one_of('gelu_tanh', 'gelu', 'relu'), 'its activation: gelu_tanh | gelu | relu.'
  ] = 'gelu'
  activation: ACTIVATION = 'gelu'
  norm_eps: NORM_EPS = 1e-7
  initializer: INITIALIZER = 'normal'


@fields.part('two_stream', frozen=False)
class TwoStream(Layers):
  """Two streams, relative positions and a memory (Yang et al. 2019 §2.3 to 2.5; released code)."""

  memory_length: Annotated[
    fields.TOKENS_OR_0, 'tokens of earlier rows that each layer remembers; 0 for none.'
  ] = 384
  reuse_length: Annotated[
    fields.TOKENS, "tokens of a row that enter the memory; must equal the format's reuse_length."
  ] = 256
  clamp_length: Annotated[
    fields.TOKENS_OR_0, 'greater distances count as this one; 0 for no limit.'
  ] = 0
  initializer: INITIALIZER = 'normal'


@fields.part('modern', frozen=False)
class Modern(Layers):
  """The modern encoder: rotary positions, norms before the sublayers, gated feed-forward, local
  layers between global ones (Warner et al. 2024).
  """

  num_layers: NUM_LAYERS = 22
  intermediate_size: INTERMEDIATE_SIZE = 1152
  max_positions: Annotated[fields.TOKENS, 'the longest row; there is no table of positions.'] = 8192
  type_vocab_size: TYPE_VOCAB_SIZE = 0
  global_every: Annotated[
    fields.LAYERS, 'layer i sees the whole row if this divides i, else a window.'
  ] = 3
  window: Annotated[
    fields.TOKENS_OR_0,
    'tokens that a local layer sees, half of them to each side; 0: every layer is global.',
  ] = 128
  global_base: ROTARY_BASE = 160_000.0
  local_base: ROTARY_BASE = 10_000.0
  norms: Annotated[
    fields.one_of('before', 'after'),
    'before | after the sublayers. Before: with embedding_norm the first layer has none before '
    'its attention, and a norm ends the stack.',
  ] = 'before'
  norm: fields.one_of('layer', rms='Zhang and Sennrich 2019') = 'layer'
  norm_eps: NORM_EPS = 1e-5
  embedding_norm: Annotated[bool, 'whether a norm follows the embeddings.'] = True
  feed_forward: fields.one_of(gated='Shazeer 2020', plain='') = 'gated'
  activation: fields.one_of('gelu_tanh', 'gelu', 'relu', 'silu') = 'gelu'
  use_bias: Annotated[bool, 'of products and norms of the layers and of the vocabulary head.'] = (
    False
  )
  dropout: Annotated[
    fields.SHARE_BELOW_1, 'of embeddings and of the output of the feed-forward part.'
  ] = 0.0
  attention_dropout: ATTENTION_DROPOUT = 0.0
  attention_output_dropout: Annotated[fields.SHARE_BELOW_1, 'of the output of attention.'] = 0.1
  output_range: Annotated[
    fields.one_of('by_depth', 'same'),
    'deviation of the products that end a sublayer: by_depth (over √(2·num_layers)) | same.',
  ] = 'by_depth'
