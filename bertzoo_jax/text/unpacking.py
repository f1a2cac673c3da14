"""Files packed with gzip, bzip2, xz or Zstandard as streams of plain bytes; known by content,
damage is an exception.
"""

import bz2
import lzma
import zlib

import zstandard

# and any OSError without a number
DAMAGED = (EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError)
# Bytes 1 to 3 of a Zstandard frame that carries no data; some packers begin with one
_SKIPPABLE = b'\x2a\x4d\x18'
_PACKED = 1 << 16  # bytes read at a time
_PLAIN = 1 << 20  # bytes unpacked at a time, at most
# Zstandard alone cannot be told to stop at _PLAIN: 4 packed bytes can stand for 128 KiB, so a piece
# yields 32 MiB at most.
_PIECE = 1 << 10


def unpack(raw, head: bytes):
  """A stream with read(n) of what a file holds.

  Args:
    raw: the file, opened for reading bytes, at its start.
    head: its first bytes, at least 6 if there are so many.
  """
  new = _decompressor(head)
  return _Joined(raw, new) if new else raw


def is_packed(head: bytes) -> bool:
  """Whether a file with these first bytes is packed."""
  return _decompressor(head) is not None


def _decompressor(head):
  """What makes a decompressor of one stream; None if the file is not packed."""
  if head.startswith(b'\x1f\x8b'):
    return _Member
  if head.startswith(b'BZh'):
    return bz2.BZ2Decompressor
  if head.startswith(b'\xfd7zXZ\x00'):
    return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ)
  if head.startswith(b'\x28\xb5\x2f\xfd') or head[1:4] == _SKIPPABLE and head[0] >> 4 == 5:
    return _Frame
  return None


class _Joined:
  """Packed streams one behind the other (dumps of Wikipedia have thousands of them).

  The libraries' own files take damage where a stream would begin for the end (bz2, lzma), or a cut
  file for a whole one (zstandard): here either is an exception, raised when all that came before it
  has been read. Zeros between streams are padding.
  """

  def __init__(self, raw, new):
    self._raw, self._new, self._ready = raw, new, bytearray()
    self._stream, self._rest = None, b''  # the decompressor; what stands behind its end
    self._damage = None

  def read(self, size: int) -> bytes:
    try:
      while not self._damage and len(self._ready) < size and self._more():
        pass
    except (*DAMAGED, OSError) as e:
      self._damage = e
    if self._damage and not self._ready:
      raise self._damage
    data = bytes(self._ready[:size])
    del self._ready[:size]
    return data

  def _more(self) -> bool:
    """Unpacks some; False at the end."""
    if self._stream is not None and self._stream.eof:
      self._rest, self._stream = self._stream.unused_data, None
    data = b''
    if self._stream is None:
      data, self._rest = self._rest.lstrip(b'\0'), b''
    if not data and (self._stream is None or self._stream.needs_input):
      data = self._raw.read(_PACKED)
      if not data and self._stream is not None:
        raise EOFError('a packed stream is cut')
      if not data:
        return False
      if self._stream is None:
        data = data.lstrip(b'\0')
    if data and self._stream is None:
      self._stream = self._new()
    if self._stream is not None:
      self._ready += self._stream.decompress(data, _PLAIN)
    return True


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
    self._frame, self._packed = (
      zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj(),
      b'',
    )

  eof = property(lambda self: self._frame.eof)
  needs_input = property(lambda self: not self._packed)
  unused_data = property(lambda self: self._frame.unused_data + self._packed)

  def decompress(self, data: bytes, _) -> bytes:
    data = self._packed + data if self._packed else data
    piece, self._packed = data[:_PIECE], data[_PIECE:]
    return self._frame.decompress(piece)
