"""Attention to compare: inputs, cases and its definition, for the tests of the kernels."""

import functools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np

from bertzoo_jax.common import row_keys
from bertzoo_jax.kernels import attention as fused
from bertzoo_jax.model import attention as plain

# Sublanes by indices are slow to interpret; test_slides… holds the two ways together.
fused_attend = functools.partial(fused.attend, gather=False, interpret=True)


def inputs(batch, length, heads, width, keys=None, seed=0):
  """(q, k, v), a weight for the output, and packs of queries and keys: two with padding behind."""
  draw = np.random.default_rng(seed)
  keys = keys or length
  sizes = length, keys, keys, length
  drawn = (draw.normal(size=(batch, n, heads, width)) for n in sizes)
  *qkv, weight = (jnp.asarray(x, jnp.float32) for x in drawn)
  ends = draw.integers(length // 2, length + 1, batch)[:, None]
  place = np.arange(keys)[None] - (keys - length)  # memory keys belong to the first pack
  packs_BM = jnp.asarray(np.where(place < ends, 1 + (place > length // 3), 0), jnp.int32)
  return qkv, weight, packs_BM[:, keys - length :], packs_BM


def tables(length, keys, heads, width, names, batch=2, seed=1):
  """Relative terms for queries at `length` places; with 'half' two of each table."""
  draw = np.random.default_rng(seed)
  normal = lambda *shape: jnp.asarray(draw.normal(size=shape), jnp.float32)
  rows = (length + keys - 1) * (1 + ('half' in names))
  shapes = {'c2p': (rows, heads, width), 'p2c': (rows, heads, width), 'bias': (rows, heads)}
  shapes['query'] = heads, width
  drawn = [normal(*shape) if name in names else None for name, shape in shapes.items()]
  half_B = jnp.asarray(draw.permutation(batch) % 2, jnp.int32) if 'half' in names else None
  return plain.Relative(*drawn, half_B)


def explicit(q, k, v, visible, rate=0.0, keys_B2=None, relative=None, scale=None):
  """Attention by definition: each query and key gather their product with a row of a table."""
  batch, length = q.shape[:2]
  place_BL = visible.query_places_BL
  place_BL = np.broadcast_to(np.arange(length), (batch, length)) if place_BL is None else place_BL
  at = (visible.first_query + place_BL)[:, :, None]
  distance_BLM = at - np.arange(k.shape[1])
  scores = jnp.einsum('BLHK,BMHK->BHLM', q, k)
  if relative is not None:
    tables = [x for x in relative[:3] if x is not None]
    rows = len(tables[0]) // (1 if relative.half_B is None else 2) if tables else 0
    row_BLM = distance_BLM - (visible.first_query - k.shape[1] + 1)
    if relative.half_B is not None:
      row_BLM += rows * relative.half_B[:, None, None]
    asks = q if relative.c2p_query_HK is None else q + relative.c2p_query_HK
    if relative.c2p_RHK is not None:
      of_rows = jnp.einsum('BLHK,RHK->BHLR', asks, relative.c2p_RHK)
      scores += jnp.take_along_axis(of_rows, row_BLM[:, None], axis=3)
    if relative.p2c_RHK is not None:
      of_rows = jnp.einsum('BMHK,RHK->BHRM', k, relative.p2c_RHK)
      scores += jnp.take_along_axis(of_rows, row_BLM[:, None], axis=2)
    if relative.bias_RH is not None:
      scores += jnp.einsum('BLMH->BHLM', relative.bias_RH[row_BLM])
    if relative.same_segment is not None:
      numbers, own, others = relative.same_segment
      same = own[:, None, :, None] == others[:, None, None]
      scores += jnp.where(same, numbers.mT[..., None], 0.0)
  scores *= q.shape[-1] ** -0.5 if scale is None else scale
  seen = visible.query_packs_BL[:, :, None] == visible.key_packs_BM[:, None]
  if visible.window is not None:
    left, right = visible.window
    seen &= (distance_BLM <= left) & (distance_BLM >= -right)
  if visible.query_order_BL is not None:
    seen &= visible.query_order_BL[:, :, None] >= visible.key_order_BM[:, None]
  e = jnp.where(seen[:, None], jnp.exp(scores - jax.lax.stop_gradient(scores.max())), 0.0)
  probs = e / jnp.maximum(e.sum(-1, keepdims=True), 1e-30)
  if rate and keys_B2 is not None:
    size = k.shape[1], q.shape[1]
    of_head = lambda key, head: row_keys.keep(row_keys.fold_in(key, head), rate, size).T
    keep = [of_head(key, head) for key in keys_B2 for head in range(q.shape[2])]
    probs = jnp.where(jnp.stack(keep).reshape(probs.shape), probs / (1 - rate), 0.0)
  return jnp.einsum('BHLM,BMHK->BLHK', probs, v)


def value_and_gradients(
  attend, qkv, weight, visible, rate=0.0, keys_B2=None, relative=None, scale=None
):
  """The output, its gradients by q, k and v, and by the numbers of the terms."""
  learned, rest = ((), None) if relative is None else relative.apart()
  terms = lambda learned: rest and rest.joined(*learned)
  f = lambda q, k, v, *learned: attend(q, k, v, visible, rate, keys_B2, terms(learned), scale)

  @jax.jit
  def both(weight, *arguments):
    out, pull = jax.vjp(f, *arguments)
    return out, pull(weight)

  return jax.tree.leaves(both(weight, *qkv, *learned))


def assert_same(ours, theirs, tolerance=2e-5):
  assert len(ours) == len(theirs)
  for a, b in zip(ours, theirs):
    np.testing.assert_allclose(a, b, atol=tolerance * max(1.0, float(jnp.abs(b).max())))


def random_order(batch, length, seed=2):
  draw = np.random.default_rng(seed)
  return jnp.asarray([draw.permutation(length) for _ in range(batch)], jnp.int32)


STREAMS, ALL = ('c2p', 'query', 'half', 'segments'), ('c2p', 'p2c', 'bias', 'half')
# name: (queries, or queries and places, keys, heads, width, relative terms, window, order, scale)
CASES = {
  'c2p': (40, 40, 2, 16, ('c2p',), None, None, None),
  'p2c': (40, 40, 2, 16, ('p2c',), None, None, 0.3),
  'bias': (40, 40, 2, 16, ('bias',), None, None, None),
  'both in two blocks of keys': (200, 200, 2, 64, ('c2p', 'p2c'), None, None, 0.07),
  'all in blocks of queries': (600, 600, 2, 64, ('c2p', 'p2c', 'bias'), None, None, 0.1),
  'memory': (40, 100, 2, 16, ('c2p', 'p2c', 'bias'), None, None, None),
  'memory beyond 512 keys': (150, 530, 1, 16, ('c2p', 'p2c'), None, 'causal', None),
  'memory and no terms': (40, 56, 4, 16, (), None, 'causal', None),
  'one query': (1, 9, 2, 16, ('c2p', 'p2c'), None, None, None),
  'window': (40, 40, 2, 16, (), (3, 5), None, None),
  'window in blocks of queries': (600, 600, 1, 16, (), (70, 3), None, None),
  'window of one': (450, 450, 2, 64, (), (1, 1), None, None),
  'window of 100, heads that fill up': (520, 520, 3, 48, (), (100, 100), None, 0.1),
  'window to the left': (700, 700, 1, 128, (), (64, 0), 'causal', None),
  'wide window': (600, 600, 2, 16, (), (300, 280), None, None),
  'heads that do not fill lanes': (33, 33, 3, 16, (), None, None, None),
  'heads of 64 four by four': (17, 17, 12, 64, (), None, None, None),
  'blocks of queries of which the last is filled up': (1500, 1500, 1, 64, (), None, None, None),
  'long': (1100, 1100, 4, 64, (), None, 'permutation', 0.2),
  'long, heads of three registers': (520, 520, 1, 300, (), None, None, None),
  'long and more keys': (200, 700, 2, 64, (), None, 'causal', None),
  'window of a memory': (24, 40, 2, 16, ('c2p',), (4, 0), None, None),
  'causal': (40, 40, 2, 16, (), None, 'causal', None),
  'permutation': (40, 40, 2, 16, ('c2p',), None, 'permutation', None),
  'query stream': (40, 40, 2, 16, (), None, 'query stream', 0.2),
  'two tables': (40, 40, 2, 16, ALL, None, None, None),
  'segments': (40, 56, 2, 16, ('segments',), None, None, 0.5),
  'two streams, content': (40, 100, 4, 16, STREAMS, None, 'causal', None),
  'two streams, queries': ((12, 40), 100, 4, 16, STREAMS, None, 'query stream', None),
  'places': ((11, 40), 40, 2, 16, ('c2p', 'p2c'), None, None, None),
  'places in two blocks of keys': ((20, 200), 200, 2, 64, ('c2p', 'p2c'), None, None, 0.07),
  'places without terms': ((11, 40), 40, 2, 16, (), (3, 5), None, None),
  'places in blocks': ((150, 600), 800, 2, 64, ALL, (300, 9), 'causal', 0.1),
}
# with dropout, the others without
DROPPED = (
  'c2p; memory; permutation; long; places; both in two blocks of keys; all in blocks of queries; '
  'window in blocks of queries; window of 100, heads that fill up; two streams, content; '
  'two streams, queries; places in two blocks of keys; places in blocks'
).split('; ')


def case(name):
  """Arguments of value_and_gradients from qkv to scale, without dropout."""
  length, keys, heads, width, terms, window, order, scale = CASES[name]
  queries, length = length if isinstance(length, tuple) else (None, length)
  qkv, weight, query_packs, key_packs = inputs(2, length, heads, width, keys)
  visible = plain.Visibility(query_packs, key_packs, window, first_query=keys - length)
  if order:
    order = jnp.broadcast_to(jnp.arange(length), (2, length))
    if CASES[name][6] != 'causal':
      order = random_order(2, length)
    memory = jnp.full((2, keys - length), -1)
    asks = 2 * order - (CASES[name][6] == 'query stream')
    key_order = jnp.concatenate([memory, 2 * order], axis=1)
    visible = visible._replace(query_order_BL=asks, key_order_BM=key_order)
  relative = tables(length, keys, heads, width, terms) if terms else None
  draw = np.random.default_rng(3)
  segments = jnp.asarray(draw.integers(0, 3, (2, keys)), jnp.int32)
  numbers = jnp.asarray(draw.normal(size=(2, length, heads)), jnp.float32)
  own = segments[:, keys - length :]
  if queries:
    places = jnp.asarray(draw.integers(0, length, (2, queries)), jnp.int32).at[:, -3:].set(0)
    visible, own = plain.asked(visible, places), plain.at_places(own, places)
    (q, k, v), weight, numbers = qkv, weight[:, :queries], numbers[:, :queries]
    qkv = q[:, :queries], k, v
  if 'segments' in terms:
    relative = relative._replace(same_segment=plain.SameSegment(numbers, own, segments))
  return qkv, weight, visible, relative, scale


def equations(jaxpr):
  """All equations but those inside kernels."""
  for eqn in jaxpr.eqns:
    yield eqn
    if eqn.primitive.name != 'pallas_call':
      for inner in jax.extend.core.jaxprs_in_params(eqn.params):
        yield from equations(inner)


def names_of(jaxpr):
  """Names of the kernels that are called."""
  return [eqn.params['name'] for eqn in equations(jaxpr) if eqn.primitive.name == 'pallas_call']
