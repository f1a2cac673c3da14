"""Errors that do not pass are reported in one sentence. A mistake of the program keeps its own
words.
"""

import types

import jax
import jax.numpy as jnp
import pytest

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.runs import failures

# What tensorstore says of an answer to a write that it cannot parse.
UNPARSED = (
  'Error writing "a/.zarray" in OCDBT database at gs://bucket/run/: Error parsing object member '
  r"[tensorstore_spec='{\"kvstore\":{\"bucket\":\"bucket\",\"driver\":\"gcs\"}}']"
)
RUN = types.SimpleNamespace(accumulation=2, remat='none')


def test_a_device_without_room_ends_a_run_with_remedies_and_exit_code_3():
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
  with pytest.raises(errors.Stopped, match=r'run\.accumulation=2, then more devices'):
    with failures.enough_memory(types.SimpleNamespace(accumulation=1, remat='full')):
      raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: no room')


def test_other_errors_of_a_device_are_handed_on():
  with pytest.raises(jax.errors.JaxRuntimeError, match='UNAVAILABLE'):
    with failures.enough_memory(RUN):
      raise jax.errors.JaxRuntimeError('UNAVAILABLE: a host is gone')


def test_a_save_that_fails_because_a_host_is_lost_is_not_called_an_error_of_storage(monkeypatch):
  lost = jax.errors.JaxRuntimeError('UNAVAILABLE: task 1 is unhealthy')

  def save():
    with failures.writing('A checkpoint', 'the ones before'):
      raise lost

  with pytest.raises(errors.UserError, match='A checkpoint could not be written'):
    save()
  monkeypatch.setattr(failures.jax, 'process_count', lambda: 2)
  with pytest.raises(jax.errors.JaxRuntimeError) as e:
    save()
  assert e.value is lost  # which distributed.watched words


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
    (errors.Stopped('a sentence'), False),
    (ValueError(UNPARSED), True),
  ],
)
def test_only_errors_of_storage_are_told_as_such(error, is_one):
  assert storage.is_error_of_storage(error) == is_one


def of_tensorflow(number, message=''):
  """An error as TensorFlow's are: a number of gRPC."""
  return type('OpError', (Exception,), {'error_code': number})(message)


@pytest.mark.parametrize(
  'error, passes',
  [
    (of_tensorflow(13, "Couldn't parse JSON response from GCS."), True),
    (of_tensorflow(13, 'File contents are inconsistent for file: gs://b/not found'), True),
    (of_tensorflow(14), True),
    (of_tensorflow(4), True),
    (of_tensorflow(5, 'The last try timed out'), False),
    (of_tensorflow(7, 'temporary credentials'), False),
    (of_tensorflow(8, 'retry: no space left on device'), False),
    (of_tensorflow(10, 'All 10 retry attempts failed: not found'), True),
    (ValueError('PERMISSION_DENIED: retry with other rights'), False),
    (ValueError('UNAVAILABLE: no such host'), True),
    (ValueError(UNPARSED), True),
    (ValueError(UNPARSED.replace('gcs', 'file').replace('gs:/', '')), False),
    (ValueError('Error writing gs://b/c/_sharding: Failed to parse object metadata: {'), True),
    (ValueError('Error reading /b/c/_sharding: Failed to parse metadata of gs://b/c'), False),
    (ValueError('operands could not be broadcast together'), False),
  ],
)
def test_the_status_of_an_error_says_whether_it_may_pass(error, passes):
  assert storage.may_pass(error) == passes


class Sends:
  """Answers one after the other; an exception is raised."""

  def __init__(self, *answers):
    self.left = list(answers)

  def __call__(self):
    answer = self.left.pop(0)
    if isinstance(answer, Exception):
      raise answer
    return answer


UNREAD = of_tensorflow(13)


@pytest.mark.parametrize(
  'answers, right, found',
  [
    (['a', 'a'], None, 'a'),
    (['b', 'a', 'a'], None, 'a'),
    ([UNREAD, 'a', UNREAD, 'a'], None, 'a'),
    (['b', 'a'], 'a', 'a'),
    (['b', 'b'], 'a', 'b'),  # what lies there is damaged
    (['a', 'b', 'c', 'd', 'e'], None, errors.TransientError),
    ([UNREAD] * 5, None, UNREAD),
    ([of_tensorflow(5), 'a', 'a'], None, 'a'),
    ([of_tensorflow(5), UNREAD, FileNotFoundError()], None, FileNotFoundError),
    ([of_tensorflow(7)], None, Exception),
  ],
)
def test_an_object_store_is_asked_until_an_answer_comes_twice_or_is_right(answers, right, found):
  sends = Sends(*answers)
  if isinstance(found, str):
    assert storage.read_twice(sends, 'gs://b/c', right) == found
  else:
    with pytest.raises(found if isinstance(found, type) else type(found)):
      storage.read_twice(sends, 'gs://b/c', right)
  assert not sends.left
