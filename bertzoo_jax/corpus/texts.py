"""The text of a corpus as `prepare` reads it: filtered, without repeats, in chunks of documents."""

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.common import progress
from bertzoo_jax.common import storage
from bertzoo_jax.corpus import shards
from bertzoo_jax.text import duplicates
from bertzoo_jax.text import sources

# CORPUS/survey.part/: hashes of the text, while repeats are looked for
SURVEY = 'survey.part'


def conditions(where) -> tuple[tuple[str, str], ...]:
  """(key, value) of each 'key=value'."""
  pairs = [tuple(w.partition('=')[::2]) for w in where]
  if bad := [w for w, (key, _) in zip(where, pairs) if '=' not in w or not key]:
    raise errors.UserError(f'--where={bad[0]}: write key=value, such as lang=et.')
  return tuple(pairs)


@dataclasses.dataclass
class Text:
  """The documents of a plan: from the sources, without repeated and excluded texts."""

  inputs: list  # the sources, as finding.find returns them
  where: tuple  # as `conditions` returns it
  excluded: list  # sources of text to leave out, as finding.find returns them
  section: object  # config.corpus
  out: object  # CORPUS
  say: Callable | None  # prints a line; None in other processes
  _repeated: duplicates.Repeats | None = None

  @property
  def bytes(self) -> int:
    """Bytes of the sources' files."""
    return sum(s.bytes for s in self.inputs)

  def reader(self) -> sources.Reader:
    return sources.Reader(self.inputs, self.where)

  def documents(self, reader, start=duplicates.BEGINNING):
    """Yields (document as bytes, place, its number, Start of its file) of kept, valid documents."""
    for number, file_start, paragraphs in duplicates.kept(
      reader, self._survey(), self.section.duplicates, self.section.min_chars, start
    ):
      try:
        document = sources.encode(paragraphs)
      except UnicodeEncodeError:
        reader.dropped.add('text with a lone surrogate', sum(map(len, paragraphs)), reader.place)
        continue
      yield document, reader.place, number, file_start

  def chunks(self, reader, chunk_bytes, begin=shards.BEGINNING):
    """Documents in chunks of at least `chunk_bytes` each, from the chunk that begins at `begin` on.

    Their borders depend on the text alone.
    """
    index, documents, size, first, chunk_begin = begin.index, [], 0, '', begin
    for document, place, number, file_start in self.documents(reader, begin.file):
      if number < begin.document:
        continue
      if not documents:
        first, chunk_begin = place, shards.Begin(index, number, file_start)
      documents.append(document)
      size += len(document)
      if size >= chunk_bytes:
        yield shards.Chunk(index, documents, first, reader.bytes_read, chunk_begin)
        index, documents, size = index + 1, [], 0
    if documents:
      yield shards.Chunk(index, documents, first, reader.bytes_read, chunk_begin)

  def save(self) -> None:
    """Writes the repeats into CORPUS, for later attempts and other processes."""
    folder = self.out / shards.PARTS
    folder.mkdir(parents=True, exist_ok=True)
    if duplicates.load(folder) is None:
      duplicates.save(folder, self._survey())

  def for_workers(self):
    """The same text, to be sent to other processes: they read the saved repeats."""
    return dataclasses.replace(self, say=None, _repeated=None)

  @property
  def repeated(self) -> tuple[int, int]:
    """Number of documents, and of longer paragraphs, that repeat earlier ones."""
    return tuple(self._survey().counts[:2].tolist())

  @property
  def size(self) -> int:
    """Bytes of text after unpacking, without markup, repeats included."""
    return int(self._survey().counts[2])

  def _survey(self):
    # without it nothing here is of this plan
    if self._repeated is None and (self.out / 'plan.json').exists():
      self._repeated = duplicates.load(self.out / shards.PARTS)
    if self._repeated is None and self.say is None:
      raise errors.UserError(
        f'{self.out}/{shards.PARTS} differs from the file of the launching machine: can the '
        'workers read --out?'
      )
    if self._repeated is None:
      excluded = duplicates.hashes_of(sources.Reader(self.excluded)) if self.excluded else set()
      with (
        progress.Meter('looking for duplicates', self.bytes, self.say) as meter,
        self._scratch() as folder,
      ):
        parts = int(np.clip(self.bytes >> 27, 1, 4096))  # of some 100 MB, up to half a terabyte
        self._repeated = duplicates.find(self.reader(), excluded, meter.update, folder, parts)
    return self._repeated

  @contextlib.contextmanager
  def _scratch(self):
    """A local folder for hashes: in CORPUS, if that is local, where a killed run leaves it."""
    if storage.is_remote(self.out):
      with tempfile.TemporaryDirectory() as folder:
        yield storage.path(folder) / SURVEY
    else:
      yield self.out / SURVEY
