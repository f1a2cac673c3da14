"""Several hosts, as real processes: two of four devices each, against one process of eight; and
what happens when one is asked to stop or dies.
"""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import jax
import ml_collections
import numpy as np
import pytest
import small_networks as small

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.training import checkpoint
from bertzoo_jax.training import distributed
from bertzoo_jax.training import lock
from bertzoo_jax.training import metrics
from bertzoo_jax.training import optimizers

ROOT = pathlib.Path(__file__).parents[2]
STEPS, ROWS, VOCAB = 60, 16, 64
PATIENCE = 200  # seconds, for a machine that is busy

CONFIG = f"""
from configs import parts

def get_config(argument=None):
  return parts.experiment(
      tokenizer=parts.wordpiece(vocab_size={VOCAB}), corpus=parts.corpus(),
      format=parts.segment_pairs(), masking=parts.token(),
      encoder=parts.transformer(num_layers=1, hidden_size=16, num_heads=2, intermediate_size=32,
                                max_positions=16),
      objective=parts.mlm_pair(), optimizer=parts.adamw_uncorrected(),
      schedule=parts.linear_from_start(learning_rate=1e-3, warmup=3),
      length=16, batch_size={ROWS}, phases=(({STEPS}, {{}}),), hf='BertForPreTraining',
      run=parts.run(mesh=(2, 2, 2), dtype='float32', log_every=1, eval_every=0,
                    save_minutes=1000.0, tensorboard=False))
"""

# pretrain, but that a lost host is noticed soon, and that steps take time where the test must get a
# word in.
PROGRAM = """
import os, runpy, time
from bertzoo_jax.training import data, distributed
distributed.LOST_SECONDS = 10
check = data.check_ids
def slowly(batch, vocab_size, where):
  check(batch, vocab_size, where)
  time.sleep(float(os.environ['STEP_SECONDS']) if where.startswith('batch of step') else 0)
data.check_ids = slowly
runpy.run_module('bertzoo_jax.pretrain', run_name='__main__', alter_sys=True)
"""


@pytest.fixture(scope='module')
def world(tmp_path_factory):
  """Folder with config.py, batches.npz, and a cache of compiled programs that all processes
  share.
  """
  folder = tmp_path_factory.mktemp('world')
  (folder / 'config.py').write_text(CONFIG)
  batches = [
    small.batch(rows=ROWS, length=16, predictions=3, seed=s, vocab_size=VOCAB) for s in range(STEPS)
  ]
  meta = {
    'vocab_size': VOCAB,
    'special': {},
    'corpus_hash': 'abc',
    'steps': [0, STEPS],
    'batch_size': ROWS,
    'length': 16,
    'phase': 0,
  }
  np.savez(
    folder / 'batches.npz',
    __meta__=np.frombuffer(json.dumps(meta).encode(), np.uint8),
    **{k: np.stack([b[k] for b in batches]) for k in batches[0]},
  )
  return folder


