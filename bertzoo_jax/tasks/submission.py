"""Predictions on disk: JSON lines with probabilities, and the files that a benchmark takes."""

import json

from bertzoo_jax.common import storage
from bertzoo_jax.tasks.task import Split
from bertzoo_jax.tasks.task import Task


def predictions(path, task: Task, split: Split, outputs) -> None:
  """Writes one JSON object per example, in the order of its file: `answers` of the task's kind.

  Args:
    path: of the file.
    outputs: of the network, in the order of the split.
  """
  lines = task.kind.answers(task, split, outputs)
  storage.write_text(path, ''.join(json.dumps(x, ensure_ascii=False) + '\n' for x in lines))


def benchmark(path, task: Task, split: Split, outputs) -> None:
  """Writes the files of a submission, of which the first has the name of `path`. Args: see
  `predictions`.
  """
  path.parent.mkdir(parents=True, exist_ok=True)
  for name, text in task.kind.submission(task, split, outputs, path.name).items():
    storage.write_text(path.parent / name, text)
