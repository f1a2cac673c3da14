"""Whether the training state can fit in the memory of the devices, before any is allocated."""

import math
import os
import pathlib

import jax

from bertzoo_jax.common import errors
from bertzoo_jax.training import cost
from bertzoo_jax.training import phase_run as phase_runs

_CGROUP = pathlib.Path('/sys/fs/cgroup/memory.max')  # a container's limit, where there is one


def check(phase_run) -> None:
  """Raises UserError if the state of a phase alone takes more memory than a device here has."""
  target, _ = phase_run.target
  needed, there = per_device(target), _of(phase_run.mesh.local_devices)
  if there is not None and needed > there:
    parameters = cost.parameters(phase_runs.param_shapes(target))
    raise errors.UserError(
      f'The network has {parameters:,} parameters. Parameters and optimizer state take '
      f'{needed / 1e9:,.1f} GB per device, and a device here has {there / 1e9:,.1f} GB: take a '
      'smaller encoder or tokenizer.vocab_size, or more devices with run.mesh along fsdp.'
    )


def per_device(tree) -> int:
  """Bytes per device of a tree of shape structs with shardings."""
  return sum(
    math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
  )


def _of(devices) -> int | None:
  """Bytes of memory of each device; None if it does not tell. CPU devices share the host's."""
  if devices[0].platform != 'cpu':
    return (devices[0].memory_stats() or {}).get('bytes_limit')
  there = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
  limit = _CGROUP.read_text().strip() if _CGROUP.exists() else 'max'
  return min(there, int(limit) if limit.isdecimal() else there) // len(devices)
