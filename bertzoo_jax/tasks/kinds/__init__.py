"""Kinds of fine-tuning tasks, by the name of their objective; one file for each family."""

from bertzoo_jax.tasks.kinds import choices
from bertzoo_jax.tasks.kinds import questions
from bertzoo_jax.tasks.kinds import rows
from bertzoo_jax.tasks.kinds import tags


def of(objective: str):
  """The kind of an objective.

  An objective `package.module:NAME` of your own has the kind with which NAME ends (my_tagging:
  tags), otherwise classes.
  """
  lower = objective.lower()
  found = [name for name in BY_NAME if lower.endswith(name)]
  return BY_NAME[max(found, key=len, default='classification')]


BY_NAME = {
  kind.name: kind
  for kind in (
    rows.Rows('classification', rows.Classes()),
    rows.Rows('regression', rows.Score()),
    rows.Rows('multilabel', rows.Marks()),
    questions.Questions('span', questions.Places()),
    questions.Questions('span_conditional', questions.Beams()),
    tags.Tags(),
    choices.Choices(),
  )
}
