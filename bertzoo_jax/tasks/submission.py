"""Predictions on disk: JSON lines with probabilities, and the files that a benchmark takes."""

import json

import numpy as np

from bertzoo_jax.common import storage
from bertzoo_jax.tasks.task import Split
from bertzoo_jax.tasks.task import Task


def predictions(path, task: Task, split: Split, logits) -> None:
  """Writes one JSON object per example, in the order of its file.

  Its keys: example, text_a, text_b (of pairs); label and probabilities {label: probability}, or
  labels (those above 0.5) and probabilities, or score.

  Args:
    path: of the file.
    logits: float [N, C] in the order of the split.
  """
  logits = _checked(split, logits)
  lines = []
  for i in range(len(split)):
    line = {'example': split.examples[i], 'text_a': split.texts[i]}
    if split.second:
      line['text_b'] = split.second[i]
    lines.append(json.dumps({**line, **_answer(task, logits[i])}, ensure_ascii=False) + '\n')
  storage.write_text(path, ''.join(lines))


def benchmark(path, task: Task, split: Split, logits) -> None:
  """Writes a submission: a line `index<TAB>prediction`, then one line per example.

  A prediction is the label as the train file spells it, or a score with three decimals. The files
  of gluebenchmark.com are such; their names are in config.submission.

  Args: see `predictions`.
  """
  logits = _checked(split, logits)
  lines = ['index\tprediction\n']
  for i, example in enumerate(split.examples):
    if task.kind == 'regression':
      answer = f'{logits[i].item():.3f}'
    else:
      answer = task.labels[int(np.argmax(logits[i]))]
    lines.append(f'{example}\t{answer}\n')
  storage.write_text(path, ''.join(lines))


def _answer(task, logits) -> dict:
  if task.kind == 'regression':
    return {'score': round(logits.item(), 6)}
  if task.kind == 'multilabel':
    shares = 1 / (1 + np.exp(-np.clip(logits, -500, 500)))
    named = {label: round(float(p), 6) for label, p in zip(task.labels, shares)}
    return {
      'labels': [label for label, x in zip(task.labels, logits) if x > 0],
      'probabilities': named,
    }
  shares = np.exp(logits - logits.max())
  named = {label: round(float(p), 6) for label, p in zip(task.labels, shares / shares.sum())}
  return {'label': task.labels[int(np.argmax(logits))], 'probabilities': named}


def _checked(split, logits):
  logits = np.asarray(logits, np.float64)
  if len(logits) != len(split):
    raise ValueError(f'{len(logits)} predictions for {len(split)} examples of {split.name}')
  return logits.reshape(len(logits), -1)
