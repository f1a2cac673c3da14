"""The same run on any mesh: losses, parts on each device, and checkpoints that move between meshes,
with dropout; and where parameters and rows go.
"""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_networks as small
import toys
from jax.interpreters import partial_eval as pe
from jax.sharding import PartitionSpec as P

from bertzoo_jax import kernels
from bertzoo_jax import objectives
from bertzoo_jax import parts
from bertzoo_jax.common import errors
from bertzoo_jax.model import attention
from bertzoo_jax.preflight.tpu import hlo
from bertzoo_jax.runs import checkpoint
from bertzoo_jax.training import per_device
from bertzoo_jax.training import phase_run as phase_runs
from bertzoo_jax.training import sharding
from tests.found import call_part

ROWS, STEPS, SAVED, VOCAB = 16, 5, 3, 104
# 15 rows of the relative table are used: as in published sizes, no mesh divides them
DISENTANGLED = parts.disentangled(
  **dict(num_layers=2, hidden_size=32, num_heads=2, intermediate_size=32),
  **dict(max_positions=16, max_distance=16, buckets=8),
)
# name: (sections of the encoder and of the objective), with all dropouts
NETWORKS = {
  'bert': ({'dropout': 0.1, 'attention_dropout': 0.1}, parts.mlm_pair(pair_weight=1.0)),
  # two networks
  'v3': (DISENTANGLED, parts.replaced_token(width=1.0, depth=0.5, head='token_and_row')),
}
FUSED = kernels.fused(hashed=True, interpret=True, gather=False)


def phase_run(mesh, rows=ROWS, accumulation=1, chosen=kernels.XLA, network='bert'):
  section, own = NETWORKS[network]
  encoder = small.encoder(**section, vocab_size=VOCAB)
  assert encoder.dropout == encoder.attention_dropout == 0.1
  fields = {k: v for k, v in own.items() if k != 'name'}
  make = functools.partial(call_part, objectives, own.name, **fields)
  sizes = dict(rows=rows, length=16, accumulation=accumulation)
  placed = sharding.mesh(mesh, jax.devices()[: math.prod(mesh)])
  return toys.of_an_encoder(make, encoder, placed, chosen, **sizes)


@pytest.fixture(scope='module')
def train():
  """(mesh, steps, state) → (state, losses); compiles once for each mesh."""
  known = {}

  def run(mesh, steps, state=None):
    if mesh not in known:
      known[mesh] = (made := phase_run(mesh)), phase_runs.train_step(made)
    return toys.run(known[mesh][0], steps, state, known[mesh][1])

  return run


@pytest.fixture(scope='module')
def saved(tmp_path_factory, train):
  """Workdir with the checkpoint of step SAVED on a mesh that splits parameters, that state, and all
  losses of the run.
  """
  workdir = tmp_path_factory.mktemp('run')
  state, before = train((1, 8, 1), SAVED)
  checkpoints = checkpoint.Checkpoints(workdir, keep=1, keep_every=0)
  checkpoints.save(state)
  checkpoints.close()
  at_save = toys.flat(state)
  _, after = train((1, 8, 1), STEPS - SAVED, state)
  return workdir, at_save, before + after


@pytest.mark.parametrize('mesh', [(8, 1, 1), (2, 2, 2)])
def test_losses_are_the_same_on_any_mesh(saved, train, mesh):
  _, losses = train(mesh, STEPS)
  np.testing.assert_allclose(losses, saved[2], rtol=1e-5)
  assert len(set(losses)) == STEPS


@pytest.mark.parametrize('mesh, chosen', [((2, 4, 1), kernels.XLA), ((4, 1, 2), FUSED)])
def test_losses_are_the_same_in_any_number_of_microbatches_with_any_kernels(saved, mesh, chosen):
  _, losses = toys.run(phase_run(mesh, accumulation=2, chosen=chosen), STEPS)
  np.testing.assert_allclose(losses, saved[2], rtol=1e-5)


@functools.cache
def on_one_device():
  """(parameters, losses) of DeBERTaV3's two networks."""
  state, losses = toys.run(phase_run((1, 1, 1), network='v3'), STEPS)
  return toys.flat(state.params), losses


