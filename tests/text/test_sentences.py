"""`|` marks the splits wanted."""

import importlib.util
import sys
import time
from importlib import metadata

import pytest
from hypothesis import example
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from bertzoo_jax.common import errors
from bertzoo_jax.text import sentences

LANGUAGES = {
  'en': [
    'One here.|Two there!|Three? |Four…|Five',
    'Mr. Holmes met Dr. Watson and Mrs. Hudson at St. Paul.|They left.',
    'J. R. R. Tolkien wrote it.|So did C. S. Lewis.',
    'It cost 3.50 dollars, i.e. too much.|See Fig. 3 and pp. 4 to 5.',
    'Is there no. 7? |No.|There is none.',
    'He came on Jan. 5 at 5 p.m.|The U.S. Army was there.',
    '“What?” he said.|“Nothing.”|She went.|"Stop!"|"Why?"',
    'He left (it was late.)|Nobody saw.|So did I.|He went, with Henry I. Beauclerk.',
    '1. The first point.|2. The second.',
    'Wait... what?|Well...|No.|Apples, pears etc. are fruit.|See www.example.org for more.',
    'As Smith et al. (1999) said.|(Nobody heard.)|Mr. “Bob” went.',
    'nothing to split',
    'The end.   ',
  ],
  'zh': [
    '天地玄黄。|宇宙洪荒！|日月？|辰宿；|列张',
    '他说：“好。”|然后走了……|“真的吗？！”|是。|没有句号',
    '价格是3.5元。|（完。）|「是！」』',
  ],
  'de': [
    'Am 3. Oktober 1990 um 5 Uhr kam Dr. Müller.|Er blieb bis 1995.|Dann ging er.',
    'Im 19. Jahrhundert, z. B. unter Ludwig XIV. von Frankreich, d. h. früher.|Das war so.',
    'Städte wie Köln, Bonn u. a.|Danach kam Nr. 7 aus der Goethestraße 5.|„Wirklich?“ fragte '
    'er.|„Ja.“|»Nein!«|Er schwieg.',
    'Caesar wurde 44 v. Chr. ermordet.|Das steht bei Meier (vgl. Bd. 3, S. 5).',
  ],
  'fr': [
    'M. Dupont et Mme Curie sont venus le 5 janv. 1990.|Ils sont repartis, p. ex. en train.',
    '« Quoi ?\u00a0»|« Rien ! »|Il partit… sans un mot.|J.-J. Rousseau écrivit cela (cf. t. 2, p. '
    '5).',
    '« Bonjour. »|Il entra.',
  ],
  'es': [
    '¿Qué?|¡Nada!|El Sr. García vive en EE. UU. desde 1990.|La Dra. Ruiz, p. ej., no.',
    'Nació en el 44 a. C. en Roma.|Véase pág. 5 y núm. 7.|«Sí.»|Se fue.',
  ],
  # languages without a file of their own
  'generic': [
    'Tere!|Mina olen A. H. Tammsaare.|Kas sina ka?|Sündisin 30. jaanuaril 1878…|Hiljem kolisin.',
    'Ta maksis 3.50 eurot.|„Miks?“ küsis ta.|Ei tea.|U.S. Army oli seal.',
    'Vien o 2. Latvijas posms.|Kopā 1995.|Viss.',
    'Это конец.|Ещё одно!|Ναι.|«Όχι.»|Τέλος.',
    'یہ ایک جملہ ہے۔|یہ دوسرا ہے؟|ہاں۔',
    'यह पहला है।|यह दूसरा है।|ठीक।|Սա առաջինն է։|Սա երկրորդն է։',
  ],
  'tr': [
    '19. Yüzyılda II. Abdülhamid tahta çıktı.|Doç. Dr. Ayşe Yılmaz 29. gün geldi.',
    'M. Ö. 500 yılında yaşadı.|T. C. Anayasası bkz. Md. 125.|Böyle der.|O gitti.',
  ],
  'fi': [
    'Hän syntyi 1. Tammikuuta tai n. 1990.|Suomi voitti 2. Suomen sarjassa, ks. s. 5 ja esim. '
    'Ruotsissa.',
    'Näin oli v. 1990.|Sitten ei.',
  ],
  'ru': [
    'А. С. Пушкин родился в 1799 г. в Москве.|Т. е. давно.|Это был он и т. д.|Потом ушёл.',
    'На ул. Ленина, д. 5, жил проф. Иванов.|См. рис. 5.|«Да!»|Он ушёл.',
    '— Привет! — сказал он. — Он был в нем.|Да.',
  ],
  'ar': [
    'ما هذا؟|هذا كتاب.|قال د. أحمد ذلك، وهو أ. د. محمد.',
    'یہ کتاب ہے۔|وہ گیا۔|قال: نعم! ؛ ثم ذهب.|عاد.',
  ],
  'hi': ['यह राम है।|वह डॉ. सिंह है।|क्या?|हाँ!|एस. के. वर्मा आए।', 'पहला।|दूसरा॥|“तीसरा।”|चौथा'],
  'ja': ['これは本です。|「はい！」|そうですか？|3.5円；はい'],
}
RULES = [f'rules:{language}' for language in sentences.languages()]
ALL = [*RULES, 'lines', 'none', 'regex:[.!?]+', 'regex:(?<=[。！])']


