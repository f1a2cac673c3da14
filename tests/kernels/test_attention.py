"""Attention: plain XLA against explicit gathers, the fused kernels against plain XLA.

TPU kernels are interpreted here, and compiled for TPUs where libtpu is installed.
"""

import functools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import partial_eval as pe

from bertzoo_jax.common import row_keys
from bertzoo_jax.kernels import attention as fused
from bertzoo_jax.kernels import slides
from bertzoo_jax.model import attention as plain
from tests.preflight.tpu import topologies

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
    keep = jnp.stack(
      [jnp.stack([of_head(key, head) for head in range(q.shape[2])]) for key in keys_B2]
    )
    probs = jnp.where(keep, probs / (1 - rate), 0.0)
  return jnp.einsum('BHLM,BMHK->BLHK', probs, v)


def value_and_gradients(
  attend, qkv, weight, visible, rate=0.0, keys_B2=None, relative=None, scale=None
):
  """The output, its gradients by q, k and v, and by the numbers of the terms."""
  learned, rest = ((), None) if relative is None else relative.apart()
  terms = lambda learned: rest and rest.joined(*learned)
  f = lambda q, k, v, *learned: attend(q, k, v, visible, rate, keys_B2, terms(learned), scale)
  out, pull = jax.vjp(f, *qkv, *learned)
  return jax.tree.leaves((out, pull(weight)))


def assert_same(ours, theirs, tolerance=2e-5):
  assert len(ours) == len(theirs)
  for a, b in zip(ours, theirs):
    np.testing.assert_allclose(a, b, atol=tolerance * max(1.0, float(jnp.abs(b).max())))


def random_order(batch, length, seed=2):
  draw = np.random.default_rng(seed)
  return jnp.asarray([draw.permutation(length) for _ in range(batch)], jnp.int32)


STREAMS = ('c2p', 'query', 'half', 'segments')
# name: (queries, or queries and places, keys, heads, width, relative terms, window, order, scale)
CASES = {
  'c2p': (40, 40, 2, 16, ('c2p',), None, None, None),
  'p2c': (40, 40, 2, 16, ('p2c',), None, None, None),
  'bias': (40, 40, 2, 16, ('bias',), None, None, None),
  'both in two blocks of keys': (200, 200, 2, 64, ('c2p', 'p2c'), None, None, 0.07),
  'all in blocks of queries': (600, 600, 2, 64, ('c2p', 'p2c', 'bias'), None, None, 0.1),
  'memory': (40, 100, 2, 16, ('c2p', 'p2c', 'bias'), None, None, None),
  'memory beyond 512 keys': (150, 530, 1, 16, ('c2p', 'p2c'), None, 'causal', None),
  'memory and no terms': (40, 56, 4, 16, (), None, 'causal', None),
  'one query': (1, 9, 2, 16, ('c2p', 'p2c'), None, None, None),
  'window': (40, 40, 2, 16, (), (3, 5), None, None),
  'window in blocks of queries': (600, 600, 1, 16, (), (70, 3), None, None),
  'window of a memory': (24, 40, 2, 16, ('c2p',), (4, 0), None, None),
  'causal': (40, 40, 2, 16, (), None, 'causal', None),
  'permutation': (40, 40, 2, 16, ('c2p',), None, 'permutation', None),
  'query stream': (40, 40, 2, 16, (), None, 'query stream', None),
  'two tables': (40, 40, 2, 16, ('c2p', 'p2c', 'bias', 'half'), None, None, None),
  'segments': (40, 56, 2, 16, ('segments',), None, None, 0.5),
  'two streams, content': (40, 100, 4, 16, STREAMS, None, 'causal', None),
  'two streams, queries': ((12, 40), 100, 4, 16, STREAMS, None, 'query stream', None),
  'places': ((11, 40), 40, 2, 16, ('c2p', 'p2c'), None, None, None),
  'places in two blocks of keys': ((20, 200), 200, 2, 64, ('c2p', 'p2c'), None, None, 0.07),
  'places without terms': ((11, 40), 40, 2, 16, (), (3, 5), None, None),
  'places in blocks': (
    (150, 600),
    800,
    2,
    64,
    ('c2p', 'p2c', 'bias', 'half'),
    (300, 9),
    'causal',
    0.1,
  ),
}


