"""The configs, which lie in configs/ at the top of a clone. A wheel has that folder here."""

import importlib
import importlib.abc
import importlib.machinery
import pathlib
import sys

__path__ = [str(pathlib.Path(__file__).resolve().parents[2] / 'configs')]


class _SameModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """`configs`, where no other is called so, is this package; `configs.x` is no second copy."""

  def find_spec(self, name, path=None, target=None):
    if name == 'configs':
      ours = importlib.machinery.PathFinder.find_spec(name) is None
    else:
      ours = name.startswith('configs.') and sys.modules['configs'] is sys.modules[__name__]
    return importlib.machinery.ModuleSpec(name, self) if ours else None

  def exec_module(self, module):
    name = module.__name__
    sys.modules[name] = importlib.import_module(f'bertzoo_jax.{name}')


sys.meta_path.insert(0, _SameModules())
