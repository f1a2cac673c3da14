"""Finds the files or dataset of a --source: PATTERN[#option], tfds:NAME[#text_key] or
hf:NAME[/CONFIG][@REVISION][:SPLIT][#text_key]; sources.py reads them.

A local file or folder with exactly that name, * # and [ ] included, comes first.
"""

import contextlib
import glob
import hashlib
import inspect
import os
import re
import sys
from typing import NamedTuple

from bertzoo_jax.common import errors
from bertzoo_jax.common import folders
from bertzoo_jax.common import hub
from bertzoo_jax.common import storage
from bertzoo_jax.common import trust
from bertzoo_jax.text import binaries
from bertzoo_jax.text import unpacking

_EDGE = 1 << 16  # bytes at each end of a file, which identify it together with its name and size
_BRACKET = ', and write [[] for a [ in a name'
_WEIGHT = re.compile(r'(\d+\.?\d*|\.\d+)\*')  # a weight, which --source does not have


class Source(NamedTuple):
  """One --source."""

  name: str  # as --source gives it
  option: str  # after '#'
  files: tuple[str, ...]  # in order; none of a dataset
  sizes: tuple[int, ...]  # bytes of each file; of a dataset one estimate
  dataset: str = ''  # 'tfds:NAME'
  again: tuple[str, ...] = ()  # files left out because links lead to them twice
  data: dict | None = None  # hub.Data.facts; None for other files

  @property
  def bytes(self) -> int:
    """Bytes that a Reader reads."""
    return sum(self.sizes)

  def facts(self) -> dict:
    """Identifies the source in a plan and manifest, by both ends of each local file."""
    digest = hashlib.blake2b(digest_size=16)
    for file, size in zip(self.files, self.sizes):
      digest.update(f'{len(file)} {file} {size} '.encode('utf-8', 'surrogatepass'))
      if not storage.is_remote(file):
        with open(file, 'rb') as f:
          digest.update(f.read(_EDGE))
          f.seek(max(size - _EDGE, 0))
          digest.update(f.read(_EDGE))
    return dict(
      source=self.name,
      files=len(self.files),
      bytes=sum(self.sizes),
      digest=digest.hexdigest(),
      **({} if self.data is None else {'data': self.data}),
    )


def find(name: str) -> Source:
  """The files that a source names.

  Raises UserError: none, a folder, or an unknown dataset.
  """
  ways = (name, ''), name.rpartition('#')[::2], name.partition('#')[::2]
  pattern, option = next((way for way in ways if _is_there(way[0])), ways[-1])
  is_local = os.path.exists(pattern.partition('/')[0])
  if pattern.startswith('tfds:') and not is_local:
    return Source(name, option, (), (tfds_builder(pattern)[1],), pattern)
  data = hub.data(pattern) if pattern.startswith(hub.PREFIX) and not is_local else None
  files = data.files if data else _glob(pattern)
  if not files:
    raise errors.UserError(
      f'--source={name}: no file matches {pattern!r} (quote a pattern, so that the shell leaves it '
      f'alone{_BRACKET if "[" in pattern else ""}).'
      + ' A text that is to be read more often is a corpus of its own: see config.mixture.'
      * bool(_WEIGHT.match(name))
    )
  files, again = _once(files)
  for file in files:
    if not storage.is_remote(file):
      with storage.path(file).open('rb') as f:  # fails now, not an hour later
        raw = f.read(binaries.HEAD)
        f.seek(0)
        binaries.refuse_source(raw, unpacking.inside(f, raw, binaries.HEAD), file)
  sizes = tuple(storage.path(f).stat().length for f in files)
  return Source(name, option, files, sizes, again=again, data=data and data.facts)


def _is_there(pattern) -> bool:
  """Whether a local file has this name, or a pattern with a # matches a folder or files."""
  path = os.path.expanduser(pattern)
  if storage.is_remote(pattern) or os.path.isfile(path):
    return not storage.is_remote(pattern)
  return '#' in pattern and (os.path.isdir(path) or bool(_local(pattern)))


def _local(pattern) -> list[str]:
  """The files of a pattern. Folders with exactly that name, * and [ ] included, come first."""
  *folders, last = os.path.expanduser(pattern).split('/')
  literal = 0
  while literal < len(folders) and os.path.isdir('/'.join(folders[: literal + 1]) or '/'):
    literal += 1
  paths = set(_matching([*map(glob.escape, folders[:literal]), *folders[literal:], last]))
  for path in paths:
    if os.path.islink(path) and not os.path.exists(path):
      binaries.refuse(os.fsencode(os.readlink(path)), path)  # git-annex keeps a file behind a link
  return sorted(filter(os.path.isfile, paths))


def _matching(words):
  """The paths of a pattern, split at its slashes; ** matches folders of any depth."""
  if '**' not in words:
    return glob.glob('/'.join(words))
  at = words.index('**')
  tops = glob.glob('/'.join(words[:at]) or '/') if at else ['']
  behind = words[at + 1 :] or ['*']
  return [
    path
    for top in tops
    for folder in _folders(top)
    for path in _matching([*filter(None, [glob.escape(folder)]), *behind])
  ]


