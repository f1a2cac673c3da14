"""The tokens of a split, in shards: each shard is mapped or read at its first use, and tokens are
gathered by position.

T tokens, S sentences, D documents.
"""

import ctypes
import errno
import functools
import os
import signal
from typing import NamedTuple

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage

OFFSETS = np.uint32  # of the offsets within a shard
PART_SENTENCES = 1 << 25  # indexed at a time: a quarter GiB of offsets
# Smaller arrays are read: a map keeps a file open, and there may be thousands of small shards
_MAPPED_BYTES = 1 << 20
_MAPPED = {}  # {file: its mapped bytes}
_HEADER = 128  # bytes that np.save writes before an array of one axis


class Shard(NamedTuple):
  """The arrays of a shard."""

  tokens: np.ndarray  # [T]
  sentences: np.ndarray  # [S+1] token offsets
  documents: np.ndarray  # [D+1] sentence offsets
  units: np.ndarray | None = None  # [T]

  @property
  def sizes(self) -> tuple:
    """(T, S, D)."""
    return len(self.tokens), len(self.sentences) - 1, len(self.documents) - 1


class StoredShard:
  """As Shard, in files. Each access maps or reads the array again, so callers keep it."""

  def __init__(self, folder, entry: dict, dtype: str, has_units: bool, in_ram: bool = False):
    """Raises UserError unless each file has the size that the manifest's `entry` gives. in_ram:
    reads tokens and units now.
    """
    self._stem = os.path.join(os.fspath(folder), entry['name'])
    self._dtype = np.dtype(dtype)
    self._has_units = has_units
    self.sizes = entry['tokens'], entry['sentences'], entry['documents']  # (T, S, D)
    self._kept = {}
    for array in ('tokens', 'sentences', 'documents', *['units'] * has_units):
      kind, length = self._kind(array)
      try:
        whole = os.stat(self.file(array)).st_size == _HEADER + length * kind.itemsize
      except OSError:
        whole = False
      if not whole:
        load(self.file(array), kind, length)  # raises with the reason
      if in_ram and array in ('tokens', 'units'):
        self._kept[array] = load(self.file(array), kind, length)

  tokens = property(lambda self: self._array('tokens', True))
  sentences = property(lambda self: self._array('sentences', False))
  documents = property(lambda self: self._array('documents', False))
  units = property(lambda self: self._array('units', True) if self._has_units else None)

  def file(self, array: str) -> str:
    return f'{self._stem}.{array}.npy'

  def _kind(self, array):
    """(dtype, length) of an array."""
    tokens, sentences, documents = self.sizes
    return dict(
      tokens=(self._dtype, tokens),
      units=(np.dtype(np.uint8), tokens),
      sentences=(np.dtype(OFFSETS), sentences + 1),
      documents=(np.dtype(OFFSETS), documents + 1),
    )[array]

  def _array(self, array, mapped):
    if array in self._kept:
      return self._kept[array]
    kind, length = self._kind(array)
    return load(self.file(array), kind, length, mapped and length * kind.itemsize >= _MAPPED_BYTES)