def case(name):
  """What value_and_gradients takes from qkv to scale, without dropout."""
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


DROPPED = (
  'c2p',
  'both in two blocks of keys',
  'all in blocks of queries',
  'memory',
  'permutation',
  'window in blocks of queries',
  'two streams, content',
  'two streams, queries',
  'places',
  'places in two blocks of keys',
  'places in blocks',
)  # with dropout, the others without


# What another case has too, in blocks or beside other terms.
SLOW = (
  'c2p',
  'both in two blocks of keys',
  'memory',
  'memory beyond 512 keys',
  'memory and no terms',
  'one query',
  'window of a memory',
  'permutation',
  'segments',
  'places',
  'places in two blocks of keys',
  'places in blocks',
  'two streams, content',
)


@pytest.mark.parametrize(
  'name', [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in CASES]
)
def test_plain_and_fused_attention_equal_the_definition_in_value_and_gradients(name):
  qkv, weight, visible, relative, scale = case(name)
  rate = 0.3 if name in DROPPED else 0.0
  keys_B2 = row_keys.of_batch(jax.random.key(3), 2) if rate else None
  results = [
    value_and_gradients(attend, qkv, weight, visible, rate, keys_B2, relative, scale)
    for attend in (plain.attend, functools.partial(fused_attend, hashed=True), explicit)
  ]
  assert_same(results[0], results[2])
  assert_same(results[1], results[2])


# Heads of 64 two by two and four by four, heads that do not fill lanes, blocks of queries of which
# the last is filled up.
@pytest.mark.parametrize(
  'batch,length,heads,width',
  [
    pytest.param(3, 40, 4, 64, marks=pytest.mark.slow),
    (2, 128, 2, 64),
    (2, 33, 3, 16),
    (1, 1500, 1, 64),
    (2, 17, 12, 64),
  ],
)
def test_it_equals_plain_attention_without_terms(batch, length, heads, width):
  qkv, weight, packs, _ = inputs(batch, length, heads, width)
  visible = plain.same_pack(packs)
  assert_same(
    value_and_gradients(fused_attend, qkv, weight, visible),
    value_and_gradients(plain.attend, qkv, weight, visible),
  )


def test_a_query_that_sees_no_key_gets_zero_and_sends_no_gradient():
  qkv, weight, packs, _ = inputs(2, 40, 2, 16)
  packs = packs.at[:, 7].set(9)
  visible = plain.Visibility(
    packs, packs, None, jnp.zeros((2, 40), jnp.int32), (packs == 9).astype(jnp.int32)
  )
  for attend in (plain.attend, fused_attend):
    out, dq, *others = value_and_gradients(attend, qkv, weight, visible)
    assert not out[:, 7].any() and out[:, 6].all()
    assert not dq[:, 7].any() and dq[:, 6].all()
    assert_same(others, value_and_gradients(attend, qkv, weight.at[:, 7].set(0), visible)[2:])


def test_the_distances_of_a_table_are_those_of_queries_and_keys():
  assert plain.distances(2, 3).tolist() == [-2, -1, 0, 1]
  assert plain.distances(2, 5, 3).tolist() == [-1, 0, 1, 2, 3, 4]
  assert plain.distances(4, 4).dtype == np.int32


def test_a_window_reaches_as_far_as_it_says_from_a_query_s_place():
  packs = jnp.ones((1, 6), int)
  seen = plain.mask(plain.Visibility(packs[:, :2], packs, (2, 1), first_query=3))
  assert seen[0].astype(int).tolist() == [[0, 1, 1, 1, 1, 0], [0, 0, 1, 1, 1, 1]]


