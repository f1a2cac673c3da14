"""Splits paragraphs into sentences: by rules from a file per language, the package sentencex, one
sentence per line, or a pattern of the user's.

A split need not be perfect: sentences only decide where a row may begin and end. The rules rather
split too little.

The rules (`rules:LANG`) are one engine; everything about a language is in
`abbreviations/LANG.txt`. `rules:generic` knows the stops of many scripts and no abbreviations, for
languages without a file. A stop ends a sentence if a blank follows, and after it neither a small
letter nor a comma, colon or dash. A single full stop does not end one after an abbreviation, an
initial (J. R. R.), a dotted word (U.S.) or a number at the start of a sentence (1. First). Each
line of a file is one of

    # …             a comment
    %stops .!?…     stops that need a blank after them (default: no stops)
    %hard 。！？       stops that need no blank (default: no stops)
    %open, %close   quotes and brackets that may stand before and after a sentence
    %apart          closing ones after a blank (« … »)
    %joiner none    sentences join without a blank (default: with one)
    %ordinals 2     a stop after a number of at most two digits, or after a Roman number, makes an
                    ordinal (am 3. Oktober)
    %word I         a single capital that may be a word: it ends a sentence after a word in lower
                    case (So did I.)
    Dr              an abbreviation without its last stop, in any case: never the end of a sentence
    z. B            one of several parts, with or without blanks between them
    vol 0           not the end of a sentence if a number follows
    т. д ?          its inner stops are no end; the last stop is one if no small letter follows
"""

import functools
import itertools
import multiprocessing
import pathlib
import re
import sys
from collections.abc import Callable
from importlib import metadata
from typing import NamedTuple

from bertzoo_jax.common import errors

_FOLDER = pathlib.Path(__file__).parent / 'abbreviations'
_SETTINGS = ('stops', 'hard', 'open', 'close', 'apart', 'joiner', 'ordinals', 'word')
_NEVER, _BEFORE_NUMBERS, _MAY = 'never', 'before numbers', 'may'
_GOES_ON = frozenset(',;:-–—،؛')  # text that begins with these continues the sentence
# Characters that the rules look back, at most: otherwise a line of a million dots takes quadratic
# time.
_BACK = 40
_LAST_WORD = re.compile(r'[^\s("\'“‘«„‚‹¿¡\[—–-]*$')
_DOTTED = re.compile(r'(?:[^\W\d_]\.)+[^\W\d_]')
_ROMAN = re.compile(r'[IVXLC]+')
_PACKAGE, _UNSPACED = 'sentencex', ('gan', 'ja', 'lzh', 'wuu', 'yue', 'zh')
_PIECE = 1 << 13  # characters
_NUMBERING = re.compile(r'\W*(?:\d+|[ivxlcIVXLC]+|[^\W\d_])$')


class Splitter(NamedTuple):
  """`split`: paragraph → sentences; `joiner`: between sentences; `name`: of its rules or 'none'."""

  split: Callable[[str], list[str]]
  joiner: str
  name: str


def splitter(name: str, say=None) -> Splitter:
  """The splitter for config.corpus.splitter: rules:LANG, sentencex:LANG, lines, regex:PATTERN or
  none. The name of sentencex includes its version, since versions may split differently.

  name: as in the config. A language without rules gives 'none', with one warning per process. say:
  prints the warning; None: to stderr, but not in a worker process. Raises UserError: another name,
  a bad pattern, or no sentencex.
  """
  kind, colon, rest = name.partition(':')
  if kind == 'rules' and colon:
    if rest in languages():
      rules = _rules(rest)
      return Splitter(rules.split, rules.joiner, name)
    _warn(name, rest, say)
    return Splitter(whole, ' ', 'none')
  if kind == _PACKAGE and re.fullmatch('[a-z]{2,3}(-[A-Za-z]+)?', rest):
    segment, version = _sentencex()
    split = functools.partial(_in_pieces, functools.partial(segment, rest))
    joiner = '' if rest.partition('-')[0] in _UNSPACED else ' '
    return Splitter(split, joiner, f'{name}, version {version}')
  if kind == 'regex' and colon:
    ends = _pattern(rest).finditer
    return Splitter(lambda text: _cut(text, (stop.end() for stop in ends(text))), ' ', name)
  if name in ('lines', 'none'):
    return Splitter(whole, ' ', name)
  known = [*(f'rules:{language}' for language in languages()), f'{_PACKAGE}:LANG', 'lines', 'none']
  raise errors.UserError(
    'No sentence splitter is called '
    f'{name!r}.{errors.did_you_mean(name, [*known, "regex:PATTERN"])}'
  )


