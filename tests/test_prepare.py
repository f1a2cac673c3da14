"""prepare: one corpus for any number of workers and any number of kills, and one sentence for every
mistake.
"""

import gzip
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time

import ml_collections
import numpy as np
import pytest

from bertzoo_jax import prepare as prepare_lib
from bertzoo_jax import tokenizers
from bertzoo_jax.common import errors
from bertzoo_jax.common import progress
from bertzoo_jax.corpus import beam
from bertzoo_jax.corpus import corpus
from bertzoo_jax.corpus import shards
from bertzoo_jax.corpus import texts
from bertzoo_jax.text import finding
from bertzoo_jax.text import sentences
from bertzoo_jax.tokenizers import kinds
from configs import bert
from configs import parts
from configs import roberta

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..'))
WORDS = (
  'the of and a to in he was that it his her with as had for she not at but on be they all you '
  'said from have which so this by were one'
).split()

# The command line with small chunks, so that a small text has many shards.
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
  with open(path, 'w', encoding='utf-8') as f:
    for _ in range(documents):
      for _ in range(draw.randint(1, 8)):
        f.write(
          ' '.join(
            ' '.join(draw.choices(WORDS, k=draw.randint(3, 15))).capitalize() + '.'
            for _ in range(draw.randint(1, 4))
          )
          + '\n'
        )
      f.write('\n')
  return str(path)


def tiny(vocab_size=100, held_out=0.1, config=bert):
  config = config.get_config('tiny')
  config.tokenizer.vocab_size, config.corpus.held_out = vocab_size, held_out
  return config


def contents(folder):
  """Files and their bytes, but for the marker of who opened the corpus."""
  return {
    str(p.relative_to(folder)): p.read_bytes()
    for p in sorted(folder.rglob('*'))
    if p.is_file() and p.name != 'verified.json'
  }


def drive(source, out, workers=2):
  return subprocess.Popen(
    [sys.executable, '-c', DRIVER, source, str(out), str(workers)],
    cwd=ROOT,
    env={**os.environ, 'PYTHONPATH': ROOT},
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )


@pytest.fixture(scope='module')
def text(tmp_path_factory):
  return write_text(tmp_path_factory.mktemp('text') / 'text.txt')


@pytest.fixture(scope='module')
def clean(text, tmp_path_factory):
  """A corpus made without disturbance by one worker, and what it said."""
  out = tmp_path_factory.mktemp('clean') / 'corpus'
  run = drive(text, out, workers=1)
  said = run.communicate()[0]
  assert run.returncode == 0, said
  return out, said


@pytest.mark.parametrize('workers', [2, 3])
def test_the_bytes_do_not_depend_on_the_number_of_workers(text, clean, tmp_path, workers):
  run = drive(text, tmp_path / 'corpus', workers)
  assert run.wait() == 0
  assert contents(tmp_path / 'corpus') == contents(clean[0])
  assert len(corpus.read_manifest(clean[0])['splits']['train']['shards']) > 5


def test_killed_again_and_again_it_ends_with_the_bytes_of_a_clean_run(text, clean, tmp_path):
  out, records = tmp_path / 'corpus', 0
  # Killed before anything is there, once the lock is, once the tokenizer is, and after some shards
  # more each time.
  for phase_run in ('.lock', 'tokenizer/tokenizer.json', 1, 3, 6, 9):
    run = drive(text, out)
    kill_at(run, out, phase_run)
    finished = len(list(out.glob('parts/*.json')))
    assert finished >= records  # nothing finished is lost
    records = finished
    assert not (out / 'manifest.json').exists()
  with pytest.raises(errors.UserError, match='unfinished'):
    corpus.open(out)
  kept = {p: p.stat().st_mtime_ns for p in out.glob('train/*.tokens.npy')}
  time.sleep(0.3)  # orphaned workers notice that their parent is gone
  run = drive(text, out)
  assert run.wait() == 0, run.communicate()[0]
  assert contents(out) == contents(clean[0])
  # and was not made twice
  assert sum(p.stat().st_mtime_ns == t for p, t in kept.items()) >= records


def kill_at(run, out, phase_run):
  """Kills a run once a file is there, or so many shards are."""

  def reached():
    return (
      (out / phase_run).exists()
      if isinstance(phase_run, str)
      else len(list(out.glob('parts/*.json'))) >= phase_run
    )

  while run.poll() is None and not reached():
    time.sleep(0.001)
  assert run.poll() is None, f'ended before {phase_run}: {run.communicate()[0]}'
  run.send_signal(signal.SIGKILL)
  run.wait()


def test_a_damaged_shard_of_a_killed_run_is_made_again(text, clean, tmp_path):
  out = tmp_path / 'corpus'
  run = drive(text, out)
  kill_at(run, out, 4)
  time.sleep(0.3)
  shard = sorted(out.glob('train/*.tokens.npy'))[0]
  shard.write_bytes(shard.read_bytes()[:-2])
  (out / 'train' / '00001.tokens.npy.1.part').write_bytes(b'of a killed writer')
  assert drive(text, out).wait() == 0
  assert contents(out) == contents(clean[0])


def test_a_killed_parent_leaves_no_worker_behind(text, tmp_path):
  out = tmp_path / 'corpus'
  run = drive(text, out)
  while run.poll() is None and not (
    workers := open(f'/proc/{run.pid}/task/{run.pid}/children').read().split()
  ):
    time.sleep(0.001)
  kill_at(run, out, 1)
  assert workers
  for _ in range(200):
    if not any(os.path.exists(f'/proc/{w}') for w in workers):
      return
    time.sleep(0.05)
  raise AssertionError('workers outlive their parent by 10 s')


