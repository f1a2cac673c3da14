"""Paths that may be local or gs://, and the few file operations that must be atomic."""

import contextlib
import errno
import hashlib
import io
import json
import os
import secrets
import stat
import time

import numpy as np
from etils import epath
from etils.epath import backend

from bertzoo_jax.common import errors

# gRPC's, by number: TensorFlow's errors have the number, tensorstore's begin with the name.
_STATUSES = (
  'OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS '
  'PERMISSION_DENIED RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED '
  'INTERNAL UNAVAILABLE DATA_LOSS UNAUTHENTICATED'
).split()
# Errors that may pass, by type and code. Both clients end their retries with ABORTED; TensorFlow
# gives FAILED_PRECONDITION if the name of a host is not resolved; a full disk is
# RESOURCE_EXHAUSTED. The classes are of Python, aiohttp, requests, httpx, urllib, urllib3 and
# google.auth, by name, since these packages are optional.
_PASSING_STATUSES = ('DEADLINE_EXCEEDED FAILED_PRECONDITION ABORTED INTERNAL UNAVAILABLE').split()
_PASSING_HTTP = (408, 429, 500, 502, 503, 504)
_PASSING_CLASSES = (
  'ConnectionError TimeoutError Timeout TransportError ClientConnectionError ClientPayloadError '
  'ChunkedEncodingError IncompleteRead ProtocolError RetryError URLError'
).split()
# Connection errors that do not pass.
_STAYING_CLASSES = 'BrokenPipeError SSLError ClientConnectorCertificateError'.split()
_STAYING = (
  'ENOENT EACCES EPERM EEXIST ENOTDIR EISDIR EROFS ENOSPC EDQUOT ENAMETOOLONG ELOOP EINVAL EFBIG '
  'ENOTSUP EPIPE'
)
_STAYING_ERRNOS = [getattr(errno, name) for name in _STAYING.split()]
_MOST_READS = 5  # for one answer of an object store


class _Remote(type(epath.Path('gs://bucket'))):
  """An address in an object store. Its reads are `read_twice`: an answer has no checksum."""

  def exists(self):
    return read_twice(super().exists, self)

  def is_dir(self):
    return read_twice(super().is_dir, self)

  def stat(self):
    return read_twice(super().stat, self)

  def read_bytes(self):
    return read_twice(super().read_bytes, self)

  def iterdir(self):
    names = super().iterdir
    yield from read_twice(lambda: list(names()), self)

  def mkdir(self, *args, **kw):
    make = super().mkdir
    read_twice(lambda: make(*args, **kw), self, twice=False)

  def write_bytes(self, data):
    write = super().write_bytes
    read_twice(lambda: write(data), self, twice=False)


class _Local(type(epath.Path('file'))):
  """A local path, which is opened only if it leads to a file."""

  def open(self, mode='r', **kw):
    check_file(self)
    return super().open(mode, **kw)


class _HubPath(type(epath.Path('hf://name'))):
  """A file of the Hugging Face hub: epath would use TensorFlow, which does not support hf://."""

  _backend = backend.fsspec_backend


def read_twice(ask, what, right=NotImplemented, twice=True):
  """Reads from an object store until an answer comes twice or equals `right`, and returns it. An
  answer that the client cannot parse is requested again.

  ask: () → an answer. what: the address, for the message. right: the expected answer, such as a
  checksum. twice: False for a write, whose first answer counts. Raises TransientError if all
  differ.
  """
  answers = []
  for left in reversed(range(_MOST_READS)):
    try:
      with errors.needing(f'{what} needs a package', 'tpu'):
        answer = ask()
    except Exception as e:
      # The clients retry all other errors that may pass. NOT_FOUND must come twice: TensorFlow also
      # gives it for a list that it cannot read.
      unread = status(e) == 'INTERNAL'
      missing = status(e) == 'NOT_FOUND' or isinstance(e, FileNotFoundError)
      if not left or not (unread or missing) or (missing and FileNotFoundError in answers):
        raise
      answers += [FileNotFoundError] * missing
      time.sleep(0.1 * unread)
      continue
    if not twice or answer == right or answer in answers:
      return answer
    answers.append(answer)
  raise errors.TransientError(f'{what} gives other bytes at each read: run the same command again.')


def path(p) -> epath.Path:
  """A path object for a local or gs:// address; `~` is expanded."""
  if str(p).startswith('hf://'):
    return _HubPath(p)
  return _Remote(p) if is_remote(p) else _Local(p).expanduser()


def absolute(p) -> epath.Path:
  """`path` as an absolute path, for libraries that require one."""
  p = path(p)
  return p if is_remote(p) else epath.Path(os.path.abspath(p))


