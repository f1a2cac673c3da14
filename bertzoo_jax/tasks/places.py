"""Finds the files of a task and reads them."""

import hashlib
import os
from collections.abc import Callable

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.tasks import columns as column_names
from bertzoo_jax.tasks import tables
from bertzoo_jax.tasks.examples import PREFIXES
from bertzoo_jax.tasks.examples import TRAIN


def read(task_dir, files, examples: Callable) -> tuple[dict, list[str], str]:
  """({split: its examples}, notes, SHA-256 of all bytes) of the files of a task.

  Args:
    task_dir, files: see `of`. An optional file that is absent is a note.
    examples: (bytes of a file, its path, split) → (examples, notes).
  """
  splits, notes, digest = {}, [], hashlib.sha256()
  for split, path in of(task_dir, files).items():
    if path is None:
      notes.append(absent(split, task_dir))
      continue
    data = tables.bytes_of(path)
    digest.update(f'{split} {len(data)} '.encode() + data)
    splits[split], more = examples(data, path, split)
    notes += more
  return splits, notes, digest.hexdigest()


def absent(split, task_dir) -> str:
  """The note about an optional file that is absent."""
  return f'{split}: none of its files is in {task_dir or "."}.'


def of(task_dir, files, folders=False) -> dict:
  """{split: path, None where an optional file is absent}; train is the first.

  files: {split: name in `task_dir`, 'NAME|NAME' or 'NAME?'}, as parts/sources.py:table says.
  folders: whether a name may be that of a folder.

  Raises UserError for a file that is not there, and for a split of another name.
  """
  for split, names in files.items():
    if not split.startswith(PREFIXES) or (split.startswith(TRAIN) and split != TRAIN):
      raise errors.UserError(
        f'config.source.files has a split {split!r}: splits are called train, dev… (scored) and '
        'test… (predicted).'
      )
    if not names and split == TRAIN:
      raise errors.UserError(
        'config.source.files.train is empty: name the file of examples, '
        '--config.source.files.train=FILE, in --task_dir or with its whole path.'
      )
  if TRAIN not in files:
    raise errors.UserError('config.source.files has no train: every task learns from a file.')
  out = {}
  for split in sorted(files, key=lambda s: (s != TRAIN, s)):
    if not files[split]:
      continue
    looked_for = [
      storage.path(os.path.join(task_dir or '', name))
      for name in files[split].removesuffix(column_names.OPTIONAL).split('|')
    ]
    out[split] = next((p for p in looked_for if p.exists() and (folders or not p.is_dir())), None)
    if out[split] is None and not files[split].endswith(column_names.OPTIONAL):
      remedy = (
        'set --task_dir to the folder of the task'
        if split == TRAIN
        else f"set --config.source.files.{split}='' if there is no such file"
      )
      raise errors.UserError(
        f'The {split} file {" or ".join(map(str, looked_for))} does not exist: {remedy}, or '
        f'--config.source.files.{split} to its path.'
      )
  return out
