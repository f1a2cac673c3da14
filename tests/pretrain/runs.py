"""Runs of pretrain for tests, in processes of their own or in this one, and how two compare."""

import hashlib
import pathlib
import shutil
import signal
import time

import jax
import ml_collections
import numpy as np
import orbax.checkpoint as ocp
import pytest

from bertzoo_jax.common import errors
from bertzoo_jax.runs import metrics
from bertzoo_jax.runs import step_folders
from tests import commands

ROOT = pathlib.Path(__file__).parents[2]
STEPS, BORDER = 14, 9

# A network that compiles in seconds; rows so few that epochs end within the run; a phase that ends
# at BORDER, and one of a larger batch in two microbatches.
CONFIG = f"""
from bertzoo_jax import parts

def get_config(argument=None):
  return parts.experiment(
      tokenizer=parts.wordpiece(vocab_size=300), corpus=parts.corpus(held_out=0.2),
      format=parts.segment_pairs(), masking=parts.token(),
      encoder=parts.transformer(num_layers=2, hidden_size=16, num_heads=2, intermediate_size=32,
                                max_positions=64),
      objective=parts.mlm_pair(), optimizer=parts.adamw_uncorrected(),
      schedule=parts.linear_from_start(learning_rate=1e-2, warmup=3), length=64, batch_size=8,
      phases=(({BORDER}, {{'length': 32}}),
              ({STEPS - BORDER}, {{'batch_tokens': 1024, 'run.accumulation': 2}})),
      hf='BertForPreTraining',
      run=parts.run(dtype='float32', log_every=1, eval_every=6, eval_batches=2, save_minutes=0.0,
                    keep=3, tensorboard=False))
"""


@pytest.fixture(scope='session')
def world(tmp_path_factory):
  """Folder with config.py, corpus/, and a cache of compiled programs that all runs share."""
  return make_world(tmp_path_factory.mktemp('world'), CONFIG, 960)


def make_world(folder, content, many):
  """The folder, with a config and the corpus of so many words."""
  from bertzoo_jax import prepare

  (folder / 'config.py').write_text(content)
  words = (ROOT / 'data/sample/time_machine.txt').read_text().split()[1000:]
  rows = (' '.join(words[i : i + 80]) for i in range(0, many, 80))
  (folder / 'text.txt').write_text('\n\n'.join(rows))
  text, out = [str(folder / 'text.txt')], str(folder / 'corpus')
  prepare.prepare(config(folder), text, out, workers=1, say=lambda line: None)
  return folder


def config(folder, **changes):
  namespace = {}
  exec((folder / 'config.py').read_text(), namespace)
  made = namespace['get_config']()
  made.run.compile_cache = str(folder / 'cache')
  made.update_from_flattened_dict(changes)
  return ml_collections.ConfigDict(made).lock()


def command(world, workdir, *more):
  return [
    *('-m', 'bertzoo_jax.pretrain', f'--config={world}/config.py', f'--workdir={workdir}'),
    f'--config.run.compile_cache={world}/cache',
    f'--corpus={world}/corpus',
    *more,
  ]


def environment(**changes):
  return commands.on_one_device(PYTHONUNBUFFERED='1', **changes)


def run_train(world, workdir, *more, stop_when=None, how=signal.SIGKILL):
  """(exit code, output) of a real run; `stop_when(workdir)` true sends it a signal."""
  process = commands.begin(*command(world, workdir, *more), env=environment())
  if stop_when is not None:
    deadline = time.monotonic() + 240
    while process.poll() is None and not stop_when(pathlib.Path(workdir)):
      assert time.monotonic() < deadline
      time.sleep(0.002)
    process.send_signal(how)
  printed, _ = process.communicate(timeout=300)
  return process.returncode, printed


def on_one_device(patch):
  """Runs take the first device alone, for which they compile sooner."""
  from bertzoo_jax.training import sharding

  mesh = sharding.mesh
  patch.setattr(sharding, 'mesh', lambda shape: mesh(shape, jax.devices()[:1]))


@pytest.fixture
def here(world, monkeypatch):
  """A run in this process, on one of its devices: quicker, where nothing is killed or compared bit
  for bit.
  """
  from bertzoo_jax import pretrain

  on_one_device(monkeypatch)

  def run(workdir, *, init=None, **changes):
    return pretrain.pretrain(
      config(world, **{k.replace('__', '.'): v for k, v in changes.items()}),
      str(workdir),
      init=init,
      corpus=str(world / 'corpus'),
    )

  return run


def rows(workdir):
  file = workdir / metrics.FILE
  return len(file.read_text().splitlines()) if file.exists() else 0


def arrays(workdir, step=STEPS):
  """Yields (path, array) of a checkpoint's state."""
  folder = pathlib.Path(workdir) / 'checkpoints' / str(step)
  with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
    for part in ('params', 'rest'):
      tree = reader.metadata(folder / part).item_metadata.tree
      args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
      for path, x in jax.tree_util.tree_leaves_with_path(
        reader.restore(folder / part, args=ocp.args.PyTreeRestore(restore_args=args))
      ):
        yield f'{part}{jax.tree_util.keystr(path)}', np.asarray(x)


def state_of(workdir, step=STEPS):
  """sha256 over the path, type, shape and bytes of every array of a checkpoint."""
  digest = hashlib.sha256()
  for path, x in arrays(workdir, step):
    digest.update(f'{path}{x.dtype}{x.shape}'.encode() + x.tobytes())
  return digest.hexdigest()


def curve(workdir):
  """Every logged number that is not a clock's."""
  clocks = 'tokens_per_second', 'mfu'
  return [{k: v for k, v in row.items() if k not in clocks} for row in metrics.read(workdir)]


def check_same(workdir, other, step=STEPS):
  """Two runs logged the same and end in the same state, bit for bit."""
  assert curve(workdir) == curve(other)
  assert state_of(workdir, step) == state_of(other, step)


def cut(workdir, step):
  """Takes the checkpoints behind a step away."""
  for later in [s for s in step_folders.steps(workdir) if s > step]:
    shutil.rmtree(workdir / f'checkpoints/{later}')


@pytest.fixture(scope='session')
def untouched(world):
  """Workdir of the run that nobody touched."""
  code, printed = run_train(world, world / 'untouched')
  assert code == 0, printed
  return world / 'untouched'


def refused(world, workdir, changes, words, **kw):
  from bertzoo_jax import pretrain

  before, kw = everything(workdir), kw or {'corpus': str(world / 'corpus')}
  with pytest.raises(errors.UserError, match=words) as e:
    pretrain.pretrain(config(world, **changes), str(workdir), **kw)
  assert '\n' not in str(e.value)
  assert everything(workdir) == before


def everything(workdir):
  folder = pathlib.Path(workdir)
  return sorted(str(p) for p in (folder, *folder.rglob('*'))) if folder.exists() else []


def kill_at_once(patch):
  """Runs end when all is written that is written before the first step."""
  from bertzoo_jax.training import loop

  def killed(*_):
    raise RuntimeError('killed')

  patch.setattr(loop.Loop, 'train', killed)


def poison(patch, *steps):
  """The batches of these steps get an infinite weight."""
  from bertzoo_jax.batches import pipeline

  batch = pipeline.Pipeline.batch

  def poisoned(self, step):
    made = batch(self, step)
    if step in steps:
      made['masked_weights'][0, 0] = np.inf
    return made

  patch.setattr(pipeline.Pipeline, 'batch', poisoned)
