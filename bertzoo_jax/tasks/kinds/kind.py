"""What one kind of fine-tuning task does that others do not."""

import inspect
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.parts import named


class Kind(NamedTuple):
  """A kind of task. Legend: N units of a split, T tokens of all its rows, C labels.

  Outputs of a network are {name: float32 array} in the order of a split: [N, …] if the kind calls
  them 'rows', [T, …] beside `split.ids` if it calls them 'tokens'.

  Attributes:
    name: name of its objective.
    head: name of its head among the parameters.
    outputs: {name of an output: 'rows' | 'tokens'}.
    takes: class of the examples that it learns from.
    features: names of the parts of config.features that make rows of such examples.
    numbered: Source → (names of the labels, {split: (examples, labels or None)}, notes).
    label_form: names of the labels → (shape of the labels of one unit, dtype).
    heading: Task → the first line of the report, such as '2 classes'.
    report: Task → lines for the user: labels, baseline, lengths, what is odd about the texts.
    metrics: {name: function(*given) → float}.
    given: (Task, Split, outputs) → arguments of a metric.
    check: (names of metrics, names of the labels) → raises UserError if a metric does not fit.
    constant: (Task, Split) → outputs of a prediction that is the same for all; None if there is
      none.
    answers: (Task, Split, outputs) → [dict], one line of predictions per example.
    submission: (Task, Split, outputs, name of the file) → {name of a file: its text}.
    fits: (config, Source) → raises UserError if the objective cannot learn what was read.
  """

  name: str
  head: str
  outputs: dict[str, str]
  takes: type
  features: tuple[str, ...]
  numbered: Callable
  label_form: Callable
  heading: Callable
  report: Callable
  metrics: dict[str, Callable]
  given: Callable
  check: Callable
  constant: Callable
  answers: Callable
  submission: Callable
  fits: Callable = lambda config, source: None


def score(names, task, split, outputs) -> dict[str, float]:
  """{metric: value}; all are nan if an output is not finite (a run that diverged).

  Args:
    names: metrics of the task's kind, or package.module:name.
    task: Task.
    split: Split with labels.
    outputs: of the network.
  """
  if not all(np.isfinite(x).all() for x in outputs.values()):
    return {name: float('nan') for name in names}
  given = task.kind.given(task, split, outputs)
  found = {n: named.resolve(n, task.kind.metrics, 'metrics') for n in names}
  groups = lambda f: {'groups': split.examples} if ranks(f) else {}
  return {n: float(f(*given, **groups(f))) for n, f in found.items()}


def ranks(metric: Callable) -> bool:
  """Whether a metric ranks the rows of one name, which it is given as `groups`."""
  try:
    return 'groups' in inspect.signature(metric).parameters
  except ValueError:  # inspect cannot read the arguments of some C functions
    return False


def check_metrics(kind: Kind, names, labels) -> None:
  """Raises UserError if there is no metric, or one does not exist or does not fit.

  Args:
    names: config.metrics.
    labels: names of the labels.
  """
  if not names:
    raise errors.UserError("config.metrics is empty: name at least one, as in ('accuracy',).")
  for name in names:
    named.resolve(name, kind.metrics, 'metrics')
  kind.check(names, labels)


def check_parts(kind: Kind, config, source) -> None:
  """Raises UserError if config.source or config.features is of another kind of task, or the
  objective cannot learn what was read.
  """
  for split, examples in source.splits.items():
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
  kind.fits(config, source)
