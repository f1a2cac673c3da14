import gzip
import json
import os

import pytest

from bertzoo_jax.common import errors
from bertzoo_jax.text import finding
from bertzoo_jax.text import formats
from bertzoo_jax.text import sources
from bertzoo_jax.text import unpacking
from tests.text import made

ARRAY = [dict(text='one\ntwo', lang='et'), dict(text='three é \u2028', n=12), dict(text='')]


@pytest.mark.parametrize('indent', [None, 1])
@pytest.mark.parametrize('name', ['a.json', 'a.txt', 'a.json.gz'])
@pytest.mark.parametrize('ascii', [True, False])
def test_a_json_array_is_read_as_json_lines_are_on_one_line_or_many(tmp_path, indent, name, ascii):
  data = json.dumps(ARRAY, indent=indent, ensure_ascii=ascii).encode()
  file = made.write(tmp_path / name, gzip.compress(data) if name.endswith('gz') else data)
  assert made.read(file) == ([['one', 'two'], ['three é']], {'empty document': 1})
  with pytest.raises(errors.UserError, match="no key 'body'.*The keys: text, lang, n"):
    made.read(f'{file}#body')


@pytest.mark.parametrize('block', [1, 2, 7, 1 << 20])
def test_a_json_array_does_not_depend_on_where_a_block_ends(tmp_path, monkeypatch, block):
  monkeypatch.setattr(unpacking, 'BLOCK', block)
  data = '[]\r\n [ {"text": "é one"} ,\n7, [1, "]"], 1234, {"text": "two"}]\n[]'
  dropped = {"record without a text under 'text'": 3}
  assert made.read(made.write(tmp_path / 'a.json', data)) == ([['é one'], ['two']], dropped)


DAMAGED = [
  (b', {"text": "cut', 'cut, or no JSON'),
  (b'', 'cut, or no JSON'),
  (b', {"text": nonsense}]', 'cut, or no JSON'),
  (b' {"text": "no comma"}]', "'{' between its values"),
  (b'] rubbish', "'r' after its end"),
  (b', {"text": "' + b'x' * 300 + b'"}]', 'a value of over 0 MiB'),
]


def test_a_damaged_json_array_gives_what_it_holds_and_is_counted(tmp_path, monkeypatch):
  monkeypatch.setattr(unpacking, 'BLOCK', 50)
  monkeypatch.setattr(formats, 'MAX_LINE', 200)
  for end, reason in DAMAGED:
    file = made.write(tmp_path / 'a.json', b'[{"text": "one"}, {"text": "\xff"}' + end)
    rest = f'rest of a damaged JSON array ({reason})'
    assert made.read(file) == ([['one']], {'record not in UTF-8': 1, rest: 1})


def test_the_loss_of_a_damaged_json_array_is_counted_in_bytes(tmp_path, monkeypatch):
  monkeypatch.setattr(unpacking, 'BLOCK', 50)
  good, bad = b'[{"text": "one"}', b' x' + b', {"text": "two"}' * 100 + b']'
  reader = sources.Reader([finding.find(str(made.write(tmp_path / 'a.json', good + bad)))])
  assert list(reader.documents()) == [['one']]
  [(reason, lost)] = reader.dropped.reasons.items()
  assert 'damaged JSON array' in reason and lost['bytes'] == len(bad) - 1


def test_json_lines_give_the_named_text_and_their_line_breaks_part_paragraphs(tmp_path):
  bodies = 'one\ntwo\r\n\nthree', '', None, 'nul \0', 'last'
  rows = [dict(text='x'), *(dict(body=body, text='no') for body in bodies)]
  file = made.write(tmp_path / 'a.jsonl', '\n'.join(map(json.dumps, rows)) + '\n{"body": \n[1]\n\n')
  documents, dropped = made.read(f'{file}#body')
  assert documents == [['one', 'two', 'three'], ['last']]
  once = 'empty document', 'text with a NUL', 'line that is not JSON'
  assert dropped == dict.fromkeys(once, 1) | {"line without a text under 'body'": 3}


