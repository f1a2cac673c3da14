"""Sentences of words with a tag each: their examples, and the files they are read from."""

import dataclasses
import pathlib
import re
import types
from collections.abc import Iterator
from typing import NamedTuple

from bertzoo_jax.common import errors
from bertzoo_jax.parts import sources as definitions
from bertzoo_jax.tasks import schemes
from bertzoo_jax.tasks.examples import UNLABELLED
from bertzoo_jax.tasks.examples import Source
from bertzoo_jax.tasks.examples import taken
from bertzoo_jax.tasks.reading import files
from bertzoo_jax.tasks.reading import tables

_INSIDE = '\x02'  # between the characters of a sentence in MSRA-NER's table
_DOCUMENT = '-DOCSTART-'
_INVISIBLE = '\u200b\u2060\ufeff'  # of no width: beside columns, a line of them alone is empty
_NO_TAG = re.compile(r'-\d+')  # as −100 of transformers, −1 of Few-NERD
_BREAKS = re.compile('[\t\n\r]')  # they part words and columns in a file
_LISTS = {  # columns of JSON and parquet
  'words': ('tokens', 'words'),
  'tags': ('ner_tags', 'tags', 'labels', 'pos_tags', 'upos', 'chunk_tags'),
}
AUTO = types.SimpleNamespace(word=0, tag=-1, layout='auto', separator='auto', prefix='', labels=())


@dataclasses.dataclass(frozen=True)
class Tagged:
  """The sentences of one split, as read.

  Attributes:
    words: of each sentence.
    tags: of each sentence, one for each word; None if the split has none.
    ids: the name of each sentence: its number from 0.
    places: where each sentence is, for messages ('FILE, line 7').
    scheme: of the tags, see schemes.PREFIXES.
  """

  words: list[list[str]]
  tags: list[list[str]] | None
  ids: list[str]
  places: list[str]
  scheme: str = 'none'
  take = taken

  def __len__(self):
    return len(self.words)

  @property
  def keys(self) -> list[str]:
    """A key for each sentence. Sentences with the same words have the same key."""
    return ['\x1f'.join(words) for words in self.words]


def conll(fields: definitions.Conll, task_dir) -> Source:
  """Files of tagged sentences. Raises UserError for one that is not as the config says."""
  read = lambda path, split, digest: sentences(path, split, digest, fields)
  finish = lambda found: schemed(found, fields.scheme, fields.convert)
  labels = tuple(fields.labels)
  return files.source(task_dir, fields, read, finish, labels=labels, label_columns=('tag',))


def schemed(splits: dict[str, Tagged], scheme: str, convert: str):
  """(splits in one scheme, notes): the scheme is told and checked, the tags are converted.

  scheme: auto, or of schemes.PREFIXES. convert: a scheme, or '' for the tags as they are.

  Raises UserError for a conversion of tags that have none.
  """
  tagged = {name: e for name, e in splits.items() if e.tags is not None}
  found = scheme
  if scheme == 'auto':
    # only I or only B and I in one split says little, so all are looked at
    found = schemes.detect([tags for e in tagged.values() for tags in e.tags])
  tags = {tag for e in tagged.values() for own in e.tags for tag in own}
  if scheme == 'auto' and (odd := schemes.misspelt(tags)):
    raise errors.UserError(
      f'The tag {odd!r} has another spelling than O, B-…, I-…: write the letter O, or a capital, a '
      'hyphen and the type, or set --config.source.scheme=none to learn the tags as they are.'
    )
  notes = [f'Tags: scheme {found}{"" if scheme != "auto" else " (found in the files)"}.']
  if found == 'none' and (odd := schemes.unknown_prefixes(tags)):
    notes.append(
      f'Tags with the prefix {odd[0]}-: no scheme has it. The tags are learned as they are, and '
      'not checked; strict_f1 is entity_f1.'
    )
  for name, e in tagged.items():
    wrong = [(i, j) for i, tags in enumerate(e.tags) for j in schemes.broken(tags, found)]
    if wrong:
      i, j = wrong[0]
      notes.append(
        f'{name}: {len(wrong):,} tags are impossible in the scheme {found}, the first is '
        f'{e.tags[i][j]!r} of word {j + 1} ({e.words[i][j]!r}) in {e.places[i]}.'
      )
  if convert and found == 'none':
    raise errors.UserError(
      f'config.source.convert={convert}, and the tags have no scheme (B-…, I-…): set '
      "--config.source.convert=''."
    )
  out = {}
  for name, e in splits.items():
    tags = e.tags
    if convert and tags is not None:
      tags = [schemes.converted(own, convert) for own in tags]
    out[name] = dataclasses.replace(e, tags=tags, scheme=convert or found)
  if convert:
    notes.append(f'Tags are converted to {convert}.')
  return out, notes


# --- one file ---


class _Word(NamedTuple):
  line: int
  fields: list[str]


