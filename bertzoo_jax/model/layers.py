"""Parts of all networks: affine map, norm, dropout, activations, initialisers.

Shapes in names: B batch, L length, D width, F feed-forward width. Parameters are float32; products
run in `dtype`; norms and sums over a row run in float32.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from bertzoo_jax.common import errors
from bertzoo_jax.common import row_keys

# How a mesh splits norms and biases that no other table matches, as blocks.AXES: not at all.
# Gathering a vector would take time, and splitting it would save little memory.
AXES = ((r'(norm/scale|bias)$', {}),)


def _gelu(x):
  """The exact GELU, by erf: erfc, which jax.nn.gelu uses, takes several times as long on TPUs. erf
  needs float32, or 1 + erf would be rounded away for negative x.
  """
  wide = x.astype(jnp.float32)
  return (0.5 * wide * (1.0 + jax.lax.erf(wide * math.sqrt(0.5)))).astype(x.dtype)


ACTIVATIONS = {
  # Google's BERT; Hugging Face calls it gelu_new
  'gelu_tanh': lambda x: jax.nn.gelu(x, approximate=True),
  'gelu': _gelu,
  'relu': jax.nn.relu,
  'silu': jax.nn.silu,
}


def _truncated_normal(deviation):
  # Cut at two deviations and not rescaled, as in TF1: the result has 0.88 times the deviation.
  return lambda key, shape, dtype=jnp.float32: (
    deviation * jax.random.truncated_normal(key, -2.0, 2.0, shape, dtype)
  )


INITIALIZERS = {
  'truncated_normal': _truncated_normal,
  'normal': lambda deviation: jax.nn.initializers.normal(deviation),
}


def activation(name: str) -> Callable:
  """The function of an activation's name. Raises UserError for an unknown one."""
  return errors.choose(name, ACTIVATIONS, 'activation')


def initializer(name: str, deviation: float) -> Callable:
  """(key, shape) → float32 weights of a standard deviation. Raises UserError for another name."""
  return errors.choose(name, INITIALIZERS, 'initializer')(deviation)


def unconstrained(name: str, x: jax.Array) -> jax.Array:
  """The default of `constrain`: returns an intermediate unchanged, without sharding."""
  del name
  return x


