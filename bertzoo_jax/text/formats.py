"""Formats of text files, each read by a generator of paragraphs with END after every document. The
content decides the format; for JSON also the name.

    plain text      one paragraph per line, a blank line between documents
      #file         one document per file, blank lines ignored
      #wrapped      one document per file, hard-wrapped: a blank line between paragraphs, whose
                    lines are joined
    JSON lines      one object per line; #key names the text (default 'text'); line breaks in it
                    separate paragraphs
    JSON array      [{"text": …}, …], on one line or many; likewise
    parquet         one document per row; #key names the column
    MediaWiki       a dump in XML: one document per article (mediawiki.py), its running
                    text (wikitext.py)
    WikiExtractor   <doc …> title, paragraphs </doc>; entities are resolved, the repeated title is
                    left out

Lines end in LF, CR LF or CR; a byte-order mark is skipped.
"""

import html
import itertools
import json
import re

from bertzoo_jax.common import errors
from bertzoo_jax.text import binaries
from bertzoo_jax.text import duplicates
from bertzoo_jax.text import mediawiki
from bertzoo_jax.text import records
from bertzoo_jax.text import unpacking
from bertzoo_jax.text import wikitext

MAX_LINE = 1 << 24  # bytes; a longer line is dropped
# bytes of UTF-8; a longer document is cut before the paragraph that would exceed them
MAX_DOCUMENT = 1 << 25
END = object()  # of a document, in a stream of paragraphs
_JSON_NAME = re.compile(r'\.(jsonl?|ndjson)(\.(gz|bz2|xz|zst))?$')
_ARRAY = re.compile(rb'\s*\[\s*\{\s*["}]')  # of objects: no plain text begins so
_DOC = re.compile(r'<doc id=".*>\s*$')
_TITLE = re.compile(r'\btitle="(.*)"\s*>\s*$')


class File:
  """A file (or dataset) that is read.

  Attributes:
    line: number of the last line, row or record; done: bytes read, of `size`.
  """

  def __init__(self, name: str, size: int = 0, add=lambda reason, size, where: None):
    """add: counts a dropped line."""
    self.name, self.size, self.line, self.done, self._add = name, size, 0, 0, add

  @property
  def place(self) -> str:
    return f'{self.name}:{self.line}' if self.line else self.name

  def drop(self, reason: str, size: int = 0) -> None:
    self._add(reason, size, self.place)

  def documents(self, paragraphs):
    """Lists of the texts between ENDs (the last one may be missing), see `gather`."""
    return gather(paragraphs, self.drop)


def paragraphs(file: File, raw, option: str, wanted: records.Wanted):
  """The paragraphs of a file of any kind, with END after each document.

  file: its name and counts. raw: its bytes, opened at the start. option: the text after the # of
  its source. wanted: which records, and their text. Raises UserError: the file holds no text, or
  its kind has no such option or no keys.
  """
  head = raw.read(binaries.HEAD)
  raw.seek(0)
  if head.startswith(b'PAR1'):
    return texts(file, _rows(file, raw, wanted), wanted, 'row')
  blocks = _blocks(file, raw, head)
  begin = next(blocks, b'')
  binaries.refuse_source(head, begin[: binaries.HEAD], file.name)
  blocks, is_json = itertools.chain([begin], blocks), _JSON_NAME.search(file.name)
  if mediawiki.is_dump(begin):
    _check(file, 'a MediaWiki dump', option, ('', 'text'), wanted)
    return _articles(file, blocks)
  if _ARRAY.match(begin) or is_json and begin.lstrip().startswith(b'['):
    return texts(file, _array(file, blocks, wanted), wanted, 'record')
  lines = _lines(file, blocks)
  first = next((line for line in lines if line.strip()), '')
  lines = itertools.chain([first], lines)
  if _DOC.match(first):
    _check(file, 'WikiExtractor output', option, ('', 'text'), wanted)
    return _wiki(lines)
  if is_json or first.lstrip().startswith('{') and isinstance(_parsed(first), dict):
    return texts(file, _json(file, lines, wanted), wanted, 'line')
  _check(file, 'plain text', option, _PLAIN, wanted)
  return _PLAIN[option](lines)


