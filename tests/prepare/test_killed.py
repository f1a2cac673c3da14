import os
import pathlib
import random
import signal
import time

import pytest

from tests import commands
from tests.prepare import made

ROOT = pathlib.Path(__file__).parents[2]
SAMPLE = ROOT / 'data' / 'sample'

# prepare.prepare with small chunks. The process kills itself before a step: the opening of a
# source, or a change under OUT.
DRIVER = """
import os, re, signal, sys
source, out, system, kill, trace, *fields = sys.argv[1:]
steps, (pattern, _, times) = [], kill.partition('@')

def watch(event, arguments):
  if event not in ('open', 'os.rename', 'os.remove', 'os.mkdir', 'os.rmdir'):
    return
  if os.getpid() != parent:
    return
  path, changes = '', True
  if isinstance(arguments[0], (str, bytes, os.PathLike)):
    path = os.fsdecode(arguments[1 if event == 'os.rename' else 0])
  if event == 'open':
    mode, flags = arguments[1:3]
    changes = isinstance(mode, str) and set(mode) & set('wax+')
    changes = changes or flags & (os.O_WRONLY | os.O_RDWR)
  if path.startswith(source) or path.startswith(out) and changes:
    root = source if path.startswith(source) else out
    steps.append(f'{event} {os.path.relpath(path, os.path.dirname(root))}')
    seen = sum(1 for s in steps if re.match(pattern, s))
    if kill and re.match(pattern, steps[-1]) and seen == int(times):
      os.kill(parent, signal.SIGKILL)

if __name__ == '__main__':
  import importlib
  from bertzoo_jax import prepare
  config = importlib.import_module(f'configs.{system}').get_config('tiny')
  for field in fields:
    name, value = field.split('=')
    part, key = name.split('.')
    config[part][key] = type(config[part][key])(value)
  prepare.CHUNK_BYTES = 20_000, 20_000
  parent = os.getpid()
  sys.addaudithook(watch)
  prepare.prepare(config, [source + '/*'], out, workers=2, say=lambda line: None)
  with open(trace, 'w') as f:
    f.write('\\n'.join(steps))
"""
BERT = 'bert', 'tokenizer.vocab_size=500', 'corpus.held_out=0.1'
MACBERT = 'macbert', 'tokenizer.vocab_size=794', 'tokenizer.coverage=0.99', 'corpus.held_out=0.1'


def start(source, out, config, kill=''):
  """A run that is under way. kill: 'PATTERN@n', the n-th step of that pattern is its end."""
  (out.parent / 'tmp').mkdir(parents=True, exist_ok=True)
  driver, trace = out.parent / 'driver.py', out.parent / 'steps'
  driver.write_text(DRIVER)
  line = [driver, source, out, config[0], kill, trace, *config[1:]]
  env = commands.environment(TMPDIR=str(out.parent / 'tmp'))
  return commands.begin(*map(str, line), env=env, start_new_session=True)


def run(source, out, config, kill='') -> list[str]:
  """The steps of a run; of one that is killed, nothing."""
  process = start(source, out, config, kill)
  output = process.communicate()[0]
  assert process.returncode == (-signal.SIGKILL if kill else 0), f'{kill}: {output}'
  return [] if kill else (out.parent / 'steps').read_text().splitlines()


def make(source, name, documents, size):
  """Four files of documents from a sample text; some documents and paragraphs repeat."""
  source.mkdir()
  draw = random.Random(1)
  paragraphs = [p for p in (SAMPLE / name).read_text(encoding='utf-8').split('\n') if p][:size]
  for f in range(4):
    some = ['\n'.join(draw.choices(paragraphs, k=draw.randrange(1, 9))) for _ in range(documents)]
    (source / f'{f}.txt').write_text('\n\n'.join([*some, some[0]]), encoding='utf-8')