def test_json_is_known_by_content_too_and_conditions_hold_for_an_array(tmp_path):
  file = made.write(tmp_path / 'wiki_00', '{"id": 1, "text": "one"}\n')
  assert made.read(file) == ([['one']], {})
  file = made.write(tmp_path / 'a.json', json.dumps(ARRAY))
  assert made.read(file, where=[('lang', 'et')])[0] == [['one', 'two']]


def test_a_tensorflow_dataset_is_a_source(tmp_path):
  tf = pytest.importorskip('tensorflow')
  tfds = pytest.importorskip('tensorflow_datasets')
  text = tfds.features.Text()
  features = tfds.features.FeaturesDict({'title': text, 'text': text})
  folder = tmp_path / 'mine' / '1.0.0'
  folder.mkdir(parents=True)
  name = str(folder / 'mine-train.tfrecord-00000-of-00001')
  with tf.io.TFRecordWriter(name) as f:
    for text in ('one\ntwo', '', 'naïve'):
      f.write(features.serialize_example(features.encode_example(dict(title='t', text=text))))
  info = tfds.core.SplitInfo(name='train', shard_lengths=[3], num_bytes=os.path.getsize(name))
  tfds.folder_dataset.write_metadata(data_dir=str(folder), features=features, split_infos=[info])
  assert made.read(f'tfds:{folder}') == ([['one', 'two'], ['naïve']], {'empty document': 1})
  assert made.read(f'tfds:{folder}#title')[0] == [['t']] * 3
  assert wanted(f'tfds:{folder}', ('title', 't'))[0] == [['one', 'two'], ['naïve']]
  assert wanted(f'tfds:{folder}', ('title', 'u')) == ([], {'record whose title is not u': 3})
  with pytest.raises(errors.UserError, match="has no key 'titel', which --where asks for"):
    wanted(f'tfds:{folder}', ('titel', 't'))
  with pytest.raises(errors.UserError, match="has no key 'txt'.*text"):
    made.read(f'tfds:{folder}#txt')


def test_a_source_without_the_key_is_refused_after_a_thousand_records_or_at_its_end(tmp_path):
  file = lambda name, data: made.write(tmp_path / name, data)
  odd = [file(f'{n}.jsonl', '{"id": 1, "error": "404"}\n{"text": "%s"}\n' % n) for n in 'ab']
  assert made.read(*odd) == ([['a'], ['b']], {"line without a text under 'text'": 2})
  assert made.read(file('a.jsonl', '{"id": 1}\n' * 999 + '{"text": "one"}\n'))[0] == [['one']]
  late = file('a.jsonl', '{"id": 1}\n' * 1000 + '{"text": "one"}\n')
  (tmp_path / 'c').mkdir()
  file('c/a.jsonl', '{"id": 1}\n'), file('c/b.jsonl', '{"url": "u"}\n')
  good, other = file('good.jsonl', '{"text": "good"}\n'), tmp_path / 'c/b.jsonl'
  content = file('content.jsonl', '{"id": 1, "content": "x"}\n')
  for names, words in (
    ([late], "a.jsonl has no key 'text'.*keys: id"),
    ([f'{tmp_path}/c/*'], "a.jsonl and others have no key 'text'.*keys: id, url"),
    ([good, other], "b.jsonl has no key 'text'"),  # another source's records do not count
    ([f'{content}#contents'], "no key 'contents'.*Did you mean 'content'.*id, content"),
  ):
    with pytest.raises(errors.UserError, match=words):
      made.read(*names)


ROWS = [
  dict(text='eins', lang='de', n=1, ok=True, meta=dict(site='a')),
  dict(text='üks\nteine', lang='et', n=2, ok=False, meta=dict(site='b')),
  dict(text=None, lang='et', n=3, ok=None, meta=dict(site='b')),
  dict(text='kaks', lang='et', n=2, ok=True, meta=None),
  dict(text='', lang='fi', n=4),
]


def wanted(name, *where):
  return made.read(name, where=where)


