"""Refuses files that hold no running text, by their first bytes."""

import csv
import io
import pathlib
import re

from bertzoo_jax.common import errors
from bertzoo_jax.text import mediawiki
from bertzoo_jax.text import unpacking

HEAD = 4096  # bytes that are examined
_BRING = 'bring its text as plain text, or leave it out'
_UNPACK = 'unpack it ({} {{file}}) and name the files that were in it'
_AGAIN = 'download it again, and look at the file'
_EXTRACT = 'extract its text first, or name it .md if it is Markdown'
_BINARIES = (  # (first bytes, kind, remedy)
  (rb'PK\x03\x04', 'a zip archive (as are .docx, .xlsx and .epub)', _UNPACK.format('unzip')),
  (rb'PK\x05\x06', 'an empty zip archive', _UNPACK.format('unzip')),
  (rb"7z\xbc\xaf'\x1c", 'a 7-Zip archive', _UNPACK.format('7z x')),
  (rb'Rar!\x1a\x07', 'a RAR archive', _UNPACK.format('unrar x')),
  (rb'\x1f\x9d', 'packed by compress', _UNPACK.format('uncompress')),
  (rb'\x04"M\x18', 'packed by LZ4', _UNPACK.format('unlz4')),
  (rb'.{257}ustar', 'a tar archive', _UNPACK.format('tar -xf')),
  (rb'\x7fELF', 'a program (ELF)', _BRING),
  (rb'\xcf\xfa\xed\xfe', 'a program for macOS', _BRING),
  (rb'%PDF-', 'a PDF', _BRING),
  (rb'\x89PNG\r\n', 'a picture (PNG)', _BRING),
  (rb'\xff\xd8\xff', 'a picture (JPEG)', _BRING),
  (rb'GIF8[79]a', 'a picture (GIF)', _BRING),
  (rb'SQLite format 3\0', 'an SQLite database', _BRING),
  (rb'PAR1', 'a parquet file in a packed one, which cannot be read so', _BRING),
  (rb'ARROW1', 'an Arrow file', _BRING),
  (rb'Obj\x01', 'an Avro file', _BRING),
  (rb'\x89HDF\r\n', 'an HDF5 file', _BRING),
  (rb'\x93NUMPY', 'a NumPy array', _BRING),
  (rb'GGUF', 'a model (GGUF)', _BRING),
  (rb'\xd0\xcf\x11\xe0', 'an old document of Microsoft Office', _BRING),
  (rb'{\\rtf', 'a document in RTF', _BRING),
)
_WORDS = (  # likewise; a text may begin so, hence only for files with control characters
  (rb'MZ', 'a program for Windows', _BRING),
  (rb'ORC', 'an ORC file', _BRING),
)
_STAND_INS = (  # likewise; text files that replace the intended file, or have markup
  (
    rb'version https://(?:git-lfs|hawser)',
    'a Git LFS pointer',
    'fetch the file itself (git lfs pull)',
  ),
  (
    rb'(?:\.\./)*/?(?:\.git/)?annex/objects/',
    'a git-annex pointer',
    'fetch the file itself (git annex get {file})',
  ),
  (rb'outs:\s*- (?:md5|hash|etag|path):', 'a DVC pointer', 'fetch the file itself (dvc pull)'),
  (
    rb'(?i)(?:Entry|Repository) not found\s*\Z|Invalid username or password\.\s*\Z'
    rb'|<\?xml[^>]*>\s*<error>',
    "a server's refusal",
    _AGAIN,
  ),
  (
    rb'(?is)(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body)[\s>]',
    'a web page (HTML)',
    f'extract its text first; if it was meant to be another file, {_AGAIN}',
  ),
  (
    rb'WARC/\d\.\d\s|filedesc://',
    'a web archive (WARC, WET or ARC)',
    'write the text of its records as JSON lines',
  ),
)
_SOURCE_KINDS = (  # likewise, for sources only: files of a task, or Markdown, may begin so
  (rb'(?is)(?:<!--.*?-->\s*)*<(?:div|p|h[1-6])[\s>]', 'a web page (HTML)', _EXTRACT),
  (rb'\{\s*\n\s*"', 'one JSON object over several lines', 'write one per line, or a list of them'),
  (rb'(?:\d+\s*\n)?\d+:\d\d:\d\d[,.]\d+ +-->|WEBVTT\s', 'a file of subtitles', _BRING),
)
_MARKUP = '.srt .vtt .ass .yaml .yml .toml .ini .tex .bib'.split()
_TABLES, _MARKDOWN = ('.csv', '.tsv', '.tab'), ('.md', '.markdown', '.mdx')
_COLUMN = re.compile(r'\w[\w.:-]*(?: [\w.:-]+)?')  # a name of a column
_LEAST = 64  # bytes; in shorter files control characters are not counted
_MOST = 0.05  # share of the bytes that may be control characters
# without those of texts: tab, line ends, form feed, end of a file in DOS, colours of a terminal
_CONTROLS = bytes({*range(32), 127} - {9, 10, 11, 12, 13, 26, 27})


