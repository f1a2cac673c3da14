import functools
import json
import os
import shutil
import subprocess
import threading
import time

import emulated_gcs
import pytest

from bertzoo_jax.common import errors
from bertzoo_jax.runs import lock
from tests import commands
from tests.refused import refused

HOLDER = """
import sys, time
from bertzoo_jax.runs import lock
with lock.hold(sys.argv[1]):
  print('held', flush=True)
  time.sleep(float(sys.argv[2]))
"""
OWNER = {'host': 'here', 'pid': 2, 'token': 'y', 'since': 'now'}
KINDS = [lock._File, lock._Lease]
AGES = -3600, 5, 1000  # what the other host's clock says counts for nothing


def taken(folder, kind=lock._Lease, owner=OWNER):
  held = kind(lock.storage.path(folder), owner)
  held.take()
  return held


def held(folder):
  """Takes a lock as a run does, and gives it back."""
  with lock.hold(folder):
    return json.loads((folder / lock.NAME).read_text())


def test_the_lock_of_a_killed_job_is_taken_over_and_said(tmp_path, capsys):
  with commands.begin('-c', HOLDER, str(tmp_path), '60') as holder:
    assert holder.stdout.readline() == 'held\n'
    words = f'process {holder.pid} on .* since 20'
    refused(words, held, tmp_path, kind=errors.TransientError)
    holder.kill()
  assert held(tmp_path)['pid'] == os.getpid()
  assert f'process {holder.pid}' in capsys.readouterr().out


def test_a_released_lock_is_free_silent_and_gone_and_a_link_is_refused(tmp_path, capsys):
  assert held(tmp_path)['token'] != held(tmp_path)['token']
  assert capsys.readouterr().out == '' and not list(tmp_path.iterdir())
  (tmp_path / lock.NAME).write_text('{"host": "elsew')  # a half written owner is nobody's
  held(tmp_path)
  (tmp_path / 'precious').write_text('kept')
  (tmp_path / lock.NAME).symlink_to(tmp_path / 'precious')
  refused('is a link', held, tmp_path)
  assert (tmp_path / 'precious').read_text() == 'kept'


def test_a_lock_that_its_owner_removed_while_we_opened_it_holds_nothing(tmp_path, monkeypatch):
  flock, releases = lock.fcntl.flock, [taken(tmp_path, lock._File).release]
  late = lambda fd, how: (releases and releases.pop()(), flock(fd, how))
  monkeypatch.setattr(lock.fcntl, 'flock', late)
  ours = taken(tmp_path, lock._File)
  # a third one, which opens the file that is there now
  refused('in use', taken, tmp_path, lock._File, kind=errors.TransientError)
  ours.release()


def _lease_elsewhere(tmp_path, age=5.0, **more):
  lease = {'host': 'elsewhere', 'pid': 1, 'since': 'then', 'token': 'x', **more}
  (tmp_path / lock.NAME).write_text(json.dumps({**lease, 'heartbeat': time.time() - age}))


class Clock:
  """Time that passes by sleeping; `at` maps seconds to events."""

  def __init__(self, monkeypatch, at=None):
    self.now, self._at = 0.0, dict(at or {})
    monkeypatch.setattr(time, 'monotonic', lambda: self.now)
    monkeypatch.setattr(time, 'sleep', self._sleep)

  def _sleep(self, seconds):
    self.now += seconds
    for when in [w for w in self._at if w <= self.now]:
      self._at.pop(when)()


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('age', AGES)
def test_a_lock_that_stands_still_is_taken_over(tmp_path, monkeypatch, capsys, age, kind):
  clock = Clock(monkeypatch)
  _lease_elsewhere(tmp_path, age)
  ours = taken(tmp_path, kind)
  assert lock.STALE_SECONDS <= clock.now <= lock.STALE_SECONDS + 2 * lock.WATCH_SECONDS
  waiting, over = capsys.readouterr().out.splitlines()
  assert 'process 1 on elsewhere' in waiting and '120 s at most' in waiting
  assert 'taking it over' in over
  assert json.loads((tmp_path / lock.NAME).read_text())['token'] == 'y'
  ours.beat()
  ours.release()
  assert not (tmp_path / lock.NAME).exists()


