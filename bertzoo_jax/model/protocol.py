"""The interface of an encoder, for objectives, heads, sharding, costs, evaluation and export.

Legend: B batch, L length, P predictions, D width, E width of the tables.

An encoder is a linen module. The program sets its vocab_size, dtype, unroll and remat; its other
fields, keyword-only, are the section `config.encoder`. A config names an encoder outside the
package as `package.module:name`. `Encoder` lists the members; `tests/conformance` checks any
encoder.
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertzoo_jax.common import errors
from bertzoo_jax.model import operations


class Given(nn.Module):
  """Fields that the program sets on every encoder: V, dtype of products, layers per iteration of
  the scan, saved activations (stack.REMAT). Encoders of the package inherit their other fields from
  parts/encoders.py.
  """

  vocab_size: int
  dtype: Any
  unroll: int = 1
  remat: str = 'none'


class Predictions(NamedTuple):
  """Results of an encoder that an objective reads."""

  states_BPD: jax.Array  # vectors at the masked positions, which a vocabulary head reads
  hidden_BLD: jax.Array  # vectors of all tokens. If unused, they cost nothing under jit.
  memory: Any = ()  # for the next batch; () without memory


class Encoder(Protocol):
  """The members of every encoder. Do not inherit from this class: write the members, and put
  `@protocol.encoder` above the module, which adds the members of USUAL that it lacks.

  Parameters: the word table is `embeddings/word/embedding` [V, E]. Stacked parameters lie under
  `layers/`, their copies in the first axis, one per layer that has its own.
  """

  # vocab_size, dtype, unroll, remat: see Given
  vocab_size: int
  dtype: Any
  unroll: int
  remat: str
  # num_layers, hidden_size: number of layers, D
  num_layers: int
  hidden_size: int
  # activation, norm_eps, kernel_init: also used by heads: name in layers.ACTIVATIONS, epsilon,
  # (key, shape) → float32
  activation: str
  norm_eps: float
  kernel_init: Callable
  # batch features that it needs, among them input_ids and segment_ids. position_ids are read if a
  # format writes them
  reads: tuple[str, ...]
  axes: tuple  # how a mesh may split its parameters, an ordered table as blocks.AXES

  def __call__(self, batch, dropout_keys_B2=None, ops=operations.PLAIN, embedded_BLE=None):
    """hidden_BLD in `dtype`. batch: the features of `reads`, and position_ids if a format writes
    them. dropout_keys_B2: keys of the rows; None without dropout. embedded_BLE: the sum of
    embeddings before its norm; None for `embed(batch)`.

    Dropout of an array that all rows share (a table of relative positions) uses
    batch['common_key'], uint32 [2], not the rows' keys, so it is the same for any number of
    microbatches. `networks.encode` and `networks.predictions` add common_key if they get a key.
    """

  def embed(self, batch):
    """The sum of the embeddings before their norm, float32 [B, L, E]."""


def gathered(encoder, batch, dropout_keys_B2=None, ops=operations.PLAIN, memory=()) -> Predictions:
  """The default `predictions`: the hidden vectors at the masked positions."""
  hidden_BLD = encoder(batch, dropout_keys_B2, ops)
  return Predictions(gather(hidden_BLD, batch['masked_positions']), hidden_BLD, memory)


def gather(hidden_BLD: jax.Array, positions_BP: jax.Array) -> jax.Array:
  """hidden_BPD: the vectors at the positions of each row. For a numpy array of all positions in
  order it is hidden_BLD, without a gather, whose gradient would be a scatter.
  """
  length = hidden_BLD.shape[1]
  if isinstance(positions_BP, np.ndarray) and positions_BP.shape[1] == length:
    if (positions_BP == np.arange(length)).all():
      return hidden_BLD
  return jnp.take_along_axis(hidden_BLD, positions_BP[:, :, None], axis=1, mode='clip')


@nn.nowrap
def first_token(encoder, hidden_BLD, batch):
  """The default `pooled`: the token at position 0."""
  del encoder, batch
  return hidden_BLD[:, 0]


@nn.nowrap
def resized(encoder, width: float, depth: float, embedding_width: int | None = None):
  """The default `resized`, for tables as wide as the layers: replaces the fields of `shares`."""
  del embedding_width
  return encoder.clone(parent=None, **shares(encoder, width, depth))


def shares(e, width: float, depth: float) -> dict[str, int]:
  """{field: value}: hidden_size · width, num_layers · depth, and, if the encoder has these fields,
  intermediate_size · width and num_heads. Heads keep their width if possible.

  Raises UserError for heads that do not divide the width, and for an encoder without the field
  hidden_size or num_layers.
  """
  fields = e.__dataclass_fields__
  if missing := [name for name in ('hidden_size', 'num_layers') if name not in fields]:
    raise errors.UserError(
      f'{type(e).__name__} has no field {missing[0]}, by which the usual `resized` makes another '
      'size of it: write `resized` (bertzoo_jax/model/protocol.py).'
    )
  hidden_size = round(e.hidden_size * width)
  sizes = dict(hidden_size=hidden_size, num_layers=max(1, round(e.num_layers * depth)))
  if 'intermediate_size' in fields:
    sizes['intermediate_size'] = round(e.intermediate_size * width)
  if 'num_heads' not in fields:
    return sizes
  num_heads = max(1, hidden_size // (e.hidden_size // e.num_heads))
  if hidden_size % num_heads:
    raise errors.UserError(
      f'width={width} makes {hidden_size} units of {e.hidden_size}, which {num_heads} heads '
      'do not divide: take another.'
    )
  return {**sizes, 'num_heads': num_heads}


# Members with defaults: {member: (value, meaning)}.
USUAL = {
  'embedding_width': (property(lambda self: self.hidden_size), 'E'),
  'max_positions': (None, 'longest row; None for no limit'),
  'type_vocab_size': (0, 'number of segments it tells apart; 0 for none'),
  'padding_side': ('right', "'right' or 'left', where `export` tells the tokenizer to pad"),
  'use_bias': (True, "whether the vocabulary head's product and norm have biases"),
  'attention_dropout': (0.0, 'rate of dropout of attention probabilities, which a kernel draws'),
  'relative_attention': (False, 'whether scores have terms by distance, which a kernel adds'),
  'predictions': (
    gathered,
    "(batch, dropout_keys_B2=None, ops=PLAIN, memory=()) → Predictions at batch['masked_positions']"
    ', [B, P]. A prediction does not depend on the other positions in the list, which may repeat '
    'and may contain fillers. An enhanced mask decoder or a query stream is computed here only. '
    'Their parameters exist if the encoder is initialised by this method',
  ),
  'pooled': (first_token, '(hidden_BLD, batch) → [B, D]: the vector that classifies a row'),
  'resized': (
    resized,
    '(width, depth, embedding_width=None) → a copy with shares of its widths and depth, with '
    'tables of another width if one is given. An encoder whose tables are as wide as its layers '
    'ignores that',
  ),
  'first_memory': (
    None,
    '(rows) → the memory before the first batch, leading axis the rows, or () for none; None if an '
    'encoder has no memory',
  ),
  'query_stream': (
    False,
    'whether a prediction does not see its own token if the batch has an order',
  ),
  'embedding_norm': (True, 'whether a norm follows the sum of its embeddings'),
  'left_to_right': (
    False,
    'whether no vector depends on tokens that are later in the `order` of the batch',
  ),
}


def encoder(module: type) -> type:
  """Adds to a class of linen modules the members of USUAL that it lacks."""
  for name, (value, _) in USUAL.items():
    if not hasattr(module, name) and name not in module.__dataclass_fields__:
      setattr(module, name, value)
  return module


def lacking(encoder) -> list[str]:
  """Members of the protocol that an encoder does not have."""
  if not isinstance(encoder, nn.Module):
    return ['the methods of a linen module']
  return [m for m in (*Encoder.__annotations__, 'embed', *USUAL) if not hasattr(encoder, m)]
