"""What fails for good is said in one sentence. A mistake of the program keeps its own words."""

import types

import jax
import jax.numpy as jnp
import pytest

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.training import failures

RUN = types.SimpleNamespace(accumulation=2)


def test_a_device_without_room_ends_a_run_with_what_helps_and_exit_code_3():
  too_large = jax.jit(lambda x: jnp.sort(jnp.outer(x, x), axis=0)[0].sum())
  with pytest.raises(errors.Stopped, match=r'not enough memory .*Out of memory.*') as e:
    with failures.enough_memory(RUN):
      too_large(jnp.ones(1 << 22)).block_until_ready()  # 64 TiB
  assert 'run.accumulation=4' in str(e.value) and 'run.remat=full' in str(e.value)
  assert 'run.mesh' in str(e.value) and 'batch_size' in str(e.value) and e.value.code == 3
  assert 'config.phases' not in str(e.value)
  with pytest.raises(errors.Stopped, match=r'twice its own in a phase of config\.phases'):
    with failures.enough_memory(RUN, by_phase=True):
      raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: no room')


def test_other_errors_of_a_device_are_handed_on():
  with pytest.raises(jax.errors.JaxRuntimeError, match='UNAVAILABLE'):
    with failures.enough_memory(RUN):
      raise jax.errors.JaxRuntimeError('UNAVAILABLE: a host is gone')


@pytest.mark.parametrize(
  'error, is_one',
  [
    (OSError(28, 'No space left on device'), True),
    (ConnectionResetError(104, 'reset'), True),
    (ValueError('RESOURCE_EXHAUSTED: Error writing "x": No space left on device'), True),
    (ValueError('operands could not be broadcast together'), False),
    (TypeError('unsupported operand'), False),
    (AttributeError('no such attribute'), False),
    (KeyError('kernel'), False),
    (AssertionError(), False),
  ],
)
def test_only_errors_of_storage_are_told_as_such(error, is_one):
  assert storage.is_error_of_storage(error) == is_one
