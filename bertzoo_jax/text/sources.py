"""From files and datasets to documents: streams, decodes strictly, and counts whatever it leaves
out.

A source is [weight*]PATTERN[#option] or [weight*]tfds:NAME[#text_key] (finding.py). Files may be
packed with gzip, bzip2, xz or Zstandard; that is recognised by content, and so is the kind of a
file:

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

Lines end in LF, CR LF or CR; a byte-order mark is skipped. A document here is a list of paragraphs
without line ends.
"""

import collections
import hashlib
import html
import itertools
import json
import re

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.text import binaries
from bertzoo_jax.text import mediawiki
from bertzoo_jax.text import records
from bertzoo_jax.text import unpacking
from bertzoo_jax.text import wikitext

MAX_LINE = 1 << 24  # bytes; a longer line is dropped
# bytes of UTF-8; a longer document is cut before the paragraph that would exceed them
MAX_DOCUMENT = 1 << 25
_BLOCK = 1 << 20
_END = object()  # of a document, in a stream of paragraphs
_JSON_NAME = re.compile(r'\.(jsonl?|ndjson)(\.(gz|bz2|xz|zst))?$')
_ARRAY = re.compile(rb'\s*\[\s*\{\s*["}]')  # of objects: no plain text begins so
_DOC = re.compile(r'<doc id=".*>\s*$')
_TITLE = re.compile(r'\btitle="(.*)"\s*>\s*$')


class Dropped:
  """What was left out and why: {reason: {'count', 'bytes', 'first': where it happened first}}."""

  def __init__(self):
    self.reasons = {}

  def add(self, reason: str, size: int, where: str) -> None:
    entry = self.reasons.setdefault(reason, dict(count=0, bytes=0, first=where))
    entry['count'] += 1
    entry['bytes'] += size


