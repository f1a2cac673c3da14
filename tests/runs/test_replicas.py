import jax
import numpy as np
import pytest
import toys

from bertzoo_jax.common import errors
from bertzoo_jax.common import trees
from bertzoo_jax.runs import replicas
from bertzoo_jax.training import phase_run as phase_runs
from bertzoo_jax.training import sharding
from tests.refused import refused


def perturbed(state, path, device, element=0):
  """The state with one bit flipped in one device's copy of an array."""

  def one(key_path, x):
    if trees.path_of(key_path) != path:
      return x
    copies = {shard.device: np.array(shard.data) for shard in x.addressable_shards}
    copies[device].view(np.uint32).reshape(-1)[element] ^= 1
    arrays = [jax.device_put(copy, where) for where, copy in copies.items()]
    return jax.make_array_from_single_device_arrays(x.shape, x.sharding, arrays)

  return jax.tree_util.tree_map_with_path(one, state)


@pytest.fixture(scope='module')
def states():
  shapes = (8, 1, 1), (2, 2, 2), (1, 4, 2)
  meshes = {shape: sharding.mesh(shape, jax.devices()) for shape in shapes}
  return {shape: phase_runs.fresh(toys.phase_run(mesh=mesh)) for shape, mesh in meshes.items()}


def test_one_bit_in_one_copy_names_the_parameter_and_the_device(states):
  for shape, path, device, element in (
    ((8, 1, 1), 'encoder/embeddings/word/embedding', 5, 77),
    ((8, 1, 1), 'encoder/layers/feed_forward/in/bias', 0, 3),
    ((2, 2, 2), 'encoder/embeddings/word/embedding', 3, 1),  # split over fsdp and tensor
    ((2, 2, 2), 'pair_head/classifier/bias', 6, 1),
    ((1, 4, 2), 'encoder/embeddings/norm/scale', 7, 0),  # whole on fsdp
  ):
    replicas.check(states[shape])
    state = perturbed(states[shape], f'params/{path}', jax.devices()[device], element)
    error = refused(f'^params/{path} on ', replicas.check, state, kind=errors.Stopped)
    named, _, rest = str(error).partition(' differs')
    assert error.code == 3  # of two copies, either may be the wrong one
    assert 'of two copies either' in rest or str(jax.devices()[device]) in named


@pytest.mark.parametrize('part', ['mu', 'average'])
def test_moments_and_averages_are_compared_too(states, part):
  state = states[8, 1, 1].replace(average=states[8, 1, 1].params)
  name = next(p for p in toys.flat(state) if p.endswith(f'{part}/pair_head/classifier/kernel'))
  state = perturbed(state, name, jax.devices()[2])
  refused(f'{part}/pair_head', replicas.check, state, kind=errors.Stopped)


def test_two_elements_that_change_places_change_the_hash():
  x = np.arange(6, dtype=np.float32)
  assert int(replicas._hash(x)) != int(replicas._hash(x[[1, 0, 2, 3, 4, 5]]))
