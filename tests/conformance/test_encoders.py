"""Any encoder keeps what bertzoo_jax/model/protocol.py promises of it."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_networks as small
from flax import linen as nn

from bertzoo_jax import objectives
from bertzoo_jax.common import errors
from bertzoo_jax.common import row_keys
from bertzoo_jax.hf import weights
from bertzoo_jax.model import encoder as encoders
from bertzoo_jax.model import operations
from bertzoo_jax.model import protocol
from bertzoo_jax.model import stack
from bertzoo_jax.objectives import networks
from bertzoo_jax.parts import named
from bertzoo_jax.training import cost
from bertzoo_jax.training import sharding

GIVEN = ('vocab_size', 'dtype', 'unroll', 'remat')
# Machinery that may change nothing but rounding.
SAME = (
  pytest.param({'unroll': 99}, marks=pytest.mark.slow),
  {'unroll': 2, 'remat': 'full'},
  pytest.param({'remat': 'sublayers'}, marks=pytest.mark.slow),
)

# Features of a row, of which an encoder reads some.
READ = ('input_ids', 'token_type_ids', 'segment_ids')


@pytest.fixture(autouse=True)
def usual_precision():
  """The default precision of products, by which `products` tells them apart. A run in float32 sets
  another one for the whole process.
  """
  with jax.default_matmul_precision('default'):
    yield


@pytest.fixture(scope='module')
def make(encoder_of):
  """(**changes) → the encoder. All its rates of dropout are 0.1."""
  rates = {name: 0.1 for name in encoder_of if name == 'dropout' or name.endswith('_dropout')}
  given = dict(vocab_size=small.VOCAB, dtype=jnp.float32)

  @functools.cache
  def build(**changes):
    fields = {**encoder_of, **rates, **changes}
    handed = {**given, **{k: fields.pop(k) for k in GIVEN if k in fields}}
    return named.build(fields, encoders.BY_NAME, 'encoder', **handed)

  return build


@pytest.fixture(scope='module')
def params(make):
  return small.parameters(objectives.BY_NAME['mlm'](make()))['encoder']


def shapes_of(encoder):
  return jax.eval_shape(lambda key: networks.init_encoder(encoder, key), jax.random.key(0))


@functools.partial(jax.jit, static_argnames=('encoder', 'method'))
def run(encoder, params, *args, method=None, **kwargs):
  return encoder.apply({'params': params}, *args, **kwargs, method=method)


def rows(batch, numbers=slice(None), tokens=slice(None)):
  """Rows without predictions, with a key of the dropout that is common to all of them."""
  features = {name: batch[name][numbers, tokens] for name in READ}
  return features | {'common_key': np.array([3, 4], np.uint32)}


def test_it_lacks_no_member_and_its_vectors_have_the_shape_and_the_type_that_are_promised(make):
  assert protocol.lacking(make()) == []
  batch = rows(small.batch())
  for dtype in (jnp.float32, jnp.bfloat16):
    encoder = make(dtype=dtype)
    shapes = shapes_of(encoder)
    assert {x.dtype for x in jax.tree.leaves(shapes)} == {jnp.dtype('float32')}
    word = shapes['embeddings']['word']['embedding']
    assert word.shape == (small.VOCAB, encoder.embedding_width)
    embedded = 'embed', encoder.embedding_width, jnp.float32
    for method, width, kind in ((None, encoder.hidden_size, dtype), embedded):
      out = jax.eval_shape(functools.partial(run, encoder, method=method), shapes, batch)
      assert (out.shape, out.dtype) == ((4, 24, width), kind)
    assert encoder.type_vocab_size >= 0 and encoder.padding_side in ('right', 'left')
    assert encoder.max_positions is None or encoder.max_positions >= 24


def test_padding_changes_no_token_and_is_finite(make, params):
  encoder, batch = make(), small.batch()
  batch['segment_ids'][:] = np.arange(24) < 12
  padded = run(encoder, params, rows(batch))
  other_ids = np.where(batch['segment_ids'] == 0, 77, batch['input_ids'])
  other = run(encoder, params, {**rows(batch), 'input_ids': other_ids})
  alone = run(encoder, params, rows(batch, slice(3), slice(12)))
  assert np.isfinite(padded).all()
  assert small.worst(padded[:3, :12], alone) < 1e-5
  assert small.worst(padded[:, :12], other[:, :12]) == 0


@functools.partial(jax.jit, static_argnums=0)
def differentiate(encoder, params, batch):
  """(mean cube of the vectors, gradients), with dropout."""
  keys_B2 = row_keys.batch_keys(jax.random.key(3), 4)
  loss = lambda p: jnp.mean(encoder.apply({'params': p}, batch, keys_B2) ** 3)
  return jax.value_and_grad(loss)(params)


def test_a_row_of_padding_alone_gives_finite_gradients(make, params):
  batch = rows(small.batch())
  batch['segment_ids'][1] = 0
  gradients = jax.tree.leaves(differentiate(make(), params, batch))
  assert all(np.isfinite(x).all() for x in gradients)


def test_packed_segments_equal_the_same_segments_in_rows_of_their_own(make, params):
  encoder, lengths = make(), (7, 12, 5)
  batch = rows(small.batch(rows=1))
  ends = np.cumsum([0, *lengths])
  batch['token_type_ids'] = np.arange(24, dtype=np.int32)[None] % max(1, encoder.type_vocab_size)
  packs = np.repeat([1, 2, 3], lengths)[None].astype(np.int32)
  positions = np.concatenate([np.arange(n) for n in lengths])[None].astype(np.int32)
  packed = run(encoder, params, {**batch, 'segment_ids': packs, 'position_ids': positions})[0]
  padded = rows(small.batch(rows=3, length=12))
  for i, (n, a, b) in enumerate(zip(lengths, ends, ends[1:])):
    padded['segment_ids'][i] = np.arange(12) < n
    for name in ('input_ids', 'token_type_ids'):
      padded[name][i, :n] = batch[name][0, a:b]
  alone = run(encoder, params, padded)
  assert small.worst(packed, np.concatenate([alone[i, :n] for i, n in enumerate(lengths)])) < 1e-5


def test_it_takes_the_sum_of_its_embeddings_whose_size_changes_nothing_where_a_norm_follows(
  make, params
):
  encoder, batch = make(), rows(small.batch())
  embedded_BLE = run(encoder, params, batch, method='embed')
  plain = run(encoder, params, batch)
  take = lambda x: run(encoder, params, batch, embedded_BLE=x)
  assert small.worst(take(embedded_BLE), plain) < 1e-5
  assert small.worst(take(embedded_BLE[:, ::-1]), plain) > 1e-3
  if encoder.embedding_norm:  # far above the norm's epsilon
    assert small.worst(take(300 * embedded_BLE), take(1000 * embedded_BLE)) < 1e-4
  else:
    assert small.worst(plain, take(3 * embedded_BLE)) > 1e-2


def test_no_vector_depends_on_a_later_token_where_it_can_hide_them(make, params):
  encoder = make()
  if not encoder.left_to_right:
    return
  batch = networks.from_left_to_right(rows(small.batch()))
  batch['segment_ids'] = batch['segment_ids'] * np.where(np.arange(24) < 12, 1, 2)
  batch['masked_positions'] = batch['order']
  other = {**batch, 'input_ids': batch['input_ids'].copy()}
  other['input_ids'][:, 5] = 7
  # a query stream has parameters of its own
  method = None if encoder.query_stream else 'predictions'
  found = [jax.tree.leaves(run(encoder, params, x, method=method)) for x in (batch, other)]
  for a, b in zip(*found):
    assert small.worst(a[:, :5], b[:, :5]) == 0 == small.worst(a[:, 12:], b[:, 12:])
    assert small.worst(a[:, 5:12], b[:, 5:12]) > 0


def test_a_prediction_does_not_depend_on_the_others_asked_for(make, params):
  encoder, batch = make(), small.batch()
  ask = functools.partial(run, encoder, params, method='predictions')
  found = ask(batch)
  assert found.states_BPD.shape[:2] == batch['masked_positions'].shape
  for i in (0, 3):
    alone = np.arange(5) == i
    one = {k: np.where(alone, x, 0) if k.startswith('masked_') else x for k, x in batch.items()}
    assert small.worst(ask(one).states_BPD[:, i], found.states_BPD[:, i]) < 1e-5
  assert small.worst(found.hidden_BLD, run(encoder, params, rows(batch))) < 1e-5


def test_the_vector_of_a_row_does_not_read_padding(make, params):
  encoder, batch = make(), small.batch()
  hidden_BLD = run(encoder, params, rows(batch))
  row_BD = encoder.pooled(hidden_BLD, batch)
  assert row_BD.shape == (4, encoder.hidden_size)
  padding = batch['segment_ids'][:, :, None] == 0
  other = encoder.pooled(jnp.where(padding, 1e3, hidden_BLD), batch)
  assert small.worst(row_BD, other) == 0


def test_half_of_it_can_be_built(make):
  whole = make()
  half = whole.resized(0.5, 0.5)
  assert protocol.lacking(half) == []
  assert half.hidden_size == whole.hidden_size / 2 and half.num_layers <= whole.num_layers
  assert half.vocab_size == whole.vocab_size
  size = lambda e: sum(x.size for x in jax.tree.leaves(shapes_of(e)))
  assert size(half) < size(whole)


def equations(jaxpr) -> int:
  """Operations of a program as it is written: a scan's once."""
  return len(jaxpr.eqns) + sum(equations(inner) for eqn in jaxpr.eqns for inner in cost.inner(eqn))


