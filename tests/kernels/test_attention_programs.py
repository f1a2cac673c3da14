import functools

import jax
import jax.numpy as jnp
import pytest

from bertzoo_jax.common import row_keys
from bertzoo_jax.kernels import attention as fused
from bertzoo_jax.model import attention as plain
from tests.kernels import attended
from tests.preflight.tpu import topologies


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
  qkv, _, visible, relative, _ = attended.case('places')
  attend = functools.partial(fused.attend, visible=visible, relative=relative)
  assert '_at128' in attended.names_of(jax.make_jaxpr(attend)(*qkv).jaxpr)[0], 'number of places'


def _name(terms, window, ordered, rate, hashed, dtype, keys):
  """The name of the forward kernel."""
  qkv, _, query_packs, key_packs = attended.inputs(1, 128, 2, 16, keys)
  order = (query_packs, key_packs) if ordered else (None, None)
  visible = plain.Visibility(query_packs, key_packs, window, *order, first_query=keys - 128)
  keys_B2 = row_keys.batch_keys(jax.random.key(0), 1)
  relative = attended.tables(128, keys, 2, 16, terms, batch=1) if terms else None
  if 'segments' in terms:
    same = plain.SameSegment(jnp.zeros((1, 128, 2)), query_packs, key_packs)
    relative = relative._replace(same_segment=same)
  attend = lambda *qkv: fused.attend(*qkv, visible, rate, keys_B2, relative, hashed=hashed)
  return attended.names_of(jax.make_jaxpr(attend)(*(x.astype(dtype) for x in qkv)).jaxpr)[0]


TWO = 'c2p', 'p2c'
# name: (queries, keys, heads, relative terms, window, ordered, dropout rate, dtype)
COMPILED = {
  'plain': (512, 512, 4, (), None, False, 0.1, jnp.bfloat16),
  'plain without dropout': (128, 128, 4, (), None, False, 0.0, jnp.bfloat16),
  'plain in float32': (128, 128, 2, (), None, False, 0.1, jnp.float32),
  'window and order in blocks': (1024, 1024, 2, (), (64, 64), True, 0.1, jnp.bfloat16),
  'tiles': (1024, 1024, 4, (), None, True, 0.1, jnp.bfloat16),
  'tiles, 8,192 tokens': (8192, 8192, 4, (), None, False, 0.0, jnp.bfloat16),
  'tiles in float32': (1024, 1024, 4, (), None, False, 0.1, jnp.float32),
  'window, 8,192 tokens': (8192, 8192, 4, (), (64, 64), False, 0.0, jnp.bfloat16),
  'window of 100': (1024, 1024, 4, (), (100, 100), False, 0.1, jnp.bfloat16),
  'window': (128, 128, 2, (), (64, 64), False, 0.0, jnp.bfloat16),
  'two terms': (512, 512, 1, ('c2p', 'p2c'), None, False, 0.0, jnp.bfloat16),
  'two terms and dropout': (128, 128, 2, ('c2p', 'p2c'), None, False, 0.1, jnp.bfloat16),
  'two terms in blocks': (1024, 1024, 1, ('c2p', 'p2c'), None, False, 0.0, jnp.bfloat16),
  'two terms, dropout in blocks': (1024, 1024, 1, TWO, None, False, 0.1, jnp.bfloat16),
  'two terms, 2,048 tokens': (2048, 2048, 1, ('c2p', 'p2c'), None, False, 0.1, jnp.bfloat16),
  'bias': (128, 128, 2, ('bias',), None, False, 0.1, jnp.bfloat16),
  'bias in float32': (128, 128, 2, ('bias', 'c2p'), None, False, 0.0, jnp.float32),
  'memory, order and a term': (128, 640, 1, ('c2p',), None, True, 0.1, jnp.bfloat16),
  'predictions': ((20, 128), 128, 2, ('c2p', 'p2c'), None, False, 0.1, jnp.bfloat16),
  'two streams, queries': ((20, 128), 256, 2, attended.STREAMS, None, True, 0.1, jnp.bfloat16),
  'two streams, content': (128, 256, 2, attended.STREAMS, None, True, 0.1, jnp.bfloat16),
}
TOPOLOGIES = {'v4': 'v4:2x2x1', 'v5e': 'v5e:2x2', 'v5p': 'v5p:2x2x1', 'v6e': 'v6e:2x2'}
ON_V5P = (
  'two terms and dropout',
  'two terms, dropout in blocks',
  'plain without dropout',
  'predictions',
  'two streams, queries',
  'two streams, content',
)
# Each part of a kernel is compiled once; v4 alone moves sublanes without indices, the others differ
# in the size of their memory. The rest is slow.
QUICK = (
  ('two terms in blocks', 'v4'),
  ('two streams, queries', 'v4'),
  ('window and order in blocks', 'v5e'),
  ('tiles', 'v5e'),
  ('window of 100', 'v5e'),
  ('two terms and dropout', 'v5e'),
  ('bias in float32', 'v5e'),
  ('memory, order and a term', 'v5e'),
  ('predictions', 'v5e'),
  ('two streams, content', 'v5e'),
  ('plain', 'v6e'),
)


@topologies.needs_libtpu
@pytest.mark.parametrize(
  'name,chip',
  [
    pytest.param(n, c, marks=[pytest.mark.slow] * ((n, c) not in QUICK))
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
  described = jax.eval_shape(functools.partial(attended.tables, length, keys, heads, width, terms))
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