def test_a_finished_corpus_is_left_alone_and_another_plan_is_refused(text, clean, tmp_path):
  before = contents(clean[0])
  run = drive(text, clean[0])
  assert run.wait() == 0 and 'finished already' in run.communicate()[0]
  with pytest.raises(
    errors.UserError,
    match=r'holds a corpus of other .*corpus.held_out: 0.1 → 0.2.*choose another --out',
  ):
    prepare_lib.prepare(tiny(held_out=0.2), [text], clean[0])
  assert contents(clean[0]) == before


def test_language_and_licence_are_recorded_also_of_a_finished_corpus(
  text, clean, tmp_path, monkeypatch
):
  monkeypatch.setattr(prepare_lib, 'CHUNK_BYTES', (4_000, 4_000))  # as DRIVER
  shutil.copytree(clean[0], tmp_path / 'corpus')
  bare = corpus.read_manifest(tmp_path / 'corpus')
  assert corpus.origin(bare) == {'sources': [text], 'language': None, 'license': None}
  again = lambda **about: prepare_lib.prepare(tiny(), [text], tmp_path / 'corpus', **about)
  again(language='en', license='cc-by-sa-4.0')
  again()  # which leaves it as it is
  told = corpus.read_manifest(tmp_path / 'corpus')
  assert told == bare | {'about': {'language': 'en', 'license': 'cc-by-sa-4.0'}}
  assert corpus.identity(told) == bare['hash']
  assert corpus.origin(told) == {'sources': [text], 'language': 'en', 'license': 'cc-by-sa-4.0'}


def test_a_folder_with_other_files_is_refused(text, tmp_path):
  (tmp_path / 'thesis.tex').write_text('years of work')
  with pytest.raises(errors.UserError, match='holds other files'):
    prepare_lib.prepare(tiny(), [text], tmp_path)
  assert [p.name for p in tmp_path.iterdir()] == ['thesis.tex']


def test_two_at_a_time_in_one_folder_is_refused(text, tmp_path):
  with (
    prepare_lib._locked(tmp_path / 'corpus'),
    pytest.raises(errors.UserError, match='Another prepare'),
  ):
    prepare_lib.prepare(tiny(), [text], tmp_path / 'corpus')


def test_the_corpus_holds_the_text_and_the_report_counts_it(text, clean):
  out, said = clean
  opened, documents = (
    corpus.open(out),
    [d.split('\n') for d in open(text, encoding='utf-8').read().strip().split('\n\n')],
  )
  corpus.verify(out)
  tokenizer, read = opened.tokenizer(), {}
  for name, split in opened.splits.items():
    ids, starts = split.gather(np.arange(split.num_tokens)), split.sentence_starts
    for a, b in zip(split.document_starts[:-1], split.document_starts[1:]):
      read[tokenizer.decode(ids[starts[a] : starts[b]])] = name
  wanted = {}
  for d in documents:
    held = shards.below(shards.content_hash('\n'.join(d).encode())[0], 0.1)
    wanted[tokenizer.decode(tokenizer.encode([' '.join(d)])[0])] = 'held_out' if held else 'train'
  assert read == wanted
  report, splits = opened.manifest['report'], opened.manifest['splits']
  assert (
    report['documents'] == len(documents) == sum(s.num_documents for s in opened.splits.values())
  )
  assert report['sentences'] == sum(
    len(sentences.splitter('rules:en').split(p)) for d in documents for p in d
  )
  assert report['bytes'] == sum(len(' '.join(d)) for d in documents)
  assert report['words'] == sum(len(p.replace('.', ' .').split()) for d in documents for p in d)
  assert (
    report['tokens'] == sum(s['tokens'] for s in splits.values())
    and report['duplicate_documents'] == 0
    and report['unknown'] == 0
  )
  assert np.array_equal(
    opened.unigrams,
    np.bincount(opened.splits['train'].gather(np.arange(splits['train']['tokens'])), minlength=100),
  )
  assert f'{splits["train"]["tokens"]:,} tokens' in said and 'dropped: nothing' in said


def test_held_out_text_does_not_shape_the_tokenizer(tmp_path):
  """Words of held-out documents alone have no piece."""
  documents = [
    f'{"zebra " * 300 if shards.below(shards.content_hash(d.encode())[0], 0.3) else ""}{d}'
    for d in (f'{WORDS[i % 30]} {i} {" ".join(WORDS)}' for i in range(200))
  ]
  documents = [
    d for d in documents if ('zebra' in d) == shards.below(shards.content_hash(d.encode())[0], 0.3)
  ]
  assert sum('zebra' in d for d in documents) > 9
  (tmp_path / 'a.txt').write_text('\n\n'.join(documents))
  prepare_lib.prepare(
    tiny(vocab_size=120, held_out=0.3),
    [str(tmp_path / 'a.txt')],
    tmp_path / 'c',
    workers=1,
    say=lambda _: None,
  )
  pieces = corpus.open(tmp_path / 'c').tokenizer().pieces
  assert 'you' in pieces and not any('zeb' in p or 'bra' in p for p in pieces)


