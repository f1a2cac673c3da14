"""One job in a workdir. A second one is told who holds it; an owner that is gone does not hold it."""

import contextlib
import fcntl
import json
import os
import pathlib
import socket
import threading
import time
import uuid

from bertzoo_jax import errors
from bertzoo_jax import storage

NAME = 'lock'
HEARTBEAT_SECONDS = 20.0
STALE_SECONDS = 120.0


@contextlib.contextmanager
def hold(workdir):
  """Holds the workdir inside a `with`.

  On a local or shared disk the kernel holds it (flock) and lets go when the process ends, however it ends; where another
  host cannot see that, and on gs://, an owner counts as gone when its heartbeat is older than two minutes.

  Raises:
    UserError: another job has it, with host, process and since when.
  """
  workdir = storage.path(workdir)
  owner = {'host': socket.gethostname(), 'pid': os.getpid(), 'token': uuid.uuid4().hex, 'since': time.strftime('%Y-%m-%d %H:%M:%S')}
  take = _take_remote if storage.is_remote(workdir) else _take_local
  write, release = take(workdir, owner)
  stop = threading.Event()
  beat = threading.Thread(target=_beat, args=(write, stop), name='workdir-lock', daemon=True)
  beat.start()
  try:
    yield
  finally:
    stop.set()
    beat.join()
    release()


def _take_local(workdir, owner):
  fd = os.open(pathlib.Path(str(workdir)) / NAME, os.O_RDWR | os.O_CREAT, 0o644)
  try:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except OSError:
    other = _read_fd(fd)
    os.close(fd)
    _refuse(workdir, other)
  other = _read_fd(fd)
  if other:
    if other.get('host') != owner['host'] and _alive(other):  # a disk whose flock does not reach the other host
      os.close(fd)
      _refuse(workdir, other)
    _say_stale(other)

  def write(record):
    # Not by a rename: the lock belongs to this file. A reader that meets half a line takes it as no owner's.
    data = json.dumps(record).encode().ljust(512)
    os.pwrite(fd, data, 0)

  def release():
    os.ftruncate(fd, 0)
    os.close(fd)

  write({**owner, 'heartbeat': time.time()})
  return lambda: write({**owner, 'heartbeat': time.time()}), release


def _take_remote(workdir, owner):
  path = workdir / NAME
  other = _read(path)
  if other:
    if _alive(other):
      _refuse(workdir, other)
    _say_stale(other)
  write = lambda: storage.write_json(path, {**owner, 'heartbeat': time.time()})
  write()
  time.sleep(1.0)  # two that began together: the later write wins, the other sees it here
  now = _read(path)
  if not now or now.get('token') != owner['token']:
    _refuse(workdir, now)

  def release():
    now = _read(path)
    if now and now.get('token') == owner['token']:
      path.unlink(missing_ok=True)

  return write, release


def _beat(write, stop):
  while not stop.wait(HEARTBEAT_SECONDS):
    try:
      write()
    except OSError as e:
      print(f'WARNING: the heartbeat of the workdir lock could not be written: {e}', flush=True)


def _alive(other) -> bool:
  return time.time() - other.get('heartbeat', 0) < STALE_SECONDS


def _say_stale(other):
  print(f'The workdir was held by {_name(other)}, which is gone; taking it over.', flush=True)


def _refuse(workdir, other):
  raise errors.UserError(f'{workdir} is in use by {_name(other or {})}: wait for it to end, stop it, or take another --workdir. '
                         f'An owner that died on another host is let go {STALE_SECONDS:.0f} s after its last heartbeat.')


def _name(other):
  return f'process {other.get("pid", "?")} on {other.get("host", "?")} since {other.get("since", "?")}'


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