def test_scores_are_not_gathered():
  qkv, weight, visible, relative, scale = case('memory')
  rest = weight, visible, 0.0, None, relative, scale
  f = lambda *qkv: value_and_gradients(plain.attend, qkv, *rest)
  names = {eqn.primitive.name for eqn in _equations(jax.make_jaxpr(f)(*qkv).jaxpr)}
  assert 'dot_general' in names and not names & {'gather', 'scatter', 'scatter-add', 'scatter_add'}


@pytest.mark.parametrize('size, more', [(8, 128), (200, 128), (128, 384)])
def test_slides_shift_columns_by_their_place_and_back(size, more):
  draw = np.random.default_rng(0)
  x, y = (jnp.asarray(draw.normal(size=(n, 128)), jnp.float32) for n in (size + more, size))
  shift = None if more == 128 else jnp.asarray(draw.integers(0, more, (1, 128)), jnp.int32)
  row, column = np.indices((size, 128))
  place = row + (127 - column if shift is None else np.asarray(shift)), column
  sheared, unsheared = x[place], jnp.zeros_like(x).at[place].set(y)
  for gather in (True, False):
    there, back = (
      jax.jit(functools.partial(f, gather=gather, shift=shift), static_argnums=1)
      for f in (slides.shear, slides.unshear)
    )
    np.testing.assert_array_equal(there(x, size), sheared)
    np.testing.assert_array_equal(back(y, more), unsheared)


def test_picked_columns_are_those_that_a_shift_of_all_places_gives():
  draw = np.random.default_rng(0)
  x = jnp.asarray(draw.normal(size=(128, 384)), jnp.float32)
  place = jnp.asarray(draw.integers(0, 256, (1, 256)), jnp.int32)
  every = jax.jit(lambda x: slides.shear(x.T, 256, gather=False).T)(x)
  np.testing.assert_array_equal(jax.jit(slides.pick)(x, place), every[:, place[0]])


def test_kernels_that_move_sublanes_by_indices_equal_those_that_do_not():
  qkv, weight, visible, relative, scale = case('memory')
  both = [
    value_and_gradients(
      functools.partial(fused_attend, gather=gather),
      qkv,
      weight,
      visible,
      0.0,
      None,
      relative,
      scale,
    )
    for gather in (True, False)
  ]
  for a, b in zip(*both):
    np.testing.assert_array_equal(a, b)


def test_in_bfloat16_softmax_and_sums_are_float32():
  low = lambda tree: jax.tree.map(lambda x: x.astype(jnp.bfloat16), tree)
  for terms in ((), ('c2p', 'p2c')):
    qkv, weight, packs, _ = inputs(2, 256, 2, 64)
    visible, relative = plain.same_pack(packs), tables(256, 256, 2, 64, terms) if terms else None
    exact = value_and_gradients(plain.attend, qkv, weight, visible, relative=relative)
    ours, theirs = (
      value_and_gradients(attend, low(qkv), low(weight), visible, relative=relative)
      for attend in (fused_attend, plain.attend)
    )
    for a, b, x in zip(ours, theirs, exact):
      assert a.dtype == b.dtype
      error = lambda y, x=x: float(jnp.linalg.norm(y.astype(jnp.float32) - x) / jnp.linalg.norm(x))
      assert error(a) < 0.02 and error(a) < 1.2 * error(b)


def test_plain_attention_drops_probabilities_by_row_and_head_and_scales_the_rest():
  q, k, v = jnp.zeros((3, 2, 64, 5, 64))
  v += jnp.eye(64)[None, :, None]  # the result is the probabilities themselves
  visible = plain.same_pack(jnp.ones((2, 64), jnp.int32))
  probs = np.asarray(plain.attend(q, k, v, visible, 0.25, row_keys.of_batch(jax.random.key(0), 2)))
  np.testing.assert_allclose(np.unique(probs), [0, 1 / 64 / 0.75], rtol=1e-6)
  assert abs((probs > 0).mean() - 0.75) < 4 * (0.25 * 0.75 / probs.size) ** 0.5
  masks = (probs > 0).transpose(0, 2, 1, 3).reshape(10, -1)
  assert np.abs(np.corrcoef(masks) - np.eye(10)).max() < 5 / 64


