"""Fields of a config that a command line sets: --config.section.field=value.

A field keeps the type of its present value. In a suite, a config {'suite': {task: config}},
--config.FIELD sets every task; --config.suite.TASK.FIELD overrides it for one task.
"""

import ast
import re

import ml_collections
from absl import flags

from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.parts import named

STEPS = (
  'The steps are those of config.phases: write --config FILE.py:SIZE,steps=N to scale them, or set '
  '--config.phases.'
)
_NAMES = re.compile(r'[\w-]+(,[\w-]+)+')  # as a,b
_FLAG = re.compile(r'--?(no)?config\.([^=]*)(?:=(.*))?', re.DOTALL)


def split(argv: list[str], config) -> tuple[list[str], dict[str, str]]:
  """(the other arguments, {'section.field': text} in order). The last value of a field counts.

  Raises UserError for a field that the config does not have, and for one without a value.
  """
  rest, overrides = [], {}
  arguments = iter(argv)
  for argument in arguments:
    if not (flag := _FLAG.fullmatch(argument)):
      rest.append(argument)
      continue
    no, key, text = flag.groups()
    section, field = _places(config, key)[0]
    if section.get_type(field) is bool and text is None:
      text = str(not no)
    elif no or (text is None and (text := next(arguments, None)) is None):
      raise errors.UserError(f'{argument} sets nothing: write {_now(key, section[field])}.')
    overrides.pop(key, None)  # so that the last one decides its place
    overrides[key] = text
  return rest, overrides


def apply(config, overrides: dict[str, str]) -> None:
  """Sets the fields of a locked config. Raises UserError for a value that does not fit."""
  for i, (key, text) in enumerate(overrides.items()):
    inside = re.compile(rf'(suite\.\w+\.)?{re.escape(key)}\.')
    if lost := next(filter(inside.match, [*overrides][:i]), None):
      raise errors.UserError(
        f'--config.{key} overrides --config.{lost}, given before it: give it first.'
      )
    for section, field in _places(config, key, overrides):
      read, kind = _KINDS.get(section.get_type(field), (_literal, 'another type'))
      try:
        section[field] = read(text)
      except (TypeError, ValueError, SyntaxError) as e:
        raise errors.UserError(
          f'--config.{key} takes {kind}, not {text!r}: write, for example, '
          f'{_now(key, section[field])}.'
        ) from e
  config.lock()  # a section that was replaced, too


def _places(config, key: str, overrides=()) -> list:
  """[(section, field)] that a key sets: one, or one per task of a suite, without tasks for which
  `overrides` has a key of their own. Raises UserError if the config has no such field.
  """
  if place := _place(config, key):
    return [place]
  tasks = config.suite if 'suite' in config else {}
  places = {f'suite.{task}.{key}': _place(one, key) for task, one in tasks.items()}
  if not places or None in places.values():
    raise errors.UserError(_unknown(key, config))
  return [place for full_key, place in places.items() if full_key not in overrides]


def _place(config, key: str):
  *sections, field = key.split('.')
  for name in sections:
    config = config[name] if name in config else None
    if not isinstance(config, ml_collections.ConfigDict):
      return None
  if field not in config and field in (usual := named.defaults(config, '.'.join(sections))):
    with config.unlocked():
      config[field] = usual[field]
  return (config, field) if field in config else None


def _now(key, value) -> str:
  """The flag that sets a field to its present value."""
  if isinstance(value, ml_collections.ConfigDict):
    return f'--config FILE.py:SIZE,{key}=PART, or --config.{key}.FIELD=value'
  return f'--config.{key}={f"'{value}'" if isinstance(value, tuple) else value}'


# --- values ---


def _tuple(text):
  try:
    value = ast.literal_eval(text)
  except (ValueError, SyntaxError) as e:
    if isinstance(e, SyntaxError) and {',', ' '} & set(text):
      raise
    value = text.split(',') if _NAMES.fullmatch(text) else text  # a word, or a path
  return tuple(value) if isinstance(value, (tuple, list, dict, set)) else (value,)


def _section(text):
  value = ast.literal_eval(text)
  if not isinstance(value, dict):
    raise ValueError(text)
  return ml_collections.ConfigDict(value)


def _literal(text):
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return text


# The reader of a type's text, and the type's name.
_KINDS = {
  bool: (flags.BooleanParser().parse, 'true or false'),
  float: (float, 'a number'),
  int: (flags.IntegerParser().parse, 'a whole number'),
  str: (str, 'text'),
  tuple: (_tuple, 'a tuple'),
  ml_collections.ConfigDict: (_section, 'a section'),
}


# --- an unknown field ---


def _unknown(key: str, config) -> str:
  """The message for an unknown key: names a similar field of its section or of others, or all."""
  section, _, field = key.rpartition('.')
  if field == 'steps':
    return STEPS
  known = _fields(config)
  names = {k: k.rpartition('.')[2] for k in known}
  sections = {k.rpartition('.')[0] for k in known} - {''}
  typed, section = section, next(iter(errors.near(section, sections)), section)
  fields = [name for k, name in names.items() if k.rpartition('.')[0] == section]
  near = errors.near(field, fields if section else [*fields, *sections])
  if named.is_outside(part := known.get(f'{section}.name')) and not near:
    return (
      f'config.{section} has no field {field!r} for {part!r}, and a flag can only change existing '
      f'fields: write the section in a config file, as parts.part({part!r}, {field}=…).'
    )
  message = f'the config has no field {field!r}.'
  if task_keys := [k for k in known if re.fullmatch(rf'suite\.\w+\.{re.escape(key)}', k)]:
    return f'{message} Not every task has it: set {as_flags(task_keys)}.'
  if near:
    meant = [f'{section}.{near[0]}' if section else near[0]]
  else:
    alike = _called(errors.near(field, names.values(), cutoff=0.8), names)
    meant = alike or ([] if section else meant_by(field, config))
  if meant:
    return f'{message} Did you mean {as_flags(meant)}?'
  if section and fields:
    subject = 'There' if section == typed else f'Did you mean --config.{section}? There'
    return f'{message} {subject} is: {", ".join(fields)}.'
  return f'{message} --help with --config lists them.'


def meant_by(word: str, config) -> list[str]:
  """The keys whose field a word misspells, abbreviates or is a part of ('layers': num_layers)."""
  names = {key: key.rpartition('.')[2] for key in _fields(config)}
  words = {word, word.removesuffix('s')}
  near = errors.near(word, names.values())
  return _called(near or [name for name in names.values() if words & set(name.split('_'))], names)


def as_flags(keys) -> str:
  """The flags that set these fields."""
  return ' or '.join(f'--config.{key}' for key in keys)


def _called(wanted, names) -> list[str]:
  """The keys of these names, without keys of single tasks whose field every task has."""
  return [
    key
    for key, name in names.items()
    if name in wanted and not ((m := re.match(r'suite\.\w+\.(.*)', key)) and m[1] in names)
  ]


def _fields(config) -> dict:
  """{'section.field': value} of all fields, first the fields that every task has."""
  flat = configuration.flatten(config)
  tasks = [
    configuration.flatten(one) for one in (config.suite if 'suite' in config else {}).values()
  ]
  shared = {k: x for k, x in tasks[0].items() if all(k in one for one in tasks)} if tasks else {}
  return shared | flat