def test_what_is_dropped_is_reported_and_duplicates_are_counted(tmp_path):
  rows = [
    dict(text='One text here. ' + ' '.join(WORDS)),
    dict(text='One  text\nhere. ' + ' '.join(WORDS)),
    dict(text='Another. ' + ' '.join(WORDS)),
    dict(text='\u200b'),
    dict(text=''),
    dict(text='lone \ud800 surrogate'),
  ]
  (tmp_path / 'a.jsonl').write_bytes(
    b'\n'.join(json.dumps(r).encode() for r in rows) + b'\n{"text": "\xff"}\nno json\n'
  )
  said = []
  manifest = prepare_lib.prepare(
    tiny(vocab_size=60, held_out=0.0),
    [str(tmp_path / 'a.jsonl')],
    tmp_path / 'c',
    workers=1,
    say=said.append,
  )
  report = manifest['report']
  assert report['documents'] == 2 and report['duplicate_documents'] == 1
  assert {reason: d['count'] for reason, d in report['dropped'].items()} == {
    'document that stands in the text before': 1,
    'empty document': 1,
    'text with a lone surrogate': 1,
    'line not in UTF-8': 1,
    'line that is not JSON': 1,
    'document without a token': 1,
    'sentence without a token': 1,
  }
  assert (
    all(reason in said[-1] for reason in report['dropped']) and 'cannot be evaluated' in said[-1]
  )


def test_byte_bpe_sentences_join_to_the_text(tmp_path):
  body = 'One here. Two there!\nThree in a new paragraph. ' + ' '.join(WORDS)
  (tmp_path / 'a.txt').write_text(body)
  config = tiny(vocab_size=262, held_out=0.0, config=roberta)
  prepare_lib.prepare(
    config, [str(tmp_path / 'a.txt')], tmp_path / 'c', workers=1, say=lambda _: None
  )
  opened = corpus.open(tmp_path / 'c')
  train = opened.splits['train']
  assert opened.tokenizer().decode(train.gather(np.arange(train.num_tokens))) == body.replace(
    '\n', ' '
  )
  assert train.num_sentences == 3 and opened.manifest['report']['words'] > 0


def test_a_given_tokenizer_is_used_and_wrong_ones_are_refused(text, clean, tmp_path):
  given = clean[0] / 'tokenizer'
  manifest = prepare_lib.prepare(
    tiny(), [text], tmp_path / 'c', tokenizer=str(given), workers=1, say=lambda _: None
  )
  assert manifest['tokenizer_hash'] == tokenizers.load(given).hash
  with pytest.raises(errors.UserError, match='vocab_size 100 there, 101 in the config'):
    prepare_lib.prepare(tiny(vocab_size=101), [text], tmp_path / 'd', tokenizer=str(given))
  assert not (tmp_path / 'd').exists()


def test_an_empty_corpus_is_refused_with_what_was_dropped(clean, tmp_path):
  (tmp_path / 'a.txt').write_bytes(b'\xff\xff\n\n\0\n')
  for tokenizer in (None, str(clean[0] / 'tokenizer')):
    with pytest.raises(
      errors.UserError,
      match='no text to train on .dropped: 1 × line not in UTF-8, first at .*a.txt:1; 1 × line '
      'with a NUL',
    ):
      prepare_lib.prepare(
        tiny(),
        [str(tmp_path / 'a.txt')],
        tmp_path / f'c{tokenizer is None}',
        tokenizer=tokenizer,
        workers=1,
        say=lambda _: None,
      )


def test_all_documents_held_out_is_refused(clean, tmp_path):
  (tmp_path / 'a.txt').write_text('one document')
  with pytest.raises(
    errors.UserError, match='Every document fell into the held-out share of 0.9999: lower'
  ):
    prepare_lib.prepare(
      tiny(held_out=0.9999),
      [str(tmp_path / 'a.txt')],
      tmp_path / 'c',
      tokenizer=str(clean[0] / 'tokenizer'),
      workers=1,
    )
  with pytest.raises(errors.UserError, match='held_out is 1.0: a number from 0 to below 1'):
    prepare_lib.prepare(tiny(held_out=1.0), [str(tmp_path / 'a.txt')], tmp_path / 'd')


def test_too_large_a_vocabulary_can_be_mended_in_the_same_folder(text, tmp_path):
  with pytest.raises(errors.UserError, match='set --config.tokenizer.vocab_size=') as e:
    prepare_lib.prepare(
      tiny(vocab_size=9999), [text], tmp_path / 'c', workers=1, say=lambda _: None
    )
  size = int(str(e.value).split('vocab_size=')[1].rstrip('.'))
  assert (
    prepare_lib.prepare(
      tiny(vocab_size=size), [text], tmp_path / 'c', workers=1, say=lambda _: None
    )['vocab_size']
    == size
  )


def test_a_worker_that_fails_names_the_chunk(clean, tmp_path):
  for folder in (shards.PARTS, *corpus.SPLITS):
    (tmp_path / folder).mkdir()
  chunks = [shards.Chunk(0, [b'good'], 'a.txt:1', 1), shards.Chunk(1, [b'bad \xff'], 'a.txt:7', 2)]
  with pytest.raises(
    errors.UserError, match='Chunk 1, which begins at a.txt:7, failed: UnicodeDecodeError'
  ):
    list(shards.run(chunks, tmp_path, clean[0] / 'tokenizer', 'rules:en', 0.0, 1))


