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


def test_auto_takes_the_fastest_kernels_of_a_device():
  for kind, dropout, chosen in (
    ('TPU v5 lite', 0.0, 'fused'),
    ('TPU v3', 0.1, 'xla'),
    ('TPU v2', 0.1, 'xla'),
    ('NVIDIA H200', 0.0, 'cudnn'),
    ('NVIDIA H200', 0.1, 'xla'),
    ('NVIDIA V100', 0.1, 'xla'),
    ('cpu', 0.0, 'xla'),
  ):
    found = kernels.choose('auto', device(kind), dropout)
    assert found is kernels.BY_NAME.get(chosen, chosen), kind


def test_kernels_that_a_device_does_not_have_are_refused():
  cudnn, fused = ('cpu', 'TPU v4'), ('TPU v3', 'TPU v2', 'NVIDIA V100')
  for name, kind in [*(('cudnn', x) for x in cudnn), *(('fused', x) for x in fused)]:
    words = f'run.kernels={name} does not exist on {kind}: take auto or xla'
    with pytest.raises(errors.UserError, match=words):
      kernels.choose(name, device(kind), 0.1)


def test_cudnn_refuses_cases_that_it_lacks_and_auto_then_takes_others():
  gpu = device('NVIDIA H200')
  for lacks, given in (
    ('dropout of attention', (0.1,)),
    ('relative terms', (0.0, True)),
    ('pads there', (0.0, False, jnp.bfloat16, 'left')),
    ('float32', (0.0, False, jnp.float32)),
  ):
    with pytest.raises(errors.UserError, match=f'run.kernels=cudnn .*{lacks}.*take auto or xla'):
      kernels.choose('cudnn', gpu, *given)
    assert kernels.choose('auto', gpu, *given) is kernels.XLA
    assert kernels.choose('fused', gpu, *given) is kernels.FUSED_ON_GPUS
  assert kernels.choose('cudnn', gpu, 0.0, False, jnp.float16) is kernels.BY_NAME['cudnn']
  q, visible = jnp.ones((1, 4, 1, 2)), attention.same_pack(jnp.ones((1, 4), jnp.int32))
  with pytest.raises(errors.UserError, match='float32'):
    cudnn.attend(q, q, q, visible, implementation='xla')


def test_on_tpu_v4_sublanes_do_not_move_by_indices_and_without_a_tpu_kernels_are_interpreted():
  for name in ('auto', 'fused'):
    how = kernels.choose(name, device('TPU v4'), 0.1).attend.keywords
    assert not how['gather'] and not how['interpret']
  assert kernels.BY_NAME['fused'].attend.keywords['gather']
  assert kernels.choose('fused', device('cpu'), 0.1).attend.keywords['interpret']


def draws(*shapes, dtype=jnp.bfloat16):
  draw = np.random.default_rng(0)
  return [jnp.asarray(draw.normal(size=shape), dtype) for shape in shapes]


@pytest.fixture
def calls(monkeypatch):
  """The calls of cuDNN's attention, which are computed without a GPU: (q, k, named arguments)."""
  seen, real = [], jax.nn.dot_product_attention

  def recorded(q, k, v, *, implementation, **named):
    seen.append((q, k, named))
    return real(q, k, v, **named, implementation='xla')

  monkeypatch.setattr(jax.nn, 'dot_product_attention', recorded)
  return seen


def test_cudnn_s_call_hides_what_ours_hides(calls):
  q, k, v = draws((2, 6, 2, 16), (2, 8, 2, 16), (2, 8, 2, 16))
  ids = jnp.asarray([[1, 1, 1, 2, 2, 2, 0, 0], [1] * 8], jnp.int32)
  order = jnp.asarray([np.random.default_rng(n).permutation(8) for n in range(2)])
  for visible in (
    attention.Visibility(ids[:, 2:], ids, (2, 1), first_query=2),
    attention.Visibility(ids[:, 2:], ids, None, order[:, 2:], order, 2),
    attention.Visibility(ids[:, :6], 1 + ids),
  ):
    ours, theirs = (
      jax.jit(functools.partial(attend, visible=visible, scale=0.3))(q, k, v).astype(jnp.float32)
      for attend in (cudnn.attend, attention.attend)
    )
    np.testing.assert_allclose(ours, theirs, atol=0.02)


