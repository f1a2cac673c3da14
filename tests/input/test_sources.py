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
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from bertzoo_jax import errors
from bertzoo_jax.input import finding
from bertzoo_jax.input import sources


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
  file = write(tmp_path / 'a.txt', '\ufeffIt was the best\r\nof times.\r\n\r\nIt was the worst\r\n  of times.\r\n')
  assert read(f'{file}#wrapped') == ([['It was the best of times.', 'It was the worst of times.']], {})


@pytest.mark.parametrize('end', ['\n', '\r\n', '\r'])
def test_every_line_end_is_one_and_a_byte_order_mark_is_none_of_the_text(tmp_path, end):
  file = write(tmp_path / 'a.txt', '\ufeff' + end.join(['a', 'b', '', 'c', '']))
  assert read(file) == ([['a', 'b'], ['c']], {})


@given(st.lists(st.sampled_from(['a', 'é', '\r', '\n', '\r\n', '\u2028', ' ']), max_size=40), st.integers(1, 7))
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


@pytest.mark.parametrize('pack', [gzip.compress, bz2.compress, lzma.compress])
def test_packed_files_are_known_by_content_not_by_name(tmp_path, pack):
  assert read(write(tmp_path / 'a', pack('one\n\ntwo'.encode()))) == ([['one'], ['two']], {})


def test_a_cut_gzip_gives_what_it_holds_and_is_counted(tmp_path):
  data = gzip.compress(os.urandom(3000).hex().encode() + b'\n\nend')
  documents, dropped = read(write(tmp_path / 'a.gz', data[:-20]))
  assert dropped == {'rest of a damaged packed file (EOFError)': 1}
  assert len(documents) <= 1


def test_bad_lines_are_dropped_counted_and_located(tmp_path):
  file = write(tmp_path / 'a.txt', b'good\nbad \xff\xfe\nnul \0 here\n\n\xed\xa0\x80\n\nlast \xc3\xa9')
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
  file = write(tmp_path / 'a.txt', 'a\n' + 'x' * 20 + '\n' + 'y' * 21 + '\nb\n' + 'z' * 50 + '\nc\n' + 'w' * 99)
  reader = sources.Reader([finding.find(str(file))])
  assert list(reader.documents()) == [['a', 'x' * 20, 'b', 'c']]
  assert reader.dropped.reasons == {'line over 0 MiB': dict(count=3, bytes=170, first=reader.dropped.reasons['line over 0 MiB']['first'])}


def test_a_gigabyte_in_one_line_is_read_in_bounded_memory(tmp_path):
  member = gzip.compress(b'a' * (1 << 24), 1)
  with (tmp_path / 'a.txt.gz').open('wb') as f:
    f.write(gzip.compress(b'before\n') + member * 64 + gzip.compress(b'\nafter'))
  # VmHWM starts anew with a program; ru_maxrss is inherited from the parent, here a test worker of gigabytes.
  code = ('import re, sys; from bertzoo_jax.input import finding, sources\n'
          'r = sources.Reader([finding.find(sys.argv[1])]); print(list(r.documents()), r.dropped.reasons)\n'
          'print(int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024)')
  out = subprocess.run([sys.executable, '-c', code, str(tmp_path / 'a.txt.gz')], capture_output=True, text=True, check=True).stdout.splitlines()
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
  rows = [dict(body='one\ntwo\r\n\nthree', text='no'), dict(body=''), dict(body=None), dict(text='x'), dict(body='nul \0'), dict(body='last')]
  file = write(tmp_path / 'a.jsonl', '\n'.join(map(json.dumps, rows)) + '\n{"body": \n[1]\n\n')
  documents, dropped = read(f'{file}#body')
  assert documents == [['one', 'two', 'three'], ['last']]
  assert dropped == {'empty document': 1, "line without a text under 'body'": 3, 'text with a NUL': 1, 'line that is not JSON': 1}


def test_json_is_known_by_content_too(tmp_path):
  assert read(write(tmp_path / 'wiki_00', '{"id": 1, "text": "one"}\n')) == ([['one']], {})


def test_an_unknown_text_key_is_refused_with_the_keys_there_are(tmp_path):
  file = write(tmp_path / 'a.jsonl', '{"id": 1, "content": "x"}\n')
  with pytest.raises(errors.UserError, match="no key 'contents'.*Did you mean 'content'.*id, content"):
    read(f'{file}#contents')


WIKI = '''<doc id="1" url="u" title="Q &amp; A">
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
'''


def test_wikiextractor_output_loses_titles_and_entities_and_counts_empty_articles(tmp_path):
  documents, dropped = read(write(tmp_path / 'wiki_00', WIKI))
  assert documents == [['5 < 6 & "so" on.', 'Heading.'], ['Text. The title stands once more:', 'The "X" > Y'], ['Cut short']]
  assert dropped == {'empty document': 1}


