"""Where parameters, optimizer state and rows go on a mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from jax.sharding import PartitionSpec as P

from bertzoo_jax import errors
from bertzoo_jax.training import sharding
from bertzoo_jax.training import stage as stages


def specs(shapes, mesh):
  placed, notes = sharding.of_parameters({k: jax.ShapeDtypeStruct(s, jnp.float32) for k, s in shapes.items()}, mesh)
  return {k: s.spec for k, s in placed.items()}, notes


def test_the_mesh_fills_minus_one_and_refuses_what_does_not_fit():
  assert dict(sharding.mesh((-1, 1, 1)).shape) == {'data': 8, 'fsdp': 1, 'tensor': 1}
  assert dict(sharding.mesh((2, -1, 2)).shape) == {'data': 2, 'fsdp': 2, 'tensor': 2}
  for shape in ((3, -1, 1), (2, 2, 1), (-1, -1, 1), (0, 8, 1), (8,), (16, 1, 1), (-2, -2, 2), (-1, -2, -4)):
    with pytest.raises(errors.UserError, match='run.mesh'):
      sharding.mesh(shape)


def test_rules_name_trailing_axes_and_do_not_see_stacked_layers():
  got, notes = specs({'encoder/layers/feed_forward/in/kernel': (3, 8, 16), 'encoder/one/feed_forward/in/kernel': (8, 16)}, sharding.mesh((2, 2, 2)))
  assert got == {'encoder/layers/feed_forward/in/kernel': P(None, 'fsdp', 'tensor'), 'encoder/one/feed_forward/in/kernel': P('fsdp', 'tensor')}
  assert not notes


def test_the_first_alternative_that_divides_wins_and_what_none_divides_is_said():
  tables = {'a/embeddings/word/embedding': (16, 6), 'b/embeddings/word/embedding': (15, 6), 'c/embeddings/word/embedding': (15, 7)}
  got, notes = specs(tables, sharding.mesh((2, 2, 2)))
  assert list(got.values()) == [P('tensor', 'fsdp'), P(None, 'tensor'), P(None, None)]
  assert [(note.split()[0][0], note.split(': ')[0].split()[-1]) for note in notes] == [('b', 'fsdp'), ('c', 'tensor'), ('c', 'fsdp')]
  got, notes = specs({'a/embeddings/word/embedding': (16, 6), 'a/norm/scale': (16,)}, sharding.mesh((1, 8, 1)))
  assert list(got.values()) == [P('fsdp', None), P(None)] and not notes


def test_a_parameter_without_a_rule_is_an_error():
  with pytest.raises(errors.UserError, match='encoder/novelty'):
    specs({'encoder/novelty': (2, 2)}, sharding.mesh((4, 1, 2)))


def test_optimizer_state_lies_where_its_parameters_lie_and_batches_are_split_by_rows():
  stage = toys.stage(mesh=sharding.mesh((2, 2, 2)))
  state = stages.fresh(stage)
  params = {k: x.sharding for k, x in _leaves(state.params).items()}
  moments = _leaves(state.opt_state)
  assert params['encoder/layers/feed_forward/in/kernel'].spec == P(None, 'fsdp', 'tensor')
  for path, where in params.items():
    found = [x.sharding for k, x in moments.items() if k.endswith(path)]
    assert found == [where, where], path  # mu and nu
  placed = sharding.to_devices(toys.batch(0), stage.mesh, 8)
  assert {s.data.shape[0] for s in placed['input_ids'].addressable_shards} == {2}
  np.testing.assert_array_equal(placed['input_ids'], toys.batch(0)['input_ids'])


@pytest.mark.parametrize('size,accumulation,hosts,fits', [(16, 1, 1, True), (16, 4, 1, True), (16, 3, 1, False), (12, 2, 1, False), (20, 1, 3, False),
                                                         (16, 0, 1, False)])
def test_a_batch_that_does_not_divide_is_refused(size, accumulation, hosts, fits):
  mesh = sharding.mesh((2, 2, 2))
  if fits:
    sharding.check_batch(size, accumulation, mesh, hosts)
  else:
    with pytest.raises(errors.UserError):
      sharding.check_batch(size, accumulation, mesh, hosts)


def test_a_kernel_the_compiler_cannot_split_gets_each_devices_own_rows_and_heads():
  mesh = sharding.mesh((2, 2, 2))
  draw = np.random.default_rng(0)
  q, k, v = (jnp.asarray(draw.normal(size=(8, 5, 4, 3)), jnp.float32) for _ in range(3))
  pack_ids = jnp.ones((8, 5), jnp.int32)
  seen = []

  def kernel(q, k, v, pack_ids, dropout_rate=0.0, dropout_key=None):
    seen.append((q.shape, pack_ids.shape))
    weights = jax.nn.softmax(jnp.einsum('BLHK,BMHK->BHLM', q, k), axis=-1)
    if dropout_key is not None:
      weights *= jax.random.bernoulli(dropout_key, 1 - dropout_rate, weights.shape)
    return jnp.einsum('BHLM,BMHK->BLHK', weights, v)

  wrapped = sharding.attend(mesh, kernel, partitioned=False)
  np.testing.assert_allclose(jax.jit(wrapped)(q, k, v, pack_ids), kernel(q, k, v, pack_ids), atol=1e-6)
  assert ((2, 5, 2, 3), (2, 5)) in seen
  same = jnp.broadcast_to(q[:1, :, :1], q.shape)
  out = np.asarray(jax.jit(wrapped, static_argnums=4)(same, same, same, pack_ids, 0.5, jax.random.key(0)))
  assert not np.array_equal(out[:2], out[2:4])  # another device, other dropout
  assert sharding.attend(mesh, kernel, partitioned=True) is kernel


def _leaves(tree):
  from bertzoo_jax.training import optimizers
  return {optimizers.path_of(p): x for p, x in jax.tree_util.tree_leaves_with_path(tree)}
