import errno
import json
import os
import pathlib
import resource
import shutil
import time
import weakref
from unittest import mock

import numpy as np
import pytest
import small_corpora
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.corpus import corpus
from bertzoo_jax.corpus import splits
from bertzoo_jax.corpus import verification

SPECIAL = dict(pad=0, unk=1, cls=2, sep=3, mask=4)
SHARDS = [[[[5, 6, 7], [8]], [[9, 10]]], [[[11], [12, 13, 14, 15], [16]]], [[[17, 18]]]]
ROTTEN = 'train/00002.tokens.npy is damaged'


def write(folder, shards, vocab_size=100, held_out=()):
  """A small corpus; a shard is a list of documents, a document a list of sentences, a sentence a
  list of ids.
  """
  splits = {}
  for split, own in (('train', shards), ('held_out', held_out)):
    (folder / split).mkdir(parents=True)
    entries = []
    for i, documents in enumerate(own):
      lines = [s for d in documents for s in d]
      starts = (np.cumsum([0, *map(len, parts)]) for parts in (lines, documents))
      tokens = np.concatenate([*map(np.asarray, lines)])
      entries.append(corpus.write_shard(folder / split, f'{i:05d}', tokens, *starts, vocab_size))
    splits[split] = dict(documents=0, sentences=0, tokens=0, bytes=7, shards=entries)
  small_corpora.finish(folder, splits, vocab_size, special=SPECIAL, tokenizer_hash='t')
  return folder


def test_offsets_run_on_over_shards(tmp_path):
  c = corpus.open(write(tmp_path, SHARDS, held_out=[[[[20, 21]]]]))
  train = c.splits['train']
  counts = train.num_tokens, train.num_sentences, train.num_documents, train.bytes
  assert counts == (14, 7, 4, 7)
  assert train.sentence_starts.tolist() == [0, 3, 4, 6, 7, 11, 12, 14]
  assert train.document_starts.tolist() == [0, 2, 3, 6, 7]
  assert train.gather(np.arange(14)).tolist() == list(range(5, 19))
  assert c.splits['held_out'].gather([1, 0]).tolist() == [21, 20]
  corpus.verify(tmp_path)


def test_positions_outside_are_an_error_not_a_token_also_in_an_empty_split(tmp_path):
  opened = corpus.open(write(tmp_path, SHARDS)).splits
  train, held_out = opened['train'], opened['held_out']
  assert (held_out.num_tokens, held_out.num_sentences, held_out.num_documents) == (0, 0, 0)
  assert held_out.gather(np.zeros((0, 8), np.int64)).shape == (0, 8)
  for split, positions in ((held_out, [0]), (train, [[0, 1], [2, -1]]), (train, [[0, 1], [2, 14]])):
    with pytest.raises(IndexError):
      split.gather(positions)


def test_ids_above_16_bits_are_kept_and_none_outside_the_vocabulary_is_written(tmp_path):
  c = corpus.open(write(tmp_path / 'large', [[[[70_000, 5]]]], vocab_size=70_001))
  assert c.manifest['dtype'] == 'uint32' and c.splits['train'].gather([0]).tolist() == [70_000]
  assert corpus.token_dtype(65_536) == 'uint16' and corpus.token_dtype(65_537) == 'uint32'
  for id_ in (100, -1):
    with pytest.raises(ValueError, match='vocabulary of 100'):
      write(tmp_path / str(id_), [[[[id_]]]])
    assert not list((tmp_path / str(id_)).rglob('*.npy'))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.data())
@settings(max_examples=60, deadline=None)
def test_gather_is_indexing_of_the_shards_joined(sizes, data):
  shards = [np.arange(n, dtype=np.uint16) + 100 * i for i, n in enumerate(sizes)]
  joined, one = np.concatenate(shards), np.array([0, 1])
  split = splits.Split([splits.Shard(s, np.array([0, len(s)]), one) for s in shards])
  shape = data.draw(st.sampled_from([(5,), (1,), (3, 4), (2, 2, 3), ()]))
  size, place = int(np.prod(shape)), st.integers(0, len(joined) - 1)
  drawn = data.draw(st.lists(place, min_size=size, max_size=size))
  run = np.minimum(data.draw(place) + np.arange(8), len(joined) - 1).reshape(2, 4)
  for positions in (np.array(drawn).reshape(shape), run):
    out = split.gather(positions)
    assert out.dtype == np.int32 and out.shape == positions.shape
    assert np.array_equal(out, joined[positions])


