"""Shared by tests of prepare: a text, a small config, and runs in processes of their own."""

import random
import signal
import time

from bertzoo_jax import prepare
from configs import bert
from tests import commands

WORDS = (
  'the of and a to in he was that it his her with as had for she not at but on be they all you '
  'said from have which so this by were one'
).split()

DRIVER = """
import sys
from absl import flags
from bertzoo_jax import prepare
from configs import bert
prepare.CHUNK_BYTES = 4_000, 4_000
config = bert.get_config('tiny')
config.tokenizer.vocab_size, config.corpus.held_out = 100, 0.1
prepare.prepare(config, [sys.argv[1]], sys.argv[2], workers=int(sys.argv[3]))
"""


def write_text(path, documents=120, seed=0):
  draw = random.Random(seed)
  words = lambda: ' '.join(draw.choices(WORDS, k=draw.randint(3, 15))).capitalize() + '.'
  line = lambda: ' '.join(words() for _ in range(draw.randint(1, 4))) + '\n'
  with open(path, 'w', encoding='utf-8') as f:
    for _ in range(documents):
      f.write(''.join(line() for _ in range(draw.randint(1, 8))) + '\n')
  return str(path)


def tiny(vocab_size=100, held_out=0.1, config=bert):
  config = config.get_config('tiny')
  config.tokenizer.vocab_size, config.corpus.held_out = vocab_size, held_out
  return config


def contents(folder):
  """Files and their bytes, but for the marker of who opened the corpus."""
  files = (p for p in sorted(folder.rglob('*')) if p.is_file() and p.name != 'verified.json')
  return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def drive(source, out, workers=2):
  return commands.begin('-c', DRIVER, source, str(out), str(workers))


def kill_at(run, out, shards):
  while run.poll() is None and len(list(out.glob('parts/*.json'))) < shards:
    time.sleep(0.001)
  assert run.poll() is None, f'ended before {shards}: {run.communicate()[0]}'
  run.send_signal(signal.SIGKILL)
  run.wait()


def command(*flags, before=None):
  """A run of the command line with a small vocabulary."""
  line = ['-m', 'bertzoo_jax.prepare', '--config=configs/bert.py:tiny', '--workers=1']
  small = ['--config.tokenizer.vocab_size=100', '--config.corpus.held_out=0']
  environment = commands.environment(PYTHONIOENCODING='utf-8:strict')
  return commands.run(*line, *small, *flags, env=environment, text=False, preexec_fn=before)


def make(config, source, out, tokenizer=None, *, workers=1, where=(), exclude=(), **more):
  """prepare.prepare in this process; `source` may be one name."""
  source = source if isinstance(source, list) else [str(source)]
  more = {'say': lambda line: None, 'filters': prepare.Filters(where, exclude), **more}
  return prepare.prepare(config, source, out, tokenizer and str(tokenizer), workers, **more)
