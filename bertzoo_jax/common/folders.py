"""Keeps reads and writes inside a folder of unknown origin: checks its links, and the file names in
its files. Hard links cannot be detected.
"""

import contextlib
import errno
import fcntl
import glob
import os
import pathlib
import re
import shutil
import tempfile

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage


def inside(folder, name: str):
  """The path of a file in a folder, local or gs://, for a name from another file.

  Raises UserError for a name that leads out of the folder, by itself or by a link. Links of the
  hub's cache, from snapshots/REVISION to blobs, are followed.
  """
  folder = storage.path(folder)
  if not _is_plain(name):
    raise errors.UserError(
      f'{folder} has a file that names {str(name)[:200]!r}, which is not a name inside this '
      'folder: nothing was read there. Take another folder.'
    )
  if not storage.is_remote(folder):
    root, real = os.path.realpath(folder), os.path.realpath(folder / name)
    homes = root, re.sub(r'/snapshots/[^/]+(/.*)?\Z', '/blobs', root)
    if not any(os.path.join(real, '').startswith(os.path.join(home, '')) for home in homes):
      raise errors.UserError(
        f'{folder / name} is, or lies behind, a link that leads out of {folder}, to {real!r}: put '
        f'the files themselves there. {folder} itself may be a link.'
      )
  return folder / name


def check_files(folder: str, paths) -> None:
  """Raises UserError for a path that does not begin with `folder`, or leads out of it."""
  for path in map(str, paths):
    inside(folder, path.removeprefix(folder))


def check_given(folder, path) -> None:
  """Raises UserError if a path in a local folder is, or has, a link that leads out of the folder.
  The current folder ('' and '.') is not checked: its links are the user's.
  """
  if path and folder not in (None, '', '.') and not storage.is_remote(folder):
    beside = os.path.relpath(path, storage.path(folder))
    if not beside.startswith('..'):
      inside(folder, beside)
      check_links(path)


def check_dataset(builder) -> None:
  """Raises UserError for a prepared dataset (TFDS) that has its files outside its folder."""
  check_links(builder.data_dir)
  for split in builder.info.splits.values():
    check_files(f'{builder.data_dir}/', split.filepaths)


def _is_plain(name) -> bool:
  """Whether a name goes down only: not absolute, without '..', '.', '//', backslash and NUL."""
  if not isinstance(name, str) or re.search(r'[\\\0\ud800-\udfff]', name):
    return False
  path = pathlib.PurePosixPath(name)
  return str(path) == name != '.' and not path.is_absolute() and '..' not in path.parts


def check_links(folder) -> None:
  """Raises UserError for the first link in a local folder that leads out of it, and for a pipe."""
  top = str(storage.path(folder))
  below = [] if storage.is_remote(top) else [top]
  while below:
    try:
      with os.scandir(below.pop()) as entries:
        children = list(entries)
    except OSError:  # absent or just deleted; nothing is opened there
      continue
    for entry in children:
      if entry.is_symlink():
        inside(top, os.path.relpath(entry.path, top))
      elif entry.is_dir():
        below += [entry.path] * (entry.name != 'wandb')  # wandb keeps links to its logs there
      elif not entry.is_file():
        storage.check_file(entry.path)


@contextlib.contextmanager
def scratch(out, what: str = 'an export'):
  """Yields a temporary folder: beside a local `out`, so that it can be renamed; in the system's
  temporary folder for gs://. Folders that killed exports to `out` left are removed.

  An export holds a lock on its folder while it lives. The folder above is locked while folders are
  listed and made, so no folder is seen before it is locked.

  what: the command that builds, for the line about folders that are removed.
  """
  parent = pathlib.Path(tempfile.gettempdir() if storage.is_remote(out) else str(out.parent))
  parent.mkdir(parents=True, exist_ok=True)
  prefix = f'.{out.name}.export-'
  with contextlib.ExitStack() as held:
    with contextlib.ExitStack() as briefly:
      alone = _lock(parent, briefly)
      for stale in sorted(parent.glob(f'{glob.escape(prefix)}*')) if alone else ():
        with contextlib.ExitStack() as dead:
          if _lock(stale, dead, fcntl.LOCK_NB):
            print(f'removed: {stale}, left by {what} that was killed')
            shutil.rmtree(stale, ignore_errors=True)
      folder = tempfile.mkdtemp(dir=parent, prefix=prefix)
      _lock(folder, held)
      held.callback(shutil.rmtree, folder, ignore_errors=True)  # before its lock is released
    yield folder


def _lock(folder, stack, mode=0) -> bool:
  """Locks a folder until `stack` closes; False on file systems that cannot lock."""
  try:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    stack.callback(os.close, handle)
    fcntl.flock(handle, fcntl.LOCK_EX | mode)
  except OSError:
    return False
  return True


def check_free(out) -> None:
  """Raises UserError if `out` exists and is not an empty folder."""
  if os.path.islink(out) or out.exists() and (not out.is_dir() or any(out.iterdir())):
    raise _taken(out)


def _taken(out):
  return errors.UserError(f'{out} exists and is not empty: choose another --out, or remove it.')


def install(directory: pathlib.Path, out) -> None:
  """Renames the finished directory to `out`; for gs:// copies it, the weights last."""
  if not storage.is_remote(out):
    directory.chmod(0o755)  # a temporary folder is private
    try:
      directory.rename(out)  # also replaces an empty folder
    except OSError as e:
      if e.errno not in (errno.ENOTEMPTY, errno.EEXIST):
        raise
      raise _taken(out) from e
    return
  files = [path for path in directory.rglob('*') if path.is_file()]
  for path in sorted(files, key=lambda p: p.name == 'model.safetensors'):
    storage.write_bytes(out / str(path.relative_to(directory)), path.read_bytes())
