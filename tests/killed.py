"""finetune in a process of its own, killed with kill -9 and begun again."""

import pathlib
import signal
import time

import numpy as np

from bertzoo_jax.runs import metrics
from tests import commands

ROOT = pathlib.Path(__file__).parents[1]
SECONDS = 200  # for a machine that is busy


def finetune(folder, made, world, init, kills):
  """Runs the command to its end in folder/f, after some beginnings that are killed. made: code
  of the config. world: --task_dir. kills: ((folder of a run, step at which it is killed), …).
  """
  folder.mkdir(exist_ok=True)
  (folder / 'config.py').write_text(
    f'from tests import {made.partition(".")[0]}\n'
    'def get_config(argument=None):\n'
    f'  return {made}.copy_and_resolve_references().unlock()\n'
  )
  flags = [f'--config={folder / "config.py"}', f'--init={init}', f'--task_dir={world}']
  begun_again(flags, folder / 'f', kills)


def begun_again(flags, workdir, kills, seconds=SECONDS):
  """The same with flags. seconds: most that a beginning takes up to its kill."""
  line = ['-m', 'bertzoo_jax.finetune', *flags, f'--workdir={workdir}']
  env = commands.on_one_device(PYTHONPATH=f'{ROOT}:{ROOT / "tests"}')
  begin = lambda: commands.begin(*line, env=env)
  for run, step in kills:
    process, until = begin(), time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
      if any(row['step'] >= step for row in metrics.read(workdir / run)):
        break
      time.sleep(0.05)
    assert process.poll() is None, process.stdout.read()[-2000:]
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (workdir / 'table.md').exists()
  last = begin()
  output, _ = last.communicate(timeout=2 * seconds)
  assert last.returncode == 0, output[-2000:]


def same_bytes(a, b, task):
  """Asserts equal tables and predictions of two workdirs, but for the folder's name."""
  for table in ('table.md', 'table.json'):
    assert (a / table).read_bytes() == (b / table).read_bytes()
  files = sorted((a / task).glob('*/predictions.npz'))
  assert files
  for file in files:
    with np.load(file) as x, np.load(b / file.relative_to(a)) as y:
      assert x.files == y.files
      for name in x.files:
        np.testing.assert_array_equal(x[name], y[name])
