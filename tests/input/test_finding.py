"""Finding: which files a --source names, and what tells them from others."""

import pytest

from bertzoo_jax import errors
from bertzoo_jax.input import finding


def test_patterns_of_an_object_store_are_walked_level_by_level(tmp_path, monkeypatch):
  """The code path of gs://, on a local folder."""
  (tmp_path / 'AA').mkdir()
  (tmp_path / 'AA' / 'wiki_00').write_text('text')
  monkeypatch.setattr(finding.storage, 'is_remote', lambda _: True)
  assert finding.find(f'{tmp_path}/*/wiki_*').files == finding.find(f'{tmp_path}/AA/wiki_00').files == (f'{tmp_path}/AA/wiki_00',)
  with pytest.raises(errors.UserError, match='no file matches'):
    finding.find(f'{tmp_path}/BB/*')
  with pytest.raises(errors.UserError, match='a \\* for every level'):
    finding.find(f'{tmp_path}/**')


def test_an_unknown_tensorflow_dataset_is_one_sentence(tmp_path, monkeypatch):
  pytest.importorskip('tensorflow_datasets')
  with pytest.raises(errors.UserError, match='TensorFlow Datasets cannot bring it'):
    finding.find('tfds:no_such_dataset_at_all')


def test_the_facts_tell_texts_of_one_size_apart(tmp_path):
  file = tmp_path / 'a.txt'
  def facts(data):
    file.write_bytes(data)
    return finding.find(str(file)).facts()
  first = facts(b'a' * 200_000)
  assert facts(b'a' * 200_000) == first
  for at in (0, 65_535, 199_999, 200_000 - 65_536):
    changed = bytearray(b'a' * 200_000)
    changed[at] = 98
    assert {k: v == first[k] for k, v in facts(bytes(changed)).items()} == dict(source=True, files=True, bytes=True, weight=True, digest=False)
  assert facts(b'b') != facts(b'c')


def test_the_facts_of_remote_files_are_their_names_and_sizes(monkeypatch):
  monkeypatch.setattr(finding.storage, 'is_remote', lambda _: True)
  one, two = (finding.Source('gs://b/*', '', ('gs://b/a',), (n,)).facts() for n in (5, 6))
  assert one['digest'] != two['digest']
