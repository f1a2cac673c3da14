"""Where parameters, optimizer state and rows go on a mesh."""

import jax
import jax.numpy as jnp
import pytest
import small_networks as small
from jax.interpreters import partial_eval as pe
from jax.sharding import PartitionSpec as P

from bertzoo_jax import kernels
from bertzoo_jax.common import errors
from bertzoo_jax.common import row_keys
from bertzoo_jax.model import attention
from bertzoo_jax.preflight.tpu import hlo
from bertzoo_jax.training import per_device
from bertzoo_jax.training import sharding

# Of BERT's encoder and the heads.
AXES = small.objective('mlm').all_axes


def specs(shapes, mesh):
  placed, notes = sharding.parameter_shardings(
    {k: jax.ShapeDtypeStruct(s, jnp.float32) for k, s in shapes.items()}, mesh, AXES
  )
  return {k: s.spec for k, s in placed.items()}, notes


def test_the_mesh_fills_minus_one_and_refuses_shapes_that_do_not_fit():
  assert dict(sharding.mesh((-1, 1, 1)).shape) == {'data': 8, 'fsdp': 1, 'tensor': 1}
  assert dict(sharding.mesh((2, -1, 2)).shape) == {'data': 2, 'fsdp': 2, 'tensor': 2}
  refused = [(3, -1, 1), (2, 2, 1), (-1, -1, 1), (0, 8, 1), (8,), (16, 1, 1), (-2, -2, 2)]
  for shape in (*refused, (-1, -2, -4)):
    with pytest.raises(errors.UserError, match='run.mesh'):
      sharding.mesh(shape)


def test_rules_name_trailing_axes_and_do_not_see_stacked_layers():
  stacked, one = (f'encoder/{name}/feed_forward/in/kernel' for name in ('layers', 'one'))
  got, notes = specs({stacked: (3, 8, 16), one: (8, 16)}, sharding.mesh((2, 2, 2)))
  assert got == {stacked: P(None, 'fsdp', 'tensor'), one: P('fsdp', 'tensor')} and not notes


def test_the_first_alternative_that_divides_wins_and_what_none_divides_is_said():
  table = 'embeddings/word/embedding'
  tables = {f'a/{table}': (16, 6), f'b/{table}': (15, 6), f'c/{table}': (15, 7)}
  got, notes = specs(tables, sharding.mesh((2, 2, 2)))
  assert list(got.values()) == [P('tensor', 'fsdp'), P(None, 'tensor'), P(None, None)]
  named = [(note.split()[0][0], note.split(': ')[0].split()[-1]) for note in notes]
  assert named == [('b', 'fsdp'), ('c', 'tensor'), ('c', 'fsdp')]
  got, notes = specs({f'a/{table}': (16, 6), 'a/norm/scale': (16,)}, sharding.mesh((1, 8, 1)))
  assert list(got.values()) == [P('fsdp', None), P(None)] and not notes
  heads = {'generator/layers/attention/query/kernel': (2, 8, 1, 8)}
  got, [note] = specs(heads, sharding.mesh((2, 1, 4)))
  assert list(got.values()) == [P(None, None, None, None)]
  assert note.endswith('Attention of its 1 head(s) is computed by each of them, too.')


def test_a_parameter_without_a_rule_is_an_error():
  with pytest.raises(errors.UserError, match='encoder/novelty'):
    specs({'encoder/novelty': (2, 2)}, sharding.mesh((4, 1, 2)))


def test_a_batch_that_does_not_divide_is_refused():
  mesh = sharding.mesh((2, 2, 2))
  for fits in ((16, 1, 1), (16, 4, 1)):
    sharding.check_batch(*fits[:2], mesh, fits[2])
  for size, accumulation, hosts in ((16, 3, 1), (12, 2, 1), (20, 1, 3), (16, 0, 1)):
    with pytest.raises(errors.UserError):
      sharding.check_batch(size, accumulation, mesh, hosts)


def test_gradients_are_added_up_over_devices_with_other_rows_and_over_no_others():
  mesh = sharding.mesh((2, 1, 2), jax.devices()[:4])
  attend, add_norm = per_device.on_mesh(mesh, kernels.fused(hashed=True, interpret=True))
  rows = jax.ShapeDtypeStruct((4, 8, 24), jnp.float32, sharding=sharding.batch_sharding(mesh))
  whole = jax.ShapeDtypeStruct((24,), jnp.float32, sharding=jax.NamedSharding(mesh, P()))

  keys = row_keys.batch_keys(jax.random.key(0), 4)

  def both(x, y, scale, shift, grad):
    out, pull = jax.vjp(lambda *args: add_norm(*args, 1e-12, 0.1, keys), x, y, scale, shift)
    odd = lambda x: x.reshape(4, 8, 3, 8)  # heads that tensor does not divide
    visible = attention.same_pack(jnp.ones((4, 8), jnp.int32))
    attend_all = lambda q, k, v: attend(odd(q), odd(k), odd(v), visible, 0.1, keys)
    attended, pull_too = jax.vjp(attend_all, x, x, y)
    return out, pull(grad), attended, pull_too(odd(grad))

  read = hlo.read(jax.jit(both).lower(rows, rows, whole, whole, rows).compile().as_text())
  assert read.collectives and all(
    (c.opcode, c.group) == ('all-reduce', 2) and c.bytes <= 2 * 24 * 4 for c in read.collectives
  ), read.collectives


@pytest.mark.parametrize('length', [8, 520])
def test_on_a_mesh_the_backward_pass_of_attention_does_not_compute_the_forward_pass_again(length):
  mesh = sharding.mesh((2, 1, 2), jax.devices()[:4])
  attend, _ = per_device.on_mesh(mesh, kernels.fused(hashed=True, interpret=True))
  x, packs = jnp.ones((2, length, 2, 4)), jnp.ones((2, length), jnp.int32)
  visible = attention.same_pack(packs)
  policies = {'attended': 1, 'nothing': 2}  # what a policy of jax.checkpoint saves: forward passes
  for saved, passes in policies.items():
    policy = jax.checkpoint_policies.save_only_these_names(saved)
    loss = jax.checkpoint(lambda *qkv: jnp.sum(3 * attend(*qkv, visible)), policy=policy)
    gradient = jax.value_and_grad(loss, argnums=(0, 1, 2))
    text = str(pe.dce_jaxpr(jax.make_jaxpr(gradient)(x, x, x).jaxpr, [True] * 4)[0])
    assert text.count('name=attention_forward') == passes, saved
    assert text.count('name=attention_backward') == 1


def test_kernels_that_the_compiler_splits_are_handed_on():
  assert per_device.on_mesh(sharding.mesh((2, 1, 4)), kernels.XLA) == kernels.XLA[:2]