def data(name, change):
  """Changes the bytes of a file of a corpus; a file of None is gone."""

  def act(folder):
    found = change((folder / name).read_bytes()) if (folder / name).exists() else change(b'')
    (folder / name).unlink(missing_ok=True)
    if found is not None:
      (folder / name).write_bytes(found)

  return act


def array(name, numbers, dtype=np.uint32):
  """Puts other numbers into a file of the first shard."""
  return lambda folder: np.save(folder / f'train/00000.{name}.npy', np.array(numbers, dtype))


def manifest(sealed=True, without='', **fields):
  """Changes the manifest. sealed: with the hash that then fits."""

  def change(text):
    content = {k: x for k, x in json.loads(text).items() if k != without} | fields
    return json.dumps(content | ({'hash': corpus.identity(content)} if sealed else {})).encode()

  return data('manifest.json', change)


def instead(text, name='manifest.json'):
  return data(name, lambda _: text and text.encode())


def unfinished(folder):
  (folder / 'manifest.json').rename(folder / 'plan.json')


CUTS = {
  'cut a token': lambda x: x[:-2],
  'cut to half': lambda x: x[: len(x) // 2],
  'emptied': lambda _: b'',
  'gone': lambda _: None,
}
FILES = 'train/00001.tokens', 'train/00001.sentences', 'held_out/00000.documents', 'unigrams'
VERSION = f'{{"format_version": {corpus.FORMAT_VERSION}}}'
starts = lambda folder: corpus.open(folder).splits['train'].sentence_starts
documents = lambda folder: corpus.open(folder).splits['train'].document_starts
REFUSED = [  # what is changed in a corpus, what reads it, words of the sentence
  *((data(f'{f}.npy', cut), corpus.open, f'{f}.npy') for f in FILES for cut in CUTS.values()),
  (array('tokens', [0] * 5, np.uint16), corpus.open, '5 numbers of uint16, the manifest says 6'),
  (instead(None), corpus.open, 'No corpus at .* --config CONFIG --source TEXT --out'),
  (unfinished, corpus.open, 'unfinished: run the same prepare command again'),
  *((instead(x), corpus.open, 'is not the manifest') for x in ('{"x"', '[]', VERSION)),
  (instead('{"format_version": 9}'), corpus.open, 'format version 9'),
  (manifest(sealed=False, vocab_size=99), corpus.open, 'was changed'),
  (manifest(sealed=False, without='hash'), corpus.open, 'is not the manifest'),
  (manifest(without='splits', sealed=False), corpus.open, 'is not the manifest'),
  (manifest(without='unigrams_sha256', sealed=False), corpus.open, 'is not the manifest'),
  (manifest(without='tokenizer_sha256', sealed=False), corpus.open, 'prepare the corpus again'),
  (manifest(special={**SPECIAL, 'mask': 100}), corpus.open, 'outside its vocabulary of 100'),
  *((array('sentences', x), starts, '00000.sentences.npy do not run up') for x in (
    [1, 4, 4, 6], [0, 4, 3, 6], [0, 4, 4, 5])),
  *((array('documents', x), documents, '00000.documents.npy do not run up') for x in (
    [0, 4, 3], [1, 2, 3])),
]  # fmt: skip


def test_a_cut_file_is_refused_at_open_by_name(tmp_path):
  good = write(tmp_path / 'good', SHARDS, held_out=[[[[20, 21]]]])
  for number, (change, read, words) in enumerate(REFUSED):
    folder = shutil.copytree(good, tmp_path / str(number))
    read(folder)
    change(folder)
    with pytest.raises(errors.UserError, match=words) as e:
      read(folder)
    assert '\n' not in str(e.value)


def flipped(name):
  return data(name, lambda x: x[:-1] + bytes([x[-1] ^ 4]))


def test_a_flipped_bit_is_found_by_verify(tmp_path):
  write(tmp_path, SHARDS)
  flipped('train/00002.tokens.npy')(tmp_path)
  corpus.open(tmp_path)
  for name, change, what in (
    ('train/00002.tokens.npy', lambda _: None, 'damaged'),
    ('train/00001.tokens.npy', flipped('train/00001.tokens.npy'), 'damaged'),  # the first of two
    ('train/00000.documents.npy', data('train/00000.documents.npy', CUTS['gone']), 'missing'),
  ):
    change(tmp_path)
    with pytest.raises(errors.UserError, match=f'{name} is {what}'):
      corpus.verify(tmp_path)


def test_a_corpus_in_memory_behaves_like_one_on_disk():
  c = corpus.in_memory([5, 6, 7, 8], [0, 2, 4], [0, 2], 10, SPECIAL, held_out=([9], [0, 1], [0, 1]))
  assert c.splits['train'].gather([[0, 3]]).tolist() == [[5, 8]]
  assert c.splits['held_out'].num_tokens == 1
  assert c.unigrams.tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1, 0] and c.vocab_size == 10
  assert c.hash != corpus.in_memory([5, 6, 7, 9], [0, 2, 4], [0, 2], 10, SPECIAL).hash
  with pytest.raises(ValueError, match='vocabulary of 10'):
    corpus.in_memory([10], [0, 1], [0, 1], 10, SPECIAL)
  with pytest.raises(ValueError, match='offsets do not fit'):
    corpus.in_memory([5, 6], [0, 1], [0, 1], 10, SPECIAL)


