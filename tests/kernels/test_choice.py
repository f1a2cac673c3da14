"""Which kernels a run gets."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertzoo_jax import kernels
from bertzoo_jax.common import errors
from bertzoo_jax.kernels import cudnn
from bertzoo_jax.model import attention
from bertzoo_jax.model import layers


def device(kind):
  platform = {'T': 'tpu', 'N': 'gpu', 'c': 'cpu'}[kind[0]]
  facts = dict(compute_capability='7.0' if 'V100' in kind else '9.0') if kind[0] == 'N' else {}
  return types.SimpleNamespace(device_kind=kind, platform=platform, **facts)


@pytest.mark.parametrize(
  'kind,dropout,chosen',
  [
    ('TPU v5 lite', 0.0, 'fused'),
    ('TPU v3', 0.1, 'xla'),
    ('TPU v2', 0.1, 'xla'),
    ('NVIDIA H200', 0.0, 'cudnn'),
    ('NVIDIA H200', 0.1, 'xla'),
    ('NVIDIA V100', 0.1, 'xla'),
    ('cpu', 0.0, 'xla'),
  ],
)
def test_auto_takes_the_fastest_kernels_of_a_device(kind, dropout, chosen):
  assert kernels.choose('auto', device(kind), dropout) is kernels.BY_NAME.get(chosen, chosen)


@pytest.mark.parametrize(
  'name,kind',
  [
    ('cudnn', 'cpu'),
    ('cudnn', 'TPU v4'),
    ('fused', 'TPU v3'),
    ('fused', 'TPU v2'),
    ('fused', 'NVIDIA V100'),
  ],
)
def test_kernels_that_a_device_does_not_have_are_refused(name, kind):
  said = f'run.kernels={name} does not exist on {kind}: take auto or xla'
  with pytest.raises(errors.UserError, match=said):
    kernels.choose(name, device(kind), 0.1)


def test_cudnn_refuses_cases_that_it_lacks_and_auto_then_takes_others():
  gpu = device('NVIDIA H200')
  wrong = {
    'dropout of attention': (0.1,),
    'relative terms': (0.0, True),
    'pads there': (0.0, False, jnp.bfloat16, 'left'),
    'float32': (0.0, False, jnp.float32),
  }
  for lacks, given in wrong.items():
    with pytest.raises(errors.UserError, match=f'run.kernels=cudnn .*{lacks}.*take auto or xla'):
      kernels.choose('cudnn', gpu, *given)
    assert kernels.choose('auto', gpu, *given) is kernels.XLA
    assert kernels.choose('fused', gpu, *given) is kernels.FUSED_ON_GPUS
  assert kernels.choose('cudnn', gpu, 0.0, False, jnp.float16) is kernels.BY_NAME['cudnn']
  q, visible = jnp.ones((1, 4, 1, 2)), attention.same_pack(jnp.ones((1, 4), jnp.int32))
  with pytest.raises(errors.UserError, match='float32'):
    cudnn.attend(q, q, q, visible, implementation='xla')


@pytest.mark.parametrize('name', ['auto', 'fused'])
def test_on_tpu_v4_sublanes_do_not_move_by_indices(name):
  chosen = kernels.choose(name, device('TPU v4'), 0.1)
  assert not chosen.attend.keywords['gather'] and not chosen.attend.keywords['interpret']
  assert kernels.BY_NAME['fused'].attend.keywords['gather']


def test_fused_kernels_are_interpreted_where_there_is_no_tpu():
  rows, ids = jnp.ones((1, 4, 1, 2)), jnp.ones((1, 4), jnp.int32)
  attend = kernels.choose('fused', device('cpu'), 0.1).attend
  np.testing.assert_allclose(attend(rows, rows, rows, attention.same_pack(ids)), rows, atol=1e-6)


def test_cudnn_s_call_hides_what_ours_hides():
  draw = np.random.default_rng(0)
  q, k, v = (jnp.asarray(draw.normal(size=(2, n, 2, 16)), jnp.bfloat16) for n in (6, 8, 8))
  ids = jnp.asarray([[1, 1, 1, 2, 2, 2, 0, 0], [1] * 8], jnp.int32)
  order = jnp.asarray([draw.permutation(8) for _ in range(2)])
  for visible in (
    attention.Visibility(ids[:, 2:], ids, (2, 1), first_query=2),
    attention.Visibility(ids[:, 2:], ids, None, order[:, 2:], order, 2),
    attention.Visibility(ids[:, :6], 1 + ids),
  ):
    # The same call without a GPU.
    ours, theirs = (
      jax.jit(functools.partial(attend, visible=visible, scale=0.3))(q, k, v).astype(jnp.float32)
      for attend in (functools.partial(cudnn.attend, implementation='xla'), attention.attend)
    )
    np.testing.assert_allclose(ours, theirs, atol=0.02)


def test_cudnn_is_told_the_lengths_of_rows_that_are_one_pack(monkeypatch):
  draw = np.random.default_rng(0)
  q, k, v = (jnp.asarray(draw.normal(size=(3, 8, 2, 16)), jnp.bfloat16) for _ in range(3))
  ids = jnp.asarray([[1, 1, 1, 0, 0, 0, 0, 0], [1] * 8, [0] * 8], jnp.int32)
  given, told, real = [], [], jax.nn.dot_product_attention

  def recorded(*arguments, implementation, **named):
    given.append(sorted({name for name, x in named.items() if x is not None} - {'scale'}))
    told.extend(named[name].tolist() for name in given[-1] if 'lengths' in name)
    return real(*arguments, **named, implementation='xla')

  monkeypatch.setattr(jax.nn, 'dot_product_attention', recorded)
  packs = jnp.asarray([[1, 1, 1, 2, 2, 2, 0, 0]] * 3, jnp.int32)
  for visible in (attention.batch_visibility({'segment_ids': ids}), attention.same_pack(packs)):
    ours, theirs = (
      f(q, k, v, visible).astype(jnp.float32) for f in (cudnn.attend, attention.attend)
    )
    read = np.asarray(visible.key_packs_BM > 0)
    np.testing.assert_allclose(ours[read], theirs[read], atol=0.02)
    assert np.isfinite(ours).all()
  assert given == [['key_value_seq_lengths', 'query_seq_lengths'], ['mask']]
  assert told == [[3, 8, 1]] * 2, 'a row of padding has a length, too'


@pytest.mark.parametrize(
  'batch',
  [
    {'position_ids': None},
    {'order': jnp.zeros((1, 8), jnp.int32)},
  ],
)
def test_cudnn_is_told_no_lengths_where_they_say_too_little(batch):
  ids = jnp.asarray([[1, 1, 1, 2, 2, 2, 2, 0]], jnp.int32)
  visible = attention.batch_visibility({'segment_ids': ids, **batch})
  assert not attention.by_lengths(visible)
  whole = attention.batch_visibility({'segment_ids': ids})
  assert attention.by_lengths(whole)
  for changed in (
    whole._replace(window=(1, 1)),
    attention.asked(whole, jnp.zeros((1, 2), jnp.int32)),
    whole._replace(key_packs_BM=ids + 1),
  ):
    assert not attention.by_lengths(changed)


@pytest.mark.parametrize('window, keys', [((64, 32), 224), ((0, 6), 134)])
def test_cudnn_computes_a_window_in_blocks_of_queries(monkeypatch, window, keys):
  draw, shapes, real = np.random.default_rng(0), [], jax.nn.dot_product_attention

  def recorded(q, k, v, *, implementation, **named):
    shapes.append((q.shape[:2], k.shape[:2]))
    return real(q, k, v, **named, implementation='xla')

  monkeypatch.setattr(jax.nn, 'dot_product_attention', recorded)
  q, k, v = (jnp.asarray(draw.normal(size=(2, 512, 2, 8)), jnp.bfloat16) for _ in range(3))
  ids = jnp.asarray(np.sort(draw.integers(0, 4, (2, 512)), axis=1)[:, ::-1], jnp.int32)
  visible = attention.same_pack(ids, window)

  def made(attend):
    loss = lambda *of: jnp.sum(jnp.sin(attend(*of, visible)).astype(jnp.float32))
    both = lambda *of: (attend(*of, visible), *jax.grad(loss, (0, 1, 2))(*of))
    return [x.astype(jnp.float32) for x in jax.jit(both)(q, k, v)]

  for ours, theirs in zip(made(cudnn.attend), made(attention.attend)):
    np.testing.assert_allclose(ours, theirs, atol=0.03)
  assert set(shapes) == {((8, 128), (8, keys))}
  for other, length, why in (
    (attention.same_pack(ids[:, :500], window), 500, 'no whole number of blocks'),
    (visible._replace(window=(window[0] + 1, window[1])), 512, 'an odd number of keys'),
    (visible._replace(window=(256, 256)), 512, 'a window of the whole row'),
    (visible._replace(query_order_BL=ids, key_order_BM=ids), 512, 'an order'),
    (visible._replace(key_packs_BM=ids + 0), 512, 'other keys'),
  ):
    cudnn.attend(q[:, :length], k[:, :length], v[:, :length], other)
    assert shapes[-1] == ((2, length), (2, length)), why


def test_the_norm_beside_cudnn_is_the_plain_one():
  draw = np.random.default_rng(0)
  x, y = (jnp.asarray(draw.normal(size=(2, 4, 8)), jnp.float32) for _ in range(2))
  scale, shift = jnp.asarray(draw.normal(size=(2, 8)), jnp.float32)
  keys, pins = jnp.asarray([[1, 2], [3, 4]], jnp.uint32), []

  def made(norm):
    loss = lambda *a: sum(jnp.sum(jnp.sin(z)) for z in norm(*a, 1e-6, 0.5, keys, with_sum=True))
    pins.append(str(jax.make_jaxpr(loss)(x, y, scale, shift)).count('layout_constraint['))
    return jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3)))(x, y, scale, shift)

  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
    *map(made, (kernels.BY_NAME['cudnn'].add_norm, layers.add_norm)),
  )
  assert pins == [4, 0], 'two arrays and two results have their order of axes'
