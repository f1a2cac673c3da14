"""Where the files of a task are."""

import os

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.tasks import columns as column_names
from bertzoo_jax.tasks.examples import PREFIXES
from bertzoo_jax.tasks.examples import TRAIN


def of(task_dir, files, folders=False) -> dict:
  """{split: path, None where an optional file is absent}; train is the first.

  files: {split: name in `task_dir`, 'NAME|NAME' or 'NAME?'}, as configs/tasks/parts.py:table says.
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
