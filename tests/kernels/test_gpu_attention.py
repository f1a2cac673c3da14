"""Attention for GPUs without a GPU: interpreted it equals plain XLA, and it compiles for CUDA."""

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
from bertzoo_jax.model import attention as plain
from bertzoo_jax.model import disentangled_attention as disentangled
from bertzoo_jax.training import per_device
from bertzoo_jax.training import sharding
from tests.kernels import attended
from tests.kernels import gpu_programs

TWO = 'c2p', 'p2c'
# name: (queries, keys, width, terms, window, ordered, dropout rate, tile, shape of the mesh)
CASES = {
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
SLOW = 'two devices', 'c2p alone', 'window', 'tiles of more queries and terms'


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
  'name', [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in CASES]
)
def test_it_equals_plain_attention_in_value_and_gradients(name, monkeypatch):
  *sizes, rate, tile, shape = CASES[name]
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


QUICK = ('deberta_v3_512', 'k_v')  # the kernel with most to do


# conftest.py hides it
@pytest.mark.skipif(not importlib.machinery.PathFinder.find_spec('triton'), reason='no triton')
@pytest.mark.parametrize(
  'name, kernel',
  [
    pytest.param(*case, marks=[pytest.mark.slow] * (case != QUICK))
    for case in (QUICK, *((name, '') for name in gpu_programs.SHAPES))
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
