"""The same run on any mesh: losses, what each device holds, and checkpoints that move between meshes. With dropout, from threefry keys."""

import jax
import numpy as np
import pytest
import small_networks as small
import toys

from bertzoo_jax.training import checkpoint
from bertzoo_jax.training import data
from bertzoo_jax.training import sharding
from bertzoo_jax.training import stage as stages

MESHES = ((8, 1, 1), (4, 2, 1), (2, 2, 2), (1, 8, 1))
ROWS, STEPS, SAVED, VOCAB = 16, 5, 3, 104


def stage(mesh, rows=ROWS, accumulation=1):
  """Of a Transformer with all its dropouts."""
  objective = small.objective('mlm_pair', dropout=0.1, attention_dropout=0.1, vocab_size=VOCAB)
  make = lambda step: small.batch(rows=rows, length=16, seed=step, vocab_size=VOCAB)
  features = {k: (v.shape, v.dtype) for k, v in make(0).items()}
  plain = toys.stage(objective=objective, mesh=sharding.mesh(mesh) if mesh else None, accumulation=accumulation)
  return plain._replace(data=data.PhaseData(features, lambda a, b: map(make, range(a, b)), lambda: [], None))


@pytest.fixture(scope='module')
def one_device():
  """Losses of one device."""
  return toys.run(stage(None), STEPS)[1]


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  """Workdir with the checkpoint of step SAVED on a mesh that splits parameters, that state, and the losses of the steps after."""
  workdir = tmp_path_factory.mktemp('run')
  split = stage((1, 8, 1))
  state, _ = toys.run(split, SAVED)
  checkpoints = checkpoint.Checkpoints(workdir, keep=1, keep_every=0)
  checkpoints.save(state)
  checkpoints.close()
  before = toys.flat(state)
  _, losses = toys.run(split, STEPS - SAVED, state)
  return workdir, before, losses


@pytest.mark.parametrize('mesh', MESHES)
def test_losses_are_the_same_on_any_mesh(one_device, mesh):
  _, ours = toys.run(stage(mesh), STEPS)
  np.testing.assert_allclose(ours, one_device, rtol=1e-5)
  assert len(set(ours)) == STEPS


def bytes_on(device, tree):
  return sum(s.data.nbytes for x in jax.tree.leaves(tree) for s in x.addressable_shards if s.device == device)


@pytest.mark.parametrize('mesh,accumulation,share', [((8, 1, 1), 1, 1), ((2, 2, 2), 1, 1 / 4), ((1, 8, 1), 1, 1 / 8), ((1, 8, 1), 2, 1 / 8)])
def test_parameters_and_moments_are_split_also_after_a_step(mesh, accumulation, share):
  split = stage(mesh, accumulation=accumulation)
  fresh, notes = stages.fresh(split), stages.target(split)[1]
  assert not notes
  for state in (fresh, toys.run(split, 1)[0]):
    for tree in (state.params, state.opt_state):
      whole = sum(x.nbytes for x in jax.tree.leaves(tree))
      for device in jax.devices():
        assert share <= bytes_on(device, tree) / whole < share + 0.03  # the rest are biases and norms


@pytest.mark.parametrize('mesh', [(8, 1, 1), (2, 2, 2)])
def test_a_checkpoint_of_one_mesh_goes_on_on_another(saved, mesh):
  workdir, before, losses = saved
  other = stage(mesh)
  checkpoints = checkpoint.Checkpoints(workdir, keep=1, keep_every=0)
  state = checkpoints.restore(checkpoints.newest(), stages.target(other)[0])
  checkpoints.close()
  got = toys.flat(state)
  assert got.keys() == before.keys()
  for path, x in got.items():
    assert x.dtype == before[path].dtype
    np.testing.assert_array_equal(x, before[path], err_msg=path)
  assert state.params['encoder']['embeddings']['word']['embedding'].sharding.mesh.shape['data'] == mesh[0]
  _, ours = toys.run(other, STEPS - SAVED, state)
  np.testing.assert_allclose(ours, losses, rtol=1e-5)
