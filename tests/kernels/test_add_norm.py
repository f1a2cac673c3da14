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
  return [
    jnp.asarray(draw.normal(size=s), jnp.float32)
    for s in (shape, shape, shape, shape[-1:], shape[-1:])
  ]


def value_and_gradients(f, x, y, weight, scale, shift):
  out, pull = jax.vjp(f, x, y, scale, shift)
  return [out, *pull(weight)]


# the last parts into three blocks
@pytest.mark.parametrize('shape', [(3, 40, 24), (2, 7, 128), (1, 96, 16384)])
def test_it_equals_the_plain_one_in_value_and_gradient(shape):
  arrays = inputs(shape)
  ours = value_and_gradients(lambda *a: add_norm(*a, EPS), *arrays)
  theirs = value_and_gradients(lambda *a: layers.add_norm(*a, EPS), *arrays)
  for a, b in zip(ours, theirs):
    np.testing.assert_allclose(a, b, atol=2e-5)


@pytest.mark.parametrize('shape', [(3, 40, 24), (1, 64, 16384)])
def test_forward_and_backward_drop_what_the_plain_one_drops(shape):
  arrays, keys, rate = inputs(shape), row_keys.of_batch(jax.random.key(5), shape[0]), 0.25
  ours = value_and_gradients(lambda *a: add_norm(*a, EPS, rate, keys, hashed=True), *arrays)
  for a, b in zip(
    ours, value_and_gradients(lambda *args: layers.add_norm(*args, EPS, rate, keys), *arrays)
  ):
    np.testing.assert_allclose(a, b, atol=2e-5)
  assert not np.allclose(ours[0], add_norm(arrays[0], arrays[1], *arrays[3:], EPS), atol=1e-2)


def test_what_does_not_part_into_blocks_is_computed_by_the_plain_one():
  x, y, _, scale, shift = inputs((1, 33, 32768))
  np.testing.assert_array_equal(
    add_norm(x, y, scale, shift, EPS), layers.add_norm(x, y, scale, shift, EPS)
  )
  keys = row_keys.of_batch(jax.random.key(1), 1)
  np.testing.assert_array_equal(
    add_norm(x, y, scale, shift, EPS, 0.1, keys),
    layers.add_norm(x, y, scale, shift, EPS, 0.1, keys),
  )
