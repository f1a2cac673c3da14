"""Dropout, sum and layer normalisation in one pass over memory, forward and backward: TPU kernels.

Legend: B batch, L length, D width. A program takes some tokens of one row. The backward pass reads
the arguments of the forward pass and computes the sum again. All sums are float32.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bertzoo_jax.kernels import bits
from bertzoo_jax.model import layers

# Elements of each array that a program holds: a dozen of such arrays fit in fast memory.
_ELEMENTS = 256 * 1024
_SUBLANES = 16  # of a bfloat16 tile


class _Program(NamedTuple):
  """The static arguments of a kernel."""

  eps: float
  rate: float
  with_sum: bool
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
  with_sum=False,
  *,
  hashed=False,
  interpret=False,
):
  """model.layers.add_norm, fused; in the dtype of x.

  Plain XLA computes it if no block of tokens divides L.

  x_BLD, y_BLD, scale_D, shift_D, eps, dropout_rate, dropout_keys_B2, with_sum: as in layers.
  hashed: see `bits.keep`. interpret: run on any machine, slowly.
  """
  if _block(*x_BLD.shape[1:]) is None:
    out = layers.add_norm(
      x_BLD, y_BLD, scale_D, shift_D, eps, dropout_rate, dropout_keys_B2, with_sum
    )
    return jax.tree.map(lambda x: x.astype(x_BLD.dtype), out)
  keys_B2 = dropout_keys_B2 if dropout_rate else None
  rate = float(dropout_rate) if keys_B2 is not None else 0.0
  program = _Program(eps, rate, with_sum, hashed, interpret)
  vectors = (scale_D[None],) if shift_D is None else (scale_D[None], shift_D[None])
  seed = bits.seed(keys_B2, len(x_BLD))
  out = _add_norm(program, x_BLD, y_BLD.astype(x_BLD.dtype), vectors, seed)
  return (out[1], out[0]) if with_sum else out[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _add_norm(program, x_BLD, y_BLD, vectors, seed):
  """[norm] or [norm, sum]. vectors: scale [1, D] and, if there is one, shift [1, D]."""
  return _call(_forward, program, (x_BLD, y_BLD), vectors, seed)


def _add_norm_backward(program, kept, grads):
  x_BLD, y_BLD, vectors, seed = kept
  dx_BLD, dy_BLD, *sums = _call(_backward, program, (x_BLD, y_BLD, *grads), vectors, seed)
  return dx_BLD, dy_BLD, tuple(jnp.sum(x, axis=(0, 1)) for x in sums), None


_add_norm.defvjp(lambda program, *args: (_add_norm(program, *args), args), _add_norm_backward)


def _block(length: int, width: int) -> int | None:
  """Tokens per program: as many as fit, in whole tiles; None if no block divides the length."""
  most = max(_SUBLANES, _ELEMENTS // width)
  if length <= most:
    return length
  return max((n for n in range(_SUBLANES, most + 1, _SUBLANES) if length % n == 0), default=None)


def steps(length: int, width: int) -> tuple[int, int]:
  """Programs per row of the batch, forward and backward."""
  return (length // _block(length, width),) * 2


def _call(kernel, program, arrays, vectors, seed):
  batch, length, width = arrays[0].shape
  block = _block(length, width)
  token_spec = pl.BlockSpec((1, block, width), lambda b, i, _: (b, i, 0))
  whole = pl.BlockSpec((1, width), lambda b, i, _: (0, 0))
  like = jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)
  if kernel is _backward:  # one sum per program, so that programs may run in parallel
    sums = jax.ShapeDtypeStruct((batch, length // block, 1, width), jnp.float32)
    sum_spec = pl.BlockSpec((1, 1, 1, width), lambda b, i, _: (b, i, 0, 0))
    out, places = [like] * 2 + [sums] * len(vectors), [token_spec] * 2 + [sum_spec] * len(vectors)
  else:
    out, places = [like] * (1 + program.with_sum), [token_spec] * (1 + program.with_sum)
  variant = '_sum' * program.with_sum + '_unshifted' * (len(vectors) == 1)
  return pl.pallas_call(
    functools.partial(kernel, program, len(vectors)),
    out_shape=out,
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=(batch, length // block),
      in_specs=[token_spec] * len(arrays) + [whole] * len(vectors),
      out_specs=places,
    ),
    compiler_params=pltpu.CompilerParams(dimension_semantics=('parallel', 'parallel')),
    interpret=program.interpret,
    name=f'add_norm{kernel.__name__}{variant}' + bits.variant(program, arrays[0].dtype),
  )(seed, *arrays, *vectors)


def _forward(program, num_vectors, seed, x, y, *refs):
  scale, *shift = refs[:num_vectors]
  sum_LD, _ = _sum(program, seed, x, y)
  z_LD = _normalized(program, sum_LD)[0] * scale[...]
  out, *total = refs[num_vectors:]
  out[0] = (z_LD + shift[0][...] if shift else z_LD).astype(out.dtype)
  if total:
    total[0][0] = sum_LD.astype(out.dtype)


def _backward(program, num_vectors, seed, x, y, grad, *refs):
  sum_grad, refs = refs[: program.with_sum], refs[program.with_sum :]
  scale, (dx, dy, scale_grad, *shift_grad) = refs[0], refs[num_vectors:]
  sum_LD, keep_LD = _sum(program, seed, x, y)
  z_LD, inverse_L1 = _normalized(program, sum_LD)
  grad_LD = grad[0].astype(jnp.float32)
  scale_grad[0, 0] = jnp.sum(grad_LD * z_LD, axis=0, keepdims=True)
  if shift_grad:
    shift_grad[0][0, 0] = jnp.sum(grad_LD, axis=0, keepdims=True)
  grad_LD *= scale[...]
  mean_L1 = lambda x_LD: jnp.mean(x_LD, axis=1, keepdims=True)
  dz_LD = (grad_LD - mean_L1(grad_LD) - z_LD * mean_L1(grad_LD * z_LD)) * inverse_L1
  if sum_grad:
    dz_LD += sum_grad[0][0].astype(jnp.float32)
  dx[0] = dz_LD.astype(dx.dtype)
  dy[0] = _dropped(program, keep_LD, dz_LD).astype(dy.dtype)


def _sum(program, seed, x, y):
  """(x + dropout(y), which elements of y are kept)."""
  keep_LD = None
  if program.rate:
    block, size = pl.program_id(1), y.shape[1:]
    keep_LD = bits.keep(
      program.rate, program.hashed, seed, pl.program_id(0), None, block, (block * size[0], 0), size
    )
  dropped_LD = _dropped(program, keep_LD, y[0].astype(jnp.float32))
  return x[0].astype(jnp.float32) + dropped_LD, keep_LD


def _normalized(program, x_LD):
  """(x with mean 0 and variance 1 per token, 1 / its standard deviation)."""
  x_LD = x_LD - jnp.mean(x_LD, axis=1, keepdims=True)
  inverse_L1 = jax.lax.rsqrt(jnp.mean(x_LD * x_LD, axis=1, keepdims=True) + program.eps)
  return x_LD * inverse_L1, inverse_L1


def _dropped(program, keep_LD, x_LD):
  return x_LD if keep_LD is None else jnp.where(keep_LD, x_LD * (1.0 / (1.0 - program.rate)), 0.0)
