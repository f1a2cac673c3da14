"""Sentence splitters: what ends a sentence, and what only looks like an end. `|` marks the splits wanted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertzoo_jax import errors
from bertzoo_jax.input import sentences

ENGLISH = [
    'One here.|Two there!|Three? |Four…|Five',
    'Mr. Holmes met Dr. Watson and Mrs. Hudson at St. Paul.|They left.',
    'J. R. R. Tolkien wrote it.|So did C. S. Lewis.',
    'It cost 3.50 dollars, i.e. too much.|See Fig. 3 and pp. 4 to 5.',
    'Is there no. 7? |No.|There is none.',
    'He came on Jan. 5 at 5 p.m.|The U.S. Army was there.',
    '“What?” he said.|“Nothing.”|She went.',
    '"Stop!"|"Why?"',
    'He left (it was late.)|Nobody saw.',
    'So did I.|He went, with Henry I. Beauclerk.',
    '1. The first point.|2. The second.',
    'Wait... what?|Well...|No.',
    'Apples, pears etc. are fruit.|See www.example.org for more.',
    'nothing to split',
    'The end.   ',
]
CHINESE = [
    '天地玄黄。|宇宙洪荒！|日月？|辰宿；|列张',
    '他说：“好。”|然后走了……|“真的吗？！”|是。',
    '价格是3.5元。|（完。）|「是！」|』',
    '没有句号',
]


@pytest.mark.parametrize('text', ENGLISH)
def test_english_ends_where_a_sentence_ends(text):
  wanted = [s.strip() for s in text.split('|')]
  assert sentences.english(' '.join(wanted)) == wanted


@pytest.mark.parametrize('text', CHINESE)
def test_chinese_ends_behind_the_stop_and_its_quotes(text):
  wanted = text.split('|')
  if wanted[-1] == '』':
    wanted = [*wanted[:-2], wanted[-2] + wanted[-1]]
  assert sentences.chinese(''.join(wanted)) == wanted


@given(st.text(st.sampled_from('aB1 .!?…"”’()。！；」\u3000\xa0'), max_size=40))
def test_splitting_loses_nothing_but_blanks(text):
  for split, _ in sentences.BY_NAME.values():
    parts = split(text)
    assert ''.join(''.join(parts).split()) == ''.join(text.split())
    assert all(p and p == p.strip() for p in parts)


def test_a_long_paragraph_is_split_in_linear_time():
  import time
  start = time.monotonic()
  for hard in ('a' * 2_000_000, '. ' * 500_000, '.' * 1_000_000, 'x' * 1000 + '. A' * 300_000, '"' * 1_000_000, '((((.' * 200_000):
    for split, _ in sentences.BY_NAME.values():
      split(hard)
  assert time.monotonic() - start < 30


def test_an_unknown_splitter_is_refused():
  with pytest.raises(errors.UserError, match="No sentence splitter is called 'rules:fr'"):
    sentences.splitter('rules:fr')