def resolved(p) -> epath.Path:
  """`path` with its links resolved: a link that changes later does not move the files."""
  p = path(p)
  if is_remote(p) or (real := os.path.realpath(p)) == os.path.abspath(p):
    return p
  return path(real)


def is_remote(p) -> bool:
  """True for object stores (gs://…), which neither append nor rename atomically."""
  return '://' in str(p) or str(p).startswith('/gs/') or str(p).startswith('gs:/')


def check_file(p) -> None:
  """Raises UserError for a pipe, a socket or a device: opening one may block for ever."""
  with contextlib.suppress(OSError, ValueError):
    mode = os.stat(os.fspath(p)).st_mode
    if not is_remote(p) and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
      raise errors.UserError(f'{p} is a pipe or a device, and no file: copy its content to a file.')


def check_new(p) -> None:
  """Raises UserError for a path that exists: no command overwrites a file."""
  if path(p).exists() or os.path.islink(p):
    raise errors.UserError(
      f'{p} exists and is not overwritten: give another name, or remove it first.'
    )


def addresses(text: str) -> list[str]:
  """Splits a list at its commas: files, folders, W@STEP, each with or without hf: before it. An
  existing file or folder with commas in its name stays whole.
  """
  words, out = os.fspath(text).split(','), []
  while words:
    joined = [','.join(words[:n]) for n in range(1, len(words) + 1)]
    size = next((n for n in range(len(words), 1, -1) if _is_there(joined[n - 1].strip())), 1)
    out.append(joined[size - 1].strip())
    del words[:size]
  return out


def _is_there(address) -> bool:
  name = address.removeprefix('hf:')
  return any(n and not is_remote(n) and path(n).exists() for n in (name, name.rpartition('@')[0]))


def write_text(p, text: str) -> None:
  """Writes a small file: a reader sees the old text or the new one, also after a loss of power."""
  write_bytes(p, text.encode('utf-8'))


def write_bytes(p, data: bytes) -> None:
  """As `write_text`, for bytes. An object store commits an object when its write is closed.

  The temporary name is new: a worker that outlives its killed parent may still be writing the same
  file, and a stranger's link of that name is not written through.
  """
  p = path(p)
  if is_remote(p):
    p.write_bytes(data)
    return
  part = p.parent / f'{p.name}.{secrets.token_hex(8)}.part'
  try:
    with open(part, 'xb') as f:
      f.write(data)
      sync(f)
    part.replace(p)
  except OSError:
    part.unlink(missing_ok=True)  # a part takes the space that a full disk lacks
    raise
  with contextlib.suppress(OSError):  # many file systems have no such call for a folder
    fd = os.open(os.fspath(p.parent), os.O_RDONLY)
    try:
      os.fsync(fd)
    finally:
      os.close(fd)


def append_line(p, text: str) -> None:
  """Appends a line to a text file. A last line without an end is ended first. An object store
  cannot append: there the whole object is written again.
  """
  p = path(p)
  line = text.encode('utf-8') + b'\n'
  before = p.read_bytes() if p.exists() else b''
  if before and not before.endswith(b'\n'):
    line = b'\n' + line
  if is_remote(p) or not before:
    write_bytes(p, before + line)
    return
  with appending(p) as f:
    f.write(line)
    sync(f)


def appending(p):
  """A local file, opened to append bytes, and created if absent. Raises UserError for a link."""
  check_file(p)
  try:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    return open(os.open(p, flags, 0o666), 'ab')
  except OSError as e:
    if e.errno != errno.ELOOP:
      raise
    raise errors.UserError(
      f'{p} is a link, and links are not followed: put the file itself there, or remove it.'
    ) from e


def sync(f) -> None:
  """Waits until the bytes of an open local file are on the disk."""
  f.flush()
  try:
    os.fsync(f.fileno())
  except OSError as e:
    if e.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that have no such call
      raise


def is_at(fd: int, p) -> bool:
  """Whether an open local file is the one that a path leads to."""
  try:
    return os.path.samestat(os.fstat(fd), os.lstat(p))
  except OSError:
    return False


def write_array(p, array: np.ndarray) -> str:
  """Writes a .npy file as `write_bytes` does; returns the SHA-256 of its bytes."""
  buffer = io.BytesIO()
  np.save(buffer, array, allow_pickle=False)
  write_bytes(p, buffer.getvalue())
  return hashlib.sha256(buffer.getvalue()).hexdigest()


def write_json(p, value) -> None:
  """Writes JSON, indented, UTF-8, atomically."""
  # A file name that is not UTF-8 arrives as lone surrogates: these leave as JSON's own escapes and
  # come back the same.
  write_bytes(
    p, (json.dumps(value, indent=1, ensure_ascii=False) + '\n').encode('utf-8', 'backslashreplace')
  )


