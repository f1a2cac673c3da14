"""`make env`, with a uv and a pip that only write down their arguments."""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not shutil.which('make'), reason='make is not installed')

PACKAGES = {
  'bertzoo_jax': """Provides-Extra: tpu
Provides-Extra: gpu
Provides-Extra: wandb
Provides-Extra: dev
Requires-Dist: jax
Requires-Dist: jax[tpu]; extra == 'tpu'
Requires-Dist: gcsfs; extra == 'tpu'
Requires-Dist: jax[cuda]; extra == 'gpu'
Requires-Dist: wandb>=0.19; extra == 'wandb'
Requires-Dist: pytest; extra == 'dev'""",
  'jax': """Provides-Extra: tpu
Provides-Extra: cuda
Requires-Dist: libtpu; extra == 'tpu'
Requires-Dist: jax-cuda-plugin; extra == 'cuda'""",
  **dict.fromkeys(('libtpu', 'gcsfs', 'wandb'), ''),
}


@pytest.fixture
def folder(tmp_path):
  """A clone whose environment was finished before setup.py changed."""
  for name in ('Makefile', 'setup.py', 'constraints.txt'):
    shutil.copy(ROOT / name, tmp_path)
  subprocess.run([sys.executable, '-m', 'venv', '--without-pip', tmp_path / '.venv'], check=True)
  [site] = (tmp_path / '.venv').glob('lib/python*/site-packages')
  for name, lines in PACKAGES.items():
    (site / f'{name}-1.0.dist-info').mkdir()
    text = f'Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{lines}'
    (site / f'{name}-1.0.dist-info/METADATA').write_text(text + '\n')
  (site / 'pip').mkdir()
  # not imported: pip switches off the distutils of setuptools
  real = os.path.dirname(importlib.util.find_spec('pip').origin)
  (site / 'pip/__init__.py').write_text(f'__path__.append({real!r})\n')
  (site / 'pip/__main__.py').write_text("import sys\nopen('asked', 'a').write(sys.argv[-1])\n")
  (tmp_path / '.venv/.ready').touch()
  os.utime(tmp_path / '.venv/.ready', (1, 1))
  return tmp_path


def make(folder, uv_exits):
  """The output of `make env`, and the packages that uv and pip were asked for."""
  uv = folder / 'bin' / 'uv'
  uv.parent.mkdir(exist_ok=True)
  uv.write_text(f'#!/bin/sh\nprintf "$*" > asked_of_uv\nexit {uv_exits}\n')
  uv.chmod(0o755)
  path = f'{uv.parent}{os.pathsep}{os.environ["PATH"]}'
  how = dict(cwd=folder, capture_output=True, text=True, env={'PATH': path, 'PIP_NO_INDEX': '1'})
  done = subprocess.run(['make', 'env', 'PYTHON='], **how)
  assert done.returncode == 0, done.stderr
  asked = (folder / name for name in ('asked_of_uv', 'asked'))
  return done.stdout, *(f.read_text().split()[-1] if f.exists() else None for f in asked)


def test_make_after_a_pull_updates_the_environment_and_keeps_the_extras_of_the_user(folder):
  output, by_uv, by_pip = make(folder, uv_exits=0)
  assert 'is updated; what else is installed there stays' in output
  assert (by_uv, by_pip) == ('.[dev,tpu,wandb]', None)
  assert list((folder / '.venv').glob('lib/python*/site-packages/wandb-1.0.dist-info'))
  (folder / 'asked_of_uv').unlink()
  assert make(folder, uv_exits=0)[1] is None, 'nothing changed since'


def test_where_uv_cannot_pip_installs_and_it_is_said(folder):
  output, by_uv, by_pip = make(folder, uv_exits=1)
  assert 'uv cannot, so pip installs' in output and by_uv == by_pip == '.[dev,tpu,wandb]'
