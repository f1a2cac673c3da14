"""Which files or dataset a --source names: PATTERN[#option] or tfds:NAME[#text_key]; input/sources.py reads them."""

import glob
import hashlib
import os
from typing import NamedTuple

from bertzoo_jax import errors
from bertzoo_jax import storage

_EDGE = 1 << 16  # bytes of each end of a file that tell it from another of its name and size


class Source(NamedTuple):
  """One --source: `name` as given, `option` after '#', `files` in order with their `sizes` in bytes (tfds: none, and one estimate)."""
  name: str
  option: str
  files: tuple[str, ...]
  sizes: tuple[int, ...]

  @property
  def bytes(self) -> int:
    return sum(self.sizes)

  def facts(self) -> dict:
    """What identifies the source in a plan and a manifest; of local files both ends are read too."""
    digest = hashlib.blake2b(digest_size=16)
    for file, size in zip(self.files, self.sizes):
      digest.update(f'{len(file)} {file} {size} '.encode('utf-8', 'surrogatepass'))
      if not storage.is_remote(file):
        with open(file, 'rb') as f:
          digest.update(f.read(_EDGE))
          f.seek(max(size - _EDGE, 0))
          digest.update(f.read(_EDGE))
    return dict(source=self.name, files=len(self.files), bytes=self.bytes, digest=digest.hexdigest())


def find(name: str) -> Source:
  """The files that a source names.

  Raises:
    UserError: none, a folder, or an unknown dataset.
  """
  ways = ((name, ''), name.rpartition('#')[::2], name.partition('#')[::2])
  pattern, option = next((way for way in ways if _is_file(way[0])), ways[-1])
  if pattern.startswith('tfds:'):
    return Source(name, option, (), (tfds_builder(pattern)[1],))
  files = _glob(pattern)
  if not files:
    raise errors.UserError(f'--source={name}: no file matches {pattern!r} (quote a pattern, so that the shell leaves it alone).')
  return Source(name, option, tuple(files), tuple(storage.path(f).stat().length for f in files))


def _is_file(name) -> bool:
  return not storage.is_remote(name) and os.path.isfile(os.path.expanduser(name))


def _glob(pattern):
  if not storage.is_remote(pattern):
    pattern = os.path.expanduser(pattern)
    if os.path.isfile(pattern):
      return [pattern]
    if os.path.isdir(pattern):
      raise errors.UserError(f'--source={pattern} is a folder: write {os.path.join(pattern, "**")!r} for every file in it.')
    return sorted(f for f in glob.glob(pattern, recursive=True) if os.path.isfile(f))
  if '**' in pattern:
    raise errors.UserError(f'--source={pattern}: in an object store ** is not understood, write a * for every level of folders (wiki/*/*).')
  parts = pattern.split('/')
  first = next((i for i, p in enumerate(parts) if glob.has_magic(p)), None)
  if first is None:
    return [pattern] if storage.path(pattern).exists() else []
  return sorted(str(p) for p in storage.path('/'.join(parts[:first])).glob('/'.join(parts[first:])) if not p.is_dir())


def tfds_builder(pattern):
  """A dataset's builder, downloaded if it must be, and the size of its train split in bytes."""
  try:
    import tensorflow_datasets as tfds
  except ImportError as e:
    raise errors.UserError(f'{pattern} needs TensorFlow Datasets and TensorFlow ({_brief(e)}): pip install them first.') from e
  name = pattern.removeprefix('tfds:')
  try:
    folder = storage.is_remote(name) or name.startswith(('/', '.', '~'))
    builder = tfds.builder_from_directory(os.path.expanduser(name)) if folder else tfds.builder(name)
    builder.download_and_prepare()
    size = int(builder.info.splits['train'].num_bytes)
  except Exception as e:  # tfds raises many kinds: an unknown name, no network, no train split, a build that needs Beam
    raise errors.UserError(f'{pattern}: TensorFlow Datasets cannot bring it ({type(e).__name__}: {_brief(e)}); '
                           'its data are looked for in $TFDS_DATA_DIR, or ~/tensorflow_datasets.') from e
  return builder, size


def _brief(e):
  return (str(e).strip().splitlines() or [type(e).__name__])[0][:200]
