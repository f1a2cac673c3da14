"""Sentences of words with a tag each: their examples, and the files they are read from."""

import itertools
import pathlib
import re
from typing import NamedTuple

from bertzoo_jax.common import errors
from bertzoo_jax.tasks import examples
from bertzoo_jax.tasks import schemes
from bertzoo_jax.tasks.reading import files
from bertzoo_jax.tasks.reading import tables

_INSIDE = '\x02'  # between the characters of a sentence in MSRA-NER's table
_DOCUMENT = '-DOCSTART-'
_INVISIBLE = '\u200b\u2060\ufeff'  # of no width: a line with nothing else is empty
_NO_TAG = re.compile(r'-\d+')  # as −100 of transformers, −1 of Few-NERD
_BREAKS = re.compile('[\t\n\r]')  # separators of words and columns in a file
_LISTS = {  # columns of JSON and parquet
  'words': ('tokens', 'words'),
  'tags': ('ner_tags', 'tags', 'labels', 'pos_tags', 'upos', 'chunk_tags'),
}
_REMEDY = 'set --config.source.separator and --config.source.layout as the file has them'


class Sentence(NamedTuple):
  """The words of a sentence. label: a tag for each; scheme: of the tags, see schemes.PREFIXES."""

  words: list[str]
  label: list[str] | None = None
  scheme: str = 'none'
  form = 'tagged'

  @property
  def key(self) -> str:
    return '\x1f'.join(self.words)


def schemed(splits: dict[str, examples.Examples], scheme: str, convert: str):
  """(splits in one scheme, notes): detects and checks the scheme, and converts the tags. convert: a
  scheme, or '' for the tags as they are. Raises UserError to convert tags that have none.
  """
  tagged = {name: e for name, e in splits.items() if e.labels is not None}
  if not tagged:
    return splits, []
  used = scheme
  if scheme == 'auto':
    # one split with only I, or only B and I, does not show the scheme, so all are looked at
    used = schemes.detect([tags for e in tagged.values() for tags in e.labels])
  tags = {tag for e in tagged.values() for sentence in e.labels for tag in sentence}
  if scheme == 'auto' and (odd := schemes.misspelt(tags)):
    raise errors.UserError(
      f'The tag {odd!r} has another spelling than O, B-…, I-…: write the letter O, or a capital, a '
      'hyphen and the type, or set --config.source.scheme=none to learn the tags as they are.'
    )
  notes = [f'Tags: scheme {used}{"" if scheme != "auto" else " (found in the files)"}.']
  if used == 'none' and (odd := schemes.unknown_prefixes(tags)):
    notes.append(
      f'Tags with the prefix {odd[0]}-: no scheme has it. The tags are learned as they are, and '
      'not checked; strict_f1 is entity_f1.'
    )
  for name, e in tagged.items():
    if wrong := [(i, j) for i, tags in enumerate(e.labels) for j in schemes.broken(tags, used)]:
      i, j = wrong[0]
      words, tags, _ = e.values[i]
      notes.append(
        f'{name}: {len(wrong):,} tags are impossible in the scheme {used}, the first is '
        f'{tags[j]!r} of word {j + 1} ({words[j]!r}) in {e.places[i]}.'
      )
  if convert and used == 'none':
    raise errors.UserError(
      f'config.source.convert={convert}, and the tags have no scheme (B-…, I-…): set '
      "--config.source.convert=''."
    )
  if convert:
    notes.append(f'Tags are converted to {convert}.')

  def value(record):
    words, tags, _ = record.value
    if convert and tags is not None:
      tags = schemes.converted(tags, convert)
    return Sentence(words, tags, convert or used)

  return {name: e.changed(value) for name, e in splits.items()}, notes


# --- layouts: reader.File → iterator ---


def conll(file):
  """The sentences of a file of any layout. Raises UserError for a word without a tag."""
  if not file.fields.separator:
    raise errors.UserError('config.source.separator is empty: give auto, or the column separator.')
  layout = file.fields.layout
  if pathlib.PurePath(str(file.path)).suffix.lower() in (*tables.JSON, '.parquet'):
    layout = 'lists'
  else:
    data = files.text_of(file.data, file.path, _INSIDE.encode())
    file = file._replace(data=data.replace(b'\n\xef\xbb\xbf', b'\n'))
    layout = _layout(file) if layout == 'auto' else layout
  for one in LAYOUTS[layout](file):
    if isinstance(one, examples.Record):
      _check_tags(one.value.words, one.value.label or (), f'{file.path.name}, {one.place}')
    yield one


