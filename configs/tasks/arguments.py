"""The argument of a file of tasks: `TASK[,recipe=NAME][,source=table|tfds][,section=part]`.

A file has TASKS: {task: fields of parts.fine_tuning}, with `sources` {name: function that returns a
source section} in place of `source`. Sections are functions without arguments, so that each config
has its own.
"""

import importlib

import ml_collections

from bertzoo_jax import parts
from bertzoo_jax.configs.arguments import near

ALL = 'all'
_RECIPES = 'bertzoo_jax.configs.tasks.recipes'


def config(argument, tasks, suite=()):
  """The config of one task, or of a suite.

  Args:
    argument: see above; `all` is the suite.
    tasks: TASKS of the file.
    suite: names of the tasks of `all`, in the order in which they are run; () for no suite.

  Returns:
    A fine-tuning config; of `all`, ConfigDict({'suite': {task: config}}).

  Raises:
    ValueError: an unknown task, recipe, source or part; the message lists those that exist.
  """
  task, *changes = (argument or '').split(',')
  changes = _changes(changes, argument)
  if task == ALL and suite:
    return ml_collections.ConfigDict(
      {'suite': {name: _one(name, tasks, changes) for name in suite}}
    )
  known = (*tasks, ALL) if suite else tuple(tasks)
  if task not in tasks:
    raise ValueError(
      f'no task {task!r}: write FILE.py:TASK with TASK one of {", ".join(known)}.'
      f'{near(task, known)}'
    )
  return _one(task, tasks, changes)


def _one(task, tasks, changes):
  fields = {'name': task, **{k: v() if callable(v) else v for k, v in tasks[task].items()}}
  changes = dict(changes)
  source = _pick(
    changes.pop('source', next(iter(fields['sources']))), fields.pop('sources'), 'source'
  )
  fields['source'] = source()
  objective = tasks[task]['objective'] if 'objective' in tasks[task] else parts.classification
  length = fields['length'] if 'length' in fields else 0
  recipe = _recipe(changes.pop('recipe', ''), task, objective, length)
  if 'epochs' in recipe and 'steps' not in recipe:
    fields.pop('steps', None)  # of the paper that the task's own values are from
  fields.update(recipe)
  for key, value in changes.items():
    if key not in parts.TASK_SECTIONS:
      known = ('recipe', 'source', *parts.TASK_SECTIONS)
      raise ValueError(
        f'{key}={value} changes nothing: write KEY=VALUE with KEY one of {", ".join(known)}.'
        f'{near(key, known)}'
      )
    fields[key] = parts.section(_pick(value, parts.TASK_SECTIONS[key], key))
    if key == 'schedule':
      fields[key]['warmup'] = 0  # config.warmup says it, also as a share of the run
  return parts.fine_tuning(**fields)


def _changes(texts, argument):
  out = {}
  for text in texts:
    key, _, value = text.partition('=')
    if key in out:
      raise ValueError(f'{key} is set twice in {argument!r}: write it once.')
    out[key] = value
  return out


def _recipe(name, task, objective, length) -> dict:
  """The fields that a paper's recipe sets for a task.

  objective: constructor of its section. length: of its rows, 0 if the task sets none.
  """
  if not name:
    return {}
  return importlib.import_module(_RECIPES).recipe(name, task, objective, length)


def _pick(name, table, what):
  if name not in table:
    raise ValueError(
      f'no {what} is called {name!r}; there is {", ".join(table)}.{near(name, table)}'
    )
  return table[name]