def _sentencex():
  """(sentencex's function (language, text) → sentences with their blanks, its version)."""
  with errors.needing('--config.corpus.splitter=sentencex:… needs a package', 'sentencex'):
    import sentencex

  def segment(language, text):
    # It panics at other blanks after a letter and before a stop: 'B\u3000.'
    lengths = [len(x) for x in sentencex.segment(language, re.sub(r'[^\S\n]', ' ', text))]
    return [text[end - n : end] for n, end in zip(lengths, itertools.accumulate(lengths))]

  return segment, metadata.version(_PACKAGE)


def _in_pieces(segment, paragraph):
  """The sentences of a long paragraph, piece by piece, since sentencex may take quadratic time. The
  last sentence of a piece is split again with the next piece.
  """
  out, last = [], ''
  for at in range(0, len(paragraph), _PIECE):
    *whole, last = segment(last + paragraph[at : at + _PIECE])
    out += whole
    if len(last) > _PIECE:
      out, last = [*out, last], ''
  return [sentence for part in (*out, last) if (sentence := part.strip())]


@functools.cache
def languages() -> tuple[str, ...]:
  return tuple(sorted(f.stem for f in _FOLDER.glob('*.txt')))


_warned = set()


def _warn(name, language, say):
  if name in _warned or say is None and multiprocessing.parent_process() is not None:
    return
  _warned.add(name)
  text = (
    f'WARNING: there are no sentence rules for {language!r}, so paragraphs stay whole (splitter '
    'none), and formats that need pairs of '
    'sentences will refuse the corpus. Take --config.corpus.splitter=rules:generic, which knows '
    'stops but no abbreviations, or regex:PATTERN, or lines. '
    f'There are rules for {", ".join(name for name in languages() if name != "generic")}.'
  )
  (say or functools.partial(print, file=sys.stderr, flush=True))(text)


def whole(paragraph: str) -> list[str]:
  paragraph = paragraph.strip()
  return [paragraph] if paragraph else []


def _pattern(text):
  with errors.unreadable(
    f'--config.corpus.splitter=regex:{text} is no regular expression: it marks the end of a '
    'sentence, as in regex:[.!?]+ or regex:(?<=[。！？])',
    re.error,
  ):
    pattern = re.compile(text)
  if not text or pattern.fullmatch(''):
    raise errors.UserError(
      f'--config.corpus.splitter=regex:{text} matches the empty text, so every character would '
      'be a sentence: it marks the end of a sentence, as in regex:[.!?]+.'
    )
  return pattern


def _cut(paragraph, ends):
  """The pieces of a paragraph between ascending positions, stripped, without empty ones."""
  sentences, start = [], 0
  for end in ends:
    sentences.append(paragraph[start:end])
    start = end
  sentences.append(paragraph[start:])
  return [s for s in map(str.strip, sentences) if s]


# --- rules ---


