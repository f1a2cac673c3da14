"""Reads the files of a split by a layout, which yields records, into Examples."""

import hashlib
import os
import re
import warnings
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

from bertzoo_jax.common import errors
from bertzoo_jax.common import hub
from bertzoo_jax.common import storage
from bertzoo_jax.tasks import examples
from bertzoo_jax.tasks.reading import files


class File(NamedTuple):
  """A file of a split, for a layout: File → iterator of Records, Skipped and notes."""

  data: bytes
  path: Any
  split: str  # a test split may have no labels; labels of the split UNLABELLED are not read
  fields: Any  # the section config.source
  digest: Any  # to which the bytes of further files are added


def source(
  task_dir,
  fields,
  layout: Callable,
  unit='examples',
  lacking='',
  finish: Callable = lambda splits: (splits, []),
  folders=False,
  **more,
) -> examples.Source:
  """The Source of a task's files.

  Args:
    task_dir: see `files.find`. An optional file that is absent is a note.
    fields: has `files` and `dev_share` of config.source. Without files (None) nothing is read.
    layout: see File.
    unit, lacking: see `read`.
    finish: {split: examples} → ({split: examples}, notes), for all splits, or for UNLABELLED.
    folders: whether a name may be that of a folder with files of RACE.
    more: fields of the Source.
  """

  def read_all(paths, digest):
    splits, notes, more = {}, [], []
    for split, path in paths.items():
      if path is None:
        notes.append(f'{split}: none of its files is in {task_dir or "."}.')
        continue
      streams = (
        (one, one.name, layout(File(files.bytes_of(one, digest, name), one, split, fields, digest)))
        for one, name in _files(path, split, folders)
      )
      splits[split], split_notes = read(streams, split, path, unit, lacking)
      notes += split_notes
    if splits:
      splits, more = finish(splits)
    return splits, [*notes, *more]

  def alone(path):
    splits, notes = read_all({examples.UNLABELLED: path}, hashlib.sha256())
    for note in notes:
      warnings.warn(note, stacklevel=2)
    return splits[examples.UNLABELLED]

  digest = hashlib.sha256()
  paths = {} if fields.files is None else files.find(task_dir, dict(fields.files), folders)
  splits, notes = read_all(paths, digest)
  return examples.Source(
    splits,
    dev_share=fields.dev_share,
    digest=digest.hexdigest(),
    notes=tuple(notes),
    read=alone,
    **more,
  )


def _files(path, split, folders):
  """[(path, name in the digest)] of the files of an address of hub.data, a folder, or a file.

  Files of a folder are sorted by the numbers in their names.
  """
  if str(path).startswith(hub.PREFIX):
    return [(storage.path(one), split) for one in hub.data(str(path)).files]
  path = storage.path(path)
  if not folders or not path.is_dir():
    return [(path, split)]
  number = lambda p: int(re.sub(r'\D', '', p.stem) or 0)
  names = [os.path.join(at, name) for at, _, filenames in os.walk(str(path)) for name in filenames]
  paths = [storage.path(name) for name in names if name.endswith('.txt')]
  paths.sort(key=lambda p: (str(p.parent), number(p), p.name))
  return [(one, f'{split} {one.name}') for one in paths]


def read(
  streams, split: str, where, unit='examples', lacking=''
) -> tuple[examples.Examples, list[str]]:
  """(the examples of a split, notes about those left out).

  streams: [(file, its name, iterator of Records, Skipped and notes)]. Examples are numbered across
  files, those left out included. where: the split's address, for messages. unit: the name of
  examples. lacking: words after 'FILE, line 7 has no', if only other examples have a label.

  Raises UserError: no example; most examples of a file do not fit; only some have a label.
  """
  records, notes, number, alone = [], [], 0, ''
  for path, name, stream in streams:
    lost, before = {}, len(records)
    for one in stream:
      if isinstance(one, str):
        notes.append(one)
        continue
      if isinstance(one, examples.Skipped):
        lost.setdefault(one[1:], [0, one])[0] += 1
        alone = alone or one.alone
      else:
        called = str(number) if one.id is None else one.id
        records.append(examples.Record(f'{name}, {one.place}', called, one.value))
      number += 1
    lost = sorted(lost.values(), key=lambda item: not item[1].remedy)
    _check(path, len(records) - before, [item for item in lost if item[1].remedy])
    notes += [_note(split, name, *item) for item in lost]
  if not records:
    raise errors.UserError(f'{where} has no {alone or f"{unit}: copy the file again."}')
  out = examples.Examples(records)
  bare = [record for record in records if record.value.label is None]
  if 0 < len(bare) < len(records) and not split.startswith('test'):
    raise errors.UserError(f'{bare[0].place} has no {lacking}')
  return out.unlabelled() if bare or split == examples.UNLABELLED else out, notes


def _check(path, kept, faults):
  """Raises UserError if more is left out than kept. faults: [(how many, the first)]."""
  if (lost := sum(count for count, _ in faults)) > kept:
    count, first = max(faults, key=lambda item: item[0])
    unit = f'{first.unit or "row"}s'
    raise errors.UserError(
      f'{path}: {count:,} of {lost + kept:,} {unit} are {unit} {first.reason}, the first one in '
      f'{first.place}: {first.remedy}.'
    )


def _note(split, name, count, first) -> str:
  """The sentence about examples left out for one reason."""
  unit, prefix = (
    first.unit or first.place.partition(' ')[0],
    '' if split == examples.UNLABELLED else f'{split}: ',
  )
  if not first.place:
    return f'{prefix}{count:,} {unit} {first.reason} left out.'
  place = first.place if first.place.startswith(unit) else f'at {first.place}'
  return (
    f'{prefix}{count:,} {unit}{"s" if count > 1 else ""} of {name} {first.reason} left out, '
    f'the first is {place}.'
  )