def sentences(path, split, digest, fields=AUTO) -> tuple[Tagged, list[str]]:
  """(sentences of one file, notes about left out ones).

  Args:
    path: where it is.
    split: name. A test split may have no tags; tags of splits in UNLABELLED are not read.
    digest: to which its bytes are added.
    fields: has word, tag, layout, separator, prefix and labels, as parts/sources.py:conll.

  Raises:
    UserError: no UTF-8 text, no sentence, a column that is not there.
  """
  data = files.bytes_of(path, digest, split)
  if not fields.separator:
    raise errors.UserError('config.source.separator is empty: give auto, or the column separator.')
  if pathlib.PurePath(str(path)).suffix.lower() in (*tables.JSON, '.parquet'):
    found, notes = _of_lists(data, path, split, fields)
  else:
    data = files.text_of(data, path, _INSIDE.encode()).replace(b'\n\xef\xbb\xbf', b'\n')
    layout = _layout(data, path) if fields.layout == 'auto' else fields.layout
    read = _from_table if layout == 'table' else _from_columns
    found, notes = read(data, path, split, fields, layout)
  for words, tags, place in zip(found.words, found.tags or (), found.places):
    if none := next((tag for tag in tags if _NO_TAG.fullmatch(tag)), ''):
      raise errors.UserError(
        f'{place}: the word {words[tags.index(none)]!r} has the tag {none}, which stands for no '
        'tag: write one, as O, or delete the word and its number.'
      )
    if '' in tags:
      raise errors.UserError(
        f'{place}: the word {words[tags.index("")]!r} has no tag: write one, or name another '
        'column with --config.source.tag.'
      )
  return found, notes


def _of_lists(data, path, split, fields):
  """A row per sentence, with a list of words and one of tags, or of numbers of `fields.labels`."""

  def choose(known):
    if not known:
      raise errors.UserError(f'{path} has no sentence: copy the file again.')
    found = {key: next((n for n in names if n in known), '') for key, names in _LISTS.items()}
    if not found['words'] or not found['tags'] and not split.startswith('test'):
      raise errors.UserError(
        f'{path} has {", ".join(map(repr, known))}: a row of a file of tags has a list of words '
        f'({", ".join(_LISTS["words"])}) and a list of tags ({", ".join(_LISTS["tags"])}).'
      )
    several = [n for n in _LISTS['tags'] if n in known]
    if len(several) > 1 and not split.startswith('test'):
      raise errors.UserError(
        f'{path} has tags of several names ({", ".join(several)}): keep one of these columns.'
      )
    return {key: name for key, name in found.items() if name}

  def a_list(value, where):
    if not isinstance(value, list):
      raise errors.UserError(f'{where} holds no list: write a list with one text for each word.')
    return value

  def named(value, where):
    if isinstance(value, int) and not isinstance(value, bool):
      if value >= len(fields.labels):
        raise errors.UserError(
          f'{where} has the tag {value}, and config.source.labels has {len(fields.labels)} names: '
          "give those of all numbers, from 0, --config.source.labels=\"('O','B-…',…)\"."
        )
      return fields.labels[value] if value >= 0 else str(value)
    return tables.as_label(value, where).strip()

  texts = lambda value, where: [tables.as_text(v, where) for v in a_list(value, where)]
  names = lambda value, where: [named(v, where) for v in a_list(value, where)]
  got = tables.read(data, path, choose)
  if not got:
    raise errors.UserError(f'{path} has no sentence: copy the file again.')
  words, places = got.texts('words', texts), [got.place(i) for i in range(len(got))]
  tags = None
  if 'tags' in got.columns and split != UNLABELLED:
    tags = got.texts('tags', names)
    for own, said, place in zip(words, tags, places):
      if len(own) != len(said):
        raise errors.UserError(f'{place} has {len(own)} words and {len(said)} tags: mend the row.')
  ids = list(map(str, got.numbers))
  return Tagged(words, tags, ids, places), got.notes(split)


def _from_columns(data, path, split, fields, layout):
  """A word per line."""
  word, tag = fields.word, fields.tag if split != UNLABELLED else None
  read, ids, left_out = [], [], files.LeftOut()
  groups = _conllu(data, path) if layout == 'conllu' else _columns(data, path, fields.separator)
  for number, group in enumerate(groups):
    width = len(group[0].fields)
    if odd := next((w for w in group if len(w.fields) != width), None):
      reason = f'with lines of {width} and of {len(odd.fields)} columns'
      left_out.add(reason, odd.line)
      continue
    read.append(group)
    ids.append(str(number))
  _check_left_out(left_out, len(read), path)
  widths, line = {len(group[0].fields) for group in read}, read[0][0].line
  _check_column(word, min(widths), 'word', path, line)
  if tag is not None and split.startswith('test'):
    # a test file of words alone: its tag column is the word's, or beyond the last
    tag = None if all(_at(tag, w) in (None, _at(word, w)) for w in widths) else tag
  if tag is not None:
    _check_column(tag, min(widths), 'tag', path, line)
    if any(_at(tag, w) == _at(word, w) for w in widths):
      raise errors.UserError(
        f'config.source.word={word} and config.source.tag={tag} are the same column of {path}, '
        f'whose line {line} has {min(widths)}: name two columns, or set '
        '--config.source.separator to the mark between columns.'
      )
  found = Tagged(
    words=[[w.fields[word].removeprefix(fields.prefix) for w in group] for group in read],
    tags=None if tag is None else [[w.fields[tag].strip() for w in group] for group in read],
    ids=ids,
    places=[f'{path.name}, line {group[0].line}' for group in read],
  )
  return found, left_out.notes(split, path.name, 'sentence')


