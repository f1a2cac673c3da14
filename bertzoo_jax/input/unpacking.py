"""Files packed with gzip, bzip2, xz or Zstandard as streams of plain bytes; known by content, damage is an exception."""

import bz2
import gzip
import lzma
import zlib

import zstandard

DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, zstandard.ZstdError)  # and any OSError without a number
_SKIPPABLE = b'\x2a\x4d\x18'  # bytes 1 to 3 of a Zstandard frame that carries no data; some packers begin with one
# Fed to the decompressor at a time: 4 bytes can stand for 128 KiB, so this bounds what one step yields to 32 MiB.
_PIECE = 1 << 10


def unpack(raw, head: bytes):
  """A stream with read(n) of what a file holds.

  Args:
    raw: the file, opened for reading bytes, at its start.
    head: its first bytes, at least 6 if there are so many.
  """
  if head.startswith(b'\x1f\x8b'):
    return gzip.open(raw)
  if head.startswith(b'BZh'):
    return bz2.open(raw)
  if head.startswith(b'\xfd7zXZ\x00'):
    return lzma.open(raw)
  if head.startswith(b'\x28\xb5\x2f\xfd') or head[1:4] == _SKIPPABLE and head[0] >> 4 == 5:
    return _Zstandard(raw)
  return raw


class _Zstandard:
  """Frames one behind the other. zstandard's own stream_reader takes a cut file for a whole one, this raises EOFError."""

  def __init__(self, raw):
    self._raw, self._frame, self._ready, self._packed = raw, None, bytearray(), b''

  def read(self, size: int) -> bytes:
    while len(self._ready) < size and self._more():
      pass
    data = bytes(self._ready[:size])
    del self._ready[:size]
    return data

  def _more(self) -> bool:
    """Unpacks a piece; False at the end."""
    if not self._packed:
      self._packed = self._raw.read(1 << 16)
      if not self._packed:
        if self._frame is not None and not self._frame.eof:
          raise EOFError('a Zstandard frame is cut')
        return False
    piece, self._packed = self._packed[:_PIECE], self._packed[_PIECE:]
    while piece:
      if self._frame is None or self._frame.eof:
        self._frame = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
      self._ready += self._frame.decompress(piece)
      piece = self._frame.unused_data if self._frame.eof else b''
    return True