def _check_tags(words, tags, place):
  for word, tag in zip(words, tags):
    if _NO_TAG.fullmatch(tag):
      raise errors.UserError(
        f'{place}: the word {word!r} has the tag {tag}, which stands for no tag: write one, as O, '
        'or delete the word and its number.'
      )
    if not tag:
      raise errors.UserError(
        f'{place}: the word {word!r} has no tag: write one, or name another column with '
        '--config.source.tag.'
      )


def _lists(file):
  """A row per sentence, with a list of words and one of tags, or of numbers of `fields.labels`."""
  path, is_test = file.path, file.split.startswith('test')

  def choose(known):
    if not known:
      raise errors.UserError(f'{path} has no sentence: copy the file again.')
    columns = {key: next((n for n in names if n in known), '') for key, names in _LISTS.items()}
    if not columns['words'] or not columns['tags'] and not is_test:
      raise errors.UserError(
        f'{path} has {", ".join(map(repr, known))}: a row of a file of tags has a list of words '
        f'({", ".join(_LISTS["words"])}) and a list of tags ({", ".join(_LISTS["tags"])}).'
      )
    several = [n for n in _LISTS['tags'] if n in known]
    if len(several) > 1 and not is_test:
      raise errors.UserError(
        f'{path} has tags of several names ({", ".join(several)}): keep one of these columns.'
      )
    return {key: name for key, name in columns.items() if name}

  def each(convert):
    def texts(value, where):
      if not isinstance(value, list):
        raise errors.UserError(f'{where} holds no list: write a list with one text for each word.')
      return [convert(v, where) for v in value]

    return texts

  def named(value, where):
    labels = file.fields.labels
    if isinstance(value, int) and not isinstance(value, bool):
      if value >= len(labels):
        raise errors.UserError(
          f'{where} has the tag {value}, and config.source.labels has {len(labels)} names: '
          "give those of all numbers, from 0, --config.source.labels=\"('O','B-…',…)\"."
        )
      return labels[value] if value >= 0 else str(value)
    return tables.as_label(value, where).strip()

  def sentence(row):
    words, tags = row.text('words', each(tables.as_text)), None
    if 'tags' in row.values and file.split != examples.UNLABELLED:
      tags = row.text('tags', each(named))
      if len(words) != len(tags):
        raise errors.UserError(
          f'{path.name}, {row.place} has {len(words)} words and {len(tags)} tags: mend the row.'
        )
    return examples.Record(row.place, None, Sentence(words, tags))

  return tables.records(file, choose, sentence)


def _layout(file) -> str:
  if pathlib.PurePath(str(file.path)).suffix.lower() == '.conllu':
    return 'conllu'
  return 'table' if _INSIDE.encode() in file.data[:100_000] else 'columns'


def _words(groups, file):
  """The sentences of groups of lines, a word per line. groups: of [(line, its columns)]."""
  word, tag, prefix = file.fields.word, file.fields.tag, file.fields.prefix
  for group in groups:
    line, width = group[0][0], len(group[0][1])
    place, tags = f'line {line}', None
    if odd := next((row for row in group if len(row[1]) != width), None):
      reason = f'with lines of {width} and of {len(odd[1])} columns'
      yield examples.Skipped(f'line {odd[0]}', reason, 'sentence', _REMEDY)
      continue
    at = {field: _at(column, width) for field, column in (('word', word), ('tag', tag))}
    # a test file of words alone: its tag column is the word's, or beyond the last
    if (
      file.split == examples.UNLABELLED
      or file.split.startswith('test')
      and at['tag'] in (None, at['word'])
    ):
      at.pop('tag')
    for field, column in at.items():
      if column is None:
        raise errors.UserError(
          f'config.source.{field}={getattr(file.fields, field)}, and {file.path}, {place} has '
          f'{width} column{"s" if width > 1 else ""}: set --config.source.{field} to one from 0 to '
          f'{width - 1} (or from {-width} to -1), or --config.source.separator to the mark between '
          'columns.'
        )
    if at.get('tag') == at['word']:
      raise errors.UserError(
        f'config.source.word={word} and config.source.tag={tag} are the same column of '
        f'{file.path}, whose {place} has {width}: name two columns, or set '
        '--config.source.separator to the mark between columns.'
      )
    if 'tag' in at:
      tags = [row[at['tag']].strip() for _, row in group]
    words = [row[at['word']].removeprefix(prefix) for _, row in group]
    yield examples.Record(place, None, Sentence(words, tags))