def test_a_worker_that_is_killed_names_the_chunk(clean, tmp_path):
  for folder in (shards.PARTS, *corpus.SPLITS):
    (tmp_path / folder).mkdir()

  def chunks():
    import multiprocessing

    yield shards.Chunk(0, [b'good'], 'a.txt:1', 1)
    while not multiprocessing.active_children():
      time.sleep(0.01)
    yield shards.Chunk(1, [b'text. ' * 1_000_000], 'a.txt:7', 2)
    (child,) = multiprocessing.active_children()
    os.kill(child.pid, signal.SIGKILL)
    yield shards.Chunk(2, [b'more'], 'a.txt:9', 3)

  with pytest.raises(
    errors.UserError,
    match=r'A worker ended with code -9 in chunk \d, which begins at a.txt:\d .killed: is there '
    r'enough memory',
  ):
    list(shards.run(chunks(), tmp_path, clean[0] / 'tokenizer', 'rules:en', 0.0, 1))


def test_the_command_line_says_one_sentence_and_ends_with_2(tmp_path):
  line = [
    '-m',
    'bertzoo_jax.prepare',
    '--config',
    'configs/bert.py:tiny',
    '--source',
    f'{tmp_path}/*.txt',
    '--out',
    f'{tmp_path}/c',
  ]
  run = subprocess.run(
    [sys.executable, *line],
    cwd=ROOT,
    env={**os.environ, 'PYTHONPATH': ROOT},
    capture_output=True,
    text=True,
  )
  assert (
    run.returncode == 2
    and run.stderr.startswith('error: --source=')
    and 'no file matches' in run.stderr
    and len(run.stderr.splitlines()) == 1
  )
  assert not (tmp_path / 'c').exists()


def command(*flags, before=None):
  """A run of the command line with a small vocabulary."""
  line = [
    '-m',
    'bertzoo_jax.prepare',
    '--config=configs/bert.py:tiny',
    '--config.tokenizer.vocab_size=100',
    '--config.corpus.held_out=0',
    '--workers=1',
  ]
  return subprocess.run(
    [sys.executable, *line, *flags],
    cwd=ROOT,
    env={**os.environ, 'PYTHONPATH': ROOT, 'PYTHONIOENCODING': 'utf-8:strict'},
    capture_output=True,
    preexec_fn=before,
  )


def test_a_file_name_that_is_not_utf_8_is_no_obstacle(text, tmp_path):
  file = os.fsencode(tmp_path) + b'/caf\xe9.txt'
  with open(file, 'wb') as f:
    f.write(open(text, 'rb').read() + b'\nbad \xff\n')
  for expected in (b'1 \xc3\x97 line not in UTF-8', b'finished already'):
    run = command(b'--source=' + file, f'--out={tmp_path}/c')
    assert run.returncode == 0 and expected in run.stdout, run
  assert os.fsencode(
    corpus.read_manifest(tmp_path / 'c')['report']['dropped']['line not in UTF-8']['first']
  ).startswith(file)


def test_a_name_that_is_too_long_is_one_sentence(text, tmp_path):
  run = command(f'--source={text}', f'--out={tmp_path}/{"c" * 256}')
  assert (
    run.returncode == 2
    and b'File name too long. Mend that' in run.stderr
    and len(run.stderr.splitlines()) == 1
  ), run


@pytest.fixture
def disk(tmp_path):
  """A real disk of 1 MiB."""
  folder = tmp_path / 'disk'
  folder.mkdir()
  line = ['mount', '-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', str(folder)]
  if shutil.which('mount') is None or subprocess.run(line, capture_output=True).returncode:
    pytest.skip('a disk of its own needs the rights of root: see the test with a limited file size')
  yield folder
  subprocess.run(['umount', '-l', str(folder)], check=True)


def test_a_full_disk_is_one_sentence_and_once_there_is_room_the_bytes_are_those_of_a_clean_run(
  text, clean, disk, monkeypatch
):
  monkeypatch.setattr(prepare_lib, 'CHUNK_BYTES', (4_000, 4_000))
  reached = []
  for pages in (0, 3, 8, 13, 20, 30):  # of 4 KiB that are left
    left = 4096 * (pages + 1)
    (disk / 'other').write_bytes(bytes(shutil.disk_usage(disk).free + _size(disk / 'other') - left))
    with (
      pytest.raises(errors.Stopped, match='No space left on device. Make room and run the same'),
      prepare_lib.told(disk / 'corpus'),
    ):
      prepare_lib.prepare(tiny(), [text], disk / 'corpus', workers=1, say=lambda _: None)
    reached.append(
      'survey'
      if (disk / 'corpus' / texts.SURVEY).exists()
      else len(list((disk / 'corpus').rglob('*.npy')))
    )
  assert reached[0] == 'survey' and reached[-1] > 5, reached
  (disk / 'other').unlink()
  prepare_lib.prepare(tiny(), [text], disk / 'corpus', workers=1, say=lambda _: None)
  assert contents(disk / 'corpus') == contents(clean[0])


def _size(file):
  return file.stat().st_size if file.exists() else 0


def test_a_disk_that_is_full_while_repeats_are_looked_for_ends_the_command_with_3(text, tmp_path):
  """Where no disk of its own can be had: a limit on the size of files."""
  limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, resource.RLIM_INFINITY))
  run = command(f'--source={text}', f'--out={tmp_path}/c', before=limit)
  assert run.returncode == 3 and len(run.stderr.splitlines()) == 1, run
  assert b'File too large. Make room' in run.stderr and b'Training' not in run.stdout, run
  assert command(f'--source={text}', f'--out={tmp_path}/c').returncode == 0