class Reader:
  """Streams the documents of sources in order.

  A source of weight w is read floor(w) times, and once more for the documents whose hash, which
  depends on their text alone, lies below w − floor(w). Copies of a document are a whole reading
  apart and never share a row.

  Attributes:
    dropped: what was left out so far; a second reading of a source is not counted again.
    place: 'file:line' of the reading ('file:row' in parquet).
    copy: which reading of its source this is, from 0. reading: 2¹⁶ · number of the source + copy.
    position: (number of the source, copy, number of the file) of the reading.
    bytes_read: of the files (packed size), for a progress bar; the sources' `bytes` at the end.
  """

  def __init__(self, sources, where=()):
    """Args: sources: of finding.find. where: (key, value) pairs that records must have; values of
    one key are alternatives.
    """
    self.sources, self.where, self.dropped, self.bytes_read, self.copy = (
      tuple(sources),
      tuple(where),
      Dropped(),
      0,
      0,
    )
    self.reading, self.position = 0, (0, 0, 0)
    self._name, self._line = '', 0

  @property
  def place(self) -> str:
    return f'{self._name}:{self._line}' if self._line else self._name

  def documents(self, start=(0, 0, 0)):
    """Yields each document as a list of non-empty paragraphs, from the position `start` on."""
    for number, source in enumerate(self.sources):
      for self.copy in range(source.readings):
        if (number, self.copy) < start[:2]:
          continue
        self.position = (number, self.copy, start[2] if (number, self.copy) == start[:2] else 0)
        self.reading = (number << 16) + min(self.copy, 2**16 - 1)
        share = source.weight - self.copy
        for document in self._source(source):
          if share >= 1 or _lot(document) < share:
            yield document
          elif not self.copy:
            self._drop(
              f'document that weight {source.weight:g} leaves out',
              sum(len(p.encode('utf-8', 'surrogatepass')) + 1 for p in document),
            )

  def _source(self, source):
    wanted, first = records.Wanted(source.option or 'text', self.where), self.position[2]
    if source.dataset:
      yield from self._bounded(self._texts(self._tfds(source, wanted), wanted, 'example'))
    for i in range(first, len(source.files)):
      before, self.position = self.bytes_read, (*self.position[:2], i)
      yield from self._bounded(self._file(source.files[i], source.sizes[i], source.option, wanted))
      self.bytes_read = before + source.sizes[i]
    if not first:
      wanted.end()

  def _file(self, file, size, option, wanted):
    self._name, self._line = str(file), 0
    try:
      with storage.path(file).open('rb') as raw:
        head = raw.read(binaries.HEAD)
        raw.seek(0)
        if head.startswith(b'PAR1'):
          yield from self._texts(self._parquet(raw, file, size, wanted), wanted, 'row')
        else:
          yield from self._documents(
            self._blocks(unpacking.unpack(raw, head), raw), file, option, wanted
          )
    except (FileNotFoundError, PermissionError, IsADirectoryError) as e:
      raise errors.UserError(f'{file} cannot be read ({e.strerror}).') from e

  def _documents(self, blocks, file, option, wanted):
    head = next(blocks, b'')
    binaries.refuse(head, file)
    blocks = itertools.chain([head], blocks)
    if mediawiki.is_dump(head):
      self._check(file, 'a MediaWiki dump', option in ('', 'text'), option)
      return self._mediawiki(blocks)
    if head.lstrip().startswith(b'<?xml'):
      raise errors.UserError(
        f'{file} is XML, but no MediaWiki dump: bring its text as plain text or JSON lines.'
      )
    if _ARRAY.match(head) or _JSON_NAME.search(file) and head.lstrip().startswith(b'['):
      return self._texts(self._array(blocks, wanted), wanted, 'record')
    first, lines = _peek(self._lines(blocks))
    if _DOC.match(first):
      self._check(file, 'WikiExtractor output', option in ('', 'text'), option)
      return self._wiki(lines)
    if _JSON_NAME.search(file) or first.startswith('{') and _is_json(first):
      return self._texts(self._json(lines, wanted), wanted, 'line')
    self._check(file, 'plain text', option in _PLAIN, option, filter(None, _PLAIN))
    return _PLAIN[option](lines)

  def _check(self, file, kind, known, option, options=()):
    """Raises UserError for an option that a kind of file lacks, or for `where`, if its documents
    have no keys.
    """
    if not known:
      remedy = errors.did_you_mean(option, options) or ' Leave it out.'
      raise errors.UserError(f'{file} is {kind}, which has no #{option}.{remedy}')
    if self.where:
      key, value = self.where[0]
      raise errors.UserError(
        f'{file} is {kind}, whose documents have no keys: --where {key}={value} is for JSON lines, '
        'parquet and tfds records.'
      )

  # --- lines ---

  def _lines(self, blocks):
    """Yields decoded lines; a bad one is dropped and counted. Holds at most MAX_LINE and a
    block.
    """
    carry, skipped = b'', 0
    for block in blocks:
      head, newline, tail = block.rpartition(b'\n')
      if newline:
        if skipped:  # the end of an over-long line
          end, _, head = head.partition(b'\n') if b'\n' in head else (head, b'', None)
          self._drop(f'line over {MAX_LINE >> 20} MiB', skipped + len(end))
          self._line += 1
          skipped = 0
        if head is not None:
          yield from self._decode(carry + head)
        carry = tail
      elif skipped:
        skipped += len(block)
      else:
        carry += block
      if len(carry) > MAX_LINE:
        skipped, carry = len(carry), b''
    if skipped:
      self._drop(f'line over {MAX_LINE >> 20} MiB', skipped)
    elif carry:
      yield from self._decode(carry)

  def _blocks(self, stream, raw):
    """Blocks with every line end as LF; a CR at a block's end is never parted from its LF."""
    first, before = True, self.bytes_read
    while True:
      try:
        block = stream.read(_BLOCK)
        while block.endswith(b'\r') and (more := stream.read(1)):
          block += more
      except (*unpacking.DAMAGED, OSError) as e:
        if isinstance(e, OSError) and e.errno is not None:
          raise
        self._drop(f'rest of a damaged packed file ({type(e).__name__})', 0)
        return
      self.bytes_read = before + raw.tell()
      if not block:
        return
      if first:
        if block.startswith((b'\xff\xfe', b'\xfe\xff')):
          self._drop('file in UTF-16 or UTF-32, not UTF-8', storage.path(self._name).stat().length)
          return
        block, first = block.removeprefix(b'\xef\xbb\xbf'), False
      if b'\r' in block:
        block = block.replace(b'\r\n', b'\n').replace(b'\r', b'\n')
      yield block

  def _decode(self, data: bytes):
    """The lines of `data`; decoded as a whole where nothing is wrong, else one by one."""
    if len(data) <= MAX_LINE and b'\0' not in data:
      try:
        lines = data.decode('utf-8').split('\n')
        for line in lines:
          self._line += 1
          yield line
        return
      except UnicodeDecodeError:
        pass
    for line in data.split(b'\n'):
      self._line += 1
      if len(line) > MAX_LINE:
        self._drop(f'line over {MAX_LINE >> 20} MiB', len(line))
      elif b'\0' in line:
        self._drop('line with a NUL', len(line))
      else:
        try:
          yield line.decode('utf-8')
        except UnicodeDecodeError:
          self._drop('line not in UTF-8', len(line))

  def _drop(self, reason, size):
    if not self.copy:
      self.dropped.add(reason, size, self.place)

  # --- kinds of files ---

  def _json(self, lines, wanted):
    """(object, bytes of its line) of each line."""
    for line in lines:
      if not line.strip():
        continue
      try:
        value = json.loads(line)
      except (ValueError, RecursionError):
        self._drop('line that is not JSON', len(line))
        continue
      if isinstance(value, dict):
        wanted.see(value, self._name)
      yield value, len(line)

  def _array(self, blocks, wanted):
    """(object, its characters) of each object of a JSON array."""
    try:
      for value, text in records.json_array(blocks, MAX_LINE):
        self._line += 1
        if not text.isascii() and any('\udc80' <= c <= '\udcff' for c in text):
          self._drop('record not in UTF-8', len(text))
          continue
        if isinstance(value, dict):
          wanted.see(value, self._name)
        yield value, len(text)
    except records.NotJson as e:
      self._line += 1
      left = e.rest + sum(map(len, blocks))  # blocks continues where json_array stopped
      self._drop(f'rest of a damaged JSON array ({e})', left)

  def _parquet(self, raw, file, size, wanted):
    """(row, its size, which is not known) of each row."""
    before = self.bytes_read
    try:
      for record, share in records.parquet(raw, file, wanted):
        self._line += 1
        self.bytes_read = before + int(size * share)
        yield record, 0
    except records.damaged() as e:
      if isinstance(e, OSError) and e.errno is not None:
        raise
      self._drop(f'rest of a damaged parquet file ({type(e).__name__})', 0)

  def _texts(self, items, wanted, what):
    """Paragraphs and ends of the texts of (record, size)s; `what` a record is called when it is
    dropped.
    """
    for record, size in items:
      text = wanted.text(record) if isinstance(record, dict) else None
      if isinstance(record, dict) and (why := wanted.refusal(record)):
        self._drop(why, size)
      elif isinstance(text, bytes):
        try:
          yield from self._clean(text.decode('utf-8'))
        except UnicodeDecodeError:
          self._drop('text not in UTF-8', len(text))
      elif isinstance(text, str):
        yield from self._clean(text)
      else:
        self._drop(f'{what} without a text under {wanted.key!r}', size)

  def _mediawiki(self, blocks):
    names = set()
    try:
      for page in mediawiki.pages(blocks, names):
        self._line = page.line
        for size in page.bad:
          self._drop('line not in UTF-8', size)
        if page.why:
          self._drop(page.why, page.size)
        else:
          yield from wikitext.paragraphs(page.text, names)
          yield _END
    except mediawiki.Damaged as e:
      self._drop(f'rest of a damaged XML file ({e})', 0)

  def _wiki(self, lines):
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
        yield _END
        begun = False
      if starts:
        found = _TITLE.search(line)
        title = html.unescape(found.group(1)).strip() if found else None

  def _tfds(self, source, wanted):
    """(example, bytes of its text) of each example."""
    before, self._name, self._line = self.bytes_read, source.dataset, 0
    for example in records.examples(source.dataset, wanted):
      size = len(text) if isinstance(text := wanted.text(example), bytes) else 0
      self._line += 1
      self.bytes_read += size
      yield example, size
    self.bytes_read = before + sum(source.sizes)

  # --- documents ---

  def _clean(self, text):
    """Paragraphs and the end of a text that came whole; nothing where it is dropped for its
    characters.
    """
    if '\0' in text:
      self._drop('text with a NUL', len(text))
      return
    yield from (p for line in re.split(r'\r\n|\r|\n', text) if (p := line.strip()))
    yield _END

  def _bounded(self, paragraphs):
    """Documents of a stream of paragraphs and _ENDs; what is over-long or empty is counted."""
    return _gather(
      paragraphs,
      lambda: self._drop(f'document over {MAX_DOCUMENT >> 20} MiB cut in two (nothing lost)', 0),
      lambda: self._drop('empty document', 0),
    )