class Split:
  """The tokens of one split, in the order of its shards, and the offsets of its sentences and
  documents.

  A large split is processed in parts: part k holds the shards k, k + num_parts, … and is itself a
  split, so that one part's index fits into memory and still covers the whole text. A split's open
  maps are freed with it.

  Attributes:
    num_tokens: T. num_sentences: S. num_documents: D.
    bytes: bytes of the UTF-8 text that was tokenised; 0 if unknown.
    num_parts: 1 up to PART_SENTENCES sentences.
  """

  def __init__(self, shards: list[Shard | StoredShard], bytes: int = 0):
    self._shards = [s for s in shards if s.sizes[0]]
    sizes = np.array([s.sizes for s in self._shards], np.int64).reshape(-1, 3)
    self._starts = np.append(0, np.cumsum(sizes[:, 0]))
    self.num_tokens, self.num_sentences, self.num_documents = sizes.sum(axis=0).tolist()
    self.num_parts = max(1, min(-(-self.num_sentences // PART_SENTENCES), len(self._shards)))
    self.bytes, self._open = bytes, {}

  def part(self, number: int) -> 'Split':
    """Part `number` of num_parts; the split itself if there is one part."""
    return Split(self._shards[number :: self.num_parts]) if self.num_parts > 1 else self

  @functools.cached_property
  def sentence_starts(self) -> np.ndarray:
    """int64 [S+1], token offsets; the last is T."""
    return _joined(self._shards, 'sentences', 0)

  @functools.cached_property
  def document_starts(self) -> np.ndarray:
    """int64 [D+1], sentence indices; the last is S."""
    return _joined(self._shards, 'documents', 1)

  def gather(self, positions) -> np.ndarray:
    """The tokens at `positions` (int64, any shape) as int32 of the same shape.

    Fastest if the last axis of two or more holds consecutive positions: the shard is then looked
    up once per row.

    Raises IndexError: a position below 0 or beyond the last token.
    """
    return self._gather('tokens', positions)

  def gather_units(self, positions) -> np.ndarray:
    """The unit marks at `positions`, as `gather`; only for a corpus with marks."""
    return self._gather('units', positions)

  def _array(self, name, shard):
    """The tokens or units of a shard, cached."""
    array = self._open.get((name, shard))
    if array is None:
      array = self._open[name, shard] = getattr(self._shards[shard], name)
    return array

  def _gather(self, name, positions):
    positions = np.asarray(positions, np.int64)
    if positions.size == 0:
      return np.zeros(positions.shape, np.int32)
    rows_RL = positions.reshape(-1, positions.shape[-1] if positions.ndim > 1 else positions.size)
    low_R, high_R = rows_RL.min(axis=1), rows_RL.max(axis=1)
    if low_R.min() < 0 or high_R.max() >= self.num_tokens:
      raise IndexError(
        f'positions {low_R.min()} to {high_R.max()} are not all in a split of {self.num_tokens} '
        'tokens'
      )
    if len(self._shards) == 1:
      return self._array(name, 0)[positions].astype(np.int32)
    shard_R = self._starts.searchsorted(low_R, 'right') - 1
    out_RL = np.empty(rows_RL.shape, self._array(name, shard_R[0]).dtype)
    local_RL = rows_RL - self._starts[shard_R][:, None]
    crosses_R = high_R >= self._starts[shard_R + 1]
    for row, shard in enumerate(shard_R.tolist()):
      if not crosses_R[row]:
        # in range, as checked above; 'clip' needs no buffer
        self._array(name, shard).take(local_RL[row], out=out_RL[row], mode='clip')
    for row in np.flatnonzero(crosses_R).tolist():
      out_RL[row] = self._gather_run(name, rows_RL[row])
    return out_RL.reshape(positions.shape).astype(np.int32)

  def _gather_run(self, name, positions_L) -> np.ndarray:
    """Tokens at any positions over several shards: one `take` for each stretch within a shard."""
    shard_L = self._starts.searchsorted(positions_L, 'right') - 1
    local_L = positions_L - self._starts[shard_L]
    out_L = np.empty(len(positions_L), self._array(name, shard_L[0]).dtype)
    edges = [0, *(np.flatnonzero(np.diff(shard_L)) + 1).tolist(), len(positions_L)]
    for a, b in zip(edges[:-1], edges[1:]):
      self._array(name, int(shard_L[a])).take(local_L[a:b], out=out_L[a:b], mode='clip')
    return out_L


def joined(splits) -> Split:
  """Several splits as one, in this order."""
  return Split([shard for s in splits for shard in s._shards], sum(s.bytes for s in splits))


def _joined(shards, name, counted) -> np.ndarray:
  """Offsets over all shards, from those within each; UserError if they do not fit its `sizes`."""
  out, at = np.zeros(1 + sum(s.sizes[counted + 1] for s in shards), np.int64), 0
  for shard in shards:
    offsets = getattr(shard, name)
    mine = out[at : at + len(offsets)]
    np.add(offsets[1:], out[at], out=mine[1:], dtype=np.int64)
    if offsets[0] != 0 or offsets[-1] != shard.sizes[counted] or (mine[1:] < mine[:-1]).any():
      where = shard.file(name) if isinstance(shard, StoredShard) else name
      raise errors.UserError(
        f'The offsets {where} do not run up to {shard.sizes[counted]}: prepare the corpus again '
        'into a new folder.'
      )
    at += len(offsets) - 1
  return out


def load(path, dtype, length: int, mapped: bool = False) -> np.ndarray:
  """Reads or maps a .npy file; UserError unless it has `length` numbers of `dtype`."""
  storage.check_file(path)
  try:
    array = np.load(path, mmap_mode='r' if mapped else None, allow_pickle=False)
  except FileNotFoundError as e:
    raise errors.damaged_corpus(f'{path} is missing') from e
  except OSError as e:
    if e.errno in (errno.EMFILE, errno.ENFILE):
      raise errors.UserError(
        f'{path}: too many files are open; allow more of them (ulimit -n 16384), or set '
        '--config.run.corpus_cache=ram.'
      ) from e
    raise errors.damaged_corpus(f'{path} cannot be read ({e.strerror or e})') from e
  except (ValueError, EOFError) as e:
    raise errors.damaged_corpus(f'{path} is cut or damaged') from e
  if array.dtype != dtype or array.shape != (length,):
    raise errors.damaged_corpus(
      f'{path} holds {array.size} numbers of {array.dtype}, the manifest says {length} of '
      f'{np.dtype(dtype)}'
    )
  if mapped:
    _MAPPED[path] = os.stat(path).st_size
    _name_cut_files()
  return array


@functools.cache  # once in a process; keeps the handler
def _name_cut_files():
  """Ends the process with a sentence at SIGBUS: a mapped file was cut. A handler in Python would
  never run, since it waits for the end of the failing instruction.
  """

  def end(_):
    cut = [file for file, size in _MAPPED.items() if _size(file) != size]
    text = (
      f'{cut[0]} was cut while it was read: copy the corpus again, or prepare it into a new '
      'folder. Then run'
      if cut
      else 'A mapped file could not be read (SIGBUS): run'
    )
    os.write(2, f'error: {text} the same command again. Checkpoints of a run are kept.\n'.encode())
    os._exit((errors.UserError if cut else errors.TransientError).code)

  handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(end)
  ctypes.CDLL(None).signal(signal.SIGBUS, handler)
  return handler


def _size(file):
  try:
    return os.stat(file).st_size
  except OSError:  # deleted, but still mapped
    return _MAPPED[file]
