"""Abstract TPU devices for tests, which need the compiler but no chip."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

from bertzoo_jax.preflight.tpu import chips
from bertzoo_jax.preflight.tpu import program
from tests.preflight.asked import needs_libtpu  # noqa: F401


@functools.cache
def mesh_of(topology, count=None):
  """A mesh with one axis `data` over the first `count` devices of a topology."""
  devices = program.devices(chips.by_topology(topology))
  return jax.sharding.Mesh(np.array(devices[:count]), ('data',))


def shaped(mesh, shape, dtype=jnp.bfloat16):
  """An array's shape, on every device."""
  return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec()))
