"""Classes that score rows: the forms of their heads, and their labels in config.json. numpy only.

A head is `row_head` among the parameters (model.heads.RowHead). Its form is told by the name of its
dense layer.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

from bertzoo_jax.common import errors
from bertzoo_jax.hf.architecture import KERNEL
from bertzoo_jax.hf.architecture import Architecture
from bertzoo_jax.hf.architecture import Row

HEAD = 'row_head'
DENSE = {'tanh': 'pooler', 'gelu': 'dense'}  # the form 'linear' has none

# config.objective.name and transformers' problem_type.
PROBLEMS = {
  'classification': 'single_label_classification',
  'regression': 'regression',
  'multilabel': 'multi_label_classification',
}
PIPELINE = 'text-classification'


class Task(NamedTuple):
  """What the outputs of a row head are.

  Attributes:
    problem: transformers' problem_type; None if it is not known.
    labels: names of the outputs, in order; () for LABEL_0, LABEL_1, ….
    dropouts: rates before the classifier and before the dense layer.
  """

  problem: str | None = None
  labels: tuple[str, ...] = ()
  dropouts: tuple[float, ...] = ()


def task_of(objective: Mapping[str, Any]) -> Task:
  """The Task of a config's objective. objective: the section, nested; with a name that is not in
  PROBLEMS the problem is not known.
  """
  labels = tuple(objective['labels']) if 'labels' in objective else ()
  rates = (objective[k] for k in ('dropout', 'input_dropout') if k in objective)
  name = objective['name']
  return Task(PROBLEMS[name] if name in PROBLEMS else None, labels, tuple(rates))


def kind_of(paths: Iterable[str], head: str = HEAD) -> str:
  """tanh, gelu or linear: the form of a head of this name among the paths of parameters; '' for
  none.
  """
  own = {path.rpartition('/')[0] for path in paths if path.startswith(f'{head}/')}
  forms = (kind for kind, dense in DENSE.items() if f'{head}/{dense}' in own)
  return next(forms, 'linear') if own else ''


def kind(a: Architecture, head: str = HEAD) -> str:
  """The form of a class's head of this name; '' if it has none."""
  return kind_of((row.ours for row in a.rows if isinstance(row.ours, str)), head)


def rows(kind: str, dense: str, classifier: str, head: str = HEAD) -> tuple[Row, ...]:
  """Rows of a head. dense, classifier: their names of its two layers; the form 'linear' has no
  first one.
  """
  layers = [(DENSE[kind], dense)] if kind in DENSE else []
  return tuple(
    row
    for ours, theirs in ((f'{head}/{x}', y) for x, y in (*layers, ('classifier', classifier)))
    for row in (
      Row(f'{ours}/kernel', f'{theirs}.weight', KERNEL),
      Row(f'{ours}/bias', f'{theirs}.bias'),
    )
  )


def config(a: Architecture, outputs: int, task: Task) -> dict[str, Any]:
  """What config.json says about a class's row head.

  outputs: of the head.

  Raises UserError for labels that are not as many as the outputs.
  """
  labels = task.labels or tuple(f'LABEL_{i}' for i in range(outputs))
  if len(labels) != outputs:
    raise errors.UserError(
      f'The head has {outputs} outputs, and objective.labels are {len(labels)}: give as many.'
    )
  return {
    'id2label': {str(i): label for i, label in enumerate(labels)},
    'label2id': {label: i for i, label in enumerate(labels)},
    'problem_type': task.problem,
    **dict(zip(a.head_dropouts, task.dropouts)),
  }


def labels_of(content: Mapping[str, Any]) -> tuple[str, ...]:
  """Names of the outputs of a config.json; () if it does not tell them, or says LABEL_0 and on."""
  said = content.get('id2label')
  if not isinstance(said, dict) or set(said) != {str(i) for i in range(len(said))}:
    return ()
  if all(label == f'LABEL_{i}' for i, label in said.items()):
    return ()
  return tuple(str(said[str(i)]) for i in range(len(said)))


def expecting(to_encoder: Callable, **usual) -> Callable:
  """An Architecture's to_encoder that raises UserError for a config.json whose head computes
  something else. usual: the only values of config.json that a head here has.
  """

  def checked(content):
    for key, value in usual.items():
      if (said := content.get(key, value)) != value:
        raise errors.UserError(
          f'config.json says {key}={str(said)[:40]}, and a head here has {key}={value}: it cannot '
          'be read.'
        )
    return to_encoder(content)

  return checked


def check(a: Architecture, paths: Iterable[str]) -> None:
  """Raises UserError if a class has a row head of another form than the one among the parameters,
  with the field that fits.
  """
  ours, theirs = kind_of(paths), kind(a)
  if ours and theirs and ours != theirs:
    raise errors.UserError(
      f'objective.head={ours} has no place in {a.name}: fine-tune with '
      f'--config.objective.head={theirs}.'
    )
