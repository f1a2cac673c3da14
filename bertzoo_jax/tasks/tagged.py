"""Sentences of words with a tag each: their examples, and the files they are read from."""

import dataclasses
import itertools
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.tasks import places
from bertzoo_jax.tasks import rows
from bertzoo_jax.tasks import schemes
from bertzoo_jax.tasks import tables
from bertzoo_jax.tasks.examples import Source

_INSIDE = '\x02'  # between the characters of a sentence in MSRA-NER's table
_DOCUMENT = '-DOCSTART-'


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

  def __len__(self):
    return len(self.words)

  @property
  def keys(self) -> list[str]:
    """A key for each sentence. Sentences with the same words have the same key."""
    return ['\x1f'.join(words) for words in self.words]

  def take(self, indices) -> 'Tagged':
    """The sentences with these indices."""
    kept = lambda values: values and [values[i] for i in indices]
    return Tagged(kept(self.words), kept(self.tags), kept(self.ids), kept(self.places), self.scheme)


def conll(
  task_dir, *, files, word, tag, layout, separator, prefix, scheme, convert, labels, dev_share
) -> Source:
  """Files of tagged sentences.

  Args:
    task_dir: the folder of the files; '' for the current folder.

  Raises:
    UserError: a file, column or encoding is not as the config says.
  """
  form = dict(word=word, layout=layout, separator=separator, prefix=prefix)
  found, notes, digest = places.read(
    task_dir, dict(files), lambda *file: sentences(*file, tag=tag, **form)
  )
  splits, more = schemed(found, scheme, convert)

  def read(path) -> Tagged:
    path = storage.path(path)
    return sentences(tables.bytes_of(path), path, 'test', tag=None, **form)[0]

  return Source(
    splits,
    tuple(labels),
    ('tag',),
    (),
    dev_share,
    digest,
    tuple(notes + more),
    read,
  )


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
  notes = [f'Tags: scheme {found}{"" if scheme != "auto" else " (found in the files)"}.']
  tags = {tag for e in tagged.values() for own in e.tags for tag in own}
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


def sentences(
  data, path, split, *, word, tag, layout, separator, prefix=''
) -> tuple[Tagged, list[str]]:
  """(sentences of one file, notes about what was left out).

  Args:
    data: its bytes.
    path: where it is.
    split: name. A test split may have no tags.
    word, tag: numbers of columns from 0; below 0 they count from the last. tag: None for a file
      whose tags are not read.
    layout, separator, prefix: as parts/sources.py:conll has them.

  Raises:
    UserError: no UTF-8 text, no sentence, a column that is not there.
  """
  suffix = pathlib.PurePath(str(path)).suffix.lower()
  if suffix in (*rows.JSON, '.parquet'):
    raise errors.UserError(
      f'{path}: a file of tags is text with one word per line and an empty line behind each '
      f'sentence: write it so, with another end of its name than {suffix}.'
    )
  if not separator:
    raise errors.UserError('config.source.separator is empty: it is auto, or what parts columns.')
  data = rows.text_of(data, path)
  found = _layout(data, path) if layout == 'auto' else layout
  if found == 'table':
    return _from_table(data, path, split, tag is not None)
  tabs = separator == '\t' or separator == 'auto' and _has_tabs(data, path)
  read, where = [], None
  groups = _conllu(data, path) if found == 'conllu' else _columns(data, path, tabs, separator)
  untagged = tag is None
  left_out = {}
  for group in groups:
    where = where or group[0].line
    width = len(group[0].fields)
    if any(len(w.fields) != width for w in group):
      odd = next(w for w in group if len(w.fields) != width)
      reason = f'with lines of {width} and of {len(odd.fields)} columns'
      left_out.setdefault(reason, [0, odd.line])[0] += 1
      continue
    read.append(group)
  _check_left_out(left_out, len(read), path)
  if not read:
    raise errors.UserError(f'{path} has no sentence: copy the file again.')
  widths = {len(group[0].fields) for group in read}
  _check_column(word, min(widths), 'word', path, read[0][0].line)
  if not untagged and split.startswith('test'):
    # a test file of words alone: its tag column is the word's, or beyond the last
    untagged = all(_at(tag, w) is None or _at(tag, w) == _at(word, w) for w in widths)
  if not untagged:
    _check_column(tag, min(widths), 'tag', path, read[0][0].line)
    if any(_at(tag, w) == _at(word, w) for w in widths):
      raise errors.UserError(
        f'config.source.word={word} and config.source.tag={tag} are the same column of {path}, '
        f'whose line {read[0][0].line} has {min(widths)}: name two columns, or set '
        '--config.source.separator to what stands between columns.'
      )
  tagged = Tagged(
    words=[[w.fields[word].removeprefix(prefix) for w in group] for group in read],
    tags=None if untagged else [[w.fields[tag].strip() for w in group] for group in read],
    ids=[str(i) for i in range(len(read))],
    places=[f'{path.name}, line {group[0].line}' for group in read],
  )
  return _without_empty_tags(tagged, path), _notes(left_out, split, path)


