"""Heads. Legend: B batch, L length, P predictions, D, E widths, V vocabulary, C outputs."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertzoo_jax.common import errors
from bertzoo_jax.model import blocks
from bertzoo_jax.model import layers
from bertzoo_jax.model import protocol

# How a mesh may split the parameters of heads, as blocks.AXES.
AXES = (
  (r'classifier/kernel$', {}),
  (r'_head/offset/embedding$', {}),
  (r'_head/bias$', {'tensor': (-1,)}),
  (r'_head/.*kernel$', {'fsdp': (-1, -2)}),
)

# Forms of fine-tuning heads: (name of a dense layer before the linear one, function that follows;
# None: the encoder's activation and a norm, as in MlmHead); None: no dense layer.
FORMS = {
  'tanh': ('pooler', jnp.tanh),
  'gelu': ('dense', layers.activation('gelu')),
  'transform': ('transform', None),
  'linear': None,
}

# The forms of ConditionalSpanHead. Each has the activation of the hidden layers, whether the end's
# hidden layer has a norm, and whether the score of no answer has a bias.
SPAN_HEADS = {'tanh': (jnp.tanh, True, False), 'gelu': (layers.activation('gelu'), False, True)}
FORBIDDEN = -1e30
BEAM = 20  # best starts, and best ends per start, that are scored if no start is given


def _transformed(head, x, width: int):
  """norm(activation(dense(x))) of `width`, with the fields of `head`, as its parameters."""
  dense = layers.Dense(
    (width,), head.kernel_init, head.dtype, use_bias=head.use_bias, name='transform'
  )
  norm = layers.Norm(head.norm_eps, head.dtype, head.use_bias, name='norm')
  return norm(layers.activation(head.activation)(dense(x)))


class MlmHead(nn.Module):
  """Dense, activation, norm, then the word table as decoder, and a bias (Devlin et al. 2018; code
  of the release). use_bias: of the dense layer and the norm; the decoder always has a bias.
  """

  activation: str
  norm_eps: float
  kernel_init: Callable
  dtype: Any
  use_bias: bool = True

  @nn.compact
  def __call__(self, hidden_BPD, words_VE, constrain=layers.unconstrained):
    """logits_BPV in float32. words_VE: the encoder's word table (tied)."""
    size, width = words_VE.shape
    x_BPE = _transformed(self, constrain('predictions', hidden_BPD), width)
    bias = self.param('bias', nn.initializers.zeros_init(), (size,))
    return constrain('logits', _decode(x_BPE, words_VE, bias))


class WordHead(nn.Module):
  """A vocabulary head with the word table and a bias only (Yang et al. 2019, eq. 4; code)."""

  @nn.compact
  def __call__(self, hidden_BPD, words_VD, constrain=layers.unconstrained):
    """logits_BPV in float32. words_VD: the encoder's word table (tied), as wide as its layers."""
    bias = self.param('bias', nn.initializers.zeros_init(), words_VD.shape[:1])
    return constrain('logits', _decode(constrain('predictions', hidden_BPD), words_VD, bias))


class BoundaryHead(nn.Module):
  """The span boundary head (Joshi et al. 2020 §3.2): it predicts a token of a span from the vectors
  of the two tokens beside the span and from its place in the span. Twice dense, activation and
  norm, then the word table as decoder, and a bias.

  num_offsets, offset_size: rows and width of the table of places. Later places have a zero vector.
  """

  activation: str
  norm_eps: float
  kernel_init: Callable
  dtype: Any
  num_offsets: int
  offset_size: int
  use_bias: bool = True

  @nn.compact
  def __call__(self, left_BPD, right_BPD, offset_BP, words_VE, constrain=layers.unconstrained):
    """logits_BPV in float32. words_VE: the encoder's word table (tied)."""
    size, width = words_VE.shape
    table = layers.Embedding(self.num_offsets, self.offset_size, self.kernel_init, name='offset')
    # A product with 0 and 1 is exact, and its gradient needs no scatter onto few rows.
    places_BPO = jax.nn.one_hot(offset_BP, self.num_offsets, dtype=jnp.float32)
    place_BPS = jnp.einsum('BPO,OS->BPS', places_BPO, table(), precision=jax.lax.Precision.HIGHEST)
    x = jnp.concatenate([left_BPD, right_BPD, place_BPS.astype(left_BPD.dtype)], axis=-1)
    x = constrain('predictions', x)
    for name, features in (('first', left_BPD.shape[-1]), ('second', width)):
      dense = layers.Dense(
        (features,), self.kernel_init, self.dtype, use_bias=self.use_bias, name=name
      )
      norm = layers.Norm(self.norm_eps, self.dtype, self.use_bias, name=f'{name}_norm')
      x = norm(layers.activation(self.activation)(dense(x)))
    bias = self.param('bias', nn.initializers.zeros_init(), (size,))
    return constrain('logits', _decode(x, words_VE, bias))


