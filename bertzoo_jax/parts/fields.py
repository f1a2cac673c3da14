"""How a part is defined: fields with a type, a range, a default and a meaning.

    @fields.section
    def blocks(*, size: fields.TOKENS = 128, order: fields.one_of('random', 'given') = 'given'):
      '''Blocks of tokens.

      size: tokens per block.
      order: random (drawn anew in every epoch) | given (that of the text).
      '''

The annotation of a field is a type, or a type with a range, as all names in capitals below. The
docstring explains it in a line `name: meaning`. A part of your own may have such annotations and
lines on its own function or class.
"""

import functools
import inspect
import math
import numbers
import re
import sys
from collections.abc import Callable
from typing import Annotated
from typing import NamedTuple

import ml_collections

from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors

_LARGEST, _SMALLEST = 3.4e38, 1.2e-38  # limits of float32; smaller positive numbers become 0


class Range(NamedTuple):
  """The values that a field may have.

  Attributes:
    words: the range in words, for messages and tables.
    holds: value → whether it is in the range.
    of_each: whether the words are about each number in a tuple.
    choices: the words that the field may be; () for a number.
  """

  words: str
  holds: Callable
  of_each: bool = False
  choices: tuple = ()


def of(annotation) -> Range | None:
  """The range of an annotation; None without one."""
  found = getattr(annotation, '__metadata__', ())
  return next((x for x in found if isinstance(x, Range)), None)


def one_of(*choices):
  """A field that is one of these words."""
  return Annotated[str, Range(' | '.join(map(repr, choices)), choices.__contains__, False, choices)]


def each(kind, deep=False):
  """A tuple of numbers in the range of a kind. deep: at any depth of the tuple."""
  words, one = of(kind)[:2]

  def holds(value):
    return isinstance(value, tuple) and all(map(one, numbers_in(value) if deep else value))

  return Annotated[tuple, Range(words, holds, of_each=True)]


def whole(least, most):
  """A whole number with these bounds."""
  words = f'a whole number from {least:,} to {most:,}'
  return Annotated[
    int, Range(words, lambda x: _is_number(x, numbers.Integral) and least <= x <= most)
  ]


def number(words, holds):
  """A number for which `holds` is true."""
  return Annotated[float, Range(words, lambda x: _is_number(x) and holds(x))]


def _is_number(value, kind=numbers.Real):
  return isinstance(value, kind) and not isinstance(value, bool)


SHARE = number('a number from 0 to 1', lambda x: 0 <= x <= 1)
SHARE_ABOVE_0 = number('a number above 0 and at most 1', lambda x: 0 < x <= 1)
SHARE_BELOW_1 = number('a number from 0 to below 1', lambda x: 0 <= x < 1)
SHARE_BETWEEN = number('a number above 0 and below 1', lambda x: 0 < x < 1)
AT_LEAST_0 = number('a number of at least 0', lambda x: x >= 0)
ABOVE_0 = number(f'a number of at least {_SMALLEST}', lambda x: x >= _SMALLEST)
FINITE = number('a finite number', math.isfinite)

# The upper bounds lie above all that was published (2^16 rows, 2^20 pieces, 1,000 layers), and
# below what takes minutes to trace or overflows an int32.
SEED = whole(0, 2**32 - 1)  # jax draws the weights from 32 bits: others would repeat these weights
STEPS = whole(0, 2**31 - 1)  # the train state counts in int32
COUNT, COUNT_OR_0 = whole(1, 2**31 - 1), whole(0, 2**31 - 1)
TOKENS, TOKENS_OR_0 = whole(1, 2**22), whole(0, 2**22)
UNITS, UNITS_OR_0 = whole(1, 2**20), whole(0, 2**20)
LAYERS = whole(1, 10_000)
BATCH = 2**26  # tokens per batch; the largest published one has 2^24
PIECES, PIECES_OR_0 = whole(1, 2**24), whole(0, 2**24)


def _or_auto(kind):
  words, holds = of(kind)[:2]
  return Annotated[
    object, Range(f"{words}, or 'auto'", lambda x: x == configuration.AUTO or holds(x))
  ]


PIECES_OR_AUTO, COUNT_OR_0_OR_AUTO = _or_auto(PIECES), _or_auto(COUNT_OR_0)


_TYPES = {str(str): 'a text', str(bool): 'True or False', str(tuple): 'a tuple'}

# --- a part ---


