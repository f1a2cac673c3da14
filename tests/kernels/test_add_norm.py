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
  draw = np.random.default_rng(seed)
  shapes = shape, shape, shape, shape[-1:], shape[-1:]
  return [jnp.asarray(draw.normal(size=s), jnp.float32) for s in shapes]


# The last have three blocks and two.
@pytest.mark.parametrize(
  'shape, shifted, with_sum',
  [
    ((3, 40, 24), True, False),
    ((2, 24, 16), True, True),
    ((1, 96, 16384), True, False),
    ((1, 64, 16384), False, True),
  ],
)
def test_forward_and_backward_drop_what_the_plain_one_drops_and_the_sum_s_gradient_joins(
  shape, shifted, with_sum
):
  x, y, weight, scale, shift = inputs(shape)
  keys, of_sum = row_keys.batch_keys(jax.random.key(5), shape[0]), inputs(shape, seed=1)[0]
  learned = (scale, shift) if shifted else (scale,)
  weights = (of_sum, weight) if with_sum else weight
  results = []
  for norm in (functools.partial(add_norm, hashed=True), layers.add_norm):

    @jax.jit
    def both(weights, x, y, *learned, norm=norm):
      rest = (None,) * (2 - len(learned))
      f = lambda x, y, *own: norm(x, y, *own, *rest, EPS, 0.25, keys, with_sum=with_sum)
      out, pull = jax.vjp(f, x, y, *learned)
      return jax.tree.leaves((out, pull(weights)))

    results.append(both(weights, x, y, *learned))
  for a, b in zip(*results, strict=True):
    np.testing.assert_allclose(a, b, atol=2e-5)
  if with_sum:
    np.testing.assert_allclose(results[0][0], x + layers.dropout(y, 0.25, keys), atol=1e-6)
  else:
    assert not np.allclose(results[0][0], add_norm(x, y, scale, shift, EPS), atol=1e-2)


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