class Host:
  """A process of a run. `said` grows as it speaks."""

  def __init__(self, world, workdir, index, port, step_seconds):
    environment = {
      **os.environ,
      'XLA_FLAGS': '--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0',
      'PYTHONPATH': str(ROOT),
      'PYTHONUNBUFFERED': '1',
      'JAX_COORDINATOR_ADDRESS': f'127.0.0.1:{port}',
      'JAX_NUM_PROCESSES': '2',
      'JAX_PROCESS_ID': str(index),
      'JAX_CPU_COLLECTIVES_IMPLEMENTATION': 'gloo',
      'STEP_SECONDS': str(step_seconds),
    }
    line = [
      sys.executable,
      '-c',
      PROGRAM,
      f'--config={world}/config.py',
      f'--config.run.compile_cache={world}/cache',
      f'--batches={world}/batches.npz',
      f'--workdir={workdir}',
    ]
    self.process = subprocess.Popen(
      line, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    self.said = ''
    self._reader = threading.Thread(target=self._read, daemon=True)
    self._reader.start()

  def _read(self):
    for line in self.process.stdout:
      self.said += line

  def end(self):
    """Exit code, when all was said."""
    code = self.process.wait(timeout=PATIENCE)
    self._reader.join(timeout=PATIENCE)
    return code


@contextlib.contextmanager
def two(world, workdir, step_seconds=0.0):
  with socket.create_server(('', 0)) as s:
    port = s.getsockname()[1]
  both = [Host(world, workdir, i, port, step_seconds) for i in range(2)]
  try:
    yield both
  finally:
    for host in both:
      host.process.kill()
      host.end()


def wait_for_step(workdir, step, both):
  deadline = time.monotonic() + PATIENCE
  while len(metrics.read(workdir)) < step if (workdir / metrics.FILE).exists() else True:
    assert time.monotonic() < deadline and all(h.process.poll() is None for h in both), [
      h.said for h in both
    ]
    time.sleep(0.02)


@pytest.fixture(scope='module')
def alone(world):
  """Workdir of the same run in this process, on its eight devices."""
  from bertzoo_jax import pretrain

  namespace = {}
  exec((world / 'config.py').read_text(), namespace)
  config = namespace['get_config']()
  config.run.compile_cache = str(world / 'cache')
  pretrain.pretrain(
    ml_collections.ConfigDict(config).lock(),
    str(world / 'alone'),
    batches=str(world / 'batches.npz'),
  )
  return world / 'alone'


def test_two_hosts_that_are_stopped_twice_train_as_one(world, alone, tmp_path):
  workdir, saved = tmp_path / 'run', 0
  for asked in (1, 0):  # each host in its turn gets the signal, and both stop at the same step
    with two(world, workdir, step_seconds=0.1) as both:
      wait_for_step(workdir, saved + 3, both)
      both[asked].process.send_signal(signal.SIGTERM)
      assert [h.end() for h in both] == [0, 0], [h.said for h in both]
    newest = checkpoint.steps(workdir)[-1]
    assert (
      saved + 3 <= newest < STEPS
      and f'stopped at step {newest} of {STEPS} and saved' in both[0].said
    ), both[0].said
    assert (
      metrics.read(workdir)[-1]['step'] == newest
      and checkpoint.verify(storage.path(workdir) / 'checkpoints' / str(newest)) is None
    )
    saved = newest
  with two(world, workdir) as both:
    assert [h.end() for h in both] == [0, 0], [h.said for h in both]
  assert (
    f'resuming from the checkpoint of step {saved}' in both[0].said
    and 'done' in both[0].said
    and 'done' not in both[1].said
  )
  assert not any('ended without saving' in h.said for h in both)
  ours, theirs = ([row['loss'] for row in metrics.read(w)] for w in (workdir, alone))
  assert len(ours) == STEPS
  np.testing.assert_allclose(ours, theirs, rtol=1e-5)
  ours, theirs = (parameters(w) for w in (workdir, alone))
  for path, x in ours.items():
    if not path.endswith('key/bias'):  # its gradient is 0 but for rounding, which Adam makes large
      np.testing.assert_allclose(x, theirs[path], atol=1e-4, err_msg=path)


def parameters(workdir):
  return {
    optimizers.path_of(p): x
    for p, x in jax.tree_util.tree_leaves_with_path(checkpoint.load_params(str(workdir))[0])
  }


@pytest.mark.parametrize('victim', [0, 1])
def test_a_host_that_dies_ends_the_other_which_says_so(world, tmp_path, victim):
  with two(world, tmp_path / 'run', step_seconds=0.1) as both:
    wait_for_step(tmp_path / 'run', 2, both)
    both[victim].process.kill()
    code = both[1 - victim].end()
  assert code in (os.EX_TEMPFAIL, -signal.SIGABRT), both[1 - victim].said
  last = both[1 - victim].said.strip().splitlines()[-1]
  assert (
    last.startswith(f'host {1 - victim} of 2 ended without saving')
    and 'Run the same line on all hosts again' in last
  ), both[1 - victim].said


def test_a_host_that_ends_with_a_sentence_has_its_exit_code_and_ends_the_other(world, tmp_path):
  (tmp_path / 'run').mkdir()
  with lock.hold(tmp_path / 'run'), two(world, tmp_path / 'run') as both:
    assert (
      both[0].end() == os.EX_TEMPFAIL
      and 'in use by process' in both[0].said.strip().splitlines()[-1]
    ), both[0].said
    began = time.monotonic()
    assert both[1].end() in (os.EX_TEMPFAIL, -signal.SIGABRT) and time.monotonic() - began < 60, (
      both[1].said
    )


def join(seconds=60, **environment):
  """(exit code, what was said) of a process that joins the others and ends."""
  program = (
    f'from bertzoo_jax.training import distributed; distributed.join({seconds}); import jax; '
    'print("joined", jax.process_count(), jax.device_count())'
  )
  kept = {k: v for k, v in os.environ.items() if not k.startswith('JAX_C')}
  done = subprocess.run(
    [sys.executable, '-c', program],
    env={**kept, 'PYTHONPATH': str(ROOT), **environment},
    capture_output=True,
    text=True,
    timeout=PATIENCE,
  )
  return done.returncode, done.stdout + done.stderr


def test_a_lone_process_joins_itself_whatever_the_proxy():
  code, said = join(http_proxy='http://127.0.0.1:9', https_proxy='http://127.0.0.1:9')
  assert code == 0 and 'joined 1 8' in said, said


@pytest.mark.parametrize('count', [1, 2])  # what jax does with a notice is the same, whoever asks
def test_a_notice_before_the_run_listens_ends_it_also_when_it_resumes(count):
  program = f"""
import os, signal, time
from bertzoo_jax.training import distributed, preemption
distributed.join()
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(2)  # jax looks once a second
preemption.jax.process_count = lambda: {count}
with preemption.Preemption().listening() as asked:
  for step in range(501, 801):
    if asked.reached():
      print('ends after', asked.name)
      break
    time.sleep(0.01)
"""
  environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
  done = subprocess.run(
    [sys.executable, '-c', program],
    env=environment,
    capture_output=True,
    text=True,
    timeout=PATIENCE,
  )
  assert done.stdout == 'ends after preemption\n', done.stdout + done.stderr


def test_who_waits_in_vain_is_told_in_a_sentence():
  code, said = join(
    3, JAX_COORDINATOR_ADDRESS='127.0.0.1:1', JAX_NUM_PROCESSES='2', JAX_PROCESS_ID='1'
  )
  assert code == os.EX_TEMPFAIL and said.strip().splitlines()[-1].startswith(
    'error: Not all 2 processes came to 127.0.0.1:1'
  ), said


@pytest.mark.parametrize(
  'environment,words',
  [
    (dict(JAX_COORDINATOR_ADDRESS='here:1'), 'JAX_NUM_PROCESSES'),
    (dict(JAX_COORDINATOR_ADDRESS='here', JAX_NUM_PROCESSES='2', JAX_PROCESS_ID='0'), 'HOST:PORT'),
    (
      dict(JAX_COORDINATOR_ADDRESS='here:1', JAX_NUM_PROCESSES='2', JAX_PROCESS_ID='2'),
      'are 0 to 1',
    ),
    (
      dict(JAX_COORDINATOR_ADDRESS='here:TAKEN', JAX_NUM_PROCESSES='2', JAX_PROCESS_ID='0'),
      r'Port \d+ of this machine',
    ),
  ],
)
def test_what_the_environment_says_wrongly_is_refused(monkeypatch, environment, words):
  monkeypatch.delenv('JAX_NUM_PROCESSES', raising=False)
  monkeypatch.setattr(jax.distributed, 'is_initialized', lambda: False)
  with socket.create_server(('', 0)) as taken:
    for k, v in environment.items():
      monkeypatch.setenv(k, v.replace('TAKEN', str(taken.getsockname()[1])))
    with pytest.raises(errors.UserError, match=words) as e:
      distributed.join()
  # the other may end
  assert e.value.code == (
    os.EX_TEMPFAIL if 'TAKEN' in environment['JAX_COORDINATOR_ADDRESS'] else 2
  )