def section(constructor=None, *, named=True, like=None, **usual):
  """Makes a definition the constructor of a config's section, which has `name` and all its fields.

  constructor: a function of keyword-only arguments. Fields that it returns, if any, take the place
    of those that it was given.
  named: whether the section has `name`; False for one that no other can take the place of.
  like: a definition that has all the fields of this one, which then names none.
  usual: values of these that are other than there.
  """
  if constructor is None:
    return functools.partial(section, named=named, like=like, **usual)
  definition = like.__wrapped__ if like else constructor
  signature = inspect.signature(definition)
  signature = signature.replace(
    parameters=[
      p.replace(default=usual.get(name, p.default)) for name, p in signature.parameters.items()
    ]
  )

  @functools.wraps(constructor)
  def build(**given):
    try:
      fields = signature.bind(**given)
    except TypeError as e:
      raise TypeError(f'{constructor.__name__}() {e}') from None
    fields.apply_defaults()
    fields = {**fields.arguments, **(definition(**fields.arguments) or {})}
    for key in fields:
      annotation = signature.parameters[key].annotation
      if annotation in (PIECES_OR_AUTO, COUNT_OR_0_OR_AUTO):  # either type, on the command line
        fields[key] = ml_collections.FieldReference(fields[key], field_type=object)
    return ml_collections.ConfigDict(
      {**({'name': constructor.__name__} if named else {}), **fields}
    )

  build.__signature__ = signature
  return build


def sections(names: dict) -> list[str]:
  """The names of the sections that a module defines, in its order. names: vars() of the module."""
  own = [(name, x) for name, x in names.items() if hasattr(x, '__wrapped__')]
  return [name for name, x in own if (x.__name__, x.__module__) == (name, names['__name__'])]


def parameters(part) -> dict[str, inspect.Parameter] | None:
  """{name: parameter} of all arguments of a part; None where Python does not know them."""
  try:
    found = inspect.signature(part).parameters
  except ValueError:  # some functions written in C
    return None
  return {name: field.replace(annotation=_evaluated(field, part)) for name, field in found.items()}


def _evaluated(field, part):
  """The annotation of a field: a module of the user's may have it as text."""
  try:
    within = vars(sys.modules[part.__module__])
    return eval(field.annotation, within) if isinstance(field.annotation, str) else field.annotation
  except Exception:  # of names that are there for type checkers only
    return field.annotation


def meanings(part) -> dict[str, str]:
  """{field: its meaning} of the lines `name: meaning` in a part's docstring. Lines with more blanks
  before them go on with the meaning.
  """
  known, found, names, indent = set(parameters(part) or ()), {}, (), 0
  for line in (inspect.getdoc(part) or '').splitlines():
    depth = len(line) - len(line.lstrip())
    begins = re.match(r'\s*(\w+(?:, \w+)*): (.+)', line)
    if begins and set(begins[1].split(', ')) <= known:
      names, indent = begins[1].split(', '), depth
      found |= dict.fromkeys(names, begins[2].strip())
    elif names and line.strip() and depth > indent:
      found |= {name: f'{found[name]} {line.strip()}' for name in names}
    else:
      names = ()
  return found


def check(key: str, value, annotation, prefix: str = 'config.', choices: bool = True) -> None:
  """Raises UserError for a value that is not in the range of its field, or of another type.

  Args:
    key: of the field in the config.
    value: of the field, with tuples for lists.
    annotation: of the field.
    prefix: of the key, in the message.
    choices: whether names are checked too.
  """
  range_ = of(annotation)
  if range_ is None:
    if (words := _TYPES.get(str(annotation))) and not isinstance(value, annotation):
      raise errors.UserError(f'{prefix}{key} is {_shown(value)}: {words} is needed.')
    return
  if range_.choices:
    if choices:
      errors.choose(value, dict.fromkeys(range_.choices), f'config.{key}')
  elif not range_.holds(value):
    needed = f'{range_.words} is needed'
    if range_.of_each:
      needed = f'each of its numbers must be {range_.words}'
    raise errors.UserError(f'{prefix}{key} is {_shown(value)}: {needed}.')


def check_finite(key: str, value, prefix: str = 'config.') -> None:
  """Raises UserError for a number in a value that is not finite."""
  if any(not math.isfinite(x) or abs(x) > _LARGEST for x in numbers_in(value)):
    raise errors.UserError(f'{prefix}{key} is {_shown(value)}: a finite number is needed.')


def numbers_in(value) -> list:
  """All numbers in a value of a config: tuples and dicts may hold more."""
  if isinstance(value, dict):
    value = tuple(value.values())
  if isinstance(value, tuple):
    return [number for part in value for number in numbers_in(part)]
  return [value] if _is_number(value) else []


def _shown(value) -> str:
  """A value for a message, cut where it is long."""
  text = repr(value)
  return text if len(text) <= 80 else f'{text[:40]}…'
