"""Makes ten million words of plain English: speech to children, books, dialogue, news, Wikipedia.

python bench/babylm_text.py MIRRORS TEXTS OUT

`babylm_text.json` lists the sources: repositories, commits, files, licences and words per kind.
MIRRORS has a bare clone of each repository, named OWNER+NAME. TEXTS has BLiMP.zip, and the folders
enwikinews and enwiki2015: WikiExtractor's files, the first with `--json`. OUT gets a folder per
source, and SOURCES.json: where each file is from, and its size. Only the commits of the list are
read, so the same text comes again. If TEXTS has other bytes (SHA-256), the script says so.

A line is a paragraph, a speech or an utterance. An empty line ends a document: a chapter, an act,
an article, or at most 150 lines of a transcript. Quotes and dashes are plain. Speakers have no
names. Lines with a test sentence of BLiMP, Zorro or the BabyLM supplement are left out.

A document is a list of lines. A file is (path, text).
"""

import argparse
import collections
import csv
import hashlib
import html
import io
import itertools
import json
import os
import pathlib
import random
import re
import subprocess
import xml.etree.ElementTree as ElementTree
import zipfile

_DATA = json.loads(pathlib.Path(__file__).with_suffix('.json').read_text())


def _replaced(characters):
  """A table for str.translate of {replacement: characters}."""
  return str.maketrans({c: to for to, group in characters.items() for c in group})


_PLAIN, _CHAT = _replaced(_DATA['plain']), _replaced(_DATA['chat'])
_NOT_ADULTS = {*_DATA['not_adults']}
_NOT_TEXT = re.compile(_DATA['not_text'], re.I)
_ENDS_SENTENCE = re.compile(r'(?<=[.!?])["\')]*\s+')


def _git(mirrors, repository, *arguments, stdin=''):
  """stdout of git in the clone of a repository, or None if git fails."""
  folder = mirrors / repository.replace('/', '+')
  command = ['git', f'--git-dir={folder}', *arguments]
  done = subprocess.run(command, input=stdin.encode(), capture_output=True)
  return None if done.returncode else done.stdout


def _committed(mirrors, repository, commit, patterns):
  """Yields the files of a commit that match the patterns, in the order of the patterns."""
  paths = _git(mirrors, repository, 'ls-tree', '-rz', '--name-only', commit).decode().split('\0')
  paths = [path for pattern in patterns for path in paths if re.fullmatch(pattern, path)]
  names = ''.join(f'{commit}:{path}\n' for path in paths)
  blobs = io.BytesIO(_git(mirrors, repository, 'cat-file', '--batch', stdin=names))
  for path in paths:
    *_, size = blobs.readline().split()
    if size == b'missing':
      raise SystemExit(f'{repository} lacks {path}: clone it without a filter.')
    yield path, blobs.read(int(size)).decode('utf-8', 'replace')
    blobs.read(1)


def _local(texts, name, sha256):
  """[file] of a file or a folder of TEXTS; says if the bytes are not the list's."""
  place = texts / name
  paths = sorted(x for x in place.rglob('*') if x.is_file()) if place.is_dir() else [place]
  contents = [path.read_bytes() for path in paths]
  if hashlib.sha256(b''.join(contents)).hexdigest() != sha256:
    print(f'{place} is not the text of the list (SHA-256): the text made from it will differ.')
  if name.endswith('.zip'):
    with zipfile.ZipFile(place) as archive:
      names = [name for name in archive.namelist() if re.fullmatch(r'[^_].*\.jsonl', name)]
      return [(name, archive.read(name).decode()) for name in names]
  return [(str(path), content.decode()) for path, content in zip(paths, contents)]


def _files(mirrors, texts, source):
  """Yields (name, repository, commit, files) of each text of a source."""
  if 'texts' in source:
    yield source.get('name'), None, None, _local(texts, source['texts'], source['sha256'])
  for repository, commit in source.get('repositories', {}).items():
    files = _committed(mirrors, repository, commit, source['files'])
    yield source.get('name', os.path.basename(repository)), repository, commit, files


