"""Units: the words, phrases and entities of a corpus, as one byte of marks per token.

A segmenter and lexicons give ranges of characters, and tokens have character offsets; this file
maps one to the other. A word, phrase or entity consists of whole tokens, a phrase or entity also of
whole words. C characters, T tokens.
"""

from typing import NamedTuple

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.words import characters
from bertzoo_jax.words import chinese
from bertzoo_jax.words import lexicons

# The bits of a mark.
CONTINUES_WORD, CONTINUES_PHRASE, CONTINUES_ENTITY, IN_PHRASE, IN_ENTITY = 1, 2, 4, 8, 16
_LEVELS = {'phrase': (IN_PHRASE, CONTINUES_PHRASE), 'entity': (IN_ENTITY, CONTINUES_ENTITY)}
_PHRASE_WORDS = 4  # words of a noun phrase, at most
_SENTENCES = 4096  # marked at a time
_FEW = 0.02  # share of units of several tokens; English subwords split a tenth of the words


def marker(section, word_starts, phrases=None, entities=None):
  """The marker of a corpus's units; None if the tokens determine them (words 'pieces', no phrases,
  no entities).

  Args:
    section: config.corpus; its fields words, phrases and entities are read.
    word_starts: bool [V], `Tokenizer.word_starts`.
    phrases, entities: lexicon files, for 'lexicon'; format: see `lexicons.read`.

  Raises UserError: a lexicon that is needed and not given, or given and not needed; jieba not
  installed.
  """
  words = section['words']
  files = dict(phrases=phrases, entities=entities)
  for field, file in files.items():
    lexicons.check_given(field, section[field], file, ('lexicon',), ' (one entry per line)')
  if words == 'pieces' and section['phrases'] == section['entities'] == 'none':
    return None
  return Marker(
    words, section['phrases'], section['entities'], np.asarray(word_starts, bool), files
  )


class Marker:
  """Marks the tokens of sentences. Picklable; jieba's dictionary and lexicons are loaded at first
  use.

  Attributes:
    facts: dict for the manifest: words, phrases, entities, the segmenter with its version, entries
      and digests of lexicons.
  """

  def __init__(self, words, phrases, entities, word_starts, files):
    self._words = words
    self._choices = {'phrase': phrases, 'entity': entities}
    self._word_starts = word_starts
    self._files = files
    tagged = 'jieba' in (phrases, entities)
    self._segmenter = chinese.Segmenter(tagged) if words == 'jieba' or tagged else None
    self._lexicons = {
      level: lexicons.read(files[field])
      for level, field in (('phrase', 'phrases'), ('entity', 'entities'))
      if self._choices[level] == 'lexicon'
    }
    self.facts = dict(
      words=words,
      phrases=phrases,
      entities=entities,
      **(self._segmenter.facts if self._segmenter else {}),
      **{f'{level}_lexicon': lexicon.facts for level, lexicon in self._lexicons.items()},
    )

  def __reduce__(self):
    return Marker, (self._words, *self._choices.values(), self._word_starts, self._files)

  def clean(self, text: str) -> str:
    """The text to tokenise: with words 'blanks', without blanks between CJK characters."""
    return _without_blanks(text)[0] if self._words == 'blanks' else text

  def mark(self, texts: list[str], encoded: list) -> tuple[list[np.ndarray], int]:
    """The marks of sentences.

    texts: sentences, before `clean`. encoded: per sentence (ids, starts, ends), int32 [T], of
    `clean(text)`: a token has the characters starts … ends − 1.

    Returns (bits per sentence, uint8 [T]; number of sentences in which a border of a word, phrase
    or entity is inside a token. Such tokens are marked as the tokenizer's own words, and not as
    part of a phrase or entity).
    """
    marks, misaligned = [], 0
    for first in range(0, len(texts), _SENTENCES):
      some, bad = self._mark(texts[first : first + _SENTENCES], encoded[first : first + _SENTENCES])
      marks += some
      misaligned += bad
    return marks, misaligned

  def _mark(self, texts, encoded):
    borders = None
    if self._words == 'blanks':
      texts, borders = zip(*map(_without_blanks, texts))
      borders = [np.append(starts, True) for starts in borders]  # with the line break behind each
    text = '\n'.join(texts)
    tokens, bad_S = _lay_out(text, texts, encoded), np.zeros(len(texts), bool)
    # (whether a word begins, its part of speech)
    tagged = self._segmenter(text) if self._segmenter else None
    if self._words == 'pieces':
      continues_T = ~self._word_starts[tokens.ids]
      continues_T[tokens.first] = False
    else:
      word_C = tagged[0] if borders is None else np.concatenate(borders)[: len(text)]
      continues_T, bad_T = _words(tokens, word_C, self._word_starts[tokens.ids])
      bad_S[tokens.sentence[bad_T]] = True
    marks_T = np.zeros(len(tokens.ids), np.uint8)
    for level, choice in self._choices.items():
      if choice == 'none':
        continue
      if choice == 'lexicon':
        begin_N, end_N = self._lexicons[level].find(text)
      else:
        begin_N, end_N = _TAGGED[level](*tagged)
      first_N, last_N, lost_N = _token_ranges(tokens, begin_N, end_N)
      bad_S[np.searchsorted(tokens.borders, begin_N[lost_N], 'right') - 1] = True
      within, continues = _LEVELS[level]
      marks_T[_cover(first_N, last_N, len(marks_T))] |= within | continues
      marks_T[first_N] &= 0xFF ^ continues
      continues_T[first_N] = False
      after_N = last_N + 1
      continues_T[after_N[after_N < len(marks_T)]] = False
    marks_T |= continues_T.astype(np.uint8) * CONTINUES_WORD
    return np.split(marks_T, np.cumsum(tokens.lengths)[:-1]), int(bad_S.sum())


