"""Files of minimal pairs: two sentences or more, of which one is acceptable."""

import json
from typing import NamedTuple

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage

GOOD, BAD = 'sentence_good', 'sentence_bad'
_USUAL_GROUPS = ('UID', 'field')  # as BLiMP's files have them
_ENDS = ('.jsonl', '.tsv')


class Item(NamedTuple):
  """Texts of which one is right."""

  texts: tuple[str, ...]  # each a context and an option
  starts: tuple[int, ...]  # characters of each context; only what comes after them is scored
  right: int  # index of the right text
  group: str  # that the item is counted in; '' for none


def item(contexts, options, right: int = 0, group='') -> Item:
  """The Item of options and the context before each. Raises ValueError for another form."""
  texts = isinstance(options, (list, tuple)) and all(isinstance(x, str) for x in options)
  if not texts or len(options) < 2 or not all(x.strip() for x in options):
    raise ValueError('two texts or more are needed, and none of them empty')
  if not all(isinstance(x, str) for x in contexts) or len(contexts) != len(options):
    raise ValueError('a context is no text')
  if type(right) is not int or right not in range(len(options)):
    raise ValueError(f'the label is no number from 0 to {len(options) - 1}')
  both = tuple(map(str.__add__, contexts, options))
  ''.join((*both, str(group))).encode()  # a lone surrogate is a ValueError
  return Item(both, tuple(map(len, contexts)), right, str(group))


def read(path: str, group_by: str = '') -> list[Item]:
  """The pairs of a file, or of all files of a folder in the order of their names.

  Args:
    path: FILE.jsonl: an object per line with sentence_good and sentence_bad (BLiMP's layout), or
      with `options`, the `context` before each ('') and `label`, the index of the right one (0).
      FILE.tsv: good sentence, tab, bad sentence; a first line with these two names is no pair.
    group_by: field to group pairs by. '': UID or field, if the first object has one of them; else
      the file's name, if there are several files.

  Raises UserError: no such file, or a line of another form.
  """
  place = there(storage.path(path))
  files = sorted(f for f in place.iterdir() if f.suffix in _ENDS) if place.is_dir() else [place]
  if not files or not all(f.suffix in _ENDS for f in files):
    raise errors.UserError(
      f'--minimal_pairs: {path} is no file that ends in {" or ".join(_ENDS)}, and no folder with '
      'such files.'
    )
  pairs = []
  for file in files:
    name = file.stem if len(files) > 1 else ''
    rows = _objects if file.suffix == '.jsonl' else _columns
    pairs += rows(file, name, group_by)
  if not pairs:
    raise errors.UserError(f'--minimal_pairs: {path} has no pair.')
  return pairs


def there(place):
  if not place.exists():
    raise errors.UserError(f'{place} does not exist: correct the name.')
  return place


def lines(file):
  """[(number from 1, line)] of the lines of a file that are not empty."""
  with storage.reading(str(file)):
    data = file.read_bytes()
  with errors.unreadable(f'{file} is no UTF-8: convert it'):
    text = data.decode('utf-8-sig')
  lines = text.replace('\r\n', '\n').replace('\r', '\n').split('\n')
  return [(number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _objects(file, name, group_by):
  pairs = []
  for number, line in lines(file):
    with errors.unreadable(f'{file}:{number} is no JSON: mend or remove the line'):
      row = json.loads(line)
    fields = list(row) if isinstance(row, dict) else []
    if not pairs and not group_by:
      group_by = next((field for field in _USUAL_GROUPS if field in fields), '')
    needed = () if 'options' in fields else (GOOD, BAD)
    for field in (*needed, *([group_by] if group_by else [])):
      if field not in fields:
        raise errors.UserError(
          f'{file}:{number} has no {field!r}; it has {", ".join(fields) or "no fields"}.'
          + (' Give another --group_by.' if field == group_by else '')
        )
    group = row[group_by] if group_by else name
    with errors.unreadable(f'{file}:{number} is no pair: mend or remove the line'):
      row = dict(options=[row[GOOD], row[BAD]]) if needed else row
      contexts = [row.get('context', '')] * len(row['options'])
      pairs.append(item(contexts, row['options'], row.get('label', 0), group))
  return pairs


def _columns(file, name, group_by):
  if group_by:
    raise errors.UserError(f'--group_by={group_by}: {file} has two columns and no such field.')
  pairs = []
  for number, line in lines(file):
    columns = line.split('\t')
    if len(columns) != 2:
      raise errors.UserError(
        f'{file}:{number} has {len(columns)} columns: good sentence, tab, bad sentence are needed.'
      )
    if columns != [GOOD, BAD]:
      with errors.unreadable(f'{file}:{number} is no pair: mend or remove the line'):
        pairs.append(item(('', ''), columns, group=name))
  return pairs
