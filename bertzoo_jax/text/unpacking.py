"""Unpacks files of gzip, bzip2, xz or Zstandard into blocks; damage raises an exception."""

import bz2
import lzma
import zlib

import zstandard

BLOCK = 1 << 20  # bytes per block, approximately
# and any OSError without an errno
DAMAGED = (EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError)
NAMES = ('.gz', '.bz2', '.xz', '.zst')
# Bytes 1 to 3 of a Zstandard frame that carries no data; some packers begin with one
_SKIPPABLE = b'\x2a\x4d\x18'
_PACKED = 1 << 16  # bytes read at a time
# Zstandard alone cannot stop at BLOCK. 4 packed bytes can unpack to 128 KiB, so a piece yields at
# most 32 MiB.
_PIECE = 1 << 10


def blocks(raw, head: bytes):
  """Yields the content of a file, BLOCK bytes or more at a time; the last block may be shorter.

  raw: the file, opened for reading bytes, at its start. head: see `decompressor`.
  Raises DAMAGED, OSError: after all content that could be read.
  """
  new, ready, damage = decompressor(head), bytearray(), None
  try:
    for piece in _unpacked(raw, new, BLOCK) if new else iter(lambda: raw.read(BLOCK), b''):
      ready += piece
      if len(ready) >= BLOCK:
        yield bytes(ready)
        ready.clear()
  except (*DAMAGED, OSError) as e:
    damage = e
  if ready:
    yield bytes(ready)
  if damage:
    raise damage


def inside(raw, head: bytes, size: int) -> bytes:
  """The first `size` bytes, or less, of a file's content; arguments as of `blocks`."""
  data, new = b'', decompressor(head)
  if not new:
    return head[:size]
  try:
    for piece in _unpacked(raw, new, size):
      data += piece
      if len(data) >= size:
        break
  except (*DAMAGED, OSError):
    pass  # raised again when the file is read
  return data[:size]


def _unpacked(raw, new, most):
  """Pieces of concatenated packed streams (dumps of Wikipedia have thousands).

  The libraries' own file classes take damage at the begin of a stream for the end (bz2, lzma), or a
  cut file for a complete one (zstandard): here both raise. Zeros between streams are padding.
  """
  data = raw.read(_PACKED)
  while data:
    stream = new()
    while not stream.eof:
      yield stream.decompress(data, most)
      data = b''
      if stream.needs_input and not stream.eof and not (data := raw.read(_PACKED)):
        raise EOFError('a packed stream is cut')
    data = stream.unused_data.lstrip(b'\0')
    while not data and (more := raw.read(_PACKED)):
      data = more.lstrip(b'\0')


def decompressor(head):
  """A function that makes a decompressor of one stream; None if the file is not packed. head: its
  first bytes, at least 6, or all.
  """
  if head.startswith(b'\x1f\x8b'):
    return _Member
  if head.startswith(b'BZh'):
    return bz2.BZ2Decompressor
  if head.startswith(b'\xfd7zXZ\x00'):
    return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ)
  if head.startswith(b'\x28\xb5\x2f\xfd') or head[1:4] == _SKIPPABLE and head[0] >> 4 == 5:
    return _Frame
  return None


class _Member:
  """A member of a gzip file, with the interface of the standard library's other decompressors."""

  def __init__(self):
    self._member = zlib.decompressobj(16 + zlib.MAX_WBITS)

  eof = property(lambda self: self._member.eof)
  needs_input = property(lambda self: not self._member.unconsumed_tail)
  unused_data = property(lambda self: self._member.unused_data)

  def decompress(self, data: bytes, most: int) -> bytes:
    return self._member.decompress(self._member.unconsumed_tail + data, most)


class _Frame:
  """A Zstandard frame, likewise."""

  def __init__(self):
    self._frame = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
    self._packed = b''

  eof = property(lambda self: self._frame.eof)
  needs_input = property(lambda self: not self._packed)
  unused_data = property(lambda self: self._frame.unused_data + self._packed)

  def decompress(self, data: bytes, _) -> bytes:
    data = self._packed + data if self._packed else data
    piece, self._packed = data[:_PIECE], data[_PIECE:]
    return self._frame.decompress(piece)
