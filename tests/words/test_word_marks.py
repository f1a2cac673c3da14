import pickle
import re
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from bertzoo_jax import parts
from bertzoo_jax.batches import pipeline
from bertzoo_jax.common import errors
from bertzoo_jax.corpus import corpus as corpora
from bertzoo_jax.words import word_marks

PIECES = {}
STARTS = np.zeros(5000, bool)


def toy(text, size=3, joined=()):
  """(ids, starts, ends): Han characters alone or as `joined`, Latin words in pieces of `size`
  letters, blanks no token.
  """
  out = []
  pattern = '|'.join([*map(re.escape, joined), r'[^\W_\u4e00-\u9fff]+', r'\S'])
  for word in re.finditer(pattern, text):
    step = len(word.group()) if word.group() in joined else size
    for a in range(word.start(), word.end(), step):
      b = min(a + step, word.end())
      piece = ('' if a == word.start() else '##') + text[a:b]
      out.append((PIECES.setdefault(piece, len(PIECES)), a, b))
      STARTS[PIECES[piece]] = a == word.start()
  return tuple(np.array(x, np.int32) for x in zip(*out)) if out else (np.zeros(0, np.int32),) * 3


def marker(words='pieces', phrases=None, entities=None, tmp_path=None, **choices):
  files = {}
  for field, entries in (('phrases', phrases), ('entities', entities)):
    if entries:
      files[field] = tmp_path / f'{field}.txt'
      files[field].write_text('\n'.join(entries), encoding='utf-8')
  choices |= dict.fromkeys(files, 'lexicon')
  return word_marks.marker(parts.corpus(words=words, **choices), STARTS, **files)


def shown(marker, text, **toy_options):
  """Units of a sentence as text: | parts words, ( ) are around phrases, [ ] around entities."""
  clean = marker.clean(text)
  encoded = toy(clean, **toy_options)
  marks, bad = marker.mark([text], [encoded])
  out, previous = '', 0
  for (_, a, b), mark in zip(zip(*encoded), [*marks[0].tolist()]):
    for sign, within, continues in ((']', 16, 4), (')', 8, 2)):
      out += sign if previous & within and not mark & continues else ''
    out += '' if mark & 1 else '|'
    for sign, within, continues in (('(', 8, 2), ('[', 16, 4)):
      out += sign if mark & within and not mark & continues else ''
    out, previous = out + clean[a:b], mark
  return out + (']' if previous & 16 else '') + (')' if previous & 8 else ''), bad


def test_blanks_part_words_and_vanish_between_chinese_characters():
  m, text = marker('blanks'), '我 来到 北京 ， OK 2015 年 in New York'
  assert m.clean(text) == '我来到北京， OK 2015 年 in New York'
  assert shown(m, text) == ('|我|来到|北京|，|OK|2015|年|in|New|York', 0)
  for before, after in ((' 中 国 ', ' 中国 '), ('', ''), ('中\u3000国', '中\u3000国')):
    assert m.clean(before) == after


@given(st.lists(st.text('甲乙丙丁', min_size=1, max_size=4), min_size=1, max_size=12))
def test_words_between_blanks_are_the_words_that_are_marked(given_words):
  assert shown(marker('blanks'), ' '.join(given_words)) == ('|' + '|'.join(given_words), 0)


def test_pieces_of_a_latin_word_stay_together_whatever_the_segmenter_says():
  pytest.importorskip('jieba', reason='jieba is not installed')
  m = marker('jieba')
  assert shown(m, '我来到北京清华大学') == ('|我|来到|北京|清华大学', 0)
  assert shown(m, 'unaffable iPhone6s，卡拉和T恤') == ('|unaffable|iPhone6s|，|卡拉|和|T恤', 0)
  assert shown(m, '在café和naïveté里') == ('|在|café|和|naïveté|里', 0)
  assert m.facts['segmenter'] == 'jieba'
  assert m.facts['segmenter_version']
  assert len(m.facts['segmenter_dictionary']) == 64


def test_a_border_inside_a_token_leaves_the_words_it_touches_to_the_tokenizer():
  m = marker('blanks')
  assert shown(m, '甲乙 丙丁 戊己', joined=['乙丙']) == ('|甲|乙丙|丁|戊己', 1)
  assert shown(m, '甲乙 丙丁 戊己', joined=['甲乙']) == ('|甲乙|丙丁|戊己', 0)
  assert shown(m, '甲 乙 丙 丁', joined=['甲乙丙丁']) == ('|甲乙丙丁', 1)
  texts = ['甲乙 丙丁', '戊己 庚', '甲乙 丙丁']
  assert m.mark(texts, [toy(m.clean(t), joined=['乙丙']) for t in texts])[1] == 2


