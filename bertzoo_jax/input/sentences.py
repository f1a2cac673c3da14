"""Splitting paragraphs into sentences: small rules for English and Chinese, or a sentence a line.

A split need not be perfect: sentences only set where a row may begin and end. The rules err on the side of not splitting.
"""

import re

from bertzoo_jax import errors

# A stop, what may close behind it, blanks, and a glance at what comes next. Possessive, and begun only where a run of stops
# begins: a line of a million dots must not take a square of steps. For the same reason the rules look back `_BACK` at most.
_ENGLISH_STOP = re.compile(r'(?<![.!?…])([.!?…]++)["\'”’»)\]]*+(\s++)(?=(["\'“‘«(\[]*+)(\S))')
_BACK = 40
_CHINESE_STOP = re.compile(r'[。！？!?…；;]+[”’」』）》】〉〕"\')\]]*')

# Never the end of a sentence: a name or a thing follows.
_TITLES = frozenset('mr mrs ms messrs mme mlle dr drs prof st ste sgt capt cpt cmdr col gen lt maj adm brig rev hon gov sen rep pres supt mt ft '
                    'vs v cf viz e.g i.e ie eg al ca approx esp incl resp'.split())
# Only where a number follows: No. 7, vol. 2, pp. 3, Jan. 5.
_BEFORE_NUMBERS = frozenset('no nos vol vols p pp fig figs eq eqs sec sect ch chap art arts ed eds '
                            'jan feb mar apr jun jul aug sep sept oct nov dec'.split())
_LAST_WORD = re.compile(r'[^\s("\'“‘«\[—–-]*$')
_DOTTED = re.compile(r'(?:[A-Za-z]\.)+[A-Za-z]')
_NUMBERING = re.compile(r'\W*(?:\d+|[ivxlcIVXLC]+|[A-Za-z])$')


def english(paragraph: str) -> list[str]:
  """Sentences of an English paragraph, stripped, none of them empty."""
  sentences, start = [], 0
  for stop in _ENGLISH_STOP.finditer(paragraph):
    if _ends_sentence(paragraph, start, stop):
      sentences.append(paragraph[start:stop.start(2)])
      start = stop.end(2)
  sentences.append(paragraph[start:])
  return [s for s in map(str.strip, sentences) if s]


def _ends_sentence(text, start, stop) -> bool:
  mark, opening, following = stop.group(1), stop.group(3), stop.group(4)
  if following.islower() or following in ',;:-–—':
    return False  # “What?” he said.
  if mark != '.' or opening:
    return True
  before = text[max(start, stop.start(1) - _BACK):stop.start(1)]
  if len(before) < _BACK and _NUMBERING.fullmatch(before):
    return False  # 1. The first point.
  word = _LAST_WORD.search(before).group()
  lower = word.lower()
  if lower in _TITLES:
    return False
  if lower in _BEFORE_NUMBERS:
    return not following.isdigit()
  if len(word) == 1 and word.isalpha() and word.isupper():  # an initial, but: So did I. He went.
    return word == 'I' and ''.join(before.split()[-2:-1])[:1].islower()
  if _DOTTED.fullmatch(word):  # U.S. Army; but: at 5 p.m. He
    return lower in ('a.m', 'p.m')
  return True


def chinese(paragraph: str) -> list[str]:
  """Sentences of a Chinese paragraph, each with its stop and what closes behind it."""
  sentences, start = [], 0
  for stop in _CHINESE_STOP.finditer(paragraph):
    sentences.append(paragraph[start:stop.end()])
    start = stop.end()
  sentences.append(paragraph[start:])
  return [s for s in map(str.strip, sentences) if s]


def lines(paragraph: str) -> list[str]:
  """The paragraph as one sentence."""
  paragraph = paragraph.strip()
  return [paragraph] if paragraph else []


def splitter(name: str):
  """(paragraph → sentences, what joins sentences again) for config.corpus.splitter; UserError for another name."""
  return errors.choose(name, BY_NAME, 'sentence splitter')


BY_NAME = {'rules:en': (english, ' '), 'rules:zh': (chinese, ''), 'lines': (lines, ' ')}
