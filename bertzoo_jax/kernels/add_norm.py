"""Dropout, sum and layer normalisation in one pass over memory, forward and backward, as TPU
kernels.

Legend: B batch, L length, D width. A program takes some tokens of one row. The backward pass is
given what the forward pass was, and adds, drops and normalises again; all of it in float32.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bertzoo_jax.kernels import bits
from bertzoo_jax.model import layers

_ELEMENTS = (
  256 * 1024
)  # of each array that a program holds: with what it computes, a dozen of them fit in fast memory
_SUBLANES = 16  # of a bfloat16 tile


class _Program(NamedTuple):
  """What a program is made for."""

  eps: float
  rate: float
  hashed: bool
  interpret: bool


def add_norm(
  x_BLD,
  y_BLD,
  scale_D,
  shift_D,
  eps,
  dropout_rate=0.0,
  dropout_keys_B2=None,
  *,
  hashed=False,
  interpret=False,
):
  """What model.layers.add_norm computes, fused; in the dtype of x. Where L does not part into
  blocks, that one computes it.

  Args:
    x_BLD, y_BLD, scale_D, shift_D, eps, dropout_rate, dropout_keys_B2: as there.
    hashed: as of `bits.keep`.
    interpret: run on any machine, slowly.
  """
  if _block(*x_BLD.shape[1:]) is None:
    return layers.add_norm(
      x_BLD, y_BLD, scale_D, shift_D, eps, dropout_rate, dropout_keys_B2
    ).astype(x_BLD.dtype)
  keys_B2 = dropout_keys_B2 if dropout_rate else None
  program = _Program(eps, float(dropout_rate) if keys_B2 is not None else 0.0, hashed, interpret)
  return _add_norm(
    program,
    x_BLD,
    y_BLD.astype(x_BLD.dtype),
    scale_D[None],
    shift_D[None],
    bits.seed(keys_B2, len(x_BLD)),
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _add_norm(program, x_BLD, y_BLD, scale_1D, shift_1D, seed):
  return _call(_forward, program, (x_BLD, y_BLD), scale_1D, shift_1D, seed)[0]


def _add_norm_backward(program, kept, grad_BLD):
  x_BLD, y_BLD, scale_1D, shift_1D, seed = kept
  dx_BLD, dy_BLD, of_scale, of_shift = _call(
    _backward, program, (x_BLD, y_BLD, grad_BLD), scale_1D, shift_1D, seed
  )
  return dx_BLD, dy_BLD, jnp.sum(of_scale, axis=(0, 1)), jnp.sum(of_shift, axis=(0, 1)), None


_add_norm.defvjp(lambda program, *args: (_add_norm(program, *args), args), _add_norm_backward)


def _block(length: int, width: int) -> int | None:
  """Tokens of a program: as many as fit, in whole tiles."""
  most = max(_SUBLANES, _ELEMENTS // width)
  if length <= most:
    return length
  return max((n for n in range(_SUBLANES, most + 1, _SUBLANES) if length % n == 0), default=None)


def steps(length: int, width: int) -> tuple[int, int]:
  """Programs that a row of the batch takes, forward and backward."""
  return (length // _block(length, width),) * 2


def _call(kernel, program, arrays, scale_1D, shift_1D, seed):
  batch, length, width = arrays[0].shape
  block = _block(length, width)
  of_tokens = pl.BlockSpec((1, block, width), lambda b, i, _: (b, i, 0))
  whole = pl.BlockSpec((1, width), lambda b, i, _: (0, 0))
  like, out, places = jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype), [], []
  if kernel is _backward:  # every program has sums of its own, so that they may run side by side
    out = [like, *[jax.ShapeDtypeStruct((batch, length // block, 1, width), jnp.float32)] * 2]
    places = [of_tokens, *[pl.BlockSpec((1, 1, 1, width), lambda b, i, _: (b, i, 0, 0))] * 2]
  return pl.pallas_call(
    functools.partial(kernel, program),
    out_shape=[like, *out],
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=(batch, length // block),
      in_specs=[*[of_tokens] * len(arrays), whole, whole],
      out_specs=[of_tokens, *places],
    ),
    compiler_params=pltpu.CompilerParams(dimension_semantics=('parallel', 'parallel')),
    interpret=program.interpret,
    name=f'add_norm{kernel.__name__}' + bits.variant(program, arrays[0].dtype),
  )(seed, *arrays, scale_1D, shift_1D)


def _forward(program, seed, x, y, scale, shift, out):
  z_LD, _, _ = _normalized(program, seed, x, y)
  out[0] = (z_LD * scale[...] + shift[...]).astype(out.dtype)


def _backward(program, seed, x, y, grad, scale, shift, dx, dy, of_scale, of_shift):
  z_LD, inverse_L1, keep_LD = _normalized(program, seed, x, y)
  grad_LD = grad[0].astype(jnp.float32)
  of_scale[0, 0] = jnp.sum(grad_LD * z_LD, axis=0, keepdims=True)
  of_shift[0, 0] = jnp.sum(grad_LD, axis=0, keepdims=True)
  grad_LD *= scale[...]
  mean_L1 = lambda x_LD: jnp.mean(x_LD, axis=1, keepdims=True)
  dz_LD = (grad_LD - mean_L1(grad_LD) - z_LD * mean_L1(grad_LD * z_LD)) * inverse_L1
  dx[0] = dz_LD.astype(dx.dtype)
  dy[0] = _dropped(program, keep_LD, dz_LD).astype(dy.dtype)


def _normalized(program, seed, x, y):
  """(x + dropout(y) with mean 0 and variance 1 a token, 1 / its deviation, what dropout kept)."""
  keep_LD = None
  if program.rate:
    block, size = pl.program_id(1), y.shape[1:]
    keep_LD = bits.keep(
      program.rate, program.hashed, seed, pl.program_id(0), None, block, (block * size[0], 0), size
    )
  z_LD = x[0].astype(jnp.float32) + _dropped(program, keep_LD, y[0].astype(jnp.float32))
  z_LD -= jnp.mean(z_LD, axis=1, keepdims=True)
  inverse_L1 = jax.lax.rsqrt(jnp.mean(z_LD * z_LD, axis=1, keepdims=True) + program.eps)
  return z_LD * inverse_L1, inverse_L1, keep_LD


def _dropped(program, keep_LD, x_LD):
  return x_LD if keep_LD is None else jnp.where(keep_LD, x_LD * (1.0 / (1.0 - program.rate)), 0.0)
