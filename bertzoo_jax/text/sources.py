"""Streams documents from files and datasets, decodes strictly, and counts the text it leaves out.

finding.py describes the names of sources. Files may be packed (unpacking.py) and of any kind of
formats.py. A document here is a list of paragraphs without line ends.
"""

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

  Attributes:
    dropped: counts of the text left out so far.
    place: 'file:line' of the reading ('file:row' in parquet).
    position: (number of the source, number of the file) of the reading.
    bytes_read: of the files (packed size), for a progress bar; the sources' `bytes` at the end.
  """

  def __init__(self, sources, where=()):
    """Args: sources: of finding.find. where: (key, value) pairs that records must have; values of
    one key are alternatives.
    """
    self.sources, self.where, self.dropped = tuple(sources), tuple(where), Dropped()
    self.position = 0, 0
    self._file, self._before = formats.File(''), 0

  @property
  def place(self) -> str:
    return self._file.place

  @property
  def bytes_read(self) -> int:
    return self._before + self._file.done

  def documents(self, start=(0, 0)):
    """Yields each document as a list of non-empty paragraphs, from the position `start` on."""
    for number, source in enumerate(self.sources):
      if number >= start[0]:
        first = start[1] if number == start[0] else 0
        self.position = number, first
        yield from self._source(source, first)

  def _source(self, source, first):
    wanted = records.Wanted(source.option or 'text', self.where)
    if source.dataset:
      file = formats.File(source.dataset, sum(source.sizes), self.dropped.add)
      yield from self._documents(
        file, formats.texts(file, formats.examples(file, wanted), wanted, 'example')
      )
    for i in range(first, len(source.files)):
      self.position = self.position[0], i
      file = formats.File(str(source.files[i]), source.sizes[i], self.dropped.add)
      try:
        with storage.path(file.name).open('rb') as raw:
          yield from self._documents(file, formats.paragraphs(file, raw, source.option, wanted))
      except (FileNotFoundError, PermissionError, IsADirectoryError) as e:
        raise errors.UserError(f'{file.name} cannot be read ({e.strerror}).') from e
    if not first:
      wanted.end()
      for name in source.again:
        self.dropped.add('file that links reach twice, read once', 0, name)

  def _documents(self, file, paragraphs):
    self._file = file
    yield from file.documents(paragraphs)
    self._before, file.done = self._before + file.size, 0


def encode(paragraphs: list[str]) -> bytes:
  """A document as UTF-8, a paragraph a line. Raises UnicodeEncodeError for a lone surrogate."""
  return '\n'.join(paragraphs).encode('utf-8')
