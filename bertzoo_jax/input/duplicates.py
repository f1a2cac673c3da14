"""What of a text stands in it before, or in texts that must not be trained on: documents and paragraphs to be left out.

Two readings. The first hashes every document and every longer paragraph and writes the hashes to a file; repeats are found by
sorting one slice of the hashes at a time, so that memory does not grow with the text. The second reading (`kept`) leaves out
what was found. Texts are the same if they are so but for blanks, line breaks and Unicode composition. The first place stays;
the copies that a source's weight makes are meant, and are no repeats.
"""

import hashlib
import pathlib
import tempfile
import unicodedata
from typing import NamedTuple

import numpy as np

from bertzoo_jax import errors
from bertzoo_jax import storage
from bertzoo_jax.input import corpus

LEAST = 100  # characters; a shorter paragraph may come again ("Yes.", a heading, a date) and stays
CHOICES = {'documents+paragraphs': (True, True), 'documents': (True, False), 'keep': (False, False)}
_SLICE = 1 << 24  # hashes sorted at a time
_BLOCK = 1 << 16  # entries written at a time


class Found(NamedTuple):
  """Numbers of what is left out, ascending: of documents, and of paragraphs of at least LEAST characters, in reading order;
  and how many of these two are repeats, the copies of a weight not counted again."""
  documents: np.ndarray
  paragraphs: np.ndarray
  excluded_documents: np.ndarray
  excluded_paragraphs: np.ndarray
  repeats: np.ndarray


def normal(text: str) -> str:
  """A text without what does not matter: composed, its blanks and line breaks single blanks."""
  return unicodedata.normalize('NFC', ' '.join(text.split()))


def find(reader, excluded, say_read) -> Found:
  """Reads all documents and finds what comes again, and what `excluded` holds.

  Args:
    reader: sources.Reader.
    excluded: set of hashes from `hashes_of`.
    say_read: called with the bytes read so far.
  """
  with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    documents, paragraphs = _Log(folder / 'documents'), _Log(folder / 'paragraphs')
    for paras in reader.documents():
      say_read(reader.bytes_read)
      long, whole = _hashes(paras)
      documents.add(whole, reader.reading, len(long))
      for h in long:
        paragraphs.add(h, reader.reading, 0)
    hashes, readings, counts = documents.close()
    twice, bad = _repeated(hashes, readings), _among(hashes, excluded)
    repeats = [_first_copies(readings, twice)]
    gone = np.zeros(len(hashes), bool)
    gone[twice] = gone[bad] = True
    owner_gone = np.repeat(gone, counts)
    hashes, readings, _ = paragraphs.close()
    again = _repeated(hashes, readings, owner_gone)
    repeats.append(_first_copies(readings, again))
    return Found(np.setdiff1d(twice, bad), again, bad, _among(hashes, excluded), np.array(repeats))


def _first_copies(readings, numbers) -> int:
  return int((readings[numbers] & 0xFFFF == 0).sum())


def hashes_of(reader) -> set[int]:
  """The hashes of the documents and longer paragraphs of texts to be excluded."""
  out = set()
  for paras in reader.documents():
    long, whole = _hashes(paras)
    out.update(long, [whole])
  return out


class Start(NamedTuple):
  """Where a reading begins: a position of sources.Reader, and how many documents and longer paragraphs come before it."""
  position: tuple[int, int, int] = (0, 0, 0)
  documents: int = 0
  paragraphs: int = 0


BEGINNING = Start()


def kept(reader, found: Found, choice: str, min_chars: int, start: Start = BEGINNING):
  """Yields (number of the document, Start of its file, document) of those that stay, without the paragraphs that do not.

  What is left out is counted in `reader.dropped`.
  """
  drops_documents, drops_paragraphs = errors.choose(choice, CHOICES, 'config.corpus.duplicates')
  place, of_file = start.paragraphs, start
  for number, paras in enumerate(reader.documents(start.position), start.documents):
    if reader.position != of_file.position:
      of_file = Start(reader.position, number, place)
    first, place = place, place + sum(len(p) >= LEAST for p in paras)
    if _has(found.excluded_documents, number):
      _drop(reader, 'document of --exclude', paras)
    elif drops_documents and _has(found.documents, number):
      _drop(reader, 'document that stands in the text before', paras)
    else:
      paras = _without(paras, first, reader, 'paragraph of --exclude', found.excluded_paragraphs, place)
      if drops_paragraphs:
        paras = _without(paras, first, reader, 'paragraph that stands in the text before', found.paragraphs, place)
      paras = [p for p in paras if p is not None]
      if paras and sum(map(len, paras)) >= min_chars:
        yield number, of_file, paras
      elif paras:
        _drop(reader, f'document under {min_chars} characters', paras)


