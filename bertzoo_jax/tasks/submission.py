"""Predictions on disk: JSON lines with probabilities, tables, files that a benchmark takes."""

import json
import re

from bertzoo_jax.common import storage
from bertzoo_jax.tasks.task import Split
from bertzoo_jax.tasks.task import Task


def predictions(path, task: Task, split: Split, outputs) -> None:
  """Writes one JSON object per example, in the order of its file: `answers` of the task's kind.

  path: path of the file. outputs: outputs of the network, in the order of the split.
  """
  storage.write_text(path, json_lines(task.kind.answers(task, split, outputs)))


def json_lines(lines: list[dict]) -> str:
  return ''.join(json.dumps(line, ensure_ascii=False) + '\n' for line in lines)


def tab_separated(lines: list[dict]) -> str:
  """A table with a header: a column per key, and one per label for probabilities. Words and tags of
  a sentence have blanks between. Tabs and line ends in texts become blanks.
  """
  rows = [dict(_cells(line)) for line in lines]
  names = list(dict.fromkeys(name for row in rows for name in row))
  table = [names, *([row.get(name, '') for name in names] for row in rows)]
  return ''.join(
    '\t'.join(re.sub(r'[\t\r\n]', ' ', str(cell)) for cell in row) + '\n' for row in table
  )


def _cells(line):
  for key, value in line.items():
    if key == 'others':
      yield 'probability', value[0]['probability'] if value else ''
    elif isinstance(value, dict):
      # a prediction may itself be a dict of numbers
      what = 'probability of' if key == 'probabilities' else key
      yield from ((f'{what} {label}', number) for label, number in value.items())
    elif isinstance(value, list):
      yield key, ' '.join('' if x is None else str(x) for x in value)
    else:
      yield key, '' if value is None else value


def benchmark(path, task: Task, split: Split, outputs) -> None:
  """Writes the files of a submission, the first at `path`. Args: see `predictions`."""
  path.parent.mkdir(parents=True, exist_ok=True)
  for name, text in task.kind.submission(task, split, outputs, path.name).items():
    storage.write_text(path.parent / name, text)
