"""From files and datasets to documents: streams, decodes strictly, and counts whatever it leaves out.

A source is PATTERN[#option] or tfds:NAME[#text_key]. PATTERN is a path or glob, local or gs://; .gz, .bz2 and .xz are
recognised by content, and so is the kind of a file. A local file of that very name comes first, with its # and [ ].

    plain text      a paragraph a line, a blank line between documents
      #file         a file a document, blank lines ignored
      #wrapped      a file a document, hard-wrapped: a blank line between paragraphs, their lines joined
    JSON lines      an object a line; #key names the text (default 'text'); line breaks in it part paragraphs
    WikiExtractor   <doc …> title, paragraphs </doc>; entities are resolved, the repeated title is left out

Lines end in LF, CR LF or CR; a byte-order mark is skipped. A document here is a list of paragraphs without line ends.
"""

import bz2
import collections
import gzip
import html
import json
import lzma
import re
import zlib

from bertzoo_jax import errors
from bertzoo_jax import storage
from bertzoo_jax.input import finding

MAX_LINE = 1 << 24  # bytes; a longer line is dropped
MAX_DOCUMENT = 1 << 25  # bytes of UTF-8; a longer document is cut before the paragraph that would exceed them
_BLOCK = 1 << 20
_PATIENCE = 1000  # records without the text's key, before the key is taken for a mistake
_END = object()  # of a document, in a stream of paragraphs
_PACKED = {b'\x1f\x8b': gzip.open, b'BZh': bz2.open, b'\xfd7zXZ\x00': lzma.open}
_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)
_JSON_NAME = re.compile(r'\.(jsonl?|ndjson)(\.(gz|bz2|xz))?$')
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

  Attributes:
    dropped: what was left out so far.
    place: 'file:line' of the reading.
    bytes_read: of the files (packed size), for a progress bar.
  """

  def __init__(self, sources):
    self.sources, self.dropped, self.bytes_read = tuple(sources), Dropped(), 0
    self._name, self._line = '', 0
    self._keys, self._lacking, self._keyed = {}, 0, False  # of the JSON records of a source so far

  @property
  def place(self) -> str:
    return f'{self._name}:{self._line}' if self._line else self._name

  def documents(self):
    """Yields each document as a list of non-empty paragraphs."""
    for source in self.sources:
      self._keys, self._lacking, self._keyed = {}, 0, False
      if source.name.startswith('tfds:'):
        yield from self._bounded(self._tfds(source))
        continue
      for file, size in zip(source.files, source.sizes):
        before = self.bytes_read
        yield from self._bounded(self._file(file, source.option, before))
        self.bytes_read = before + size
      if self._lacking and not self._keyed:
        self._refuse_key(source.option or 'text')

  def _file(self, file, option, before):
    try:
      with storage.path(file).open('rb') as raw:
        head = raw.read(8)
        raw.seek(0)
        unpack = next((f for magic, f in _PACKED.items() if head.startswith(magic)), None)
        lines = self._lines(unpack(raw) if unpack else raw, raw, before, file)
        yield from self._documents(lines, file, option)
    except (FileNotFoundError, PermissionError, IsADirectoryError) as e:
      raise errors.UserError(f'{file} cannot be read ({e.strerror}).') from e

  def _documents(self, lines, file, option):
    first, lines = _peek(lines)
    if _DOC.match(first):
      if option not in ('', 'text'):
        raise errors.UserError(f'{file} is WikiExtractor output, which has no #{option}: leave it out.')
      return self._wiki(lines)
    if _JSON_NAME.search(file) or first.startswith('{') and _is_json(first):
      return self._json(lines, file, option or 'text')
    if option not in _PLAIN:
      raise errors.UserError(f'{file} is plain text, which has no #{option}.{errors.did_you_mean(option, filter(None, _PLAIN))}')
    return _PLAIN[option](lines)

  # --- lines ---

  def _lines(self, stream, raw, before, file):
    """Yields decoded lines; a bad one is dropped and counted. Holds at most MAX_LINE and a block."""
    carry, skipped, self._name, self._line = b'', 0, str(file), 0
    for block in self._blocks(stream, file):
      self.bytes_read = before + raw.tell()
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

  def _blocks(self, stream, file):
    """Blocks with every line end as LF; a CR at a block's end is never parted from its LF."""
    first = True
    while True:
      try:
        block = stream.read(_BLOCK)
        while block.endswith(b'\r') and (more := stream.read(1)):
          block += more
      except _DAMAGED as e:
        self._drop(f'rest of a damaged packed file ({type(e).__name__})', 0)
        return
      if not block:
        return
      if first:
        if block.startswith((b'\xff\xfe', b'\xfe\xff')):
          self._drop('file in UTF-16 or UTF-32, not UTF-8', storage.path(file).stat().length)
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
    self.dropped.add(reason, size, self.place)

  # --- kinds of files ---

  def _json(self, lines, file, key):
    for line in lines:
      if not line.strip():
        continue
      try:
        value = json.loads(line)
      except (ValueError, RecursionError):
        self._drop('line that is not JSON', len(line))
        continue
      if isinstance(value, dict) and not self._keyed:
        self._keyed = key in value
        self._keys.update(dict.fromkeys(value, self._name))
        self._lacking += not self._keyed
        if not self._keyed and self._lacking >= _PATIENCE:
          self._refuse_key(key)
      if not isinstance(value, dict) or not isinstance(value.get(key), str):
        self._drop(f'line without a text under {key!r}', len(line))
        continue
      yield from self._clean(value[key])

  def _refuse_key(self, key):
    files = list(dict.fromkeys(self._keys.values()))
    where = f'{files[0]} {"and others have" if len(files) > 1 else "has"}' if files else 'The source has'
    raise errors.UserError(f'{where} no key {key!r}: name the text with #KEY.{errors.did_you_mean(key, self._keys)} '
                           f'The keys: {", ".join(list(self._keys)[:50])}.')

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

  def _tfds(self, source):
    pattern = source.name.partition('#')[0]
    builder, _ = finding.tfds_builder(pattern)
    import tensorflow_datasets as tfds
    key = source.option or 'text'
    if not hasattr(builder.info.features, 'keys') or key not in builder.info.features:
      raise errors.UserError(f'{pattern} has no feature {key!r}: name the text with #KEY. Its features: {", ".join(builder.info.features or ())}.')
    dataset = builder.as_dataset(split='train', shuffle_files=False, read_config=tfds.ReadConfig(interleave_cycle_length=1))
    before, self._name, self._line = self.bytes_read, pattern, 0
    for example in dataset.map(lambda e: e[key]).prefetch(16).as_numpy_iterator():
      self._line += 1
      self.bytes_read += len(example)
      try:
        text = example.decode('utf-8')
      except UnicodeDecodeError:
        self._drop('text not in UTF-8', len(example))
        continue
      yield from self._clean(text)
    self.bytes_read = before + source.bytes

  # --- documents ---

  def _clean(self, text):
    """Paragraphs and the end of a text that came whole; nothing where it is dropped for its characters."""
    if '\0' in text:
      self._drop('text with a NUL', len(text))
      return
    yield from (p for line in re.split(r'\r\n|\r|\n', text) if (p := line.strip()))
    yield _END

  def _bounded(self, paragraphs):
    """Documents of a stream of paragraphs and _ENDs; what is over-long or empty is counted."""
    return _gather(paragraphs, lambda: self._drop(f'document over {MAX_DOCUMENT >> 20} MiB cut in two (nothing lost)', 0),
                   lambda: self._drop('empty document', 0))


def _gather(paragraphs, on_cut, on_empty):
  """Lists of what stands between _ENDs (the last one may be missing), none of them over MAX_DOCUMENT if it can be helped."""
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


def encode(paragraphs: list[str]) -> bytes:
  """A document as bytes: UTF-8, a paragraph a line. Raises UnicodeEncodeError for a lone surrogate (JSON can hold one)."""
  return '\n'.join(paragraphs).encode('utf-8')


# --- plain text -------------------------------------------------------------------------------------------------------


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
  return _whole_file(' '.join(paragraph) for paragraph in _gather(_by_blank_line(lines), lambda: None, lambda: None))


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