def _at(column, width):
  """The index of a column from 0; None if there is no such column."""
  place = column + width if column < 0 else column
  return place if 0 <= place < width else None


def _columns(file):
  """Groups of lines, separated by empty lines and by -DOCSTART-. Columns are separated by tabs if
  most lines have one, otherwise by blanks and tabs; a no-break space belongs to a word.
  """
  lines, separator, width = list(files.lines_of(file.data, file.path)), file.fields.separator, 0
  if separator == 'auto':
    some = [line for _, line in lines[:2000] if line.strip()]
    separator = '\t' if 2 * sum('\t' in line for line in some) > len(some) else ' '

  def fields(number, line):
    nonlocal width
    if separator == ' ':
      out = re.split('[ \t]+', line.strip(' \t'))
      # a character per line: the character may be a blank
      if line[:1] in (' ', '\t') and len(out) == width - 1:
        out = [line[0], *out]
    else:
      out = line.split(separator)
    empty = not (line.strip(_INVISIBLE) if width > 1 else line).strip()
    if empty or out[0].strip().startswith(_DOCUMENT):
      return []
    width = width or len(out)
    return out

  return _groups(lines, fields)


def _conllu(file):
  """Sentences of Universal Dependencies, without comments, ranges (1-2) and empty nodes (8.1)."""

  def fields(number, line):
    out = line.split('\t') if line.strip() else []
    if line.startswith('#') or out and ('-' in out[0] or '.' in out[0]):
      return None
    if len(out) not in (0, 10):
      raise errors.UserError(
        f'{file.path}, line {number} has {len(out)} columns, and a line of CoNLL-U has 10: mend '
        'it, or set --config.source.layout=columns.'
      )
    return out

  return _groups(files.lines_of(file.data, file.path), fields)


def _groups(lines, fields):
  """Yields [(number, columns)] of a sentence. fields: (number, line) → columns; [] at its end."""
  group = []
  for number, line in itertools.chain(lines, [(0, '')]):
    if columns := fields(number, line):
      group.append((number, columns))
    elif columns is not None and group:
      yield group
      group = []


def _table(file):
  """A sentence per line: characters, a tab, tags, each joined by U+0002. A header is left out."""
  for number, line in files.lines_of(file.data, file.path):
    if not line.strip() or number == 1 and _INSIDE not in line:
      continue
    words, *tags = (field.split(_INSIDE) for field in line.split('\t'))
    if tags and len(words) != len(tags[0]):
      reason = 'with another number of tags than of words'
      yield examples.Skipped(f'line {number}', reason, 'sentence', _REMEDY)
      continue
    tags = [tag.strip() for tag in tags[0]] if tags and file.split != examples.UNLABELLED else None
    yield examples.Record(f'line {number}', None, Sentence(words, tags))


LAYOUTS = {
  'columns': lambda file: _words(_columns(file), file),
  'conllu': lambda file: _words(_conllu(file), file),
  'table': _table,
  'lists': _lists,
}


def written(words, *tags) -> str:
  """The text of a file of sentences: a line per word, its tags after tabs, an empty line after each
  sentence.

  words: of each sentence. Tabs and line ends in them, as JSON may have, become blanks. tags: each a
  list of sentences of tags; one column each.
  """
  lines = []
  for columns in zip(([_BREAKS.sub(' ', w) for w in sentence] for sentence in words), *tags):
    lines += ['\t'.join(fields) + '\n' for fields in zip(*columns)]
    lines.append('\n')
  return ''.join(lines)