def _refuse_other_sources(mirrors, texts, sources):
  for source in sources:
    if 'texts' in source and not (texts / source['texts']).exists():
      raise SystemExit(f'{texts} lacks {source["texts"]}.')
    for repository, commit in source.get('repositories', {}).items():
      if _git(mirrors, repository, 'cat-file', '-e', f'{commit}^{{commit}}') is None:
        place = mirrors / repository.replace('/', '+')
        raise SystemExit(f'{place} lacks commit {commit}: clone {repository} there, or fetch it.')


def _plain(text):
  """Text on one line with plain quotes; a dash is ' - '."""
  text = ' '.join(re.sub('\u2014+', ' - ', text.translate(_PLAIN)).split())
  text = re.sub(r' - (?=["\')\].,;:!?])', ' -', text)
  return re.sub(r'(^|["\'(\[])- (?=\w)', r'\1-', text) if text.startswith('- ') else text


def _tight(text):
  """Text without spaces before marks."""
  return re.sub(r'\s+([.,;:!?])', r'\1', text)


def _capital(text):
  """Text with its first letter a capital, unless a digit comes before it."""
  first = re.search(r'[^\W_]', text)
  return text[: first.start()] + first[0].upper() + text[first.end() :] if first else text


def _words(document):
  return sum(len(line.split()) for line in document)


def _has_letter(text):
  return re.search('[A-Za-z]', text)


