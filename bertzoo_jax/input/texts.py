"""The text of a corpus as `prepare` reads it, as often as it must: filtered, without repeats, in chunks of documents."""

from bertzoo_jax import errors
from bertzoo_jax.input import duplicates
from bertzoo_jax.input import meter
from bertzoo_jax.input import shards
from bertzoo_jax.input import sources


def conditions(where) -> tuple[tuple[str, str], ...]:
  """(key, value) of each 'key=value'."""
  pairs = [tuple(w.partition('=')[::2]) for w in where]
  if bad := [w for w, (key, _) in zip(where, pairs) if '=' not in w or not key]:
    raise errors.UserError(f'--where={bad[0]}: write key=value, such as lang=et.')
  return tuple(pairs)


class Text:
  """The documents of a plan: those of the sources, without what comes again or is to be excluded.

  Attributes:
    bytes: of the sources.
  """

  def __init__(self, found, where, excluded, section, out, say):
    """Args: found, excluded: of finding.find. where: of `conditions`. section: config.corpus. out: CORPUS. say: takes a line."""
    self._found, self._where, self._excluded, self._section, self._out, self._say = found, where, excluded, section, out, say
    self._repeated = None
    self.bytes = sum(s.bytes for s in found)

  def reader(self) -> sources.Reader:
    return sources.Reader(self._found, self._where)

  def documents(self, reader):
    """(document as bytes, place) of the documents that stay and are valid Unicode."""
    for paragraphs in duplicates.kept(reader, self._survey(), self._section.duplicates, self._section.min_chars):
      try:
        yield sources.encode(paragraphs), reader.place
      except UnicodeEncodeError:
        reader.dropped.add('text with a lone surrogate', sum(map(len, paragraphs)), reader.place)

  def chunks(self, reader, chunk_bytes):
    """Documents in chunks of at least `chunk_bytes` each: their borders depend on the text alone."""
    index, documents, size, first = 0, [], 0, ''
    for document, place in self.documents(reader):
      first = first or place
      documents.append(document)
      size += len(document)
      if size >= chunk_bytes:
        yield shards.Chunk(index, documents, first, reader.bytes_read)
        index, documents, size, first = index + 1, [], 0, ''
    if documents:
      yield shards.Chunk(index, documents, first, reader.bytes_read)

  @property
  def repeated(self) -> tuple[int, int]:
    """Documents, and longer paragraphs, that stand in the text before."""
    found = self._survey()
    return len(found.documents), len(found.paragraphs)

  def _survey(self):
    if self._repeated is None:
      folder = self._out / shards.PARTS
      self._repeated = duplicates.load(folder)
    if self._repeated is None:
      excluded = duplicates.hashes_of(sources.Reader(self._excluded)) if self._excluded else set()
      with meter.Meter('looking for duplicates', self.bytes, self._say) as progress:
        self._repeated = duplicates.find(self.reader(), excluded, progress.update)
      if (self._out / 'plan.json').exists():  # under this plan; a later attempt need not look again
        folder.mkdir(exist_ok=True)
        duplicates.save(folder, self._repeated)
    return self._repeated
