"""Classes that tag tokens, and classes that choose one of several options. numpy only.

Their heads are `tag_head` (model.heads.TagHead) and `choice_head` (model.heads.RowHead with one
output) among the parameters.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from bertzoo_jax.common import errors
from bertzoo_jax.hf import row_heads
from bertzoo_jax.hf.architecture import Architecture
from bertzoo_jax.hf.architecture import Row

TAG, CHOICE = 'tag_head', 'choice_head'
# {head: the name of its output in networks.predict}
OUTPUTS = {row_heads.HEAD: 'row', TAG: 'tag', CHOICE: 'choice'}
# Of the model card: a task of the Hub. There is no pipeline for choices.
TASKS = {row_heads.HEAD: row_heads.PIPELINE, TAG: 'token-classification', CHOICE: 'multiple-choice'}

SAID_OF_TAGS = 'The head scores the first token of each word; other tokens were not trained.'
SAID_OF_CHOICES = 'The head scores a text with one option; the option with the highest score wins.'


def tag_rows(classifier: str = 'classifier') -> tuple[Row, ...]:
  """Rows of a head that tags tokens. classifier: their name of its layer."""
  return row_heads.rows('linear', '', classifier, TAG)


def choice_rows(kind: str, dense: str, classifier: str = 'classifier') -> tuple[Row, ...]:
  """Rows of a head that scores options. Arguments: see row_heads.rows."""
  return row_heads.rows(kind, dense, classifier, CHOICE)


def head_of(a: Architecture) -> str:
  """The name of a class's head for a task, of OUTPUTS; '' if it has none."""
  return next((head for head in OUTPUTS if row_heads.kind(a, head)), '')


def in_paths(paths: Iterable[str]) -> str:
  """The name of the task's head among the paths of parameters, of OUTPUTS; '' for none."""
  paths = list(paths)
  return next((head for head in OUTPUTS if row_heads.kind_of(paths, head)), '')


def config(a: Architecture, params: Mapping[str, Any], task: row_heads.Task) -> dict[str, Any]:
  """What config.json says about the head of a class. params: flat.

  Raises UserError for labels that are not as many as the outputs.
  """
  head = in_paths(params)
  if head == CHOICE:  # its one output has no label
    return dict(zip(a.head_dropouts, task.dropouts))
  if not head:
    return {}
  said = row_heads.config(a, len(params[f'{head}/classifier/bias']), task)
  return {k: v for k, v in said.items() if k != 'problem_type' or head == row_heads.HEAD}


def check(a: Architecture, paths: Iterable[str]) -> None:
  """Raises UserError if a class has no place for the head of options among the parameters, or one
  of another form.
  """
  paths = list(paths)
  ours, theirs = row_heads.kind_of(paths, CHOICE), row_heads.kind(a, CHOICE)
  if not ours or ours == theirs:
    return
  if theirs:
    raise errors.UserError(
      f'objective.head={ours} has no place in {a.name}: fine-tune with '
      f'--config.objective.head={theirs}.'
    )
  raise errors.UserError(
    f'{a.name} has no place for a head of options, and transformers may have no …ForMultipleChoice '
    f'for model_type={a.model_type} (DeBERTa v1 has none): the run can predict (finetune '
    '--predict), but not be exported.'
  )
