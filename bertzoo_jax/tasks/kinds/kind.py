"""A kind of task as one row: from labels as they are written to predictions in words.

`kinds.BY_NAME` has a Kind for each objective of fine-tuning. An objective of your own has the
attribute `kind`: a Kind, or a name in BY_NAME. `tests/outside/ratings.py` is an example.

Legend: N units of a split, T tokens of all its rows, C labels. Outputs of a network are {name:
float32 array} in the order of a split: [N, …] if the kind calls them 'rows', [T, …] beside
`split.ids` if 'tokens'.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from collections.abc import Mapping

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.parts import named
from bertzoo_jax.tasks.examples import Examples


@dataclasses.dataclass(frozen=True)
class Inputs:
  """The examples that kinds of one form read."""

  value: type  # type of the values of their Records
  features: tuple[str, ...]  # names of the parts that make rows of them
  # (split, examples) → the message for a split that lacks labels and needs them
  unlabelled: Callable
  asked: str  # words for the form of an input of `Loaded.predict`
  read: Callable  # input → the first fields of a value, None for another form
  usual: Callable  # (sections source and features) for a Hugging Face directory, which has neither
  # fields of config.source that --columns of `predict` gives, in this order
  columns: tuple[str, ...] = ()
  # units, chosen_by: words for the dev share of a train file
  units: str = 'examples'
  chosen_by: str = 'a hash'


@dataclasses.dataclass(frozen=True)
class Kind:
  name: str  # name of its objective
  inputs: Inputs  # see Inputs
  head: str  # of its network, among the parameters
  outputs: Mapping[str, str]  # {name of an output: 'rows' | 'tokens'}
  # {name: function(*metric_inputs) → float}. A function with the attribute `better` = 'lower' is
  # better if it is lower; with '' it chooses no run.
  metrics: Mapping[str, Callable]
  metric_inputs: Callable  # (task, split, outputs) → arguments of a metric
  answers: Callable  # (task, split, outputs) → [dict], one line of predictions per example
  predicted: str  # the key of the prediction in such a line
  gold: Callable  # (task, split) → the right answer of each example, in the words of `predicted`
  # task → lines for the user: '2 classes', then labels, baseline, lengths, oddities
  report: Callable
  submission: Callable  # (task, split, outputs, file) → {name of a file: its text}
  names: Callable = lambda train, source: ()  # (train examples, source) → names of the labels
  # (labelled examples, split, names, source) → (numeric labels or None, notes)
  encode: Callable = lambda examples, split, names, source: (None, [])
  # names → (shape of the labels of one unit, dtype)
  label_form: Callable = lambda names: ((), np.int32)
  # (task, split) → constant outputs, as of a majority baseline; None without such
  constant: Callable = lambda task, split: None
  # line → the probability of its prediction; None for a kind without
  probability: Callable | None = None
  labelled: bool = False  # whether predictions are labels, which have precision and recall
  # metrics with a label as one more argument, which labels_of(names) has by name
  of_label: Mapping[str, Callable] = dataclasses.field(default_factory=dict)
  labels_of: Callable = lambda names: {}
  accept: Callable = lambda source: None  # source → None
  learnable: Callable = lambda train: (train, [])  # train examples → (those to learn, notes)
  # (config, source, names) → None. accept and check raise UserError for what does not fit.
  check: Callable = lambda config, source, names: None
  # (names, train split) → {name: JSON value} that predictions need
  facts: Callable = lambda names, train: {}
  problem: str | None = None  # transformers' problem_type; None without one
  # parameters of a head → whether a Hugging Face directory with it is of this kind
  opens: Callable = lambda params: 'classifier' in params
  card: str = ''  # sentence about the outputs, for the model card


def score(names, task, split, outputs) -> dict[str, float]:
  """{metric: value}; all are nan if an output is not finite (a run that diverged). names: of
  metrics, NAME/LABEL, or package.module:name. split: with labels.
  """
  if not all(np.isfinite(x).all() for x in outputs.values()):
    return {name: float('nan') for name in names}
  inputs = task.kind.metric_inputs(task, split, outputs)
  functions = {n: metric(task.kind, n, task.labels, task.positive) for n in names}
  known = {'groups': lambda: split.examples, 'choices': lambda: split.source.values}
  more = lambda f: {key: known[key]() for key in known.keys() & arguments(f)}
  return {n: float(f(*inputs, **more(f))) for n, f in functions.items()}


def metric(kind, name: str, names, positive: str = '') -> Callable:
  """A metric by name. positive: its label if the name has none. Raises UserError if unknown."""
  base, mark, label = name.partition('/')
  if not mark and positive:
    label = positive
  if not label or base not in kind.of_label:
    return named.resolve(name, kind.metrics, 'metrics')
  number = errors.choose(label, kind.labels_of(names), 'label')
  return functools.partial(kind.of_label[base], **number)


def sign(kind, name: str) -> int:
  """1 if a higher value of the metric is better, −1 if a lower one is, 0 if it ranks no runs.

  Raises UserError for an unknown `better`.
  """
  function = kind.of_label.get(name.partition('/')[0]) or named.resolve(
    name, kind.metrics, 'metrics'
  )
  return errors.choose(getattr(function, 'better', 'higher'), _SIGNS, f'direction of {name}')


_SIGNS = {'higher': 1, 'lower': -1, '': 0}


def arguments(metric: Callable):
  """The names of a metric's arguments. One with `groups` compares rows within groups."""
  try:
    return inspect.signature(metric).parameters
  except ValueError:  # inspect cannot read the arguments of some C functions
    return ()


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
  if not sign(kind, names[0]):
    raise errors.UserError(
      f'config.metrics begins with {names[0]!r}, which cannot choose the best run, since neither '
      'higher nor lower is better: name another metric first.'
    )
  kind.check(config, source, labels)


