"""Kinds with one prediction per row of texts. Their output is `row`, [N, C]."""

import functools

import numpy as np

from bertzoo_jax import parts
from bertzoo_jax.common import errors
from bertzoo_jax.tasks import report
from bertzoo_jax.tasks.examples import TRAIN
from bertzoo_jax.tasks.examples import Text
from bertzoo_jax.tasks.kinds import kind as kind_lib


def kind(name, *, lines, answer, shown, gold, constant, **rest) -> kind_lib.Kind:
  """A kind of rows.

  Args:
    name: name of its objective.
    lines: task → lines of its report, the heading first.
    answer: (names of the labels, logits [C], logit above which one of several labels is predicted)
      → {key: value} of the prediction, for a line of predictions.
    shown: (names, logits) → the prediction in a submission.
    gold: (names, label) → the right answer in the words of `answer`.
    constant: (labels of train, names) → constant logits [C], for the majority baseline.
    rest: further fields of Kind.
  """

  def whole_report(task):
    _check_groups(task)
    out = [*lines(task), *report.length_lines(task)]
    for s in task.splits.values():
      if empty := sum(not key.strip('\x1f \t\n') for key in s.source.keys):
        out.append(f'{s.name}: {empty:,} examples have no text')
    return out + report.repeat_lines(task)

  def constant_outputs(task, split):
    logits = constant(task.splits[TRAIN].labels, task.labels)
    logits = np.atleast_1d(np.asarray(logits, np.float32)) + np.float32(task.logit_threshold)
    return {'row': np.broadcast_to(logits, (len(split), len(logits)))}

  def answers(task, split, outputs):
    out = []
    for i, logits in enumerate(_logits(split, outputs)):
      a, b = split.source.values[i][:2]
      line = {'example': split.examples[i], 'text_a': a, **({} if b is None else {'text_b': b})}
      out.append({**line, **answer(task.labels, logits, task.logit_threshold)})
    return out

  fields = dict(
    inputs=TEXTS,
    head='row_head',
    outputs={'row': 'rows'},
    metric_inputs=lambda task, split, outputs: (
      split.labels,
      np.asarray(outputs['row'], np.float64) - task.logit_threshold,
    ),
    answers=answers,
    gold=lambda task, split: [gold(task.labels, label) for label in split.labels],
    report=whole_report,
    submission=kind_lib.indexed(
      lambda task, logits: shown(task.labels, logits - task.logit_threshold),
      lambda task, split, outputs: _logits(split, outputs),
    ),
    constant=constant_outputs,
    labels_of=lambda names: {name: {'number': number} for number, name in enumerate(names)},
  )
  return kind_lib.Kind(name, **{**fields, **rest})


def _logits(split, outputs):
  logits = np.asarray(outputs['row'], np.float64)
  if len(logits) != len(split):
    raise ValueError(f'{len(logits)} predictions for {len(split)} examples of {split.name}')
  return logits.reshape(len(logits), -1)


def others(task) -> list:
  """The labelled splits other than train."""
  return [s for s in report.labelled(task).values() if s.name != TRAIN]


def _check_groups(task):
  """Raises UserError if a metric ranks rows within groups, and no two rows of dev share one."""
  known = task.kind.metrics
  ranking = [n for n in task.metrics if n in known and 'groups' in kind_lib.arguments(known[n])]
  for s in others(task) if ranking else ():
    if len(set(s.examples)) == len(s):
      raise errors.UserError(
        f'config.metrics has {ranking[0]!r}, which compares the rows of a question, but no two '
        f'rows of {s.name} share a question: name the column of the question, '
        '--config.source.example=NAME.'
      )


# --- labels ---


def _accept(several: bool, name: str, remedy: str):
  """Kind.accept of a kind whose label is one column, or several. remedy: of the message."""

  def accept(source):
    columns = source.label_columns
    if (len(columns) > 1) != several and source.splits[TRAIN].labels is not None:
      raise errors.UserError(
        f'config.source.label names {len(columns)} column{"s" if len(columns) > 1 else ""} '
        f'({", ".join(columns)}), and config.objective is {name}: {remedy}'
      )

  return accept


one_column = functools.partial(_accept, False)
several_columns = functools.partial(_accept, True)


def column_names(train, source) -> tuple[str, ...]:
  """Kind.names of a kind with a label per column."""
  return source.label_columns


def numbers(examples, split, remedy='') -> np.ndarray | None:
  """float32 [N, C], the numbers of each column; None for a test split without numbers. Raises
  UserError for a label that is no number; remedy: of the message.
  """
  values = [[number(label) for label in labels] for labels in examples.labels]
  for place, labels, parsed in zip(examples.places, examples.labels, values):
    if None in parsed:
      if split.startswith('test'):
        return None
      raise errors.UserError(
        f'{place} has the score {labels[parsed.index(None)]!r}, which is no number: mend the row'
        f'{remedy}.'
      )
  return np.array(values, np.float32)


def one_number(remedy):
  """Kind.encode of a kind with a number per row. remedy: of the message."""

  def encode(examples, split, names, source):
    scores = numbers(examples, split, remedy)
    if split == TRAIN and scores.min() == scores.max():
      raise errors.UserError(
        f'All scores of {split} are {scores[0, 0]:g}: without another one nothing can be learned.'
      )
    return None if scores is None else scores[:, 0], []

  return encode


def number(text) -> float | None:
  """Parses a finite number; None if the text is not numeric."""
  try:
    value = float(text)
  except ValueError:
    return None
  return value if np.isfinite(value) else None


# --- inputs ---


def _asked(x):
  row = (x,) if isinstance(x, str) else x
  return row if kind_lib.are_texts(row) and len(row) in (1, 2) else None


TEXTS = kind_lib.Inputs(
  value=Text,
  features=('texts',),
  unlabelled=lambda split, examples: (
    'config.source.label is empty: name the column of the label, --config.source.label=NAME.'
  ),
  asked='a text, or a pair of texts (a, b)',
  read=_asked,
  usual=lambda: (parts.table(files={}, text_a='text'), parts.texts()),
  columns=('text_a', 'text_b'),
)