def _layout(data, path) -> str:
  if pathlib.PurePath(str(path)).suffix.lower() == '.conllu':
    return 'conllu'
  return 'table' if _INSIDE.encode() in data[:100_000] else 'columns'


def _has_tabs(data, path) -> bool:
  """Whether most lines that are not empty have a tab."""
  lines = [line for _, line in itertools.islice(rows.lines_of(data, path), 2000) if line.strip()]
  return 2 * sum('\t' in line for line in lines) > len(lines)


def _columns(data, path, tabs, separator) -> Iterator[list[_Word]]:
  """Groups of lines between empty ones; lines of -DOCSTART- part groups, too."""
  group, width = [], 0
  for number, line in rows.lines_of(data, path):
    if tabs or separator not in ('auto', ' '):
      fields = line.split('\t' if tabs else separator)
    else:
      fields = line.split()
      # a character per line: the character may be a blank
      if line[:1].isspace() and len(fields) == width - 1:
        fields = [line[0], *fields]
    if not any(field.strip() for field in fields) or fields[0].strip().startswith(_DOCUMENT):
      if group:
        yield group
      group = []
      continue
    width = width or len(fields)
    group.append(_Word(number, fields))
  if group:
    yield group


def _conllu(data, path) -> Iterator[list[_Word]]:
  """Sentences of Universal Dependencies: without comments, words that stand for several (1-2) and
  words that are not in the text (8.1).
  """
  group = []
  for number, line in rows.lines_of(data, path):
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


def _from_table(data, path, split, with_tags) -> tuple[Tagged, list[str]]:
  """A sentence per line: its characters and its tags, each with U+0002 between, and a tab between
  both. A first line of names is left out.
  """
  words, tags, places, left_out = [], [], [], {}
  for number, line in rows.lines_of(data, path):
    if not line.strip():
      continue
    fields = line.split('\t')
    if number == 1 and _INSIDE not in line:
      continue
    own = [field.split(_INSIDE) for field in fields]
    if len(own) > 1 and len(own[0]) != len(own[1]):
      reason = 'with another number of tags than of words'
      left_out.setdefault(reason, [0, number])[0] += 1
      continue
    words.append(own[0])
    tags.append([t.strip() for t in own[1]] if len(own) > 1 else None)
    places.append(f'{path.name}, line {number}')
  _check_left_out(left_out, len(words), path)
  if not words:
    raise errors.UserError(f'{path} has no sentence: copy the file again.')
  tagged = with_tags and all(t is not None for t in tags)
  if with_tags and not tagged and not split.startswith('test'):
    lacking = places[tags.index(None)]
    raise errors.UserError(f'{lacking} has no tags: write them behind a tab.')
  ids = [str(i) for i in range(len(words))]
  found = Tagged(words, tags if tagged else None, ids, places)
  return _without_empty_tags(found, path), _notes(left_out, split, path)


def _at(column, width):
  """The place of a column from 0; None if there is none."""
  place = column + width if column < 0 else column
  return place if 0 <= place < width else None


def _check_column(column, width, field, path, line):
  if _at(column, width) is None:
    raise errors.UserError(
      f'config.source.{field}={column}, and {path}, line {line} has {width} '
      f'column{"s" if width > 1 else ""}: set --config.source.{field} to one from 0 to {width - 1} '
      f'(or from {-width} to -1), or --config.source.separator to what stands between columns.'
    )


def _without_empty_tags(tagged, path):
  for words, tags, place in zip(tagged.words, tagged.tags or (), tagged.places):
    if '' in tags:
      raise errors.UserError(
        f'{place}: the word {words[tags.index("")]!r} has no tag: write one, or name another '
        'column with --config.source.tag.'
      )
  return tagged


def _check_left_out(left_out, kept, path):
  lost = sum(many for many, _ in left_out.values())
  if lost > kept:
    problem, (_, line) = max(left_out.items(), key=lambda item: item[1][0])
    raise errors.UserError(
      f'{path}: {lost:,} of {lost + kept:,} sentences are sentences {problem}, the first one at '
      f'line {line}: set --config.source.separator and --config.source.layout as the file has them.'
    )


def _notes(left_out, split, path):
  return [
    f'{split}: {many:,} sentence{"s" if many > 1 else ""} of {path.name} {reason} left out, the '
    f'first at line {line}.'
    for reason, (many, line) in left_out.items()
  ]


def written(words, *tags) -> str:
  """The text of a file of sentences: a line per word, its tags behind tabs, an empty line behind
  each sentence.

  Args:
    words: of each sentence.
    tags: each a list of sentences of tags; one column each.
  """
  lines = []
  for columns in zip(words, *tags):
    lines += ['\t'.join(fields) + '\n' for fields in zip(*columns)]
    lines.append('\n')
  return ''.join(lines)