def read_json(p):
  """Reads JSON written by `write_json`. Raises ValueError if the file holds no JSON."""
  return _parse(path(p).read_bytes())


def read_json_lines(p) -> tuple[list[dict], int]:
  """(the objects of a file with one per line, number of unreadable lines); ([], 0) without a file.

  A last line without an end, which a kill cut short, is left out and not counted.
  """
  p = path(p)
  if not p.exists():
    return [], 0
  lines = p.read_bytes().split(b'\n')
  out, unreadable = [], 0
  for number, line in enumerate(lines, 1):
    try:
      value = _parse(line)
      if not isinstance(value, dict):
        raise ValueError('no object')
      out.append(value)
    except ValueError:
      unreadable += bool(line.strip()) and number < len(lines)
  return out, unreadable


def _parse(data: bytes):
  try:
    return json.loads(data.decode('utf-8'))
  except RecursionError as e:
    raise ValueError('nested too deeply') from e


@contextlib.contextmanager
def reading(what):
  """Turns errors inside the `with` that may pass into a TransientError that names `what`."""
  try:
    yield
  except errors.UserError:
    raise
  except Exception as e:  # every storage has other errors
    if not may_pass(e):
      raise
    raise errors.TransientError(
      f'{what} could not be read ({errors.named(e, 300)}): run the same command again.'
    ) from e


def has_sha256(p, digest: str) -> bool:
  """Whether a file's bytes have this SHA-256; in an object store, False only after two reads."""
  compute = lambda: sha256(p)
  return (read_twice(compute, p, digest) if is_remote(p) else compute()) == digest


def sha256(p, block: int = 1 << 22) -> str:
  """SHA-256 of a file's bytes, in hexadecimal; reads a block at a time."""
  digest = hashlib.sha256()
  with path(p).open('rb') as f:
    while data := f.read(block):
      digest.update(data)
  return digest.hexdigest()


_PROGRAM_ERRORS = (ArithmeticError, AssertionError, AttributeError, ImportError, LookupError)
_PROGRAM_ERRORS += (MemoryError, NameError, NotImplementedError, RecursionError, TypeError)


def is_error_of_storage(e: BaseException) -> bool:
  """Whether an error may come from a disk, a bucket or the network. False for a mistake of the
  program, such as a TypeError, and for a UserError. A ValueError is an error of storage only if it
  has a status, as tensorstore's have.
  """
  if isinstance(e, errors.UserError):
    return False
  if isinstance(e, ValueError) and not isinstance(e, OSError):
    return status(e) is not None
  return isinstance(e, OSError) or not isinstance(e, _PROGRAM_ERRORS)


def status(e: BaseException) -> str | None:
  """The gRPC status of an error of TensorFlow's or tensorstore's, such as 'NOT_FOUND'.

  tensorstore's errors are ValueErrors, 'STATUS: Error reading ADDRESS: …'. It omits the status
  INVALID_ARGUMENT, which it also gives for an answer that it cannot parse. So an error without a
  status, for an address gs:// or with the driver gcs in its spec, counts as INTERNAL.
  """
  number = getattr(e, 'error_code', None)
  if isinstance(number, int) and 0 < number < len(_STATUSES):
    return _STATUSES[number]
  if not isinstance(e, ValueError):
    return None
  begin = str(e).partition(': ')[0]
  if begin in _STATUSES:
    return begin
  remote = 'gs://' in begin or '"driver":"gcs"' in str(e).replace('\\', '')
  return 'INTERNAL' if begin.startswith('Error ') and remote else None


def http_code(e: BaseException) -> int | None:
  """The code of an HTTP answer that an error carries: of gcsfs, google.api_core and urllib as
  `code`, of aiohttp as `status`, of requests and httpx in its `response`.
  """
  holders = (e, 'code'), (e, 'status'), (getattr(e, 'response', None), 'status_code')
  codes = [getattr(holder, name, None) for holder, name in holders]
  return next((code for code in codes if isinstance(code, int) and 400 <= code < 600), None)


def may_pass(e: BaseException) -> bool:
  """Whether an error of a disk, a bucket or the network is transient; a wrong address, missing
  permissions and a full disk are not. If neither type nor code tells, the error's cause decides.
  """
  if isinstance(e, OSError) and e.errno is not None:
    return e.errno not in _STAYING_ERRNOS
  if code := http_code(e):
    return code in _PASSING_HTTP
  if code := status(e):
    return code in _PASSING_STATUSES
  names = {kind.__name__ for kind in type(e).__mro__}
  if not names.isdisjoint(_STAYING_CLASSES):
    return False
  cause = e.__cause__
  return not names.isdisjoint(_PASSING_CLASSES) or cause is not None and may_pass(cause)
