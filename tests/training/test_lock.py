"""One job in a workdir, whatever happened to the one before."""

import json
import os
import signal
import subprocess
import sys
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
    write, release = getattr(lock, take)(path, owner)
    write()
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
