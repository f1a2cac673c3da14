"""Decides which code from outside the package may run: only code that the user names, never code
that a folder alone names.

Corpora, workdirs, Hugging Face directories and folders of tasks are data of unknown origin. They
can name parts as `package.module:name`. Such a part is built only if the user's --config names it
too, or with --trust-code.
"""

import contextlib
import importlib
import importlib.util
import os
import sys

from bertzoo_jax.common import errors

FLAG = 'trust-code'
HELP = (
  'Runs code outside bertzoo_jax that the given folders name: for runs of your own. Parts that '
  '--config names need no such flag.'
)

_named: set[str] = set()
_announced: set[str] = set()  # modules whose run under --trust-code was printed
_everything = [False]
# Files of corpora, workdirs, models and tables. A folder with one of them holds no modules.
_DATA = (
  'manifest.json attempts.jsonl bertzoo.json model.safetensors tokenizer.json table.json'.split()
)


def allow_config(config) -> None:
  """Every `package.module:name` in a config that the user gives may run from now on."""
  if isinstance(config, str) and ':' in config:
    _named.add(config)
  if hasattr(config, 'items'):
    config = tuple(config.items())
  if isinstance(config, (list, tuple)):
    for node in config:
      allow_config(node)


def allow_all() -> None:
  """All code that folders name may run from now on (--trust-code)."""
  _everything[0] = True


def get_allowed() -> tuple[frozenset[str], bool]:
  """The code that may run, for `set_allowed` in another process."""
  return frozenset(_named), _everything[0]


def set_allowed(allowed) -> None:
  """Sets the allowed code to an earlier result of `get_allowed`, of this or another process."""
  _named.clear()
  _named.update(allowed[0])
  _everything[0] = allowed[1]


def require(name: str, what: str) -> None:
  """Raises UserError unless the user has named a part (package.module:name), or trusts all. Imports
  nothing. what: section of the config, for the message.
  """
  if name not in _named and not _everything[0]:
    raise errors.UserError(
      f'config.{what} is {name!r}, code outside bertzoo_jax that a file names and you did not: if '
      f'it is yours, give the --config that names it, or add --{FLAG} (in Python trust_code=True).'
    )


def load(name: str):
  """The module of a part (package.module:name). Prints which files are about to run, if only
  --trust-code allows them. Raises the errors of the import.
  """
  module = name.partition(':')[0]
  words = module.split('.')
  with contextlib.suppress(ImportError, ValueError):
    spec = importlib.util.find_spec(words[0])
    files = [spec.origin or '', *(spec.submodule_search_locations or ())] if spec else []
    # a config file may have imported it from here; its other modules may import more
    is_local = spec is None or any(file.startswith(os.path.join(os.getcwd(), '')) for file in files)
    if is_local and (folder := _here()) and folder not in sys.path:
      sys.path.append(folder)  # last: nothing here takes the place of an installed package
  for i in range(1, len(words) + 1):
    part = '.'.join(words[:i])
    if name not in _named and part not in _announced:
      _announced.add(part)
      spec = importlib.util.find_spec(part)  # parents are imported: runs no code
      if spec and spec.origin:
        print(f'note: --{FLAG} runs the module {part} of {spec.origin}', file=sys.stderr)
    importlib.import_module(part)
  return sys.modules[module]


@contextlib.contextmanager
def own_modules():
  """Inside the `with`, a config file may import modules of the current folder, after all others."""
  folder = _here()
  if folder is None or folder in sys.path:
    yield
    return
  sys.path.append(folder)
  try:
    yield
  finally:
    sys.path.remove(folder)


@contextlib.contextmanager
def datasets(dataset, remedy, places):
  """Yields `tensorflow_datasets`, which inside the `with` builds only its own features: otherwise
  it imports modules that a prepared dataset names. Raises UserError at the first such module, and
  if the package is missing or fails. dataset, remedy, places of its data: for the messages.
  """
  with errors.needing(f'{dataset} needs TensorFlow Datasets and TensorFlow: {remedy}'):
    import tensorflow_datasets as tfds

    if importlib.util.find_spec('tensorflow') is None:  # it is imported later, at the first dataset
      raise ModuleNotFoundError("No module named 'tensorflow'")
  connector = tfds.features.FeatureConnector
  kept = vars(connector)['cls_from_name']  # the one place where that library imports such a module

  def checked(name):
    if not _everything[0] and not str(name).startswith('tensorflow_datasets.'):
      raise errors.UserError(
        f'features.json of {dataset} names {name!r}, which is code outside TensorFlow Datasets: '
        f'give a dataset without it, or --{FLAG} if it is yours.'
      )
    return kept.__get__(None, connector)(name)

  from bertzoo_jax.common import folders  # definitions, which import this file, need no numpy
  from bertzoo_jax.common import storage

  labels = importlib.import_module('tensorflow_datasets.core.features.class_label_feature')
  read = labels._load_names_from_file

  def names(path):
    """Names of a dataset's classes, from a file beside it; features.json may name another file."""
    if not path.name.endswith('.labels.txt'):
      raise errors.UserError(f'features.json of {dataset} reads {path}: give another dataset.')
    storage.check_file(path)
    return read(folders.inside(path.parent, path.name))

  connector.cls_from_name, labels._load_names_from_file = checked, names
  failing = f'{dataset}: TensorFlow Datasets cannot bring it; its data are looked for in {places}'
  try:
    with errors.unreadable(failing, Exception):  # an unknown name, no network, no split
      yield tfds
  finally:
    connector.cls_from_name, labels._load_names_from_file = kept, read


def torch():
  """PyTorch, imported from the root folder: a wheel that it needs searches the current folder for
  native libraries. Call this before `import transformers`.
  """
  return from_root('torch')


def from_root(name: str):
  """A module, imported from the root folder, since its import reads files of the current one."""
  if module := sys.modules.get(name):
    return module
  with contextlib.chdir(os.sep):
    return importlib.import_module(name)


def places() -> str:
  """Where the user's modules are looked for, for messages."""
  current = f'in the current folder ({os.getcwd()})'
  if file := _data():
    return f'on PYTHONPATH, and not {current}, which holds data ({file})'
  return f'{current} and on PYTHONPATH'


def _here() -> str | None:
  """The current folder, for the user's modules; None if it holds data or does not exist."""
  try:
    return None if _data() else os.getcwd()
  except FileNotFoundError:
    return None


def _data() -> str | None:
  """The first file that marks the current folder as data; None without one."""
  return next((file for file in _DATA if os.path.exists(file)), None)
