"""prepare: one sentence for every mistake, and for a full disk."""

import json
import os
import resource
import shutil
import signal
import subprocess
import time

import pytest

from bertzoo_jax import prepare as prepare_lib
from bertzoo_jax.common import errors
from bertzoo_jax.corpus import corpus
from bertzoo_jax.corpus import shards
from bertzoo_jax.corpus import texts
from tests import commands
from tests.prepare import made


def test_a_folder_with_other_files_is_refused(text, tmp_path):
  (tmp_path / 'thesis.tex').write_text('years of work')
  with pytest.raises(errors.UserError, match='holds other files'):
    made.make(made.tiny(), text, tmp_path)
  assert [p.name for p in tmp_path.iterdir()] == ['thesis.tex']


def test_an_empty_corpus_is_refused_with_what_was_dropped(clean, tmp_path):
  (tmp_path / 'a.txt').write_bytes(b'\xff\xff\n\n\0\n')
  for tokenizer in (None, str(clean[0] / 'tokenizer')):
    words = (
      'no text to train on .dropped: 1 × line not in UTF-8, first at .*a.txt:1; 1 × line with a NUL'
    )
    with pytest.raises(errors.UserError, match=words):
      made.make(
        made.tiny(), tmp_path / 'a.txt', tmp_path / f'c{tokenizer is None}', tokenizer=tokenizer
      )


def test_all_documents_held_out_is_refused(clean, tmp_path):
  (tmp_path / 'a.txt').write_text('one document')
  words = 'Every document fell into the held-out share of 0.9999: lower'
  with pytest.raises(errors.UserError, match=words):
    made.make(
      made.tiny(held_out=0.9999),
      tmp_path / 'a.txt',
      tmp_path / 'c',
      tokenizer=clean[0] / 'tokenizer',
    )
  with pytest.raises(errors.UserError, match='held_out is 1.0: a number from 0 to below 1'):
    made.make(made.tiny(held_out=1.0), tmp_path / 'a.txt', tmp_path / 'd')


def test_too_large_a_vocabulary_can_be_mended_in_the_same_folder(text, tmp_path):
  with pytest.raises(errors.UserError, match='set --config.tokenizer.vocab_size=') as e:
    made.make(made.tiny(vocab_size=9999), text, tmp_path / 'c')
  size = int(str(e.value).split('vocab_size=')[1].rstrip('.'))
  assert made.make(made.tiny(vocab_size=size), text, tmp_path / 'c')['vocab_size'] == size


def test_a_worker_that_fails_names_the_chunk(clean, tmp_path):
  for folder in (shards.PARTS, *corpus.SPLITS):
    (tmp_path / folder).mkdir()
  chunks = [shards.Chunk(0, [b'good'], 'a.txt:1', 1), shards.Chunk(1, [b'bad \xff'], 'a.txt:7', 2)]
  words = 'Chunk 1, which begins at a.txt:7, failed: UnicodeDecodeError'
  with pytest.raises(errors.UserError, match=words):
    list(shards.run(chunks, tmp_path, clean[0] / 'tokenizer', shards.How('rules:en', 0.0), 1))


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
    list(shards.run(chunks(), tmp_path, clean[0] / 'tokenizer', shards.How('rules:en', 0.0), 1))


def test_a_tokenizer_that_a_worker_cannot_load_is_that_sentence(clean, tmp_path):
  folder = shutil.copytree(clean[0] / 'tokenizer', tmp_path / 'tokenizer')
  (folder / 'vocab.txt').write_text('[PAD]\n')
  with pytest.raises(errors.UserError, match='^The vocabulary lacks the special tokens'):
    list(
      shards.run(
        [shards.Chunk(0, [b'text'], 'a.txt:1', 1)], tmp_path, folder, shards.How('rules:en', 0.0), 1
      )
    )


def test_the_command_line_says_one_sentence_and_ends_with_2(tmp_path):
  line = ('-m', 'bertzoo_jax.prepare', '--config', 'configs/bert.py:tiny')
  run = commands.run(*line, '--source', f'{tmp_path}/*.txt', '--out', f'{tmp_path}/c')
  assert run.returncode == 2
  assert run.stderr.startswith('error: --source=')
  assert 'no file matches' in run.stderr
  assert len(run.stderr.splitlines()) == 1
  assert not (tmp_path / 'c').exists()


def test_a_file_name_that_is_not_utf_8_is_no_obstacle(text, tmp_path):
  file = os.fsencode(tmp_path) + b'/caf\xe9.txt'
  with open(file, 'wb') as f:
    f.write(open(text, 'rb').read() + b'\nbad \xff\n')
  for expected in (b'1 \xc3\x97 line not in UTF-8', b'finished already'):
    run = made.command(b'--source=' + file, f'--out={tmp_path}/c')
    assert run.returncode == 0 and expected in run.stdout, run
  assert os.fsencode(
    corpus.read_manifest(tmp_path / 'c')['report']['dropped']['line not in UTF-8']['first']
  ).startswith(file)


def test_a_name_that_is_too_long_is_one_sentence(text, tmp_path):
  run = made.command(f'--source={text}', f'--out={tmp_path}/{"c" * 256}')
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
      made.make(made.tiny(), text, disk / 'corpus')
    reached.append(
      'survey'
      if (disk / 'corpus' / texts.SURVEY).exists()
      else len(list((disk / 'corpus').rglob('*.npy')))
    )
  assert reached[0] == 'survey' and reached[-1] > 5, reached
  (disk / 'other').unlink()
  made.make(made.tiny(), text, disk / 'corpus')
  assert made.contents(disk / 'corpus') == made.contents(clean[0])


def _size(file):
  return file.stat().st_size if file.exists() else 0


def test_a_disk_that_is_full_while_repeats_are_looked_for_ends_the_command_with_3(text, tmp_path):
  """Where no disk of its own can be had: a limit on the size of files."""
  limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, resource.RLIM_INFINITY))
  run = made.command(f'--source={text}', f'--out={tmp_path}/c', before=limit)
  assert run.returncode == 3 and len(run.stderr.splitlines()) == 1, run
  assert b'File too large. Make room' in run.stderr and b'Training' not in run.stdout, run
  assert made.command(f'--source={text}', f'--out={tmp_path}/c').returncode == 0


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
  manifest['tokenizer_hash'] = 'another'
  (out / 'manifest.json').write_text(json.dumps({**manifest, 'hash': corpus.identity(manifest)}))
  with pytest.raises(errors.UserError, match='not the tokenizer that'):
    corpus.open(out).tokenizer()
