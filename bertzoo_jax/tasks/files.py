"""Where the examples of a task come from: tables on disk, datasets of tensorflow-datasets.

A source is one function in BY_NAME. It is called with the folder of the task and the fields of
`config.source`, and returns a `Source`. Labels stay as they are written; `labels.py` numbers them.
"""

from bertzoo_jax.common import errors
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
  """Files of rows; the fields are those of configs/tasks/parts.py:table.

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


def missing(config, task_dir) -> str:
  """Why the files of a task's train split are not there, in a sentence; '' if they are.

  config: a fine-tuning config. Datasets of tensorflow-datasets are looked for when they are read.
  """
  if 'files' not in config.source:
    return ''
  try:
    folders = config.source.name == 'choices'
    places.of(task_dir, {TRAIN: config.source.files.train}, folders)
  except errors.UserError as e:
    return str(e)
  return ''


BY_NAME = {
  'table': table,
  'tfds': datasets.tfds,
  'squad': questions.squad,
  'question_table': questions.table,
  'conll': tagged.conll,
  'tfds_tags': datasets.tfds_tags,
  'choices': choices.choices,
}
