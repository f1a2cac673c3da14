import bz2
from xml.sax import saxutils

import pytest

from bertzoo_jax.common import errors
from bertzoo_jax.text import finding
from bertzoo_jax.text import mediawiki
from bertzoo_jax.text import sources
from tests.text import made

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="eo">
  <siteinfo><namespaces>
    <namespace key="0" case="first-letter" />
    <namespace key="1" case="first-letter">Diskuto</namespace>
    <namespace key="6" case="first-letter">Dosiero</namespace>
  </namespaces></siteinfo>
"""
XML = '\ufeff<?xml version="1.0" encoding="utf-8"?>\n<!-- made -->\n<mediawiki version="0.11">'


def page(text, title='T', ns='<ns>0</ns>', extra='', model='wikitext'):
  return f"""  <page>
    <title>{title}</title>{ns}<id>1</id>{extra}
    <revision><id>2</id><contributor><username>text</username></contributor><comment>[[no]]</comment><model>{model}</model>
      <text bytes="9" xml:space="preserve">{saxutils.escape(text)}</text></revision>
  </page>
"""


def read(path, data):
  reader = sources.Reader([finding.find(str(made.write(path, data)))])
  documents = list(reader.documents())
  return documents, {reason: d['count'] for reason, d in reader.dropped.reasons.items()}, reader


def test_articles_come_and_the_rest_is_counted(tmp_path):
  pages = [
    page('One & only.\n\n[[Dosiero:x.png|y]]\nTwo.'),
    page('talk', ns='<ns>1</ns>'),
    page('talk', 'Diskuto:T', ns=''),
    page('old: 1', 'Old: 1', ns=''),
    page('#REDIRECT [[T]]', extra='<redirect title="T" />'),
    page('#ALIDIREKTU [[T]]'),
    page('{}', model='json'),
    page('{{stub}}'),
  ]
  documents, dropped, _ = read(tmp_path / 'a.xml', f'{HEAD}{"".join(pages)}</mediawiki>\n')
  assert documents == [['One & only.', 'Two.'], ['old: 1']]
  assert dropped == {
    'page outside the namespace of articles': 2,
    'page that only redirects': 2,
    'page that is not wikitext': 1,
    'empty document': 1,
  }


def test_dumps_are_known_by_content_packed_or_not(tmp_path):
  for head, end in (('<mediawiki>', '\n'), (XML, '\n'), (XML, '\r\n'), (XML, '\r')):
    dump = (f'{head}\n{page("a")}{page("b")}</mediawiki>').replace('\n', end).encode()
    half = len(dump) // 2
    # the last is a multistream dump
    for data in (dump, bz2.compress(dump), bz2.compress(dump[:half]) + bz2.compress(dump[half:])):
      assert read(tmp_path / 'a', data)[:2] == ([['a'], ['b']], {})


def test_a_cut_or_damaged_dump_gives_what_it_holds_and_is_counted(tmp_path):
  dump = f'{HEAD}{page("a")}{page("b")}</mediawiki>'
  damaged = dump.replace('<title>T</title>', '<title>T</titel>')
  for data, documents in ((dump[:-30], 1), (dump[:-12], 2), (damaged, 0), (dump + dump, 2)):
    got, dropped, _ = read(tmp_path / 'a', data)
    assert len(got) == documents and len(dropped) == 1
    assert 'rest of a damaged XML file' in list(dropped)[0]


def test_bytes_that_xml_cannot_hold_cost_their_line_only(tmp_path):
  bad = b'one\n\xff\xfe two\nthree\nfo\x01ur\nfive'
  dump = f'{HEAD}{page("good")}{page("BAD")}{page("last é")}</mediawiki>'.encode()
  documents, dropped, reader = read(tmp_path / 'a.xml', dump.replace(b'BAD', bad))
  assert documents == [['good'], ['one', 'three', 'five'], ['last é']]
  assert dropped == {'line not in UTF-8': 2}
  assert reader.dropped.reasons['line not in UTF-8']['first'].startswith(f'{tmp_path}/a.xml:')
  control = f'{HEAD}{page("BAD")}</mediawiki>'.replace('BAD', 'one\n\1')
  assert read(tmp_path / 'b.xml', control)[:2] == ([['one']], {'line not in UTF-8': 1})


def test_of_many_revisions_the_last_counts_and_keys_and_filters_are_refused(tmp_path):
  more = '</revision><revision><id>3</id><text>new</text></revision>'
  dump = f'{HEAD}{page("old").replace("</revision>", more)}</mediawiki>'
  assert read(tmp_path / 'a.xml', dump)[0] == [['new']]
  for option, where, words in (
    ('#file', (), 'a MediaWiki dump, which has no #file'),
    ('', (('lang', 'et'),), 'a MediaWiki dump, whose documents have no keys'),
  ):
    with pytest.raises(errors.UserError, match=words):
      made.read(f'{tmp_path}/a.xml{option}', where=where)


def test_declared_entities_are_no_bomb():
  bomb = '<!DOCTYPE m [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>'
  with pytest.raises(mediawiki.Damaged, match='declares entities'):
    list(mediawiki.pages([f'{bomb}<mediawiki>{page("x")}</mediawiki>'.encode()], set()))


def test_pages_do_not_depend_on_where_a_block_ends():
  dump = f'{HEAD}{page("é字 [[a]]")}{page("b &amp; c")}</mediawiki>'.encode()
  cut = lambda size: [dump[i : i + size] for i in range(0, len(dump), size)]
  pages = lambda size: list(mediawiki.pages(cut(size), set()))
  assert all(pages(size) == pages(len(dump)) for size in (1, 7, 64))


@pytest.mark.parametrize('line_end', ['', '\n'])
def test_a_page_of_50_megabytes_is_left_out_in_bounded_memory(tmp_path, line_end):
  page = '<page><ns>0</ns><revision><text>{}</text></revision></page>'.format
  large = ('word [[a]] {{t}} ' * 10 + line_end) * 325_000
  pages = ''.join(map(page, ('small', large, 'last')))
  file = made.write(tmp_path / 'a.xml', f'<mediawiki>{pages}</mediawiki>')
  characters, dropped, peak = made.peak(file)
  [(reason, lost)] = dropped.items()
  assert characters == len('smalllast') and 'page over 16 MiB' in reason and lost['bytes'] > 5e7
  assert peak < 110, f'{peak} MB of memory for a page of 50 MB'