@pytest.mark.parametrize('terms', [(), ('c2p', 'bias')])
def test_the_bits_are_those_of_a_row_and_head_of_the_whole_batch(terms):
  qkv, _, packs, _ = inputs(4, 24, 4, 64)
  relative = tables(24, 24, 4, 64, terms) if terms else None
  own = jax.tree.map(lambda table: table[:, 2:], relative)
  keys = row_keys.of_batch(jax.random.key(0), 4)
  attend = functools.partial(fused_attend, hashed=True)
  whole = attend(*qkv, plain.same_pack(packs), 0.2, keys, relative)
  heads, visible = [x[2:, :, 2:] for x in qkv], plain.same_pack(packs[2:])
  part = functools.partial(attend, *heads, visible, 0.2)
  np.testing.assert_allclose(part(keys[2:], own, first_head=2), whole[2:, :, 2:], atol=1e-5)
  assert not np.allclose(part(keys[2:], own), whole[2:, :, 2:], atol=1e-3)
  assert not np.allclose(part(keys[:2], own, first_head=2), whole[2:, :, 2:], atol=1e-3)


def test_what_is_kept_spares_the_forward_pass_and_changes_no_gradient():
  qkv, weight, visible, relative, scale = case('memory')
  args = visible, 0.0, None, relative, scale
  _, kept = fused_attend(*qkv, *args, keep=True)
  again = lambda q, k, v, *args: fused_attend(q, k, v, *args, kept=kept)
  ours, theirs = (value_and_gradients(f, qkv, weight, *args)[1:] for f in (again, fused_attend))
  assert_same(ours, theirs, 0.0)
  jaxpr = jax.make_jaxpr(lambda *qkv: value_and_gradients(again, qkv, weight, *args))(*qkv).jaxpr
  assert [name[:18] for name in _kernels(jaxpr)] == ['attention_backward']


@pytest.mark.parametrize('policy,passes', [('attended', 1), ('nothing', 2)])
def test_a_checkpoint_policy_that_saves_what_attention_mixed_spares_a_forward_pass(policy, passes):
  qkv, _, packs, _ = inputs(2, 16, 2, 16)
  saved = jax.checkpoint_policies.save_only_these_names(policy)
  loss = lambda *qkv: jnp.sum(3 * fused_attend(*qkv, plain.same_pack(packs)))
  gradient = jax.value_and_grad(jax.checkpoint(loss, policy=saved), argnums=(0, 1, 2))
  used, _ = pe.dce_jaxpr(jax.make_jaxpr(gradient)(*qkv).jaxpr, [True] * 4)
  assert sum('attention_forward' in name for name in _kernels(used)) == passes


def test_scores_never_leave_the_kernel():
  qkv, _, packs, _ = inputs(2, 128, 2, 64)
  visible, keys = plain.same_pack(packs), row_keys.of_batch(jax.random.key(0), 2)
  attend = lambda *qkv: jnp.sum(fused_attend(*qkv, visible, 0.1, keys, hashed=True))
  gradient = jax.grad(attend, argnums=(0, 1, 2))
  jaxpr = jax.make_jaxpr(gradient)(*qkv).jaxpr
  outside = [v.aval for eqn in _equations(jaxpr) for v in eqn.outvars]
  assert outside and all(np.prod(a.shape) < 2 * 2 * 128 * 128 for a in outside)


def _equations(jaxpr):
  """All equations but those inside kernels."""
  for eqn in jaxpr.eqns:
    yield eqn
    if eqn.primitive.name != 'pallas_call':
      for inner in jax.extend.core.jaxprs_in_params(eqn.params):
        yield from _equations(inner)


