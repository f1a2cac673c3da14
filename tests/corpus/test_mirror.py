"""The object store is a local folder that is said to be remote."""

import numpy as np
import pytest
import small_corpora

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.corpus import corpus
from bertzoo_jax.corpus import mirror


@pytest.fixture
def remote(tmp_path, monkeypatch):
  folder = tmp_path / 'bucket' / 'corpus'
  small_corpora.write(folder, shards=3)
  monkeypatch.setattr(storage, 'is_remote', lambda p: 'bucket' in str(p))
  return folder


def test_a_mirror_holds_the_same_corpus_and_fetches_only_what_is_missing(remote, tmp_path):
  folder = mirror.local(remote, tmp_path / 'cache', say=lambda text: None)
  opened = corpus.open(folder)
  ids = opened.splits['train'].gather(np.arange(27)).tolist()
  assert ids == [*range(9), *range(1, 10), *range(2, 11)]
  assert (folder / 'tokenizer' / 'vocab.txt').read_text() == 'a\nb\n'
  assert mirror.local(tmp_path, None) == storage.path(tmp_path)
  folder = mirror.local(remote, tmp_path / 'cache', say=lambda text: None)
  (folder / 'manifest.json').unlink()
  (folder / 'train' / '00001.tokens.npy').unlink()
  printed = []
  mirror.local(remote, tmp_path / 'cache', say=printed.append)
  assert '1 of 21 files' in printed[0]
  corpus.verify(folder)


def test_a_damaged_object_or_a_lack_of_cache_or_space_leaves_no_mirror(
  remote, tmp_path, monkeypatch
):
  file, cache = remote / 'train' / '00002.tokens.npy', tmp_path / 'cache'
  data = file.read_bytes()
  file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
  with pytest.raises(errors.UserError, match='00002.tokens.npy is damaged'):
    mirror.local(remote, cache, say=lambda text: None)
  assert not list(cache.rglob('manifest.json')) + list(cache.rglob('train/00002.tokens.npy*'))
  with pytest.raises(errors.UserError, match='--cache_dir'):
    mirror.local(remote, None)
  monkeypatch.setattr(mirror.shutil, 'disk_usage', lambda p: type('usage', (), {'free': 3}))
  with pytest.raises(errors.UserError, match='more space'):
    mirror.local(remote, cache)


@pytest.mark.parametrize('name', ['../../evil.npy', '/evil.npy', 'a/../../../evil.npy'])
def test_a_manifest_whose_names_lead_out_of_the_corpus_is_refused(remote, tmp_path, name):
  manifest = storage.read_json(remote / 'manifest.json')
  shard = manifest['splits']['train']['shards'][0]
  evil = storage.path(f'{remote}/train/{name}')
  (remote / 'train/a').mkdir()
  evil.write_bytes(b'evil')
  shard['sha256'][name] = storage.sha256(evil)
  small_corpora.seal(remote, manifest)
  before = sorted(map(str, tmp_path.rglob('*')))
  with pytest.raises(errors.UserError, match='not a name inside'):
    mirror.local(remote, tmp_path / 'cache', say=lambda text: None)
  assert sorted(map(str, tmp_path.rglob('*'))) == before
