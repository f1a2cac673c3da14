"""Small runs of pretrain as real processes: one with all devices, or two of four devices each."""

import contextlib
import pathlib
import socket
import threading
import time

import numpy as np
import small_corpora
import toys

from bertzoo_jax.runs import checkpoint
from bertzoo_jax.runs import metrics
from tests import commands

ROOT = pathlib.Path(__file__).parents[2]
STEPS, ROWS, VOCAB = 60, 16, 64
PATIENCE = 200  # seconds, for a machine that is busy

CONFIG = f"""
from bertzoo_jax import parts

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

# pretrain, but that a lost host is noticed soon, and that steps and saves take time where a test
# must get a word in. The batch of one step may never come: a thread reads a pipe that nobody writes
# to. Threads drive, since TensorFlow takes seconds to import.
PROGRAM = """
import os, runpy, sys, time
sys.modules['tensorflow'] = None
from bertzoo_jax.batches import pipeline
from bertzoo_jax.runs import checkpoint, distributed
from bertzoo_jax.training import data
seal = checkpoint.Checkpoints._seal
checkpoint.Checkpoints._seal = lambda self: (
    time.sleep(float(os.environ.get('SEAL_SECONDS', 0))), seal(self))
distributed.LOST_SECONDS = int(os.environ['LOST_SECONDS'])
check, batch = data.check_ids, pipeline.Pipeline.batch
def slowly(batch, vocab_size, where):
  check(batch, vocab_size, where)
  time.sleep(float(os.environ['STEP_SECONDS']) if where.startswith('batch of step') else 0)
def stuck(self, step):
  if step == int(os.environ.get('STUCK_AT', -1)):
    os.read(os.pipe()[0], 1)
  return batch(self, step)
data.check_ids, pipeline.Pipeline.batch = slowly, stuck
runpy.run_module('bertzoo_jax.pretrain', run_name='__main__', alter_sys=True)
"""


def make_world(folder):
  """Fills a folder with config.py and corpus/; processes add a cache of compiled programs."""
  (folder / 'config.py').write_text(CONFIG)
  small_corpora.of_text(folder / 'corpus', VOCAB)
  return folder


class Process:
  """A process of a run. `said` grows as it speaks. text: flags in place of --corpus."""

  def __init__(
    self, world, workdir, *flags, text=None, step_seconds=0.0, lost_seconds=10, **environment
  ):
    text = text or [f'--corpus={world}/corpus']
    seconds = dict(STEP_SECONDS=str(step_seconds), LOST_SECONDS=str(lost_seconds))
    self.process = commands.begin(
      *('-c', PROGRAM, f'--config={world}/config.py', *text),
      *(f'--config.run.compile_cache={world}/cache', f'--workdir={workdir}', *flags),
      env=commands.environment(PYTHONUNBUFFERED='1', **seconds, **environment),
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
def one(world, workdir, *flags, **more):
  """A process with the devices of this one."""
  process = Process(world, workdir, *flags, **more)
  try:
    yield process
  finally:
    process.process.kill()
    process.end()


@contextlib.contextmanager
def two(world, workdir, *flags, of=({}, {}), **more):
  """Two that train together. of: further variables in the environment of each."""
  with socket.create_server(('', 0)) as s:
    port = s.getsockname()[1]
  together = {
    'XLA_FLAGS': '--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0',
    'JAX_COORDINATOR_ADDRESS': f'127.0.0.1:{port}',
    'JAX_NUM_PROCESSES': '2',
    'JAX_CPU_COLLECTIVES_IMPLEMENTATION': 'gloo',
  }
  with contextlib.ExitStack() as stack:
    own = [dict(JAX_PROCESS_ID=str(i), **of[i]) for i in range(2)]
    both = [one(world, workdir, *flags, **more, **together, **how) for how in own]
    yield [stack.enter_context(host) for host in both]


def wait_for_step(workdir, step, all_of_them):
  """Returns when a run has logged so many steps; all its processes must live."""
  deadline = time.monotonic() + PATIENCE
  while len(metrics.read(workdir)) < step if (workdir / metrics.FILE).exists() else True:
    lives = all(p.process.poll() is None for p in all_of_them)
    assert time.monotonic() < deadline and lives, [p.said for p in all_of_them]
    time.sleep(0.02)


def parameters(workdir):
  return toys.flat(checkpoint.load_params(str(workdir))[0])


def assert_same_run(workdir, other):
  """Bitwise: the parameters at the end, and of every step its number, loss and batch."""
  told = lambda w: [(r['step'], r['loss'], r['batch_crc32']) for r in metrics.read(w)]
  ours, theirs = told(workdir), told(other)
  assert len(ours) == STEPS and ours == theirs
  ours, theirs = parameters(workdir), parameters(other)
  assert ours.keys() == theirs.keys()
  for path, x in ours.items():
    np.testing.assert_array_equal(x, theirs[path], err_msg=path)
