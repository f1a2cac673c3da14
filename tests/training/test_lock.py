"""One job in a workdir, whatever happened to the one before."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from bertzoo_jax import errors
from bertzoo_jax.training import lock

HOLDER = '''
import sys, time
from bertzoo_jax.training import lock
with lock.hold(sys.argv[1]):
  print('held', flush=True)
  time.sleep(60)
'''


@pytest.fixture
def holder(tmp_path):
  process = subprocess.Popen([sys.executable, '-c', HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
  assert process.stdout.readline() == 'held\n'
  yield process
  process.kill()
  process.wait()


def test_a_second_job_is_refused_and_told_who_holds_it(tmp_path, holder):
  with pytest.raises(errors.UserError, match=f'process {holder.pid} on .* since 20'):
    with lock.hold(tmp_path):
      pass


def test_the_lock_of_a_killed_job_is_taken_over_and_said(tmp_path, holder, capsys):
  holder.send_signal(signal.SIGKILL)
  holder.wait()
  with lock.hold(tmp_path):
    assert f'process {holder.pid}' in capsys.readouterr().out
    assert json.loads((tmp_path / lock.NAME).read_text())['pid'] == os.getpid()


def test_a_released_lock_is_free_and_silent(tmp_path, capsys):
  for _ in range(2):
    with lock.hold(tmp_path):
      pass
  assert capsys.readouterr().out == ''


@pytest.mark.parametrize('take', ['_take_local', '_take_remote'])
@pytest.mark.parametrize('age,taken', [(5, False), (1000, True)])
def test_an_owner_on_another_host_holds_while_its_heart_beats(tmp_path, monkeypatch, take, age, taken):
  monkeypatch.setattr(time, 'sleep', lambda s: None)
  (tmp_path / lock.NAME).write_text(json.dumps({'host': 'elsewhere', 'pid': 1, 'since': 'then', 'token': 'x', 'heartbeat': time.time() - age}))
  owner = {'host': 'here', 'pid': 2, 'token': 'y', 'since': 'now'}
  path = lock.storage.path(tmp_path)
  if taken:
    beat_once, release = getattr(lock, take)(path, owner)
    beat_once()
    release()
  else:
    with pytest.raises(errors.UserError, match='elsewhere'):
      getattr(lock, take)(path, owner)


def test_of_two_that_take_an_object_store_lease_together_the_earlier_write_gives_way(tmp_path, monkeypatch):
  path = lock.storage.path(tmp_path)
  rival = json.dumps({'host': 'elsewhere', 'pid': 1, 'token': 'x', 'since': 'now', 'heartbeat': time.time()})
  monkeypatch.setattr(time, 'sleep', lambda s: (tmp_path / lock.NAME).write_text(rival))
  with pytest.raises(errors.UserError, match='elsewhere'):
    lock._take_remote(path, {'host': 'here', 'pid': 2, 'token': 'y', 'since': 'now'})


def test_a_half_written_owner_is_nobodys(tmp_path):
  (tmp_path / lock.NAME).write_text('{"host": "elsew')
  with lock.hold(tmp_path):
    pass


@pytest.mark.parametrize('take', ['_take_local', '_take_remote'])
def test_an_owner_whose_lease_another_has_taken_ends_without_a_word_into_it(tmp_path, monkeypatch, capsys, take):
  monkeypatch.setattr(time, 'sleep', lambda s: None)
  monkeypatch.setattr(lock, 'HEARTBEAT_SECONDS', 0.0)
  ended = []
  monkeypatch.setattr(lock, '_exit', ended.append)
  path = lock.storage.path(tmp_path)
  beat_once, _ = getattr(lock, take)(path, {'host': 'here', 'pid': 2, 'token': 'y', 'since': 'now'})
  rival = json.dumps({'host': 'elsewhere', 'pid': 1, 'token': 'x', 'since': 'then', 'heartbeat': time.time()})
  (tmp_path / lock.NAME).write_text(rival)
  lock._beat(path, beat_once, threading.Event())
  assert ended == [3] and 'process 1 on elsewhere' in capsys.readouterr().err
  assert (tmp_path / lock.NAME).read_text() == rival


def test_a_heart_beats_on_after_any_error_of_the_storage(tmp_path, capsys):
  stop, beats = threading.Event(), []

  def fail():
    beats.append(1)
    if len(beats) == 2:
      stop.set()
    raise RuntimeError('503')

  lock.HEARTBEAT_SECONDS, seconds = 0.0, lock.HEARTBEAT_SECONDS
  try:
    lock._beat(tmp_path, fail, stop)
  finally:
    lock.HEARTBEAT_SECONDS = seconds
  assert capsys.readouterr().out.count('503') == 2


def test_a_lease_of_a_process_of_this_host_that_is_no_more_is_taken_over_at_once(tmp_path, monkeypatch):
  monkeypatch.setattr(time, 'sleep', lambda s: None)
  gone = subprocess.Popen([sys.executable, '-c', ''])
  gone.wait()
  path = lock.storage.path(tmp_path)
  owner = {'host': 'here', 'pid': os.getpid(), 'token': 'y', 'since': 'now'}
  lease = lambda pid: (tmp_path / lock.NAME).write_text(
      json.dumps({'host': 'here', 'pid': pid, 'since': 'then', 'token': 'x', 'heartbeat': time.time()}))
  lease(os.getppid())
  with pytest.raises(errors.UserError, match='in use'):
    lock._take_remote(path, owner)
  lease(gone.pid)
  lock._take_remote(path, owner)[1]()


def test_a_lock_that_is_a_link_is_refused_and_what_it_points_to_left_as_it_is(tmp_path):
  (tmp_path / 'precious').write_text('kept')
  (tmp_path / lock.NAME).symlink_to(tmp_path / 'precious')
  with pytest.raises(errors.UserError, match='is a link'):
    with lock.hold(tmp_path):
      pass
  assert (tmp_path / 'precious').read_text() == 'kept'
