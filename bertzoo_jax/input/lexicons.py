"""Lexicons: files of phrases or entities, and where they stand in a text."""

import re

import numpy as np

from bertzoo_jax import errors
from bertzoo_jax import storage

_LONGEST = 64  # symbols of an entry; longer ones are left out, so that finding takes at most so many steps a character


def read(file) -> 'Lexicon':
  """Reads a lexicon: an entry a line, `entry` or `entry[TAB]frequency`; # begins a line of comment; UTF-8, any line ends."""
  try:
    data = storage.path(file).read_bytes()
    text = data.decode('utf-8-sig')
  except FileNotFoundError as e:
    raise errors.UserError(f'The lexicon {file} does not exist.') from e
  except UnicodeDecodeError as e:
    raise errors.UserError(f'The lexicon {file} is not UTF-8 (byte {e.start}): convert it.') from e
  entries = [line.split('\t')[0].strip() for line in re.split(r'\r\n|\r|\n', text) if not line.startswith('#')]
  lexicon = Lexicon([e for e in entries if e])
  lexicon.facts = dict(lexicon.facts, file=storage.path(file).name, sha256=storage.sha256(file))
  return lexicon


class Lexicon:
  """Entries, ready to be found in text."""

  def __init__(self, entries):
    self._entries = sorted(set(entries), key=lambda e: (-len(e), e))
    self.facts = dict(entries=len(self._entries))
    self._pattern = re.compile('|'.join(map(re.escape, self._entries))) if self._entries else None

  def find(self, text):
    """Where entries stand: (begin, end) int64 [N], ascending, not overlapping."""
    found = [m.span() for m in self._pattern.finditer(text)] if self._pattern else []
    spans = np.array(found, np.int64).reshape(-1, 2)
    return spans[:, 0], spans[:, 1]
