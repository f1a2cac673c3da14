"""The config that --config names: a shipped one, which is found from any folder, or a file."""

import contextlib
import importlib
import os
import pathlib
import runpy
import sys
import traceback

import ml_collections

from bertzoo_jax.common import errors
from bertzoo_jax.common import trust

_CONFIGS = 'bertzoo_jax.configs'
_PACKAGE = str(pathlib.Path(__file__).parents[1])


def load(address: str) -> ml_collections.ConfigDict:
  """The locked config that get_config() of a module returns.

  address: NAME[:ARGUMENT] of a shipped config ('bert:tiny', 'tasks/glue:rte'), or
  FILE.py[:ARGUMENT]. A file of configs/ is loaded as the shipped module. A name never runs a file
  of the current folder. Raises UserError for an unknown config, and for one that fails or returns
  something else.
  """
  path, *argument = address.split(':', 1)
  is_file = path.endswith('.py')
  shipped = _shipped()
  name = shipped.get(pathlib.Path(path).resolve()) if is_file else path
  if name not in shipped.values() and not (is_file and os.path.isfile(path)):
    raise errors.UserError(_no_config(path, argument, list(shipped.values())))
  with _inside(path, name), trust.own_modules() if is_file else contextlib.nullcontext():
    if name:
      module = vars(importlib.import_module(f'{_CONFIGS}.{name.replace("/", ".")}'))
    else:
      module = runpy.run_path(path)
    if not callable(module.get('get_config')):
      raise errors.UserError(
        f'{path} has no function get_config(argument): configs/bert.py shows one.'
      )
    config = module['get_config'](*argument)
    if isinstance(config, dict):
      config = ml_collections.ConfigDict(config)
    if not isinstance(config, ml_collections.ConfigDict):
      kind = config if config is None else f'a {type(config).__name__}'
      raise errors.UserError(no_experiment(path, kind))
  return config.lock()


def no_experiment(path: str, returned) -> str:
  """The sentence for a file whose get_config() returns something else."""
  needed = 'return parts.experiment(…) of bertzoo_jax.parts'
  return f'{path}: get_config() returns {returned}: {needed}.'


def _shipped() -> dict:
  """{file: name} of the shipped configs."""
  folder = pathlib.Path(importlib.import_module(_CONFIGS).__path__[0]).resolve()
  return {
    file: file.relative_to(folder).with_suffix('').as_posix()
    for file in sorted(folder.rglob('*.py'))
    if 'def get_config(' in file.read_text(encoding='utf-8')
  }


def _no_config(path, argument, names) -> str:
  """The message for an address at which there is no config."""
  name = path.removesuffix('.py').removeprefix('configs/')
  meant = [n for n in names if n.rpartition('/')[2] == name]
  if path == name and os.path.isfile(f'{name}.py'):
    meant = [f'{name}.py']
  folder, file = os.path.split(path)
  if not meant and path.endswith('.py') and os.path.isdir(folder or '.'):
    beside = [other.stem for other in pathlib.Path(folder or '.').glob('*.py') if other.is_file()]
    near = errors.near(file.removesuffix('.py'), beside)
    meant = [os.path.join(folder, f'{other}.py') for other in near]
  meant = meant or errors.near(name, names)
  message = f'there is no config file {path}. '
  if path == name:
    message = f'there is no shipped config {path!r}. '
  if meant:
    return f'{message}Did you mean --config {":".join([meant[0], *argument])}?'
  systems = ', '.join(name for name in names if '/' not in name)
  return (
    f'{message}--config is FILE.py:SIZE, or a shipped one: {systems}; tasks/NAME:TASK; '
    'tables/NAME:SCALE.'
  )


@contextlib.contextmanager
def _inside(path, name):
  """Turns exceptions of a config file into a UserError, 'FILE:LINE: error'. A ValueError of the
  package, or of a function that the file calls, already has a message for users.
  """
  try:
    yield
  except (MemoryError, errors.UserError):
    raise
  except Exception as e:  # the user's own code may raise anything
    text, libraries = errors.words(e), (_PACKAGE, sys.prefix, sys.base_prefix, '<')
    frames = [
      (os.path.abspath(f.filename), f.lineno) for f in traceback.extract_tb(e.__traceback__)
    ]
    file = os.path.abspath(path)
    if type(e) is ValueError and (name or frames[-1][0] != file):
      raise errors.UserError(f'--config: {text}') from e
    user_frames = [f for f in frames if f[0] == file or not f[0].startswith(libraries)]
    place, remedy = user_frames[-1] if user_frames else (file, 1), 'Mend the config file'
    if isinstance(e, SyntaxError) and e.filename:
      place, text = (e.filename, e.lineno), e.msg
    elif isinstance(e, ModuleNotFoundError) and e.name == 'configs':
      remedy = f'Write from {_CONFIGS} import …'
    elif isinstance(e, ModuleNotFoundError):
      remedy = f'Modules are looked for {trust.places()}'
    elif not user_frames:
      remedy = 'Write def get_config(argument=None)'
    raise errors.UserError(f'{place[0]}:{place[1]}: {type(e).__name__}: {text}. {remedy}.') from e
