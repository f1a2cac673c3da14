"""What a wheel of this repository installs."""

import pathlib
import runpy

import pytest
import setuptools

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / 'bertzoo_jax'


@pytest.fixture
def setup(monkeypatch):
  """The arguments that setup.py gives to setuptools."""
  given = {}
  monkeypatch.chdir(ROOT)
  monkeypatch.setattr(setuptools, 'setup', lambda **arguments: given.update(arguments))
  runpy.run_path('setup.py')
  return given


def test_a_wheel_installs_one_top_level_package(setup):
  assert {name.partition('.')[0] for name in setup['packages']} == {'bertzoo_jax'}
  assert not set(setup) & {'py_modules', 'scripts', 'data_files', 'package_dir'}


def test_a_wheel_has_every_module_and_every_file_that_a_module_reads(setup):
  folders = {p.parent for p in PACKAGE.rglob('*.py')}
  assert set(setup['packages']) == {'.'.join(f.relative_to(ROOT).parts) for f in folders}
  packed = {
    path
    for package, patterns in setup['package_data'].items()
    for pattern in patterns
    for path in ROOT.joinpath(*package.split('.')).glob(pattern)
  }
  others = {
    p
    for p in PACKAGE.rglob('*')
    if p.is_file() and p.suffix not in ('.py', '.pyc', '.md') and '__pycache__' not in p.parts
  }
  assert packed == others and len(packed) > 0
