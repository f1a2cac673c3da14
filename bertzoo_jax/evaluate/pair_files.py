"""Files of minimal pairs: two sentences of which the first is acceptable."""

import json
from typing import NamedTuple

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage

GOOD, BAD = 'sentence_good', 'sentence_bad'
_USUAL_GROUPS = ('UID', 'field')  # as BLiMP's files have them
_ENDS = ('.jsonl', '.tsv')


class Pair(NamedTuple):
  """Two sentences, and the group that they are counted in; '' for none."""

  good: str
  bad: str
  group: str


def read(path: str, group_by: str = '') -> list[Pair]:
  """The pairs of a file, or of all files of a folder in the order of their names.

  Args:
    path: FILE.jsonl: an object per line with sentence_good and sentence_bad (BLiMP's layout).
      FILE.tsv: good sentence, tab, bad sentence; a first line with these two names is no pair.
    group_by: field to group pairs by. '': UID or field, if the first object has one of them; else
      the file's name, if there are several files.

  Raises UserError: no such file, or a line of another form.
  """
  place = storage.path(path)
  if not place.exists():
    raise errors.UserError(f'--minimal_pairs: {path} does not exist.')
  files = [place]
  if place.is_dir():
    files = sorted(f for f in place.iterdir() if f.suffix in _ENDS)
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
    for field in (GOOD, BAD, *([group_by] if group_by else [])):
      if field not in fields:
        raise errors.UserError(
          f'{file}:{number} has no {field!r}; it has {", ".join(fields) or "no fields"}.'
          + (' Give another --group_by.' if field == group_by else '')
        )
    pairs.append(_pair(file, number, row[GOOD], row[BAD], str(row[group_by]) if group_by else name))
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
      pairs.append(_pair(file, number, *columns, name))
  return pairs


def _pair(file, number, good, bad, group):
  if not all(isinstance(text, str) and text.strip() for text in (good, bad)):
    raise errors.UserError(f'{file}:{number} has an empty sentence: two sentences are needed.')
  return Pair(good, bad, group)