class _Tokens(NamedTuple):
  """Tokens of sentences that were joined by line breaks."""

  ids: np.ndarray  # [T]
  start: np.ndarray  # [T], character in the joint text, without leading blanks
  end: np.ndarray  # [T]
  blank: np.ndarray  # [T], whether it has only blanks
  shares: np.ndarray  # [T], whether it shares a character with the token before
  sentence: np.ndarray  # [T]
  lengths: np.ndarray  # [S]
  first: np.ndarray  # tokens that begin a sentence
  borders: np.ndarray  # [S], first character of each sentence
  han: np.ndarray  # [C]


def _lay_out(text, texts, encoded) -> _Tokens:
  codes_C = characters.codes(text)
  lengths = np.array([len(ids) for ids, _, _ in encoded], np.int64)
  borders = np.concatenate([[0], np.cumsum([len(t) + 1 for t in texts])])[:-1].astype(np.int64)
  sentence = np.repeat(np.arange(len(texts)), lengths)
  ids, start, end = (
    np.concatenate([np.asarray(e[i], np.int64) for e in encoded]) for i in range(3)
  )
  most = np.minimum(borders + np.array([len(t) for t in texts], np.int64), len(codes_C))[sentence]
  # a tokenizer may count a blank that it added itself
  start = np.minimum(start + borders[sentence], np.maximum(most - 1, 0))
  end = np.clip(end + borders[sentence], start, np.maximum(most, start))
  # of the bytes of a character, only the last has it in its offsets
  end += (end == start) & (start < most)
  place_C = np.where(
    characters.kinds(codes_C) == characters.BLANK, len(codes_C), np.arange(len(codes_C))
  )
  # the next character that is not blank
  solid_C = np.append(np.minimum.accumulate(place_C[::-1])[::-1], len(codes_C))
  blank = solid_C[start] >= end
  start = np.where(blank, start, solid_C[start])
  starts = np.cumsum(lengths) - lengths
  first = starts[lengths > 0]
  shares = np.zeros(len(ids), bool)
  shares[1:] = start[1:] < end[:-1]
  shares[first] = False
  return _Tokens(
    ids, start, end, blank, shares, sentence, lengths, first, borders, characters.is_han(codes_C)
  )


