"""Inputs of `Loaded.predict`, as examples without labels."""

from collections.abc import Mapping

from bertzoo_jax.common import errors
from bertzoo_jax.tasks.examples import Examples
from bertzoo_jax.tasks.examples import Record
from bertzoo_jax.tasks.reading import tables


def examples(kind, inputs):
  """The examples of a kind (of tasks.kinds) for a list of inputs; None for an empty list.

  Raises UserError for an input of another form.
  """
  form, read = kind.inputs.asked, kind.inputs.read
  inputs = listed(inputs, f'predict() takes a list, of which each is {form}: write predict([…]).')
  rows = [read(x) for x in inputs]
  for i, row in enumerate(rows):
    if row is None or len(row) != len(rows[0]):
      raise errors.UserError(
        f'predict() takes {form}{"" if row is None else ", all of one form"}; number {i} is '
        f'{str(inputs[i])[:40]!r} of type {type(inputs[i]).__name__}.'
      )
  records = [Record(f'number {i}', str(i), kind.inputs.value(*row)) for i, row in enumerate(rows)]
  return Examples(records) if rows else None


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