class _Rules:
  """The rules of one language's file."""

  def __init__(self, settings, entries):
    self.joiner = '' if settings['joiner'] == 'none' else ' '
    self.ordinals, self.word = int(settings['ordinals'] or 0), settings['word']
    self.entries = entries
    self.inner = {}  # {first parts of an abbreviation: its possible next parts}
    for key in entries:
      parts = key.split('.')
      for i in range(1, len(parts)):
        self.inner.setdefault('.'.join(parts[:i]), set()).add(parts[i] + '.')
    self.most_parts = max((key.count('.') + 1 for key in entries), default=1)
    self.stop = _stop(settings)

  def split(self, paragraph: str) -> list[str]:
    return _cut(paragraph, self._ends(paragraph))

  def _ends(self, text):
    start = 0
    for stop in self.stop.finditer(text):
      if stop['mark'] is None:
        start = stop.end()
      elif self._ends_sentence(text, start, stop):
        start = stop.start('blank')
      else:
        continue
      yield start

  def _ends_sentence(self, text, start, stop) -> bool:
    mark, opening, following = stop.group('mark', 'opening', 'following')
    if following.islower() or following in _GOES_ON:
      return False  # “What?” he said.
    if mark != '.':
      return True
    before = text[max(start, stop.start() - _BACK) : stop.start()]
    word = _LAST_WORD.search(before).group()
    kind = self._kind(before, word, text, stop)
    if opening:
      return kind != _NEVER  # et al. (1999)
    if len(before) < _BACK and _NUMBERING.fullmatch(before):
      return False  # 1. The first point.
    if kind is not None:
      return kind == _MAY or kind == _BEFORE_NUMBERS and not following.isdigit()
    if len(word) == 1 and word.isalpha() and word.isupper():  # an initial, but: So did I. He went.
      return word == self.word and ''.join(before.split()[-2:-1])[:1].islower()
    last = word.rpartition('.')[2]  # 3.10.
    short = last.isdigit() and len(last) <= self.ordinals
    if self.ordinals and (short or _ROMAN.fullmatch(word)):
      return False
    return not _DOTTED.fullmatch(word)  # U.S. Army

  def _kind(self, before, word, text, stop):
    """The kind of the longest abbreviation that ends at a stop; None if no abbreviation does."""
    names = [word.lower()]
    if self.inner:
      parts = ' '.join(before.lower().split()).replace('. ', '.')
      parts = _LAST_WORD.search(parts).group().split('.')
      names = ['.'.join(parts[-n:]) for n in range(min(self.most_parts, len(parts)), 0, -1)] + names
    for name in names:
      following = self.inner.get(name)
      if following and any(
        text[stop.end('blank') : stop.end('blank') + len(f)].lower() == f for f in following
      ):
        return _NEVER
      if name in self.entries:
        return self.entries[name]
    return None


def _stop(settings):
  """The pattern of a stop: groups mark, blank, opening, following; mark is None for a hard stop.

  Possessive, and begun only at the first of several stops, so that a line of a million dots takes
  linear time.
  """
  sets = {
    name: ''.join(map(re.escape, settings[name].replace(' ', '')))
    for name in ('stops', 'hard', 'open', 'close', 'apart')
  }
  closing, opening = (f'[{sets[name]}]' if sets[name] else '(?!)' for name in ('close', 'open'))
  apart, blank = (rf'(?:\s?[{sets["apart"]}])?+', r'\s?') if sets['apart'] else ('', '')
  closing, opening = f'{closing}*+{apart}', f'(?:{opening}{blank})*+'
  stops = f'[{sets["stops"]}]'
  soft = (
    rf'(?<!{stops})(?P<mark>{stops}++){closing}(?P<blank>\s++)'
    rf'(?=(?P<opening>{opening})(?P<following>\S))'
  )
  hard = f'[{sets["hard"]}]++{closing}'
  if not sets['stops']:  # the groups must exist: they match nothing
    return re.compile(rf'{hard}|(?!)(?P<mark>)(?P<blank>)(?P<opening>)(?P<following>)')
  return re.compile(f'{soft}|{hard}' if sets['hard'] else soft)


@functools.cache
def _rules(language) -> _Rules:
  file = _FOLDER / f'{language}.txt'
  settings, entries = dict.fromkeys(_SETTINGS, ''), {}
  for line in file.read_text(encoding='utf-8').splitlines():
    line = line.strip()
    if line.startswith('%'):
      name, _, value = line[1:].partition(' ')
      if name not in settings:
        raise ValueError(f'{file}: no setting is called {name!r}')
      settings[name] = value.strip()
    elif line and not line.startswith('#'):
      kind = {' 0': _BEFORE_NUMBERS, ' ?': _MAY}.get(line[-2:], _NEVER)
      entry = line if kind == _NEVER else line[:-2]
      key = ''.join(entry.lower().split())
      if key in entries:
        raise ValueError(f'{file}: {entry!r} is there twice')
      entries[key] = kind
  return _Rules(settings, entries)