def _folders(top):
  """A folder and its subfolders, each once, even if links form a cycle; names that begin with a dot
  are left out. Real folders come before those that links lead to.
  """
  seen, real, links = set(), [top], []
  while real or links:
    folder = real.pop() if real else links.pop(0)
    if (place := os.path.realpath(folder)) in seen or not os.path.isdir(place):
      continue
    seen.add(place)
    yield folder
    with contextlib.suppress(PermissionError):
      for entry in os.scandir(folder or '.'):
        # not entry.is_dir(), which raises for a link to itself
        if os.path.isdir(entry.path) and not entry.name.startswith('.'):
          (links if entry.is_symlink() else real).append(os.path.join(folder, entry.name))
    links.sort()


def _once(files) -> tuple[tuple[str, ...], tuple[str, ...]]:
  """(files, those that are links to an earlier one)."""
  kept, again = {}, []
  for file in files:
    place = file if storage.is_remote(file) else os.path.realpath(file)
    if kept.setdefault(place, file) != file:
      again.append(file)
  return tuple(kept.values()), tuple(again)


def _glob(pattern):
  if not storage.is_remote(pattern):
    pattern = os.path.expanduser(pattern)
    if os.path.isfile(pattern):
      return [pattern]
    if os.path.isdir(pattern):
      raise errors.UserError(
        f'--source={pattern} is a folder: write {os.path.join(pattern, "**")!r} for every file in '
        'it.'
      )
    return _local(pattern)
  if '**' in pattern:
    raise errors.UserError(
      f'--source={pattern}: in an object store ** is not understood, write a * for every level of '
      'folders (wiki/*/*).'
    )
  parts = pattern.split('/')
  first = next((i for i, p in enumerate(parts) if glob.has_magic(p)), None)
  if first is None:
    return [pattern] if storage.path(pattern).exists() else []
  paths = storage.path('/'.join(parts[:first])).glob('/'.join(parts[first:]))
  return sorted(str(p) for p in paths if not p.is_dir())


# --- TensorFlow datasets ---


def tfds_builder(pattern):
  """A dataset's builder, downloaded if it must be, and the size of its train split in bytes.

  Raises UserError: it cannot be downloaded, or building it needs a cluster.
  """
  _refuse_common_crawl(pattern)
  name = pattern.removeprefix('tfds:')
  folder = storage.is_remote(name) or name.startswith(('/', '.', '~'))
  places = '$TFDS_DATA_DIR, or ~/tensorflow_datasets'
  with trust.datasets(pattern, 'pip install them first', places) as tfds:
    if folder:
      folders.check_links(os.path.expanduser(name))
    make = tfds.builder_from_directory if folder else tfds.builder
    builder = make(os.path.expanduser(name))
    if (
      not builder.is_prepared()
      and _is_built_with_beam(type(builder))
      and not tfds.is_dataset_on_gcs(builder.info.full_name)
    ):
      raise errors.UserError(
        f'{pattern} is not available prepared, and TensorFlow Datasets would build it with '
        'Beam for days: build it on a cluster (tensorflow.org/datasets/beam_datasets) and set '
        '$TFDS_DATA_DIR, or bring its text as JSON lines or parquet.'
      )
    builder.download_and_prepare()
    folders.check_dataset(builder)
    return builder, int(builder.info.splits['train'].num_bytes)


def _refuse_common_crawl(pattern):
  """Refuses C4, made of terabytes of Common Crawl, before TensorFlow Datasets is imported."""
  dataset, _, config = pattern.removeprefix('tfds:').partition(':')[0].partition('/')
  if dataset not in ('c4', 'mc4') or _is_prepared(dataset, config):
    return
  if dataset == 'mc4' or config.startswith('multilingual'):
    files, note = 'multilingual/c4-LANG.*.json.gz', ', LANG being a language such as et'
  else:
    folder = config if config in ('realnewslike', 'en.noclean', 'en.noblocklist') else 'en'
    files = f'{folder}/c4-train.*.json.gz'
    note = ', which has no webtextlike' if config.startswith('webtext') else ''
  raise errors.UserError(
    f'{pattern} would start a Beam job over terabytes of Common Crawl. Download its result '
    'instead, which Hugging Face has as JSON lines: hf download allenai/c4 --repo-type dataset '
    f"--local-dir c4 --include '{files}'{note}; then take --source 'c4/{files}'. (Data that are "
    'prepared already are looked for in $TFDS_DATA_DIR, or ~/tensorflow_datasets.)'
  )


def _is_prepared(dataset, config):
  root = storage.path(os.environ.get('TFDS_DATA_DIR', '~/tensorflow_datasets'))
  folder = root / dataset / config if config else root / dataset
  return any(True for levels in ('*', '*/*') for _ in folder.glob(f'{levels}/dataset_info.json'))


def _is_built_with_beam(builder) -> bool:
  with contextlib.suppress(OSError, TypeError, KeyError):  # it is made of a folder of files
    source = inspect.getsource(sys.modules[builder.__module__])
    marks = r'lazy_imports\.apache_beam|import apache_beam|BeamBasedBuilder'
    return re.search(marks, source) is not None
  return False
