"""Dropout, residual and layer normalisation in one pass over memory, forward and backward, as TPU kernels.

N rows, D width; what the XLA form does is model/layers.add_norm. The backward pass adds and drops again.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

_ROWS = 512


class _Program(NamedTuple):
  eps: float
  rate: float
  hashed: bool
  interpret: bool


def add_norm(x, y, scale, shift, eps, rate, key, *, origin=0, hashed=False, interpret=False):
  if key is None or not rate:
    rate, words = 0.0, jnp.zeros(2, jnp.int32)
  else:
    words = jax.lax.bitcast_convert_type(jax.random.bits(key, (2,), jnp.uint32), jnp.int32)
  seed = jnp.concatenate([words, jnp.asarray([origin], jnp.int32)])
  flat = lambda x: x.reshape(-1, x.shape[-1])
  return _apply(_Program(eps, float(rate), hashed, interpret), flat(x), flat(y), scale[None], shift[None], seed).reshape(x.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _apply(program, x_ND, y_ND, scale_1D, shift_1D, seed):
  return _call(_forward, program, (x_ND, y_ND), scale_1D, shift_1D, seed)


def _apply_backward(program, kept, grad_ND):
  x_ND, y_ND, scale_1D, shift_1D, seed = kept
  dx, dy, sums = _call(_backward, program, (x_ND, y_ND, grad_ND), scale_1D, shift_1D, seed)
  sums = jnp.sum(sums, axis=0)
  return dx, dy, sums[0][None], sums[1][None], None


_apply.defvjp(lambda program, *args: (_apply(program, *args), args), _apply_backward)


def _call(kernel, program, arrays, scale_1D, shift_1D, seed):
  rows, width = arrays[0].shape
  block = _ROWS
  of_rows = pl.BlockSpec((block, width), lambda i, _: (i, 0))
  whole = pl.BlockSpec((1, width), lambda i, _: (0, 0))
  like = jax.ShapeDtypeStruct((rows, width), arrays[0].dtype)
  backward = len(arrays) == 3
  out = [like, like, jax.ShapeDtypeStruct((rows // block, 8, width), jnp.float32)] if backward else like
  places = [of_rows, of_rows, pl.BlockSpec((1, 8, width), lambda i, _: (i, 0, 0))] if backward else of_rows
  return pl.pallas_call(
      functools.partial(kernel, program), out_shape=out,
      grid_spec=pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, grid=(rows // block,), in_specs=[of_rows] * len(arrays) + [whole, whole], out_specs=places),
      compiler_params=pltpu.CompilerParams(dimension_semantics=('parallel',)), interpret=program.interpret, name=f'add_norm{kernel.__name__}')(
          seed, *arrays, scale_1D, shift_1D)


def _normed(program, seed, x, y):
  y_ND, keep = y[...].astype(jnp.float32), None
  if program.rate:
    pltpu.prng_seed(seed[0] + seed[2] + pl.program_id(0), seed[1])
    keep = pltpu.bitcast(pltpu.prng_random_bits(y.shape), jnp.uint32) >= np.uint32(round(program.rate * 2 ** 32))
    y_ND = jnp.where(keep, y_ND * (1.0 / (1.0 - program.rate)), 0.0)
  z_ND = x[...].astype(jnp.float32) + y_ND
  z_ND -= jnp.mean(z_ND, axis=1, keepdims=True)
  inverse_N1 = jax.lax.rsqrt(jnp.mean(z_ND * z_ND, axis=1, keepdims=True) + program.eps)
  return z_ND * inverse_N1, inverse_N1, keep


def _forward(program, seed, x, y, scale, shift, out):
  z_ND, _, _ = _normed(program, seed, x, y)
  out[...] = (z_ND * scale[...] + shift[...]).astype(out.dtype)


def _backward(program, seed, x, y, grad, scale, shift, dx, dy, sums):
  z_ND, inverse_N1, keep = _normed(program, seed, x, y)
  grad_ND = grad[...].astype(jnp.float32)
  sums[0, 0:1] = jnp.sum(grad_ND * z_ND, axis=0, keepdims=True)
  sums[0, 1:2] = jnp.sum(grad_ND, axis=0, keepdims=True)
  grad_ND *= scale[...]
  mean = lambda x: jnp.mean(x, axis=1, keepdims=True)
  dz_ND = (grad_ND - mean(grad_ND) - z_ND * mean(grad_ND * z_ND)) * inverse_N1
  dx[...] = dz_ND.astype(dx.dtype)
  if program.rate:
    dz_ND = jnp.where(keep, dz_ND * (1.0 / (1.0 - program.rate)), 0.0)
  dy[...] = dz_ND.astype(dy.dtype)
