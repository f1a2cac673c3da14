"""Sources: every kind of file becomes documents, and whatever is left out is counted."""

import bz2
import gzip
import json
import lzma
import os
import re
import subprocess
import sys

import pytest
import zstandard
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from bertzoo_jax.common import errors
from bertzoo_jax.text import finding
from bertzoo_jax.text import sources


def read(*names):
  reader = sources.Reader([finding.find(str(n)) for n in names])
  documents = list(reader.documents())
  return documents, {reason: d['count'] for reason, d in reader.dropped.reasons.items()}


def write(path, data):
  path.write_bytes(data if isinstance(data, bytes) else data.encode())
  return path


def test_a_blank_line_parts_documents_and_a_line_is_a_paragraph(tmp_path):
  file = write(tmp_path / 'a.txt', '\n\n one\ntwo\n \t\n\nthree')
  assert read(file) == ([['one', 'two'], ['three']], {})


def test_a_file_may_be_a_document(tmp_path):
  write(tmp_path / 'a.txt', 'one\n\ntwo\n')
  write(tmp_path / 'b.txt', 'three')
  assert read(f'{tmp_path}/*.txt#file') == ([['one', 'two'], ['three']], {})


def test_hard_wrapped_lines_are_joined_into_paragraphs(tmp_path):
  file = write(
    tmp_path / 'a.txt',
    '\ufeffIt was the best\r\nof times.\r\n\r\nIt was the worst\r\n  of times.\r\n',
  )
  assert read(f'{file}#wrapped') == (
    [['It was the best of times.', 'It was the worst of times.']],
    {},
  )


@pytest.mark.parametrize('end', ['\n', '\r\n', '\r'])
def test_every_line_end_is_one_and_a_byte_order_mark_is_none_of_the_text(tmp_path, end):
  file = write(tmp_path / 'a.txt', '\ufeff' + end.join(['a', 'b', '', 'c', '']))
  assert read(file) == ([['a', 'b'], ['c']], {})


@given(
  st.lists(st.sampled_from(['a', 'é', '\r', '\n', '\r\n', '\u2028', ' ']), max_size=40),
  st.integers(1, 7),
)
@settings(max_examples=150, deadline=None)
def test_lines_do_not_depend_on_where_a_block_ends(tmp_path_factory, pieces, block):
  text = ''.join(pieces)
  file = write(tmp_path_factory.mktemp('lines') / 'a.txt', text)
  reader = sources.Reader([])
  old, sources._BLOCK = sources._BLOCK, block
  try:
    with file.open('rb') as f:
      lines = list(reader._lines(reader._blocks(f, f)))
  finally:
    sources._BLOCK = old
  expected = re.split('\r\n|\r|\n', text)
  assert lines == (expected if expected[-1] else expected[:-1])
  assert not reader.dropped.reasons


@pytest.mark.parametrize('pack', [gzip.compress, bz2.compress, lzma.compress, zstandard.compress])
def test_packed_files_are_known_by_content_not_by_name(tmp_path, pack):
  assert read(write(tmp_path / 'a', pack('one\n\ntwo'.encode()))) == ([['one'], ['two']], {})


PACKERS = [
  gzip.compress,
  bz2.compress,
  lzma.compress,
  zstandard.ZstdCompressor(write_checksum=True).compress,
]