@pytest.mark.parametrize(
  'text, begins, ends, marks',
  [
    ('甲 乙', [0, 0, 0, 1, 1], [1, 1, 1, 2, 2], [0, 1, 1, 0, 1]),  # as byte-level BPE says it
    ('甲 乙', [0, 0, 0, 1, 1], [0, 0, 1, 1, 2], [0, 1, 1, 0, 1]),  # as SentencePiece does
    (' 甲 乙', [0, 1, 2], [1, 2, 3], [0, 1, 0]),  # a token of a blank belongs to what follows
  ],
)
def test_bytes_of_one_character_are_one_unit(text, begins, ends, marks):
  ids = np.array([toy('甲')[0][0]] * len(begins), np.int32)
  assert marker('blanks').mark([text], [(ids, begins, ends)])[0][0].tolist() == marks


def test_phrases_and_entities_consist_of_whole_words(tmp_path):
  m = marker('blanks', ['甲乙 丙', '戊'], ['乙丙'], tmp_path)
  assert shown(m, '甲乙 丙丁 戊') == ('|(甲|[乙|丙])|丁|(戊)', 0)
  m = marker('pieces', ['甲乙'], None, tmp_path)  # a border in a token
  assert shown(m, '甲乙丙甲乙', joined=['乙丙']) == ('|甲|乙丙|(甲|乙)', 1)
  m = marker('pieces', ['white house', 'New York City'], ['York', 'New York City'], tmp_path)
  assert shown(m, 'The White House in New York City, not in York or Yorkshire') == (
    '|The|(White|House)|in|([New|York|City])|,|not|in|[York]|or|Yorkshire',
    0,
  )
  assert m.facts['phrase_lexicon']['entries'] == 2
  assert m.facts['entity_lexicon']['file'] == 'entities.txt'


def test_a_sentence_begins_a_word_whatever_its_first_piece_says(tmp_path):
  ids, starts, ends = toy('abcdef')  # abc ##def
  encoded = ids[1:], starts[1:] - 3, ends[1:] - 3
  marks, _ = marker('pieces', ['x'], None, tmp_path).mark(['def', 'def'], [encoded] * 2)
  assert [x.tolist() for x in marks] == [[0], [0]]


def test_jieba_finds_phrases_and_entities_by_parts_of_speech():
  pytest.importorskip('jieba', reason='jieba is not installed')
  m = word_marks.marker(parts.corpus(words='jieba', phrases='jieba', entities='jieba'), STARTS)
  assert shown(m, '我来到北京清华大学学习。') == ('|我|来到|([北京]|[清华大学])|学习|。', 0)
  assert m.facts['segmenter'] == 'jieba.posseg'
  long = shown(m, '新型冠状病毒肺炎疫情防控工作领导小组办公室')[0]
  assert all(phrase.count('|') <= 3 for phrase in re.findall(r'\(([^)]*)\)', long)) and '(' in long
  pieces = word_marks.marker(parts.corpus(words='pieces', entities='jieba'), STARTS)
  assert shown(pieces, '在北京') == ('|在|[北|京]', 0)


@pytest.mark.parametrize('words', ['blanks', 'jieba'])
@settings(max_examples=25, deadline=None)
@given(
  texts=st.lists(st.text('甲乙丙中国人北京 ，。ab1', max_size=15), max_size=5),
  joined=st.lists(st.text('甲乙丙中国', min_size=2, max_size=3), max_size=2),
)
def test_marks_are_consistent_and_those_of_each_sentence_alone(
  tmp_path_factory, words, texts, joined
):
  pytest.importorskip('jieba', reason='jieba is not installed')
  m = marker(
    words, ['甲乙', '中国人', '人北', 'ab'], ['国人', '乙丙丙'], tmp_path_factory.mktemp('lexicon')
  )
  encoded = [toy(m.clean(t), joined=joined) for t in texts]
  marks, bad = m.mark(texts, encoded)
  alone = [m.mark([t], [e]) for t, e in zip(texts, encoded)]
  assert [x.tolist() for x in marks] == [a[0][0].tolist() for a in alone]
  assert bad == sum(a[1] for a in alone)
  for mark, (ids, _, _) in zip(marks, encoded):
    assert mark.dtype == np.uint8 and mark.shape == ids.shape
    assert not len(mark) or not mark[0] & 7
    for within, continues in ((8, 2), (16, 4)):
      inside, more = mark & within > 0, mark & continues > 0
      assert not (more & ~inside).any() and not (more[1:] & ~inside[:-1]).any()
      begins = (inside & ~more) | np.concatenate([[False], inside[:-1] & ~inside[1:]])[: len(mark)]
      assert not (mark[begins] & 1).any()  # a phrase begins and ends where a word does


