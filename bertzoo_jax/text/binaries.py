"""Files that hold no text, told by their first bytes. Read as text they would give rubbish, or
nothing without a word.
"""

from bertzoo_jax.common import errors

HEAD = 4096  # bytes that `refuse` looks at
_ARCHIVES = (  # (first bytes, what it is, the program that unpacks it)
  (b'PK\x03\x04', 'a zip archive (as are .docx, .xlsx and .epub)', 'unzip'),
  (b'PK\x05\x06', 'an empty zip archive', 'unzip'),
  (b"7z\xbc\xaf'\x1c", 'a 7-Zip archive', '7z x'),
  (b'Rar!\x1a\x07', 'a RAR archive', 'unrar x'),
  (b'\x1f\x9d', 'packed by compress', 'uncompress'),
  (b'\x04"M\x18', 'packed by LZ4', 'unlz4'),
)
_OTHERS = (
  (b'\x7fELF', 'a program (ELF)'),
  (b'MZ', 'a program for Windows'),
  (b'\xcf\xfa\xed\xfe', 'a program for macOS'),
  (b'%PDF-', 'a PDF'),
  (b'\x89PNG\r\n', 'a picture (PNG)'),
  (b'\xff\xd8\xff', 'a picture (JPEG)'),
  (b'GIF8', 'a picture (GIF)'),
  (b'SQLite format 3\0', 'an SQLite database'),
  (b'PAR1', 'a parquet file in a packed one, which cannot be read so'),
  (b'ARROW1', 'an Arrow file'),
  (b'ORC', 'an ORC file'),
  (b'Obj\x01', 'an Avro file'),
  (b'\x89HDF\r\n', 'an HDF5 file'),
  (b'\x93NUMPY', 'a NumPy array'),
  (b'GGUF', 'a model (GGUF)'),
  (b'\xd0\xcf\x11\xe0', 'an old document of Microsoft Office'),
  (b'{\\rtf', 'a document in RTF'),
)
_TAR = 257, b'ustar'  # where a tar archive says that it is one
_LEAST = 64  # bytes, from which on control characters are counted
_MOST = 0.05  # of the bytes may be control characters
# of which text has some: tab, line ends, end of a page, end of a file in DOS, colours of a terminal
_CONTROLS = bytes({*range(32), 127} - {9, 10, 11, 12, 13, 26, 27})


def refuse(head: bytes, file) -> None:
  """Raises UserError if a file holds no text.

  Args:
    head: its first bytes, HEAD of them if there are so many; of a packed file, those inside.
    file: its name, for the message.
  """
  for start, what, program in _ARCHIVES:
    if head.startswith(start):
      raise _refusal(file, what, f'unpack it ({program} {file}) and name the files that were in it')
  if head[_TAR[0] :].startswith(_TAR[1]):
    raise _refusal(
      file, 'a tar archive', f'unpack it (tar -xf {file}) and name the files that were in it'
    )
  for start, what in _OTHERS:
    if head.startswith(start) and (len(start) > 3 or _controls(head)):
      raise _refusal(file, what, 'bring its text as plain text, or leave it out')
  if not head.startswith((b'\xff\xfe', b'\xfe\xff')) and (many := _controls(head)):
    raise _refusal(
      file,
      f'a binary file ({many} of its first {min(len(head), HEAD):,} bytes are control characters)',
      'leave it out, or if it is UTF-16 convert it to UTF-8 (iconv)',
    )


def _refusal(file, what, remedy):
  return errors.UserError(f'{file} is {what}, no text: {remedy}.')


def _controls(head) -> int:
  """Control characters, where they are more than text has; else 0."""
  head = head[:HEAD]
  many = len(head) - len(head.translate(None, _CONTROLS))
  return many if len(head) >= _LEAST and many > _MOST * len(head) else 0
