import functools
import importlib.machinery
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertzoo_jax import kernels
from bertzoo_jax.common import row_keys
from bertzoo_jax.kernels import gpu
from bertzoo_jax.kernels import slides
from bertzoo_jax.model import attention as plain
from bertzoo_jax.model import disentangled_attention as disentangled
from bertzoo_jax.training import per_device
from bertzoo_jax.training import sharding
from tests.kernels import attended
from tests.kernels import gpu_programs
from tests.kernels.attended import assert_same
from tests.kernels.attended import fused_attend
from tests.kernels.attended import value_and_gradients

# The others have what one of these has, in blocks or beside other terms.
QUICK = (
  'p2c',
  'bias',
  'window',
  'window of 100, heads that fill up',
  'long, heads of three registers',
  'query stream',
  'heads that do not fill lanes',
  'heads of 64 four by four',
  'two tables',
  'places without terms',
)
ON_CUDA = ('deberta_v3_512', 'k_v')  # the kernel with most to do


@pytest.mark.parametrize(
  'name', [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in attended.CASES]
)
def test_plain_and_fused_attention_equal_the_definition_in_value_and_gradients(name):
  qkv, weight, visible, relative, scale = attended.case(name)
  rate = 0.3 if name in attended.DROPPED else 0.0
  keys_B2 = row_keys.batch_keys(jax.random.key(3), 2) if rate else None
  rest = qkv, weight, visible, rate, keys_B2, relative, scale
  exact = value_and_gradients(attended.explicit, *rest)
  for attend in (plain.attend, functools.partial(fused_attend, hashed=True)):
    assert_same(value_and_gradients(attend, *rest), exact)


def test_a_query_that_sees_no_key_gets_zero_and_sends_no_gradient():
  qkv, weight, packs, _ = attended.inputs(2, 40, 2, 16)
  packs = packs.at[:, 7].set(9)
  order = jnp.zeros((2, 40), jnp.int32), (packs == 9).astype(jnp.int32)
  visible = plain.Visibility(packs, packs, None, *order)
  for attend in (plain.attend, fused_attend):
    out, dq, *others = value_and_gradients(attend, qkv, weight, visible)
    assert not out[:, 7].any() and out[:, 6].all()
    assert not dq[:, 7].any() and dq[:, 6].all()
    assert_same(others, value_and_gradients(attend, qkv, weight.at[:, 7].set(0), visible)[2:])


def test_scores_are_not_gathered():
  qkv, weight, visible, relative, scale = attended.case('memory')
  rest = weight, visible, 0.0, None, relative, scale
  f = lambda *qkv: value_and_gradients(plain.attend, qkv, *rest)
  names = {eqn.primitive.name for eqn in attended.equations(jax.make_jaxpr(f)(*qkv).jaxpr)}
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


def test_kernels_that_move_sublanes_by_indices_equal_those_that_do_not():
  *of, relative, scale = attended.case('permutation')
  rest = *of, 0.0, None, relative, scale
  attends = (functools.partial(fused_attend, gather=gather) for gather in (True, False))
  for a, b in zip(*(value_and_gradients(attend, *rest) for attend in attends)):
    np.testing.assert_array_equal(a, b)


def test_in_bfloat16_softmax_and_sums_are_float32():
  low = lambda tree: jax.tree.map(lambda x: x.astype(jnp.bfloat16), tree)
  for terms in ((), ('c2p', 'p2c')):
    qkv, weight, packs, _ = attended.inputs(2, 256, 2, 64)
    visible = plain.same_pack(packs)
    relative = attended.tables(256, 256, 2, 64, terms) if terms else None
    exact = value_and_gradients(plain.attend, qkv, weight, visible, relative=relative)
    ours, theirs = (
      value_and_gradients(attend, low(qkv), low(weight), visible, relative=relative)
      for attend in (fused_attend, plain.attend)
    )
    for a, b, x in zip(ours, theirs, exact):
      assert a.dtype == b.dtype
      error = lambda y, x=x: float(jnp.linalg.norm(y.astype(jnp.float32) - x) / jnp.linalg.norm(x))
      assert error(a) < 0.02 and error(a) < 1.2 * error(b)


