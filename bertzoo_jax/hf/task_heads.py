"""Heads of fine-tuning in Hugging Face's classes: names of their layers, and their text in
config.json and the card. numpy only.

The name of a head's dense layer tells the head's form (head_modules.FORMS).
"""

import itertools
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.hf import architecture
from bertzoo_jax.hf import keys
from bertzoo_jax.hf.architecture import KERNEL
from bertzoo_jax.hf.architecture import Architecture
from bertzoo_jax.hf.architecture import Row

ROW, SPAN, TAG, CHOICE = 'row_head', 'span_head', 'tag_head', 'choice_head'


class Kind(NamedTuple):
  ends: str  # how their names end
  task: str  # pipeline task of the Hub
  card: str  # text about the head


KINDS = {
  ROW: Kind(
    'ForSequenceClassification',
    'text-classification',
    'The head scores a whole text, or a pair of texts.',
  ),
  SPAN: Kind(
    'ForQuestionAnswering',
    'question-answering',
    'The head scores each token as the first and as the last one of the answer.',
  ),
  TAG: Kind(
    'ForTokenClassification',
    'token-classification',
    'The head scores the first token of each word; other tokens were not trained.',
  ),
  CHOICE: Kind(
    'ForMultipleChoice',
    'multiple-choice',
    'The head scores a text with one option; the option with the highest score wins.',
  ),
}
NO_PIPELINE = (CHOICE,)
LABELLED = (ROW, TAG)  # their outputs have names
DENSE = {'tanh': 'pooler', 'gelu': 'dense', 'transform': 'transform'}  # the form 'linear' has none
BEAM = 20  # as head_modules has it


class Task(NamedTuple):
  """The meaning of the outputs of a head."""

  problem: str | None = None  # transformers' problem_type; None if it is not known
  labels: tuple[str, ...] = ()  # names of the outputs, in order; () for LABEL_0, LABEL_1, …
  dropouts: tuple[float, ...] = ()  # rates before the classifier and before the dense layer
  # of several labels, the probability above which one is given; None for one label
  threshold: float | None = None
  card: str = ''  # sentence about the outputs


def labels_in(objective: Mapping[str, Any]) -> tuple[str, ...]:
  """Names of the outputs that the section of an objective has; () for none."""
  return tuple(objective['labels']) if 'labels' in objective else ()


def task_of(objective: Mapping[str, Any], kind) -> Task:
  """The Task of the section of an objective and its kind, of tasks.kinds."""
  rates = (objective[k] for k in ('dropout', 'input_dropout') if k in objective)
  threshold = objective['threshold'] if 'threshold' in objective else None
  return Task(kind.problem, labels_in(objective), tuple(rates), threshold, kind.card)


class Form(NamedTuple):
  """A head in the classes of a family."""

  layers: Mapping[str, str]  # {our name of a dense layer: theirs}
  # keys of config.json for dropout: before the classifier, and before the dense layer
  rates: tuple[str, ...] = ()
  fixed: Mapping[str, Any] = {}  # {key of config.json: the only value that can be read}
  note: str = ''  # further text for the card
  also: Callable = lambda head: ()  # our name of the head → its further rows


def classes(build, family: str, forms: Mapping[str, Form]) -> dict[str, Architecture]:
  """{head: the class of a family that has it}.

  build: (name, *rows of the head, config=…, **fields) → an Architecture. family: how the names
  begin.
  """

  def one(head, form):
    kind = KINDS[head]
    return build(
      f'{family}{kind.ends}',
      *rows(head, **form.layers),
      *form.also(head),
      config=tuple(keys.fixed(key, value) for key, value in form.fixed.items()),
      heads=f'{kind.card} {form.note}'.strip(),
      pipeline='' if head in NO_PIPELINE else kind.task,
      head_dropouts=form.rates,
    )

  return {head: one(head, form) for head, form in forms.items()}


def rows(head: str, **layers: str) -> tuple[Row, ...]:
  """Rows of the dense layers of a head. layers: {our name: theirs}."""
  layer_rows = (architecture.dense(f'{head}/{ours}', theirs) for ours, theirs in layers.items())
  return tuple(itertools.chain.from_iterable(layer_rows))


# Two kernels [D, H] whose products are added, and one over both vectors, [H, 2·D].
BESIDE = architecture.Transform(
  lambda x, s: np.concatenate(x, axis=0).T, lambda y, s: tuple(np.split(y.T, 2, axis=0))
)


def _over_two(first, second, theirs) -> tuple[Row, ...]:
  """Rows of a layer over the vectors of `first`, which has its bias, and `second`."""
  kernels = tuple(f'{SPAN}/{name}/kernel' for name in (first, second))
  return Row(kernels, f'{theirs}.weight', BESIDE), Row(f'{SPAN}/{first}/bias', f'{theirs}.bias')


# Of XLNet's class; the form 'tanh' with hidden layers as wide as the encoder's.
CONDITIONAL_ROWS = (
  *rows(SPAN, start='start_logits.dense', end='end_logits.dense_1'),
  *_over_two('end_token', 'end_start', 'end_logits.dense_0'),
  *architecture.norm(f'{SPAN}/end_norm', 'end_logits.LayerNorm'),
  *_over_two('answer_start', 'answer_row', 'answer_class.dense_0'),
  Row(f'{SPAN}/answer/kernel', 'answer_class.dense_1.weight', KERNEL),
)


def in_paths(paths: Iterable[str]) -> str:
  """The name of the head of fine-tuning among the paths of parameters; '' for none."""
  names = {path.split('/')[0] for path in paths}
  return next((head for head in KINDS if head in names), '')


def form_of(paths: Iterable[str], head: str = ROW) -> str:
  """The form of a head (a key of DENSE, or linear) by the paths of parameters; '' without one."""
  layers = {path.rpartition('/')[0] for path in paths if path.startswith(f'{head}/')}
  forms = (form for form, dense in DENSE.items() if f'{head}/{dense}' in layers)
  return next(forms, 'linear') if layers else ''


def config(a: Architecture, params: Mapping[str, Any], task: Task) -> dict[str, Any]:
  """The part of config.json about the head of a class. params: flat.

  Raises UserError if labels and outputs differ in number.
  """
  head = in_paths(params)
  if head not in KINDS or head == SPAN:
    return {}
  rates = dict(zip(a.head_dropouts, task.dropouts))
  if head not in LABELLED:
    return rates
  outputs = len(params[f'{head}/classifier/bias'])
  labels = task.labels or tuple(f'LABEL_{i}' for i in range(outputs))
  if len(labels) != outputs:
    raise errors.UserError(
      f'The head has {outputs} outputs, and objective.labels are {len(labels)}: give as many.'
    )
  return {
    'id2label': {str(i): label for i, label in enumerate(labels)},
    'label2id': {label: i for i, label in enumerate(labels)},
    **({'problem_type': task.problem} if head == ROW else {}),
    **({'threshold': task.threshold} if task.threshold else {}),
    **rates,
  }


def labels_of(content: Mapping[str, Any]) -> tuple[str, ...]:
  """Names of the outputs in a config.json; () if it has none, or LABEL_0 and so on."""
  by_id = content.get('id2label')
  if not isinstance(by_id, dict) or set(by_id) != {str(i) for i in range(len(by_id))}:
    return ()
  if all(label == f'LABEL_{i}' for i, label in by_id.items()):
    return ()
  return tuple(str(by_id[str(i)]) for i in range(len(by_id)))
