"""What an encoder promises: all that objectives, heads, sharding, costs, evaluation and export ask.

Legend: B batch, L length, P predictions, D width, E width of the tables.

An encoder is a linen module. The program gives it vocab_size, dtype, unroll and remat; its other
fields are the section `config.encoder`, keyword-only, without defaults if it ships here. One from
outside the package is named `package.module:name` in a config. `Encoder` lists what it has;
`tests/conformance` holds any encoder to it.
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple
from typing import Protocol

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertzoo_jax.model import operations


class Predictions(NamedTuple):
  """What an objective reads of an encoder.

  Attributes:
    states_BPD: vectors at the masked positions, which a vocabulary head reads.
    hidden_BLD: vectors of all tokens. What is not used costs nothing under jit.
    memory: for the next batch; () where there is none.
  """

  states_BPD: jax.Array
  hidden_BLD: jax.Array
  memory: Any = ()


class Encoder(Protocol):
  """The members of every encoder. Do not inherit from this class: write the members, or use the
  functions below. OPTIONAL lists further members that an encoder may have.

  Parameters: the word table is `embeddings/word/embedding` [V, E]. What a scan stacks lies under
  `layers/`, its copies in the first axis, one per layer that has its own.

  Attributes:
    vocab_size, dtype, unroll, remat: given by the program: V; of products; layers per turn of the
      scan; activations that are saved (stack.REMAT).
    num_layers, hidden_size, table_width: number of layers, D, E.
    max_positions: longest row; None for no limit.
    type_vocab_size: number of segments it tells apart; 0 for none.
    attention_dropout, relative_attention: what its attention needs of a kernel: the rate of dropout
      of attention probabilities, and whether scores have terms by distance.
    activation, norm_eps, kernel_init, use_bias: heads are made alike: name in layers.ACTIVATIONS,
      epsilon, (key, shape) → float32, and whether the vocabulary head's product and norm have
      biases.
    reads: batch features that it needs, among them input_ids and pack_ids. position_ids are read
      where a format writes them.
    padding_side: 'right' or 'left', where `export` tells the tokenizer to pad.
    axes: what a mesh may split of its parameters, an ordered table as blocks.AXES.
  """

  vocab_size: int
  dtype: Any
  unroll: int
  remat: str
  num_layers: int
  hidden_size: int
  table_width: int
  max_positions: int | None
  type_vocab_size: int
  attention_dropout: float
  relative_attention: bool
  activation: str
  norm_eps: float
  kernel_init: Callable
  use_bias: bool
  reads: tuple[str, ...]
  padding_side: str
  axes: tuple

  def __call__(self, batch, dropout_keys_B2=None, ops=operations.PLAIN, embedded_BLE=None):
    """hidden_BLD in `dtype`. batch: the features of `reads`, and position_ids if a format writes
    them. dropout_keys_B2: keys of the rows; None without dropout. embedded_BLE: the sum of
    embeddings before its norm; None for `embed(batch)`.

    Dropout of an array that all rows share (a table of relative positions) uses
    batch['common_key'], uint32 [2], not the rows' keys. So it is the same in any number of
    microbatches. `networks.encode` and `networks.predictions` add common_key with dropout.
    """

  def embed(self, batch):
    """The sum of the embeddings before their norm, float32 [B, L, E]."""

  def predictions(self, batch, dropout_keys_B2=None, ops=operations.PLAIN, memory=()):
    """Predictions at batch['masked_positions'], [B, P].

    A prediction does not depend on the other positions in the list, which may repeat and may
    contain fillers. An enhanced mask decoder or a query stream is computed here only. Their
    parameters exist if the encoder is initialised by this method.
    """

  def row_vectors(self, hidden_BLD, batch):
    """[B, D]: the vector that classifies a row."""

  def resized(self, width: float, depth: float, table_width: int | None = None):
    """A copy with shares of its widths and depth, with tables of another width if one is given.
    An encoder whose tables are as wide as its layers ignores that.
    """

  def flops(self, length: int, predictions: int = 0) -> float | None:
    """Operations of a forward pass over one row, without heads, with the states of some predictions
    where these cost more than a gather; None if they are not known.
    """


def lacking(encoder) -> list[str]:
  """Members of the protocol that an encoder does not have."""
  if not isinstance(encoder, nn.Module):
    return ['the methods of a linen module']
  methods = [name for name, value in vars(Encoder).items() if callable(value) and name[0] != '_']
  return [m for m in (*Encoder.__annotations__, *methods) if not hasattr(encoder, m)]


def gathered(encoder, batch, dropout_keys_B2=None, ops=operations.PLAIN, memory=()) -> Predictions:
  """The usual `predictions`: the hidden vectors at the masked positions."""
  hidden_BLD = encoder(batch, dropout_keys_B2, ops)
  return Predictions(gather(hidden_BLD, batch['masked_positions']), hidden_BLD, memory)


def gather(hidden_BLD: jax.Array, positions_BP: jax.Array) -> jax.Array:
  """hidden_BPD: the vectors at the positions of each row."""
  return jnp.take_along_axis(hidden_BLD, positions_BP[:, :, None], axis=1, mode='clip')


@nn.nowrap
def first_token(encoder, hidden_BLD, batch):
  """The usual `row_vectors`: the token at position 0."""
  del encoder, batch
  return hidden_BLD[:, 0]


# Members that only some encoders have: {member: meaning}. Read them with getattr.
OPTIONAL = {
  'published_flops': (
    '(length, rows of a batch, names of features, share of predicted tokens) → operations per '
    'token as Clark et al. 2020 count them (published.py)'
  ),
  'flops_with': '(names of features, length, predictions) → flops, where these depend on features',
  'first_memory': '(rows) → the memory before the first batch, leading axis the rows; () for none',
  'query_stream': 'whether a prediction does not see its own token if the batch has an order',
  'embedding_norm': 'whether a norm follows the sum of its embeddings; if it is absent, one does',
  'left_to_right': 'whether no vector depends on tokens that are later in the `order` of the batch',
}
