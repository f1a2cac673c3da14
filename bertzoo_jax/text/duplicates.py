"""Documents and paragraphs to leave out: repeats, and text that must not be trained on.

The text is read twice. The first reading hashes every document and every longer paragraph, and
writes the hashes to files, equal hashes to the same file. Sorting one file at a time finds the
repeats, so memory grows only with these (8 bytes each). The second reading (`kept`) keeps the first
occurrence. Differences of blanks, line breaks and Unicode composition are ignored.
"""

import hashlib
import os
import unicodedata
from typing import NamedTuple

import numpy as np

from bertzoo_jax.common import storage

LEAST = 100  # characters; a shorter paragraph ("Yes.", a heading, a date) may repeat and is kept
CHOICES = {'documents+paragraphs': (True, True), 'documents': (True, False), 'keep': (False, False)}
_BLOCK = 1 << 16  # entries written at a time


class Repeats(NamedTuple):
  """Numbers of the texts to leave out, ascending, in reading order."""

  documents: np.ndarray
  paragraphs: np.ndarray  # those of at least LEAST characters
  excluded_documents: np.ndarray
  excluded_paragraphs: np.ndarray
  counts: np.ndarray  # [repeated documents, repeated paragraphs, bytes of text read]


def normal(text: str) -> str:
  """A text in the form that is compared: composed, all blanks and line breaks as single blanks."""
  return unicodedata.normalize('NFC', ' '.join(text.split()))


def find(reader, excluded, say_read, folder, parts=1) -> Repeats:
  """Reads all documents and finds the repeats, and the texts of `excluded`.

  reader: sources.Reader. excluded: set of hashes from `hashes_of`. say_read: called with the bytes
  read so far. folder: for hashes on disk, 24 bytes per document and longer paragraph. It is made
  here, or emptied, and removed at the end. parts: number of files for the hashes; one is in memory
  at a time.
  """
  _clear(folder)
  folder.mkdir(parents=True)
  documents, paragraphs = _Log(folder / 'documents', parts), _Log(folder / 'paragraphs', parts)
  size = 0
  for number, paras in enumerate(reader.documents()):
    say_read(reader.bytes_read)
    size += sum(map(size_of, paras))
    long, whole = _hashes(paras)
    documents.add(whole, number)
    for h in long:
      paragraphs.add(h, number)
  excluded = np.array(sorted(excluded), np.uint64)
  twice, bad = _search(documents, excluded, np.zeros(0, np.int64))
  again, bad_paragraphs = _search(paragraphs, excluded, np.union1d(twice, bad))
  _clear(folder)
  counts = np.array([len(twice), len(again), size])
  return Repeats(np.setdiff1d(twice, bad), again, bad, bad_paragraphs, counts)


def _clear(folder):
  if folder.exists():
    folder.rmtree()


def _search(log, excluded, gone):
  """(numbers of entries that repeat earlier ones; numbers of entries in `excluded`).

  Entries of documents in `gone` are ignored for repeats.
  """
  again, bad = [], []
  for entries in log.parts():
    bad.append(entries['number'][np.isin(entries['hash'], excluded)])
    entries = entries[~np.isin(entries['document'], gone)]
    again.append(entries['number'][_repeated(entries['hash'])])
  return np.sort(np.concatenate(again)), np.sort(np.concatenate(bad))


def hashes_of(reader) -> set[int]:
  """The hashes of the documents and longer paragraphs of texts to be excluded."""
  out = set()
  for paras in reader.documents():
    long, whole = _hashes(paras)
    out.update(long, [whole])
  return out


class Start(NamedTuple):
  """The begin of a reading: position of sources.Reader; documents and longer paragraphs before."""

  position: tuple[int, int] = (0, 0)
  documents: int = 0
  paragraphs: int = 0


BEGINNING = Start()