def _gather(paragraphs, on_cut, on_empty):
  """Lists of what stands between _ENDs (the last one may be missing), none of them over
  MAX_DOCUMENT if it can be helped.
  """
  part, size = [], 0
  for p in paragraphs:
    if p is _END:
      if part:
        yield part
      else:
        on_empty()
      part, size = [], 0
      continue
    more = (len(p) if p.isascii() else len(p.encode('utf-8', 'surrogatepass'))) + 1
    if part and size + more > MAX_DOCUMENT:
      on_cut()
      yield part
      part, size = [], 0
    part.append(p)
    size += more
  if part:
    yield part


def _lot(document) -> float:
  """A number from 0 to below 1 that depends on a document's text alone, and on nothing that splits
  or samples it elsewhere.
  """
  digest = hashlib.blake2b(
    '\n'.join(document).encode('utf-8', 'surrogatepass'), digest_size=8, person=b'weight'
  ).digest()
  return int.from_bytes(digest, 'little') / 2.0**64


def encode(paragraphs: list[str]) -> bytes:
  """A document as bytes: UTF-8, a paragraph a line. Raises UnicodeEncodeError for a lone surrogate
  (JSON can hold one).
  """
  return '\n'.join(paragraphs).encode('utf-8')


# --- plain text ---


def _by_blank_line(lines):
  begun = False
  for line in lines:
    line = line.strip()
    if line or begun:
      yield line or _END
    begun = bool(line)


def _whole_file(lines):
  yield from filter(None, map(str.strip, lines))
  yield _END


def _wrapped_file(lines):
  return _whole_file(
    ' '.join(paragraph) for paragraph in _gather(_by_blank_line(lines), lambda: None, lambda: None)
  )


_PLAIN = {'': _by_blank_line, 'file': _whole_file, 'wrapped': _wrapped_file}


def _peek(lines):
  """The first line that is not blank, and all the lines again."""
  seen = collections.deque()
  for line in lines:
    seen.append(line)
    if line.strip():
      break
  first = seen[-1].strip() if seen else ''

  def again():
    while seen:
      yield seen.popleft()
    yield from lines

  return first, again()


def _is_json(line):
  try:
    return isinstance(json.loads(line), dict)
  except (ValueError, RecursionError):
    return False
