"""Fine-tuning tasks: files → examples → rows of tokens → batches, and the scores of predictions.

On the host, with numpy. `open` is what commands call; each step is a file of this folder.
"""

import dataclasses
import hashlib
import json
import math

import numpy as np

from bertzoo_jax.common import hashing
from bertzoo_jax.parts import named
from bertzoo_jax.tasks import features
from bertzoo_jax.tasks import frames
from bertzoo_jax.tasks import kinds
from bertzoo_jax.tasks import labels as labels_lib
from bertzoo_jax.tasks.examples import PREFIXES
from bertzoo_jax.tasks.examples import TRAIN
from bertzoo_jax.tasks.kinds import kind as kind_lib
from bertzoo_jax.tasks.reading import sources
from bertzoo_jax.tasks.reading.sources import located as located
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
    segments: number of token types of the encoder; larger ids become 0.
    max_length: tokens of a row, at most.

  Raises UserError: a file, column, label or setting does not fit.
  """
  kind = kinds.get(config.objective.name)
  source = named.build(config.source, sources.BY_NAME, 'source', task_dir)
  kind_lib.check_parts(kind, config, source.splits)
  source = dataclasses.replace(source, caps={TRAIN: config.max_train, 'dev': config.max_dev})
  names, numbered, notes = labels_lib.numbered(source, kind)
  kind_lib.check_metrics(kind, config, source, names)
  more = dict(segments=segments, max_length=max_length)
  task = trained(config, names, {}, tokenizer, shape, **more)
  splits = {n: task.rows(*numbered[n], n) for n in sorted(numbered, key=_order)}

  def drawn(seed):
    out = {}
    for number, name in enumerate(splits):
      examples, array = numbered[name]
      examples = examples.take(_with_replacement(seed, number, len(examples)))
      array = None if array is None else kind.encode(examples, name, names, source)[0]
      out[name] = task.rows(examples, array, name)
    return dataclasses.replace(task, splits=out)

  task = dataclasses.replace(
    task,
    name=config.name,
    metrics=tuple(config.metrics),
    positive=config.positive,
    splits=splits,
    hash=_hash(source.digest, names, kind.name, splits),
    notes=(*source.notes, *notes),
    facts=kind.facts(names, splits[TRAIN]),
    read=lambda path, rows=task.rows: rows(source.read(path)),
    drawn=drawn,
  )
  if any(map(named.is_outside, (config.objective.name, *task.metrics))):
    kind_lib.try_out(task)
  return task


def trained(config, labels, facts, tokenizer, shape, *, segments, max_length) -> Task:
  """The task of a trained network, for predictions: it has no splits and reads no files.

  config: has objective and features. labels, facts: see Task; other arguments: see `open`.
  """
  kind = kinds.get(config.objective.name)
  frame = frames.Frame(shape.single, shape.pair, dict(tokenizer.special), segments, max_length)
  share = config.objective.threshold if 'threshold' in config.objective else 0.5

  def rows(examples, numbers=None, name='test'):
    return _split(config, tokenizer, frame, kind.label_form(labels), name, examples, numbers)

  return Task(
    name='',
    kind=kind,
    labels=tuple(labels),
    metrics=(),
    splits={},
    hash='',
    max_length=max_length,
    padding=shape.padding,
    pad=tokenizer.special['pad'],
    notes=(),
    facts=facts,
    rows=rows,
    logit_threshold=math.log(share / (1 - share)),
  )


def _split(config, tokenizer, frame, label_form, name, examples, numbers) -> Split:
  rows = named.build(
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


def _with_replacement(seed: int, split: int, count: int) -> np.ndarray:
  key = hashing.fold(hashing.fold(hashing.new_key(seed), hashing.DRAW), split)
  return hashing.below(hashing.bits(key, np.arange(count)), count)


def _order(name):
  """train, dev, other dev splits, test, …."""
  return PREFIXES.index(next(p for p in PREFIXES if name.startswith(p))), name


def _hash(digest, names, kind, splits) -> str:
  out = hashlib.sha256(json.dumps([digest, names, kind], ensure_ascii=False).encode())
  for name, split in splits.items():
    out.update(f'{name} {len(split)} '.encode())
    more = (*split.features.values(), *split.token_features.values())
    for array in (split.ids, split.segments, split.offsets, split.labels, *more):
      out.update(b'' if array is None else np.ascontiguousarray(array).tobytes())
  return out.hexdigest()
