import json
import multiprocessing
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
from tests.prepare import made

EMPTY = 'no text to train on .dropped: 1 × line not in UTF-8, first at .*a.txt:1; 1 × line with a'

BAD = b'\xff\xff\n\n\0\n'
REFUSED = [
  (BAD, 0.1, False, EMPTY),
  (BAD, 0.1, True, EMPTY),
  (b'one', 0.9999, True, 'Every document fell into the held-out share of 0.9999: lower'),
  (b'one', 1.0, False, 'held_out is 1.0: a number from 0 to below 1'),
]
GOOD, FAILS = shards.Chunk(0, [b'good'], 'a.txt:1', 1), shards.Chunk(1, [b'bad \xff'], 'a.txt:7', 2)
KILLED = r'ended with code -9 in chunk \d, which begins at a.txt:\d .killed: is there enough memory'


def test_text_and_folders_without_a_corpus_are_one_sentence(clean, text, tmp_path):
  file, thesis = tmp_path / 'a.txt', tmp_path / 'mine' / 'thesis.tex'
  for number, (data, held_out, given, words) in enumerate(REFUSED):
    file.write_bytes(data)
    tokenizer = clean[0] / 'tokenizer' if given else None
    with pytest.raises(errors.UserError, match=words):
      made.make(made.tiny(held_out=held_out), file, tmp_path / str(number), tokenizer)
  thesis.parent.mkdir()
  thesis.write_text('years of work')
  with pytest.raises(errors.UserError, match='holds other files'):
    made.make(made.tiny(), file, thesis.parent)
  assert [p.name for p in thesis.parent.iterdir()] == ['thesis.tex']


def test_too_large_a_vocabulary_can_be_mended_in_the_same_folder(text, tmp_path):
  with pytest.raises(errors.UserError, match='set --config.tokenizer.vocab_size=') as e:
    made.make(made.tiny(vocab_size=9999), text, tmp_path / 'c')
  size = int(str(e.value).split('vocab_size=')[1].rstrip('.'))
  assert made.make(made.tiny(vocab_size=size), text, tmp_path / 'c')['vocab_size'] == size


def sharded(folder, chunks, tokenizer):
  for name in (shards.PARTS, *corpus.SPLITS):
    (folder / name).mkdir()
  list(shards.run(chunks, folder, tokenizer, shards.How('rules:en', 0.0), 1))


def killed():
  """Chunks; the worker is killed in the second."""
  yield shards.Chunk(0, [b'good'], 'a.txt:1', 1)
  while not multiprocessing.active_children():
    time.sleep(0.01)
  yield shards.Chunk(1, [b'text. ' * 1_000_000], 'a.txt:7', 2)
  (child,) = multiprocessing.active_children()
  os.kill(child.pid, signal.SIGKILL)
  yield shards.Chunk(2, [b'more'], 'a.txt:9', 3)


@pytest.mark.parametrize(
  'chunks, damaged, words',
  [
    ([GOOD, FAILS], False, 'Chunk 1, which begins at a.txt:7, failed: UnicodeDecodeError'),
    (killed(), False, f'A worker {KILLED}'),
    ([GOOD], True, '^The vocabulary lacks the special tokens'),
  ],
)
def test_a_worker_that_fails_or_is_killed_names_the_chunk_or_says_why(
  clean, tmp_path, chunks, damaged, words
):
  tokenizer = shutil.copytree(clean[0] / 'tokenizer', tmp_path / 'tokenizer')
  if damaged:
    (tokenizer / 'vocab.txt').write_text('[PAD]\n')
  with pytest.raises(errors.UserError, match=words):
    sharded(tmp_path, chunks, tokenizer)


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
  out, words = tmp_path / ('c' * 256), 'File name too long. Mend that'
  with pytest.raises(errors.UserError, match=words), prepare_lib.explained_errors(out):
    made.make(made.tiny(), text, out)


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
  out, other, reached = disk / 'corpus', disk / 'other', []
  for pages in (0, 3, 8, 13, 20, 30):  # of 4 KiB that are left
    other.unlink(missing_ok=True)
    other.write_bytes(bytes(shutil.disk_usage(disk).free - 4096 * (pages + 1)))
    words = 'No space left on device. Make room and run the same'
    with pytest.raises(errors.Stopped, match=words), prepare_lib.explained_errors(out):
      made.make(made.tiny(), text, out)
    arrays = len(list(out.rglob('*.npy')))
    reached.append('survey' if (out / texts.SURVEY).exists() else arrays)
  assert reached[0] == 'survey' and reached[-1] > 5, reached
  other.unlink()
  made.make(made.tiny(), text, out)
  assert made.contents(out) == made.contents(clean[0])


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
