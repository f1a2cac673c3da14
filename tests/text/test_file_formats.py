import gzip
import io
import json
import re
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from bertzoo_jax.common import errors
from bertzoo_jax.text import finding
from bertzoo_jax.text import formats
from bertzoo_jax.text import sources
from bertzoo_jax.text import unpacking
from tests.text import made

WRAPPED = '\ufeffIt was the best\r\nof times.\r\n\r\nIt was the worst\r\n  of times.\r\n'


@pytest.mark.parametrize(
  'data, option, documents, dropped',
  [
    ('\n\n one\ntwo\n \t\n\nthree', '', [['one', 'two'], ['three']], {}),
    ('one\n\ntwo\n', '#file', [['one', 'two']], {}),
    (WRAPPED, '#wrapped', [['It was the best of times.', 'It was the worst of times.']], {}),
    *(
      ('\ufeff' + end.join(['a', 'b', '', 'c', '']), '', [['a', 'b'], ['c']], {})
      for end in ('\n', '\r\n', '\r')
    ),
    ('[Music]\nLa la.', '', [['[Music]', 'La la.']], {}),
    ('漢字'.encode('utf-16'), '', [], {'file in UTF-16 or UTF-32, not UTF-8': 1}),
  ],
)
def test_lines_are_paragraphs_and_blank_lines_part_documents(
  tmp_path, data, option, documents, dropped
):
  file = made.write(tmp_path / 'a.txt', data)
  assert made.read(f'{file}{option}') == (documents, dropped)


PIECES = st.sampled_from(['a', 'é', '\r', '\n', '\r\n', '\u2028', ' '])


@given(st.lists(PIECES, max_size=40).map(''.join), st.integers(1, 7))
@settings(max_examples=100, deadline=None)
def test_lines_do_not_depend_on_where_a_block_ends(text, block):
  counted = []
  opened = formats.File('a.txt', add=lambda *what: counted.append(what))
  with mock.patch.object(unpacking, 'BLOCK', block):
    lines = list(formats._lines(opened, formats._blocks(opened, io.BytesIO(text.encode()), b'')))
  expected = re.split('\r\n|\r|\n', text)
  assert lines == (expected if expected[-1] else expected[:-1])
  assert not counted


def test_bad_lines_are_dropped_counted_and_located(tmp_path):
  content = b'good\nbad \xff\xfe\nnul \0 here\n\n\xed\xa0\x80\n\nlast \xc3\xa9'
  file = made.write(tmp_path / 'a.txt', content)
  reader = sources.Reader([finding.find(str(file))])
  assert list(reader.documents()) == [['good'], ['last é']]
  assert reader.dropped.reasons['line not in UTF-8'] == dict(count=2, bytes=9, first=f'{file}:2')
  assert reader.dropped.reasons['line with a NUL'] == dict(count=1, bytes=10, first=f'{file}:3')


@pytest.mark.parametrize('block', [3, 16, 64])
def test_an_over_long_line_is_dropped_and_its_neighbours_stay(tmp_path, monkeypatch, block):
  monkeypatch.setattr(formats, 'MAX_LINE', 20)
  monkeypatch.setattr(unpacking, 'BLOCK', block)
  lines = 'a', 'x' * 20, 'y' * 21, 'b', 'z' * 50, 'c', 'w' * 99
  reader = sources.Reader([finding.find(str(made.write(tmp_path / 'a.txt', '\n'.join(lines))))])
  assert list(reader.documents()) == [['a', 'x' * 20, 'b', 'c']]
  [(reason, lost)] = reader.dropped.reasons.items()
  assert (reason, lost['count'], lost['bytes']) == ('line over 0 MiB', 3, 170)


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
  documents, dropped = made.read(made.write(tmp_path / 'wiki_00', WIKI))
  second = ['Text. The title stands once more:', 'The "X" > Y']
  assert documents == [['5 < 6 & "so" on.', 'Heading.'], second, ['Cut short']]
  assert dropped == {'empty document': 1}


def test_one_pattern_may_hold_all_kinds_in_the_order_of_names(tmp_path):
  made.write(tmp_path / 'a.txt', 'plain')
  made.write(tmp_path / 'b.jsonl', '{"text": "json"}')
  made.write(tmp_path / 'c', gzip.compress(WIKI.encode()))
  firsts = [d[0][:9] for d in made.read(f'{tmp_path}/*')[0]]
  assert firsts == ['plain', 'json', '5 < 6 & "', 'Text. The', 'Cut short']


ET = [('lang', 'et')]
UNREADABLE = [
  ('*.md', (), 'no file matches'),
  ('', (), r'is a folder: write .*\*\*'),
  ('a.txt#fiel', (), "has no #fiel. Did you mean 'file'"),
  ('w#body', (), 'WikiExtractor output, which has no #body'),
  ('a.txt', ET, 'plain text, whose documents have no keys: --where lang=et is for JSON lines'),
  ('w', ET, 'WikiExtractor output, whose documents have no keys'),
]


def test_an_unreadable_source_is_one_sentence(tmp_path):
  made.write(tmp_path / 'a.txt', 'text')
  made.write(tmp_path / 'w', WIKI)
  for name, where, words in UNREADABLE:
    with pytest.raises(errors.UserError, match=words):
      made.read(f'{tmp_path}/{name}'.rstrip('/'), where=where)


def test_every_reader_cuts_before_the_line_that_would_exceed_the_bound(tmp_path, monkeypatch):
  monkeypatch.setattr(formats, 'MAX_DOCUMENT', 10)
  dropped = {'document over 0 MiB cut in two (nothing lost)': 1}
  for option, body in (
    ('', 'aaaa\nbbbb\ncccc\ndddd'),
    ('#file', 'aaaa\n\nbbbb\ncccc\n\ndddd\n'),
    ('#wrapped', 'aaaa\n\nbbbb\n\ncccc\n\ndddd\n'),
    ('', '<doc id="1" url="u" title="t">\naaaa\nbbbb\ncccc\ndddd\n</doc>\n'),
    ('', json.dumps(dict(text='aaaa\nbbbb\ncccc\ndddd'))),
  ):
    file = made.write(tmp_path / 'a.jsonl' if body[0] == '{' else tmp_path / 'a.txt', body)
    assert made.read(f'{file}{option}') == ([['aaaa', 'bbbb'], ['cccc', 'dddd']], dropped)


@pytest.mark.parametrize(
  'data, option, documents',
  [
    ('éé\néé\n\nééé\néé', '', [['éé', 'éé'], ['ééé'], ['éé']]),  # the bound counts bytes
    ('a' * 30 + '\n', '#file', [['a' * 30]]),  # no empty document follows
    ('one two\nsix\nten of\n', '#wrapped', [['one two'], ['six'], ['ten of']]),  # of paragraphs too
  ],
)
def test_a_paragraph_over_the_bound_is_a_document(tmp_path, monkeypatch, data, option, documents):
  monkeypatch.setattr(formats, 'MAX_DOCUMENT', 10)
  assert made.read(f'{made.write(tmp_path / "a.txt", data)}{option}')[0] == documents


@pytest.mark.parametrize('name', ['a[1].txt', 'c#.txt', 'x#file', 'q?.txt'])
def test_a_file_that_is_there_is_found_under_its_own_name(tmp_path, name):
  file = made.write(tmp_path / name, 'one\n\ntwo')
  assert made.read(file)[0] == [['one'], ['two']]
  assert made.read(f'{file}#file')[0] == [['one', 'two']]
