import json
import pathlib
import shutil
import sys
import types
from unittest import mock

import pyarrow
import pytest
from etils.epath import backend
from fsspec.implementations import memory
from pyarrow import parquet

from bertzoo_jax.common import hub
from bertzoo_jax.text import finding
from bertzoo_jax.text import sources
from tests.refused import refused
from tests.tasks import made

SHA = 'ab12' * 10
REMOTE = f'hf://datasets/owner/name@{SHA}/data'
CARD = """---
configs:
- {config_name: books, data_files: [{split: train, path: books/*}], default: true}
- config_name: pairs
  data_files: [{split: train, path: rows/train*}, {split: test, path: rows/t.csv}]
---
"""
ROWS = [('NA', 'a'), ('null', 'b'), ('one', 'NA'), ('007', 'a')]


def write(folder):
  for kind in 'books', 'rows':
    (folder / kind).mkdir(parents=True)
  (folder / 'README.md').write_text(CARD)
  for i in range(2):
    table = pyarrow.table({'title': ['t', 'u'], 'text': [f'Book {i}.', None]})
    parquet.write_table(table, folder / f'books/{i}.parquet')
    rows = [json.dumps({'text': text, 'label': label}) for text, label in ROWS[2 * i : 2 * i + 2]]
    (folder / f'rows/train-{i}.jsonl').write_text('\n'.join(rows))
  (folder / 'rows/t.csv').write_text('text,label\nNA,a\n007,NA\n')
  return folder


def documents(source):
  reader = sources.Reader([source])
  return list(reader.documents()), reader.dropped.reasons


@pytest.fixture
def folder(tmp_path):
  pytest.importorskip('datasets')
  return write(tmp_path / 'set')


@pytest.fixture
def remote(monkeypatch, tmp_path):
  """hf:owner/name of a hub in memory, and the requests to it."""

  class Files(memory.MemoryFileSystem):
    store, pseudo_dirs = {}, ['']
    _strip_protocol = staticmethod(lambda path: '/' + path.removeprefix('hf://').strip('/'))

  for i in range(2):
    rows = ''.join(json.dumps({'text': f'{i}{j}', 'label': 'ab'[j]}) + '\n' for j in range(2))
    Files().pipe(f'/datasets/owner/name@{SHA}/data/{i}.jsonl', rows.encode())
  monkeypatch.setattr(type(backend.fsspec_backend), '_get_filesystem', lambda *_: Files())
  asked = []

  def load_dataset_builder(*name, revision):
    asked.append((*name, revision))
    files = {'train': [f'{REMOTE}/{i}.jsonl' for i in range(2)]}
    return types.SimpleNamespace(config=types.SimpleNamespace(name='plain', data_files=files))

  client = types.SimpleNamespace(load_dataset_builder=load_dataset_builder)
  monkeypatch.setitem(sys.modules, 'datasets', client)
  return asked


def test_the_text_of_a_data_set_is_that_of_its_files(folder):
  found = finding.find(f'hf:{folder}:train#text')
  assert documents(found) == documents(finding.find(f'{folder}/books/*#text'))
  files = finding.find(f'{folder}/books/*').facts()
  data = {'name': str(folder), 'config': 'books', 'split': 'train', 'revision': ''}
  assert found.facts() == {**files, 'source': f'hf:{folder}:train#text', 'data': data}
  (folder / 'rows/train-0.jsonl').write_text('{"text": "x", "label": "y"}')
  before = finding.find(f'hf:{folder}/pairs').facts()
  (folder / 'rows/train-0.jsonl').write_text('{"text": "z", "label": "y"}')
  assert finding.find(f'hf:{folder}/pairs').facts() != before


def test_rows_of_a_task_are_read_strictly_and_shards_are_one_file(folder):
  files = dict(train=f'hf:{folder}/pairs', test=f'hf:{folder}/pairs:test')
  read = made.source(folder, made.config(files=files).source)
  train, test = read.splits['train'], read.splits['test']
  assert [(a, label) for a, (label,) in zip(train.column('a'), train.labels)] == ROWS
  assert train.ids == ['0', '1', '2', '3'] and 'train-1.jsonl, line 2' in train.places[3]
  assert test.column('a') == ['NA', '007'] and test.labels == [('a',), ('NA',)]
  first = folder / 'rows/train-0.jsonl'
  first.write_text('{}\n' + first.read_text())
  with pytest.warns(UserWarning, match='1 line of train-0.jsonl without the key'):
    again = read.read(f'hf:{folder}/pairs')
  assert again.column('a') == train.column('a') and again.ids == ['1', '2', '3', '4']


def test_a_folder_of_the_very_name_comes_first(folder, monkeypatch):
  monkeypatch.chdir(folder.parent)
  folder.rename('json')
  books = {str(folder.parent / f'json/books/{i}.parquet') for i in (0, 1)}
  assert set(hub.data('hf:json').files) == books
  pathlib.Path('json').rename('set')
  (folder.parent / 'set@v:1').mkdir()
  shutil.copytree(folder / 'books', folder.parent / 'set@v:1', dirs_exist_ok=True)
  assert len(hub.data(f'hf:{folder.parent}/set@v:1').files) == 2


def test_a_data_set_of_the_hub_is_read_at_the_commit_that_the_manifest_records(remote):
  found = finding.find('hf:owner/name/part@v2:train#text')
  assert remote == [('owner/name', 'part', 'v2')]
  facts = found.facts()
  assert facts['data'] == dict(name='owner/name', config='plain', split='train', revision=SHA)
  assert (facts['source'], facts['files']) == ('hf:owner/name/part@v2:train#text', 2)
  assert documents(found)[0] == [['00'], ['01'], ['10'], ['11']]
  read = made.source('', made.config(files=dict(train='hf:owner/name')).source)
  assert read.splits['train'].column('a') == ['00', '01', '10', '11']


WRONG = [
  ('hf:', 'write hf:NAME'),
  ('hf:json', 'json is no folder here; for the hub write OWNER/NAME'),
  ('hf:owner/name:tran', "no split 'tran'.*Did you mean 'train'"),
  ('hf:owner/name:test', "no split 'test'.*'?train"),
  ('hf:./no/such', '^hf:./no/such: there is no folder ./no/such: correct the path.$'),
  ('hf:/no/such:train', 'there is no folder /no/such'),
  ('hf:../no', 'there is no folder ../no'),
  ('hf:owner/name:train[:10]', 'a split is a name, without .*: write hf:owner/name:train.$'),
  ('hf:./no:train[50%:]', 'a split is a name'),
]


def test_a_data_set_that_cannot_be_read_is_one_sentence(remote, monkeypatch):
  for address, words in WRONG:
    refused(words, finding.find, address)
  fails = mock.Mock(side_effect=FileNotFoundError('no such name'))
  sys.modules['datasets'].load_dataset_builder = fails
  words = r'cannot be read \(no such name …\): correct the name, or download'
  for offline in (False, True):
    monkeypatch.setattr(hub.constants, 'HF_HUB_OFFLINE', offline)
    refused(r'…\): \$HF_HUB_OFFLINE is set: unset it' if offline else words, finding.find, 'hf:a/b')
