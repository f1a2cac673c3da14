"""The fused sum and norm against the plain one, interpreted."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertzoo_jax.kernels import add_norm as fused
from bertzoo_jax.kernels import bits
from bertzoo_jax.model import layers

add_norm = functools.partial(fused.add_norm, interpret=True)
EPS = 1e-12


def inputs(shape, seed=0):
  """x, y, a weight for the result, scale and shift."""
  draw = np.random.default_rng(seed)
  return [jnp.asarray(draw.normal(size=s), jnp.float32) for s in (shape, shape, shape, shape[-1:], shape[-1:])]


def value_and_gradients(f, x, y, weight, scale, shift):
  out, pull = jax.vjp(f, x, y, scale, shift)
  return [out, *pull(weight)]


def dropped(mask, rate):
  return lambda x, y, scale, shift: layers.normalize(x + jnp.where(mask, y / (1 - rate), 0.0), scale, shift, EPS)


@pytest.mark.parametrize('shape', [(3, 40, 24), (2, 7, 128), (1, 96, 16384)])  # the last parts into three blocks
def test_it_equals_the_plain_one_in_value_and_gradient(shape):
  arrays = inputs(shape)
  ours = value_and_gradients(lambda *a: add_norm(*a, EPS), *arrays)
  theirs = value_and_gradients(lambda *a: layers.add_norm(*a, EPS), *arrays)
  for a, b in zip(ours, theirs):
    np.testing.assert_allclose(a, b, atol=2e-5)


@pytest.mark.parametrize('shape', [(3, 40, 24), (1, 64, 16384)])
def test_forward_and_backward_drop_the_same_elements(shape):
  arrays, key, rate = inputs(shape), jax.random.key(5), 0.25
  word, other, *_ = bits.seed(key, (0, 0))
  threshold = np.uint32(round(rate * 2 ** 32))
  mask = jnp.stack([bits.hashed_bits(word, other, b, 0, (0, 0), shape[1:]) >= threshold for b in range(shape[0])])
  ours = value_and_gradients(lambda *a: add_norm(*a, EPS, rate, key, hashed=True), *arrays)
  for a, b in zip(ours, value_and_gradients(dropped(mask, rate), *arrays)):
    np.testing.assert_allclose(a, b, atol=2e-5)


def test_the_bits_are_those_of_a_row_of_the_whole_batch():
  x, y, _, scale, shift = inputs((4, 16, 32))
  f = functools.partial(add_norm, dropout_rate=0.5, dropout_key=jax.random.key(0), hashed=True)
  whole = f(x, y, scale, shift, EPS)
  np.testing.assert_allclose(f(x[2:], y[2:], scale, shift, EPS, origin=2), whole[2:], atol=1e-6)
  assert not np.allclose(f(x[2:], y[2:], scale, shift, EPS), whole[2:], atol=1e-3)


def test_what_does_not_part_into_blocks_is_computed_by_the_plain_one():
  x, y, _, scale, shift = inputs((1, 33, 32768))
  key = jax.random.key(1)
  np.testing.assert_array_equal(add_norm(x, y, scale, shift, EPS), layers.add_norm(x, y, scale, shift, EPS))
  first, other = (add_norm(x, y, scale, shift, EPS, 0.1, key, origin=n) for n in (0, 1))
  assert not np.allclose(first, other)  # another device's rows, other dropout