@pytest.mark.parametrize('terms', [(), ('c2p', 'bias')])
def test_the_bits_are_those_of_a_row_and_head_of_the_whole_batch(terms):
  qkv, _, packs, _ = attended.inputs(4, 24, 4, 64)
  relative = attended.tables(24, 24, 4, 64, terms) if terms else None
  own = jax.tree.map(lambda table: table[:, 2:], relative)
  keys = row_keys.batch_keys(jax.random.key(0), 4)
  attend = functools.partial(fused_attend, hashed=True)
  whole = attend(*qkv, plain.same_pack(packs), 0.2, keys, relative)
  heads, visible = [x[2:, :, 2:] for x in qkv], plain.same_pack(packs[2:])
  part = functools.partial(attend, *heads, visible, 0.2)
  np.testing.assert_allclose(part(keys[2:], own, first_head=2), whole[2:, :, 2:], atol=1e-5)
  assert not np.allclose(part(keys[2:], own), whole[2:, :, 2:], atol=1e-3)
  assert not np.allclose(part(keys[:2], own, first_head=2), whole[2:, :, 2:], atol=1e-3)


@pytest.mark.parametrize('name', ['memory', 'window of one'])
def test_saved_results_spare_the_forward_pass_and_change_no_gradient(name):
  qkv, weight, visible, relative, scale = attended.case(name)
  args = visible, 0.0, None, relative, scale
  _, kept = fused_attend(*qkv, *args, keep=True)
  again = lambda q, k, v, *args: fused_attend(q, k, v, *args, kept=kept)
  ours, theirs = (value_and_gradients(f, qkv, weight, *args)[1:] for f in (again, fused_attend))
  assert_same(ours, theirs, 0.0)
  jaxpr = jax.make_jaxpr(lambda *qkv: value_and_gradients(again, qkv, weight, *args))(*qkv).jaxpr
  assert [name[:18] for name in attended.names_of(jaxpr)] == ['attention_backward']


@pytest.mark.parametrize('length,window', [(128, None), (1024, None), (512, (64, 64))])
def test_scores_never_leave_the_kernel(length, window):
  qkv, _, packs, _ = attended.inputs(2, length, 2, 64)
  visible, keys = plain.same_pack(packs, window), row_keys.batch_keys(jax.random.key(0), 2)
  attend = lambda *qkv: jnp.sum(fused_attend(*qkv, visible, 0.1, keys, hashed=True))
  gradient = jax.grad(attend, argnums=(0, 1, 2))
  jaxpr = jax.make_jaxpr(gradient)(*qkv).jaxpr
  outside = [v.aval for eqn in attended.equations(jaxpr) for v in eqn.outvars]
  assert outside and all(np.prod(a.shape) < 2 * 2 * length * length for a in outside)


TWO = 'c2p', 'p2c'
# name: (queries, keys, width, terms, window, ordered, dropout rate, tile, shape of the mesh)
GPU_CASES = {
  # Heads of 24 fill up, and a query may see no key.
  'all, on eight devices': (37, 50, 24, TWO, (22, -1), True, 0.3, (16, 16), (2, 2, 2)),
  'tiles of more queries': (37, 37, 16, (), None, False, 0.3, (32, 16), (1, 1, 1)),
  'two devices': (50, 50, 16, ('p2c',), None, False, 0.0, (16, 16), (1, 2, 1)),
  'c2p alone': (50, 50, 16, ('c2p',), None, False, 0.0, (16, 16), (1, 1, 1)),
  'window': (70, 70, 32, (), (3, 20), False, 0.0, (16, 16), (1, 1, 1)),
  'tiles of more queries and terms': (70, 70, 16, TWO, None, False, 0.3, (32, 16), (1, 1, 1)),
  # Plain XLA computes queries at places, with the bits of the head among all.
  'places': (20, 37, 16, TWO, None, False, 0.3, (16, 16), (2, 2, 2)),
}
GPU_SLOW = 'two devices', 'c2p alone', 'window', 'tiles of more queries and terms'


