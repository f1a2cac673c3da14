"""Fine-tuning tasks: files → examples → rows of tokens → batches, and the scores of predictions.

On the host, with numpy. `open` is what commands call; each step is a file of this folder.
"""

import functools
import hashlib
import json

import numpy as np

from bertzoo_jax.common import parts
from bertzoo_jax.tasks import features
from bertzoo_jax.tasks import kinds
from bertzoo_jax.tasks import sources
from bertzoo_jax.tasks.examples import PREFIXES
from bertzoo_jax.tasks.kinds.kind import check_metrics
from bertzoo_jax.tasks.kinds.kind import check_parts
from bertzoo_jax.tasks.sources import located as located
from bertzoo_jax.tasks.task import Split
from bertzoo_jax.tasks.task import Task


def open(config, task_dir, tokenizer, shape, *, segments: int, max_length: int) -> Task:
  """Reads a task.

  Args:
    config: a fine-tuning config (bertzoo_jax/parts/experiments.py:fine_tuning).
    task_dir: the folder of its files; '' for the current folder.
    tokenizer: has encode_as_transformers(list of texts) → list of int32 arrays,
      encode_with_offsets, special {role: id}, and pieces.
    shape: has `single` and `pair`, the templates of rows ('cls:0 A:0 sep:0 B:{} sep:{}'), and
      `padding`, the side.
    segments: how many the encoder tells apart; larger numbers become 0.
    max_length: tokens of a row, at most.

  Raises:
    UserError: a file, column, label or setting does not fit.
  """
  kind = kinds.of(config.objective.name)
  source = parts.build(config.source, sources.BY_NAME, 'source', task_dir)
  check_parts(kind, config, source)
  names, numbered, notes = kind.numbered(source)
  check_metrics(kind, config.metrics, names)
  frame = features.Frame(shape.single, shape.pair, dict(tokenizer.special), segments, max_length)
  split = functools.partial(_split, config, tokenizer, frame, kind.label_form(names))
  splits = {name: split(name, *numbered[name]) for name in sorted(numbered, key=_order)}

  def read(path) -> Split:
    return split('test', source.read(path), None)

  return Task(
    name=config.name,
    kind=kind,
    labels=names,
    metrics=tuple(config.metrics),
    splits=splits,
    hash=_hash(source.digest, names, kind.name, splits),
    max_length=max_length,
    padding=shape.padding,
    pad=tokenizer.special['pad'],
    notes=(*source.notes, *notes),
    read=read,
  )


def _split(config, tokenizer, frame, label_form, name, examples, numbers) -> Split:
  rows = parts.build(
    config.features, features.BY_NAME, 'features', examples, numbers, tokenizer, frame
  )
  return Split(
    name=name,
    examples=examples.ids,
    source=examples,
    label_shape=label_form[0],
    label_type=label_form[1],
    **vars(rows),
  )


def _order(name):
  """train, dev, other dev splits, test, …."""
  prefix = next(p for p in PREFIXES if name.startswith(p))
  return PREFIXES.index(prefix), name


def _hash(digest, names, kind, splits) -> str:
  out = hashlib.sha256(json.dumps([digest, names, kind], ensure_ascii=False).encode())
  for name, split in splits.items():
    out.update(f'{name} {len(split)} '.encode())
    more = (*split.features.values(), *split.token_features.values())
    for array in (split.ids, split.segments, split.offsets, split.labels, *more):
      out.update(b'' if array is None else np.ascontiguousarray(array).tobytes())
  return out.hexdigest()
