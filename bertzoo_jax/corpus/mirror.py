"""Copies a corpus from an object store to the local disk, once: a request per row would be slow."""

import concurrent.futures
import contextlib
import hashlib
import os
import shutil

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.corpus import corpus

_BLOCK = 1 << 22
_THREADS = 8


def local(address, cache_dir, say=print):
  """The folder to open for the corpus at `address`: itself, or its mirror below `cache_dir` if it
  is in an object store.

  Files are streamed, and their SHA-256 is compared with the manifest. Files that are already there
  and match are kept, so an interrupted mirror continues. The manifest is written last: a mirror
  that has one is complete.

  address: corpus folder, local or gs://. cache_dir: local folder for mirrors, or None. say: prints
  a line.

  Raises UserError: no cache_dir for a remote corpus, too little space, a file that does not match
  the manifest, or a name in it that leads out of the corpus. Raises TransientError: the object
  store does not answer.
  """
  address = storage.path(address)
  if not storage.is_remote(address):
    return address
  if not cache_dir:
    raise errors.UserError(
      f'{address} is in an object store: give --cache_dir=FOLDER on a local disk (or RAM disk) to '
      'mirror it once.'
    )
  with storage.reading(f'The corpus {address}'):
    return _mirror(address, storage.path(cache_dir), say)


def _mirror(address, cache_dir, say):
  manifest = corpus.read_manifest(address)
  folder = cache_dir / f'corpus-{manifest["hash"][:16]}'
  if (folder / 'manifest.json').exists():
    return folder
  files = corpus.files(manifest)
  missing = {name: digest for name, digest in files.items() if not (folder / name).exists()}
  folder.mkdir(parents=True, exist_ok=True)
  needed = sum((address / name).stat().length for name in missing)
  free = shutil.disk_usage(os.fspath(folder)).free
  if needed > free:
    raise errors.UserError(
      f'The corpus {address} needs {needed / 1e9:.1f} GB below {folder}, which has '
      f'{free / 1e9:.1f} GB free: give a --cache_dir with more space.'
    )
  say(f'mirroring {address} to {folder}: {len(missing)} of {len(files)} files to fetch')
  with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
    for done in concurrent.futures.as_completed(
      [pool.submit(_fetch, address / n, folder / n, d) for n, d in missing.items()]
    ):
      done.result()
  storage.write_bytes(folder / 'manifest.json', (address / 'manifest.json').read_bytes())
  return folder


def _fetch(source, target, digest):
  """Streams one file to a temporary name, and renames it if its SHA-256 is the manifest's."""
  target.parent.mkdir(parents=True, exist_ok=True)
  part = target.parent / f'{target.name}.{os.getpid()}.part'

  def stream():
    sha = hashlib.sha256()
    with source.open('rb') as reader, part.open('wb') as writer:
      while block := reader.read(_BLOCK):
        sha.update(block)
        writer.write(block)
      storage.sync(writer)
    return sha.hexdigest()

  try:
    if storage.read_twice(stream, source, digest) != digest:
      raise errors.UserError(
        f"{source} is damaged (its SHA-256 is not the manifest's): prepare the corpus again into a "
        'new folder.'
      )
    part.replace(target)
  finally:
    with contextlib.suppress(OSError):
      part.unlink(missing_ok=True)
