"""Parts of an experiment by name: of a table of the package, or `package.module:name`.

A part is a function or class that a config's section names. The other fields of the section are its
first argument, a dataclass that declares them (fields.py), or its keyword arguments.
"""

import inspect
import traceback

from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.common import trust
from bertzoo_jax.parts import fields as definitions
from bertzoo_jax.parts import task_objectives


def is_outside(name) -> bool:
  """Whether a name is `package.module:name`, and not a name in a table."""
  return isinstance(name, str) and ':' in name


def resolve(name: str, table: dict, what: str):
  """The part of this name: a key of the table (a BY_NAME), or `package.module:name`, where the name
  may have dots. what: the section of the config, for messages ('masking'). Raises UserError for an
  unknown part, a module that cannot be imported, and an object that cannot be called.
  """
  if not is_outside(name):
    return errors.choose(name, table, what)
  part = outside(name, what)
  if not callable(part):
    raise errors.UserError(
      f'config.{what} names {name!r}, which is a {type(part).__name__} and cannot be called: name '
      f'a function or class that returns the {what}.'
    )
  return part


def outside(name: str, what: str, fits=callable):
  """The object at `package.module:name`. fits: object → whether "did you mean" may suggest it.

  Raises UserError if the user has not named it (trust.py), or there is no such module or name.
  """
  module_name, _, attribute = name.partition(':')
  if not all(word.isidentifier() for word in (*module_name.split('.'), *attribute.split('.'))):
    raise errors.UserError(
      f'config.{what} names {name!r}: write package.module:name, as in my_masks.spans:every_third.'
    )
  trust.require(name, what)
  part = _module(name, what)
  for step in attribute.split('.'):
    if not hasattr(part, step):
      known = [k for k in dir(part) if k[0] != '_' and fits(getattr(part, k, None))]
      raise errors.UserError(
        f'config.{what} names {name!r}, and {getattr(part, "__name__", name)} has no {step!r}.'
        f'{errors.did_you_mean(step, known)}'
      )
    part = getattr(part, step)
  return part


def build(section, table: dict, what: str, *args, **handed_over):
  """Calls the part that a section names with the other fields of the section.

  args, handed_over: arguments that the caller gives to every part of this kind. Raises UserError as
  `resolve`, for a section with other fields than the part's, and for a field of a user's part that
  is not in its range (fields.py).
  """
  values = dict(section)
  name = values.pop('name', None)
  part = resolve(name, table, what)
  known = definitions.parameters(part)
  if known is not None:
    _check(name, part, known, values, table, what, args, handed_over)
  # ranges.check has checked all other fields; it runs no code of the user
  if is_outside(name):
    for key in values.keys() & (known or {}).keys():
      value = configuration.flatten({key: values[key]}).get(key)
      definitions.check(f'{what}.{key}', value, known[key].annotation)
  return call(part, values, *args, **handed_over)


def call(part, values: dict, *args, **handed_over):
  """Calls a part with the values of its fields, and the arguments of every part of its kind."""
  declaration = definitions.declaration(part)
  if declaration is None or inspect.isclass(part):
    return part(*args, **handed_over, **values)
  beside = {key: values[key] for key in _beside(part) if key in values}
  declared = {key: value for key, value in values.items() if key not in beside}
  return part(declaration(**declared), *args, **handed_over, **beside)


def _beside(part) -> dict:
  """Keyword-only arguments of a part, beside its declared fields: the labels of a task."""
  named = inspect.signature(part).parameters
  return {name: p for name, p in named.items() if p.kind is p.KEYWORD_ONLY}


def field(section, key: str, table: dict, what: str):
  """section[key], or the default of its part. Raises UserError as `resolve`, or without both."""
  if key in section:
    return section[key]
  name = section['name']
  parameter = definitions.parameters(resolve(name, table, what)).get(key)
  if parameter is None or parameter.default is parameter.empty:
    raise errors.UserError(
      f'config.{what} has no {key}, which is needed, and {name!r} has no default for it: write the '
      f'section in a config file as parts.part({name!r}, {key}=…).'
    )
  return parameter.default


