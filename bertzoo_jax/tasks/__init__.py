"""Fine-tuning tasks: files → examples → rows of tokens → batches, and the scores of predictions.

On the host, with numpy. `open` is what commands call; each step is a file of this folder.
"""

import functools
import hashlib
import json

import numpy as np

from bertzoo_jax.common import parts
from bertzoo_jax.tasks import features
from bertzoo_jax.tasks import files
from bertzoo_jax.tasks import labels
from bertzoo_jax.tasks import metrics
from bertzoo_jax.tasks.examples import PREFIXES
from bertzoo_jax.tasks.task import Split
from bertzoo_jax.tasks.task import Task


def open(config, task_dir, tokenizer, shape, *, segments: int, max_length: int) -> Task:
  """Reads a task.

  Args:
    config: a fine-tuning config (configs/tasks/parts.py:fine_tuning).
    task_dir: the folder of its files; '' for the current folder.
    tokenizer: has encode_as_transformers(list of texts) → list of int32 arrays, special
      {role: id}, and pieces.
    shape: has `single` and `pair`, the templates of rows ('cls:0 A:0 sep:0 B:{} sep:{}'), and
      `padding`, the side.
    segments: how many the encoder tells apart; larger numbers become 0.
    max_length: tokens of a row, at most.

  Raises:
    UserError: a file, column, label or setting does not fit.
  """
  source = parts.build(config.source, files.BY_NAME, 'source', task_dir)
  kind = labels.kind_of(config.objective.name)
  names, numbered, notes = labels.numbered(source, kind)
  metrics.check(config.metrics, kind, len(names))
  frame = features.Frame(shape.single, shape.pair, dict(tokenizer.special), segments, max_length)
  label_form = dict(
    label_shape=(len(names),) if kind == 'multilabel' else (),
    label_type=np.int32 if kind == 'classification' else np.float32,
  )
  split = functools.partial(_split, config, tokenizer, frame, label_form)
  splits = {name: split(name, *numbered[name]) for name in sorted(numbered, key=_order)}

  def read(path) -> Split:
    return split('test', source.read(path), None)

  return Task(
    name=config.name,
    kind=kind,
    labels=names,
    num_outputs=len(names) or 1,
    metrics=tuple(config.metrics),
    splits=splits,
    hash=_hash(source.digest, names, kind, splits),
    max_length=max_length,
    padding=shape.padding,
    pad=tokenizer.special['pad'],
    notes=(*source.notes, *notes),
    read=read,
  )


def missing(config, task_dir) -> str:
  """Why a task cannot be read from this folder, in a sentence; '' if its train file is there."""
  return files.missing(config, task_dir)


def _split(config, tokenizer, frame, label_form, name, examples, numbers) -> Split:
  rows = parts.build(
    config.features, features.BY_NAME, 'features', examples, tokenizer.encode_as_transformers, frame
  )
  return Split(
    name=name,
    ids=rows.ids,
    segments=rows.segments,
    offsets=rows.offsets,
    labels=numbers,
    examples=examples.ids,
    texts=examples.a,
    second=examples.b,
    uncut=rows.uncut,
    **label_form,
  )


def _order(name):
  """train, dev, other dev splits, test, …."""
  prefix = next(p for p in PREFIXES if name.startswith(p))
  return PREFIXES.index(prefix), name


def _hash(digest, names, kind, splits) -> str:
  out = hashlib.sha256(json.dumps([digest, names, kind], ensure_ascii=False).encode())
  for name, split in splits.items():
    out.update(f'{name} {len(split)} '.encode())
    for array in (split.ids, split.segments, split.offsets, split.labels):
      out.update(b'' if array is None else np.ascontiguousarray(array).tobytes())
  return out.hexdigest()
