"""Inputs of `Loaded.predict`, as examples without labels."""

from collections.abc import Mapping

from bertzoo_jax.common import errors
from bertzoo_jax.tasks.answering.questions import NOWHERE
from bertzoo_jax.tasks.answering.questions import Questions
from bertzoo_jax.tasks.choices import Choices
from bertzoo_jax.tasks.examples import Examples
from bertzoo_jax.tasks.reading import tables
from bertzoo_jax.tasks.reading.tagged import Tagged


def examples(kind, inputs):
  """The examples of a kind (of tasks.kinds) for a list of inputs; None for an empty list.

  Raises UserError for an input of another form.
  """
  form, read, make = _KINDS[kind.takes]
  inputs = listed(inputs, f'predict() takes a list, of which each is {form}: write predict([…]).')
  rows = [read(x) for x in inputs]
  for i, row in enumerate(rows):
    if row is None or len(row) != len(rows[0]):
      raise errors.UserError(
        f'predict() takes {form}{"" if row is None else ", all of one form"}; number {i} is '
        f'{str(inputs[i])[:40]!r} of type {type(inputs[i]).__name__}.'
      )
  if not rows:
    return None
  columns, names = [list(column) for column in zip(*rows)], [str(i) for i in range(len(rows))]
  return make(columns, names, [f'number {name}' for name in names])


def listed(inputs, sentence: str) -> list:
  """Inputs as a list, without lone surrogates. Raises UserError(sentence) for other than rows."""
  is_table = any(hasattr(inputs, name) for name in ('columns', 'column_names'))
  is_one = isinstance(inputs, str | bytes | Mapping) or getattr(inputs, 'ndim', 1) == 0
  if is_table or is_one or not hasattr(inputs, '__iter__'):
    raise errors.UserError(sentence)
  return [_whole(x) for x in inputs]


def _whole(x):
  if isinstance(x, list | tuple):
    return type(x)(map(_whole, x)) if type(x) in (list, tuple) else x
  return tables.as_text(x, '') if isinstance(x, str) else x


def _texts(x):
  row = (x,) if isinstance(x, str) else x
  return row if _are_texts(row) and len(row) in (1, 2) else None


def _words(x):
  words = x.split() if isinstance(x, str) else x
  return (list(words),) if _are_texts(words) else None


def _question(x):
  return x if _are_texts(x) and len(x) == 2 else None


def _choice(x):
  is_row = isinstance(x, list | tuple) and len(x) == 3 and _are_texts(x[:2]) and _are_texts(x[2])
  return (*x[:2], list(x[2])) if is_row and len(x[2]) > 1 else None


def _are_texts(x) -> bool:
  return isinstance(x, list | tuple) and all(isinstance(text, str) for text in x)


_KINDS = {  # the form of an input; input → a row, None for another form; columns → examples
  Examples: (
    'a text, or a pair of texts (a, b)',
    _texts,
    lambda c, ids, places: Examples(c[0], c[1] if c[1:] else None, None, ids, places),
  ),
  Tagged: (
    'a text, whose words have blanks between, or a list of words',
    _words,
    lambda c, ids, places: Tagged(c[0], None, ids, places),
  ),
  Questions: (
    '(question, passage)',
    _question,
    lambda c, ids, places: Questions(*c, None, [NOWHERE] * len(ids), ids, places),
  ),
  Choices: (
    '(text, question, [option, …]), with the text "" if there is none',
    _choice,
    lambda c, ids, places: Choices(*c, None, ids, places, max(map(len, c[2]))),
  ),
}