def test_changed_text_of_the_same_size_is_other_text(text, tmp_path):
  file, out = tmp_path / 'a.txt', tmp_path / 'c'
  file.write_text(open(text).read())
  prepare_lib.prepare(tiny(), [str(file)], out, workers=1, say=lambda _: None)
  file.write_text(open(text).read()[::-1])
  with pytest.raises(
    errors.UserError, match='holds a corpus of other sources or settings .*digest'
  ):
    prepare_lib.prepare(tiny(), [str(file)], out, workers=1)


@pytest.mark.parametrize('lost', ['train', 'tokenizer'])
def test_a_corpus_that_lost_a_folder_is_not_finished(text, clean, tmp_path, lost):
  out = shutil.copytree(clean[0], tmp_path / 'c')
  shutil.rmtree(out / lost)
  run = drive(text, out)
  said = run.communicate()[0]
  assert (
    run.returncode
    and 'finished already' not in said
    and f'{out}/{lost}' in said
    and 'UserError' in said
  )


def test_every_file_of_the_tokenizer_is_in_the_manifest_and_any_other_byte_is_refused_at_open(
  clean, tmp_path
):
  out = shutil.copytree(clean[0], tmp_path / 'c')
  names = sorted(p.name for p in (out / 'tokenizer').iterdir())
  assert names == ['bertzoo.json', 'tokenizer.json', 'vocab.txt']
  assert corpus.open(out).tokenizer().vocab_size == 100
  for name in names:
    data = (out / 'tokenizer' / name).read_bytes()
    (out / 'tokenizer' / name).write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    with pytest.raises(errors.UserError, match=f'tokenizer/{name} is damaged'):
      corpus.open(out)
    (out / 'tokenizer' / name).write_bytes(data)
  manifest = json.loads((out / 'manifest.json').read_text())
  del manifest['tokenizer_sha256']  # as of an earlier version
  manifest['tokenizer_hash'] = 'another'
  (out / 'manifest.json').write_text(json.dumps({**manifest, 'hash': corpus.identity(manifest)}))
  with pytest.warns(UserWarning), pytest.raises(errors.UserError, match='not the tokenizer that'):
    corpus.open(out).tokenizer()


def test_a_damaged_plan_or_tokenizer_of_a_killed_run_is_one_sentence(text, tmp_path):
  out = tmp_path / 'c'
  kill_at(drive(text, out), out, 1)
  time.sleep(0.3)
  kept = (out / 'plan.json').read_text()
  for damaged in (kept[:50], '[]'):
    (out / 'plan.json').write_text(damaged)
    with pytest.raises(errors.UserError, match='plan.json is cut or damaged: delete'):
      prepare_lib.prepare(tiny(), [text], out)
  (out / 'plan.json').write_text(kept)
  (out / 'tokenizer' / 'bertzoo.json').write_text('{"section"')
  run = drive(text, out)
  assert 'bertzoo.json is not JSON, or cut short' in run.communicate()[0] and run.returncode


def test_a_damaged_record_of_a_shard_means_that_it_is_made_again(text, clean, tmp_path):
  out = tmp_path / 'corpus'
  kill_at(drive(text, out), out, 3)
  time.sleep(0.3)
  sorted(out.glob('parts/*.json'))[0].write_text('{"chu')
  assert drive(text, out).wait() == 0
  assert contents(out) == contents(clean[0])


def test_a_tokenizer_that_a_worker_cannot_load_is_that_sentence(clean, tmp_path):
  folder = shutil.copytree(clean[0] / 'tokenizer', tmp_path / 'tokenizer')
  (folder / 'vocab.txt').write_text('[PAD]\n')
  with pytest.raises(errors.UserError, match='^The vocabulary lacks the special tokens'):
    list(
      shards.run([shards.Chunk(0, [b'text'], 'a.txt:1', 1)], tmp_path, folder, 'rules:en', 0.0, 1)
    )


def test_a_cased_tokenizer_of_text_without_capitals_makes_a_corpus(tmp_path):
  (tmp_path / 'a.txt').write_text(f'{" ".join(WORDS)}\n\n' * 30)
  config = tiny(vocab_size=60, held_out=0.0)
  config.tokenizer.lowercase = config.tokenizer.strip_accents = False
  config.corpus.duplicates = 'keep'
  assert (
    prepare_lib.prepare(
      config, [str(tmp_path / 'a.txt')], tmp_path / 'c', workers=1, say=lambda _: None
    )['report']['documents']
    == 30
  )


@pytest.mark.parametrize('body', ['word ' * 99 + 'x' * 250 + ' ' + 'y' * 64 + ' end', '字' * 300])
def test_a_long_sentence_is_cut_counted_and_whole_when_joined(clean, tmp_path, monkeypatch, body):
  tokenizer, encoded = tokenizers.load(clean[0] / 'tokenizer'), []
  monkeypatch.setattr(shards, 'MAX_SENTENCE', 64)
  monkeypatch.setattr(
    tokenizer,
    'encode',
    lambda texts, encode=tokenizer.encode: encoded.extend(texts) or encode(texts),
  )
  for folder in (shards.PARTS, *corpus.SPLITS):
    (tmp_path / folder).mkdir()
  record = shards.write(
    tmp_path, shards.Chunk(0, [body.encode(), b'short one'], '', 1), tokenizer, 'rules:en', 0.0
  )
  assert record['long'] == 1 and encoded[-1] == 'short one'
  assert ''.join(encoded[:-1]) == body and max(map(len, encoded)) <= 64 and len(encoded) < 20
  assert not any(
    a[-1:].isalpha() and b[:1].isalpha()
    for a, b in zip(encoded[:-2], encoded[1:-1])
    if 'word' in a + b
  )


