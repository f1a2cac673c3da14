"""The fused sum and norm against the plain one, interpreted."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertzoo_jax.common import row_keys
from bertzoo_jax.kernels import add_norm as fused
from bertzoo_jax.model import layers

add_norm = functools.partial(fused.add_norm, interpret=True)
EPS = 1e-12


def inputs(shape, seed=0):
  """x, y, a weight for the result, scale and shift."""
  draw = np.random.default_rng(seed)
  shapes = shape, shape, shape, shape[-1:], shape[-1:]
  return [jnp.asarray(draw.normal(size=s), jnp.float32) for s in shapes]


def value_and_gradients(f, x, y, weight, scale, shift):
  @jax.jit
  def both(weight, *arguments):
    out, pull = jax.vjp(f, *arguments)
    return out, *pull(weight)

  return both(weight, x, y, scale, shift)


# The last has three blocks.
@pytest.mark.parametrize('shape', [(3, 40, 24), (1, 96, 16384)])
def test_forward_and_backward_drop_what_the_plain_one_drops(shape):
  arrays, keys, rate = inputs(shape), row_keys.batch_keys(jax.random.key(5), shape[0]), 0.25
  ours = value_and_gradients(lambda *a: add_norm(*a, EPS, rate, keys, hashed=True), *arrays)
  theirs = value_and_gradients(lambda *args: layers.add_norm(*args, EPS, rate, keys), *arrays)
  for a, b in zip(ours, theirs):
    np.testing.assert_allclose(a, b, atol=2e-5)
  assert not np.allclose(ours[0], add_norm(arrays[0], arrays[1], *arrays[3:], EPS), atol=1e-2)


@pytest.mark.parametrize('shape, shifted', [((2, 24, 16), True), ((1, 64, 16384), False)])
def test_the_sum_is_returned_too_and_its_gradient_joins(shape, shifted):
  x, y, weight, scale, shift = inputs(shape)
  of_sum, keys = inputs(shape, seed=1)[0], row_keys.batch_keys(jax.random.key(5), shape[0])
  results = []
  for f in (functools.partial(add_norm, hashed=True), layers.add_norm):
    args = (x, y, scale, shift) if shifted else (x, y, scale)
    one = lambda x, y, scale, shift=None, f=f: f(x, y, scale, shift, EPS, 0.25, keys, with_sum=True)

    @jax.jit
    def both(args, weights, one=one):
      outs, pull = jax.vjp(one, *args)
      return *outs, *pull(weights)

    results.append(both(args, (of_sum, weight)))
  for a, b in zip(*results):
    np.testing.assert_allclose(a, b, atol=2e-5)
  np.testing.assert_allclose(results[0][0], x + layers.dropout(y, 0.25, keys), atol=1e-6)


def test_the_sum_has_the_dtype_of_x_and_the_plain_norm_is_float32():
  x, y, _, scale, shift = inputs((1, 16, 128))
  low = x.astype(jnp.bfloat16), y.astype(jnp.bfloat16), scale, shift, EPS
  dtypes = lambda f: [out.dtype for out in f(*low, with_sum=True)]
  assert dtypes(layers.add_norm) == [jnp.bfloat16, jnp.float32]
  assert dtypes(add_norm) == [jnp.bfloat16, jnp.bfloat16]


def test_a_kernel_s_name_tells_the_sum_and_the_missing_shift():
  x, y, _, scale, shift = inputs((1, 16, 128))
  text = lambda *args: str(jax.make_jaxpr(lambda: fused.add_norm(x, y, scale, *args))())
  assert 'add_norm_forward_sum_float32' in text(shift, EPS, 0.0, None, True)
  assert 'add_norm_forward_unshifted_float32' in text(None, EPS)
  assert 'add_norm_forward_float32' in text(shift, EPS)


def test_shapes_that_do_not_part_into_blocks_take_the_plain_function():
  x, y, _, scale, shift = inputs((1, 33, 32768))
  for rest in ((), (0.1, row_keys.batch_keys(jax.random.key(1), 1))):
    args = x, y, scale, shift, EPS, *rest
    np.testing.assert_array_equal(add_norm(*args), layers.add_norm(*args))
