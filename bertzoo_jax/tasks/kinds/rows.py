"""Kinds with one prediction per row: a class, a number, several labels. Their output is `row`."""

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.tasks import labels as labels_lib
from bertzoo_jax.tasks import metrics
from bertzoo_jax.tasks import report
from bertzoo_jax.tasks.examples import TRAIN
from bertzoo_jax.tasks.examples import Examples
from bertzoo_jax.tasks.kinds.kind import ranks


class Classes:
  """One of several classes."""

  def label_form(self, names):
    return (), np.int32

  def lines(self, task):
    counts = {
      name: (np.bincount(s.labels, minlength=len(task.labels)), len(s))
      for name, s in _labelled(task).items()
    }
    return [f'{len(task.labels)} classes', *report.class_lines(task.labels, counts)]

  def gold(self, names, label):
    return names[label]

  def constant(self, train, names):
    return np.bincount(train, minlength=len(names))

  def answer(self, names, logits, above):
    shares = np.exp(logits - logits.max())
    named = {label: round(float(p), 6) for label, p in zip(names, shares / shares.sum())}
    return {'label': names[int(np.argmax(logits))], 'probabilities': named}

  def shown(self, names, logits):
    """The label as the train file spells it."""
    return names[int(np.argmax(logits))]


class Score:
  """A number."""

  def label_form(self, names):
    return (), np.float32

  def lines(self, task):
    mean = task.splits[TRAIN].labels.mean()
    return ['a score'] + [
      f'{name}: scores {s.labels.min():g} to {s.labels.max():g}, mean {s.labels.mean():.3f}; '
      f'always {mean:.3f} has a squared error of {np.mean((s.labels - mean) ** 2):.3f}'
      for name, s in _labelled(task).items()
    ]

  def gold(self, names, label):
    return label.item()

  def constant(self, train, names):
    return np.mean(train)

  def answer(self, names, logits, above):
    return {'score': round(logits.item(), 6)}

  def shown(self, names, logits):
    return f'{logits.item():.3f}'


class Marks:
  """Several labels, each true or false."""

  def label_form(self, names):
    return (len(names),), np.float32

  def lines(self, task):
    counts = {name: (s.labels.sum(axis=0), len(s)) for name, s in _labelled(task).items()}
    usual = task.splits[TRAIN].labels.mean(axis=0) > 0.5
    shares = (
      f'{s.name} {np.mean(np.all((s.labels > 0.5) == usual, axis=1)):.1%}' for s in _others(task)
    )
    return [
      f'{len(task.labels)} labels, each true or false',
      *report.label_lines(task.labels, counts),
      f'Baseline (each label as most of train has it), all right: {", ".join(shares)}',
    ]

  def gold(self, names, label):
    return [name for name, x in zip(names, label) if x > 0.5]

  def constant(self, train, names):
    return np.mean(train, axis=0) - 0.5

  def answer(self, names, logits, above):
    shares = 1 / (1 + np.exp(-np.clip(logits, -500, 500)))
    return {
      'labels': [label for label, x in zip(names, logits) if x > above],
      'probabilities': {label: round(float(p), 6) for label, p in zip(names, shares)},
    }

  def shown(self, names, logits):
    return ','.join(label for label, x in zip(names, logits) if x > 0)


class Rows:
  """A kind of rows; see kind.py."""

  head, outputs = 'row_head', {'row': 'rows'}
  takes, features = Examples, ('texts',)

  def __init__(self, name, of):
    """of: Classes(), Score() or Marks()."""
    self.name, self._of = name, of
    self.label_form, self.metrics = of.label_form, metrics.BY_KIND[name]
    self.of_label = {} if name == 'regression' else metrics.OF_LABEL

  def labels_of(self, names):
    return {name: {'number': number} for number, name in enumerate(names)}

  def numbered(self, source):
    return labels_lib.numbered(source, self.name)

  def facts(self, names, train):
    return {}

  def check(self, config, source, names):
    known = self.of_label if config.positive else ()
    of_two = [name for name in config.metrics if name in metrics.OF_TWO and name not in known]
    if of_two and self.name == 'classification' and len(names) != 2:
      raise errors.UserError(
        f'config.metrics has {of_two[0]!r}, which is of two classes, and there are {len(names)}: '
        f'take macro_f1{f", or {of_two[0]}/LABEL" if of_two[0] in self.of_label else ""}.'
      )

  def report(self, task):
    self._check_groups(task)
    lines = [*self._of.lines(task), *report.length_lines(task)]
    for s in task.splits.values():
      if empty := sum(not key.strip('\x1f \t\n') for key in s.source.keys):
        lines.append(f'{s.name}: {empty:,} examples have no text')
    return lines + report.repeat_lines(task)

  def _check_groups(self, task):
    """Raises UserError if a metric ranks the rows of one name and no two rows of dev have one."""
    ranking = [n for n in task.metrics if n in self.metrics and ranks(self.metrics[n])]
    for s in _others(task) if ranking else ():
      if len(set(s.examples)) == len(s):
        raise errors.UserError(
          f'config.metrics has {ranking[0]!r}, which ranks the rows of one question, and no two '
          f'rows of {s.name} are of one: name the column of the question, '
          '--config.source.example=NAME.'
        )

  def given(self, task, split, outputs):
    return split.labels, np.asarray(outputs['row'], np.float64) - task.above

  def gold(self, task, split):
    return [self._of.gold(task.labels, x) for x in split.labels]

  def constant(self, task, split):
    said = self._of.constant(task.splits[TRAIN].labels, task.labels)
    said = np.atleast_1d(np.asarray(said, np.float32)) + np.float32(task.above)
    return {'row': np.broadcast_to(said, (len(split), len(said)))}

  def answers(self, task, split, outputs):
    out = []
    for i, logits in enumerate(_checked(split, outputs)):
      line = {'example': split.examples[i], 'text_a': split.source.a[i]}
      if split.source.b:
        line['text_b'] = split.source.b[i]
      out.append({**line, **self._of.answer(task.labels, logits, task.above)})
    return out

  def submission(self, task, split, outputs, file):
    """A line `index<TAB>prediction`, then one line per example: the files of gluebenchmark.com."""
    lines = ['index\tprediction\n']
    for example, logits in zip(split.examples, _checked(split, outputs)):
      lines.append(f'{example}\t{self._of.shown(task.labels, logits - task.above)}\n')
    return {file: ''.join(lines)}


def _labelled(task):
  return {s.name: s for s in task.splits.values() if s.labels is not None}


def _others(task):
  """Splits with labels that are not learned."""
  return [s for s in _labelled(task).values() if s.name != TRAIN]


def _checked(split, outputs):
  logits = np.asarray(outputs['row'], np.float64)
  if len(logits) != len(split):
    raise ValueError(f'{len(logits)} predictions for {len(split)} examples of {split.name}')
  return logits.reshape(len(logits), -1)
