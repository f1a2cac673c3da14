import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertzoo_jax.common import errors
from bertzoo_jax.words import lexicons
from bertzoo_jax.words import tries


def written(tmp_path, data):
  (tmp_path / 'l.txt').write_bytes(data)
  return lexicons.read(tmp_path / 'l.txt')


def test_a_lexicon_is_read_with_frequencies_comments_a_mark_and_any_line_ends(tmp_path):
  lines = '\ufeff北京\t1119506|# 城市|  清华大学  |美国 \t 12||New York\t3|北京'.split('|')
  text = '城市北京和New York、美国的清华大学'
  for end in ('\n', '\r\n', '\r'):
    lexicon = written(tmp_path, end.join(lines).encode())
    assert lexicon.facts['entries'] == 4 and lexicon.facts['file'] == 'l.txt'
    names = [text[a:b] for a, b in zip(*lexicon.find(text))]
    assert names == ['北京', 'New York', '美国', '清华大学']


def test_a_file_that_is_no_lexicon_is_refused_in_a_sentence(tmp_path):
  for name, data, sentence in (
    ('l.txt', b'# only\n\n', 'has no entries'),
    ('l.txt', '北京'.encode('gbk'), 'give a file in UTF-8 .Unicode'),
    ('missing.txt', b'', 'cannot be read'),
  ):
    (tmp_path / 'l.txt').write_bytes(data)
    with pytest.raises(errors.UserError, match=sentence):
      lexicons.read(tmp_path / name)


FOUND = [  # text; entries; those that are found
  ('北京大学生活动', '北京大|大学生活动|北京|大学', '北京|大学生活动'),
  ('甲乙丙', '甲乙|乙丙', '甲乙'),
  ('甲乙丙', '甲乙|乙丙|丙', '甲乙|丙'),
  ('哈哈哈哈哈', '哈哈', '哈哈|哈哈'),
  ('He saw New  York and Newark, not Yorkshire.', 'New York|York|new', 'New  York'),
  ('the art of arts', 'art', 'art'),
  ('café cafés', 'café', 'café'),
  ('T恤和卡拉OK', 'T恤|卡拉OK|OK', 'T恤|卡拉OK'),
  ('ประเทศไทย', 'ไทย', 'ไทย'),  # Thai parts no words by blanks
  ('The WHITE house, the White House', 'white house', 'WHITE house|White House'),
  ('US troops told us', 'US', 'US'),
  ('Us and us', 'us|US', 'Us|us'),
  ('New\nYork 北\n京', 'New York|北京', ''),
]


def test_entries_are_found_longest_first_on_borders_of_words_in_their_case_and_within_a_line():
  for text, entries, names in FOUND:
    spans = zip(*lexicons.Lexicon(entries.split('|')).find(text))
    assert '|'.join(text[a:b] for a, b in spans) == names
  lexicon = lexicons.Lexicon(['字' * 65, '字' * 64, ' ', ''])
  assert lexicon.facts == dict(entries=1, too_long=1)


@given(
  st.text('ab 甲乙丙\n', max_size=40),
  st.lists(st.text('ab 甲乙丙', min_size=1, max_size=5), max_size=8),
)
def test_found_entries_are_entries_that_do_not_overlap_and_leave_none_out(text, entries):
  lexicon = lexicons.Lexicon(entries)
  spans = list(zip(*(x.tolist() for x in lexicon.find(text))))
  key = lambda s: tuple(s[a:b] for a, b in zip(*(x.tolist() for x in lexicons._symbols(s))))
  known = {key(e) for e in entries} - {()}
  covered = set()
  for (a, b), (c, _) in zip(spans, spans[1:] + [(len(text), 0)]):
    assert a < b <= c and key(text[a:b]) in known
    covered |= set(range(a, b))
  begins, ends = (x.tolist() for x in lexicons._symbols(text))
  for i, a in enumerate(begins):
    for b in ends[i:]:
      if key(text[a:b]) in known:
        assert covered & set(range(a, b))


def test_finding_takes_linear_time_in_hostile_text():
  lexicon = lexicons.Lexicon(
    ['哈' * n for n in range(1, 65)] + ['哈' * 63 + '呵', '呵' + '哈' * 63]
  )

  def seconds(size: int) -> float:
    start = time.thread_time()  # what other processes take does not count
    begin, end = lexicon.find('哈' * size)
    taken = time.thread_time() - start
    assert int((end - begin).sum()) == size
    return taken

  # 32 times the text. The square of it would take 1,024 times as long; caches and a busy machine
  # make the long text up to four times as slow per character.
  few, many = (min(seconds(size) for _ in range(2)) for size in (10_000, 320_000))
  assert many < 256 * few


@given(
  st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=9),
  st.lists(st.integers(-1, 5), max_size=12),
  st.data(),
)
def test_a_trie_finds_the_prefixes_of_its_entries_within_what_is_inside(entries, symbols, data):
  size = len(symbols)
  inside = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
  trie, node = tries.build(np.array([e + [-1] * (4 - len(e)) for e in entries]), 4)
  walk = trie.walk(np.array(symbols, np.int64), np.array(inside, bool))
  found = {(at, n) for n, (places, _) in enumerate(walk, 1) for at in places.tolist()}
  prefixes = {tuple(e[:n]) for e in entries for n in range(1, len(e) + 1)}
  spans = [(a, b) for a in range(size) for b in range(a + 1, size + 1)]
  known = lambda a, b: tuple(symbols[a:b]) in prefixes and all(inside[a:b])
  assert found == {(a, b - a) for a, b in spans if known(a, b)}
  assert trie.size == len(prefixes)
  assert len(set(node.tolist())) == len(set(map(tuple, entries)))