@pytest.mark.parametrize('kind, what', [('jsonl', 'line'), ('parquet', 'row')])
def test_filters_keep_the_records_that_have_the_values(tmp_path, kind, what):
  file = made.write_rows(tmp_path / 'a', kind, ROWS)
  one, two, four = ['eins'], ['üks', 'teine'], ['kaks']
  without, other = f"{what} without a text under 'text'", 'record whose {} is not {}'.format
  for where, documents, dropped in (
    ([], [one, two, four], {without: 1, 'empty document': 1}),
    ([('lang', 'et'), ('n', '2')], [two, four], {other('lang', 'et'): 2, other('n', 2): 1}),
    ([('meta.site', 'b')], [two], {without: 1, other('meta.site', 'b'): 3}),
  ):
    assert wanted(file, *where) == (documents, dropped)
  assert wanted(file, ('lang', 'de'), ('lang', 'fi'))[0] == [one]  # either
  assert wanted(file, ('ok', 'true'))[0] == wanted(file, ('ok', 'True'))[0] == [one, four]
  assert wanted(file, ('lang', 'et'), ('lang', 'eT'))[0] == [two, four]
  words = "has no key 'language', which --where asks for.*Did you mean 'lang'.*text, lang, n, ok, m"
  with pytest.raises(errors.UserError, match=words):
    wanted(file, ('language', 'et'))
  with pytest.raises(errors.UserError, match="no key 'txt': name the text with #KEY.*mean 'text'"):
    wanted(f'{file}#txt')


@pytest.mark.parametrize(
  'options',
  [dict(row_group_size=2), dict(compression='zstd'), dict(data_page_size=10), dict(version='1.0')],
)
def test_parquet_is_read_row_by_row_whatever_its_layout(tmp_path, options):
  rows = [dict(n=n, body=f'text {n}\r\nof two') for n in range(1000)]
  file = made.write_rows(tmp_path / 'a', 'parquet', rows, **options)
  reader = sources.Reader([finding.find(f'{file}#body')])
  read = [(document, reader.bytes_read) for document in reader.documents()]
  assert [document for document, _ in read] == [[f'text {n}', 'of two'] for n in range(1000)]
  sizes = [size for _, size in read]
  assert sizes == sorted(sizes) and 0 < sizes[500] < file.stat().st_size == reader.bytes_read
  assert reader.place == f'{file}:1000'


def test_a_column_without_text_is_refused_with_the_columns_of_text(tmp_path):
  file = made.write_rows(tmp_path / 'a.parquet', 'parquet', [dict(id=1, title='t', body=b'bytes')])
  words = "column 'id' holds int64, no text. Columns of text: title, body"
  with pytest.raises(errors.UserError, match=words):
    wanted(f'{file}#id')
  assert wanted(f'{file}#body')[0] == [['bytes']]


def test_text_in_parquet_is_decoded_strictly(tmp_path):
  import pyarrow as pa
  from pyarrow import parquet

  column = pa.array([b'good', b'bad \xff', None, b'nul \0', b'last']).cast(pa.binary())
  bad = pa.StringArray.from_buffers(5, *column.buffers()[1:], column.buffers()[0], 1)
  parquet.write_table(pa.table(dict(text=bad)), tmp_path / 'a')
  assert wanted(tmp_path / 'a') == (
    [['good'], ['last']],
    {'text not in UTF-8': 1, "row without a text under 'text'": 1, 'text with a NUL': 1},
  )


def test_a_damaged_parquet_file_is_counted_and_the_others_are_read(tmp_path):
  rows, file = [dict(text=os.urandom(50).hex()) for _ in range(2000)], tmp_path / 'b.parquet'
  data = made.write_rows(file, 'parquet', rows, write_page_checksum=True).read_bytes()
  made.write_rows(tmp_path / 'c.parquet', 'parquet', [dict(text='end')])
  half = len(data) // 2
  flipped = data[:half] + bytes([data[half] ^ 255]) + data[half + 1 :]
  cut = data[:-20], data[:half], data[:4], data[:4] + data[5000:]
  for damaged in (*cut, flipped, b'PAR1' + os.urandom(1000) + b'PAR1'):
    made.write(file, damaged)
    documents, dropped = wanted(tmp_path / '*.parquet')
    assert documents[-1] == ['end'] and len(documents) <= 2001
    assert len(dropped) == 1 and 'rest of a damaged parquet file' in list(dropped)[0]
