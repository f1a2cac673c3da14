import types
from unittest import mock

import jax
import jax.numpy as jnp
import pytest

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.runs import failures
from tests.common.test_storage import UNPARSED
from tests.common.test_storage import coded
from tests.refused import refused

RUN = types.SimpleNamespace(accumulation=2, remat='none')
UNREAD, MISSING = coded(13), coded(5)


def test_a_device_without_room_ends_a_run_with_remedies_and_exit_code_3():
  too_large = jax.jit(lambda x: jnp.sort(jnp.outer(x, x), axis=0)[0].sum())

  def limited(run=RUN, message='RESOURCE_EXHAUSTED: no room', **how):
    with failures.enough_memory(run, **how):
      raise jax.errors.JaxRuntimeError(message)

  with pytest.raises(errors.Stopped, match=r'not enough memory .*Out of memory.*') as e:
    with failures.enough_memory(RUN):
      too_large(jnp.ones(1 << 22)).block_until_ready()  # 64 TiB
  message = str(e.value)
  for words in ('run.accumulation=4 or auto', 'run.remat=full', 'run.mesh', 'batch_size'):
    assert words in message
  assert 'config.phases' not in message and e.value.code == 3
  whole = types.SimpleNamespace(accumulation=1, remat='full')
  words = 'twice its own in a phase of config.phases'
  refused(words, limited, by_phase=True, kind=errors.Stopped)
  refused('run.accumulation=2 or auto, then more devices', limited, whole, kind=errors.Stopped)
  auto = types.SimpleNamespace(accumulation='auto', remat='full')
  words = 'Try run.accumulation above that of auto, then more devices'
  refused(words, limited, auto, by_phase=True, kind=errors.Stopped)
  refused('UNAV', limited, RUN, 'UNAVAILABLE: gone', kind=jax.errors.JaxRuntimeError)


def test_a_save_that_fails_because_a_host_is_lost_is_not_called_an_error_of_storage(monkeypatch):
  lost = jax.errors.JaxRuntimeError('UNAVAILABLE: task 1 is unhealthy')

  def save():
    with failures.writing('A checkpoint', 'the ones before'):
      raise lost

  refused('A checkpoint could not be written', save)
  monkeypatch.setattr(failures.jax, 'process_count', lambda: 2)
  with pytest.raises(jax.errors.JaxRuntimeError) as e:
    save()
  assert e.value is lost  # which distributed.watched words


OF_STORAGE = [
  OSError(28, 'No space left on device'),
  ConnectionResetError(104, 'reset'),
  ValueError('RESOURCE_EXHAUSTED: Error writing "x": No space left on device'),
  ValueError(UNPARSED),
]
OTHERS = [ValueError('operands could not be broadcast together'), errors.Stopped('a sentence')]
OTHERS += [kind('no such attribute') for kind in (TypeError, AttributeError, KeyError)]


def test_only_errors_of_storage_are_told_as_such():
  assert all(map(storage.is_error_of_storage, OF_STORAGE))
  assert not any(map(storage.is_error_of_storage, [*OTHERS, AssertionError()]))


@pytest.mark.parametrize(
  'answers, right, wished',
  [
    (['a', 'a'], None, 'a'),
    (['b', 'a', 'a'], None, 'a'),
    ([UNREAD, 'a', UNREAD, 'a'], None, 'a'),
    (['b', 'a'], 'a', 'a'),
    (['b', 'b'], 'a', 'b'),  # what lies there is damaged
    (['a', 'b', 'c', 'd', 'e'], None, errors.TransientError),
    ([UNREAD] * 5, None, type(UNREAD)),
    ([MISSING, 'a', 'a'], None, 'a'),
    ([MISSING, UNREAD, FileNotFoundError()], None, FileNotFoundError),
    ([coded(7)], None, Exception),
  ],
)
def test_an_object_store_is_asked_until_an_answer_comes_twice_or_is_right(answers, right, wished):
  store = mock.Mock(side_effect=answers)  # an exception is raised
  if isinstance(wished, str):
    assert storage.read_twice(store, 'gs://b/c', right) == wished
  else:
    with pytest.raises(wished):
      storage.read_twice(store, 'gs://b/c', right)
  assert store.call_count == len(answers)
