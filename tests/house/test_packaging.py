import ast
import importlib
import importlib.util
import pathlib
import runpy
import subprocess
import sys
import types

import pytest
import setuptools
from jax._src import hardware_utils

import bertzoo_jax
from bertzoo_jax import convert
from bertzoo_jax import demo
from bertzoo_jax import export
from bertzoo_jax.common import errors
from bertzoo_jax.common import hub
from bertzoo_jax.common import storage
from bertzoo_jax.corpus import beam
from bertzoo_jax.experiment import reports
from bertzoo_jax.preflight.tpu import program
from bertzoo_jax.runs import metrics
from bertzoo_jax.text import sentences
from bertzoo_jax.words import chinese
from bertzoo_jax.words.similar import providers
from tests import commands

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / 'bertzoo_jax'


@pytest.fixture
def setup(monkeypatch):
  """The arguments that setup.py gives to setuptools."""
  given = {}
  monkeypatch.chdir(ROOT)
  monkeypatch.setattr(setuptools, 'setup', lambda **arguments: given.update(arguments))
  runpy.run_path('setup.py')
  return given


def _tracked(workdir, **which):
  metrics.Trackers(workdir, 0, {}, **{'tensorboard': False, 'wandb': '', **which}).close()


def _idle(chip):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(reports, 'jax', types.SimpleNamespace(**IDLE))
    patch.setattr(hardware_utils, 'has_visible_nvidia_gpu', lambda: chip == 'gpu')
    seen = lambda: (4 * (chip == 'tpu'), '0x0063')
    patch.setattr(hardware_utils, 'num_available_tpu_chips_and_device_id', seen)
    print(*reports.idle_chips())


OUTSIDE = types.SimpleNamespace(name='an architecture outside')
IDLE = dict(default_backend=lambda: 'cpu', config=types.SimpleNamespace(jax_platforms=None))


@pytest.mark.parametrize(
  'extra, missing, use',
  [
    ('hf', 'torch', lambda: convert._read(pathlib.Path('pytorch_model.bin'))),
    ('hf', 'transformers', lambda: export._verify(None, OUTSIDE, *5 * [None])),
    ('zh', 'jieba', chinese.load),
    ('zh', 'gensim', lambda: providers.trained(None, None, None)),
    ('datasets', 'datasets', lambda: hub.data('hf:a/b')),
    ('sentencex', 'sentencex', sentences._sentencex),
    ('beam', 'apache_beam', lambda: beam.run(None, 1, 'out', None, [], print)),
    ('wandb', 'wandb', lambda: _tracked('run', wandb='project')),
    ('tpu', 'google.cloud.storage', lambda: _tracked('gs://b/run', tensorboard=True)),
    ('tpu', 'gcsfs', lambda: storage.read_twice(lambda: __import__('gcsfs'), 'gs://b')),
    ('tpu', 'libtpu', program.prepare),
    ('tpu', None, lambda: _idle('tpu')),
    ('gpu', None, lambda: _idle('gpu')),
  ],
)
def test_a_missing_extra_is_named(setup, monkeypatch, capsys, tmp_path, extra, missing, use):
  assert extra in setup['extras_require']
  monkeypatch.chdir(tmp_path)
  monkeypatch.delenv('TPU_LIBRARY_PATH', raising=False)
  find = importlib.util.find_spec
  found = lambda name, *rest: None if name == missing else find(name, *rest)
  monkeypatch.setattr(importlib.util, 'find_spec', found)
  monkeypatch.setitem(sys.modules, missing or 'nothing', None)  # importing it fails
  try:
    use()
    message = ''
  except errors.UserError as e:
    message = str(e)
  assert f"pip install 'bertzoo-jax[{extra}]'" in message + capsys.readouterr().out


def test_a_wheel_has_every_module_and_every_file_that_a_module_reads(setup):
  assert not set(setup) & {'py_modules', 'scripts', 'data_files'}
  folders = {p.parent for p in [*PACKAGE.rglob('*.py'), *(ROOT / 'configs').rglob('*.py')]}
  names = ['.'.join(folder.relative_to(ROOT).parts) for folder in folders]
  installed = [f'bertzoo_jax.{n}' if n.startswith('configs') else n for n in names]
  assert sorted(setup['packages']) == sorted([*installed, 'bertzoo_jax.sample'])
  assert setup['package_dir'] == {'bertzoo_jax.sample': 'data/sample'}
  packed = {
    path
    for package, patterns in setup['package_data'].items()
    for pattern in patterns
    for path in ROOT.joinpath(*package.split('.')).glob(pattern)
  }
  found = (p for p in PACKAGE.rglob('*') if p.is_file() and '__pycache__' not in p.parts)
  others = {p for p in found if p.suffix not in ('.py', '.pyc', '.md')}
  assert packed == others and len(packed) > 0


def test_an_installed_wheel_has_the_costs_of_kernels_and_the_sample(tmp_path):
  """Built without the checkout's docs/, bench/ and data/."""
  build = [sys.executable, 'setup.py', '--quiet', 'build_py', f'--build-lib={tmp_path}']
  subprocess.run(build, cwd=ROOT, check=True)
  count = 'from bertzoo_jax.preflight.tpu import estimate, chips; '
  count += 'print(estimate.KERNELS, *(len(estimate.kernel_cycles(chip)) for chip in chips.CHIPS))'
  environment = commands.environment(PYTHONPATH=str(tmp_path))
  output = commands.run('-c', count, cwd=tmp_path, env=environment, check=True).stdout.split()
  assert output[0] == str(tmp_path / 'bertzoo_jax/preflight/tpu/kernel_cycles.csv')
  assert sum(int(rows) > 50 for rows in output[1:]) == 4
  assert sorted(p.name for p in (tmp_path / 'bertzoo_jax/sample').iterdir()) == [*demo.TEXTS]


def test_no_module_changes_the_environment_when_it_is_imported():
  for path in PACKAGE.rglob('*.py'):
    for node in ast.parse(path.read_text()).body:
      if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) and path != PACKAGE / '__init__.py':
        assert 'os.environ' not in ast.unparse(node), f'{path}:{node.lineno}'


def test_the_list_of_changes_and_the_citation_have_the_version():
  assert f'## {bertzoo_jax.__version__}\n' in (ROOT / 'CHANGELOG.md').read_text()
  assert f'version: {bertzoo_jax.__version__}\n' in (ROOT / 'CITATION.cff').read_text()