def _kernels(jaxpr):
  """Names of the kernels that are called."""
  return [eqn.params['name'] for eqn in _equations(jaxpr) if eqn.primitive.name == 'pallas_call']


def test_a_kernel_s_name_says_what_its_cost_depends_on():
  axes = {
    'terms': [(), ('c2p',), ('p2c',), ('bias',), ('c2p', 'query'), ('c2p', 'half'), ('segments',)],
    'window': [None, (2, 2)],
    'ordered': [False, True],
    'rate': [0.0, 0.1],
    'hashed': [False, True],
    'dtype': [jnp.float32, jnp.bfloat16],
    'keys': [128, 256],
  }
  first = {axis: values[0] for axis, values in axes.items()} | {'rate': 0.1}
  named = {_name(**first | {axis: value}) for axis, values in axes.items() for value in values}
  assert len(named) == 1 + sum(len(values) - 1 for values in axes.values()), sorted(named)
  assert 'attention_forward_k16_dropout_float32' in named


def test_the_name_of_queries_at_places_says_how_many_places_there_are():
  qkv, _, visible, relative, _ = case('places')
  attend = functools.partial(fused.attend, visible=visible, relative=relative)
  assert '_at128' in _kernels(jax.make_jaxpr(attend)(*qkv).jaxpr)[0]


def _name(terms, window, ordered, rate, hashed, dtype, keys):
  """Of the forward kernel."""
  qkv, _, query_packs, key_packs = inputs(1, 128, 2, 16, keys)
  order = (query_packs, key_packs) if ordered else (None, None)
  visible = plain.Visibility(query_packs, key_packs, window, *order, first_query=keys - 128)
  keys_B2 = row_keys.of_batch(jax.random.key(0), 1)
  relative = tables(128, keys, 2, 16, terms, batch=1) if terms else None
  if 'segments' in terms:
    same = plain.SameSegment(jnp.zeros((1, 128, 2)), query_packs, key_packs)
    relative = relative._replace(same_segment=same)
  attend = lambda *qkv: fused.attend(*qkv, visible, rate, keys_B2, relative, hashed=hashed)
  return _kernels(jax.make_jaxpr(attend)(*(x.astype(dtype) for x in qkv)).jaxpr)[0]


# name: (queries, keys, heads, relative terms, window, ordered, dropout rate, dtype)
COMPILED = {
  'plain': (512, 512, 4, (), None, False, 0.1, jnp.bfloat16),
  'plain without dropout': (128, 128, 4, (), None, False, 0.0, jnp.bfloat16),
  'plain in float32': (128, 128, 2, (), None, False, 0.1, jnp.float32),
  'window and order in blocks': (1024, 1024, 2, (), (64, 64), True, 0.1, jnp.bfloat16),
  'window': (128, 128, 2, (), (64, 64), False, 0.0, jnp.bfloat16),
  'two terms': (512, 512, 1, ('c2p', 'p2c'), None, False, 0.0, jnp.bfloat16),
  'two terms and dropout': (128, 128, 2, ('c2p', 'p2c'), None, False, 0.1, jnp.bfloat16),
  'two terms in blocks': (1024, 1024, 1, ('c2p', 'p2c'), None, False, 0.0, jnp.bfloat16),
  'two terms, dropout in blocks': (
    1024,
    1024,
    1,
    ('c2p', 'p2c'),
    None,
    False,
    0.1,
    jnp.bfloat16,
  ),
  'two terms, 2,048 tokens': (2048, 2048, 1, ('c2p', 'p2c'), None, False, 0.1, jnp.bfloat16),
  'bias': (128, 128, 2, ('bias',), None, False, 0.1, jnp.bfloat16),
  'bias in float32': (128, 128, 2, ('bias', 'c2p'), None, False, 0.0, jnp.float32),
  'memory, order and a term': (128, 640, 1, ('c2p',), None, True, 0.1, jnp.bfloat16),
  'predictions': ((20, 128), 128, 2, ('c2p', 'p2c'), None, False, 0.1, jnp.bfloat16),
  'two streams, queries': ((20, 128), 256, 2, STREAMS, None, True, 0.1, jnp.bfloat16),
  'two streams, content': (128, 256, 2, STREAMS, None, True, 0.1, jnp.bfloat16),
}
TOPOLOGIES = {'v4': 'v4:2x2x1', 'v5e': 'v5e:2x2', 'v5p': 'v5p:2x2x1', 'v6e': 'v6e:2x2'}
LONG = ('two terms in blocks', 'two terms, dropout in blocks', 'two terms, 2,048 tokens')
ON_V5P = (
  'two terms and dropout',
  'two terms, dropout in blocks',
  'plain without dropout',
  'predictions',
  'two streams, queries',
  'two streams, content',
)
# Each kernel is compiled for v5e or v4, some whose terms move sublanes for v4 too, which alone does
# so without indices; the others differ in the size of their memory. The rest is slow.
QUICK = {
  'v4': ('two terms and dropout', 'two terms in blocks', 'bias', 'two streams, queries'),
  'v5e': tuple(name for name in COMPILED if name not in ('two terms', *LONG)),
  'v5p': ('plain without dropout', 'two streams, queries'),
  'v6e': ('plain without dropout', 'two streams, queries'),
}


