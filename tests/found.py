"""The configs of the repository, found and never listed by hand."""

import importlib
import pathlib

import ml_collections

from bertzoo_jax import parts
from bertzoo_jax.common import config as configuration
from bertzoo_jax.parts import fields as definitions
from bertzoo_jax.parts import named
from bertzoo_jax.parts import ranges

ROOT = pathlib.Path(__file__).parents[1]
NOT_CONFIGS = ('__init__', 'arguments')
OF_A_DIRECTORY = 'continued'  # a config whose argument names the encoder

# Every other file of configs/ is a config; tests/house/test_laws.py says what it must have.
FILES = [p.stem for p in sorted((ROOT / 'configs').glob('*.py'))]
SYSTEMS = tuple(file for file in FILES if file not in (*NOT_CONFIGS, OF_A_DIRECTORY))


def holding(text: str, folder: str, pattern='*.py') -> tuple[str, ...]:
  """Names of the files of a folder that have this text."""
  files = sorted((ROOT / folder).glob(pattern))
  return tuple(p.stem for p in files if text in p.read_text(encoding='utf-8'))


def module(system: str):
  return importlib.import_module(f'configs.{system}')


def config(system: str, size: str):
  return ml_collections.ConfigDict(module(system).get_config(size)).lock()


def last_phase(config):
  return configuration.phases(config)[-1].config


# Configs of encoders that are not of the package, by the full names of their modules.
OUTSIDE = holding('PARAMETERS', 'tests/outside', '*_config.py')
OUTSIDE = tuple(f'tests.outside.{name}' for name in OUTSIDE)


def counted():
  """(full name of a module, size) where a config says the number of its parameters."""
  for name in (*(f'configs.{system}' for system in SYSTEMS), *OUTSIDE):
    for size in importlib.import_module(name).PARAMETERS:
      yield name, size


SIZES = tuple((system, size) for system in SYSTEMS for size in getattr(module(system), 'SIZES', ()))

# Files of configs/tasks that hold fine-tuning configs: (file, task). Those of SUITES have `all`.
TASK_FILES = holding('def get_config', 'configs/tasks')
TASKS = tuple((file, task) for file in TASK_FILES for task in module(f'tasks.{file}').TASKS)
SUITES = ('babylm', 'glue', 'superglue')


def fields(section, name, **changes):
  """The fields of a part, with the usual values but for these."""
  known = {**ranges.SECTIONS.get(section, {}), **ranges.TASK_SECTIONS.get(section, {})}
  return {k: x for k, x in parts.section(known[name], **changes).items() if k != 'name'}


def call_part(axis, name, *args, **more):
  """The part of this name, called with fields, the others as usual, and with other arguments.

  axis: its module, with BY_NAME.
  """
  part = axis.BY_NAME[name]
  declared = definitions.declaration(part)
  known = definitions.parameters(declared) if declared else {}
  if 'head' in known and known['head'].default == 'auto':  # which only a plan knows
    more = {'head': 'linear', **more}
  own = more.keys() & known.keys()
  return named.call(part, {key: more.pop(key) for key in own}, *args, **more)