def sum_kernel_gradients(
  path: str, shape: tuple[int, ...], sums: Callable, *arrays: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """The default of `kernel_gradients`: sums(*arrays), the gradients [D, F] of a kernel and [F] of
  its bias, which are sums over the rows of the arrays. path, shape: of the kernel, for meshes that
  split it and the rows.
  """
  del path, shape
  return sums(*arrays)


class Dense(nn.Module):
  """before(x)·kernel + bias over the last `in_axes` axes of x, to `features`; the parameters are
  float32, the product runs in `dtype`.

  kernel has the shape (contracted axes of x) + features. bias has the shape features, starts at 0,
  and is absent if use_bias is False. `before` is elementwise; the backward pass recomputes it from
  x, which is saved under the name `input_name` for policies of jax.checkpoint. `kernel_gradients`
  as in model.operations.
  """

  features: tuple[int, ...]
  kernel_init: Callable
  dtype: Any
  in_axes: int = 1
  before: Callable | None = None
  input_name: str = 'input'
  kernel_gradients: Callable = sum_kernel_gradients
  use_bias: bool = True

  @nn.compact
  def __call__(self, x):
    contracted = x.shape[x.ndim - self.in_axes :]
    kernel = self.param('kernel', self.kernel_init, contracted + self.features)
    # One axis of rows, one contracted, one of features: XLA would copy the operands and the result
    # of a product over more axes into other layouts.
    inputs, outputs = math.prod(contracted), math.prod(self.features)
    bias = None
    if self.use_bias:
      bias = self.param('bias', nn.initializers.zeros_init(), self.features).reshape(outputs)
    x_ND = x.reshape(-1, inputs).astype(self.dtype)
    kernel_gradients = functools.partial(
      self.kernel_gradients, '/'.join((*self.path, 'kernel')), kernel.shape
    )
    y = _affine(
      self.before, self.input_name, kernel_gradients, x_ND, kernel.reshape(inputs, outputs), bias
    )
    return y.reshape(*x.shape[: x.ndim - self.in_axes], *self.features)


def dense_of(module, ops, **more):
  """`Dense` with the initializer and dtype of a module, and the kernel gradients of `ops`."""
  fields = dict(kernel_init=module.kernel_init, dtype=module.dtype, **more)
  return functools.partial(Dense, kernel_gradients=ops.kernel_gradients, **fields)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _affine(before, input_name, kernel_gradients, x_ND, kernel_DF, bias_F):
  """before(x)·kernel + bias in x's dtype; kernel and bias are float32, bias may be None.

  Their gradients are sums over all rows: one product, which adds in float32 (a sum in bfloat16
  stops growing).
  """
  del input_name, kernel_gradients
  return _product_and_bias(before, x_ND, kernel_DF, bias_F)


def _product_and_bias(before, x_ND, kernel_DF, bias_F):
  a_ND = x_ND if before is None else before(x_ND)
  y_NF = a_ND @ kernel_DF.astype(x_ND.dtype)
  return (y_NF if bias_F is None else y_NF + bias_F).astype(x_ND.dtype)


def _affine_forward(before, input_name, kernel_gradients, x_ND, kernel_DF, bias_F):
  del kernel_gradients
  # Policies of jax.checkpoint see names in this rule only. The saved x has the name, the operand of
  # the product has not: an array that is both would be rounded in an extra pass.
  kept = (checkpoint_name(x_ND, input_name), kernel_DF, None if bias_F is None else ())
  return _product_and_bias(before, x_ND, kernel_DF, bias_F), kept


def _affine_backward(before, input_name, kernel_gradients, kept, grad_NF):
  del input_name
  x_ND, kernel_DF, has_bias = kept
  inputs_grad = lambda grad_NF: grad_NF @ kernel_DF.astype(x_ND.dtype).T
  if before is None:
    sums = _kernel_sum if has_bias is None else _sums_by_one_product
    return inputs_grad(grad_NF), *kernel_gradients(sums, x_ND, grad_NF)
  # Without this barrier the compiler would compute before(x) in the forward pass and keep it, or,
  # with a column of ones, compute it in an extra pass.
  x_ND, grad_NF = jax.lax.optimization_barrier((x_ND, grad_NF))
  a_ND, pull = jax.vjp(before, x_ND)
  sums = _kernel_sum if has_bias is None else _sums_apart
  kernel_grad, bias_grad = kernel_gradients(sums, a_ND, grad_NF)
  # With this barrier it computes the kernel's gradient now: else it would wait for the gradients of
  # all other layers, and keep their operands.
  x_grad, kernel_grad = jax.lax.optimization_barrier((*pull(inputs_grad(grad_NF)), kernel_grad))
  return x_grad, kernel_grad, bias_grad


def _sums_by_one_product(x_ND, grad_NF):
  with_ones = jnp.concatenate([x_ND, jnp.ones((len(x_ND), 1), x_ND.dtype)], axis=1)
  sums = jnp.dot(with_ones.T, grad_NF, preferred_element_type=jnp.float32)
  return sums[:-1], sums[-1]


def _sums_apart(x_ND, grad_NF):
  bias_sum = jnp.sum(grad_NF, axis=0, dtype=jnp.float32)
  return jnp.dot(x_ND.T, grad_NF, preferred_element_type=jnp.float32), bias_sum


def _kernel_sum(x_ND, grad_NF):
  return jnp.dot(x_ND.T, grad_NF, preferred_element_type=jnp.float32), None


_affine.defvjp(_affine_forward, _affine_backward)


def neighbours(x_BLD, segment_ids_BL, size: int):
  """[B, L, size, D]: x at the `size` places around each token, itself in the middle.

  `Dense(…, in_axes=2)` of the result is a convolution along the row. Places in padding, in another
  segment or outside the row give 0.
  """
  length, reach = x_BLD.shape[1], size // 2
  around = lambda x, fill: jnp.pad(
    x, ((0, 0), (reach, size - 1 - reach), *((0, 0),) * (x.ndim - 2)), constant_values=fill
  )
  x_BLD, ids_BL = around(x_BLD, 0), around(segment_ids_BL, 0)
  out = []
  for i in range(size):
    ids = ids_BL[:, i : i + length]
    seen_BL = (ids == segment_ids_BL) & (ids > 0)
    out.append(jnp.where(seen_BL[..., None], x_BLD[:, i : i + length], 0))
  return jnp.stack(out, axis=2)


class Norm(nn.Module):
  """Layer normalisation over the last axis (Ba et al. 2016), computed in float32, returned in
  `dtype`; a sum keeps its dtype. use_bias False: scale only.

  norm: (*inputs, scale, shift or None, eps) → normalised, or (sum, normalised); `add_norm` for a
  sum of two.
  """

  eps: float
  dtype: Any
  use_bias: bool = True

  fuses_residual = True  # `norm` may also add two inputs

  @nn.compact
  def __call__(self, *inputs, norm=None):
    width = inputs[0].shape[-1:]
    scale = self.param('scale', nn.initializers.ones_init(), width)
    shift = self.param('bias', nn.initializers.zeros_init(), width) if self.use_bias else None
    out = (norm or normalize)(*inputs, scale, shift, self.eps)
    if isinstance(out, tuple):
      return out[0], out[1].astype(self.dtype)
    return out.astype(self.dtype)


class RMSNorm(nn.Module):
  """x over its root mean square, scaled, in float32, then `dtype` (Zhang, Sennrich 2019, eq. 4)."""

  eps: float
  dtype: Any

  @nn.compact
  def __call__(self, x):
    scale = self.param('scale', nn.initializers.ones_init(), x.shape[-1:])
    x = x.astype(jnp.float32)
    squares = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    return (x * jax.lax.rsqrt(squares + self.eps) * scale).astype(self.dtype)


def normalize(x, scale_D, shift_D, eps):
  """Layer normalisation in float32. shift_D None: without shift."""
  x = x.astype(jnp.float32)
  x = x - jnp.mean(x, axis=-1, keepdims=True)
  variance = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
  z = x * jax.lax.rsqrt(variance + eps) * scale_D
  return z if shift_D is None else z + shift_D


def add_norm(
  x_BLD, y_BLD, scale_D, shift_D, eps, dropout_rate=0.0, dropout_keys_B2=None, with_sum=False
):
  """normalize(x + dropout(y)): the residual connection of Vaswani et al. 2017 (§3.1, §5.4).

  Every other `add_norm` has these arguments and results.

  x_BLD: input of the sublayer. y_BLD: output of the sublayer. scale_D, shift_D: of the norm,
  float32. shift_D None: a norm without shift. eps: added to the variance. dropout_rate: dropout
  rate of y. dropout_keys_B2: keys of the rows (row_keys.py). None means no dropout. with_sum: also
  return the sum, which a pre-norm layer passes on.

  Returns the norm of the sum, or (sum in x's dtype, norm of the sum).
  """
  sum_BLD = x_BLD + dropout(y_BLD, dropout_rate, dropout_keys_B2)
  normed_BLD = normalize(sum_BLD, scale_D, shift_D, eps)
  return (sum_BLD.astype(x_BLD.dtype), normed_BLD) if with_sum else normed_BLD


class Embedding(nn.Module):
  """A table of `size` vectors; the caller looks up, since a table may also be a decoder."""

  size: int
  width: int
  init_table: Callable

  @nn.compact
  def __call__(self):
    return self.param('embedding', self.init_table, (self.size, self.width))


def dropout(x: jax.Array, rate: float, keys: jax.Array | None, first=(0, 0)) -> jax.Array:
  """x [..., M, N] with elements set to 0 with probability `rate` and the rest scaled up to the same
  mean; x itself if keys are None. keys: [..., 2], of row_keys.py; only they are saved for the
  backward pass, which draws again. first: place of x in a larger array.
  """
  return x if keys is None or rate == 0.0 else _dropped(rate, x, keys, first)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _dropped(rate, x, keys, first):
  return jnp.where(
    row_keys.keep(keys, rate, x.shape[-2:], first),
    x * jnp.asarray(1.0 / (1.0 - rate), x.dtype),
    jnp.zeros((), x.dtype),
  )


_dropped.defvjp(
  lambda rate, x, *drawn: (_dropped(rate, x, *drawn), drawn),
  lambda rate, drawn, grad: (_dropped(rate, grad, *drawn), None, None),
)
