"""Keeps reading and writing inside a folder that a stranger may have made: names that its files
give, and links in it. A hard link cannot be told from a file.
"""

import os
import pathlib
import re

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage


def inside(folder, name: str):
  """The path of a file in a folder, local or gs://, by a name that another file gives.

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
  The current folder ('' and '.') has links of the user's.
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
        found = list(entries)
    except OSError:  # absent, or deleted meanwhile; nothing is opened there
      continue
    for entry in found:
      if entry.is_symlink():
        inside(top, os.path.relpath(entry.path, top))
      elif entry.is_dir():
        below += [entry.path] * (entry.name != 'wandb')  # it keeps links to its own logs there
      elif not entry.is_file():
        storage.check_file(entry.path)