def test_one_pattern_may_hold_all_kinds_in_the_order_of_names(tmp_path):
  write(tmp_path / 'a.txt', 'plain')
  write(tmp_path / 'b.jsonl', '{"text": "json"}')
  write(tmp_path / 'c', gzip.compress(WIKI.encode()))
  assert [d[0] for d in read(f'{tmp_path}/*')[0]] == ['plain', 'json', '5 < 6 & "so" on.', 'Text. The title stands once more:', 'Cut short']


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
  features = tfds.features.FeaturesDict({'title': tfds.features.Text(), 'text': tfds.features.Text()})
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
  with pytest.raises(errors.UserError, match="has no key 'txt'.*text"):
    read(f'tfds:{folder}#txt')


@pytest.mark.parametrize('option, body', [('', 'aaaa\nbbbb\ncccc\ndddd'), ('#file', 'aaaa\n\nbbbb\ncccc\n\ndddd\n'),
                                          ('#wrapped', 'aaaa\n\nbbbb\n\ncccc\n\ndddd\n'),
                                          ('', '<doc id="1" url="u" title="t">\naaaa\nbbbb\ncccc\ndddd\n</doc>\n')])
def test_every_reader_cuts_before_the_line_that_would_exceed_the_bound(tmp_path, monkeypatch, option, body):
  monkeypatch.setattr(sources, 'MAX_DOCUMENT', 10)
  file = write(tmp_path / 'a.txt', body)
  assert read(f'{file}{option}') == ([['aaaa', 'bbbb'], ['cccc', 'dddd']], {'document over 0 MiB cut in two (nothing lost)': 1})


def test_the_bound_of_a_document_counts_bytes(tmp_path, monkeypatch):
  monkeypatch.setattr(sources, 'MAX_DOCUMENT', 10)
  assert read(write(tmp_path / 'a.txt', 'éé\néé\n\nééé\néé'))[0] == [['éé', 'éé'], ['ééé'], ['éé']]


def test_a_paragraph_over_the_bound_is_a_document_and_no_empty_one_follows(tmp_path, monkeypatch):
  monkeypatch.setattr(sources, 'MAX_DOCUMENT', 10)
  file = write(tmp_path / 'a.txt', 'a' * 30 + '\n')
  assert read(f'{file}#file') == ([['a' * 30]], {})
  words = write(tmp_path / 'b.txt', 'one two\nsix\nten of\n')
  assert read(f'{words}#wrapped')[0] == [['one two'], ['six'], ['ten of']]  # a paragraph is bounded like a document


def test_an_odd_first_record_is_counted_not_the_end(tmp_path):
  write(tmp_path / 'a.jsonl', '{"id": 1, "error": "404"}\n{"text": "one"}\n')
  write(tmp_path / 'b.jsonl', '{"id": 2, "error": "404"}\n{"text": "two"}\n')
  assert read(f'{tmp_path}/*.jsonl') == ([['one'], ['two']], {"line without a text under 'text'": 2})


def test_a_source_without_the_key_is_refused_after_a_thousand_records_or_at_its_end(tmp_path):
  write(tmp_path / 'a.jsonl', '{"id": 1}\n' * 999 + '{"text": "one"}\n')
  assert read(tmp_path / 'a.jsonl')[0] == [['one']]
  write(tmp_path / 'a.jsonl', '{"id": 1}\n' * 1000 + '{"text": "one"}\n')
  with pytest.raises(errors.UserError, match="a.jsonl has no key 'text'.*keys: id"):
    read(tmp_path / 'a.jsonl')
  (tmp_path / 'c').mkdir()
  files = [write(tmp_path / 'c' / 'a.jsonl', '{"id": 1}\n'), write(tmp_path / 'c' / 'b.jsonl', '{"url": "u"}\n')]
  with pytest.raises(errors.UserError, match="a.jsonl and others have no key 'text'.*keys: id, url"):
    read(f'{tmp_path}/c/*')
  good = write(tmp_path / 'good.jsonl', '{"text": "good"}\n')
  with pytest.raises(errors.UserError, match="b.jsonl has no key 'text'"):  # another source's records do not count
    read(good, files[1])


@pytest.mark.parametrize('name', ['a[1].txt', 'c#.txt', 'x#file', 'q?.txt'])
def test_a_file_that_is_there_is_found_under_its_own_name(tmp_path, name):
  file = write(tmp_path / name, 'one\n\ntwo')
  assert read(file)[0] == [['one'], ['two']]
  assert read(f'{file}#file')[0] == [['one', 'two']]
