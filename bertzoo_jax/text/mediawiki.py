"""MediaWiki's XML dumps (<mediawiki> … <page> …) as a stream of articles; wikitext.py makes
paragraphs of them.

Read with expat, a block at a time, with one page in memory; of several revisions the newest is
taken. Left out, and counted by reason: pages outside namespace 0, redirects, pages that are not
wikitext, pages over 16 MiB.
"""

import codecs
import contextlib
import re
from typing import NamedTuple
from xml.parsers import expat

MAX_PAGE = 1 << 24  # characters; MediaWiki itself allows 2 MiB
# Real dumps have 5 levels, 30 names and short tags. expat keeps all open tags, all names, and a tag
# until it ends.
_DEEPEST, _MOST_NAMES, _LONGEST = 100, 1000, 1 << 24
_HEAD = re.compile(rb'\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<mediawiki[\s>]', re.DOTALL)
_REDIRECT = re.compile(r'\s*#\s*\w+\s*:?\s*\[\[')
_READ = frozenset(('title', 'ns', 'model', 'text', 'namespace'))
# Replaces text that XML cannot hold (invalid UTF-8, control characters); lines with it are
# dropped.
_BAD = '\ufdd0'
_CONTROLS = bytes(i for i in range(32) if i not in b'\t\n\r')
_NOT_XML = re.compile('[\0-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]')


class Damaged(ValueError):
  """The rest of the file is not well-formed."""


class Page(NamedTuple):
  line: int  # its first line in the file
  text: str
  size: int  # characters
  why: str  # reason for leaving it out; '' for none
  bad: tuple[int, ...]  # characters of each line that was dropped because it was not UTF-8


def is_dump(head: bytes) -> bool:
  """Whether a file that begins so is a MediaWiki dump."""
  return _HEAD.match(head) is not None


def pages(blocks, names: set):
  """Yields the Pages of a dump.

  blocks: its bytes, in blocks. names: filled with the wiki's names of files and categories, in
  lower case, before the first page. Raises Damaged: after the last page that could be read.
  """
  reading, decoder = _Reading(names), codecs.getincrementaldecoder('utf-8')('surrogateescape')
  for block in blocks:
    yield from reading.feed(_xml(decoder.decode(block), block), False)
  yield from reading.feed(_xml(decoder.decode(b'', True), b'\0'), True)


def _xml(text, block):
  with contextlib.suppress(UnicodeEncodeError):  # surrogates stand for bytes that were not UTF-8
    data, is_plain = text.encode('utf-8'), len(block.translate(None, _CONTROLS)) == len(block)
    if is_plain and '\ufffe' not in text and '\uffff' not in text:
      return data
  return _NOT_XML.sub(_BAD, text).encode('utf-8')


class _Reading:
  """The handlers of the parser and their state."""

  def __init__(self, names):
    self.names, self.namespaces, self.key = names, {}, ''
    self.done, self.page, self.into, self.size = [], None, None, 0
    self.depth, self.fed = 0, 0
    self.parser = expat.ParserCreate('utf-8')
    self.parser.buffer_text, self.parser.buffer_size = True, 1 << 16
    self.parser.StartElementHandler, self.parser.EndElementHandler = self._start, self._end
    self.parser.CharacterDataHandler, self.parser.EntityDeclHandler = self._characters, self._entity

  def feed(self, data, last):
    try:
      self.parser.Parse(data, last)
      self.fed += len(data)
      if self.fed - self.parser.CurrentByteIndex > _LONGEST:
        raise Damaged('it has a tag without an end')
    except (expat.ExpatError, Damaged) as e:
      yield from self.done
      known = expat.errors.messages
      raise Damaged(known[e.code] if getattr(e, 'code', None) in known else str(e)) from e
    yield from self.done
    self.done.clear()

  def _start(self, name, attributes):
    self.depth += 1
    if self.depth > _DEEPEST or len(self.parser.intern) > _MOST_NAMES:
      raise Damaged('its tags are nested too deeply, or have too many names')
    if name == 'page':
      line = self.parser.CurrentLineNumber
      self.page = dict(
        title='', ns='', model='wikitext', text='', redirect=False, size=0, line=line
      )
    elif name == 'redirect' and self.page is not None:
      self.page['redirect'] = True
    elif name == 'namespace':
      self.key = attributes['key'] if 'key' in attributes else ''
    self.into, self.size = ([] if name in _READ else None), 0

  def _characters(self, data):
    if self.into is not None:
      self.size += len(data)
      if self.size <= MAX_PAGE:
        self.into.append(data)
      else:
        self.into.clear()

  def _end(self, name):
    self.depth -= 1
    if self.into is not None and name in _READ:
      text = ''.join(self.into)
      if name == 'namespace':
        self.namespaces[text.lower()] = self.key
        if self.key in ('-2', '6', '14'):
          self.names.add(text.lower())
      elif self.page is not None:
        self.page[name] = text
        if name == 'text':
          self.page['size'] = self.size
    elif name == 'page' and self.page is not None:
      self.done.append(self._page(**self.page))
      self.page = None
    self.into = None

  def _page(self, title, ns, model, text, redirect, size, line):
    namespace = ns.strip() or self.namespaces.get(title.partition(':')[0].lower(), '0')
    reasons = (
      (namespace != '0', 'page outside the namespace of articles'),
      (redirect or _REDIRECT.match(text), 'page that only redirects'),
      (size > MAX_PAGE, f'page over {MAX_PAGE >> 20} MiB'),
      (model.strip() != 'wikitext', 'page that is not wikitext'),
    )
    why = next((reason for is_so, reason in reasons if is_so), '')
    bad = ()
    if _BAD in text and not why:
      lines = text.split('\n')
      bad = tuple(len(line) for line in lines if _BAD in line)
      text = '\n'.join(line for line in lines if _BAD not in line)
    return Page(line, '' if why else text, size, why, bad)

  # no dump declares entities, and a few lines of them can expand to gigabytes
  def _entity(self, *_):
    raise Damaged('it declares entities')