def _arguments(queries, keys, width, terms, window, ordered):
  qkv, weight, query_packs, key_packs = attended.inputs(4, queries, 2, width, keys)
  visible = plain.Visibility(query_packs, key_packs, window, first_query=keys - queries)
  if ordered:
    order = attended.random_order(4, keys)
    visible = visible._replace(query_order_BL=order[:, -queries:], key_order_BM=order)
  # Buckets of one distance, of some, and the two outer ones, in tiles of their own.
  buckets = disentangled.buckets_of(plain.distances(queries, keys, keys - queries), 8, 16)
  used, row_R = np.unique(np.clip(buckets, -8, 7), return_inverse=True)
  shape, draw = (len(used), 2, width), np.random.default_rng(1)
  tables = [jnp.asarray(draw.normal(size=shape), jnp.float32) if n in terms else None for n in TWO]
  return qkv, weight, visible, plain.Relative(*tables, row_R=row_R) if terms else None


@pytest.mark.parametrize(
  'name', [pytest.param(name, marks=[pytest.mark.slow] * (name in GPU_SLOW)) for name in GPU_CASES]
)
def test_attention_for_gpus_equals_plain_attention_in_value_and_gradients(name, monkeypatch):
  *sizes, rate, tile, shape = GPU_CASES[name]
  monkeypatch.setattr(gpu, '_tile', lambda *_: tile)
  qkv, weight, visible, relative = _arguments(*sizes)
  if name == 'places':
    visible = visible._replace(query_places_BL=jnp.asarray(np.arange(80).reshape(4, 20) % 20))
  keys_B2 = row_keys.batch_keys(jax.random.key(3), 4) if rate else None
  mesh = sharding.mesh(shape, jax.devices()[: np.prod(shape)])
  interpreted = kernels.FUSED_ON_GPUS._replace(attend=functools.partial(gpu.attend, interpret=True))

  def both(attend):
    rest = visible, rate, keys_B2, relative, 0.3
    return jax.jit(lambda *x: attended.value_and_gradients(attend, x, weight, *rest))

  ours = both(per_device.on_mesh(mesh, interpreted)[0])
  attended.assert_same(ours(*qkv), both(plain.attend)(*qkv), 3e-6)
  assert (name == 'places') != bool(attended.names_of(jax.make_jaxpr(ours)(*qkv).jaxpr))


def test_nothing_of_the_size_of_the_scores_is_made():
  qkv, weight, visible, relative = _arguments(1024, 1024, 16, TWO, None, False)
  attend = functools.partial(gpu.attend, interpret=True)
  rest = visible, 0.1, row_keys.batch_keys(jax.random.key(0), 4), relative
  f = lambda *qkv: attended.value_and_gradients(attend, qkv, weight, *rest)
  equations = attended.equations(jax.make_jaxpr(f)(*qkv).jaxpr)
  sizes = [np.prod(v.aval.shape) for eqn in equations for v in eqn.outvars]
  assert sizes and max(sizes) < 4 * 2 * 1024 * 1024


# conftest.py hides it
@pytest.mark.skipif(not importlib.machinery.PathFinder.find_spec('triton'), reason='no triton')
@pytest.mark.parametrize(
  'name, kernel',
  [
    pytest.param(*case, marks=[pytest.mark.slow] * (case != ON_CUDA))
    for case in (ON_CUDA, *((name, '') for name in gpu_programs.SHAPES))
  ],
)
def test_it_compiles_for_cuda_within_the_shared_memory_of_a_card(name, kernel, tmp_path):
  # In a process of its own: triton's LLVM does not go with TensorFlow's.
  line = [sys.executable, '-m', 'tests.kernels.gpu_programs', name, kernel]
  env = gpu_programs.environment(tmp_path)
  done = subprocess.run(line, capture_output=True, text=True, env=env)
  assert done.returncode == 0, done.stderr[-2000:]
  built = json.loads(done.stdout.splitlines()[-1])
  assert len(built) == (1 if kernel else 3)
  for shared, cubin in built.values():
    assert cubin > 1000 and 0 < shared <= 227 * 1024, built