def test_cudnn_is_told_the_lengths_of_rows_that_are_one_pack(calls):
  q, k, v = draws(*[(3, 8, 2, 16)] * 3)
  ids = jnp.asarray([[1, 1, 1, 0, 0, 0, 0, 0], [1] * 8, [0] * 8], jnp.int32)
  packs = jnp.asarray([[1, 1, 1, 2, 2, 2, 0, 0]] * 3, jnp.int32)
  for visible in (attention.batch_visibility({'segment_ids': ids}), attention.same_pack(packs)):
    attends = cudnn.attend, attention.attend
    ours, theirs = (f(q, k, v, visible).astype(jnp.float32) for f in attends)
    read = np.asarray(visible.key_packs_BM > 0)
    np.testing.assert_allclose(ours[read], theirs[read], atol=0.02)
    assert np.isfinite(ours).all()
  names = 'key_value_seq_lengths', 'query_seq_lengths', 'mask'
  first, second = ({n: named[n] for n in names if named.get(n) is not None} for *_, named in calls)
  lengths = {name: x.tolist() for name, x in first.items()}
  assert lengths == dict.fromkeys(names[:2], [3, 8, 1]), 'a row of padding has a length, too'
  assert [*second] == ['mask']


def test_cudnn_is_told_no_lengths_where_they_say_too_little():
  ids = jnp.asarray([[1, 1, 1, 2, 2, 2, 2, 0]], jnp.int32)
  visible = lambda **more: attention.batch_visibility({'segment_ids': ids, **more})
  assert attention.by_lengths(whole := visible())
  for other in (
    visible(position_ids=None),
    visible(order=jnp.zeros((1, 8), jnp.int32)),
    whole._replace(window=(1, 1)),
    attention.asked(whole, jnp.zeros((1, 2), jnp.int32)),
    whole._replace(key_packs_BM=ids + 1),
  ):
    assert not attention.by_lengths(other)


@pytest.mark.parametrize('window, keys', [((64, 32), 224), ((0, 6), 134)])
def test_cudnn_computes_a_window_in_blocks_of_queries(calls, window, keys):
  q, k, v = draws(*[(2, 512, 2, 8)] * 3)
  drawn = np.random.default_rng(0).integers(0, 4, (2, 512))
  ids = jnp.asarray(np.sort(drawn, axis=1)[:, ::-1], jnp.int32)
  visible = attention.same_pack(ids, window)
  shapes = lambda: [(q.shape[:2], k.shape[:2]) for q, k, _ in calls]

  def made(attend):
    loss = lambda *of: jnp.sum(jnp.sin(attend(*of, visible)).astype(jnp.float32))
    both = lambda *of: (attend(*of, visible), *jax.grad(loss, (0, 1, 2))(*of))
    return [x.astype(jnp.float32) for x in jax.jit(both)(q, k, v)]

  for ours, theirs in zip(made(cudnn.attend), made(attention.attend)):
    np.testing.assert_allclose(ours, theirs, atol=0.03)
  assert set(shapes()) == {((8, 128), (8, keys))}
  for other, length, why in (
    (attention.same_pack(ids[:, :500], window), 500, 'no whole number of blocks'),
    (visible._replace(window=(window[0] + 1, window[1])), 512, 'an odd number of keys'),
    (visible._replace(window=(256, 256)), 512, 'a window of the whole row'),
    (visible._replace(query_order_BL=ids, key_order_BM=ids), 512, 'an order'),
    (visible._replace(key_packs_BM=ids + 0), 512, 'other keys'),
  ):
    cudnn.attend(q[:, :length], k[:, :length], v[:, :length], other)
    assert shapes()[-1] == ((2, length), (2, length)), why


def test_the_norm_beside_cudnn_is_the_plain_one():
  x, y, scale, shift = draws((2, 4, 8), (2, 4, 8), (8,), (8,), dtype=jnp.float32)
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
