"""The common part of all kinds of task: metrics by name, parts.

A kind is a class of one of the files beside this one; `kinds.BY_NAME` has them. Legend: N units of
a split, T tokens of all its rows, C labels. Outputs of a network are {name: float32 array} in the
order of a split: [N, …] if the kind calls them 'rows', [T, …] beside `split.ids` if 'tokens'.
A kind has

    name, head            names of its objective, and of its head among the parameters
    outputs               {name of an output: 'rows' | 'tokens'}
    takes, features       class of its examples; names of the parts that make rows of them
    metrics, of_label     {name: function(*given) → float}; those with a label as one more argument
    labels_of(names)      {name of a label: what such a metric is given}
    numbered(source)      (names of the labels, {split: (examples, labels or None)}, notes)
    label_form(names)     (shape of the labels of one unit, dtype)
    facts(names, train)   {name: value} that predictions need to know of the train split, as JSON
    check(config, source, names)    raises UserError if a metric or an example does not fit
    report(task)          lines for the user: '2 classes', then labels, baseline, lengths, oddities
    given(task, split, outputs)     arguments of a metric
    gold(task, split)               the right answer of each example, in the words of `answers`
    constant(task, split)           outputs that are the same for all; None if there are none
    answers(task, split, outputs)   [dict], one line of predictions per example
    submission(task, split, outputs, file)    {name of a file: its text}
"""

import functools
import inspect
from collections.abc import Callable

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.parts import named
from bertzoo_jax.tasks import metrics


def score(names, task, split, outputs) -> dict[str, float]:
  """{metric: value}; all are nan if an output is not finite (a run that diverged).

  Args:
    names: metrics of the task's kind, NAME/LABEL, or package.module:name.
    task: Task.
    split: Split with labels.
    outputs: of the network.
  """
  if not all(np.isfinite(x).all() for x in outputs.values()):
    return {name: float('nan') for name in names}
  given = task.kind.given(task, split, outputs)
  found = {n: metric(task.kind, n, task.labels, task.positive) for n in names}
  groups = lambda f: {'groups': split.examples} if ranks(f) else {}
  return {n: float(f(*given, **groups(f))) for n, f in found.items()}


def metric(kind, name: str, names, positive: str = '') -> Callable:
  """A metric by name. positive: its label, where the name has none. Raises UserError if unknown."""
  of, mark, label = name.partition('/')
  if not mark and positive:
    label = positive
  if not label or of not in kind.of_label:
    return named.resolve(name, kind.metrics, 'metrics')
  own = errors.choose(label, kind.labels_of(names), 'label')
  return functools.partial(kind.of_label[of], **own)


def ranks(metric: Callable) -> bool:
  """Whether a metric ranks the rows of one name, which it is given as `groups`."""
  try:
    return 'groups' in inspect.signature(metric).parameters
  except ValueError:  # inspect cannot read the arguments of some C functions
    return False


def check_metrics(kind, config, source, labels) -> None:
  """Raises UserError if there is no metric, or one does not exist or does not fit.

  labels: names of the labels.
  """
  names = config.metrics
  if not names:
    raise errors.UserError("config.metrics is empty: name at least one, as in ('accuracy',).")
  if config.positive:
    errors.choose(config.positive, kind.labels_of(labels), 'positive')
  for name in names:
    metric(kind, name, labels, config.positive)
  if names[0] in metrics.NO_CHOICE:
    raise errors.UserError(
      f'config.metrics begins with {names[0]!r}, which is no score that is better where it is '
      'higher: the first metric chooses the best run, so name another one first.'
    )
  kind.check(config, source, labels)


def check_parts(kind, config, splits) -> None:
  """Raises UserError if config.source or config.features is of another kind of task. splits: {name:
  examples}.
  """
  for split, examples in splits.items():
    if not isinstance(examples, kind.takes):
      raise errors.UserError(
        f'config.source={config.source.name} reads {type(examples).__name__.lower()} ({split}), '
        f'and config.objective={config.objective.name} learns from {kind.takes.__name__.lower()}: '
        'take the source and the objective of one task of configs/tasks/.'
      )
  name = config.features.name
  if ':' not in name and name not in kind.features:
    raise errors.UserError(
      f'config.features={name} does not fit config.objective={config.objective.name}: take '
      f'{" or ".join(kind.features)}.'
    )
