"""Lexicons: files of phrases or entities, and a search for their entries in a text.

A text is a sequence of symbols. A run of letters and digits is one symbol in scripts with blanks
between words; every other character (Han, kana, Thai, punctuation) is one symbol; blanks are not
symbols. An entry matches where its symbols are consecutive: 'New York' at borders of words, 北京
anywhere. An entry without capitals matches in any case, an entry with capitals only as it is
written ('white house' finds 'White House'; 'US' does not find 'us').
"""

import re

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.words import characters
from bertzoo_jax.words import tries

# Symbols of an entry, at most; longer entries are left out, which bounds the steps of `find` per
# character
_LONGEST = 64
_REMEMBERED = 1 << 20  # words of a text


def read(file) -> 'Lexicon':
  """Reads a lexicon: one entry per line, `entry` or `entry[TAB]frequency`, as UTF-8.

  A byte-order mark, any line ends, blanks around an entry and empty lines are ignored. A line that
  begins with # is a comment. Text after a tab is not read.

  Raises UserError: no such file, not UTF-8, no entry in it.
  """
  lines = re.split(r'\r\n|\r|\n', text_of(file, 'lexicon'))
  entries = [line.split('\t')[0].strip() for line in lines if not line.startswith('#')]
  lexicon = Lexicon([entry for entry in entries if entry])
  if not lexicon.facts['entries']:
    raise errors.UserError(f'The lexicon {file} has no entries: it needs one per line.')
  path = storage.path(file)
  lexicon.facts.update(file=path.name, sha256=storage.sha256(path))
  return lexicon


def text_of(file, what: str) -> str:
  """The text of a file; UserError if it cannot be read, or is not UTF-8. what: its kind."""
  with errors.unreadable(f'The {what} {file} cannot be read: give a file in UTF-8', OSError):
    return storage.path(file).read_bytes().decode('utf-8-sig')


def check_given(field: str, choice: str, file, reading: tuple, note: str = '') -> None:
  """Raises UserError if config.corpus.FIELD needs a file and none is given, or the reverse.

  reading: choices of the field that read a file.
  """
  if choice in reading and not file:
    raise errors.UserError(
      f'config.corpus.{field} is {choice!r}: say which with --{field}=FILE{note}.'
    )
  if choice not in reading and file:
    raise errors.UserError(
      f'--{field}={file} is not read, for config.corpus.{field} is {choice!r}: set '
      f'--config.corpus.{field}={" or ".join(reading)}.'
    )


class Lexicon:
  """Entries, indexed for `find`.

  Attributes:
    facts: {'entries': number of distinct entries, 'too_long': number of entries left out for more
      than 64 symbols}.
  """

  def __init__(self, entries: list[str]):
    entries = sorted(set(entries))
    self._ids, rows, long = {}, [], 0
    for entry in entries:
      symbols = [entry[a:b] for a, b in zip(*(x.tolist() for x in _symbols(entry)))]
      if 0 < len(symbols) <= _LONGEST:
        rows.append(
          (entry != entry.lower(), [self._ids.setdefault(s, len(self._ids)) for s in symbols])
        )
      else:
        long += len(symbols) > 0
    self._tries = [
      self._trie([ids for capitals, ids in rows if capitals == wish]) for wish in (False, True)
    ]
    self._short, self._words = self._tables(), {}
    self.facts = dict(entries=len(rows), too_long=long)

  def find(self, text: str) -> tuple[np.ndarray, np.ndarray]:
    """(begin, end) int64 [N] of the entries in a text, ascending and not overlapping.

    The longest (in symbols) of overlapping entries wins, then the leftmost; shorter ones may match
    in the rest. A line break matches nothing. Takes at most 64 steps per character, whatever the
    text.
    """
    begin_S, end_S = _symbols(text)
    ids_2S = self._look_up(text, begin_S, end_S)
    levels = []  # where entries of 1, 2, … symbols begin
    for ids_S, (trie, ends_N) in zip(ids_2S, self._tries):
      for n, (at, node) in enumerate(trie.walk(ids_S, np.ones(len(ids_S), bool)) if trie else ()):
        levels += [[]] if n == len(levels) else []
        levels[n].append(at[ends_N[node]])
    free_S, matches = np.ones(len(begin_S), bool), []
    for n in range(len(levels), 0, -1):
      at = levels[n - 1][0] if len(levels[n - 1]) == 1 else np.union1d(*levels[n - 1])
      # shorter matches come later, so it is enough to check both ends
      at = _apart(at[free_S[at] & free_S[at + n - 1]], n)
      free_S[(at[:, None] + np.arange(n)).reshape(-1)] = False
      matches.append((at, np.full(len(at), n)))
    at, size = (np.concatenate(x) for x in zip(*matches)) if matches else np.zeros((2, 0), np.int64)
    order = np.argsort(at)
    return begin_S[at[order]], end_S[(at + size - 1)[order]]

  def _trie(self, rows):
    if not rows:
      return None, None
    padded = np.full((len(rows), max(map(len, rows))), -1, np.int64)
    for i, row in enumerate(rows):
      padded[i, : len(row)] = row
    trie, node = tries.build(padded, len(self._ids))
    ends = np.zeros(trie.size, bool)
    ends[node] = True
    return trie, ends

  def _tables(self):
    """Ids of symbols of one character, in lower case and as written."""
    tables = np.full((2, 1 << 16), -1, np.int64)
    for symbol, i in self._ids.items():
      if len(symbol) == 1 and ord(symbol) < 1 << 16:
        tables[1, ord(symbol)] = i
        for variant in (symbol, symbol.upper(), symbol.title()):
          if len(variant) == 1 and variant.lower() == symbol:
            tables[0, ord(variant)] = i
    return tables

  def _look_up(self, text, begin_S, end_S):
    """Ids of the symbols in lower case and as written, int64 [2, S]; -1 if no entry has them."""
    codes_S = characters.codes(text)[begin_S]
    one_S = (end_S - begin_S == 1) & (codes_S < 1 << 16)
    ids_2S = np.where(one_S, self._short[:, np.minimum(codes_S, 0xFFFF)], -1)
    words, long = self._words, np.flatnonzero(~one_S)
    pairs = []
    for a, b in zip(begin_S[long].tolist(), end_S[long].tolist()):
      word = text[a:b]
      pair = words.get(word)
      if pair is None:
        pair = words[word] = self._ids.get(word.lower(), -1), self._ids.get(word, -1)
      pairs.append(pair)
    if pairs:
      ids_2S[:, long] = np.array(pairs).T
    if len(words) > _REMEMBERED:
      words.clear()
    return ids_2S


def _symbols(text):
  """(begin, end [S]): characters of each symbol; a line break is a symbol that no entry has."""
  codes_C = characters.codes(text)
  kinds_C = characters.kinds(codes_C)
  letter_C = kinds_C == characters.LETTER
  goes_on_C = letter_C[1:] & letter_C[:-1]
  unit_C = (kinds_C != characters.BLANK) | (codes_C == 10)
  begin_S = np.flatnonzero(unit_C & ~np.concatenate([[False], goes_on_C])[: len(codes_C)])
  end_S = np.flatnonzero(unit_C & ~np.concatenate([goes_on_C, [False]])[: len(codes_C)]) + 1
  return begin_S, end_S


def _apart(at, size):
  """The places, from the left, that are at least `size` after the previously chosen one."""
  if not (np.diff(at) < size).any():
    return at
  taken, end = [], -1
  for place in at.tolist():
    if place >= end:
      taken.append(place)
      end = place + size
  return np.array(taken, np.int64)