@pytest.mark.parametrize('pack', PACKERS)
@pytest.mark.parametrize(
  'damage',
  [
    'cut',
    'cut at the start',
    'flip',
    'rubbish behind',
    'damaged second stream',
    'cut second stream',
  ],
)
def test_a_damaged_packed_file_gives_what_it_holds_and_is_counted(tmp_path, pack, damage):
  data, second = pack(b'one\n\n' + os.urandom(600_000).hex().encode() + b'\n\n'), pack(b'end')
  flipped = bytearray(data)
  flipped[len(data) // 2] ^= 255
  damaged = {
    'cut': data[:-20],
    'cut at the start': data[:12],
    'flip': bytes(flipped),
    'rubbish behind': data + b'rubbish behind',
    'damaged second stream': data + b'x' + second[1:],
    'cut second stream': data + second[:-3],
  }[damage]
  documents, dropped = read(write(tmp_path / 'a', damaged))
  assert len(dropped) == 1 and 'rest of a damaged packed file' in list(dropped)[0]
  assert len(documents) <= 3 and (
    documents[:1] == [['one']]
    or damage == 'cut at the start'
    or damage == 'flip'
    and pack is not gzip.compress
  )


@pytest.mark.parametrize('pack', PACKERS)
def test_packed_files_may_be_joined(tmp_path, pack):
  data = pack(b'one\r') + pack(b'\n\r\ntwo') + pack(b'')
  for end in (b'', b'\0' * 8):  # padding
    assert read(write(tmp_path / 'a', data + end)) == ([['one'], ['two']], {})


def test_a_zstandard_file_may_begin_with_a_frame_of_no_data(tmp_path):
  assert read(
    write(tmp_path / 'a', b'\x5a\x2a\x4d\x18\x04\0\0\0what' + zstandard.compress(b'one'))
  ) == ([['one']], {})


ARRAY = [dict(text='one\ntwo', lang='et'), dict(text='three é \u2028', n=12), dict(text='')]


@pytest.mark.parametrize('indent', [None, 1])
@pytest.mark.parametrize('name', ['a.json', 'a.txt', 'a.json.gz'])
@pytest.mark.parametrize('ascii', [True, False])
def test_a_json_array_is_read_as_json_lines_are_on_one_line_or_many(tmp_path, indent, name, ascii):
  data = json.dumps(ARRAY, indent=indent, ensure_ascii=ascii).encode()
  file = write(tmp_path / name, gzip.compress(data) if name.endswith('gz') else data)
  assert read(file) == ([['one', 'two'], ['three é']], {'empty document': 1})
  with pytest.raises(errors.UserError, match="no key 'body'.*The keys: text, lang, n"):
    read(f'{file}#body')


@pytest.mark.parametrize('block', [1, 2, 7, 1 << 20])
def test_a_json_array_does_not_depend_on_where_a_block_ends(tmp_path, monkeypatch, block):
  monkeypatch.setattr(sources, '_BLOCK', block)
  file = write(
    tmp_path / 'a.json', '[]\r\n [ {"text": "é one"} ,\n7, [1, "]"], 1234, {"text": "two"}]\n[]'
  )
  assert read(file) == (
    [['é one'], ['two']],
    {"record without a text under 'text'": 3},
  )


@pytest.mark.parametrize(
  'end,reason',
  [
    (b', {"text": "cut', 'cut, or no JSON'),
    (b'', 'cut, or no JSON'),
    (b', {"text": nonsense}]', 'cut, or no JSON'),
    (b' {"text": "no comma"}]', "'{' between its values"),
    (b'] rubbish', "'r' behind its end"),
    (b', {"text": "' + b'x' * 300 + b'"}]', 'a value of over 0 MiB'),
  ],
)
def test_a_damaged_json_array_gives_what_it_holds_and_is_counted(
  tmp_path, monkeypatch, end, reason
):
  monkeypatch.setattr(sources, '_BLOCK', 50)
  monkeypatch.setattr(sources, 'MAX_LINE', 200)
  file = write(tmp_path / 'a.json', b'[{"text": "one"}, {"text": "\xff"}' + end)
  assert read(file) == (
    [['one']],
    {'record not in UTF-8': 1, f'rest of a damaged JSON array ({reason})': 1},
  )


def test_what_a_damaged_json_array_loses_is_counted_in_bytes(tmp_path, monkeypatch):
  monkeypatch.setattr(sources, '_BLOCK', 50)
  good, bad = b'[{"text": "one"}', b' x' + b', {"text": "two"}' * 100 + b']'
  reader = sources.Reader([finding.find(str(write(tmp_path / 'a.json', good + bad)))])
  assert list(reader.documents()) == [['one']]
  [(reason, lost)] = reader.dropped.reasons.items()
  assert 'damaged JSON array' in reason and lost['bytes'] == len(bad) - 1


def test_conditions_hold_for_the_records_of_a_json_array(tmp_path):
  file = write(tmp_path / 'a.json', json.dumps(ARRAY))
  reader = sources.Reader([finding.find(str(file))], [('lang', 'et')])
  assert list(reader.documents()) == [['one', 'two']]


def test_plain_text_may_begin_with_a_bracket(tmp_path):
  file = write(tmp_path / 'a.txt', '[Music]\nLa la.')
  assert read(file) == ([['[Music]', 'La la.']], {})


def test_bad_lines_are_dropped_counted_and_located(tmp_path):
  file = write(
    tmp_path / 'a.txt', b'good\nbad \xff\xfe\nnul \0 here\n\n\xed\xa0\x80\n\nlast \xc3\xa9'
  )
  reader = sources.Reader([finding.find(str(file))])
  assert list(reader.documents()) == [['good'], ['last é']]
  assert reader.dropped.reasons['line not in UTF-8'] == dict(count=2, bytes=9, first=f'{file}:2')
  assert reader.dropped.reasons['line with a NUL'] == dict(count=1, bytes=10, first=f'{file}:3')


def test_utf_16_is_not_taken_for_text(tmp_path):
  documents, dropped = read(write(tmp_path / 'a.txt', '漢字'.encode('utf-16')))
  assert documents == [] and list(dropped) == ['file in UTF-16 or UTF-32, not UTF-8']


@pytest.mark.parametrize('block', [3, 16, 64])
def test_an_over_long_line_is_dropped_and_its_neighbours_stay(tmp_path, monkeypatch, block):
  monkeypatch.setattr(sources, 'MAX_LINE', 20)
  monkeypatch.setattr(sources, '_BLOCK', block)
  file = write(
    tmp_path / 'a.txt', 'a\n' + 'x' * 20 + '\n' + 'y' * 21 + '\nb\n' + 'z' * 50 + '\nc\n' + 'w' * 99
  )
  reader = sources.Reader([finding.find(str(file))])
  assert list(reader.documents()) == [['a', 'x' * 20, 'b', 'c']]
  assert reader.dropped.reasons == {
    'line over 0 MiB': dict(
      count=3, bytes=170, first=reader.dropped.reasons['line over 0 MiB']['first']
    )
  }


@pytest.mark.parametrize(
  'open_packed',
  [
    lambda name: gzip.open(name, 'wb', 1),
    pytest.param(lambda name: zstandard.open(name, 'wb'), marks=pytest.mark.slow),
  ],
)
def test_a_gigabyte_in_one_line_is_read_in_bounded_memory(tmp_path, open_packed):
  with open_packed(tmp_path / 'a.txt') as f:
    for data in (b'before\n', *[b'a' * (1 << 24)] * 64, b'\nafter'):
      f.write(data)
  # VmHWM starts anew with a program; ru_maxrss is inherited from the parent, here a test worker of
  # gigabytes.
  code = (
    'import re, sys; from bertzoo_jax.text import finding, sources\n'
    'r = sources.Reader([finding.find(sys.argv[1])]); print(list(r.documents()), '
    'r.dropped.reasons)\n'
    'print(int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024)'
  )
  out = subprocess.run(
    [sys.executable, '-c', code, str(tmp_path / 'a.txt')],
    capture_output=True,
    text=True,
    check=True,
  ).stdout.splitlines()
  assert out[0].startswith("[['before', 'after']]") and "'bytes': 1073741824" in out[0]
  assert int(out[1]) < 300, f'{out[1]} MB of memory for a line of 1 GiB'


def test_an_over_long_document_is_cut_at_a_line_and_counted(tmp_path, monkeypatch):
  monkeypatch.setattr(sources, 'MAX_DOCUMENT', 10)
  lines = tmp_path / 'a.jsonl'
  write(lines, json.dumps(dict(text='aaaa\nbbbb\ncccc\ndddd')))
  documents, dropped = read(lines)
  assert documents == [['aaaa', 'bbbb'], ['cccc', 'dddd']]
  assert list(dropped.values()) == [1]


def test_json_lines_give_the_named_text_and_their_line_breaks_part_paragraphs(tmp_path):
  rows = [
    dict(body='one\ntwo\r\n\nthree', text='no'),
    dict(body=''),
    dict(body=None),
    dict(text='x'),
    dict(body='nul \0'),
    dict(body='last'),
  ]
  file = write(tmp_path / 'a.jsonl', '\n'.join(map(json.dumps, rows)) + '\n{"body": \n[1]\n\n')
  documents, dropped = read(f'{file}#body')
  assert documents == [['one', 'two', 'three'], ['last']]
  assert dropped == {
    'empty document': 1,
    "line without a text under 'body'": 3,
    'text with a NUL': 1,
    'line that is not JSON': 1,
  }


def test_json_is_known_by_content_too(tmp_path):
  assert read(write(tmp_path / 'wiki_00', '{"id": 1, "text": "one"}\n')) == ([['one']], {})


def test_an_unknown_text_key_is_refused_with_the_keys_there_are(tmp_path):
  file = write(tmp_path / 'a.jsonl', '{"id": 1, "content": "x"}\n')
  with pytest.raises(
    errors.UserError, match="no key 'contents'.*Did you mean 'content'.*id, content"
  ):
    read(f'{file}#contents')


WIKI = """<doc id="1" url="u" title="Q &amp; A">
Q &amp; A

5 &lt; 6 &amp; "so" on.
Heading.

</doc>
<doc id="2" url="u" title="Empty">
Empty

</doc>
<doc id="3" url="u" title="The "X" > Y">
The "X" > Y

Text. The title stands once more:
The "X" > Y
</doc>
<doc id="4" url="u" title="Unclosed">
Unclosed

Cut short
"""


def test_wikiextractor_output_loses_titles_and_entities_and_counts_empty_articles(tmp_path):
  documents, dropped = read(write(tmp_path / 'wiki_00', WIKI))
  assert documents == [
    ['5 < 6 & "so" on.', 'Heading.'],
    ['Text. The title stands once more:', 'The "X" > Y'],
    ['Cut short'],
  ]
  assert dropped == {'empty document': 1}


def test_one_pattern_may_hold_all_kinds_in_the_order_of_names(tmp_path):
  write(tmp_path / 'a.txt', 'plain')
  write(tmp_path / 'b.jsonl', '{"text": "json"}')
  write(tmp_path / 'c', gzip.compress(WIKI.encode()))
  assert [d[0] for d in read(f'{tmp_path}/*')[0]] == [
    'plain',
    'json',
    '5 < 6 & "so" on.',
    'Text. The title stands once more:',
    'Cut short',
  ]


def test_what_cannot_be_read_is_one_sentence(tmp_path):
  file = write(tmp_path / 'a.txt', 'text')
  with pytest.raises(errors.UserError, match='no file matches'):
    finding.find(f'{tmp_path}/*.md')
  with pytest.raises(errors.UserError, match=r'is a folder: write .*\*\*'):
    finding.find(str(tmp_path))
  with pytest.raises(errors.UserError, match="has no #fiel. Did you mean 'file'"):
    read(f'{file}#fiel')
  with pytest.raises(errors.UserError, match='WikiExtractor output, which has no #body'):
    read(f'{write(tmp_path / "w", WIKI)}#body')


def test_a_tensorflow_dataset_is_a_source(tmp_path):
  tf = pytest.importorskip('tensorflow')
  tfds = pytest.importorskip('tensorflow_datasets')
  texts = ['one\ntwo', '', 'naïve']
  features = tfds.features.FeaturesDict(
    {'title': tfds.features.Text(), 'text': tfds.features.Text()}
  )
  folder = tmp_path / 'mine' / '1.0.0'
  folder.mkdir(parents=True)
  name = str(folder / 'mine-train.tfrecord-00000-of-00001')
  with tf.io.TFRecordWriter(name) as f:
    for text in texts:
      f.write(features.serialize_example(features.encode_example(dict(title='t', text=text))))
  info = tfds.core.SplitInfo(name='train', shard_lengths=[3], num_bytes=os.path.getsize(name))
  tfds.folder_dataset.write_metadata(data_dir=str(folder), features=features, split_infos=[info])
  assert read(f'tfds:{folder}') == ([['one', 'two'], ['naïve']], {'empty document': 1})
  assert read(f'tfds:{folder}#title')[0] == [['t']] * 3
  assert read(f'2*tfds:{folder}')[0] == [['one', 'two'], ['naïve']] * 2
  assert wanted(f'tfds:{folder}', ('title', 't'))[0] == [['one', 'two'], ['naïve']]
  assert wanted(f'tfds:{folder}', ('title', 'u')) == ([], {'record whose title is not u': 3})
  with pytest.raises(errors.UserError, match="has no key 'titel', which --where asks for"):
    wanted(f'tfds:{folder}', ('titel', 't'))
  with pytest.raises(errors.UserError, match="has no key 'txt'.*text"):
    read(f'tfds:{folder}#txt')


@pytest.mark.parametrize(
  'option, body',
  [
    ('', 'aaaa\nbbbb\ncccc\ndddd'),
    ('#file', 'aaaa\n\nbbbb\ncccc\n\ndddd\n'),
    ('#wrapped', 'aaaa\n\nbbbb\n\ncccc\n\ndddd\n'),
    ('', '<doc id="1" url="u" title="t">\naaaa\nbbbb\ncccc\ndddd\n</doc>\n'),
  ],
)
def test_every_reader_cuts_before_the_line_that_would_exceed_the_bound(
  tmp_path, monkeypatch, option, body
):
  monkeypatch.setattr(sources, 'MAX_DOCUMENT', 10)
  file = write(tmp_path / 'a.txt', body)
  assert read(f'{file}{option}') == (
    [['aaaa', 'bbbb'], ['cccc', 'dddd']],
    {'document over 0 MiB cut in two (nothing lost)': 1},
  )


def test_the_bound_of_a_document_counts_bytes(tmp_path, monkeypatch):
  monkeypatch.setattr(sources, 'MAX_DOCUMENT', 10)
  assert read(write(tmp_path / 'a.txt', 'éé\néé\n\nééé\néé'))[0] == [['éé', 'éé'], ['ééé'], ['éé']]


def test_a_paragraph_over_the_bound_is_a_document_and_no_empty_one_follows(tmp_path, monkeypatch):
  monkeypatch.setattr(sources, 'MAX_DOCUMENT', 10)
  file = write(tmp_path / 'a.txt', 'a' * 30 + '\n')
  assert read(f'{file}#file') == ([['a' * 30]], {})
  words = write(tmp_path / 'b.txt', 'one two\nsix\nten of\n')
  # a paragraph is bounded like a document
  assert read(f'{words}#wrapped')[0] == [['one two'], ['six'], ['ten of']]


def test_an_odd_first_record_is_counted_not_the_end(tmp_path):
  write(tmp_path / 'a.jsonl', '{"id": 1, "error": "404"}\n{"text": "one"}\n')
  write(tmp_path / 'b.jsonl', '{"id": 2, "error": "404"}\n{"text": "two"}\n')
  assert read(f'{tmp_path}/*.jsonl') == (
    [['one'], ['two']],
    {"line without a text under 'text'": 2},
  )


def test_a_source_without_the_key_is_refused_after_a_thousand_records_or_at_its_end(tmp_path):
  write(tmp_path / 'a.jsonl', '{"id": 1}\n' * 999 + '{"text": "one"}\n')
  assert read(tmp_path / 'a.jsonl')[0] == [['one']]
  write(tmp_path / 'a.jsonl', '{"id": 1}\n' * 1000 + '{"text": "one"}\n')
  with pytest.raises(errors.UserError, match="a.jsonl has no key 'text'.*keys: id"):
    read(tmp_path / 'a.jsonl')
  (tmp_path / 'c').mkdir()
  files = [
    write(tmp_path / 'c' / 'a.jsonl', '{"id": 1}\n'),
    write(tmp_path / 'c' / 'b.jsonl', '{"url": "u"}\n'),
  ]
  with pytest.raises(
    errors.UserError, match="a.jsonl and others have no key 'text'.*keys: id, url"
  ):
    read(f'{tmp_path}/c/*')
  good = write(tmp_path / 'good.jsonl', '{"text": "good"}\n')
  # another source's records do not count
  with pytest.raises(errors.UserError, match="b.jsonl has no key 'text'"):
    read(good, files[1])


@pytest.mark.parametrize('name', ['a[1].txt', 'c#.txt', 'x#file', 'q?.txt'])
def test_a_file_that_is_there_is_found_under_its_own_name(tmp_path, name):
  file = write(tmp_path / name, 'one\n\ntwo')
  assert read(file)[0] == [['one'], ['two']]
  assert read(f'{file}#file')[0] == [['one', 'two']]


# --- weights ---


def test_documents_come_as_often_as_the_weight_says_a_reading_apart(tmp_path):
  file = write(tmp_path / 'a.txt', '\n\n'.join(map(str, range(1000))))
  reader = sources.Reader([finding.find(f'2.25*{file}')])
  copies = [(document[0], reader.copy) for document in reader.documents()]
  first = [d for d, copy in copies if copy == 0]
  assert first == [d for d, copy in copies if copy == 1] == list(map(str, range(1000)))
  assert 200 < len(copies) - 2000 < 300 and {copy for _, copy in copies} == {0, 1, 2}
  assert copies == sorted(copies, key=lambda c: (c[1], int(c[0])))
  assert reader.bytes_read == finding.find(f'2.25*{file}').bytes == 3 * file.stat().st_size
  assert not reader.dropped.reasons


def test_which_documents_a_fraction_takes_depends_on_their_text_alone(tmp_path):
  numbers = list(map(str, range(1000)))
  taken = [
    d[0]
    for d in read(f'0.25*{write(tmp_path / "a.txt", chr(10).join(n + chr(10) for n in numbers))}')[
      0
    ]
  ]
  rows = write(tmp_path / 'b.jsonl', '\n'.join(json.dumps(dict(text=n)) for n in reversed(numbers)))
  assert [d[0] for d in read(f'0.25*{rows}')[0]] == taken[::-1] and 200 < len(taken) < 300
  more = {d[0] for d in read(f'0.5*{rows}')[0]}
  assert set(taken) < more and {d[0] for d in read(f'1.5*{rows}')[0][1000:]} == more


def test_what_a_weight_leaves_out_is_counted_and_what_is_dropped_counts_once(tmp_path):
  file = write(
    tmp_path / 'a.jsonl', '\n'.join(json.dumps(dict(text=str(n))) for n in range(100)) + '\nno json'
  )
  documents, dropped = read(f'0.5*{file}')
  assert (
    dropped
    == {'line that is not JSON': 1, 'document that weight 0.5 leaves out': 100 - len(documents)}
    and 30 < len(documents) < 70
  )
  assert read(f'3*{file}')[1] == {'line that is not JSON': 1}


# --- filters and parquet ---

ROWS = [
  dict(text='eins', lang='de', n=1, ok=True, meta=dict(site='a')),
  dict(text='üks\nteine', lang='et', n=2, ok=False, meta=dict(site='b')),
  dict(text=None, lang='et', n=3, ok=None, meta=dict(site='b')),
  dict(text='kaks', lang='et', n=2, ok=True, meta=None),
  dict(text='', lang='fi', n=4),
]


def write_rows(path, kind, rows=ROWS, **options):
  if kind == 'jsonl':
    return write(path, '\n'.join(map(json.dumps, rows)))
  import pyarrow as pa
  from pyarrow import parquet

  parquet.write_table(pa.Table.from_pylist(rows), path, **options)
  return path


def wanted(name, *where):
  reader = sources.Reader([finding.find(str(name))], where)
  return list(reader.documents()), {
    reason: d['count'] for reason, d in reader.dropped.reasons.items()
  }


@pytest.mark.parametrize('kind', ['jsonl', 'parquet'])
def test_filters_keep_the_records_that_have_the_values(tmp_path, kind):
  file = write_rows(tmp_path / 'a', kind)
  what = dict(jsonl='line', parquet='row')[kind]
  assert wanted(file) == (
    [['eins'], ['üks', 'teine'], ['kaks']],
    {f"{what} without a text under 'text'": 1, 'empty document': 1},
  )
  assert wanted(file, ('lang', 'et'), ('n', '2')) == (
    [['üks', 'teine'], ['kaks']],
    {'record whose lang is not et': 2, 'record whose n is not 2': 1},
  )
  assert wanted(file, ('lang', 'de'), ('lang', 'fi'))[0] == [['eins']]  # either
  assert wanted(file, ('ok', 'true'))[0] == wanted(file, ('ok', 'True'))[0] == [['eins'], ['kaks']]
  assert wanted(file, ('meta.site', 'b')) == (
    [['üks', 'teine']],
    {f"{what} without a text under 'text'": 1, 'record whose meta.site is not b': 3},
  )
  assert wanted(file, ('lang', 'et'), ('lang', 'eT'))[0] == [['üks', 'teine'], ['kaks']]


@pytest.mark.parametrize('kind', ['jsonl', 'parquet'])
def test_a_key_that_no_record_has_is_told_with_the_keys_there_are(tmp_path, kind):
  file = write_rows(tmp_path / 'a', kind)
  with pytest.raises(
    errors.UserError,
    match="has no key 'language', which --where asks for.*Did you mean 'lang'.*text, lang, n, ok, "
    'meta',
  ):
    wanted(file, ('language', 'et'))
  with pytest.raises(
    errors.UserError, match="has no key 'txt': name the text with #KEY.*Did you mean 'text'"
  ):
    wanted(f'{file}#txt')


def test_filters_are_refused_where_documents_have_no_keys(tmp_path):
  with pytest.raises(
    errors.UserError,
    match='plain text, whose documents have no keys: --where lang=et is for JSON lines',
  ):
    wanted(write(tmp_path / 'a.txt', 'one'), ('lang', 'et'))
  with pytest.raises(errors.UserError, match='WikiExtractor output, whose documents have no keys'):
    wanted(write(tmp_path / 'a', WIKI), ('lang', 'et'))


@pytest.mark.parametrize(
  'options',
  [dict(row_group_size=2), dict(compression='zstd'), dict(data_page_size=10), dict(version='1.0')],
)
def test_parquet_is_read_row_by_row_whatever_its_layout(tmp_path, options):
  rows = [dict(n=n, body=f'text {n}\r\nof two') for n in range(3000)]
  file = write_rows(tmp_path / 'a', 'parquet', rows, **options)
  reader = sources.Reader([finding.find(f'{file}#body')])
  documents, bytes_read = [], []
  for document in reader.documents():
    documents.append(document)
    bytes_read.append(reader.bytes_read)
  assert documents == [[f'text {n}', 'of two'] for n in range(3000)]
  assert (
    bytes_read == sorted(bytes_read)
    and 0 < bytes_read[1500] < file.stat().st_size == reader.bytes_read
  )
  assert reader.place == f'{file}:3000'


def test_a_column_without_text_is_refused_with_the_columns_of_text(tmp_path):
  file = write_rows(tmp_path / 'a.parquet', 'parquet', [dict(id=1, title='t', body=b'bytes')])
  with pytest.raises(
    errors.UserError, match="column 'id' holds int64, no text. Columns of text: title, body"
  ):
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
  data = write_rows(
    tmp_path / 'b.parquet',
    'parquet',
    [dict(text=os.urandom(50).hex()) for _ in range(2000)],
    write_page_checksum=True,
  ).read_bytes()
  write_rows(tmp_path / 'c.parquet', 'parquet', [dict(text='end')])
  flipped = bytearray(data)
  flipped[len(data) // 2] ^= 255
  for damaged in (
    data[:-20],
    data[: len(data) // 2],
    data[:4],
    bytes(flipped),
    b'PAR1' + os.urandom(1000) + b'PAR1',
    data[:4] + data[5000:],
  ):
    write(tmp_path / 'b.parquet', damaged)
    documents, dropped = wanted(tmp_path / '*.parquet')
    assert documents[-1] == ['end'] and len(documents) <= 2001
    assert len(dropped) == 1 and 'rest of a damaged parquet file' in list(dropped)[0]


_PEAK = """if True:
  import re, sys
  from bertzoo_jax.text import finding, sources
  reader = sources.Reader([finding.find(sys.argv[1])])
  characters = sum(len(p) for document in reader.documents() for p in document)
  print(characters, dict(reader.dropped.reasons))
  print(int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) // 1024)"""


@pytest.mark.parametrize('kind', ['txt', 'zst', 'jsonl', 'parquet', 'xml'])
def test_ten_times_the_text_takes_the_same_memory(tmp_path, kind):
  # 6 MB
  peaks, documents = (
    [],
    ['\n'.join(os.urandom(100).hex() for _ in range(20)) for _ in range(1500)],
  )
  for times in (1, 10):
    file = tmp_path / f'{times}.{kind}'
    if kind == 'parquet':  # one row group
      write_rows(
        file,
        kind,
        [dict(text=d) for d in documents] * times,
        compression='none',
        use_dictionary=False,
      )
    else:
      form = dict(
        jsonl=lambda d: json.dumps(dict(text=d)) + '\n',
        xml=lambda d: f'<page><ns>0</ns><revision><text>{d}</text></revision></page>',
      )
      text = ''.join(map(form.get(kind, lambda d: d + '\n\n'), documents * times))
      write(
        file,
        zstandard.compress(text.encode())
        if kind == 'zst'
        else f'<mediawiki>{text}</mediawiki>'
        if kind == 'xml'
        else text,
      )
    out = subprocess.run(
      [sys.executable, '-c', _PEAK, str(file)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert out[0] == f'{6_000_000 * times} {{}}'
    peaks.append(int(out[1]))
  assert peaks[1] < peaks[0] + 40, f'{peaks} MB'