def test_long_sentences_are_in_the_report_and_encoded_a_few_at_a_time(clean, tmp_path, monkeypatch):
  texts = ['a' * n for n in (5, 5, 9, 30, 1, 1, 1)]
  monkeypatch.setattr(shards, '_CHARACTERS', 10)
  monkeypatch.setattr(shards, '_TEXTS', 2)
  assert [[len(t) for t in batch] for batch in shards._batches(texts)] == [
    [5, 5],
    [9],
    [30],
    [1, 1],
    [1],
  ]
  (tmp_path / 'a.txt').write_text(f'{"word " * 20_000}\n{" ".join(WORDS)}')
  said = []
  prepare_lib.prepare(
    tiny(held_out=0.0),
    [str(tmp_path / 'a.txt')],
    tmp_path / 'c',
    tokenizer=str(clean[0] / 'tokenizer'),
    workers=1,
    say=said.append,
  )
  assert '1 × sentence over 65,536 characters, cut' in said[-1]


def test_mostly_unknown_text_is_said_loudly(clean, text, tmp_path):
  (tmp_path / 'a.txt').write_text('漢字 ' * 50)
  for source, loud in ((str(tmp_path / 'a.txt'), True), (text, False)):
    said = []
    prepare_lib.prepare(
      tiny(held_out=0.0),
      [source],
      tmp_path / f'c{loud}',
      tokenizer=str(clean[0] / 'tokenizer'),
      workers=1,
      say=said.append,
    )
    assert ('100 % OF THE CHARACTERS ARE UNKNOWN' in said[-1]) == loud


LONG = 'ดจนขบพถฮทผตแไลกคร' * 8  # 136 characters without a blank


@pytest.mark.parametrize(
  'line, changes, words, remedy',
  [
    (f'ดจน ขบพ {LONG}', {}, '96 % OF THE CHARACTERS', {'max_word_chars': 200}),
    (f'かな です {"かなまつ" * 40}', {}, '98 % OF THE CHARACTERS', {'max_word_chars': 200}),
    (f'ငငဂ ဂဂဆ {LONG}', {}, '96 % OF THE CHARACTERS', {'max_word_chars': 200}),
    ('में पुल पल', {}, '38 % of the characters lose', {'strip_accents': False}),
    ('がまばた きて', {}, '33 % of the characters lose', {'strip_accents': False}),
    ('පුළුල් ගම් කම', {'sentencepiece': True}, 'of the characters lose', {'strip_accents': False}),
    ('می\u200cروم خانه', {}, '10.0 % of the characters are joiners', None),
  ],
)
def test_lost_characters_are_told_with_the_setting_and_the_remedy_works(
  tmp_path, line, changes, words, remedy
):
  (tmp_path / 'a.txt').write_text(f'{line}\n\n' * 60)

  def said(**fields):
    made = tiny(held_out=0.0)
    section = parts.wordpiece(vocab_size='auto')
    if changes:
      section = parts.sentencepiece(vocab_size=21 + len(fields), coverage=1.0)
    made.tokenizer = ml_collections.ConfigDict({**section, **fields})
    lines = []
    folder = tmp_path / f'c{len(fields)}'
    prepare_lib.prepare(made, [str(tmp_path / 'a.txt')], folder, workers=1, say=lines.append)
    return lines[-1]

  told = said()
  assert words in told
  if remedy is None:
    return
  assert f'--config.tokenizer.{next(iter(remedy))}' in told
  assert 'WARNING' not in said(**remedy).replace('WARNING: a word has', '')