def test_a_marker_travels_to_workers_marks_the_same_and_empty_text_has_no_marks(tmp_path):
  m = marker('blanks', ['甲乙'], None, tmp_path)
  other = pickle.loads(pickle.dumps(m))
  assert shown(other, '甲乙 丙') == shown(m, '甲乙 丙') and other.facts == m.facts
  m = marker('blanks')
  assert m.mark([], []) == ([], 0)
  marks, bad = m.mark(['', ' '], [toy(''), toy('')])
  assert [len(x) for x in marks] == [0, 0] and bad == 0
  assert marker() is None


def test_choices_and_files_that_do_not_fit_are_said():
  for fields, files, sentence in (
    (dict(phrases='lexicon'), {}, '--phrases=FILE'),
    (dict(entities='lexicon'), {}, '--entities=FILE'),
    (dict(), dict(phrases='x.txt'), 'is not read'),
  ):
    with pytest.raises(errors.UserError, match=sentence):
      word_marks.marker(parts.corpus(**fields), STARTS, **files)


def test_units_of_several_tokens_are_counted():
  marks = np.array([0, 1, 8, 10, 8 | 16, 1 | 20, 0], np.uint8)
  counts = dict(words=5, phrases=2, entities=1, multi_piece_words=2)
  counts |= dict(multi_piece_phrases=1, multi_piece_entities=1)
  assert word_marks.count(np.arange(7), [0, 4], marks, None) == counts
  starts = np.array([True, False, True])
  # a sentence begins a word
  plain = word_marks.count(np.array([1, 1, 0, 1, 2, 1]), [0, 5, 6], None, starts)
  assert (plain['words'], plain['multi_piece_words'], plain['phrases']) == (4, 2, 0)
  assert word_marks.count(np.zeros(0, np.int64), [0], None, starts)['words'] == 0


def corpus(**report):
  return types.SimpleNamespace(manifest=dict(report=report))


LEVELS = [
  (dict(name='whole_word', level='word', substitute='mask'), 'words'),
  (dict(name='whole_word', level='phrase', substitute='mask'), 'phrases'),
  (dict(name='whole_word', level='entity', substitute='mask'), 'entities'),
  (dict(name='ngram', substitute='mask'), 'words'),
  (dict(name='span'), 'words'),
  (dict(name='ngram_windows', max_gram=3), 'words'),
  (dict(name='permutation', span_units='words'), 'words'),
  (dict(name='token'), None),
  (dict(name='permutation', span_units='pieces'), None),
]


def test_a_masking_of_units_that_the_corpus_lacks_is_refused_with_the_remedy():
  counts = {'words': 100, 'phrases': 100, 'entities': 100}
  several = lambda number: {**counts, **{f'multi_piece_{unit}': number for unit in counts}}
  check = lambda section, **counted: word_marks.check(corpus(**counted), section)
  for section, level in LEVELS:
    assert check(section, **several(50)) == check(section) == ()
    if level is None:
      assert check(section, **several(0)) == ()
      continue
    with pytest.raises(errors.UserError, match=f'--config.corpus.{level}=') as raised:
      check(section, **several(50) | {f'multi_piece_{level}': 0})
    assert section['name'] in str(raised.value)
    [note] = check(section, **several(50) | {f'multi_piece_{level}': 1})
    assert '1.00 %' in note


def test_a_pipeline_refuses_a_masking_of_words_over_a_corpus_without_any_of_two_tokens():
  special = dict(pad=0, unk=1, cls=2, sep=3, mask=4)
  text = np.full(400, 9), np.arange(0, 401, 10), np.array([0, 40])
  held = corpora.in_memory(*text, 30, special, word_starts=np.ones(30, bool))
  sections = dict(format=parts.full_sentences(), length=32, batch_size=2, seed=0)
  build = lambda masking: pipeline.build(held, masking=masking, **sections)
  build(parts.whole_word())  # a corpus in memory counted nothing
  held.manifest['report'] = dict(words=400, multi_piece_words=0)
  build(parts.token())
  with pytest.raises(errors.UserError, match='no word of two or more tokens'):
    build(parts.whole_word())