def refuse(head: bytes, file, more=()) -> None:
  """Raises UserError if a file holds no text.

  head: its first HEAD bytes, or all of a shorter file; of a packed file, the bytes inside. file:
  its name, for the message. more: kinds in addition to _STAND_INS.
  """
  bad = _controls(head)
  begin = head.removeprefix(b'\xef\xbb\xbf').lstrip()
  for kinds, at in ((_BINARIES, head), (_WORDS, head if bad else b''), (_STAND_INS + more, begin)):
    for pattern, what, remedy in kinds:
      if re.match(pattern, at, re.DOTALL):
        raise errors.UserError(f'{file} is {what}, no text: {remedy.format(file=file)}.')
  if bad and not head.startswith((b'\xff\xfe', b'\xfe\xff')):
    raise errors.UserError(
      f'{file} is a binary file ({bad} of its first {min(len(head), HEAD):,} bytes are control '
      'characters), no text: leave it out, or if it is UTF-16 convert it to UTF-8 (iconv).'
    )


def refuse_source(raw: bytes, head: bytes, file) -> None:
  """Raises UserError if a file's lines are no running text: as `refuse`, and for tables, XML that
  is no MediaWiki dump, and a name that does not fit the content. raw: the file's first bytes; head:
  the first bytes of its unpacked content; file: its name.
  """
  if raw.startswith(b'PAR1'):
    return
  *_, inner, outer = ['', '', *(s.lower() for s in pathlib.PurePath(file).suffixes)]
  kind = inner if outer in unpacking.NAMES else outer
  refuse(head, file, () if kind in _MARKDOWN else _SOURCE_KINDS)
  if head.lstrip().startswith(b'<?xml') and not mediawiki.is_dump(head):
    raise errors.UserError(
      f'{file} is XML, but no MediaWiki dump: bring its text as plain text or JSON lines.'
    )
  if raw and (outer == '.parquet' or outer in unpacking.NAMES and not unpacking.decompressor(raw)):
    raise errors.UserError(
      f'{file} is not what its name says: download it again, or rename it if it is text.'
    )
  if kind in _MARKUP:
    raise errors.UserError(
      f'{file} is a {kind} file, whose marks are no text: extract its text first, or name it .txt '
      'to have it read as it is.'
    )
  if head and kind in _TABLES or _is_table(head):
    raise errors.UserError(
      f'{file} is a table, no running text: write its column of text as JSON lines or parquet, or '
      'as a .txt file with a text per line.'
    )


def _controls(head) -> int:
  """Number of control characters if there are more than in text; otherwise 0."""
  head = head[:HEAD]
  count = len(head) - len(head.translate(None, _CONTROLS))
  return count if len(head) >= _LEAST and count > _MOST * len(head) else 0


def _is_table(head) -> bool:
  """Whether all lines but comments (#) have a tab, or as many separators as a header has."""
  text = head[:HEAD].decode('utf-8', 'ignore').removeprefix('\ufeff')
  lines = text.splitlines()[: -1 if len(head) >= HEAD else None]
  filled = [line.strip() for line in lines if line.strip() and line[0] != '#']
  if len(filled) > 3 and all('\t' in line for line in filled):
    return True
  if len(lines) < 4 or not all(map(str.strip, lines[:4])):
    return False
  for mark in ',;|':
    names, *rows = csv.reader(io.StringIO('\n'.join(lines)), delimiter=mark)
    if len(names) > 1 and len(set(names)) == len(names) and all(map(_COLUMN.fullmatch, names)):
      # the last row may be cut
      return {len(row) for row in rows[:-1]} == {len(names)}
  return False