def _layout(data, path) -> str:
  if pathlib.PurePath(str(path)).suffix.lower() == '.conllu':
    return 'conllu'
  return 'table' if _INSIDE.encode() in data[:100_000] else 'columns'


def _columns(data, path, separator) -> Iterator[list[_Word]]:
  """Groups of lines between empty ones; lines of -DOCSTART- part groups, too. Columns are parted by
  tabs if most lines have one, else by blanks and tabs; a no-break space is a part of a word.
  """
  lines = [(number, line) for number, line in files.lines_of(data, path)]
  if separator == 'auto':
    some = [line for _, line in lines[:2000] if line.strip()]
    separator = '\t' if 2 * sum('\t' in line for line in some) > len(some) else ' '
  group, width = [], 0
  for number, line in lines:
    if separator == ' ':
      fields = re.split('[ \t]+', line.strip(' \t'))
      # a character per line: the character may be a blank
      if line[:1] in (' ', '\t') and len(fields) == width - 1:
        fields = [line[0], *fields]
    else:
      fields = line.split(separator)
    empty = not (line.strip(_INVISIBLE) if width > 1 else line).strip()
    if empty or fields[0].strip().startswith(_DOCUMENT):
      if group:
        yield group
      group = []
      continue
    width = width or len(fields)
    group.append(_Word(number, fields))
  if group:
    yield group


def _conllu(data, path) -> Iterator[list[_Word]]:
  """Sentences of Universal Dependencies, without comments, ranges (1-2) and empty nodes (8.1)."""
  group = []
  for number, line in files.lines_of(data, path):
    if not line.strip():
      if group:
        yield group
      group = []
      continue
    if line.startswith('#'):
      continue
    fields = line.split('\t')
    if '-' in fields[0] or '.' in fields[0]:
      continue
    if len(fields) != 10:
      raise errors.UserError(
        f'{path}, line {number} has {len(fields)} columns, and a line of CoNLL-U has 10: mend it, '
        'or set --config.source.layout=columns.'
      )
    group.append(_Word(number, fields))
  if group:
    yield group


def _from_table(data, path, split, fields, layout):
  """A sentence per line: its characters and its tags, each with U+0002 between, and a tab between
  both. A first line of names is left out.
  """
  words, tags, places, ids, with_tags = [], [], [], [], split != UNLABELLED
  left_out = files.LeftOut()
  for number, line in files.lines_of(data, path):
    if not line.strip():
      continue
    if number == 1 and _INSIDE not in line:
      continue
    own = [field.split(_INSIDE) for field in line.split('\t')]
    if len(own) > 1 and len(own[0]) != len(own[1]):
      reason = 'with another number of tags than of words'
      left_out.add(reason, number)
      continue
    ids.append(str(len(ids) + sum(many for many, _ in left_out.values())))
    words.append(own[0])
    tags.append([t.strip() for t in own[1]] if len(own) > 1 else None)
    places.append(f'{path.name}, line {number}')
  _check_left_out(left_out, len(words), path)
  tagged = with_tags and all(t is not None for t in tags)
  if with_tags and not tagged and not split.startswith('test'):
    lacking = places[tags.index(None)]
    raise errors.UserError(f'{lacking} has no tags: write them behind a tab.')
  notes = left_out.notes(split, path.name, 'sentence')
  return Tagged(words, tags if tagged else None, ids, places), notes


def _at(column, width):
  """The place of a column from 0; None if there is none."""
  place = column + width if column < 0 else column
  return place if 0 <= place < width else None


def _check_column(column, width, field, path, line):
  if _at(column, width) is None:
    raise errors.UserError(
      f'config.source.{field}={column}, and {path}, line {line} has {width} '
      f'column{"s" if width > 1 else ""}: set --config.source.{field} to one from 0 to {width - 1} '
      f'(or from {-width} to -1), or --config.source.separator to the mark between columns.'
    )


def _check_left_out(left_out, kept, path):
  remedy = 'set --config.source.separator and --config.source.layout as the file has them'
  left_out.check(kept, path, 'sentences', remedy)
  if not kept:
    raise errors.UserError(f'{path} has no sentence: copy the file again.')


def written(words, *tags) -> str:
  """The text of a file of sentences: a line per word, its tags behind tabs, an empty line behind
  each sentence.

  Args:
    words: of each sentence. Tabs and line ends in them, as JSON may have, become blanks.
    tags: each a list of sentences of tags; one column each.
  """
  lines = []
  for columns in zip(([_BREAKS.sub(' ', w) for w in own] for own in words), *tags):
    lines += ['\t'.join(fields) + '\n' for fields in zip(*columns)]
    lines.append('\n')
  return ''.join(lines)
