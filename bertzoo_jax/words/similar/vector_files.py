"""Files of word vectors in word2vec's formats, read a batch at a time, so that a file of any size
fits in memory.

Text: a line `words dimensions` (GloVe has none), then one word per line, its numbers separated by
blanks.
Binary: the same first line, then each word, a blank, its numbers as float32, and perhaps a line
break.
"""

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage

_BATCH = 1 << 14  # words
_MOST = 1 << 14  # numbers of a word
_LONGEST = 1 << 12  # bytes of a word; a longer one means another kind of file


def read(file):
  """Yields (words list[W], numbers float32 [W, D]).

  Raises UserError: no such file, or not of these formats, or cut.
  """
  sentence = (
    f"--similar={file} is not a file of word vectors: word2vec's text format has a line of two "
    'numbers, then a word and its numbers in each; its binary format the same with the numbers as '
    'float32'
  )
  with errors.unreadable(sentence, OSError), storage.path(file).open('rb') as f:
    yield from _batches(f)


def _batches(f):
  first = f.readline(_LONGEST * 16)
  fields = first.split()
  headed = len(fields) == 2 and fields[0].isdigit() and fields[1].isdigit()
  if not headed and len(fields) < 3:
    raise ValueError(f'it begins with {first[:30]!r}')
  size = int(fields[1]) if headed else len(fields) - 1
  if size > _MOST:
    raise ValueError(f'{size:,} numbers per word')
  count = int(fields[0]) if headed else None
  f.seek(f.tell() if headed else 0)
  rows = _binary(f, count, size) if headed and _is_binary(f, size) else _text(f, size)
  words, numbers, total = [], [], 0
  for word, row in rows:
    words.append(word)
    numbers.append(row)
    if len(words) == _BATCH:
      yield words, np.stack(numbers)
      words, numbers, total = [], [], total + _BATCH
  if count is not None and total + len(words) != count:
    raise ValueError(f'{total + len(words):,} words where its first line says {count:,}')
  if words:
    yield words, np.stack(numbers)


def _is_binary(f, size) -> bool:
  """Whether the next bytes are not a line of a word and `size` numbers."""
  start = f.tell()
  line = f.readline(_LONGEST + 64 * size)
  f.seek(start)
  fields = line.split()
  try:
    return not (len(fields) > size and [float(x) for x in fields[-size:]])
  except ValueError:
    return True


def _text(f, size):
  for number, line in enumerate(f, 1):
    fields = line.rstrip().rsplit(b' ', size)
    if len(fields) != size + 1:
      raise ValueError(f'line {number} after the first has not {size} numbers')
    yield fields[0].decode('utf-8', 'replace').strip(), np.array(fields[1:], np.float32)


def _binary(f, count, size):
  for _ in range(count):
    word = bytearray()
    while (c := f.read(1)) != b' ':
      if not c or len(word) > _LONGEST:
        raise ValueError('it ends within a word' if not c else f'a word of over {_LONGEST:,} bytes')
      word += c
    row = f.read(4 * size)
    if len(row) != 4 * size:
      raise ValueError('it ends within a vector')
    yield word.decode('utf-8', 'replace').strip(), np.frombuffer(row, np.float32)
