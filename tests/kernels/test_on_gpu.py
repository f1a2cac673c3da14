"""What a GPU computes: attention by cuDNN and fused, and train steps. Skipped without one; by hand:

JAX_PLATFORMS=cuda,cpu python -m pytest tests/kernels/test_on_gpu.py
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_networks as small

from bertzoo_jax import kernels
from bertzoo_jax.common import row_keys
from bertzoo_jax.experiment import build
from bertzoo_jax.kernels import cudnn
from bertzoo_jax.kernels import gpu
from bertzoo_jax.model import attention
from bertzoo_jax.model import disentangled_attention
from bertzoo_jax.model import operations
from bertzoo_jax.training import sharding

pytestmark = pytest.mark.skipif(jax.default_backend() != 'gpu', reason='there is no GPU')
ROWS, LENGTH, VOCAB = 8, 256, 512


def _packs(kind):
  draw = np.random.default_rng(0)
  ends = draw.integers(LENGTH // 2, LENGTH + 1, ROWS)[:, None]
  real = np.arange(LENGTH) < ends
  second = np.arange(LENGTH) >= ends // 3
  return jnp.asarray(np.where(real, 1 + second * (kind == 'packs'), 0), jnp.int32)


@pytest.mark.parametrize('kind', ['lengths', 'packs', 'window'])
def test_cudnn_computes_what_plain_attention_computes(kind):
  draw, ids = np.random.default_rng(1), _packs(kind)
  visible = {
    'lengths': attention.batch_visibility({'segment_ids': ids}),
    'packs': attention.same_pack(ids),
    'window': attention.same_pack(ids, (32, 32)),
  }[kind]
  q, k, v, weight = (jnp.asarray(draw.normal(size=(ROWS, LENGTH, 4, 64))) for _ in range(4))
  weight *= (ids > 0)[..., None, None]

  @functools.partial(jax.jit, static_argnums=(0, 1))
  def made(attend, dtype, *qkv):
    loss = lambda *x: jnp.sum(attend(*(y.astype(dtype) for y in x), visible) * weight)
    return jax.value_and_grad(loss, (0, 1, 2))(*qkv)

  with jax.default_matmul_precision('highest'):
    exact = made(attention.attend, jnp.float32, q, k, v)
  found = made(cudnn.attend, jnp.bfloat16, q, k, v)
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(exact)):
    error = jnp.linalg.norm(a - b) / jnp.linalg.norm(b)
    assert error < 1e-2, f'{kind}: {error}'


@pytest.mark.parametrize('dtype, bound', [(jnp.float32, 1e-5), (jnp.bfloat16, 2e-2)])
@pytest.mark.parametrize('length, window', [(LENGTH, None), (1100, None), (LENGTH, (32, 32))])
def test_fused_attention_computes_what_plain_attention_computes(dtype, bound, length, window):
  draw, ids = np.random.default_rng(1), jnp.asarray(np.arange(length)[None] // 300 + [[1], [2]])
  used, row_R = np.unique(disentangled_attention.table_rows(length, 64, 32), return_inverse=True)
  q, k, v, weight = (jnp.asarray(draw.normal(size=(2, length, 4, 64))) for _ in range(4))
  tables = tuple(jnp.asarray(draw.normal(size=(len(used), 4, 64))) for _ in range(2))
  keys, visible = row_keys.batch_keys(jax.random.key(3), 2), attention.same_pack(ids, window)

  @functools.partial(jax.jit, static_argnums=(0, 1))
  def made(attend, dtype, arrays, tables):

    def loss(arrays, tables):
      relative = attention.Relative(*tables, row_R=row_R)
      arrays = [x.astype(dtype) for x in arrays]
      return jnp.sum(attend(*arrays, visible, 0.1, keys, relative, 0.07) * weight)

    return jax.value_and_grad(loss, (0, 1))(arrays, tables)

  with jax.default_matmul_precision('highest'):
    exact = made(attention.attend, jnp.float32, (q, k, v), tables)
    once, again = (made(gpu.attend, dtype, (q, k, v), tables) for _ in range(2))
  for a, b, x in zip(*map(jax.tree.leaves, (once, again, exact))):
    np.testing.assert_array_equal(a, b)
    error = jnp.linalg.norm(a - x) / jnp.linalg.norm(x)
    assert error < bound, f'{a.shape}: {error}'


def _loss(name, dtype, device):
  """Loss and gradients of a batch, with dropout where the kernels draw it."""
  sizes = dict(num_layers=2, hidden_size=128, num_heads=2, intermediate_size=256)
  rates = dict(dropout=0.1, attention_dropout=0.1 if name == 'disentangled' else 0.0)
  section = {'modern': small.MODERN, 'disentangled': {**small.SECTION, **small.DISENTANGLED}}
  section = {**section.get(name, small.SECTION), **sizes, **rates, 'max_positions': LENGTH}
  how = dict(section=section, vocab_size=VOCAB, dtype=dtype)
  encoder, ops = small.encoder(**how), operations.PLAIN
  if device.platform == 'gpu':
    needs = encoder.attention_dropout, encoder.relative_attention, encoder.dtype
    chosen = kernels.choose('auto', device, *needs)
    ops = build.operations_on(sharding.mesh((1, 1, 1), [device]), chosen, encoder.axes)
  objective = small.objective('mlm', ops, **how)
  batch = small.rows(rows=ROWS, length=LENGTH, predictions=20, vocab_size=VOCAB)
  with jax.default_device(device):
    params = objective.init(jax.random.key(0))
    of = lambda p, b: objective.loss(p, b, objective.normalizers(b), (), jax.random.key(1), True)[0]
    return jax.jit(jax.value_and_grad(of))(params, jax.tree.map(jnp.asarray, batch))


@pytest.mark.parametrize('name', ['transformer', 'disentangled', 'modern'])
def test_a_step_on_a_gpu_is_that_of_a_processor(name):
  host, gpu = jax.devices('cpu')[0], jax.devices('gpu')[0]
  with jax.default_matmul_precision('highest'):
    exact, found = (_loss(name, jnp.float32, device) for device in (host, gpu))
  np.testing.assert_allclose(found[0], exact[0], rtol=1e-5)
  flat = lambda tree: {jax.tree_util.keystr(k): x for k, x in jax.tree.leaves_with_path(tree)}
  a, b = flat(found[1]), flat(exact[1])
  for path, x in b.items():
    np.testing.assert_allclose(a[path], x, rtol=1e-3, atol=1e-5, err_msg=path)
  half = _loss(name, jnp.bfloat16, gpu)
  np.testing.assert_allclose(half[0], exact[0], rtol=5e-3)