def _words(tokens, word_C, starts_word_T):
  """(whether a token continues a word [T], whether it has a border of words inside [T]).

  Next to a Han character the segmenter decides. Elsewhere a word is never smaller than one of the
  tokenizer (pieces of a Latin word stay together), but the segmenter may join several (3 . 14). If
  a token has a border inside, the tokenizer decides on the words that it touches, and every Han
  character is a word.
  """
  number_C = np.cumsum(word_C)
  hard_C = word_C.copy()
  hard_C[1:] &= tokens.han[1:] | tokens.han[:-1]
  before_C = np.concatenate([[0], np.cumsum(hard_C)])
  start, last = tokens.start, np.maximum(tokens.end - 1, tokens.start)
  straddles_T = ~tokens.blank & (before_C[last + 1] > before_C[start + 1])
  default_T = starts_word_T | tokens.han[start]  # words begin here without a segmenter
  previous_T = np.concatenate([[0], last[:-1]]) if len(last) else last
  beside_han_T = default_T | tokens.han[previous_T]
  begins_T = (number_C[start] > number_C[previous_T]) & beside_han_T
  if straddles_T.any():
    bad_W = np.zeros(int(number_C[-1]) + 2, np.int64)
    np.add.at(bad_W, number_C[start[straddles_T]], 1)
    np.add.at(bad_W, number_C[last[straddles_T]] + 1, -1)
    bad_W = np.cumsum(bad_W) > 0
    begins_T |= (bad_W[number_C[start]] | bad_W[number_C[previous_T]]) & default_T
  begins_T &= ~tokens.shares
  begins_T[1:] &= ~tokens.blank[:-1]
  begins_T |= tokens.blank & ~tokens.shares
  begins_T[tokens.first] = True
  return ~begins_T, straddles_T


def _token_ranges(tokens, begin_N, end_N):
  """(first, last token) of ranges of characters that are whole tokens; whether one is not [N]."""
  low_N = np.searchsorted(tokens.end, begin_N, 'right')
  high_N = np.searchsorted(tokens.start, end_N, 'left') - 1
  some_N = low_N <= high_N
  low, high = low_N[some_N], high_N[some_N]
  whole = (tokens.start[low] >= begin_N[some_N]) & (tokens.end[high] <= end_N[some_N])
  lost_N = some_N.copy()
  lost_N[some_N] = ~whole
  low, high = low[whole], high[whole]
  before = np.maximum(low - 1, 0)
  return (
    np.where(
      (low > 0) & tokens.blank[before] & (tokens.sentence[before] == tokens.sentence[low]),
      before,
      low,
    ),
    high,
    lost_N,
  )


def _cover(first_N, last_N, size):
  """Whether each index is within one of the ranges first … last, bool [size]."""
  edge = np.zeros(size + 1, np.int64)
  np.add.at(edge, first_N, 1)
  np.add.at(edge, last_N + 1, -1)
  return np.cumsum(edge)[:-1] > 0


def _word_ranges(word_C):
  begin_W = np.flatnonzero(word_C)
  return begin_W, np.append(begin_W[1:], len(word_C))


def _entities(word_C, bits_C):
  """Words that jieba tags as names: nr (persons), ns (places), nt (organisations), nz (others)."""
  begin_W, end_W = _word_ranges(word_C)
  mine_W = bits_C[begin_W] & chinese.ENTITY > 0
  return begin_W[mine_W], end_W[mine_W]


def _noun_phrases(word_C, bits_C):
  """Runs of two to four adjectives and nouns that end in a noun; longer runs are cut."""
  begin_W, end_W = _word_ranges(word_C)
  run_W = bits_C[begin_W] & chinese.MODIFIER > 0
  edge = np.flatnonzero(np.diff(np.concatenate([[False], run_W, [False]]).astype(np.int8)))
  first, last = [], []
  nouns_W = bits_C[begin_W] & chinese.NOUN > 0
  for a, b in zip(edge[::2].tolist(), edge[1::2].tolist()):
    for c in range(a, b, _PHRASE_WORDS):
      d = min(c + _PHRASE_WORDS, b)
      while d > c and not nouns_W[d - 1]:
        d -= 1
      if d - c > 1:
        first.append(c)
        last.append(d - 1)
  return begin_W[np.array(first, np.int64)], end_W[np.array(last, np.int64)]


_TAGGED = {'phrase': _noun_phrases, 'entity': _entities}


