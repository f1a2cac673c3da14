"""A corpus in an object store reaches the disk whole, checked, or with a sentence. The store is a
local folder that is said to be remote.
"""

import numpy as np
import pytest

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.corpus import corpus
from bertzoo_jax.corpus import mirror


@pytest.fixture
def remote(tmp_path, monkeypatch):
  folder = tmp_path / 'bucket' / 'corpus'
  splits = {}
  for name in corpus.SPLITS:
    (folder / name).mkdir(parents=True)
    shards = [
      corpus.write_shard(
        storage.path(folder / name),
        f'{i:05d}',
        np.arange(i, i + 9),
        np.array([0, 4, 9]),
        np.array([0, 1, 2]),
        32,
      )
      for i in range(3)
    ]
    splits[name] = dict(documents=6, sentences=6, tokens=27, bytes=100, shards=shards)
  (folder / 'tokenizer').mkdir()
  (folder / 'tokenizer' / 'vocab.txt').write_text('a\nb\n')
  digest = storage.write_array(folder / 'unigrams.npy', np.ones(32, np.int64))
  manifest = dict(
    format_version=corpus.FORMAT_VERSION,
    tokenizer={},
    corpus={},
    vocab_size=32,
    special={},
    tokenizer_hash='',
    dtype='uint16',
    splits=splits,
    splitter='lines',
    units=None,
    similar=None,
    tokenizer_sha256={'vocab.txt': storage.sha256(folder / 'tokenizer' / 'vocab.txt')},
    unigrams_sha256=digest,
    pieces_sha256=storage.write_array(folder / 'pieces.npy', np.ones(32, np.uint8)),
  )
  storage.write_json(folder / 'manifest.json', dict(manifest, hash=corpus.identity(manifest)))
  monkeypatch.setattr(storage, 'is_remote', lambda p: 'bucket' in str(p))
  return folder


def test_a_mirror_holds_the_same_corpus(remote, tmp_path):
  folder = mirror.local(remote, tmp_path / 'cache', say=lambda text: None)
  opened = corpus.open(folder)
  assert opened.splits['train'].gather(np.arange(27)).tolist() == [
    *range(9),
    *range(1, 10),
    *range(2, 11),
  ]
  assert (folder / 'tokenizer' / 'vocab.txt').read_text() == 'a\nb\n'


def test_a_local_corpus_is_its_own_mirror(tmp_path):
  assert mirror.local(tmp_path, None) == storage.path(tmp_path)


def test_a_mirror_that_was_cut_short_fetches_only_what_is_missing(remote, tmp_path):
  folder = mirror.local(remote, tmp_path / 'cache', say=lambda text: None)
  (folder / 'manifest.json').unlink()
  (folder / 'train' / '00001.tokens.npy').unlink()
  said = []
  mirror.local(remote, tmp_path / 'cache', say=said.append)
  assert '1 of 21 files' in said[0]
  corpus.verify(folder)


def test_a_damaged_object_is_named_and_leaves_no_mirror(remote, tmp_path):
  file = remote / 'train' / '00002.tokens.npy'
  data = bytearray(file.read_bytes())
  data[-1] ^= 1
  file.write_bytes(data)
  with pytest.raises(errors.UserError, match='00002.tokens.npy is damaged'):
    mirror.local(remote, tmp_path / 'cache', say=lambda text: None)
  assert not list((tmp_path / 'cache').rglob('manifest.json')) and not list(
    (tmp_path / 'cache').rglob('train/00002.tokens.npy*')
  )


def test_a_remote_corpus_without_a_cache_or_space_is_one_sentence(remote, tmp_path, monkeypatch):
  with pytest.raises(errors.UserError, match='--cache_dir'):
    mirror.local(remote, None)
  monkeypatch.setattr(mirror.shutil, 'disk_usage', lambda p: type('usage', (), {'free': 3}))
  with pytest.raises(errors.UserError, match='more space'):
    mirror.local(remote, tmp_path / 'cache')


@pytest.mark.parametrize('name', ['../../evil.npy', '/evil.npy', 'a/../../../evil.npy'])
def test_a_manifest_whose_names_lead_out_of_the_corpus_is_refused(remote, tmp_path, name):
  manifest = storage.read_json(remote / 'manifest.json')
  shard = manifest['splits']['train']['shards'][0]
  evil = storage.path(f'{remote}/train/{name}')
  (remote / 'train/a').mkdir()
  evil.write_bytes(b'evil')
  shard['sha256'][name] = storage.sha256(evil)
  storage.write_json(remote / 'manifest.json', dict(manifest, hash=corpus.identity(manifest)))
  before = sorted(map(str, tmp_path.rglob('*')))
  with pytest.raises(errors.UserError, match='leads out of the corpus'):
    mirror.local(remote, tmp_path / 'cache', say=lambda text: None)
  assert sorted(map(str, tmp_path.rglob('*'))) == before