@pytest.mark.parametrize('kind', KINDS)
def test_a_lock_of_another_host_that_changes_refuses_the_job_at_once(tmp_path, monkeypatch, kind):
  # its heart beats, or a third job takes it
  for age, after, host in ((AGES[0], 20, 'elsewhere'), (5, 20, 'elsewhere'), (1000, 100, 'third')):
    event = functools.partial(_lease_elsewhere, tmp_path, age - after, host=host, token='z')
    clock = Clock(monkeypatch, {after: event})
    _lease_elsewhere(tmp_path, age)
    refused(f'process 1 on {host}', taken, tmp_path, kind, kind=errors.TransientError)
    assert clock.now <= after + lock.WATCH_SECONDS
    assert json.loads((tmp_path / lock.NAME).read_text())['token'] == 'z'


def test_a_lease_that_is_released_while_we_watch_is_free_at_once(tmp_path, monkeypatch, capsys):
  clock = Clock(monkeypatch, {10.0: (tmp_path / lock.NAME).unlink})
  _lease_elsewhere(tmp_path)
  taken(tmp_path)
  assert clock.now <= 10 + 2 * lock.WATCH_SECONDS and 'gone' not in capsys.readouterr().out


@pytest.mark.parametrize('before', [None, 'stale'])
def test_of_two_jobs_that_read_before_either_writes_one_holds(tmp_path, monkeypatch, before):
  Clock(monkeypatch)
  if before:
    _lease_elsewhere(tmp_path)
  renew, rivals, held = lock._Lease.renew, [{**OWNER, 'host': 'rival', 'token': 'z'}], []

  def after_the_rival(lease):
    if rivals:
      held.append(taken(tmp_path, owner=rivals.pop()))
    return renew(lease)

  monkeypatch.setattr(lock._Lease, 'renew', after_the_rival)
  refused('on rival', taken, tmp_path, kind=errors.TransientError)
  held[0].beat()
  assert json.loads((tmp_path / lock.NAME).read_text())['token'] == 'z'
  held[0].release()
  assert not (tmp_path / lock.NAME).exists()


@pytest.mark.parametrize('kind', KINDS)
def test_an_owner_whose_lease_another_has_taken_ends(tmp_path, monkeypatch, capsys, kind):
  monkeypatch.setattr(time, 'sleep', lambda s: None)
  monkeypatch.setattr(lock, 'HEARTBEAT_SECONDS', 0.0)
  ended = []
  monkeypatch.setattr(lock, '_exit', ended.append)
  held = taken(tmp_path, kind)
  _lease_elsewhere(tmp_path)
  rival = (tmp_path / lock.NAME).read_text()
  lock._beat(tmp_path, held.beat, threading.Event())
  assert ended == [os.EX_TEMPFAIL] and 'process 1 on elsewhere' in capsys.readouterr().err
  assert (tmp_path / lock.NAME).read_text() == rival


def test_a_heart_beats_on_after_any_error_of_the_storage(tmp_path, capsys, monkeypatch):
  stop, beats = threading.Event(), []

  def fail():
    beats.append(1)
    if len(beats) == 2:
      stop.set()
    raise RuntimeError('503')

  monkeypatch.setattr(lock, 'HEARTBEAT_SECONDS', 0.0)
  lock._beat(tmp_path, fail, stop)
  assert capsys.readouterr().out.count('503') == 2


def test_a_lease_of_a_dead_process_of_this_host_is_taken_over_at_once(tmp_path, monkeypatch):
  monkeypatch.setattr(time, 'sleep', lambda s: None)
  gone = subprocess.Popen(['true'])
  gone.wait()
  owner = {**OWNER, 'pid': os.getpid()}
  _lease_elsewhere(tmp_path, host='here', pid=os.getppid())
  refused('in use', taken, tmp_path, owner=owner, kind=errors.TransientError)
  _lease_elsewhere(tmp_path, host='here', pid=gone.pid)
  taken(tmp_path, owner=owner).release()


