"""The fused attention against the plain one. TPU kernels are interpreted here, and compiled for
TPUs where libtpu is installed.
"""

import functools
import importlib.util
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertzoo_jax.common import row_keys
from bertzoo_jax.kernels import attention as fused
from bertzoo_jax.model import attention as plain

fused_attend = functools.partial(fused.attend, interpret=True)


def inputs(batch, length, heads, width, seed=0, dtype=jnp.float32):
  """q, k, v, a weight for the output, and rows of two packs with padding behind."""
  draw = np.random.default_rng(seed)
  arrays = [jnp.asarray(draw.normal(size=(batch, length, heads, width)), dtype) for _ in range(4)]
  ends = draw.integers(length // 2, length + 1, batch)[:, None]
  place = np.arange(length)[None]
  return arrays, jnp.asarray(np.where(place < ends, 1 + (place > length // 3), 0), jnp.int32)


def value_and_gradients(attend, arrays, ids, *rest):
  *qkv, weight = arrays
  out, pull = jax.vjp(lambda q, k, v: attend(q, k, v, ids, *rest), *qkv)
  return [out, *pull(weight)]


# Heads of 64 two by two and four by four, heads that do not fill lanes, blocks of queries of which
# the last is filled up.
@pytest.mark.parametrize(
  'batch,length,heads,width',
  [(3, 40, 4, 64), (2, 128, 2, 64), (2, 33, 3, 16), (1, 1500, 1, 64), (2, 17, 12, 64)],
)
def test_it_equals_plain_attention_in_value_and_gradient(batch, length, heads, width):
  arrays, ids = inputs(batch, length, heads, width)
  for ours, theirs in zip(
    value_and_gradients(fused_attend, arrays, ids), value_and_gradients(plain.attend, arrays, ids)
  ):
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_in_bfloat16_softmax_and_sums_are_float32():
  arrays, ids = inputs(2, 256, 2, 64)
  exact = value_and_gradients(plain.attend, arrays, ids)
  ours = value_and_gradients(fused_attend, [x.astype(jnp.bfloat16) for x in arrays], ids)
  theirs = value_and_gradients(plain.attend, [x.astype(jnp.bfloat16) for x in arrays], ids)
  for a, b, x in zip(ours, theirs, exact):
    assert a.dtype == jnp.bfloat16
    ours_error, theirs_error = (
      float(jnp.linalg.norm(y.astype(jnp.float32) - x) / jnp.linalg.norm(x)) for y in (a, b)
    )
    assert ours_error < 0.01 and ours_error < 1.2 * theirs_error


@pytest.mark.parametrize('length,heads,width', [(48, 4, 64), (640, 1, 32)])
def test_forward_and_backward_drop_the_shares_that_plain_attention_drops(length, heads, width):
  arrays, ids = inputs(2, length, heads, width)
  keys = row_keys.of_batch(jax.random.key(3), 2)
  ours = value_and_gradients(functools.partial(fused_attend, hashed=True), arrays, ids, 0.3, keys)
  for a, b in zip(ours, value_and_gradients(plain.attend, arrays, ids, 0.3, keys)):
    np.testing.assert_allclose(a, b, atol=1e-5)
  assert not np.allclose(ours[0], fused_attend(*arrays[:3], ids), atol=1e-2)


def test_plain_attention_drops_shares_by_row_and_head_and_scales_the_rest():
  q, k, v = jnp.zeros((3, 2, 64, 5, 64))
  v += jnp.eye(64)[None, :, None]  # the result is the probs themselves
  probs = np.asarray(
    plain.attend(
      q, k, v, jnp.ones((2, 64), jnp.int32), 0.25, row_keys.of_batch(jax.random.key(0), 2)
    )
  )
  np.testing.assert_allclose(np.unique(probs), [0, 1 / 64 / 0.75], rtol=1e-6)
  assert abs((probs > 0).mean() - 0.75) < 4 * (0.25 * 0.75 / probs.size) ** 0.5
  masks = (probs > 0).transpose(0, 2, 1, 3).reshape(10, -1)
  assert np.abs(np.corrcoef(masks) - np.eye(10)).max() < 5 / 64


def test_the_bits_are_those_of_a_row_and_head_of_the_whole_batch():
  arrays, ids = inputs(4, 24, 4, 64)
  keys, attend = (
    row_keys.of_batch(jax.random.key(0), 4),
    functools.partial(fused_attend, hashed=True),
  )
  whole = attend(*arrays[:3], ids, 0.2, keys)
  heads = [x[2:, :, 2:] for x in arrays[:3]]
  np.testing.assert_allclose(
    attend(*heads, ids[2:], 0.2, keys[2:], first_head=2), whole[2:, :, 2:], atol=1e-6
  )
  assert not np.allclose(attend(*heads, ids[2:], 0.2, keys[2:]), whole[2:, :, 2:], atol=1e-3)
  assert not np.allclose(
    attend(*heads, ids[2:], 0.2, keys[:2], first_head=2), whole[2:, :, 2:], atol=1e-3
  )


def by_distance(q_LK, k_MK, first_query, to_RK, from_RK):
  """Content to position and position to content: a vector for each distance between query and key,
  the far ones alike (He et al. 2021 §3.1).
  """
  reach = len(to_RK) // 2
  distance_ML = first_query + jnp.arange(len(q_LK))[None] - jnp.arange(len(k_MK))[:, None]
  row_ML = jnp.clip(distance_ML, -reach, reach) + reach
  return jnp.take_along_axis(jnp.dot(to_RK, q_LK.T), row_ML, axis=0) + jnp.take_along_axis(
    jnp.dot(k_MK, from_RK.T), row_ML, axis=1
  )


# the latter in blocks of 128 queries, the last of them filled up
@pytest.mark.parametrize('length', [40, 600])
def test_a_relative_term_joins_the_scores_and_its_tables_get_their_gradient(length):
  (q, k, v, weight), ids = inputs(2, length, 2, 16)
  tables = tuple(
    jnp.asarray(np.random.default_rng(1).normal(size=(2, 2 * 30 + 1, 2, 16)), jnp.float32) * 0.1
  )
  results = []
  for attend in (fused_attend, plain.attend, explicit):
    out, pull = jax.vjp(
      lambda q, k, v, *tables, attend=attend: attend(q, k, v, ids, 0.0, None, by_distance, tables),
      q,
      k,
      v,
      *tables,
    )
    results.append((out, *pull(weight)))
  for ours in results[:2]:
    for a, b in zip(ours, results[2]):
      np.testing.assert_allclose(a, b, atol=1e-5 * max(1.0, float(jnp.abs(b).max())))


def explicit(q, k, v, ids, rate, key, relative, tables):
  """The same from each pair's distance, without `relative`."""
  to, from_ = tables
  distance = np.clip(np.arange(q.shape[1])[:, None] - np.arange(q.shape[1])[None], -30, 30) + 30
  scores = jnp.einsum('BLHK,BMHK->BHLM', q, k) * q.shape[-1] ** -0.5
  scores += jnp.einsum('BLHK,LMHK->BHLM', q, to[distance]) + jnp.einsum(
    'BMHK,LMHK->BHLM', k, from_[distance]
  )
  probs = jax.nn.softmax(jnp.where(ids[:, None, :, None] == ids[:, None, None, :], scores, -1e30))
  return jnp.einsum('BHLM,BMHK->BLHK', probs, v)


def test_scores_never_leave_the_kernel():
  (arrays, ids), keys = inputs(2, 128, 2, 64), row_keys.of_batch(jax.random.key(0), 2)
  gradient = jax.grad(
    lambda q, k, v: jnp.sum(fused_attend(q, k, v, ids, 0.1, keys, hashed=True)), argnums=(0, 1, 2)
  )
  outside = [
    v.aval for eqn in _equations(jax.make_jaxpr(gradient)(*arrays[:3]).jaxpr) for v in eqn.outvars
  ]
  assert outside and all(np.prod(a.shape) < 2 * 2 * 128 * 128 for a in outside)


def _equations(jaxpr):
  """All equations but those inside kernels."""
  for eqn in jaxpr.eqns:
    yield eqn
    if eqn.primitive.name != 'pallas_call':
      for inner in jax.core.jaxprs_in_params(eqn.params):
        yield from _equations(inner)


@pytest.mark.skipif(
  importlib.util.find_spec('libtpu') is None,
  reason='libtpu is not installed: pip install -e .[tpu]',
)
@pytest.mark.parametrize(
  'topology,options',
  [('v4:2x2x1', {'chip_config_name': 'megacore'}), ('v5e:2x2', {}), ('v6e:2x2', {})],
)
def test_it_compiles_for_tpus_with_bits_of_the_hardware(topology, options):
  os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')
  from jax.experimental import topologies

  device = topologies.get_topology_desc(platform='tpu', topology_name=topology, **options).devices[
    0
  ]
  place = jax.sharding.NamedSharding(
    jax.sharding.Mesh(np.array([device]), ('data',)), jax.sharding.PartitionSpec()
  )
  for length in (128, 512, 1024):
    x = jax.ShapeDtypeStruct((2, length, 4, 64), jnp.bfloat16, sharding=place)
    ids, keys = (
      jax.ShapeDtypeStruct((2, length), jnp.int32, sharding=place),
      jax.ShapeDtypeStruct((2, 2), jnp.uint32, sharding=place),
    )

    def both(q, k, v, ids, keys):
      return jax.vjp(lambda q, k, v: fused.attend(q, k, v, ids, 0.1, keys), q, k, v)[1](q)

    with jax.default_matmul_precision('highest'):  # as a float32 run sets it for the whole process
      program = jax.jit(both).trace(x, x, x, ids, keys).lower(lowering_platforms=('tpu',)).compile()
    assert 'attention_backward' in program.as_text()
