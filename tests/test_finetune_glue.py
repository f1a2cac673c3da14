"""All of GLUE that is on disk by one command: a grid and seeds, killed twice with kill -9."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests import killed

DATA = os.environ.get('BERTZOO_DATA')
# Read where only dev and train are: the other tasks are left out, and the command says so.
TASKS = ('cola', 'mrpc', 'sst2', 'wnli')
SECONDS = 1800  # for a machine that is busy
KILLS = (
  ('cola/learning_rate=0.003+seed=1', 7),
  ('sst2/learning_rate=0.001+seed=1', 12),
)
MACHINERY = ('dtype=float32', 'kernels=xla', 'log_every=1', 'tensorboard=False')
FLAGS = (
  '--config=configs/tasks/glue.py:all',
  '--config.steps=20',
  '--config.batch_size=8',
  '--config.length=32',
  "--config.grid=(('schedule.learning_rate', (1e-3, 3e-3)),)",
  '--config.seeds=0,1',
  *(f'--config.run.{field}' for field in MACHINERY),
)


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """A network of two layers after 20 steps of pretraining on the sample."""
  folder = tmp_path_factory.mktemp('pretrained')
  config = '--config=configs/bert.py:tiny,steps=20'
  for command, *flags in (
    ('prepare', '--source=data/sample/time_machine.txt', f'--out={folder / "corpus"}'),
    ('pretrain', f'--corpus={folder / "corpus"}', f'--workdir={folder / "run"}'),
  ):
    line = [sys.executable, '-m', f'bertzoo_jax.{command}', config, *flags]
    subprocess.run(line, cwd=killed.ROOT, check=True, timeout=SECONDS)
  return folder / 'run'


@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason='BERTZOO_DATA does not name the folder of real data')
def test_all_of_glue_on_disk_by_one_command_killed_twice_has_the_same_table(run, tmp_path):
  flags = [*FLAGS, f'--init={run}', f'--task_dir={pathlib.Path(DATA) / "glue"}']
  flags.append(f'--config.run.compile_cache={tmp_path / "compiled"}')
  for name, kills in (('whole', ()), ('killed', KILLS)):
    killed.begun_again(flags, tmp_path / name, kills, SECONDS)
  table = json.loads((tmp_path / 'whole' / 'table.json').read_text())
  assert [line['task'] for line in table] == [task for task in TASKS for _ in range(2)]
  assert all(line['seeds'] == 2 for line in table)
  assert len(list((tmp_path / 'whole').glob('*/*/result.json'))) == 16
  for task in TASKS:
    killed.same_bytes(tmp_path / 'whole', tmp_path / 'killed', task)
