import sys
import threading
import time

import numpy as np
import pytest

from bertzoo_jax.batches import ahead
from bertzoo_jax.common import errors

FEATURES = {'number': ((1, 2), np.int32), 'half': ((), np.float32)}


@pytest.fixture(params=['tf.data', 'threads'])
def driver(request, monkeypatch):
  monkeypatch.setattr(ahead, 'driver', lambda: request.param)
  return request.param


def batch(step):
  time.sleep(0.003 * (step % 3))  # later steps may be ready first
  return {'number': np.full((1, 2), step, np.int32), 'half': np.float32(step / 2)}


@pytest.mark.parametrize('threads', [None, 1, 3])
def test_the_batches_are_those_of_the_steps_in_order(driver, threads):
  found = list(ahead.iterate(batch, FEATURES, 5, 25, threads))
  assert [int(b['number'][0, 1]) for b in found] == list(range(5, 25))
  assert [float(b['half']) for b in found] == [step / 2 for step in range(5, 25)]
  for name, (shape, dtype) in FEATURES.items():
    assert {(b[name].shape, b[name].dtype) for b in found} == {(shape, np.dtype(dtype))}
  assert not list(ahead.iterate(batch, FEATURES, 5, 5, threads))


def test_an_error_of_a_step_is_raised_in_its_place(driver):
  def broken(step):
    if step == 7:
      raise errors.UserError('the split ends')
    return batch(step)

  batches = ahead.iterate(broken, FEATURES, 5, 25, 3)
  assert [int(next(batches)['number'][0, 0]) for _ in range(2)] == [5, 6]
  with pytest.raises(errors.UserError, match='the split ends'):
    next(batches)


def test_some_batches_are_ready_and_no_more_and_all_threads_end_with_the_loop(driver):
  asked, before = [], threading.active_count()
  batches = ahead.iterate(lambda step: (asked.append(step), batch(step))[1], FEATURES, 0, 10**6, 2)
  assert not asked  # nothing is computed before the first batch is wanted
  next(batches)
  deadline = time.monotonic() + 10
  while len(asked) < 4 and time.monotonic() < deadline:
    time.sleep(0.01)
  time.sleep(0.1)
  assert 4 <= len(asked) <= 8
  batches.close()
  some = len(asked)
  time.sleep(0.1)
  assert len(asked) <= some + 2
  if driver == 'threads':
    assert threading.active_count() == before


def test_tf_data_drives_where_it_can_else_threads_and_a_broken_tensorflow_is_one_sentence(
  tmp_path, monkeypatch
):
  assert ahead.driver() == 'tf.data'
  monkeypatch.setitem(sys.modules, 'tensorflow', None)
  assert ahead.driver() == 'threads'
  monkeypatch.delitem(sys.modules, 'tensorflow')
  monkeypatch.syspath_prepend(tmp_path)
  for failure in ('ImportError', 'OSError', 'AttributeError'):
    (tmp_path / 'tensorflow.py').write_text(f'raise {failure}("libx.so: not there")')
    with pytest.raises(errors.UserError, match='libx.so.*uninstall it|uninstall it.*libx.so'):
      ahead.driver()
