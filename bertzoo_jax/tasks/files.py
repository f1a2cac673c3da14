"""Where the examples of a task come from: tables on disk, datasets of tensorflow-datasets.

A source is one function in BY_NAME. It is called with the folder of the task and the fields of
`config.source`, and returns a `Source`. Labels stay as they are written; `labels.py` numbers them.
"""

import hashlib
import os

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.tasks import columns as column_names
from bertzoo_jax.tasks import datasets
from bertzoo_jax.tasks import tables
from bertzoo_jax.tasks.examples import PREFIXES
from bertzoo_jax.tasks.examples import TRAIN
from bertzoo_jax.tasks.examples import Examples
from bertzoo_jax.tasks.examples import Source


def table(
  task_dir,
  *,
  files,
  text_a,
  text_b,
  label,
  example,
  header,
  columns,
  separator,
  quotes,
  labels,
  leave_out,
  where,
  dev_share,
) -> Source:
  """Files of rows; the fields are those of configs/tasks/parts.py:table.

  Args:
    task_dir: the folder of the files; '' for the current folder.

  Raises:
    UserError: a file, column or encoding is not as the config says.
  """
  form = dict(header=header, columns=tuple(columns), separator=separator, quotes=quotes)
  names = column_names.Names(text_a, text_b, label, example, tuple(where))
  splits, notes, digest = {}, [], hashlib.sha256()
  for split, path in _paths(task_dir, dict(files)).items():
    if path is None:
      notes.append(f'{split}: none of its files is in {task_dir or "."}.')
      continue
    data = tables.bytes_of(path)
    digest.update(f'{split} {len(data)} '.encode() + data)
    splits[split], more = tables.examples(data, path, split, names, form)
    notes += more
  names.check_example(task_dir or '.')

  def read(path) -> Examples:
    return tables.unlabelled(path, names.without_label(), **form)

  return Source(
    splits,
    tuple(labels),
    column_names.label_names(label),
    tuple(leave_out),
    dev_share,
    digest.hexdigest(),
    tuple(notes),
    read,
  )


def missing(config, task_dir) -> str:
  """Why the files of a task's train split are not there, in a sentence; '' if they are.

  config: a fine-tuning config. Datasets of tensorflow-datasets are looked for when they are read.
  """
  if config.source.name != 'table':
    return ''
  try:
    _paths(task_dir, {TRAIN: config.source.files.train})
  except errors.UserError as e:
    return str(e)
  return ''


# --- files ---


def _paths(task_dir, files) -> dict:
  """{split: path, None where an optional file is absent}; train is the first."""
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
    out[split] = next((p for p in looked_for if p.exists() and not p.is_dir()), None)
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


BY_NAME = {'table': table, 'tfds': datasets.tfds}