def kept(reader, repeats: Repeats, choice: str, min_chars: int, start: Start = BEGINNING):
  """Yields (number of the document, Start of its file, document) of the documents that are kept,
  without paragraphs that are left out.

  Texts that are left out are counted in `reader.dropped`.
  """
  drops_documents, drops_paragraphs = CHOICES[choice]
  place, file_start = start.paragraphs, start
  for number, paras in enumerate(reader.documents(start.position), start.documents):
    if reader.position != file_start.position:
      file_start = Start(reader.position, number, place)
    first, place = place, place + sum(len(p) >= LEAST for p in paras)
    if _has(repeats.excluded_documents, number):
      _drop(reader, 'document of --exclude', paras)
    elif drops_documents and _has(repeats.documents, number):
      _drop(reader, 'document that occurred before', paras)
    else:
      gone = [('paragraph of --exclude', repeats.excluded_paragraphs)]
      gone += [('paragraph that occurred before', repeats.paragraphs)] * drops_paragraphs
      for reason, numbers in gone:
        paras = _without(paras, first, reader, reason, numbers, place)
      paras = [p for p in paras if p is not None]
      if paras and sum(map(len, paras)) >= min_chars:
        yield number, file_start, paras
      elif paras:
        _drop(reader, f'document under {min_chars} characters', paras)


def save(folder, repeats: Repeats) -> None:
  """Writes the repeats, for a second attempt; the last file marks them complete."""
  for name, array in repeats._asdict().items():
    storage.write_array(folder / f'repeated_{name}.npy', array)


def load(folder) -> Repeats | None:
  """The files that `save` wrote; None if one is missing."""
  arrays = []
  for name in Repeats._fields:
    file = storage.path(folder) / f'repeated_{name}.npy'
    if not file.exists():
      return None
    with file.open('rb') as f:
      arrays.append(np.load(f, allow_pickle=False))
  return Repeats(*arrays)


def _hashes(paras):
  """(hashes of the paragraphs of at least LEAST characters, hash of the document)."""
  normals = [normal(p) for p in paras]
  digest = lambda text: int.from_bytes(
    hashlib.blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=8).digest(), 'little'
  )
  return [digest(n) for p, n in zip(paras, normals) if len(p) >= LEAST], digest(' '.join(normals))


def _repeated(hashes):
  """The indices of entries, in reading order, that repeat an earlier one."""
  if not len(hashes):
    return np.zeros(0, np.int64)
  order = np.argsort(hashes, kind='stable')
  sorted_hashes = hashes[order]
  return order[np.append(False, sorted_hashes[1:] == sorted_hashes[:-1])]


def _has(numbers, number) -> bool:
  i = numbers.searchsorted(number)
  return i < len(numbers) and numbers[i] == number


def _without(paras, first, reader, reason, numbers, end):
  """The paragraphs, with None in place of those to leave out."""
  begin, stop = numbers.searchsorted((first, end))
  if begin == stop:
    return paras
  mine, out, number = set(numbers[begin:stop].tolist()), [], first
  for p in paras:
    if p is not None and len(p) >= LEAST and number in mine:
      _drop(reader, reason, [p])
      out.append(None)
    else:
      out.append(p)
    number += p is None or len(p) >= LEAST
  return out


def _drop(reader, reason, paras):
  reader.dropped.add(reason, sum(map(size_of, paras)), reader.place)


def size_of(paragraph: str) -> int:
  """Bytes of a paragraph as UTF-8, with the end of its line."""
  plain = paragraph.isascii()
  return 1 + len(paragraph if plain else paragraph.encode('utf-8', 'surrogatepass'))


class _Log:
  """Numbered hashes of documents or paragraphs, in files by hash modulo the number of files."""

  _ENTRY = np.dtype([('hash', np.uint64), ('number', np.int64), ('document', np.int64)])

  def __init__(self, folder, parts):
    folder.mkdir()
    self._files = [os.fspath(folder / f'{i:04d}') for i in range(parts)]
    self._buffer, self._count = [], 0

  def add(self, hash, document):
    self._buffer.append((hash, self._count, document))
    self._count += 1
    if len(self._buffer) == _BLOCK:
      self._flush()

  def _flush(self):
    entries, self._buffer = np.array(self._buffer, self._ENTRY), []
    part = entries['hash'] % np.uint64(len(self._files))
    order = np.argsort(part, kind='stable')
    borders = np.searchsorted(part[order], np.arange(len(self._files) + 1, dtype=np.uint64))
    for file, first, end in zip(self._files, borders[:-1], borders[1:]):
      with open(file, 'ab') as f:  # too many files to keep them open
        f.write(entries[order[first:end]].tobytes())  # tofile's errors have no number

  def parts(self):
    """Yields the entries of each file, in the order in which they were added."""
    self._flush()
    for file in self._files:
      yield np.fromfile(file, self._ENTRY)