def _check(file, kind, option, options, wanted):
  """Raises UserError for an option that a kind lacks, or for conditions on keys."""
  if option not in options:
    known = [o for o in options if o not in ('', 'text')]
    remedy = errors.did_you_mean(option, known) or ' Leave it out.'
    raise errors.UserError(f'{file.name} is {kind}, which has no #{option}.{remedy}')
  if wanted.where:
    key, value = wanted.where[0]
    raise errors.UserError(
      f'{file.name} is {kind}, whose documents have no keys: --where {key}={value} is for JSON '
      'lines, parquet and tfds records.'
    )


def gather(paragraphs, drop=lambda reason: None):
  """Lists of the texts between ENDs, each at most MAX_DOCUMENT if possible; calls `drop` for too
  long and empty ones.
  """
  part, size = [], 0
  for p in paragraphs:
    if p is END:
      if part:
        yield part
      else:
        drop('empty document')
      part, size = [], 0
      continue
    more = duplicates.size_of(p)
    if part and size + more > MAX_DOCUMENT:
      drop(f'document over {MAX_DOCUMENT >> 20} MiB cut in two (nothing lost)')
      yield part
      part, size = [], 0
    part.append(p)
    size += more
  if part:
    yield part


# --- lines ---


def _blocks(file, raw, head):
  """Blocks with every line end as LF; a CR at a block's end stays with its LF."""
  begun, held = False, b''
  blocks = unpacking.blocks(raw, head)
  while True:
    try:
      block = next(blocks, b'')
    except (*unpacking.DAMAGED, OSError) as e:
      if isinstance(e, OSError) and e.errno is not None:
        raise
      file.drop(f'rest of a damaged packed file ({type(e).__name__})')
      block = b''
    file.done = raw.tell()
    if not begun and block.startswith((b'\xff\xfe', b'\xfe\xff')):
      file.drop('file in UTF-16 or UTF-32, not UTF-8', file.size)
      return
    data = held + (block if begun else block.removeprefix(b'\xef\xbb\xbf'))
    begun, held = True, b'\r' if block and data.endswith(b'\r') else b''
    data = data.removesuffix(held)
    if b'\r' in data:
      data = data.replace(b'\r\n', b'\n').replace(b'\r', b'\n')
    if data:
      yield data
    if not block:
      return


def _lines(file, blocks):
  """Yields decoded lines; a bad one is dropped and counted. Holds at most MAX_LINE and a block."""
  carry, skipped = b'', 0  # the begin of a line, or the bytes dropped of a too long one
  for block in itertools.chain(blocks, [None]):
    data = carry + (b'\n' if block is None else block)
    if skipped:
      end, newline, data = data.partition(b'\n')
      skipped += len(end)
      if newline:
        file.line += 1
        file.drop(f'line over {MAX_LINE >> 20} MiB', skipped)
        skipped = 0
    whole, newline, carry = data.rpartition(b'\n')
    if newline and (whole or block is not None):
      yield from _decoded(file, whole)
    if len(carry) > MAX_LINE:
      skipped, carry = len(carry), b''


def _decoded(file, data: bytes):
  """The lines of `data`, decoded at once if it is valid, otherwise one by one."""
  if len(data) <= MAX_LINE and b'\0' not in data:
    try:
      for line in data.decode('utf-8').split('\n'):
        file.line += 1
        yield line
      return
    except UnicodeDecodeError:
      pass
  for line in data.split(b'\n'):
    file.line += 1
    if len(line) > MAX_LINE:
      file.drop(f'line over {MAX_LINE >> 20} MiB', len(line))
    elif b'\0' in line:
      file.drop('line with a NUL', len(line))
    else:
      try:
        yield line.decode('utf-8')
      except UnicodeDecodeError:
        file.drop('line not in UTF-8', len(line))


# --- records ---