def check_parts(kind, config, splits) -> None:
  """Raises UserError for a source or features of another kind. splits: {name: examples}."""
  wanted = kind.inputs
  for split, examples in splits.items():
    known = isinstance(examples, Examples) and examples.records
    form = examples.values[0].form if known else type(examples).__name__
    if form != wanted.value.form:
      raise errors.UserError(
        f'config.source={config.source.name} reads {form} ({split}), and '
        f'config.objective={config.objective.name} learns from {wanted.value.form}: take the '
        'source and the objective of one task of configs/tasks/.'
      )
  name = config.features.name
  if ':' not in name and name not in wanted.features:
    raise errors.UserError(
      f'config.features={name} does not fit config.objective={config.objective.name}: take '
      f'{" or ".join(wanted.features)}.'
    )


def try_out(task) -> None:
  """Raises UserError if functions of a user's kind or metric fail on the task's splits, before
  training instead of at its end. The outputs of the trial are the kind's `constant`.
  """
  for split in task.splits.values():
    outputs = task.kind.constant(task, split)
    for what, call in _calls(task.kind) if outputs is not None else ():
      try:
        call(task, split, outputs)
      except errors.UserError:
        raise
      except Exception as e:
        raise errors.UserError(
          f'{what} of the kind {task.kind.name!r} fails on {split.name} ({type(e).__name__}: '
          f'{errors.words(e)}): mend it; bertzoo_jax/tasks/kinds/kind.py says what it returns.'
        ) from e


def _calls(kind):
  """Yields (name, function(task, split, outputs)) of everything computed from outputs."""
  yield 'constant', lambda task, split, outputs: [outputs[name] for name in kind.outputs]
  yield 'answers', lambda *args: [line[kind.predicted] for line in kind.answers(*args)]
  yield 'submission', lambda *args: kind.submission(*args, 'file')
  yield 'gold', lambda task, split, _: split.labels is None or kind.gold(task, split)
  yield (
    'a metric',
    lambda task, split, outputs: split.labels is None or score(task.metrics, task, split, outputs),
  )


def indexed(to_text: Callable, outputs_of: Callable) -> Callable:
  """A `submission` with a header `index<TAB>prediction`, then one line per example, as
  gluebenchmark.com takes them.

  outputs_of: (task, split, outputs) → one value per example. to_text: (task, value) → text.
  """

  def submission(task, split, outputs, file):
    lines = ['index\tprediction\n']
    for example, value in zip(split.examples, outputs_of(task, split, outputs), strict=True):
      lines.append(f'{example}\t{to_text(task, value)}\n')
    return {file: ''.join(lines)}

  return submission


def are_texts(x) -> bool:
  return isinstance(x, list | tuple) and all(isinstance(text, str) for text in x)


def rounded(shares, names) -> dict[str, float]:
  """{name: share}, rounded for lines of predictions."""
  return {name: round(float(p), 6) for name, p in zip(names, shares)}