@pytest.fixture(scope='module')
def clean(tmp_path_factory):
  """(source, files of an undisturbed run)."""
  folder = tmp_path_factory.mktemp('clean')
  make(folder / 'text', 'time_machine.txt', 20, 200)
  run(folder / 'text', folder / 'corpus', BERT)
  return folder / 'text', made.contents(folder / 'corpus')


# Each source is opened when it is found and for the plan, then as often as an attempt has to. What
# kills; what is there then, and what is not.
KILLS = [
  ('open text/2.txt@3', '.lock', 'plan.json'),  # looking for duplicates
  ('open text/2.txt@5', '.lock', 'plan.json'),  # learning pieces
  ('open corpus/tokenizer/tokenizer.json@1', 'tokenizer/vocab.txt', 'tokenizer/tokenizer.json'),
  ('os.rename corpus/parts/repeated@3', 'tokenizer/bertzoo.json', 'unigrams.npy'),
  # making shards: what comes again is looked for once more, then they are read
  ('open text/3.txt@4', 'parts', 'unigrams.npy'),
  ('os.rename corpus/unigrams@1', 'parts/00003.json', 'unigrams.npy'),
  ('os.rename corpus/manifest@1', 'pieces.npy', 'manifest.json'),
  ('os.remove corpus/parts/0@3', 'manifest.json', 'plan.json'),  # tidying up
]


def test_killed_anywhere_in_one_folder_it_ends_with_the_bytes_of_a_clean_run_and_no_others(
  clean, tmp_path
):
  source, wanted = clean
  out = tmp_path / 'corpus'
  assert sum(name.endswith('tokens.npy') for name in wanted) > 8
  for kill, left, lacking in KILLS:
    run(source, out, BERT, kill)
    assert (out / left).exists() and not (out / lacking).exists(), kill
  run(source, out, BERT)
  assert made.contents(out) == wanted
  assert not list((tmp_path / 'tmp').iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
  'config, sample, documents, size',
  [(BERT, 'sherlock.txt', 200, 2000), (MACBERT, 'zh_laws.txt', 60, 800)],
  ids=['bert', 'macbert'],
)
def test_killed_at_any_step_of_a_new_folder_or_at_any_time_it_ends_with_the_bytes_of_a_clean_run(
  tmp_path, config, sample, documents, size
):
  make(tmp_path / 'text', sample, documents, size)
  begin = time.monotonic()
  steps = run(tmp_path / 'text', tmp_path / 'clean' / 'corpus', config)
  duration, wanted = time.monotonic() - begin, made.contents(tmp_path / 'clean' / 'corpus')
  numbered = [f'{escape(step)}@{steps[: i + 1].count(step)}' for i, step in enumerate(steps)]
  tidying = next(i for i, step in enumerate(steps) if 'rename corpus/manifest' in step) + 2
  draw = random.Random(2)
  kills = *draw.sample(numbered[:tidying], 10), *draw.sample(numbered[tidying:], 2)
  for n, kill in enumerate(kills):
    out = tmp_path / f's{n}' / 'corpus'
    run(tmp_path / 'text', out, config, kill)
    finish(tmp_path / 'text', out, config, wanted, kill)
  for n in range(5):
    out, wait = tmp_path / f't{n}' / 'corpus', duration * (n + draw.random()) / 5
    process = start(tmp_path / 'text', out, config)
    time.sleep(wait)
    os.killpg(process.pid, signal.SIGKILL)  # with its workers, as a machine that goes away
    process.wait()
    finish(tmp_path / 'text', out, config, wanted, f'after {wait:.2f} of {duration:.2f} s')


def escape(step):
  """A pattern of a step, whatever the number of the process in it."""
  if '.part' in step:
    return step.rsplit('.', 2)[0]
  return ''.join('.' if c in '()[]{}*+?|^$\\' else c for c in step)


def finish(source, out, config, wanted, kill):
  time.sleep(0.3)  # orphaned workers notice that their parent is gone
  run(source, out, config)
  assert made.contents(out) == wanted, kill
  assert not list((out.parent / 'tmp').iterdir()), kill
