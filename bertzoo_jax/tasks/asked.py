"""What a Python program asks a trained network, as examples without labels."""

from bertzoo_jax.common import errors
from bertzoo_jax.tasks.choices import Choices
from bertzoo_jax.tasks.examples import Examples
from bertzoo_jax.tasks.questions import Questions
from bertzoo_jax.tasks.tagged import Tagged

_FORMS = {  # of one example
  Examples: 'a text, or a pair of texts (a, b)',
  Tagged: 'a text, whose words have blanks between, or a list of words',
  Questions: '(question, passage)',
  Choices: '(text, question, [option, …]), with the text "" if there is none',
}


def examples(kind, inputs):
  """The examples of a kind (of tasks.kinds) for a list of inputs, each of the form in _FORMS; None
  for an empty list.

  Raises UserError for anything else.
  """
  if isinstance(inputs, str | bytes) or not hasattr(inputs, '__iter__'):
    raise errors.UserError(
      f'predict() takes a list, of which each is {_FORMS[kind.takes]}: write predict([…]).'
    )
  inputs = list(inputs)
  rows = [_READ[kind.takes](x) for x in inputs]
  sizes = [None if row is None else len(row) for row in rows]
  if odd := [i for i, size in enumerate(sizes) if size is None or size != sizes[0]]:
    i = odd[0]
    like = '' if sizes[i] is None else ', all of one form'
    raise errors.UserError(
      f'predict() takes {_FORMS[kind.takes]}{like}; number {i} is {str(inputs[i])[:40]!r} of type '
      f'{type(inputs[i]).__name__}.'
    )
  if not rows:
    return None
  columns = [list(column) for column in zip(*rows)]
  names = [str(i) for i in range(len(rows))]
  return _MADE[kind.takes](columns, names, [f'number {i}' for i in range(len(rows))])


def _texts(x):
  row = (x,) if isinstance(x, str) else x
  return row if _are_texts(row) and len(row) in (1, 2) else None


def _words(x):
  words = x.split() if isinstance(x, str) else x
  return (list(words),) if _are_texts(words) else None


def _question(x):
  return x if _are_texts(x) and len(x) == 2 else None


def _choice(x):
  if not (isinstance(x, list | tuple) and len(x) == 3 and _are_texts(x[:2])):
    return None
  return (*x[:2], list(x[2])) if _are_texts(x[2]) and len(x[2]) > 1 else None


def _are_texts(x) -> bool:
  return isinstance(x, list | tuple) and all(isinstance(text, str) for text in x)


_READ = {Examples: _texts, Tagged: _words, Questions: _question, Choices: _choice}
_MADE = {
  Examples: lambda c, ids, places: Examples(c[0], c[1] if c[1:] else None, None, ids, places),
  Tagged: lambda c, ids, places: Tagged(c[0], None, ids, places),
  Questions: lambda c, ids, places: Questions(c[0], c[1], None, [(-1, -1)] * len(ids), ids, places),
  Choices: lambda c, ids, places: Choices(*c, None, ids, places, max(map(len, c[2]))),
}
