"""Where the examples of a task come from: tables on disk, datasets of tensorflow-datasets.

A source is one function in BY_NAME. It is called with the folder of the task and the fields of
`config.source` (bertzoo_jax/parts/sources.py) by name, and returns a `Source`. Labels stay as they
are written; `labels.py` numbers them.
"""

import os

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.parts import named
from bertzoo_jax.parts import sources as definitions
from bertzoo_jax.tasks import choices
from bertzoo_jax.tasks.answering import questions
from bertzoo_jax.tasks.examples import TRAIN
from bertzoo_jax.tasks.examples import Source
from bertzoo_jax.tasks.reading import columns
from bertzoo_jax.tasks.reading import datasets
from bertzoo_jax.tasks.reading import files
from bertzoo_jax.tasks.reading import tagged


def table(fields: definitions.Table, task_dir) -> Source:
  """Files of rows. Raises UserError if a file, column or encoding is not as the config says."""
  wanted, known = columns.Columns.of_fields(fields), {}

  def read(path, split, digest):
    got = wanted.read(path, split, digest, fields)
    if not got:
      raise errors.UserError(f'{path} has no examples: copy the file again.')
    known.update(dict.fromkeys(got.known))
    return wanted.examples(got), got.notes(split)

  found = files.source(
    task_dir,
    fields,
    read,
    labels=tuple(fields.labels),
    label_columns=columns.label_names(fields.label),
    leave_out=tuple(fields.leave_out),
    stratified=fields.stratified,
  )
  if known:
    wanted.check(known, task_dir or '.')
  return found


def reader(section):
  """`Source.read` of the source of a trained network, whose own files need not be there.

  Raises UserError for a source that is code of the user's.
  """
  if named.is_outside(section['name']):

    def refuse(path):
      raise errors.UserError(
        f'{path} cannot be read: the run reads files by {section["name"]}. Read it in Python, and '
        'give the texts to bertzoo_jax.load(RUN).predict.'
      )

    return refuse
  none = {key: None for key in ('files', 'splits') if key in section}
  return named.build({**section, **none}, BY_NAME, 'source', '').read


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
    return files.find(folder, {TRAIN: config.source.files.train}, folders)[TRAIN], ''
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
