"""What the last version without `experiment/` wrote: its corpus opens, its run resumes bit for bit
and its export is read. That version is made from its commit.
"""

import io
import json
import pathlib
import shutil
import subprocess
import sys
import tarfile

import pytest

import bertzoo_jax
from bertzoo_jax.runs import metrics

ROOT, BEFORE, END = pathlib.Path(__file__).parents[2], '5d6c08ef', 6
FIELDS = ('--config', f'configs/bert.py:tiny,steps={END}', '--config.run.log_every=1')
FIELDS += ('--config.run.keep_every=3', '--config.run.tensorboard=False')


def command(tree, name, *flags):
  """Runs a command of a checkout; its output."""
  line = [sys.executable, '-m', f'bertzoo_jax.{name}', *map(str, flags)]
  done = subprocess.run(line, cwd=tree, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr[-2000:]
  return done.stdout


@pytest.fixture(scope='module')
def before(tmp_path_factory):
  """A folder with `corpus`, `run` and `export` of that version."""
  archive = subprocess.run(['git', '-C', ROOT, 'archive', BEFORE], capture_output=True)
  if archive.returncode:
    pytest.skip(f'this checkout does not have the commit {BEFORE}')
  made = tmp_path_factory.mktemp('before')
  with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tree:
    tree.extractall(made / 'tree', filter='data')
  there = lambda name, *flags: command(made / 'tree', name, *flags)
  source = ('--source', made / 'tree/data/sample/time_machine.txt')
  there('prepare', *FIELDS[:2], *source, '--out', made / 'corpus')
  there('pretrain', *FIELDS, '--corpus', made / 'corpus', '--workdir', made / 'run')
  there('export', '--workdir', made / 'run', '--out', made / 'export')
  return made


@pytest.mark.slow
def test_a_run_of_the_version_before_resumes_bit_for_bit(before, tmp_path):
  half = shutil.copytree(before / 'run', tmp_path / 'run')
  shutil.rmtree(half / 'checkpoints' / str(END))
  said = command(ROOT, 'pretrain', *FIELDS, '--corpus', before / 'corpus', '--workdir', half)
  assert 'resuming from the checkpoint of step 3' in said
  losses = lambda workdir: {
    row['step']: row['loss'] for row in metrics.read(workdir) if 'loss' in row
  }
  assert losses(half) == losses(before / 'run') and len(losses(half)) == END


@pytest.mark.slow
def test_an_export_of_the_version_before_is_read(before, tmp_path):
  command(ROOT, 'export', '--workdir', before / 'run', '--out', tmp_path / 'export')
  same = lambda name: (
    (tmp_path / 'export' / name).read_bytes() == (before / 'export' / name).read_bytes()
  )
  assert same('model.safetensors') and json.loads((tmp_path / 'export/config.json').read_text())
  loaded = bertzoo_jax.load(f'hf:{before / "export"}')
  assert loaded.encode(['Time is only a kind of Space.']).any()
