"""Where the examples of a task come from: tables on disk, datasets of tensorflow-datasets.

A source is one function in BY_NAME. It is called with the folder of the task and the fields of
`config.source` (bertzoo_jax/parts/sources.py) by name, and returns a `Source`. Labels stay as they
are written; `labels.py` numbers them.
"""

import dataclasses
import os

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.parts import named
from bertzoo_jax.parts import sources as definitions
from bertzoo_jax.tasks import option_files
from bertzoo_jax.tasks.answering import questions
from bertzoo_jax.tasks.examples import TRAIN
from bertzoo_jax.tasks.examples import Source
from bertzoo_jax.tasks.reading import columns
from bertzoo_jax.tasks.reading import datasets
from bertzoo_jax.tasks.reading import files
from bertzoo_jax.tasks.reading import reader
from bertzoo_jax.tasks.reading import tagged


def table(fields: definitions.Table, task_dir) -> Source:
  """Files of rows. Raises UserError if a file, column or encoding is not as the config says."""
  wanted = columns.Columns(fields)
  source = reader.source(task_dir, fields, wanted.layout, **wanted.about())
  wanted.check(task_dir or '.')
  return source


def text_tuples(fields: definitions.TextTuples, task_dir) -> Source:
  """Files of rows with two texts or more. Errors: see `table`."""
  return table(fields, task_dir)


def squad(fields: definitions.Squad, task_dir) -> Source:
  """Questions of JSON files. Raises UserError if a file is missing, or is not of this shape."""
  if wrong := [x for x in fields.leave_out if x not in questions.LEAVE_OUT]:
    raise errors.UserError(
      f'config.source.leave_out has {wrong[0]!r}: it may have {" and ".join(questions.LEAVE_OUT)}.'
    )
  return _questions(fields, task_dir, questions.squad)


def question_table(fields: definitions.QuestionTable, task_dir) -> Source:
  """Questions of tables. Errors: see `squad`."""
  return _questions(fields, task_dir, questions.table)


def _questions(fields, task_dir, layout):
  lacking = 'answers: write "answers": [] for a question that its passage does not answer.'
  return reader.source(task_dir, fields, layout, 'questions', lacking, questions.remarks)


def conll(fields: definitions.Conll, task_dir) -> Source:
  """Files of tagged sentences. Raises UserError for one that is not as the config says."""
  finish = lambda splits: tagged.schemed(splits, fields.scheme, fields.convert)
  lacking = 'tags: write them after a tab.'
  more = dict(labels=tuple(fields.labels), label_columns=('tag',))
  return reader.source(task_dir, fields, tagged.conll, 'sentence', lacking, finish, **more)


def choice(fields: definitions.Choices, task_dir) -> Source:
  """Files of questions with options. Raises UserError for one that is not as the config says."""
  source = reader.source(
    task_dir,
    fields,
    option_files.choices,
    'questions',
    option_files.LACKING,
    lambda splits: option_files.numbered(splits, fields.label_form),
    folders=True,
    label_columns=('label',),
  )
  most = max((s.values[0].most for s in source.splits.values()), default=0)
  value = lambda record: record.value._replace(most=max(most, record.value.most))
  return dataclasses.replace(source, read=lambda path: source.read(path).changed(value))


def reading(section):
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
  """The folder of the files of one of several tasks, and '' or why there is none.

  It is `task_dir/NAME`, with the task's name as in its config, or `task_dir` itself. A file in
  `task_dir` itself that another task names too is not used: all tasks of CLUE have a train.tsv.

  config: of a fine-tuning. Datasets of tensorflow-datasets are looked for when they are read.
  task_dir: the folder of all tasks. others: configs of the other tasks.

  Returns (folder, ''), or ('', a sentence).
  """
  if 'files' not in config.source:
    return task_dir, ''
  folder = str(storage.path(os.path.join(task_dir or '', config.name)))
  if config.name and _train_of(config, folder)[0]:
    return folder, ''
  path, why = _train_of(config, task_dir)
  if path is None:
    return '', why
  for other in others:
    if other.name != config.name and 'files' in other.source:
      if _train_of(other, task_dir)[0] == path:
        return '', f'{path} may be of {config.name} or of {other.name}: move it to {folder}.'
  return task_dir, ''


def _train_of(config, folder):
  """(path of the train file, ''), or (None, why there is none)."""
  try:
    folders = config.source.name == 'choices'
    return files.find(folder, {TRAIN: config.source.files.train}, folders)[TRAIN], ''
  except errors.UserError as e:
    return None, str(e)


BY_NAME = {
  'table': table,
  'text_tuples': text_tuples,
  'tfds': datasets.tfds,
  'squad': squad,
  'question_table': question_table,
  'conll': conll,
  'tfds_tags': datasets.tfds_tags,
  'choices': choice,
}