def test_dropout_follows_the_key_of_its_row_alone_and_is_off_without_keys(make, params):
  encoder, batch = make(), rows(small.batch())
  keys_B2 = row_keys.batch_keys(jax.random.key(1), 4)
  dropped, again = (run(encoder, params, batch, keys_B2) for _ in range(2))
  assert small.worst(dropped, again) == 0
  order = np.array([2, 0, 3, 3])
  some = run(encoder, params, rows(batch, order), keys_B2[order])
  assert small.worst(some, dropped[order]) < 1e-5
  whole = run(encoder, params, batch)
  none = {name: 0.0 for name in vars(encoder) if name in ('dropout', 'attention_dropout')}
  assert small.worst(whole, run(make(**none), params, batch)) == 0
  if any(getattr(encoder, name) for name in none):
    other = run(encoder, params, batch, row_keys.batch_keys(jax.random.key(2), 4))
    for b in range(4):
      assert small.worst(dropped[b], whole[b]) > 1e-3 < small.worst(dropped[b], other[b])


@pytest.mark.parametrize('how', SAME, ids=str)
def test_unrolling_and_recomputing_change_nothing_with_dropout_on(make, params, how):
  ours, plain = (differentiate(x, params, rows(small.batch())) for x in (make(**how), make()))
  assert small.worst(ours, plain) < 1e-5