@jax.custom_vjp
def _decode(x_BPE, words_VE, bias_V):
  """logits_BPV in float32, the product in x's dtype."""
  return (
    jnp.einsum(
      'BPE,VE->BPV', x_BPE, words_VE.astype(x_BPE.dtype), preferred_element_type=jnp.float32
    )
    + bias_V
  )


def _decode_backward(kept, grad_BPV):
  x_BPE, words_VE = kept
  grad_BPV = grad_BPV.astype(x_BPE.dtype)
  # Gradients are summed over all predictions in float32. A column of ones gives the bias's: else it
  # would take another pass over all logits.
  with_ones = jnp.concatenate([x_BPE, jnp.ones((*x_BPE.shape[:-1], 1), x_BPE.dtype)], axis=-1)
  sums = jnp.einsum('BPV,BPE->VE', grad_BPV, with_ones, preferred_element_type=jnp.float32)
  return (
    jnp.einsum('BPV,VE->BPE', grad_BPV, words_VE.astype(x_BPE.dtype)),
    sums[:, :-1],
    sums[:, -1],
  )


_decode.defvjp(
  lambda x_BPE, words_VE, bias_V: (_decode(x_BPE, words_VE, bias_V), (x_BPE, words_VE)),
  _decode_backward,
)


class PairHead(nn.Module):
  """Pooler (dense, tanh), then two classes: 0 the true pair, 1 not (Devlin et al. 2018 §3.1)."""

  kernel_init: Callable
  dtype: Any

  @nn.compact
  def __call__(self, row_BD):
    """logits_B2 in float32."""
    pooled_BD = jnp.tanh(
      layers.Dense(row_BD.shape[-1:], self.kernel_init, self.dtype, name='pooler')(row_BD)
    )
    return layers.Dense((2,), self.kernel_init, self.dtype, name='classifier')(pooled_BD).astype(
      jnp.float32
    )


class TaskHead(nn.Module):
  """Scores vectors of rows or of tokens: dropout, a dense layer with its activation or norm,
  dropout, a linear layer (Devlin et al. 2018 §4.1: 'tanh'; He et al. 2021, code of the release:
  'gelu', the exact one; Warner et al. 2024, code of the release: 'transform'). Kind 'linear' has no
  dense layer (Clark et al. 2020, code of the release; of tokens Devlin et al. 2018 §4.2, §5.3).

  kind: a key of FORMS. input_dropout, dropout: rates before the dense layer and before the last
  one. The last product runs in float32: in fewer bits, scores of different rows are often equal.
  """

  kind: str
  num_outputs: int
  activation: str
  norm_eps: float
  kernel_init: Callable
  dtype: Any
  use_bias: bool = True
  dropout: float = 0.0
  input_dropout: float = 0.0

  @nn.compact
  def __call__(self, x, dropout_keys_B2=None):
    """logits […, C] in float32 from vectors [B, D] or [B, L, D]. dropout_keys_B2: keys of the rows;
    None without dropout.
    """
    layer = errors.choose(self.kind, FORMS, 'objective.head')
    if x.ndim == 2:
      before, after = blocks.split_keys(dropout_keys_B2, 2)
      drop = lambda x_BD, *options: layers.dropout(x_BD[:, None], *options)[:, 0]
    else:
      before, after, drop = None, dropout_keys_B2, layers.dropout
    x = drop(x, self.input_dropout, before)
    if layer is not None:
      name, follows = layer
      if follows is None:
        x = _transformed(self, x, x.shape[-1])
      else:
        x = follows(layers.Dense(x.shape[-1:], self.kernel_init, self.dtype, name=name)(x))
    x = drop(x, self.dropout, after)
    return layers.Dense((self.num_outputs,), self.kernel_init, jnp.float32, name='classifier')(x)


class ReplacedHead(nn.Module):
  """Dense, activation, the logit that a token was replaced (Clark et al. 2020 §2; code)."""

  activation: str
  kernel_init: Callable
  dtype: Any

  @nn.compact
  def __call__(self, hidden_BLD):
    """logits_BL in float32."""
    return _scores(self, hidden_BLD)


