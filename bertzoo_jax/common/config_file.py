"""The config that --config names: a shipped one, which is found from any folder, or a file."""

import contextlib
import importlib
import importlib.util
import inspect
import os
import pathlib
import sys
import traceback

import ml_collections

from bertzoo_jax.common import errors
from bertzoo_jax.common import trust

_CONFIGS = 'bertzoo_jax.configs'


def load(address: str) -> ml_collections.ConfigDict:
  """The locked config that get_config() of a module returns.

  Args:
    address: NAME[:ARGUMENT] of a shipped config ('bert:tiny', 'tasks/glue:rte'), or
      FILE.py[:ARGUMENT]. A file of configs/ is the shipped module, not a second copy of it. A name
      never runs a file of the current folder.

  Raises:
    UserError: there is no such config, it fails, or it returns no config.
  """
  path, *argument = address.split(':', 1)
  shipped = {
    file.relative_to(folder).with_suffix('').as_posix(): file
    for folder in [pathlib.Path(importlib.import_module(_CONFIGS).__path__[0]).resolve()]
    for file in sorted(folder.rglob('*.py'))
    if 'def get_config(' in file.read_text(encoding='utf-8') and file.stem != 'parts'
  }
  is_file = path.endswith('.py')
  name = path
  if is_file:
    name = next((n for n, file in shipped.items() if file == pathlib.Path(path).resolve()), None)
  if name not in shipped and not (is_file and os.path.isfile(path)):
    raise errors.UserError(_no_config(path, argument, list(shipped)))
  with _inside(path, name):
    module = importlib.import_module(f'{_CONFIGS}.{name.replace("/", ".")}') if name else _run(path)
  get_config = getattr(module, 'get_config', None)
  if not callable(get_config):
    raise errors.UserError(
      f'{path} has no function get_config(argument): configs/bert.py shows one.'
    )
  try:
    inspect.signature(get_config).bind(*argument)
  except TypeError as e:
    raise errors.UserError(
      f'{path}: get_config() takes no argument ({e}): write def get_config(argument=None).'
    ) from e
  with _inside(path, name):
    config = get_config(*argument)
  if isinstance(config, dict):
    config = ml_collections.ConfigDict(config)
  if not isinstance(config, ml_collections.ConfigDict):
    raise errors.UserError(no_experiment(path, config))
  return config.lock()


def no_experiment(path: str, returned, lacking='') -> str:
  """The sentence for a file whose get_config() returns something else."""
  kind = returned if returned is None else f'a {type(returned).__name__}'
  without = f' without {lacking!r}' if lacking else ''
  return (
    f'{path}: get_config() returns {kind}{without}: return parts.experiment(…) of configs/parts.py.'
  )


def _run(path):
  """The module of a file. No import can spell its name."""
  spec = importlib.util.spec_from_file_location('--config', path)
  sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def _no_config(path, argument, names) -> str:
  """What an address without a config is near to."""
  name = path.removesuffix('.py').removeprefix('configs/')
  meant = [n for n in names if n.rpartition('/')[2] == name] or errors.near(name, names)
  if path == name and os.path.isfile(f'{name}.py'):
    meant = [f'{name}.py']
  said = f'there is no config file {path}. '
  if path == name:
    said = f'there is no shipped config {path!r}. '
  if meant:
    return f'{said}Did you mean --config {":".join([meant[0], *argument])}?'
  systems = ', '.join(n for n in names if '/' not in n)
  return (
    f'{said}--config is FILE.py:SIZE, or a shipped one: {systems}; tasks/NAME:TASK; '
    'tables/NAME:SCALE.'
  )


@contextlib.contextmanager
def _inside(path, name):
  """Within it, what a config raises becomes 'FILE:LINE: error', a UserError. A UserError or
  ValueError of the package, or of a function that the file calls, is a sentence already.
  """
  try:
    with trust.own_modules() if path.endswith('.py') else contextlib.nullcontext():
      yield
  except (MemoryError, errors.TryAgain):
    raise
  except Exception as e:  # the user's own code may raise anything
    said, remedy = errors.words(e), 'Mend the config file'
    frames = [
      (frame.filename, frame.lineno, os.path.abspath(frame.filename) == os.path.abspath(path))
      for frame in traceback.extract_tb(e.__traceback__)
    ]
    if (type(e) is ValueError or isinstance(e, errors.UserError)) and (name or not frames[-1][2]):
      raise errors.UserError(f'--config: {said}') from e
    libraries = (__file__, sys.prefix, sys.base_prefix, '<')
    own = [frame for frame in frames if frame[2] or not frame[0].startswith(libraries)]
    file, line, _ = own[-1] if own else (path, 0, True)
    if isinstance(e, SyntaxError) and e.filename:
      file, line, said = e.filename, e.lineno, e.msg
    if isinstance(e, ModuleNotFoundError):
      remedy = f'Modules are looked for {trust.places()}'
    if isinstance(e, ModuleNotFoundError) and e.name == 'configs':
      remedy = f'Write from {_CONFIGS} import …'
    raise errors.UserError(f'{file}:{line}: {type(e).__name__}: {said}. {remedy}.') from e
