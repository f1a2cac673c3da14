"""Kinds of fine-tuning tasks, by the name of their objective."""

from bertzoo_jax.common import errors
from bertzoo_jax.parts import named
from bertzoo_jax.tasks.kinds import classification
from bertzoo_jax.tasks.kinds import multilabel
from bertzoo_jax.tasks.kinds import multiple_choice
from bertzoo_jax.tasks.kinds import questions
from bertzoo_jax.tasks.kinds import regression
from bertzoo_jax.tasks.kinds import similar
from bertzoo_jax.tasks.kinds import tags
from bertzoo_jax.tasks.kinds.kind import Kind

BY_NAME = {
  row.name: row
  for row in (
    classification.ROW,
    regression.ROW,
    multilabel.ROW,
    questions.ROW,
    questions.BEAMS,
    tags.ROW,
    multiple_choice.ROW,
    similar.COSINE,
    similar.COSENT,
    similar.POSITIVES,
  )
}


def get(objective: str) -> Kind:
  """The kind of an objective. An objective of the user's has it as attribute `kind`, Kind or name.

  Raises UserError for an objective without a kind.
  """
  if not named.is_outside(objective):
    return errors.choose(objective, BY_NAME, 'objective of fine-tuning')
  kind = getattr(named.resolve(objective, {}, 'objective'), 'kind', None)
  if isinstance(kind, str):
    return errors.choose(kind, BY_NAME, f'kind of {objective}')
  if not isinstance(kind, Kind):
    name = objective.partition(':')[2]
    raise errors.UserError(
      f'config.objective={objective} does not say its kind of task: write {name}.kind = '
      f"'classification' below it ({', '.join(BY_NAME)}, or a Kind of your own: "
      'bertzoo_jax/tasks/kinds/kind.py).'
    )
  return kind


def for_head(head: str, params, problem: str | None = None) -> Kind:
  """The kind of a head of a Hugging Face directory. params: of the head. problem: `problem_type` of
  config.json, or None. Raises UserError for a problem_type that no kind has.
  """
  candidates = [kind for kind in BY_NAME.values() if kind.head == head and kind.opens(params)]
  problems = {kind.problem: kind for kind in candidates if kind.problem}
  if not problems:
    return candidates[0]
  one = len(params['classifier']['bias']) == 1
  usual = regression.ROW.problem if one else classification.ROW.problem
  kind = errors.choose(problem or usual, problems, 'problem_type')
  if kind is regression.ROW and not one:
    raise errors.UserError(
      'config.json says problem_type=regression with several outputs, and here regression has one '
      'number per row: give the workdir of the run, which names its own kind.'
    )
  return kind
