"""Paths that may be local or gs://, and the few file operations that must be atomic."""

import errno
import hashlib
import io
import json
import os
import re

import numpy as np
from etils import epath

# What libraries of object stores say in a name or a message, addresses aside. A code of the server
# is believed first, then what stays.
_SERVER_PASSES = re.compile(r'(http|code|status)\D{0,20}(408|429|50\d)\b', re.I)
_STAYS = re.compile(
  r'not ?found|no such|not '
  r'exist|exists|permission|forbidden|denied|unauth|credential|login|invalid|no space|disk '
  r'quota|read-only|'
  r'(http|code|status)\D{0,20}40[0134]\b',
  re.I,
)
_PASSES = re.compile(
  r'timed? ?out|deadline|unavailable|temporar(y|ily)|aborted|try '
  r'again|retr(y|ies)|\breset\b|resolve|connect|'
  r'too many requests',
  re.I,
)
_STAYING = {
  getattr(errno, name)
  for name in (
    'ENOENT',
    'EACCES',
    'EPERM',
    'EEXIST',
    'ENOTDIR',
    'EISDIR',
    'EROFS',
    'ENOSPC',
    'EDQUOT',
    'ENAMETOOLONG',
    'ELOOP',
    'EINVAL',
    'EFBIG',
    'ENOTSUP',
  )
}


def path(p) -> epath.Path:
  """A path object for a local or gs:// address; `~` is expanded."""
  p = epath.Path(p)
  return p if is_remote(p) else p.expanduser()


def absolute(p) -> epath.Path:
  """`path`, from the root: for libraries that insist."""
  p = path(p)
  return p if is_remote(p) else epath.Path(os.path.abspath(p))


def is_remote(p) -> bool:
  """True for object stores (gs://…), which neither append nor rename atomically."""
  return '://' in str(p) or str(p).startswith('/gs/') or str(p).startswith('gs:/')


def write_text(p, text: str) -> None:
  """Writes a whole small file so that a reader sees the old text or the new one, never a part."""
  write_bytes(p, text.encode('utf-8'))


def write_bytes(p, data: bytes) -> None:
  """As `write_text`, for bytes. An object store commits an object when its write is closed.

  The temporary name is this process's own: a worker that outlives its killed parent may still be
  writing the same file.
  """
  p = path(p)
  if is_remote(p):
    p.write_bytes(data)
    return
  part = p.parent / f'{p.name}.{os.getpid()}.part'
  part.write_bytes(data)
  part.replace(p)


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
  """Reads JSON written by `write_json`."""
  return json.loads(path(p).read_text())


def sha256(p, block: int = 1 << 22) -> str:
  """SHA-256 of a file's bytes, in hexadecimal; reads a block at a time."""
  digest = hashlib.sha256()
  with path(p).open('rb') as f:
    while data := f.read(block):
      digest.update(data)
  return digest.hexdigest()


def may_pass(e: Exception) -> bool:
  """Whether an error of a disk, a bucket or the network may be gone the next time; a wrong address,
  missing rights and a full disk are not.
  """
  if isinstance(
    e,
    (
      FileExistsError,
      FileNotFoundError,
      IsADirectoryError,
      NotADirectoryError,
      PermissionError,
      BrokenPipeError,
    ),
  ):
    return False
  if isinstance(e, (ConnectionError, TimeoutError)):
    return True
  if isinstance(e, OSError) and e.errno is not None:
    return e.errno not in _STAYING
  words = re.sub(r'\S*/\S*', '', f'{type(e).__name__} {e}')
  return bool(_SERVER_PASSES.search(words) or (_PASSES.search(words) and not _STAYS.search(words)))
