import re
import time

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from bertzoo_jax.text import wikitext


@pytest.mark.parametrize(
  'markup, text',
  [
    ('A {{t|x={{u|{{v}}}}|y}} b', 'A b'),
    ('A {{{p|{{t}}}}} b', 'A b'),
    ('A {{{{t}}u}} b', 'A b'),
    ('{{Infobox\n| a = {| class\n|-\n| cell\n|}\n| b = {{x}}\n}}\nText.', 'Text.'),
    ('{| class="wikitable"\n! head\n|-\n| {{x|}} || {| nested\n| c\n|}\n|}\nText.', 'Text.'),
    ('A<ref name="n">note [[x]] {{y}}</ref>, b<ref name=n /> c<references/>.', 'A, b c.'),
    ('see [[a|the b]]s, [[c]], [[:Category:D]], [[M: Imp]]', 'see the bs, c, Category:D, M: Imp'),
    ('[[File:x.jpg|thumb|A [[b|c]] and [[d]]]] Text [[Image:y.png]][[Datei:z.svg|mini]]', 'Text'),
    ('Text.[[Category:A]][[Kategorie:B|k]][[fr:C]][[zh-min-nan:D]]', 'Text.'),
    ('[http://x.o/a?b=c a label] [https://y.o] [mailto:z@z z] http://w.o', 'a label z http://w.o'),
    ("'''A''' is ''b'', '''''c''''' and l''''d'''", "A is b, c and l'd"),
    ('== Head ==\nText.\n=== Sub ===\n* one\n# two\n: three\n; four\n----\nMore.', 'Text.|More.'),
    ('A <!-- no\n == x == --> b<br />c <b>d</b> <i id="e">f</i> 5 < 6 > 4', 'A b c d f 5 < 6 > 4'),
    ('A <math>x<y</math> b <SOURCE id="c">x;</SOURCE>c <gallery>\nF:x|y\n</gallery>d', 'A b c d'),
    (
      "x &amp;lt; &nbsp;<nowiki>[[a]] ''b'' {{c}} <ref></nowiki> &eacute;",
      "x &lt; \xa0[[a]] ''b'' {{c}} <ref> é",
    ),
    ('A ({{x}}; born 1900) b ({{y}}) c （，） d ( , {{z}}) .', 'A (born 1900) b c d.'),
    ('电-{zh-hans:脑;zh-hant:腦}-和-{简}--{T|题}--{zh-tw:資訊}-', '电脑和简資訊'),
    ('__NOTOC__\nText __FORCETOC__ here', 'Text here'),
    ('A {{never closed b', 'A {{never closed b'),
    ('A }} b [[never closed c', 'A }} b never closed c'),
    ('A <ref>never closed b', 'A never closed b'),
    ('A <ref>never <math>x</math>closed', 'A never closed'),
    ('A <!-- never closed b', 'A'),
    ('{| \n! never closed\n|-\n| cell', '! never closed'),
    ('<p>One</p><div>two</div>', 'One|two'),
    ('…\n|}\n*\n()', ''),
  ],
)
def test_markup_becomes_what_readers_see(markup, text):
  assert '|'.join(wikitext.paragraphs(markup)) == text


CAPTION = 'thumb|right|250px|Caption of [[a|the]] picture'


@pytest.mark.parametrize(
  'target',
  'Afbeelding:Foto.jpg Grafika:A_b.JPEG Archivo:x.png Fichier:x.svg Immagine:x.tiff Imagem:x.gif '
  '그림:x.webp Hình:x.PNG slika:x.pdf FAIL:x.djvu Plik:x.ogg '
  'Afbeelding:Sketches_(1.2).Svg'.split(),
)
def test_captions_of_pictures_leave_no_text_whatever_a_wiki_calls_its_files(target):
  assert wikitext.paragraphs(f'One.\n[[{target}|{CAPTION}]]\nTwo.') == ['One.', 'Two.']
  assert wikitext.paragraphs(f'[[ {target} ]]One.') == ['One.']
  assert wikitext.paragraphs(f'See [[:{target}|the file]].') == ['See the file.']


def test_a_wiki_names_its_own_files():
  assert wikitext.paragraphs('[[Dosiero:x|y]] t', {'dosiero'}) == ['t']
  assert wikitext.paragraphs('[[Dosiero:x|y]] t') == ['y t']


LINKS = '[[a|b and c and so on, a longer label '
# ~ is a line break, _ a blank
HARD = """{{ }} {{{ [[ [[a| ]] <ref> <ref></ref> <nowiki> <!-- ' {|~ {{~{|~ ( (, (_ _, -{ [http:
[http:_ < <a_ __ __a & ~ = _ [[File: -{zh-a:;}- <table> <p # |}~ --_""".split()


@pytest.mark.parametrize(
  'hard', [*(x.replace('_', ' ').replace('~', '\n') for x in HARD), *('__', '__a', '\t\n', LINKS)]
)
def test_hostile_text_takes_linear_time(hard):
  start = time.monotonic()
  for text in (
    hard * (100_000 // len(hard)),
    hard * 15_000 + '}}' * 15_000 + '|}\n' * 15_000 + ']]' * 15_000 + '</table>' + ')' * 15_000,
  ):
    wikitext.paragraphs(text)
  assert time.monotonic() - start < 2


MARKS = (
  "{{ }} { } {| |} | [[ ]] [http://x ] <ref> </ref> <ref/> <nowiki> </nowiki> <!-- --> '' ''' -{ "
  '}- zh: ; : ( ) a 字 . &lt;'.split()
  + ['\n', '\n==', '==\n', ' ']
)
OPENING = re.compile(r'<!--|[{\[]|<nowiki>|<ref>')


@given(st.lists(st.sampled_from(MARKS)).map(''.join))
@settings(max_examples=300, deadline=None)
def test_any_text_gives_tidy_paragraphs_and_what_follows_survives(text):
  for paragraph in wikitext.paragraphs(text):
    assert paragraph == paragraph.strip() and '\n' not in paragraph
    assert any(map(str.isalnum, paragraph))
  assert 'end of it' in wikitext.paragraphs('-->\n' + OPENING.sub('', text) + '\nend of it')