def test_recomputation_is_seen_in_the_program(make, params):
  def count(remat):
    loss = lambda p: jnp.sum(make(remat=remat).apply({'params': p}, rows(small.batch())))
    return cost.products(jax.make_jaxpr(jax.grad(loss))(params).jaxpr)

  counts = [count(remat) for remat in stack.REMAT]
  assert counts == sorted(counts) and counts[0] < counts[-1], counts


def test_a_rule_says_how_a_mesh_may_split_each_parameter(make):
  objective = objectives.BY_NAME['mlm'](make())
  shapes = jax.eval_shape(objective.init, jax.random.key(0))
  placed, _ = sharding.parameter_shardings(shapes, sharding.mesh((2, 2, 2)), objective.all_axes)
  flat = weights.flatten(placed['encoder']).items()
  kernels = [x for path, x in flat if path.startswith('layers/') and path.endswith('kernel')]
  split = [x for x in kernels if not x.is_fully_replicated]
  assert split, 'no kernel of the layers is split by any mesh'


def test_every_parameter_gets_a_gradient(make, params):
  """Of a parameter of the layers one copy may be without use, not all."""
  objective = objectives.BY_NAME['mlm'](make())
  everything = small.parameters(objective)
  # Longer rows than a window, and all places of the table of positions that they have.
  batch = {**small.batch(rows=4, length=24), 'row_keys': np.zeros((4, 2), np.uint32)}
  loss = lambda p: objective.loss(p, batch, objective.normalizers(batch), (), None, False)[0]
  for path, x in weights.flatten(jax.jit(jax.grad(loss))(everything)).items():
    assert np.isfinite(x).all(), path
    assert np.abs(x).max() > 0, f'{path} is not used'


def test_the_program_does_not_grow_with_depth(make):
  fields = {f.name for f in dataclasses.fields(make())}
  if 'num_layers' not in fields:
    pytest.skip('num_layers is no field of this encoder')

  def size(num_layers):
    encoder = make(num_layers=num_layers)
    apply = lambda params, batch: encoder.apply({'params': params}, batch)
    return equations(jax.make_jaxpr(apply)(shapes_of(encoder), rows(small.batch())).jaxpr)

  # A multiple of any period more.
  start = 12 + make().num_layers
  assert size(start) == size(start + 12)


def test_it_uses_the_operations_that_it_is_handed(make, params):
  encoder, batch, seen = make(), rows(small.batch()), set()
  named = lambda name, f: lambda *args, **kwargs: seen.add(name) or f(*args, **kwargs)
  ops = operations.Operations(*map(named, operations.PLAIN._fields, operations.PLAIN))
  keys_B2 = row_keys.batch_keys(jax.random.key(1), 4)
  loss = lambda p: jnp.sum(encoder.apply({'params': p}, batch, keys_B2, ops))
  jax.make_jaxpr(jax.grad(loss))(params)
  assert seen >= {'constrain', 'kernel_gradients'}, seen


def test_an_encoder_whose_width_is_no_field_is_asked_for_its_own_resized():
  members = {'__annotations__': {'num_layers': int}, 'num_layers': 4}
  made = protocol.encoder(type('Own', (nn.Module,), members))()
  with pytest.raises(errors.UserError, match='Own has no field hidden_size.*write `resized`'):
    made.resized(0.5, 1.0)