def save(folder, found: Found) -> None:
  """Writes what was found, for a second attempt; the last file marks it whole."""
  for name, array in found._asdict().items():
    corpus.write_array(folder / f'repeated_{name}.npy', array)


def load(folder) -> Found | None:
  """What `save` wrote, or None if it is not all there."""
  arrays = []
  for name in Found._fields:
    file = storage.path(folder) / f'repeated_{name}.npy'
    if not file.exists():
      return None
    with file.open('rb') as f:
      arrays.append(np.load(f, allow_pickle=False))
  return Found(*arrays)


def _hashes(paras):
  """(hashes of the paragraphs of at least LEAST characters, hash of the document)."""
  normals = [normal(p) for p in paras]
  digest = lambda text: int.from_bytes(hashlib.blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=8).digest(), 'little')
  return [digest(n) for p, n in zip(paras, normals) if len(p) >= LEAST], digest(' '.join(normals))


def _repeated(hashes, readings, gone=None):
  """Numbers of the entries that repeat an earlier one, ascending. Those of `gone` neither repeat nor are repeated."""
  slices = np.uint64(-(-len(hashes) // _SLICE) or 1)
  out = []
  for i in range(int(slices)):
    mine = np.concatenate([first + np.flatnonzero(hashes[first:first + _SLICE] % slices == i) for first in range(0, len(hashes), _SLICE)] or [[]])
    mine = mine.astype(np.int64)
    if gone is not None:
      mine = mine[~gone[mine]]
    mine = mine[np.argsort(hashes[mine], kind='stable')]
    if not len(mine):
      continue
    h, reading = hashes[mine], readings[mine]
    new = np.append(True, h[1:] != h[:-1])
    owner = reading[np.maximum.accumulate(np.where(new, np.arange(len(mine)), 0))]
    # A reading is (source, copy): what stays is the first of each copy of the source that has it first.
    stays = (reading >> 16 == owner >> 16) & (new | np.append(True, reading[1:] != reading[:-1]))
    out.append(mine[~stays])
  return np.sort(np.concatenate(out)) if out else np.zeros(0, np.int64)


def _among(hashes, excluded):
  if not excluded:
    return np.zeros(0, np.int64)
  table = np.array(sorted(excluded), np.uint64)
  return np.concatenate([first + np.flatnonzero(np.isin(hashes[first:first + _SLICE], table)) for first in range(0, len(hashes), _SLICE)]
                        or [np.zeros(0, np.int64)]).astype(np.int64)


def _has(numbers, number) -> bool:
  i = numbers.searchsorted(number)
  return i < len(numbers) and numbers[i] == number


def _without(paras, first, reader, reason, numbers, end):
  """The paragraphs, None where they are left out."""
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
  if not reader.copy:  # the copies of a weight are not counted again
    reader.dropped.add(reason, sum(len(p.encode('utf-8', 'surrogatepass')) + 1 for p in paras), reader.place)


class _Log:
  """Entries (hash, reading, count) in files of raw numbers: written in blocks, read back as memory maps."""

  _DTYPES = np.uint64, np.uint32, np.uint32

  def __init__(self, path):
    self._files = [open(f'{path}.{i}', 'wb') for i in range(3)]
    self._buffer = []

  def add(self, *entry):
    self._buffer.append(entry)
    if len(self._buffer) == _BLOCK:
      self._flush()

  def _flush(self):
    for file, values, dtype in zip(self._files, zip(*self._buffer), self._DTYPES):
      np.array(values, dtype).tofile(file)
    self._buffer = []

  def close(self):
    self._flush()
    for file in self._files:
      file.close()
    return [np.memmap(f.name, d, 'r') if pathlib.Path(f.name).stat().st_size else np.zeros(0, d) for f, d in zip(self._files, self._DTYPES)]
