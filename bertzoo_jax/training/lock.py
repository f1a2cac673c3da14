"""One job in a workdir. A second one is told who holds it; an owner that is gone does not hold
it.
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

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage

NAME = 'lock'
HEARTBEAT_SECONDS = 20.0
STALE_SECONDS = 120.0
WATCH_SECONDS = 5.0
_ATTEMPTS = 10  # to open a local lock that is not being removed


@contextlib.contextmanager
def hold(workdir):
  """Holds the workdir inside a `with`.

  On a local or shared disk the kernel holds it (flock) and lets go when the process ends, however
  it ends; where another host cannot see that, an owner counts as gone when its heartbeat is older
  than two minutes. On gs:// a job that finds the lease of another host watches it: a heartbeat that
  moves refuses the job, one that stands still for two minutes is taken over, so that a new VM goes
  on by itself after a preemption without notice. A process of this host that is no more holds
  nothing. A job that finds at a heartbeat that another has taken its place (it was suspended for
  longer) ends at once with exit code 3 and saves nothing.

  Raises:
    TryAgain: another job has it, with host, process and since when. It may be about to end: a
      machine that was told to, whose successor asks.
    UserError: the lock is a link or cannot be opened.
  """
  workdir = storage.path(workdir)
  owner = {
    'host': socket.gethostname(),
    'pid': os.getpid(),
    'token': uuid.uuid4().hex,
    'since': time.strftime('%Y-%m-%d %H:%M:%S'),
  }
  take = _take_remote if storage.is_remote(workdir) else _take_local
  beat_once, release = take(workdir, owner)
  stop = threading.Event()
  beat = threading.Thread(
    target=_beat, args=(workdir, beat_once, stop), name='workdir-lock', daemon=True
  )
  beat.start()
  try:
    yield
  finally:
    stop.set()
    beat.join()
    release()


class _Lost(Exception):
  """Another job holds the workdir; says which."""


def _take_local(workdir, owner):
  path = pathlib.Path(str(workdir)) / NAME
  for attempt in range(_ATTEMPTS + 1):
    try:
      fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as e:
      why = 'is a link' if path.is_symlink() else f'cannot be opened ({e.strerror})'
      raise errors.UserError(f'{path} {why}: remove it, or take another --workdir.') from e
    try:
      fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
      other = _read_fd(fd)
      os.close(fd)
      _refuse(workdir, other)
    if attempt == _ATTEMPTS or _is_at(fd, path):
      break
    os.close(
      fd
      # Its owner removed it after it was opened here, or the disk numbers a file anew whenever it
      # is asked
    )
    time.sleep(0.1)
  other = _read_fd(fd)
  if other:
    # a disk whose flock does not reach the other host
    if other.get('host') != owner['host'] and _alive(other, owner):
      os.close(fd)
      _refuse(workdir, other)
    _say_stale(other)

  def write():
    # Not by a rename: the lock belongs to this file. A reader that meets half a line takes it as no
    # owner's.
    os.pwrite(fd, json.dumps({**owner, 'heartbeat': time.time()}).encode().ljust(512), 0)

  def beat_once():
    _check_ours(_read_fd(fd), owner)
    if not _is_at(fd, path):
      _check_ours(_read(path), owner)  # somebody's new lock, where ours was removed
    write()

  def release():
    with contextlib.suppress(OSError):
      if _is_at(fd, path) and (_read_fd(fd) or {}).get('token') == owner['token']:
        os.unlink(path)
    os.close(fd)

  write()
  return beat_once, release


def _take_remote(workdir, owner):
  path = workdir / NAME
  other = _read(path)
  if other and other.get('host') == owner['host']:
    if _alive(other, owner):
      _refuse(workdir, other)
    _say_stale(other)
  elif other:
    _outlast(workdir, path, other)
  write = lambda: storage.write_json(path, {**owner, 'heartbeat': time.time()})
  write()
  time.sleep(1.0)  # two that began together: the later write wins, the other sees it here
  now = _read(path)
  if not now or now.get('token') != owner['token']:
    _refuse(workdir, now)

  def beat_once():
    _check_ours(_read(path), owner)
    write()

  def release():
    try:
      now = _read(path)
      if now and now.get('token') == owner['token']:
        path.unlink(missing_ok=True)
    except Exception as e:  # whatever the storage raises: the next owner waits two minutes, no more
      print(f'WARNING: {path} could not be removed: {type(e).__name__}: {e}', flush=True)

  return beat_once, release


def _outlast(workdir, path, other):
  """Returns when another host's lease is released or has stood still; refuses if it moves."""
  # Its heartbeat is compared with itself, on our monotonic clock: the two hosts' clocks may be
  # minutes apart.
  begin = time.monotonic()
  print(
    f'The workdir is held by {_name(other)}: waiting {STALE_SECONDS:.0f} s at most to see whether '
    'it still lives.',
    flush=True,
  )
  while True:
    time.sleep(WATCH_SECONDS)
    asked = time.monotonic()  # before the read: what it returns is no older
    now = _read(path)
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
        f'error: {workdir} is now held by {e}, since this process slept for a while: it ends and '
        'saves nothing.',
        file=sys.stderr,
        flush=True,
      )
      _exit(3)
      return
    except Exception as e:  # whatever the storage raises: the next beat may get through
      print(
        f'WARNING: the heartbeat of the workdir lock could not be written: {type(e).__name__}: {e}',
        flush=True,
      )


# Not sys.exit, which ends a thread only, and not a signal, upon which the run would save into
# another's folder.
_exit = os._exit


def _check_ours(now, owner):
  if now and now.get('token') != owner['token']:
    raise _Lost(_name(now))


def _alive(other, owner) -> bool:
  if other.get('host') == owner['host'] and not _runs(other.get('pid')):
    return False
  return time.time() - other.get('heartbeat', 0) < STALE_SECONDS


def _runs(pid) -> bool:
  """False if this host has no such process."""
  if not isinstance(pid, int) or pid <= 0:
    return True
  try:
    os.kill(pid, 0)  # asks, sends nothing
  except ProcessLookupError:
    return False
  except OSError:  # another user's
    pass
  return True


def _say_stale(other):
  print(f'The workdir was held by {_name(other)}, which is gone; taking it over.', flush=True)


def _refuse(workdir, other):
  raise errors.TryAgain(
    f'{workdir} is in use by {_name(other or {})}: wait for it to end, stop it, or take another '
    '--workdir. '
    'An owner that died on another host is let go when its heartbeat has stood still for '
    f'{STALE_SECONDS:.0f} s.'
  )


def _name(other):
  return (
    f'process {other.get("pid", "?")} on {other.get("host", "?")} since {other.get("since", "?")}'
  )


def _is_at(fd, path) -> bool:
  """Whether the open file is the one that the path leads to."""
  try:
    return os.path.samestat(os.fstat(fd), os.lstat(path))
  except OSError:
    return False


def _read_fd(fd):
  return _parse(os.pread(fd, 4096, 0).decode('utf-8', 'replace'))


def _read(path):
  return _parse(path.read_text()) if path.exists() else None


def _parse(text):
  try:
    value = json.loads(text)
  except ValueError:
    return None
  return value if isinstance(value, dict) else None
