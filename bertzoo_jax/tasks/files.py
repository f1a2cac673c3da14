"""Where the examples of a task come from: tables on disk, datasets of tensorflow-datasets.

A source is one function in BY_NAME. It is called with the folder of the task and the fields of
`config.source` (bertzoo_jax/parts/sources.py), and returns a `Source`. Labels stay as they are
written; `labels.py` numbers them.
"""

import os

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.tasks import choices
from bertzoo_jax.tasks import columns as column_names
from bertzoo_jax.tasks import datasets
from bertzoo_jax.tasks import places
from bertzoo_jax.tasks import questions
from bertzoo_jax.tasks import tables
from bertzoo_jax.tasks import tagged
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
  """Files of rows.

  Args:
    task_dir: the folder of the files; '' for the current folder.

  Raises:
    UserError: a file, column or encoding is not as the config says.
  """
  form = dict(header=header, columns=tuple(columns), separator=separator, quotes=quotes)
  names = column_names.Names(text_a, text_b, label, example, tuple(where))
  splits, notes, digest = places.read(
    task_dir, dict(files), lambda *file: tables.examples(*file, names, form)
  )
  names.check_example(task_dir or '.')

  def read(path) -> Examples:
    return tables.unlabelled(path, names.without_label(), **form)

  return Source(
    splits,
    tuple(labels),
    column_names.label_names(label),
    tuple(leave_out),
    dev_share,
    digest,
    tuple(notes),
    read,
  )


def located(config, task_dir: str, others=()) -> tuple[str, str]:
  """The folder of the files of one of several tasks, and '' or why it has none.

  It is `task_dir/NAME`, with the task's name as in its config, or `task_dir` itself. A file of
  `task_dir` itself that another task names, too, is nobody's: all of CLUE have a train.tsv.

  Args:
    config: of a fine-tuning. Datasets of tensorflow-datasets are looked for when they are read.
    task_dir: the folder of all tasks.
    others: configs of the other tasks.

  Returns:
    (folder, ''), or ('', a sentence).
  """
  if 'files' not in config.source:
    return task_dir, ''
  own = str(storage.path(os.path.join(task_dir or '', config.name)))
  if config.name and _train_of(config, own)[0]:
    return own, ''
  path, why = _train_of(config, task_dir)
  if path is None:
    return '', why
  for other in others:
    if other.name != config.name and 'files' in other.source:
      if _train_of(other, task_dir)[0] == path:
        return '', f'{path} may be of {config.name} or of {other.name}: move it to {own}.'
  return task_dir, ''


def _train_of(config, folder):
  """(path of the file to learn from, ''), or (None, why there is none)."""
  try:
    folders = config.source.name == 'choices'
    return places.of(folder, {TRAIN: config.source.files.train}, folders)[TRAIN], ''
  except errors.UserError as e:
    return None, str(e)


BY_NAME = {
  'table': table,
  'tfds': datasets.tfds,
  'squad': questions.squad,
  'question_table': questions.table,
  'conll': tagged.conll,
  'tfds_tags': datasets.tfds_tags,
  'choices': choices.choices,
}
