"""From wikitext to plain paragraphs: running text only, as BERT's authors took it from Wikipedia
(BERT §3.1).

A line of running text is a paragraph. Removed are templates {{…}} with their content (infoboxes,
units, quotes in other scripts), tables, lists (* # : ;), headings, references, formulas, code,
music, galleries, pictures with their captions, categories, links to other languages, comments, bold
and italics, HTML tags (not their content). A link becomes its text, an external link its label.
Chinese variants -{zh-hans:…;zh-hant:…}- become the simplified one, or the first. Brackets emptied
by a removed template are removed. Every step takes linear time, also for unbalanced markup.
"""

import html
import re

_COMMENT = re.compile(r'<!--(?:.*?-->|.*\Z)', re.DOTALL)
# Elements that are removed with their content; the text of nowiki stays as it is.
_LOST = (
  'ref references math chem ce gallery timeline syntaxhighlight source score templatestyles graph '
  'mapframe maplink hiero inputbox '
  'categorytree imagemap indicator templatedata includeonly pre style script table nowiki'
).split()
_ELEMENT = re.compile(
  rf'<(/?)({"|".join(sorted(_LOST, key=len, reverse=True))})(?=[\s/>])[^<>]*?(/?)>', re.IGNORECASE
)
_MARKUP = re.compile(r"[\[\]{}|'<>=*#:;_!-]")
_BRACES = re.compile(r'\{\{+|\}\}+|^[ \t:*#]*\{\||^[ \t]*\|\}(?!\})', re.MULTILINE)
_LINK = re.compile(r'\[\[|\]\]')
_DEPTH = 16  # of links within captions of pictures within captions
_LANGUAGE = re.compile(r'[a-z]{2,3}(?:-[a-z]+)*|simple')
_EXTERNAL = re.compile(r'\[(?:https?:|ftp:|mailto:|//)[^\s\[\]]*+[ \t]*+([^\[\]\n]*+)\]')
_VARIANT = re.compile(r'-\{([^{}]*+)\}-')
_QUOTES = re.compile(r"''+")
_MAGIC = re.compile(r'__[^\W\d_]+__')
_BREAKING = re.compile(
  r'</?(?:p|div|blockquote|center|poem|li|ul|ol|dl|dt|dd|tr|td|th|hr|h[1-6])(?=[\s/>])[^<>]*>',
  re.IGNORECASE,
)
_BREAK = re.compile(r'<br(?=[\s/>])[^<>]*>', re.IGNORECASE)
_TAG = re.compile(r'</?[a-zA-Z][\w-]*(?:\s[^<>]*)?/?>')
_EMPTY = re.compile(r'[(（][\s,;:，；：、]*+[)）]')
_LEADING = re.compile(r'([(（])[\s,;:，；：、]++')
_TRAILING = re.compile(r'(?<![\s,;，；、])[\s,;，；、]++([)）])')
_LOOSE = tuple(mark + end for mark in ' \xa0,;，；、' for end in ')）')
_BLANKS = re.compile(' {2,}+')
_BEFORE_STOP = re.compile(r'(?<=[^ ]) ([,.])(?=\s|$)')

# [[WORD:NAME.jpg|…]]: each language has its own WORD for files.
_MEDIA = re.compile(
  r'\.(?:jpe?g|png|gif|svg|tiff?|webp|bmp|xcf|pdf|djvu?|stl|og[agvx]|web[mp]|mp[34g]|mpeg|midi?|wav|'
  r'flac|opus)\s*\Z',
  re.IGNORECASE,
)
# Files, categories and media in the names of many wikis, old ones too; a dump names its own.
NAMES = frozenset(
  'file image media category fichier datei bild archivo imagen medio ficheiro immagine bestand '
  'dosya resim tiedosto kuva fil файл '
  'изображение ملف صورة चित्र ファイル 画像 文件 档案 檔案 图像 圖像 媒体 媒體 '
  'kategorie catégorie categoría categoria kategori luokka '
  'категория تصنيف श्रेणी カテゴリ 分类 分類'.split()
)


def paragraphs(text: str, names=frozenset()) -> list[str]:
  """The running text of a page.

  text: wikitext. names: the wiki's own names of files, media and categories, in small letters.
  """
  text = _without_braces(_without_elements(_COMMENT.sub('', text)))
  if '-{' in text:
    text = _VARIANT.sub(_variant, text)
  text = _EXTERNAL.sub(r'\1', _with_links_shown(text, names))
  text = _QUOTES.sub(_apostrophes, text)
  if '<' in text:
    text = _TAG.sub('', _BREAK.sub(' ', _BREAKING.sub('\n', text)))
  if '__' in text:
    text = _MAGIC.sub('', text)
  return [p for line in text.split('\n') if (p := _running(line))]