def test_whatever_identifies_a_corpus_is_in_its_hash(tmp_path):
  manifest = json.loads((write(tmp_path, SHARDS) / 'manifest.json').read_text())
  hash_ = corpus.identity(manifest)
  assert hash_ == manifest['hash'] == corpus.identity({**manifest, 'report': 1})
  for key in 'splits tokenizer_hash special dtype vocab_size tokenizer corpus'.split():
    assert corpus.identity({**manifest, key: 'another'}) != hash_


def test_a_large_split_comes_in_parts_of_every_so_many_shards(tmp_path, monkeypatch):
  monkeypatch.setattr(splits, 'PART_SENTENCES', 4)
  write(tmp_path, SHARDS)
  wanted = [5, 6, 7, 8, 9, 10, 17, 18], [11, 12, 13, 14, 15, 16]
  for cache in ('disk', 'ram'):
    train = corpus.open(tmp_path, cache).splits['train']
    parts = [train.part(k) for k in range(train.num_parts)]
    assert [p.gather(np.arange(p.num_tokens)).tolist() for p in parts] == [*wanted]
    assert parts[0].sentence_starts.tolist() == [0, 3, 4, 6, 8]
    assert parts[0].document_starts.tolist() == [0, 2, 3, 4]
  with pytest.raises(errors.UserError, match='corpus_cache'):
    corpus.open(tmp_path, 'tape')
  array('sentences', [0, 4, 3, 6])(tmp_path)
  with pytest.raises(errors.UserError, match='do not run up'):
    corpus.open(tmp_path).splits['train'].part(0).sentence_starts  # noqa: B018


@pytest.fixture
def hashed(monkeypatch):
  """The names of the files that are read from here on."""
  names, sha256 = [], storage.sha256
  monkeypatch.setattr(storage, 'sha256', lambda path: names.append(path.name) or sha256(path))
  return names


def test_a_corpus_is_hashed_once_and_again_only_where_a_file_was_written_to(
  tmp_path, monkeypatch, hashed
):
  def read_by_verify(folder=tmp_path):
    hashed.clear()
    corpus.verify(folder)
    return hashed

  write(tmp_path, SHARDS)
  monkeypatch.setattr(verification, 'SAMPLE', 0)
  assert len(read_by_verify()) == 3 + 3 * 3 and not read_by_verify()
  file = tmp_path / 'train' / '00001.tokens.npy'
  data = file.read_bytes()
  file.write_bytes(data)  # the same bytes at another time
  assert read_by_verify() == ['00001.tokens.npy']
  file.write_bytes(data[:-1] + b'x')
  with pytest.raises(errors.UserError, match='00001.tokens.npy is damaged'):
    corpus.verify(tmp_path)
  file.write_bytes(data)
  for text in ('{"x"', '[]', '{"unigrams.npy": 3}'):  # a note that is none is none
    (tmp_path / 'verified.json').write_text(text)
    assert len(read_by_verify()) == 12
  # with its note: another disk is another matter
  assert len(read_by_verify(shutil.copytree(tmp_path, tmp_path.parent / 'copy'))) == 12


@pytest.fixture
def rotten(tmp_path):
  """A corpus that was verified, in which a bit flipped as a disk does it: size, time of change and
  inode stay as they were.
  """
  file = write(tmp_path, SHARDS) / 'train' / '00002.tokens.npy'
  corpus.verify(tmp_path)
  facts = lambda: (file.stat().st_size, file.stat().st_mtime_ns, file.stat().st_ino)
  before, times, data = facts(), file.stat(), file.read_bytes()
  with open(file, 'r+b') as f:
    f.write(data[:-1] + bytes([data[-1] ^ 4]))
  os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
  assert facts() == before
  return tmp_path


