"""Kinds with one prediction per row: a class, a number, several labels. Their output is `row`."""

import functools

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.tasks import labels as labels_lib
from bertzoo_jax.tasks import metrics
from bertzoo_jax.tasks import report
from bertzoo_jax.tasks.examples import TRAIN
from bertzoo_jax.tasks.examples import Examples
from bertzoo_jax.tasks.kinds.kind import Kind
from bertzoo_jax.tasks.kinds.kind import ranks


def _labelled(task):
  return {s.name: s for s in task.splits.values() if s.labels is not None}


def _others(task):
  """Splits with labels that are not learned."""
  return [s for s in _labelled(task).values() if s.name != TRAIN]


def _class_lines(task):
  counts = {
    name: (np.bincount(s.labels, minlength=len(task.labels)), len(s))
    for name, s in _labelled(task).items()
  }
  common = int(np.argmax(counts[TRAIN][0]))
  shares = (f'{s.name} {np.mean(s.labels == common):.1%}' for s in _others(task))
  return [
    *report.label_lines(task.labels, counts),
    f'Majority baseline (always {task.labels[common]!r}), accuracy: {", ".join(shares)}',
  ]


def _mark_lines(task):
  counts = {name: (s.labels.sum(axis=0), len(s)) for name, s in _labelled(task).items()}
  usual = task.splits[TRAIN].labels.mean(axis=0) > 0.5
  shares = (
    f'{s.name} {np.mean(np.all((s.labels > 0.5) == usual, axis=1)):.1%}' for s in _others(task)
  )
  return [
    *report.label_lines(task.labels, counts),
    f'Baseline (each label as most of train has it), all right: {", ".join(shares)}',
  ]


def _score_lines(task):
  mean = task.splits[TRAIN].labels.mean()
  return [
    f'{name}: scores {s.labels.min():g} to {s.labels.max():g}, mean {s.labels.mean():.3f}; '
    f'always {mean:.3f} has a squared error of {np.mean((s.labels - mean) ** 2):.3f}'
    for name, s in _labelled(task).items()
  ]


def _check_groups(task):
  """Raises UserError if a metric ranks the rows of one name and no two rows of dev have one."""
  ranking = [n for n in task.metrics if n in task.kind.metrics and ranks(task.kind.metrics[n])]
  for s in _others(task) if ranking else ():
    if len(set(s.examples)) == len(s):
      raise errors.UserError(
        f'config.metrics has {ranking[0]!r}, which ranks the rows of one question, and no two rows '
        f'of {s.name} are of one: name the column of the question, --config.source.example=NAME.'
      )


def _report(label_lines, task):
  _check_groups(task)
  lines = [*label_lines(task), *report.length_lines(task)]
  for s in task.splits.values():
    if empty := sum(not key.strip('\x1f \t\n') for key in s.source.keys):
      lines.append(f'{s.name}: {empty:,} examples have no text')
  return lines + report.repeat_lines(task)


def _given(task, split, outputs):
  return split.labels, np.asarray(outputs['row'], np.float64)


def _of(constant, task, split):
  """The same outputs for all rows. constant: labels of train, names of labels → [C]."""
  said = constant(task.splits[TRAIN].labels, task.labels)
  said = np.atleast_1d(np.asarray(said, np.float32))
  return {'row': np.broadcast_to(said, (len(split), len(said)))}


def _lines(answer, task, split, outputs):
  out = []
  for i, logits in enumerate(_checked(split, outputs)):
    line = {'example': split.examples[i], 'text_a': split.source.a[i]}
    if split.source.b:
      line['text_b'] = split.source.b[i]
    out.append({**line, **answer(task.labels, logits)})
  return out


def _class(labels, logits):
  shares = np.exp(logits - logits.max())
  named = {label: round(float(p), 6) for label, p in zip(labels, shares / shares.sum())}
  return {'label': labels[int(np.argmax(logits))], 'probabilities': named}


def _number(labels, logits):
  del labels
  return {'score': round(logits.item(), 6)}


def _marks(labels, logits):
  shares = 1 / (1 + np.exp(-np.clip(logits, -500, 500)))
  return {
    'labels': [label for label, x in zip(labels, logits) if x > 0],
    'probabilities': {label: round(float(p), 6) for label, p in zip(labels, shares)},
  }


def _benchmark(shown, task, split, outputs, name):
  """A line `index<TAB>prediction`, then one line per example: the files of gluebenchmark.com."""
  lines = ['index\tprediction\n']
  for example, logits in zip(split.examples, _checked(split, outputs)):
    lines.append(f'{example}\t{shown(task.labels, logits)}\n')
  return {name: ''.join(lines)}


def _checked(split, outputs):
  logits = np.asarray(outputs['row'], np.float64)
  if len(logits) != len(split):
    raise ValueError(f'{len(logits)} predictions for {len(split)} examples of {split.name}')
  return logits.reshape(len(logits), -1)


def _check(kind, names, labels):
  of_two = [name for name in names if name in ('f1', 'mrr', 'map')]
  if of_two and kind == 'classification' and len(labels) != 2:
    raise errors.UserError(
      f'config.metrics has {of_two[0]!r}, which is of two classes, and there are {len(labels)}: '
      'take macro_f1.'
    )


def _kind(name, label_form, heading, lines, constant, answer, shown):
  return Kind(
    name=name,
    head='row_head',
    outputs={'row': 'rows'},
    takes=Examples,
    features=('texts',),
    numbered=functools.partial(labels_lib.numbered, kind=name),
    label_form=label_form,
    heading=heading,
    report=functools.partial(_report, lines),
    metrics={n: f for n, f in metrics.BY_NAME.items() if name in metrics.FITS[n]},
    given=_given,
    check=functools.partial(_check, name),
    constant=functools.partial(_of, constant),
    answers=functools.partial(_lines, answer),
    submission=functools.partial(_benchmark, shown),
  )


def _spelled(labels, logits):
  """The label as the train file spells it."""
  return labels[int(np.argmax(logits))]


def _marked(labels, logits):
  return ','.join(label for label, x in zip(labels, logits) if x > 0)


CLASSIFICATION = _kind(
  'classification',
  lambda labels: ((), np.int32),
  lambda task: f'{len(task.labels)} classes',
  _class_lines,
  lambda train, labels: np.bincount(train, minlength=len(labels)),
  _class,
  _spelled,
)
REGRESSION = _kind(
  'regression',
  lambda labels: ((), np.float32),
  lambda task: 'a score',
  _score_lines,
  lambda train, labels: np.mean(train),
  _number,
  lambda labels, logits: f'{logits.item():.3f}',
)
MULTILABEL = _kind(
  'multilabel',
  lambda labels: ((len(labels),), np.float32),
  lambda task: f'{len(task.labels)} labels, each true or false',
  _mark_lines,
  lambda train, labels: np.mean(train, axis=0) - 0.5,
  _marks,
  _marked,
)