def test_a_tokenizer_is_trained_on_a_sample_of_a_large_text_the_same_every_time(
  text, tmp_path, monkeypatch
):
  seen = []
  monkeypatch.setattr(
    prepare_lib.tokenizers,
    'train',
    lambda section, texts, _: (
      seen.append(list(texts()))
      or tokenizers.Tokenizer(
        section,
        kinds.Vocabulary(
          ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *map(chr, range(0x3041, 0x3041 + 95))]
        ),
      )
    ),
  )
  for most in (1 << 30, os.path.getsize(text) // 3, os.path.getsize(text) // 3):
    monkeypatch.setattr(prepare_lib, 'TOKENIZER_BYTES', most)
    monkeypatch.setattr(prepare_lib, '_shards', lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
      prepare_lib.prepare(tiny(held_out=0.0), [text], tmp_path / str(len(seen)), say=lambda _: None)
  everything, sample, again = seen
  assert (
    len(everything) == 120
    and 20 < len(sample) < 60
    and sample == again == [t for t in everything if t in sample]
  )


def test_beam_makes_the_same_bytes_and_keeps_finished_shards(tmp_path, monkeypatch):
  for i in range(3):
    write_text(tmp_path / f't{i}.txt', documents=60, seed=i)
  monkeypatch.setattr(prepare_lib, 'CHUNK_BYTES', (4_000, 4_000))
  # copies, repeats, and chunks over the borders of files
  source = [f'2*{tmp_path}/t0.txt', f'{tmp_path}/t*.txt']
  silent = lambda _: None
  prepare_lib.prepare(tiny(), source, tmp_path / 'local', workers=2, say=silent)
  made = []
  monkeypatch.setattr(
    shards,
    'write',
    lambda *a, write=shards.write: made.append(a[1].index) or write(*a) if len(made) < 9 else 1 / 0,
  )
  with pytest.raises(errors.UserError, match='finished shards are kept'):
    prepare_lib.prepare(
      tiny(),
      source,
      tmp_path / 'beam',
      runner='beam',
      beam_args=['--runner=BundleBasedDirectRunner'],
      say=silent,
    )
  monkeypatch.undo()
  monkeypatch.setattr(prepare_lib, 'CHUNK_BYTES', (4_000, 4_000))
  kept = {p: p.stat().st_mtime_ns for p in (tmp_path / 'beam').glob('train/*.tokens.npy')}
  prepare_lib.prepare(
    tiny(),
    source,
    tmp_path / 'beam',
    runner='beam',
    beam_args=['--runner=BundleBasedDirectRunner'],
    say=silent,
  )
  assert (
    contents(tmp_path / 'beam') == contents(tmp_path / 'local')
    and len(contents(tmp_path / 'beam')) > 30
  )
  assert len(kept) >= 8 and all(p.stat().st_mtime_ns == t for p, t in kept.items())


def test_repeats_are_looked_for_once_also_by_an_attempt_that_trained_its_tokenizer_and_was_stopped(
  text, clean, tmp_path, monkeypatch
):
  monkeypatch.setattr(prepare_lib, 'CHUNK_BYTES', (4_000, 4_000))
  with monkeypatch.context() as stopped, pytest.raises(KeyboardInterrupt):
    stopped.setattr(prepare_lib, '_shards', lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    prepare_lib.prepare(tiny(), [text], tmp_path / 'c', say=lambda _: None)
  for_others = texts.Text(
    [finding.find(text)], (), [], tiny().corpus, tmp_path / 'c', print
  ).for_workers()
  monkeypatch.setattr(prepare_lib.texts.duplicates, 'find', lambda *_: 1 / 0)
  assert len(list(for_others.documents(for_others.reader()))) == 120
  prepare_lib.prepare(tiny(), [text], tmp_path / 'c', workers=1, say=lambda _: None)
  assert contents(tmp_path / 'c') == contents(clean[0])


def test_what_is_held_out_has_one_copy_whatever_the_weight(text, clean, tmp_path):
  report = {}
  for weight in (1, 3):
    report[weight] = prepare_lib.prepare(
      tiny(),
      [f'{weight}*{text}'],
      tmp_path / str(weight),
      tokenizer=str(clean[0] / 'tokenizer'),
      workers=1,
      say=lambda _: None,
    )['splits']
  once, thrice = report[1], report[3]
  assert (
    once['held_out']['documents'] > 5
    and thrice['train']['documents'] == 3 * once['train']['documents']
  )
  assert {**thrice['held_out'], 'shards': 0} == {**once['held_out'], 'shards': 0}


@pytest.mark.parametrize(
  'options, wrong',
  [
    (
      [
        '--runner=DataflowRunner',
        '--project=p',
        '--region=r',
        '--worker_machine_type=n2-standard-8',
        '--no_use_public_ips',
        '--experiment=use_runner_v2',
      ],
      None,
    ),
    (['--runner=FlinkRunner', '--flink_master=m:8081', '--environment_type=LOOPBACK'], None),
    (['--runer=DirectRunner'], '--runer, which'),
  ],
)
def test_options_of_beam_are_taken_and_others_named(options, wrong):
  options_lib = pytest.importorskip('apache_beam.options.pipeline_options')
  if wrong:
    with pytest.raises(errors.UserError, match=wrong):
      beam._options(options_lib, options)
  else:
    assert (
      beam._options(options_lib, options).get_all_options()['runner']
      == options[0].partition('=')[2]
    )


def test_a_long_document_trains_the_tokenizer_in_parts(text, tmp_path, monkeypatch):
  seen = []
  monkeypatch.setattr(
    prepare_lib.tokenizers, 'train', lambda section, get, _: seen.extend(get()) or 1 / 0
  )
  monkeypatch.setattr(shards, 'MAX_SENTENCE', 64)
  with pytest.raises(ZeroDivisionError):
    prepare_lib.prepare(tiny(held_out=0.0), [f'{text}#file'], tmp_path / 'c', say=lambda _: None)
  assert max(map(len, seen)) <= 64 and ''.join(seen) == ' '.join(
    line for line in open(text).read().split('\n') if line
  )


def test_the_memory_for_training_depends_on_the_text_and_the_kind_not_on_how_files_are_packed(
  text, tmp_path, monkeypatch
):
  with gzip.open(tmp_path / 'a.txt.gz', 'wb') as f:
    f.write(open(text, 'rb').read())
  said, seen = [], []
  monkeypatch.setattr(
    prepare_lib.tokenizers, 'train', lambda section, get, _: seen.append(len(list(get()))) or 1 / 0
  )
  for i, (name, memory) in enumerate(
    (('wordpiece', 8 << 30), ('wordpiece', 60_000), ('sentencepiece', 60_000))
  ):
    monkeypatch.setattr(prepare_lib, 'TOKENIZER_MEMORY', memory)
    config = tiny(held_out=0.0)
    if name == 'sentencepiece':
      config.tokenizer = parts.sentencepiece(vocab_size=config.tokenizer.vocab_size)
    for source in (text, tmp_path / 'a.txt.gz'):
      with pytest.raises(ZeroDivisionError):
        prepare_lib.prepare(
          config,
          [str(source)],
          tmp_path / f'c{i}',
          say=lambda line: said.append(line.split('pieces')[1]),
        )
  assert seen[::2] == seen[1::2] and said[::2] == said[1::2]
  assert seen[0] == 120 and 25 < seen[2] < 100 and 0 < seen[4] < 15, seen


def test_conditions_and_excluded_texts_are_part_of_the_plan(tmp_path):
  rows = [dict(text=f'{i} ' + ' '.join(WORDS), lang='et' if i % 2 else 'de') for i in range(40)]
  (tmp_path / 'a.jsonl').write_text('\n'.join(map(json.dumps, rows)))
  (tmp_path / 'eval.txt').write_text(rows[1]['text'])
  make = lambda out, **more: prepare_lib.prepare(
    tiny(vocab_size=70, held_out=0.0),
    [str(tmp_path / 'a.jsonl')],
    tmp_path / out,
    workers=1,
    say=lambda _: None,
    **more,
  )
  manifest = make('c', where=['lang=et'], exclude=[str(tmp_path / 'eval.txt')])
  assert (
    manifest['report']['documents'] == 19
    and manifest['report']['dropped']['document of --exclude']['count'] == 1
  )
  with pytest.raises(errors.UserError, match='other sources or settings'):
    make('c', where=['lang=de'])
  with pytest.raises(errors.UserError, match='key=value'):
    make('d', where=['lang'])


def test_excluded_texts_that_leave_nothing_out_are_told(text, clean, tmp_path):
  (tmp_path / 'eval.txt').write_text('Nobody wrote this.')
  (tmp_path / 'seen.txt').write_text(open(text).read().split('\n\n')[3])
  for name, told in (('eval.txt', True), ('seen.txt', False)):
    said = []
    prepare_lib.prepare(
      tiny(),
      [text],
      tmp_path / f'c-{name}',
      tokenizer=str(clean[0] / 'tokenizer'),
      workers=1,
      say=said.append,
      exclude=[str(tmp_path / name)],
    )
    assert ('--exclude left nothing out' in said[-1]) == told, said


def test_every_reading_of_the_text_has_a_name_of_its_own(text, tmp_path, monkeypatch):
  names, meter = [], progress.Meter
  monkeypatch.setattr(
    progress, 'Meter', lambda what, *more: names.append(what) or meter(what, *more)
  )
  prepare_lib.prepare(tiny(), [text], tmp_path / 'c', workers=1, say=lambda _: None)
  assert names == [
    'looking for duplicates',
    'reading for the tokenizer',
    'learning pieces',
    'tokenising',
  ]


MY_LANGUAGE = """
from configs import bert


def get_config(argument='base,steps=100000'):
  config = bert.get_config(argument)
  config.tokenizer.update(vocab_size='auto', lowercase=False, strip_accents=False)
  config.corpus.splitter = 'rules:generic'
  return config
"""


def test_ten_lines_make_a_config_of_another_language_at_any_size_and_for_any_amount_of_text(
  text, tmp_path
):
  words = str.maketrans(dict(zip('aeio', 'äõöü')))
  (tmp_path / 'a.txt').write_text(open(text).read().translate(words))
  exec(MY_LANGUAGE, namespace := {})
  for size in ('tiny,steps=300', 'base,steps=100000'):
    config = namespace['get_config'](size)
    config.corpus.held_out, said = 0.1, []
    out = tmp_path / size.partition(',')[0]
    manifest = prepare_lib.prepare(
      config, [str(tmp_path / 'a.txt')], out, workers=1, say=said.append
    )
    assert 'vocab_size=auto: 1,024 pieces for 0.1 MB of text' in said[0], said
    assert 100 < manifest['vocab_size'] == manifest['tokenizer']['vocab_size'] < 1024
    assert manifest['splitter'] == 'rules:generic' and 'WARNING' not in said[-1]
    # again, and as pretrain, show and evaluate do
    prepare_lib.prepare(config, [str(tmp_path / 'a.txt')], out, workers=1, say=said.append)
    assert 'finished already' in said[-1]
    opened = corpus.open(out)
    corpus.check(opened, tokenizer=config.tokenizer, splitting=config.corpus)
    assert any('õ' in piece for piece in opened.tokenizer().pieces)
    config.tokenizer.vocab_size = 1024
    with pytest.raises(errors.UserError, match='the config one of 1024'):
      corpus.check(opened, tokenizer=config.tokenizer, splitting=config.corpus)


def test_an_automatic_vocabulary_size_can_be_asked_for_on_the_command_line(text, tmp_path):
  flags = (f'--source={text}', '--config.tokenizer.vocab_size=auto')
  run = command(*flags, f'--out={tmp_path}/c')
  assert run.returncode == 0 and b'vocab_size=auto: 1,024 pieces' in run.stdout, run
  run = command(f'--source={text}', f'--out={tmp_path}/d', '--config.tokenizer.vocab_size=few')
  assert run.returncode == 2 and b"'few'" in run.stderr and b"or 'auto'" in run.stderr, run


def test_the_tokenizer_alone_can_be_made_and_then_given(text, clean, tmp_path):
  said = []
  assert (
    prepare_lib.prepare(tiny(), [text], tmp_path / 'tokenizer', only='tokenizer', say=said.append)
    is None
  )
  assert 'GiB of memory' in said[0] and not (tmp_path / 'tokenizer' / 'plan.json').exists()
  assert (
    tokenizers.load(tmp_path / 'tokenizer').hash == tokenizers.load(clean[0] / 'tokenizer').hash
  )
  with pytest.raises(errors.UserError, match='not empty'):
    prepare_lib.prepare(tiny(), [text], tmp_path / 'tokenizer', only='tokenizer')
