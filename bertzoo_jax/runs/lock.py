"""Lets only one job at a time use a workdir. A second job is refused, with the name of the first.
The lock of a job that has ended is taken over.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import socket
import sys
import threading
import time
import uuid

import tensorstore

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage

NAME = 'lock'
HEARTBEAT_SECONDS = 20.0
STALE_SECONDS = 120.0
WATCH_SECONDS = 5.0
ANSWER_SECONDS = 60.0  # seconds for one answer of an object store
_ATTEMPTS = 10  # to open a local lock that is not being removed


@contextlib.contextmanager
def hold(workdir):
  """Holds the workdir inside a `with`.

  On a local or shared disk the kernel holds it (flock) and lets go when the process ends, however
  it ends. In an object store a job holds a lease, which it renews every 20 seconds. Each write
  names the version that it replaces, so of two jobs that write at the same time one is refused.

  A job that finds the lock of another host, in an object store or on a disk whose flock does not
  reach that host, watches it: a lock that changes refuses the job, one that is unchanged for two
  minutes is taken over. So a new VM resumes by itself after a preemption without notice. The clocks
  of the two hosts are not compared. The lock of a dead process of this host is taken over at once.

  A job that finds at a heartbeat that another has taken its place (it was suspended for longer)
  ends at once with exit code 75 and saves nothing.

  Yields a function that raises as below if the workdir is no longer this job's. It is also called
  at the end of the `with`, where a deleted folder makes most errors. Raises TransientError if
  another job has it (host, process, since when), which may be about to end; Stopped if the lock is
  gone, as when the folder was deleted; UserError if the lock is a link or cannot be opened.
  """
  workdir = storage.path(workdir)
  owner = {
    'host': socket.gethostname(),
    'pid': os.getpid(),
    'token': uuid.uuid4().hex,
    'since': time.strftime('%Y-%m-%d %H:%M:%S'),
  }
  lock = (_Lease if storage.is_remote(workdir) else _File)(workdir, owner)
  lock.take()
  stop, one_at_a_time = threading.Event(), threading.Lock()

  def beat():
    with one_at_a_time:
      lock.beat()

  thread = threading.Thread(
    target=_beat, args=(workdir, beat, stop), name='workdir-lock', daemon=True
  )
  thread.start()
  check = lambda: _check_held(workdir, beat)
  try:
    yield check
    check()
  except Exception as e:
    # a store that does not answer need not be asked again
    if not isinstance(e, errors.TransientError):
      check()
    raise
  finally:
    stop.set()
    thread.join()
    lock.release()


class _Lost(Exception):
  """Another job holds the workdir; the message names it."""


class _Gone(Exception):
  """There is no lock any more."""


class _File:
  """The lock on a disk, which the kernel holds for this process."""

  def __init__(self, workdir, owner):
    self._workdir, self._owner = workdir, owner
    self._path = pathlib.Path(str(workdir)) / NAME

  def take(self) -> None:
    """Takes the lock. TransientError if another process has it, UserError if it does not open."""
    for attempt in range(_ATTEMPTS + 1):
      self._open()
      if attempt == _ATTEMPTS or storage.is_at(self._fd, self._path):
        break
      # Its owner removed it after it was opened here, or the disk numbers a file anew whenever it
      # is asked
      os.close(self._fd)
      time.sleep(0.1)
    other = self._read()
    if other and other.get('host') == self._owner['host']:
      _say_stale(other)
    elif other:  # flock may not reach from its host to ours
      try:
        _outlast(self._workdir, other, self._read)
      except errors.TransientError:
        os.close(self._fd)
        raise
    self._write()

  def beat(self) -> None:
    """Writes a heartbeat. Raises _Lost or _Gone if the lock no longer belongs to this process."""
    _check_ours(self._read() or self._owner, self._owner)
    if not storage.is_at(self._fd, self._path):
      # ours was removed, and this is another job's lock
      _check_ours(_parse(self._path.read_text()) if self._path.exists() else None, self._owner)
    self._write()

  def release(self) -> None:
    """Removes the lock if it still belongs to this process."""
    with contextlib.suppress(OSError):
      ours = (self._read() or {}).get('token') == self._owner['token']
      if ours and storage.is_at(self._fd, self._path):
        os.unlink(self._path)
    os.close(self._fd)

  def _open(self):
    storage.check_file(self._path)
    try:
      self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as e:
      why = 'is a link' if self._path.is_symlink() else f'cannot be opened ({e.strerror})'
      raise errors.UserError(f'{self._path} {why}: remove it, or take another --workdir.') from e
    try:
      fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
      other = self._read()
      os.close(self._fd)
      _refuse(self._workdir, other)

  def _read(self):
    return _parse(os.pread(self._fd, 4096, 0).decode('utf-8', 'replace'))

  def _write(self):
    # Not by a rename: the lock belongs to this file. A reader that sees half a line finds no owner
    # in it.
    os.pwrite(self._fd, _written(self._owner).ljust(512), 0)


class _Lease:
  """The lock of an object store, and the version of it that was seen last. As `_File`."""

  def __init__(self, workdir, owner):
    folder = str(workdir) if '://' in str(workdir) else f'file://{storage.absolute(workdir)}'
    self._workdir, self._name, self._owner = workdir, f'{folder}/{NAME}', owner
    self._store = self._answer(lambda: _result(tensorstore.KvStore.open(f'{folder}/')))
    self._seen = None

  def take(self) -> None:
    other = self.read()
    same_host = bool(other) and other.get('host') == self._owner['host']
    if same_host and not _runs(other.get('pid')):
      _say_stale(other)
    elif same_host and abs(time.time() - other.get('heartbeat', 0)) < STALE_SECONDS:  # by our clock
      _refuse(self._workdir, other)
    elif other:
      _outlast(self._workdir, other, self.read)
    if not self.renew() and not self.is_ours(now := self.read()):
      _refuse(self._workdir, now)

  def beat(self) -> None:
    if not self.renew():
      _check_ours(self.look(), self._owner)
      self.renew()  # our last write succeeded, its answer was lost

  def release(self) -> None:
    try:
      if not self._replace(None) and self.is_ours(self.read()):
        self._replace(None)
    except errors.UserError as e:  # the next owner waits two minutes, no more
      print(f'WARNING: {e}')

  def __str__(self):
    return self._name

  def read(self) -> dict | None:
    """The owner of the lock; None for none."""

    def read():
      response = _parsed(self._store.read(NAME))
      return response.state == 'value' and response.value, response.stamp.generation

    content, self._seen = self._answer(lambda: storage.read_twice(read, self))
    return _parse(content.decode('utf-8', 'replace')) if content else None

  def look(self) -> dict | None:
    """Like `read`, but does not record that the lock is gone, since `renew` would then write a new
    one."""
    before, owner = self._seen, self.read()
    self._seen = self._seen if owner else before
    return owner

  def is_ours(self, owner) -> bool:
    return bool(owner) and owner.get('token') == self._owner['token']

  def renew(self) -> bool:
    """Writes the lease and returns True; does neither if the lock has changed since it was seen."""
    return self._replace(_written(self._owner))

  def _replace(self, value):
    write = lambda: _parsed(self._store.write(NAME, value, if_equal=self._seen)).generation
    now = self._answer(lambda: storage.read_twice(write, self, twice=False))
    self._seen = now or self._seen
    return bool(now)

  def _answer(self, ask):
    try:
      return ask()
    except errors.UserError:
      raise
    except Exception as e:  # tensorstore has ValueError for most that a store may answer
      passing = storage.may_pass(e)
      raise (errors.TransientError if passing else errors.UserError)(
        f'{self} cannot be read or written ({errors.words(e, 300)}): '
        + ('run the same command again.' if passing else 'repair access or take another --workdir.')
      ) from e


def _result(future):
  return future.result(timeout=ANSWER_SECONDS)


def _parsed(future):
  """As `_result`, of a request that is right: an error without a status is an unreadable answer."""
  try:
    return _result(future)
  except ValueError as e:
    if storage.status(e) is None:
      raise ValueError(f'INTERNAL: {e}') from e
    raise


def _outlast(workdir, other, read):
  """Returns when the lock of another host is released or has stood still; refuses if it changes."""
  begin = time.monotonic()
  print(
    f'The workdir is held by {_name(other)}: waiting {STALE_SECONDS:.0f} s at most to see whether '
    'that is still running.'
  )
  while True:
    time.sleep(WATCH_SECONDS)
    asked = time.monotonic()  # before the read, whose result is no older
    now = read()
    if now is None:
      return
    if now != other:
      _refuse(workdir, now)
    if asked - begin >= STALE_SECONDS:
      _say_stale(other)
      return


def _beat(workdir, beat_once, stop):
  while not stop.wait(HEARTBEAT_SECONDS):
    try:
      beat_once()
    except _Lost as e:
      print(
        f'error: {workdir} is now held by {e}, since this process was suspended: this process ends '
        'and saves nothing.',
        file=sys.stderr,
      )
      _exit(errors.TransientError.code)
      return
    except _Gone:
      return  # the run ends before its next save
    except Exception as e:  # whatever the storage raises: the next beat may get through
      print(f'WARNING: the heartbeat of the workdir lock could not be written: {errors.named(e)}')


# Not sys.exit, which ends a thread only, and not a signal, upon which the run would save into
# another's folder.
_exit = os._exit


def _check_held(workdir, beat_once):
  try:
    beat_once()
  except _Lost as e:
    raise errors.TransientError(
      f'{workdir} is now held by {e}: this run ends and saves nothing.'
    ) from e
  except _Gone as e:
    raise errors.Stopped(
      f'The lock of {workdir} is gone: it or its folder was deleted, moved or replaced while this '
      'run used it. The run ends and saves nothing more. Bring the folder back and run the same '
      'line again, or take another --workdir.'
    ) from e
  except Exception:  # the storage does not answer: the next write says so
    return


def _check_ours(now, owner):
  if not now:
    raise _Gone
  if now.get('token') != owner['token']:
    raise _Lost(_name(now))


def _runs(pid) -> bool:
  """False if this host has no such process."""
  if not isinstance(pid, int) or pid <= 0:
    return True
  try:
    os.kill(pid, 0)  # signal 0: only asks
  except ProcessLookupError:
    return False
  except OSError:  # a process of another user
    pass
  return True


def _say_stale(other):
  print(f'The workdir was held by {_name(other)}, which is gone; taking it over.')


def _refuse(workdir, other):
  raise errors.TransientError(
    f'{workdir} is in use by {_name(other or {})}: wait for it to end, stop it, or take another '
    '--workdir. The lock of an owner that died on another host expires '
    f'{STALE_SECONDS:.0f} s after its last heartbeat.'
  )


def _name(other):
  return (
    f'process {other.get("pid", "?")} on {other.get("host", "?")} since {other.get("since", "?")}'
  )


def _written(owner) -> bytes:
  return json.dumps({**owner, 'heartbeat': time.time()}).encode()


def _parse(text):
  try:
    value = json.loads(text)
  except errors.UNREADABLE:
    return None
  return value if isinstance(value, dict) else None