def _running(line) -> str:
  """A line of running text, cleaned; '' for any other line."""
  line = line.replace('\t', ' ').strip()
  if not line or line[0] in '*#:;|' or line.startswith('{|') or line[0] == '=' and line[-1] == '=':
    return ''
  line = html.unescape(line.lstrip('-') if line.startswith('----') else line)
  if '(' in line or '（' in line:
    line = _LEADING.sub(r'\1', _EMPTY.sub('', line))
  if any(end in line for end in _LOOSE):  # a test costs a tenth of a substitution
    line = _TRAILING.sub(r'\1', line)
  if '  ' in line:
    line = _BLANKS.sub(' ', line)
  if ' ,' in line or ' .' in line:
    line = _BEFORE_STOP.sub(r'\1', line)
  line = line.strip()
  return ' '.join(line.splitlines()) if any(map(str.isalnum, line)) else ''


def _without_elements(text):
  """Removes the elements of _LOST; of an element that is never closed, only its tag."""
  if '<' not in text:
    return text
  # where each is closed for the last time
  last = {tag[2].lower(): tag.start() for tag in _ELEMENT.finditer(text) if tag[1]}
  pieces, at, inside, depth = [], 0, None, 0
  for tag in _ELEMENT.finditer(text):
    name = tag[2].lower()
    if inside is None:
      pieces.append(text[at : tag.start()])
      at = tag.end()
      if not tag[1] and not tag[3] and name in last and last[name] > tag.start():
        inside, depth = name, 1
    elif name == inside:
      depth += -1 if tag[1] else int(name == 'table' and not tag[3])
      if not depth:
        if name == 'nowiki':
          pieces.append(_MARKUP.sub(lambda m: f'&#{ord(m[0])};', text[at : tag.start()]))
        at, inside = tag.end(), None
  return ''.join([*pieces, text[at:]])


def _without_braces(text):
  """Removes nested templates, parameters and tables; unbalanced ones stay."""
  stack, spans = [], []  # stack: [start, how many braces are open; 0 for a table]
  braces = tables = 0  # how many of them are on the stack
  for token in _BRACES.finditer(text):
    start, run = token.start(), token[0]
    if run.startswith('}}'):
      left = len(run)
      while left >= 2 and braces:
        while not stack[-1][1]:  # a table that was never closed
          stack.pop()
          tables -= 1
        top = stack[-1]
        taken = min(left, top[1])
        _cover(spans, top[0] + top[1] - taken, token.end() - left + taken)
        left -= taken
        top[1] -= taken
        if top[1] < 2:
          stack.pop()
          braces -= 1
    elif run.endswith('|}'):
      if tables:
        while stack[-1][1]:
          stack.pop()
          braces -= 1
        _cover(spans, stack.pop()[0], token.end())
        tables -= 1
    elif run.endswith('{|'):
      stack.append([start, 0])
      tables += 1
    else:
      stack.append([start, len(run)])
      braces += 1
  pieces, at = [], 0
  for start, end in spans:
    pieces.append(text[at:start])
    at = end
  return ''.join([*pieces, text[at:]])


def _cover(spans, start, end):
  while spans and spans[-1][0] >= start:
    spans.pop()
  spans.append((start, end))


def _with_links_shown(text, names):
  """Replaces links by their shown text. A link that is not closed only loses its brackets."""
  stack, out, at = [], [], 0
  for token in _LINK.finditer(text):
    out.append(text[at : token.start()])
    at = token.end()
    if token[0] == '[[':
      if len(stack) < _DEPTH:
        stack.append(out)
        out = []
    elif stack:
      inner, out = ''.join(out), stack.pop()
      out.append(_shown(inner, names))
  out.append(text[at:])
  return ''.join(piece for pieces in (*stack, out) for piece in pieces)


def _shown(link, names):
  target, bar, label = link.partition('|')
  prefix, colon, rest = target.partition(':')
  prefix = prefix.strip()
  named = colon and (prefix.lower() in NAMES or prefix.lower() in names)
  if named or colon and prefix and _MEDIA.search(rest):
    return ''
  if '\n' in target:
    return link
  if colon and not bar and _LANGUAGE.fullmatch(prefix):
    return ''
  if bar:
    # [[Paris (Texas)|]]
    return label if label.strip() else (rest or target).partition('(')[0].strip()
  return target.removeprefix(':')


def _variant(match):
  """-{flags|zh-hans:…;zh-hant:…}-: the simplified variant, or the first; '' for hidden rules."""
  flags, bar, rules = match[1].partition('|')
  if bar and set(flags.split(';')) & {'T', 'H', '-'}:
    return ''
  rules = rules if bar else flags
  if bar and flags == 'R' or not re.match(r'\s*zh(?:-\w+)?\s*:', rules):
    return rules
  variants = dict(part.split(':', 1) for part in rules.split(';') if ':' in part)
  variants = {name.strip(): value for name, value in variants.items()}
  return next(
    (variants[name] for name in ('zh-hans', 'zh-cn', 'zh') if name in variants),
    next(iter(variants.values())),
  )


def _apostrophes(match):
  """Removes quotes that are markup: two are italics, three bold, five both; one of four, and more
  than five, are text.
  """
  size = len(match[0])
  return "'" * (1 if size == 4 else max(size - 5, 0))