def _without_blanks(text):
  """(text without blanks between CJK characters, whether a word starts at each character, bool)."""
  codes_C = characters.codes(text)
  blank_C, cjk_C = characters.kinds(codes_C) == characters.BLANK, characters.is_cjk(codes_C)
  place_C = np.arange(len(codes_C))
  before_C = np.maximum.accumulate(np.where(blank_C, -1, place_C))
  after_C = np.minimum.accumulate(np.where(blank_C, len(codes_C), place_C)[::-1])[::-1]
  inside_C = blank_C & (before_C >= 0) & (after_C < len(codes_C))
  gone_C, before, after = np.zeros(len(codes_C), bool), before_C[inside_C], after_C[inside_C]
  gone_C[inside_C] = cjk_C[before] & cjk_C[after] & (codes_C[inside_C] != 0x3000)
  starts_C = blank_C.copy()
  starts_C[1:] |= blank_C[:-1]
  starts_C[:1] = True
  kept = np.flatnonzero(~gone_C)
  return text if len(kept) == len(text) else ''.join(text[i] for i in kept), starts_C[kept]


# --- counting ---


def count(tokens, starts, units, word_starts) -> dict[str, int]:
  """Number of units, and of units of two or more tokens.

  tokens: ids [T]. starts: first token of each sentence, int [S]; it begins a word. units: uint8 [T]
  of marks; None: words are determined by `word_starts`. word_starts: bool [V].

  Returns words, multi_piece_words, phrases, multi_piece_phrases, entities, multi_piece_entities.
  """
  tokens = np.asarray(tokens)
  if units is None:
    units = (~word_starts[tokens]).astype(np.uint8) * CONTINUES_WORD
    units[np.asarray(starts)[np.asarray(starts) < len(tokens)]] = 0
  out = {}
  for name, within, continues in (
    ('words', 0, CONTINUES_WORD),
    ('phrases', IN_PHRASE, CONTINUES_PHRASE),
    ('entities', IN_ENTITY, CONTINUES_ENTITY),
  ):
    more_T = units & continues > 0
    begins_T = ~more_T & (units & within > 0 if within else True)
    out[name] = int(begins_T.sum())
    out[f'multi_piece_{name}'] = int((begins_T[:-1] & more_T[1:]).sum())
  return out


def check(corpus, section) -> tuple[str, ...]:
  """Checks that a masking of words, phrases or entities has some of several tokens.

  corpus: an open corpus; its manifest['report'] holds the sums of `count` (a corpus in memory has
  none and passes). section: config.masking. Raises UserError: the corpus has none.

  Returns warnings about suspiciously few (Chinese text with the tokenizer's own words has some
  Latin ones).
  """
  fields, report = dict(section), corpus.manifest['report']
  level = _LEVEL_OF[fields['name']](fields) if fields['name'] in _LEVEL_OF else None
  if level and report.get(f'multi_piece_{level}', 1) == 0:
    raise errors.UserError(
      f'The corpus has no {_ONE[level]} of two or more tokens, so the masking {fields["name"]!r} '
      f'would only mask single tokens: {_REMEDIES[level]}, or take masking=token.'
    )
  share = report.get(f'multi_piece_{level}', 1) / max(report.get(level, 1), 1)
  if share < _FEW:
    return (
      f"only {100 * share:.2f} % of the corpus's {level} have two or more tokens, so the masking "
      f'{fields["name"]!r} will mostly mask single '
      f'tokens; if that is not meant, {_REMEDIES[level]}.',
    )
  return ()


_ONE = {'words': 'word', 'phrases': 'phrase', 'entities': 'entity'}
_LEVEL_OF = {
  'whole_word': lambda f: {'word': 'words', 'phrase': 'phrases', 'entity': 'entities'}.get(
    f['level']
  ),
  'ngram': lambda f: 'words',
  'span': lambda f: 'words',
  'ngram_windows': lambda f: 'words' if f['max_gram'] > 1 else None,
  'permutation': lambda f: 'words' if f['span_units'] == 'words' else None,
}
_REMEDIES = {
  'words': 'prepare one with --config.corpus.words=jieba (Chinese; blanks for text segmented '
  'beforehand), or with a tokenizer of subwords',
  'phrases': 'prepare one with --config.corpus.phrases=lexicon --phrases=FILE (or phrases=jieba, '
  'Chinese)',
  'entities': 'prepare one with --config.corpus.entities=lexicon --entities=FILE (or '
  'entities=jieba, Chinese)',
}