def defaults(section, what: str) -> dict:
  """{field: default} of the user's part that a section names (imported); {} for the package's."""
  name = section['name'] if 'name' in section else None
  known = (definitions.parameters(resolve(name, {}, what)) or {}) if is_outside(name) else {}
  fields = {key: p.default for key, p in known.items() if p.kind is p.KEYWORD_ONLY}
  return {key: value for key, value in fields.items() if value is not inspect.Parameter.empty}


def _module(part, what):
  name = part.partition(':')[0]
  try:
    return trust.load(part)
  except ModuleNotFoundError as e:
    if e.name and f'{name}.'.startswith(f'{e.name}.'):
      raise errors.UserError(
        f'config.{what} names the module {name!r}, and there is no module {e.name!r}: modules are '
        f'looked for {trust.places()}.'
      ) from e
    raise errors.UserError(
      f'config.{what} names the module {name!r}, which imports {e.name!r}, and there is no such '
      'module: install it, or put its folder on PYTHONPATH.'
    ) from e
  except Exception as e:
    raise errors.UserError(
      f'config.{what} names the module {name!r}, which fails when it is imported '
      f'({type(e).__name__}{_place(e)}: {errors.words(e)}): mend it first.'
    ) from e


def _place(e) -> str:
  """' in FILE:LINE' of an error in a module."""
  if isinstance(e, SyntaxError):
    return ''  # its text has the place
  last = traceback.extract_tb(e.__traceback__)[-1]
  return f' in {last.filename}:{last.lineno}'


def _check(name, part, known, values, table, what, args, handed_over):
  """Raises UserError for a part with another signature, a field that it does not have, and a
  missing field; a user's part may lack fields that have a default.
  """
  declaration = definitions.declaration(part)
  declared = declaration is not None
  try:
    first = [None] * (declared and not inspect.isclass(part))
    inspect.signature(part).bind_partial(*first, *args, **handed_over)
  except TypeError as e:
    raise errors.UserError(
      f'{name!r} does not fit config.{what}: it is called as {_call(table, args, handed_over)} '
      f'with the fields of the section by name ({e}).'
    ) from e
  names = [*known] if declared else [k for k in [*known][len(args) :] if k not in handed_over]
  if declared and not inspect.isclass(part):
    beside = {k: p for k, p in _beside(part).items() if k not in handed_over}
    names, known = [*names, *beside], {**known, **beside}
  # An older fine-tuning may lack a field that was added later.
  tuned = declared and declaration.__module__ == task_objectives.__name__
  complete = declared and not is_outside(name) and not tuned
  unknown = [k for k in values if k not in names]
  if any(p.kind is p.VAR_KEYWORD for p in known.values()):
    unknown = []
  missing = [
    k
    for k in names
    if k not in values
    and (complete or known[k].default is known[k].empty)
    and known[k].kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
  ]
  if unknown or missing:
    wrong = [f'it has no {k!r}.{errors.did_you_mean(k, names)}' for k in unknown]
    wrong += [f'fields are missing: {", ".join(missing)}.'] if missing else []
    remedy = 'Build the section with bertzoo_jax.parts, which knows all its fields.'
    if is_outside(name):
      remedy = f'Write the section in a config file as parts.part({name!r}, field=value, …).'
    raise errors.UserError(f'config.{what} does not fit {name!r}: {" ".join(wrong)} {remedy}')


def _call(table, args, handed_over) -> str:
  """'name(length, corpus)': how a part of a table is called, for a message."""
  example = next(iter(table.values()))
  first = definitions.declaration(example) is not None and not inspect.isclass(example)
  positional = [*inspect.signature(example).parameters][first : len(args) + first]
  return f'name({", ".join([*positional, *(f"{k}=…" for k in handed_over)])})'