@pytest.mark.parametrize('language', LANGUAGES)
def test_every_language_keeps_its_abbreviations_and_ordinals_whole(language):
  split, joiner, name = sentences.splitter(f'rules:{language}')
  assert name == f'rules:{language}'
  for text in LANGUAGES[language]:
    wanted = [s.strip() for s in text.split('|')]
    assert split(joiner.join(wanted)) == wanted


if importlib.util.find_spec('sentencex'):
  ALL += ['sentencex:en', 'sentencex:zh']


@given(st.text(st.sampled_from('aB1 .!?…"”’()。！；」\u3000\xa0'), max_size=40))
@example('B\u3000.；("\u3000.')
@settings(deadline=None)
def test_splitting_loses_nothing_but_blanks(text):
  for name in ALL:
    parts = sentences.splitter(name).split(text)
    assert ''.join(''.join(parts).split()) == ''.join(text.split())
    assert all(p and p == p.strip() for p in parts)


HARD = ['. ' * 100_000, '.' * 1_000_000, 'x' * 1000 + '. A' * 60_000, 'z. B. ' * 20_000]
HARD += [x * 400_000 for x in 'a" '] + [x * 60_000 for x in ('I. ', '1. ', '। ')]
HARD += ['((((.' * 40_000, '. « ' * 40_000, '.»' * 100_000]


@pytest.mark.parametrize('hard', HARD, ids=range(len(HARD)))
def test_a_long_paragraph_is_split_in_linear_time(hard):
  for name in (n for n in ALL if ':' in n):
    start = time.monotonic()
    sentences.splitter(name).split(hard)
    assert time.monotonic() - start < 5, name


UNKNOWN = 'rule:en line rules regex en sentencex sentencex:English sentencex:EN'.split()


def test_a_pattern_marks_where_sentences_end_and_a_bad_one_or_a_bad_name_is_one_sentence():
  for name, text, wanted in (
    ('[.!?]+', 'One... two! three', ['One...', 'two!', 'three']),
    ('(?<=[。！])', '一。二！三', ['一。', '二！', '三']),
    ('a:b', '1a:b2', ['1a:b', '2']),
  ):
    assert sentences.splitter(f'regex:{name}').split(text) == wanted
  bad = [(f'regex:{x}', 'the end of a sentence') for x in ('', '(', 'x*', '[.')]
  for name, words in bad + [(x, f"No sentence splitter is called '{x}'") for x in UNKNOWN]:
    with pytest.raises(errors.UserError, match=words):
      sentences.splitter(name)


@pytest.mark.parametrize('language', ['xx', '', '../abbreviations/en', 'EN'])
def test_a_language_without_rules_stays_whole_and_is_told_once(language, capsys):
  lines = []
  for listener in ([lines.append], []):  # where nobody listens, on stderr
    for _ in range(3):
      splitter = sentences.splitter(f'rules:{language}', *listener)
    assert splitter.name == 'none' and splitter.split(' A. B. ') == ['A. B.']
    [message] = lines if listener else capsys.readouterr().err.splitlines()
    assert repr(language) in message and 'de, en, es, fi, fr' in message
    sentences._warned.clear()


def test_a_package_s_splitter_says_its_version_and_keeps_text_without_blanks(monkeypatch):
  pytest.importorskip('sentencex')
  english, chinese = map(sentences.splitter, ('sentencex:en', 'sentencex:zh'))
  assert english.split(' Dr. A came.  He sat. ') == ['Dr. A came.', 'He sat.']
  assert english.name == f'sentencex:en, version {metadata.version("sentencex")}'
  assert sentences.splitter('sentencex:zh-Hans').joiner == ''
  assert (english.joiner, chinese.joiner) == (' ', '') and chinese.split('一。二') == ['一。', '二']
  monkeypatch.setitem(sys.modules, 'sentencex', None)
  with pytest.raises(errors.UserError, match="pip install 'bertzoo-jax.sentencex.'"):
    sentences.splitter('sentencex:en')


def test_every_file_of_a_language_says_its_format_and_holds_no_full_stop_at_an_end():
  for language in sentences.languages():
    text = (sentences._FOLDER / f'{language}.txt').read_text(encoding='utf-8')
    assert 'Format' in text.splitlines()[1]
    for line in filter(None, text.splitlines()):
      ends = line.removesuffix(' 0').removesuffix(' ?').endswith('.')
      assert line[0] in '#%' or not ends and line == line.strip(), line