class ReplacedHeadOfRow(nn.Module):
  """As ReplacedHead, over the norm of each token's vector + its row's vector (He et al. 2021,
  code of the release, replaced_token_detection_model.py).
  """

  activation: str
  kernel_init: Callable
  dtype: Any
  norm_eps: float

  @nn.compact
  def __call__(self, hidden_BLD, row_BLD):
    """logits_BL in float32. row_BLD: the row's vector for each token, or [B, 1, D]."""
    return _scores(self, layers.Norm(self.norm_eps, self.dtype, name='norm')(hidden_BLD + row_BLD))


def _scores(head, x_BLD):
  """logits_BL of a head with the fields of ReplacedHead."""
  dense = layers.Dense(x_BLD.shape[-1:], head.kernel_init, head.dtype, name='dense')
  x_BLD = layers.activation(head.activation)(dense(x_BLD))
  return TokenScore(head.dtype, name='score')(x_BLD)


class TokenScore(nn.Module):
  """One number per token, linear in its vector.

  Its kernel starts Glorot-uniform, as in ELECTRA's release: with a deviation of 0.02, a small
  network does not leave the base rate.
  """

  dtype: Any

  @nn.compact
  def __call__(self, hidden):
    """float32, without the last axis of `hidden`."""
    return layers.Dense((1,), nn.initializers.glorot_uniform(), self.dtype, name='classifier')(
      hidden
    )[..., 0].astype(jnp.float32)


class ConditionalSpanHead(nn.Module):
  """Scores tokens as the start of an answer, tokens as its end given the start, and no answer (Yang
  et al. 2019, Lan et al. 2019, Clark et al. 2020; code of the releases).

  The end is scored by a hidden layer over the vectors of the token and of the start. No answer is
  scored by a hidden layer over the mean vector of the starts and the row's vector. A kernel over
  two vectors is stored as two kernels, whose products are added.

  kind: a key of SPAN_HEADS. hidden_size: width of the hidden layers; 0: the encoder's. answerable:
  whether no answer is scored. dropout: rate before the last layer of that score.
  """

  kind: str
  hidden_size: int
  answerable: bool
  kernel_init: Callable
  dtype: Any
  norm_eps: float
  dropout: float = 0.0

  @nn.compact
  def __call__(self, hidden_BLD, row_BD, allowed_BL, starts_BK=None, dropout_keys_B2=None):
    """Logits in float32; FORBIDDEN at places that are not allowed.

    hidden_BLD, row_BD: vectors of tokens and rows. allowed_BL: bool, places where an answer may
    begin and end. starts_BK: int32, places of starts; None for the BEAM best ones. dropout_keys_B2:
    keys of the rows; None without dropout.

    Returns (start_BL, starts_BK, end_BKL, none_B): none_B is the logit that the row has no answer,
    None if that is not scored.
    """
    activation, normed, bias = errors.choose(self.kind, SPAN_HEADS, 'objective.head')
    width = self.hidden_size or hidden_BLD.shape[-1]

    def dense(name, use_bias=True):
      return layers.Dense((width,), self.kernel_init, self.dtype, use_bias=use_bias, name=name)

    def score(name, use_bias=True):
      linear = layers.Dense((1,), self.kernel_init, jnp.float32, use_bias=use_bias, name=name)
      return lambda x: linear(x)[..., 0]

    start_BL = jnp.where(allowed_BL, score('start')(hidden_BLD), FORBIDDEN)
    if starts_BK is None:
      starts_BK = jax.lax.top_k(start_BL, min(BEAM, start_BL.shape[1]))[1]
    tokens_BLH = dense('end_token')(hidden_BLD)
    hidden_BKH = dense('end_start', use_bias=False)(protocol.gather(hidden_BLD, starts_BK))
    norm = layers.Norm(self.norm_eps, self.dtype, name='end_norm') if normed else lambda x: x
    end, ends = score('end'), []
    for k in range(starts_BK.shape[1]):  # one after the other: [B, K, L, H] may not fit
      ends.append(end(norm(activation(tokens_BLH + hidden_BKH[:, k, None]))))
    end_BKL = jnp.where(allowed_BL[:, None], jnp.stack(ends, axis=1), FORBIDDEN)
    if not self.answerable:
      return start_BL, starts_BK, end_BKL, None
    shares_BL = jax.nn.softmax(start_BL, axis=-1).astype(hidden_BLD.dtype)
    mean_BD = jnp.einsum('BL,BLD->BD', shares_BL, hidden_BLD)
    x_BH = activation(dense('answer_start')(mean_BD) + dense('answer_row', use_bias=False)(row_BD))
    x_BH = layers.dropout(x_BH[:, None], self.dropout, dropout_keys_B2)[:, 0]
    return start_BL, starts_BK, end_BKL, score('answer', bias)(x_BH)
