"""From files and datasets to documents: streams, decodes strictly, and counts whatever it leaves
out.

A source is named as finding.py says. Files may be
packed (unpacking.py) and of any kind of formats.py. A document here is a list of paragraphs without
line ends.
"""

import hashlib

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.text import formats
from bertzoo_jax.text import records


class Dropped:
  """Dropped text by reason: {reason: {'count', 'bytes', 'first': its first place}}."""

  def __init__(self):
    self.reasons = {}

  def add(self, reason: str, size: int, where: str) -> None:
    entry = self.reasons.setdefault(reason, dict(count=0, bytes=0, first=where))
    entry['count'] += 1
    entry['bytes'] += size


class Reader:
  """Streams the documents of sources in order.

  A source of weight w is read floor(w) times, and once more for the documents whose hash, which
  depends on their text alone, lies below w − floor(w). Copies of a document are a whole reading
  apart and never share a row.

  Attributes:
    dropped: counts of left out text so far; a second reading of a source is not counted again.
    place: 'file:line' of the reading ('file:row' in parquet).
    copy: which reading of its source this is, from 0. reading: 2¹⁶ · number of the source + copy.
    position: (number of the source, copy, number of the file) of the reading.
    bytes_read: of the files (packed size), for a progress bar; the sources' `bytes` at the end.
  """

  def __init__(self, sources, where=()):
    """Args: sources: of finding.find. where: (key, value) pairs that records must have; values of
    one key are alternatives.
    """
    self.sources, self.where, self.dropped = tuple(sources), tuple(where), Dropped()
    self.copy, self.reading, self.position = 0, 0, (0, 0, 0)
    self._file, self._before = formats.File(''), 0

  @property
  def place(self) -> str:
    return self._file.place

  @property
  def bytes_read(self) -> int:
    return self._before + self._file.done

  def documents(self, start=(0, 0, 0)):
    """Yields each document as a list of non-empty paragraphs, from the position `start` on."""
    for number, source in enumerate(self.sources):
      for self.copy in range(source.readings):
        if (number, self.copy) < start[:2]:
          continue
        first = start[2] if (number, self.copy) == start[:2] else 0
        self.position = number, self.copy, first
        self.reading = (number << 16) + min(self.copy, 2**16 - 1)
        share = source.weight - self.copy
        for document in self._source(source, first):
          if share >= 1 or _lot(document) < share:
            yield document
          else:
            self._add(
              f'document that weight {source.weight:g} leaves out',
              sum(len(p.encode('utf-8', 'surrogatepass')) + 1 for p in document),
              self.place,
            )

  def _source(self, source, first):
    wanted = records.Wanted(source.option or 'text', self.where)
    if source.dataset:
      file = formats.File(source.dataset, sum(source.sizes), self._add)
      yield from self._documents(file, formats.dataset(file, wanted))
    for i in range(first, len(source.files)):
      self.position = (*self.position[:2], i)
      file = formats.File(str(source.files[i]), source.sizes[i], self._add)
      try:
        with storage.path(file.name).open('rb') as raw:
          yield from self._documents(file, formats.paragraphs(file, raw, source.option, wanted))
      except (FileNotFoundError, PermissionError, IsADirectoryError) as e:
        raise errors.UserError(f'{file.name} cannot be read ({e.strerror}).') from e
    if not first:
      wanted.end()
      for name in source.again:
        self._add('file that links reach twice, read once', 0, name)

  def _documents(self, file, paragraphs):
    self._file = file
    yield from file.documents(paragraphs)
    self._before, file.done = self._before + file.size, 0

  def _add(self, reason, size, where):
    if not self.copy:
      self.dropped.add(reason, size, where)


def _lot(document) -> float:
  """A number from 0 to below 1 that depends on a document's text alone, and on nothing that splits
  or samples it elsewhere.
  """
  digest = hashlib.blake2b(
    '\n'.join(document).encode('utf-8', 'surrogatepass'), digest_size=8, person=b'weight'
  ).digest()
  return int.from_bytes(digest, 'little') / 2.0**64


def encode(paragraphs: list[str]) -> bytes:
  """A document as UTF-8, a paragraph a line. Raises UnicodeEncodeError for a lone surrogate."""
  return '\n'.join(paragraphs).encode('utf-8')