@pytest.mark.slow
@pytest.mark.parametrize(
  'mesh, accumulation, chosen',
  [
    ((1, 4, 1), 2, kernels.XLA),
    # heads along tensor: more than there are, a number that does not divide them, as many
    ((1, 2, 4), 1, kernels.XLA),
    ((1, 1, 3), 1, FUSED),
    ((2, 1, 2), 2, FUSED),
  ],
)
def test_losses_and_weights_of_two_networks_are_the_same(mesh, accumulation, chosen):
  state, losses = toys.run(phase_run(mesh, ROWS, accumulation, chosen, 'v3'), STEPS)
  params, wanted = on_one_device()
  np.testing.assert_allclose(losses, wanted, rtol=1e-5)
  assert len(set(losses)) == STEPS
  for path, x in toys.flat(state.params).items():
    # A bias of all keys moves no softmax: its gradient is what rounding leaves, and Adam follows.
    if not path.endswith('key/bias'):
      np.testing.assert_allclose(x, params[path], atol=2e-4, err_msg=path)


@pytest.mark.parametrize('mesh', [(8, 1, 1), (2, 2, 2)])
def test_a_checkpoint_of_one_mesh_goes_on_on_another(saved, train, mesh):
  workdir, before, losses = saved
  checkpoints = checkpoint.Checkpoints(workdir, keep=1, keep_every=0)
  state = checkpoints.restore(checkpoints.newest(), phase_run(mesh).target[0])
  checkpoints.close()
  got = toys.flat(state)
  assert got.keys() == before.keys()
  for path, x in got.items():
    np.testing.assert_array_equal(x, before[path], err_msg=path, strict=True)
  words = state.params['encoder']['embeddings']['word']['embedding']
  assert words.sharding.mesh.shape['data'] == mesh[0]
  _, ours = train(mesh, STEPS - SAVED, state)
  np.testing.assert_allclose(ours, losses[SAVED:], rtol=1e-5)


@pytest.mark.parametrize('mesh,share', [((2, 2, 2), 1 / 4), ((1, 8, 1), 1 / 8)])
def test_parameters_and_moments_are_split_also_after_a_step(train, mesh, share):
  state, _ = train(mesh, 1)
  run = phase_run(mesh)
  assert not run.target[1]
  placed = sharding.to_devices(small.batch(rows=ROWS), run.mesh, ROWS)
  each = {s.data.shape[0] for s in placed['input_ids'].addressable_shards}
  assert each == {ROWS // (mesh[0] * mesh[1])}
  for leaves in map(jax.tree.leaves, (state.params, state.opt_state)):
    shards, whole = [s for x in leaves for s in x.addressable_shards], sum(x.nbytes for x in leaves)
    for device in jax.devices():
      held = sum(s.data.nbytes for s in shards if s.device == device)
      # the rest are biases and norms, and heads along tensor
      assert share <= held / whole < share + 0.05


def compiled(split):
  """(state before, text of the compiled step)"""
  state, placed = split.target[0], sharding.batch_sharding(split.mesh)
  batch = {k: jax.ShapeDtypeStruct(*v, sharding=placed) for k, v in split.data.features.items()}
  return state, phase_runs.train_step(split).lower(state, batch).compile().as_text()


def test_of_a_gradient_whose_parameter_is_split_each_device_gets_its_part_alone():
  state, text = compiled(phase_run((2, 4, 1)))
  found = hlo.read(text).collectives
  moved = lambda opcode: sum(
    c.bytes * c.times for c in found if c.opcode == opcode and '/Block/' in c.source
  )
  layers = jax.tree_util.tree_leaves_with_path(state.params['encoder']['layers'])
  whole = sum(4 * x.size for path, x in layers if path[-1].key == 'kernel')
  assert moved('reduce-scatter') == whole
  assert whole / 4 < moved('all-reduce') < 0.3 * whole, 'over data the parts, and biases'


def test_gradients_of_microbatches_stay_where_their_parameters_are():
  state, text = compiled(phase_run((1, 8, 1), accumulation=2))
  parameters = sum('fsdp' in x.sharding.spec for x in jax.tree.leaves(state.params))
  # Forward, backward, and one for a table that is also the decoder; gradients that are pinned
  # nowhere are gathered twice as often.
  assert parameters <= len(re.findall(r'= f32\S+ all-gather\(', text)) <= 3 * parameters


# --- where parameters and rows go, and fused kernels on a mesh ---


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
