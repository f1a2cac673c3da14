"""Compares the copies of each array across devices at each save: they must be equal.

Devices along `data`, and along every axis that does not split an array, hold the same values of it.
A device that computes wrongly changes its own copy only. Nothing else would reveal it: each device
continues with its own copy.
"""

import collections
import functools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from bertzoo_jax.common import errors
from bertzoo_jax.common import trees

_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


def check(state) -> None:
  """Raises Stopped where copies of an array differ; all hosts must call it. Reads each once."""
  parts = ('params', 'opt_state', 'average')
  leaves = jax.tree_util.tree_leaves_with_path({name: getattr(state, name) for name in parts})
  mesh = leaves[0][1].sharding.mesh
  if mesh.size == 1:
    return
  paths, arrays = [trees.path_of(p) for p, _ in leaves], tuple(x for _, x in leaves)
  device_hashes = jax.device_get(_hashes(arrays, mesh, tuple(x.sharding.spec for x in arrays)))
  for path, array, array_hashes in zip(paths, arrays, device_hashes.T):
    for copies in _copies(array, mesh):
      hashes = {mesh.devices.flat[i]: int(array_hashes[i]) for i in copies}
      [(usual, _)] = collections.Counter(hashes.values()).most_common(1)
      if odd := [device for device, value in hashes.items() if value != usual]:
        names = ', '.join(f'{d} of host {d.process_index}' for d in odd)
        doubt = ' (of two copies either may be the wrong one)' if len(copies) == 2 else ''
        raise errors.Stopped(
          f'{path} on {names} differs from the {len(copies) - len(odd)} other copies{doubt}: a '
          'device computes wrongly. This state is not saved, the checkpoints before are kept. '
          'Replace the device and run the same command again.'
        )


@functools.partial(jax.jit, static_argnums=(1, 2))
def _hashes(arrays, mesh, specs):
  """uint32 [devices in the order of the mesh, arrays]. Within shard_map a device reads its own
  copy, also of a replicated array.
  """

  def hash_local(*parts):
    return jax.lax.all_gather(jnp.stack([_hash(x) for x in parts]), mesh.axis_names)

  return jax.shard_map(
    hash_local, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False
  )(*arrays)


def _hash(x):
  """uint32: the sum of the bits of all elements, each mixed with its place. Mixing is one to one,
  so the sum changes if any single element does.
  """
  x = x.astype(jnp.uint8) if x.dtype == bool else x
  bits = jax.lax.bitcast_convert_type(x, _UNSIGNED[x.dtype.itemsize]).reshape(-1)
  place = jax.lax.iota(jnp.uint32, bits.size) * jnp.uint32(0x9E3779B1)
  mixed = (bits.astype(jnp.uint32) ^ place) * jnp.uint32(0x85EBCA77)
  return jnp.sum(mixed ^ (mixed >> 15), dtype=jnp.uint32)


def _copies(array, mesh) -> list[list[int]]:
  """Groups of devices, by their place in the mesh, that hold the same part of an array."""
  parts = array.sharding.devices_indices_map(array.shape)
  groups = collections.defaultdict(list)
  for i, device in enumerate(mesh.devices.flat):
    groups[str(parts[device])].append(i)
  return list(groups.values())