@topologies.needs_libtpu
@pytest.mark.parametrize(
  'name,chip',
  [
    pytest.param(n, c, marks=[pytest.mark.slow] * (n not in QUICK[c]))
    for n in COMPILED
    for c in TOPOLOGIES
    if (c != 'v5p' or n in ON_V5P) and (c == 'v5e' or n != 'two terms, 2,048 tokens')
  ],
)
def test_it_compiles_for_tpus_with_bits_of_the_hardware(name, chip):
  length, keys, heads, terms, window, ordered, rate, dtype = COMPILED[name]
  queries, length = length if isinstance(length, tuple) else (length, length)
  mesh, width = topologies.mesh_of(TOPOLOGIES[chip], 1), 64 if heads > 1 else 128
  shaped = lambda *shape, dtype=dtype: topologies.shaped(mesh, shape, dtype)
  integers = lambda *shape: shaped(*shape, dtype=jnp.int32)
  q, k = shaped(2, queries, heads, width), shaped(2, keys, heads, width)
  described = jax.eval_shape(functools.partial(tables, length, keys, heads, width, terms))
  numbers_BLH = shaped(2, queries, heads, dtype=jnp.float32) if 'segments' in terms else None
  learned, _ = described.apart()
  learned = [x if x is None else shaped(*x.shape, dtype=x.dtype) for x in learned[:-1]]

  def both(q, k, v, learned, query_ids, key_ids, half_B, keys_B2):
    order = (query_ids, key_ids) if ordered else (None, None)
    visible = plain.Visibility(query_ids, key_ids, window, *order, first_query=keys - length)
    if queries < length:
      visible = visible._replace(query_places_BL=query_ids)
    same = plain.SameSegment(None, query_ids, key_ids) if 'segments' in terms else None
    rest = plain.Relative(half_B=half_B if 'half' in terms else None, same_segment=same)

    def f(q, k, v, learned):
      relative = rest.joined(*learned) if terms else None
      return fused.attend(q, k, v, visible, rate, keys_B2, relative, gather=chip != 'v4')

    out, pull = jax.vjp(f, q, k, v, learned)
    return pull(out)

  of_batch = integers(2, queries), integers(2, keys), integers(2), shaped(2, 2, dtype=jnp.uint32)
  with jax.default_matmul_precision('highest'):  # as a float32 run sets it for the whole process
    traced = jax.jit(both).trace(q, k, k, [*learned, numbers_BLH], *of_batch)
    text = traced.lower(lowering_platforms=('tpu',)).compile().as_text()
  assert 'attention_forward' in text and 'attention_backward' in text
