"""pretrain with its corpus and its workdir in an object store, which fails; and a run that moves.

The store is real to its clients (emulated_gcs); the oracle is test_pretrain's.
"""

import signal
import time

import emulated_gcs
import pytest

from bertzoo_jax.runs import step_folders
from tests import commands
from tests.pretrain import runs

pytestmark = pytest.mark.slow
FEW_SAVES = ('--config.run.save_minutes=1000.0', '--config.run.keep_every=4')


def run(world, store, workdir, *more, upon=None, then=None):
  """(exit code, output) of a run; `then()` is called when `upon` is in the store."""
  line = runs.command(world, workdir, *FEW_SAVES, *more)
  process = commands.begin(*line, env=runs.environment(**store.environment()))
  while upon and process.poll() is None:
    if ('bucket', upon) in store.objects:
      then()
      break
    time.sleep(0.02)
  said, _ = process.communicate(timeout=500)
  return process.returncode, said


def test_a_run_that_moves_to_a_bucket_which_fails_and_back_to_a_disk_goes_on_bit_for_bit(
  world, untouched, tmp_path
):
  code, said = runs.run_train(world, tmp_path / 'run', *FEW_SAVES, stop_when=step_folders.steps)
  assert code == -signal.SIGKILL, said
  with emulated_gcs.Store() as store:
    store.upload(world / 'corpus', 'bucket', 'corpus')
    store.upload(tmp_path / 'run', 'bucket', 'run')
    text = ('--corpus=gs://bucket/corpus', f'--cache_dir={tmp_path}/cache')
    sometimes = [store.fail(how, every=n) for how, n in ((503, 29), (429, 31), ('reset', 37))]
    there = (world, store, 'gs://bucket/run', *text)
    saved = 'run/checkpoints/{}/commit_success.txt'.format
    code, said = run(*there, upon=saved(8), then=lambda: store.fail(503))
    assert code == 75 and 'Traceback' not in said, said
    assert 'resuming from the checkpoint of step' in said, said
    assert said.splitlines()[-1].startswith('error: ') and 'same command again' in said
    assert all(fault.hits > 3 for fault in sometimes)
    store.mend()
    kept = store.names('bucket', 'run/checkpoints/8/')
    code, said = run(*there, upon=saved(12), then=lambda: store.fail(503))
    assert kept and 'resuming from the checkpoint of step' in said, said
    store.mend()
    store.download('bucket', 'run', tmp_path / 'back')
  code, said = runs.run_train(world, tmp_path / 'back', *FEW_SAVES)
  assert code == 0, said
  runs.check_same(tmp_path / 'back', untouched)