def test_a_bit_that_rots_after_the_first_verification_is_found_at_the_next_start(rotten):
  with pytest.raises(errors.UserError, match=ROTTEN):
    corpus.verify(rotten)


def test_of_a_large_corpus_every_start_reads_a_sample_until_all_was_read(
  rotten, monkeypatch, hashed
):
  monkeypatch.setattr(verification, 'SAMPLE', 1)  # a file at a time
  hashed.clear()
  with pytest.raises(errors.UserError, match=ROTTEN):
    for _ in range(3 + 3 * 3):
      corpus.verify(rotten)
  assert len(set(hashed)) == len(hashed)  # none twice before all were read


@pytest.mark.parametrize('days', [8, -1])
def test_a_file_read_long_ago_or_in_the_future_is_read_again(rotten, monkeypatch, days):
  monkeypatch.setattr(verification, 'SAMPLE', 0)
  corpus.verify(rotten)  # within the interval nothing is read
  later = time.time() + days * 24 * 3600
  monkeypatch.setattr(verification.time, 'time', lambda: later)
  with pytest.raises(errors.UserError, match=ROTTEN):
    corpus.verify(rotten)


def test_two_swapped_lines_of_the_vocabulary_are_found_at_open_and_by_verify(tmp_path):
  file = write(tmp_path, SHARDS) / 'tokenizer' / 'vocab.txt'
  file.write_text('[PAD]\nb\na\n')
  for check in (corpus.open, corpus.verify):
    with pytest.raises(errors.UserError, match='tokenizer/vocab.txt is damaged'):
      check(tmp_path)
  file.unlink()
  with pytest.raises(errors.UserError, match='tokenizer/vocab.txt is missing'):
    corpus.open(tmp_path)


def failing(*args):
  """A function that raises OSError(*args)."""
  return mock.Mock(side_effect=OSError(*args))


def test_a_corpus_that_may_only_be_read_is_verified_and_too_many_open_files_are_told(
  tmp_path, monkeypatch
):
  write(tmp_path, SHARDS)
  monkeypatch.setattr(storage, 'write_bytes', failing(errno.EACCES, 'Permission denied'))
  corpus.verify(tmp_path)
  assert not (tmp_path / 'verified.json').exists()
  monkeypatch.setattr(np, 'load', failing(errno.EMFILE, 'Too many open files'))
  with pytest.raises(errors.UserError, match='ulimit -n'):
    corpus.open(tmp_path)


def test_two_writers_of_the_same_file_do_not_share_a_temporary_one(tmp_path, monkeypatch):
  parts = []
  monkeypatch.setattr(storage, 'sync', lambda f: parts.append(pathlib.Path(f.name)))
  for _ in range(2):
    storage.write_bytes(tmp_path / 'a', b'')
  assert len({*parts}) == 2 and {p.parent for p in parts} == {tmp_path}
  assert os.listdir(tmp_path) == ['a']


def test_a_split_of_thousands_of_shards_holds_few_files_open(tmp_path):
  write(tmp_path, [[[[5 + i % 9]]] for i in range(300)])
  opened = corpus.open(tmp_path).splits['train']
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir('/proc/self/fd')) + 20, hard))
  try:
    assert opened.gather(np.arange(300)).tolist() == [5 + i % 9 for i in range(300)]
    assert opened.sentence_starts.tolist() == list(range(301))
  finally:
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_large_arrays_are_mapped_when_they_are_asked_for_and_go_with_their_part(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(splits, '_MAPPED_BYTES', 1)
  monkeypatch.setattr(splits, 'PART_SENTENCES', 2)
  write(tmp_path, SHARDS)
  disk, ram = (corpus.open(tmp_path, cache).splits['train'] for cache in ('disk', 'ram'))
  part = disk.part(0)
  assert not part._open
  part.gather([0, 1])
  assert {name for name, _ in part._open} == {'tokens'}
  assert isinstance(part._open['tokens', 0], np.memmap)
  gone = weakref.ref(part._open['tokens', 0])
  del part
  assert gone() is None and not disk._open
  assert not isinstance(ram._shards[0].tokens, np.memmap)
  assert ram._shards[0].tokens is ram._shards[0].tokens