def _pieces(lines, most=150):
  """Near-equal pieces of at most `most` lines."""
  count = -(-len(lines) // most)
  size, more = divmod(len(lines), max(1, count))
  starts = [size * i + min(i, more) for i in range(count + 1)]
  return [lines[a:b] for a, b in itertools.pairwise(starts)]


def _taken(documents, words):
  """The first documents with at most that many words. One that is too long is passed over."""
  out = []
  for document in documents:
    if (count := _words(document)) <= words:
      out.append(document)
      words -= count
    elif words < 300:
      break
  return out


def _shuffled(documents):
  documents = list(documents)
  random.Random(1).shuffle(documents)
  return documents


def _key(sentence):
  return ' '.join(re.findall(r"[a-z0-9']+", sentence.lower()))


def _test_sentences(mirrors, texts, sources):
  """The keys of all test sentences of at least three words."""
  sentences = set()
  for source in sources:
    for *_, files in _files(mirrors, texts, source):
      for path, text in files:
        for line in text.splitlines():
          row = json.loads(line) if path.endswith('.jsonl') else {'sentence_good': line}
          sentences |= {_key(row[x]) for x in ('sentence_good', 'sentence_bad') if x in row}
  return {x for x in sentences if x.count(' ') >= 2}


def _without(sentences, documents):
  """The documents without the lines that are, or have, one of the sentences."""
  clean = lambda line: sentences.isdisjoint(map(_key, (line, *_ENDS_SENTENCE.split(line))))
  documents = [[line for line in document if clean(line)] for document in documents]
  return [document for document in documents if document]


# Speech to children

_NOT_UNDERSTOOD = re.compile(r'(?:^|[\s<"])(?:xxx?|yyy?|www)(?=$|[\s>.,?!@"])', re.I)


def _spoken(words, end):
  """A line of words and its end; None if it has no letter, or a character that text has not."""
  if any(re.search(r"[^A-Za-z0-9'\-., \u00c0-\u017f]", word) for word in words):
    return None
  text = re.sub(r',+', ',', re.sub(r'\s+,', ',', ' '.join(words)))
  text = ' '.join(text.strip(' ,-').split())
  return _capital(text) + end if _has_letter(text) else None


def _word(word):
  """A word of a CHAT transcript without its marks."""
  return re.sub('@.*', '', word).translate(_CHAT).strip(' -.!?')


def _aochildes(files):
  """Tables of utterances, one file per corpus: what adults say to children of at most six years."""
  documents = []
  for _, text in files:
    transcripts = collections.defaultdict(list)
    for row in csv.DictReader(io.StringIO(text)):
      old = row['target_child_age'] not in ('', 'NA') and float(row['target_child_age']) > 365 * 6
      if row['collection_name'] != 'Eng-NA' or row['speaker_role'] in _NOT_ADULTS or old:
        continue
      if row['gloss'] == 'NA' or _NOT_UNDERSTOOD.search(row['gloss']):
        continue
      words = [_word(word) for word in row['gloss'].split() if word[0] not in '0&']
      if line := _spoken([word for word in words if word], _DATA['ends'].get(row['type'], '.')):
        transcripts[row['transcript_id']].append((int(row['utterance_order']), line))
    for lines in transcripts.values():
      documents += _pieces([line for _, line in sorted(lines)])
  return documents


def _uncoded(text):
  """An utterance without codes, pauses and repetitions; replacements are in place."""
  text = re.sub(r'\x15[^\x15]*\x15|\s\d+_\d+\s*$|["\u201c\u201d]', ' ', text)
  text = re.sub(r'\((?:\.+|\d*[.:]?\d+\.?)\)', ' ', text)
  text = re.sub(r'<([^<>]*)>\s*\[::?\s*([^\]]*)\]', r' \2 ', text)
  text = re.sub(r'\S+\s*\[::?\s*([^\]]*)\]', r' \1 ', text)
  for _ in range(4 if re.search(r'[<\[]', text) else 0):  # the innermost first
    text = re.sub(r'\[(?!/)[^\[\]]*\]', ' ', text)
    text = re.sub(r'<([^<>]*)>\s*\[/[^\]]*\]', ' ', text)
    text = re.sub(r'<([^<>]*)>(?!\s*\[/)', r' \1 ', text)
    text = re.sub(r'(^|\s)[^\s<>\[\]]+\s*\[/[^\]]*\]', r'\1 ', text)
  return re.sub(r'\[[^\]]*\]|[<>]', ' ', text)


def _utterance(text):
  """A main line of a CHAT transcript as plain text; None if a part was not understood."""
  if _NOT_UNDERSTOOD.search(text):
    return None
  text, end = _uncoded(text), '.'
  if mark := re.search(r'(\+\S*[.!?]|[.!?]+)\s*$', text):
    text = text[: mark.start()]
    end = next((x for x in '?!' if x in mark[1]), '...' if mark[1] == '+...' else '.')
  words = []
  for word in text.split():
    if word[0] in '&0+':
      continue
    comma = ',' if word[-1] in ',;\u2021\u201e' or word == ':' else ''
    words.append(_word(word.rstrip(',;\u2021\u201e')) + comma)
  return _spoken([word for word in words if word], end)


def _transcript(text):
  """(age of the child in months, or None; the lines that adults say) of a CHAT transcript."""
  roles, age, spoken = {}, None, []
  for line in re.sub(r'\n[\t ]+', ' ', text.replace('\r', '')).split('\n'):
    if line.startswith('@Participants'):
      names = [name.split() for name in line.split(':', 1)[1].split(',')]
      roles |= {name[0]: name[-1] for name in names if len(name) > 1}
    elif line.startswith('@ID'):
      fields = line.split('|')
      roles[fields[2]] = fields[7]
      if fields[7] == 'Target_Child':
        years = re.match(r'(\d+);(\d*)', fields[3])
        age = years and int(years[1]) * 12 + int(years[2] or 0)
    elif line.startswith('*'):
      speaker, _, speech = line[1:].partition(':')
      if roles.get(speaker, 'Unidentified') not in _NOT_ADULTS:
        spoken.append(_utterance(speech.strip()))
  return age, [line for line in spoken if line]


def _childes(files):
  """CHAT transcripts, as `_aochildes`. Of the last corpus the documents are shuffled."""
  corpora = []
  for _, corpus in itertools.groupby(files, lambda file: file[0].split('/')[4]):
    transcripts = [_transcript(text) for _, text in corpus]
    chosen = [x for age, x in transcripts if (age is None or age <= 72) and len(x) >= 20]
    corpora.append([piece for lines in chosen for piece in _pieces(lines)])
  *whole, sample = corpora
  return [*itertools.chain(*whole), *_shuffled(sample)]


# Standard Ebooks

_XHTML, _TYPE = '{http://www.w3.org/1999/xhtml}', '{http://www.idpf.org/2007/ops}type'
_HEADINGS = {'h1', 'h2', 'h3', 'h4', 'h5', 'h6', 'hgroup', 'header', 'figure'}


def _kind(element):
  """(tag, semantic type) of an element."""
  return element.tag.removeprefix(_XHTML), element.get(_TYPE, '')


def _inner(element, left_out='noteref'):
  """Yields the parts of an element's text, without headings and the types left out."""
  tag, kind = _kind(element)
  if tag in _HEADINGS or re.search(left_out, kind):
    return
  yield ' ' if tag == 'br' else element.text or ''
  for child in element:
    yield from _inner(child, left_out)
    yield child.tail or ''
  if tag in ('p', 'td', 'li'):
    yield ' '


def _paragraphs(element):
  """Yields the paragraphs of an element that are running text."""
  tag, kind = _kind(element)
  if tag in _HEADINGS | {'table', 'nav', 'aside', 'footer'} or 'endnote' in kind:
    return
  if tag == 'p' or tag in ('li', 'dd', 'dt') and element.find(_XHTML + 'p') is None:
    yield _tight(_plain(''.join(_inner(element))))
  else:
    for child in element:
      yield from _paragraphs(child)


def _speeches(body):
  """Yields the speeches of a play: a row of a table has a speaker and a speech."""
  for row in body.iter(_XHTML + 'tr'):
    cells = row.findall(_XHTML + 'td')
    if len(cells) == 2 and 'persona' in _kind(cells[0])[1]:
      speech = _tight(_plain(''.join(_inner(cells[1], 'noteref|stage-direction'))))
      yield ' '.join(re.sub(r'\(\s*\)|\[\s*\]', ' ', speech).split())


def _chapters(files, read):
  """A document per chapter or act, in the order of the book."""
  files = dict(files)
  package = ElementTree.fromstring(files['src/epub/content.opf'])
  hrefs = {item.get('id'): item.get('href') for item in package.iter() if item.get('href')}
  documents = []
  for item in package.iter('{http://www.idpf.org/2007/opf}itemref'):
    href = hrefs[item.get('idref')]
    if not _NOT_TEXT.search(os.path.basename(href)):
      root = ElementTree.fromstring(files[f'src/epub/{href}'])
      documents.append([x for x in read(root.find(_XHTML + 'body')) if _has_letter(x)])
  return [x for x in documents if len(x) >= 3 and _words(x) > 60]


def _quotations(files):
  """The direct speech of a novel: of each paragraph, the text between quotation marks."""
  documents = []
  for chapter in _chapters(files, _paragraphs):
    lines = []
    for paragraph in chapter:
      parts = [part.strip() for part in paragraph.split('"')[1::2]]
      parts = [x for x in parts if len(x) > 1 and x[-1] in '.,!?-:;' and _has_letter(x)]
      for i, (part, after) in enumerate(zip(parts, [*parts[1:], 'A'])):
        if part[-1] in ',;:' and not after[0].islower():
          parts[i] = part[:-1] + '.'
      lines += [_capital(' '.join(parts))] if parts else []
    if len(lines) >= 10:
      documents.append(lines)
  return documents


# Dialogue

_AUXILIARY = f'(?:{_DATA["auxiliary"]})'
_IS_QUESTION = re.compile(
  r'^(?:(?:and|but|so|well|oh|er|erm|yeah|no|or) )*(?:'
  r"(?:what|where|who|why|how|when|which|whose|what's|where's|who's|how's)\b(?! a\b)|"
  rf'{_AUXILIARY} (?:you|he|she|it|they|we|i|that|this|there|the|your|my)\b)|'
  rf'\b(?!sh){_AUXILIARY} (?:you|he|she|it|they|we|i|there)$',
  re.I,
)


def _transcripts(files, read, least):
  """The pieces of all transcripts that have at least that many lines."""
  transcripts = [lines for _, text in files if len(lines := read(text)) >= least]
  return [piece for lines in transcripts for piece in _pieces(lines)]


def _cabnc(text):
  """A conversation of Britons. Turns get a mark at their end; long, doubtful ones are left out."""
  lines = []
  for turn in text.splitlines():
    line = _tight(_plain(turn.split('|', 1)[-1])).rstrip('. ')
    strange = re.search(r'[^A-Za-z0-9\'\-.,!?;:()%$\u00a3" \u00c0-\u017f]', line)
    two = re.search(rf'[a-z] (?:{_DATA["begins"]})\b', line)
    if strange or two or not line[:1].isupper() or len(line.split()) > 14:
      continue
    line = re.sub(r'(?<=gon|wan) (?=na\b)|(?<=got) (?=ta\b)', '', line)
    line = line.replace('in n it', 'innit')
    lines.append(line if line[-1] in '?!' else line + '.?'[bool(_IS_QUESTION.search(line))])
  return lines


def _switchboard(text):
  """A telephone conversation: lines of speaker, segment, act. A turn joins its segments."""
  rows = [row for row in (line.split('|') for line in text.splitlines()) if len(row) == 3]
  lines = []
  for _, turn in itertools.groupby(rows, lambda row: row[0]):
    segments = [(segment, act) for _, segment, act in turn if act != 'x']
    line = _tight(_plain(' '.join(segment for segment, _ in segments)))
    line = re.sub(r'[,\s-]+$', '', line)
    if not _has_letter(line) or re.search(r'[<>\[\]{}@#*_\\/=|~^]', line):
      continue
    if line[-1] not in '.?!':
      act = segments[-1][1]
      breaks_off = act == '%' or re.search(rf'\b(?:{_DATA["breaks_off"]})$', line)
      line += '?' if act[0] == 'q' else '...' if breaks_off else '.'
    lines.append(_capital(line))
  return lines


def _joined(tokens):
  """Text of tokens between blanks."""
  text = re.sub(r"\s*(?<=\w)\s?' ?(s|t|re|ve|ll|d|m)\b", r"'\1", _plain(tokens))
  text = re.sub(r'([($])\s+', r'\1', re.sub(r'\s+([.,!?;:%)])', r'\1', text))
  text = re.sub(r'(\d)([.,:]) (\d)', r'\1\2\3', text)
  text = re.sub(r'"\s*([^"]*?)\s*"', r'"\1"', text)
  text = re.sub(r'((?:Mr|Mrs|Ms|Dr)\.|[a-z][.!?,])(?=[A-Z])', r'\1 ', text)
  return ' '.join(text.split())


def _dailydialog(files):
  """Dialogues of learners of English, one per line. A dialogue is a document."""
  documents = {}
  for _, text in files:
    for line in text.splitlines():
      turns = filter(_has_letter, line.split('\t')[0].split('__eou__'))
      turns = [_capital(_joined(turn)) for turn in turns]
      if len(turns) >= 2 and not re.search('[\u4e00-\u9fff]', line):
        documents.setdefault(_key(' '.join(turns))[:200], turns)
  return list(documents.values())


# News and Wikipedia


def _good_paragraphs(text, least):
  """The paragraphs that are running text of at least that many words."""
  paragraphs = []
  for line in text.split('\n'):
    line = _plain(re.sub(r'<[^>]{0,200}>', ' ', html.unescape(html.unescape(line))))
    line = re.sub(r'\([\s,;:\]]*\)', ' ', line)
    line = re.sub(r'[,;:]+\s*\)', ')', re.sub(r'\([\s,;:\]]*[,;:\]]\s*', '(', line))
    line = re.sub(r'\s+([.,:;!?)])', r'\1', ' '.join(line.split()))
    if (
      len(line.split()) >= least
      and re.match(r'["\'(]|[^\W_]', line)
      and line[-1] in '.!?"\')'
      and not re.search(r'https?:|www\.|[{}|\\]|==|\[\[|formula_\d|_{2,}', line)
      and sum(map(str.isascii, line)) / len(line) > 0.985
      and sum(map(str.isalpha, line)) / len(line) > 0.72
    ):
      paragraphs.append(line)
  return paragraphs


def _wikinews(files):
  """Articles of at least 60 words, one JSON object per line."""
  documents = {}
  for _, text in files:
    for line in text.splitlines():
      paragraphs = _good_paragraphs(json.loads(line)['text'], 8)
      if _words(paragraphs) >= 60:
        documents.setdefault(paragraphs[0], paragraphs)
  return list(documents.values())


def _wikipedia(files):
  """The first paragraphs, up to 1,200 words, of each article with at least 80 words of them."""
  documents = {}
  for _, text in files:
    article = r'<doc id="(\d+)"[^>]*title="([^"]*)"[^>]*>\n(.*?)\n</doc>'
    for number, title, body in re.findall(article, text, re.S):
      if number in documents or re.match(r'Lists? of|Outline of|Index of|Timeline of|\d', title):
        continue
      paragraphs = _good_paragraphs(body.partition('\n')[2], 12)
      counts = itertools.accumulate(len(x.split()) for x in paragraphs)
      paragraphs = [x for x, count in zip(paragraphs, counts) if count <= 1200]
      if _words(paragraphs) >= 80:
        documents[number] = paragraphs
  return list(documents.values())


def _hardness(document, known):
  """How hard an article is: long sentences and words, rare words, names, digits and symbols."""
  text = ' '.join(document)
  words = re.findall(r"[A-Za-z']+", text)
  sentences = sum(len(x.split()) > 2 for x in _ENDS_SENTENCE.split(text))
  rare = 1 - sum(word.lower() in known for word in words) / len(words)
  capitals = sum(word[0].isupper() for word in words) / len(words)
  digits = len(re.findall(r'\d+', text)) / len(words)
  symbols = r"(?<![\w'])[b-hj-zB-HJ-Z](?![\w'.])|[=+<>\u00b1\u00d7\u2044\u2192]"
  digits += 3 * len(re.findall(symbols, text)) / len(words)
  length = sum(map(len, words)) / len(words)
  return len(words) / max(1, sentences) / 10 + 8 * rare + 4 * capitals + 4 * digits + length / 2


READERS = {
  'aochildes': _aochildes,
  'childes': _childes,
  'prose': lambda files: _chapters(files, _paragraphs),
  'plays': lambda files: _chapters(files, _speeches),
  'quotations': _quotations,
  'dailydialog': _dailydialog,
  'switchboard': lambda files: _transcripts(files, _switchboard, 10),
  'cabnc': lambda files: _transcripts(files, _cabnc, 30),
  'wikinews': _wikinews,
  'wikipedia': _wikipedia,
}


def _chosen(source, documents, room, vocabulary):
  """Documents of a source with at most `room` words, in the order of the source's `order`."""
  room = min(room, source.get('words', room))
  if source.get('order') == 'plainest':
    known = {word for word, _ in vocabulary.most_common(6000)}
    return _shuffled(_taken(sorted(documents, key=lambda x: _hardness(x, known)), room))
  return _taken(_shuffled(documents) if source.get('order') == 'random' else documents, room)


def main(mirrors, texts, out):
  _refuse_other_sources(mirrors, texts, [*_DATA['tests'], *_DATA['sources']])
  out.mkdir(parents=True)
  tests = _test_sentences(mirrors, texts, _DATA['tests'])
  totals, rows, vocabulary = {}, [], collections.Counter()
  for source in _DATA['sources']:
    kind = source['kind']
    total = totals.setdefault(kind, dict(documents=0, words=0, bytes=0))
    for name, repository, commit, files in _files(mirrors, texts, source):
      room = _DATA['words']['all'] - sum(x['words'] for x in totals.values())
      room = min(room, _DATA['words'].get(kind, room) - total['words'])
      documents = READERS[source['reader']](files)
      documents = _without(tests, _chosen(source, documents, room, vocabulary))
      if kind in _DATA['words']:
        lines = (line for document in documents for line in document)
        vocabulary.update(x.lower() for line in lines for x in re.findall(r"[A-Za-z']+", line))
      content = ('\n\n'.join('\n'.join(x) for x in documents) + '\n').encode()
      (out / source['folder']).mkdir(exist_ok=True)
      (out / source['folder'] / f'{name}.txt').write_bytes(content)
      size = dict(documents=len(documents), words=sum(map(_words, documents)), bytes=len(content))
      total |= {key: total[key] + size[key] for key in size}
      origin = dict(repository=repository, commit=commit) if commit else dict(texts=source['texts'])
      rows.append(dict(name=name, kind=kind, **origin, licence=source['licence'], **size))
      print(f'{kind:10} {name:75} {size["words"]:9,} words', flush=True)
  (out / 'SOURCES.json').write_text(json.dumps(dict(kinds=totals, sources=rows), indent=1) + '\n')


if __name__ == '__main__':
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
  )
  for place in ('mirrors', 'texts', 'out'):
    parser.add_argument(place, type=pathlib.Path, metavar=place.upper())
  args = parser.parse_args()
  if args.out.exists():
    parser.error(f'{args.out} exists: give another OUT.')
  main(args.mirrors, args.texts, args.out)