def texts(file, items, wanted, what: str):
  """Paragraphs and ENDs of the texts of (record, size) pairs; what: name of a record in `drop`."""
  for record, size in items:
    text = wanted.text(record) if isinstance(record, dict) else None
    if isinstance(record, dict) and (why := wanted.refusal(record)):
      file.drop(why, size)
    elif isinstance(text, bytes):
      try:
        yield from _clean(file, text.decode('utf-8'))
      except UnicodeDecodeError:
        file.drop('text not in UTF-8', len(text))
    elif isinstance(text, str):
      yield from _clean(file, text)
    else:
      file.drop(f'{what} without a text under {wanted.key!r}', size)


def _clean(file, text):
  """Paragraphs and END of a complete text; nothing if it is dropped."""
  if '\0' in text:
    file.drop('text with a NUL', len(text))
    return
  yield from (p for line in re.split(r'\r\n|\r|\n', text) if (p := line.strip()))
  yield END


def _json(file, lines, wanted):
  """(object, characters of its line) of each line."""
  for line in lines:
    if not line.strip():
      continue
    if (value := _parsed(line)) is _BROKEN:
      file.drop('line that is not JSON', len(line))
      continue
    if isinstance(value, dict):
      wanted.see(value, file.name)
    yield value, len(line)


_BROKEN = object()


def _parsed(line):
  try:
    return json.loads(line)
  except (ValueError, RecursionError):
    return _BROKEN


def _array(file, blocks, wanted):
  """(object, its characters) of each object of a JSON array."""
  try:
    for value, text in records.json_array(blocks, MAX_LINE):
      file.line += 1
      if not text.isascii() and any('\udc80' <= c <= '\udcff' for c in text):
        file.drop('record not in UTF-8', len(text))
        continue
      if isinstance(value, dict):
        wanted.see(value, file.name)
      yield value, len(text)
  except records.NotJson as e:
    file.line += 1
    left = e.rest + sum(map(len, blocks))  # blocks continues where json_array stopped
    file.drop(f'rest of a damaged JSON array ({e})', left)


def _rows(file, raw, wanted):
  """(row, 0, since its size is unknown) of each row of a parquet file."""
  try:
    for record, share in records.parquet(raw, file.name, wanted):
      file.line += 1
      file.done = int(file.size * share)
      yield record, 0
  except records.damaged() as e:
    if isinstance(e, OSError) and e.errno is not None:
      raise
    file.drop(f'rest of a damaged parquet file ({type(e).__name__})')


def examples(file, wanted):
  """(example, bytes of its text) of each example of the dataset that the file names."""
  for example in records.examples(file.name, wanted):
    size = len(text) if isinstance(text := wanted.text(example), bytes) else 0
    file.line += 1
    file.done += size
    yield example, size


# --- Wikipedia ---


def _articles(file, blocks):
  names = set()
  try:
    for page in mediawiki.pages(blocks, names):
      file.line = page.line
      for size in page.bad:
        file.drop('line not in UTF-8', size)
      if page.why:
        file.drop(page.why, page.size)
      else:
        yield from wikitext.paragraphs(page.text, names)
        yield END
  except mediawiki.Damaged as e:
    file.drop(f'rest of a damaged XML file ({e})')


def _wiki(lines):
  begun, title = False, None
  for line in lines:
    starts, ends = _DOC.match(line), line.rstrip().endswith('</doc>')
    text = '' if starts else html.unescape(line.rstrip().removesuffix('</doc>')).strip()
    if text and text == title and not begun:
      title = None
    elif text:
      yield text
      begun = True
    if ends or begun and starts:
      yield END
      begun = False
    if starts:
      match = _TITLE.search(line)
      title = html.unescape(match.group(1)).strip() if match else None


# --- plain text ---


def _by_blank_line(lines):
  begun = False
  for line in lines:
    line = line.strip()
    if line or begun:
      yield line or END
    begun = bool(line)


def _whole_file(lines):
  yield from filter(None, map(str.strip, lines))
  yield END


_PLAIN = {
  '': _by_blank_line,
  'file': _whole_file,
  'wrapped': lambda lines: _whole_file(map(' '.join, gather(_by_blank_line(lines)))),
}
