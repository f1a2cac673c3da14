"""How a part is declared: a dataclass of fields with a type, a range, a default and a meaning.

    @fields.part('blocks')
    class Blocks:
      '''Blocks of tokens.'''

      size: Annotated[fields.TOKENS, 'tokens per block.'] = 128
      order: fields.one_of(random='drawn anew in every epoch', given='that of the text') = 'given'

    def blocks(fields: Blocks, text, length):
      ...

An annotation is a type, or a type with a range (the names in capitals below), and a meaning. A part
of your own may be declared in the same way, or have such annotations on its arguments.
"""

import dataclasses
import inspect
import math
import numbers
import sys
from collections.abc import Callable
from typing import Annotated
from typing import NamedTuple
from typing import get_args

import ml_collections

from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors

_LARGEST, _SMALLEST = 3.4e38, 1.2e-38  # limits of float32; smaller positive numbers become 0


class Range(NamedTuple):
  """The values that a field may have."""

  words: str  # the range in words, for messages and tables
  holds: Callable  # value → whether it is in the range
  of_each: bool = False  # whether `words` describes each number of a tuple
  choices: tuple = ()  # the allowed words; () for a number


def get_range(annotation) -> Range | None:
  """The range of an annotation; None without one."""
  return next((x for x in get_args(annotation)[1:] if isinstance(x, Range)), None)


def meaning(annotation) -> str:
  """The last meaning of an annotation; '' without one."""
  return next((x for x in reversed(get_args(annotation)[1:]) if isinstance(x, str)), '')


def one_of(*plain, **explained):
  """A field with the given words as choices: plain ones, and words with their meanings."""
  choices = (*plain, *explained)
  words = [f'{word} ({text})' if text else word for word, text in explained.items()]
  range_ = Range(' | '.join(map(repr, choices)), choices.__contains__, False, choices)
  return Annotated[str, range_, f'{" | ".join([*plain, *words])}.']


def each(kind, deep=False):
  """A tuple of numbers in the range of a kind. deep: at any depth of the tuple."""
  words, one = get_range(kind)[:2]

  def holds(value):
    return isinstance(value, tuple) and all(map(one, numbers_in(value) if deep else value))

  return Annotated[tuple, Range(words, holds, of_each=True)]


def whole(least, most):
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

# The upper bounds lie above all published values (2^16 rows, 2^20 pieces, 1,000 layers), and below
# values that take minutes to trace or overflow an int32.
SEED = whole(0, 2**32 - 1)  # jax draws the weights from 32 bits: others would repeat these weights
STEPS = whole(0, 2**31 - 1)  # the train state counts in int32
COUNT, COUNT_OR_0 = whole(1, 2**31 - 1), whole(0, 2**31 - 1)
TOKENS, TOKENS_OR_0 = whole(1, 2**22), whole(0, 2**22)
UNITS, UNITS_OR_0 = whole(1, 2**20), whole(0, 2**20)
LAYERS = whole(1, 10_000)
BATCH = 2**26  # tokens per batch; the largest published one has 2^24
PIECES, PIECES_OR_0 = whole(1, 2**24), whole(0, 2**24)


def _or_auto(kind):
  words, holds = get_range(kind)[:2]
  return Annotated[
    object, Range(f"{words}, or 'auto'", lambda x: x == configuration.AUTO or holds(x))
  ]


PIECES_OR_AUTO, COUNT_OR_0_OR_AUTO = _or_auto(PIECES), _or_auto(COUNT_OR_0)
COUNT_OR_AUTO = _or_auto(COUNT)


_TYPES = {str: 'a text', bool: 'True or False', tuple: 'a tuple'}

# --- a part ---


def part(name: str = '', frozen: bool = True) -> Callable:
  """Makes a class a declaration of keyword-only fields. name: of the part; '' for a section without
  `name`, and for fields of several parts. frozen: False for encoders, whose modules inherit them.
  """

  def declared(module):
    module = dataclasses.dataclass(frozen=frozen, kw_only=True)(module)
    module.part_name = name
    return module

  return declared


def parts(module) -> dict[str, type]:
  """{name: declaration} of the parts that a module declares."""
  return {x.part_name: x for x in vars(module).values() if getattr(x, 'part_name', '')}


def section(declaration, **values) -> ml_collections.ConfigDict:
  """The config section of a declared part, with all its fields.

  values: {field: value}; other fields, and those that are None, get their defaults. Of a nested
  section give a dict of the fields that differ from its defaults.
  """
  values = {name: value for name, value in values.items() if value is not None}
  for field in dataclasses.fields(declaration):
    if field.name in values and getattr(field.default, 'part_name', None) == '':
      values[field.name] = dataclasses.replace(field.default, **values[field.name])
  try:
    return _section(declaration(**values))
  except TypeError as e:
    named = f'{declaration.part_name or declaration.__name__}()'
    raise TypeError(str(e).replace(f'{declaration.__name__}.__init__()', named)) from None


def _section(declared):
  """A declared part with its values as a section; other values as they are."""
  if not dataclasses.is_dataclass(declared):
    return declared
  values = {'name': declared.part_name} if declared.part_name else {}
  for field in dataclasses.fields(declared):
    values[field.name] = _section(getattr(declared, field.name))
    if get_args(field.type)[:1] == (object,):  # either type, on the command line
      values[field.name] = ml_collections.FieldReference(values[field.name], field_type=object)
  return ml_collections.ConfigDict(values)


def declaration(part) -> type | None:
  """The dataclass that declares a part's fields; None if they are its arguments."""
  if inspect.isclass(part):
    return next((x for x in (part, *part.__bases__) if 'part_name' in vars(x)), None)
  first = next(iter((_arguments(part) or {}).values()), None)
  return first.annotation if first and dataclasses.is_dataclass(first.annotation) else None


def parameters(part) -> dict[str, inspect.Parameter] | None:
  """{name: parameter} of a part's declared fields or arguments; None if Python cannot tell them."""
  return _arguments(declaration(part) or part)


def _arguments(part):
  try:
    known = inspect.signature(part).parameters
  except ValueError:  # some functions written in C
    return None
  return {name: field.replace(annotation=_evaluated(field, part)) for name, field in known.items()}


def _evaluated(field, part):
  """The annotation of a field; evaluated if it is text, as a user's module may have it."""
  try:
    within = vars(sys.modules[part.__module__])
    return eval(field.annotation, within) if isinstance(field.annotation, str) else field.annotation
  except Exception:  # a name that exists for type checkers only
    return field.annotation


def check(key: str, value, annotation=None, prefix: str = 'config.', choices: bool = True) -> None:
  """Raises UserError for a value of another range or type, and for a number that is not finite.

  value: with tuples for lists. annotation: None for a field that is not declared. prefix: of the
  key, in the message. choices: whether to check names, too.
  """
  if any(not math.isfinite(x) or abs(x) > _LARGEST for x in numbers_in(value)):
    raise errors.UserError(f'{prefix}{key} is {_shown(value)}: a finite number is needed.')
  range_ = get_range(annotation)
  if range_ is None:
    kind = get_args(annotation)[0] if get_args(annotation) else annotation
    if (words := _TYPES.get(kind)) and not isinstance(value, kind):
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
