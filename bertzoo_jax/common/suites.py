"""Flags of a suite of tasks: --config.FIELD=value sets FIELD of every task.

A suite is a config {'suite': {task: config}}. --config.suite.TASK.FIELD=value sets one task, and
wins over the flag for all tasks.
"""

import re

from bertzoo_jax.common import config as configuration

_FLAG = re.compile(r'(--?(?:no)?config)\.([\w.]+)(.*)', re.DOTALL)


def fields(config) -> dict:
  """{'section.field': value} of all fields: those of every task come first, by their own names."""
  flat = configuration.flatten(config)
  if 'suite' not in config:
    return flat
  return {**_of_all(flat, config.suite), **flat}


def expanded(argv: list[str], config) -> list[str]:
  """A command line whose flags for every task are written out, one flag per task.

  A field that some task lacks stays as it is: it is then an unknown field of the config.
  """
  if 'suite' not in config:
    return argv
  found = [_FLAG.fullmatch(argument) for argument in argv]
  given = {match[2] for match in found if match}
  known = _of_all(configuration.flatten(config), config.suite)
  out, i = [], 0
  while i < len(argv):
    match, end = found[i], i + 1
    if match and match[2] in known:
      # --config.FIELD value, in two arguments; a boolean flag has no value
      end += not match[3] and type(known[match[2]]) is not bool
      for task in config.suite:
        if (key := f'suite.{task}.{match[2]}') not in given:
          out += [f'{match[1]}.{key}{match[3]}', *argv[i + 1 : end]]
    else:
      out += argv[i:end]
    i = end
  return out


def last_of_each(argv: list[str]) -> list[str]:
  """A command line where each field of the config is set once, by its last flag. The library would
  join the values of a tuple.
  """
  found, starts = {}, []
  for i, argument in enumerate(argv):
    if match := _FLAG.fullmatch(argument):
      beside = not match[3] and i + 1 < len(argv) and not re.match('--?[a-z]', argv[i + 1])
      starts.append((match[2], range(i, i + 1 + beside)))
      found[match[2]] = i
  out = {i for key, own in starts if found[key] != own.start for i in own}
  return [argument for i, argument in enumerate(argv) if i not in out]


def without_tasks(keys: list[str]) -> list[str]:
  """The keys, but for those of single tasks that are also there for every task."""
  return [k for k in keys if not (m := re.match(r'suite\.\w+\.(.*)', k)) or m[1] not in keys]


def of_some(key: str, keys) -> list[str]:
  """The keys of the tasks that have a field, among all keys of a suite."""
  return [k for k in keys if re.fullmatch(rf'suite\.\w+\.{re.escape(key)}', k)]


def _of_all(flat, suite) -> dict:
  """The fields that every task has, with the values of the first. flat: the config, flattened."""
  own = [
    {key.removeprefix(start): x for key, x in flat.items() if key.startswith(start)}
    for start in (f'suite.{task}.' for task in suite)
  ]
  return {key: x for key, x in own[0].items() if all(key in one for one in own)} if own else {}
