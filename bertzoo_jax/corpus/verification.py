"""Checks that the files of a corpus still have the bytes that `prepare` wrote.

CORPUS/verified.json holds a note per file: its SHA-256, size, modification time and inode, and when
it was last read. A disk can change bits while size, time and inode stay the same. So a file is read
again when its note is older than RENEWED. Every start also reads at least SAMPLE bytes again,
beginning with the files that were read longest ago.
"""

import concurrent.futures
import json
import os
import random
import time

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage

RENEWED = 7 * 24 * 3600  # seconds, after which a file is read again
SAMPLE = 1 << 28  # bytes that every start reads again at least
_NOTES = 'verified.json'
_THREADS = 16  # that hash files: hashlib lets go of the interpreter


def compare(path, wished: dict[str, str]) -> None:
  """Compares files with their SHA-256: files that changed since they were last verified, files
  whose note is old, and a sample of the others.

  path: of the corpus. wished: {path in the corpus: SHA-256}. Raises UserError: one is missing or
  differs; it names the first.
  """
  now, noted = time.time(), _noted(path)
  stamps = {file: _stamp(path / file) for file in wished}
  known = {
    file: noted[file][-1]
    for file, digest in wished.items()
    if stamps[file] and noted.get(file, [])[:-1] == [digest, *stamps[file]]
  }
  # a clock that was set back makes a note old, too
  known = {file: at for file, at in known.items() if 0 <= now - at < RENEWED}
  suspects = {*(wished.keys() - known.keys()), *_sample(known, stamps)}
  require(path, {file: digest for file, digest in wished.items() if file in suspects})
  notes = {
    file: [digest, *stamps[file], now if file in suspects else known[file]]
    for file, digest in wished.items()
  }
  try:
    storage.write_bytes(path / _NOTES, json.dumps(notes).encode())
  except OSError:
    pass  # a folder that may only be read: then all is read at each start


def require(path, wished: dict[str, str]) -> None:
  """Reads files and raises UserError for the first whose SHA-256 is not the wished one."""
  digest_of = lambda file: storage.sha256(path / file) if _stamp(path / file) else None
  with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
    for file, digest in zip(wished, pool.map(digest_of, wished)):
      if digest != wished[file]:
        pool.shutdown(cancel_futures=True)
        state = "damaged (its SHA-256 is not the manifest's)" if digest else 'missing'
        raise errors.damaged_corpus(f'{path / file} is {state}')


def _sample(known, stamps):
  """The files read longest ago, SAMPLE bytes in total; ties are broken at random."""
  size = 0
  for file in sorted(known, key=lambda file: (known[file], random.random())):
    if size >= SAMPLE:
      return
    size += stamps[file][0]
    yield file


def _noted(path) -> dict:
  try:
    noted = storage.read_json(path / _NOTES)
  except (OSError, ValueError):
    return {}
  if not isinstance(noted, dict):
    return {}
  return {
    file: note
    for file, note in noted.items()
    if isinstance(note, list) and note and isinstance(note[-1], (int, float))
  }


def _stamp(file):
  """[size, modification time, inode], which a write changes; None if there is no file."""
  try:
    status = os.stat(os.fspath(file))
  except OSError:
    return None
  return [status.st_size, status.st_mtime_ns, status.st_ino]