def _delete(folder):
  while folder.exists():  # the heartbeat may be writing there
    shutil.rmtree(folder, ignore_errors=True)


def _without_lock(folder):
  for _ in range(3):  # a heartbeat that had read the lock may write it once more
    (folder / lock.NAME).unlink(missing_ok=True)
    time.sleep(0.03)


AWAY = {
  'deleted': _delete,
  'moved': lambda folder: folder.rename(folder.parent / 'elsewhere'),
  'the lock deleted': lambda folder: _without_lock(folder),
  'made anew': lambda folder: (_delete(folder), folder.mkdir()),
}


@pytest.mark.parametrize('remote', [False, True])
@pytest.mark.parametrize('away', AWAY.values(), ids=AWAY)
def test_a_workdir_that_is_gone_stops_the_run_before_a_save_at_its_end_and_at_an_error(
  tmp_path, monkeypatch, away, remote
):
  monkeypatch.setattr(lock.storage, 'is_remote', lambda p: remote)
  monkeypatch.setattr(lock, 'HEARTBEAT_SECONDS', 0.01)  # which does not bring the lock back
  folder = tmp_path / 'run'
  for then in ('save', 'end', 'error'):
    folder.mkdir(exist_ok=True)
    with pytest.raises(errors.Stopped, match='lock of .*run is gone') as e:
      with lock.hold(folder) as check:
        check()
        away(folder)
        time.sleep(0.05)
        if then == 'save':
          check()
          pytest.fail('the run did not end')
        if then == 'error':
          raise ValueError('a half written checkpoint')
    assert e.value.code == 3 and not (folder / lock.NAME).exists()
    shutil.rmtree(tmp_path / 'elsewhere', ignore_errors=True)


@pytest.mark.parametrize('then', ['a save', 'its end'])
def test_a_workdir_that_another_job_holds_ends_the_run_with_75(tmp_path, then):
  with pytest.raises(errors.TransientError, match='now held by process 1 on elsewhere'):
    with lock.hold(tmp_path) as check:
      _lease_elsewhere(tmp_path)  # in place
      if then == 'a save':
        check()
        pytest.fail('the run did not end')
  assert json.loads((tmp_path / lock.NAME).read_text())['token'] == 'x'


class Together(emulated_gcs.Store):
  """Answers the first read of a lock when two have asked, and does the second write of it after
  everybody could read what the first one wrote.
  """

  def __init__(self):
    super().__init__()
    self.reads, self.writes, self._both = 0, 0, threading.Barrier(2, timeout=60)
    self._counting = threading.Lock()  # requests arrive in threads of their own

  def fault_of(self, line):
    if line.endswith(f'/{lock.NAME}'):
      with self._counting:
        self.reads += line.startswith('GET')
        self.writes += line.startswith('POST')
        read, written = self.reads, self.writes
      if line.startswith('GET') and read <= 2:
        self._both.wait()
      if line.startswith('POST') and written == 2:
        time.sleep(2.5)
    return super().fault_of(line)


def test_of_two_processes_that_take_a_lock_in_a_bucket_together_one_holds_and_one_ends_with_75():
  program = f"""
from bertzoo_jax.common import errors
try:
  exec({HOLDER!r})
except errors.UserError as e:
  print(e)
  raise SystemExit(e.code)
"""
  for _ in range(3):  # a busy machine may start the second when the first holds it
    with Together() as store:
      env = commands.environment(**store.environment())
      jobs = [commands.begin('-c', program, 'gs://bucket/run', '6', env=env) for _ in range(2)]
      outputs = [job.communicate(timeout=100)[0] for job in jobs]
      assert sorted(job.returncode for job in jobs) == [0, os.EX_TEMPFAIL], outputs
      winner, loser = sorted(zip([job.returncode for job in jobs], outputs, jobs, strict=True))
      assert winner[1].endswith('held\n') and f'in use by process {winner[2].pid}' in loser[1]
      assert not store.names('bucket')  # the winner removed it at its end
      if store.writes >= 2:
        return
  pytest.fail('the two never took it together')
