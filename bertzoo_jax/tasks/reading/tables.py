"""Tables: rows of values from tsv, csv, JSON lines, a JSON array, parquet.

All values of text files are text as it is written ("NA" stays "NA"). A row that cannot be read is
Skipped.
"""

import csv
import json
import math
import pathlib
import re
import types
from typing import NamedTuple

from bertzoo_jax.common import errors
from bertzoo_jax.tasks import examples
from bertzoo_jax.tasks.reading import files
from bertzoo_jax.tasks.reading import objects
from bertzoo_jax.text import records as keyed

TEXT = {'.tsv': '\t', '.txt': '\t', '.csv': ','}  # with the separator of `auto`
JSON = ('.jsonl', '.json', '.ndjson')
SUFFIXES = (*TEXT, *JSON, '.parquet')
_FIELD = 1 << 30  # characters of a field, at most
_QUOTES = {'double': '"', 'single': "'"}
_BATCH = 256  # rows of parquet that are unpacked at a time
_EMPTY = 'without a text'
_REMEDY = (
  'set --config.source.separator and --config.source.quotes as the file has them, or give all rows '
  'as many fields'
)
AUTO = types.SimpleNamespace(header=True, columns=(), separator='auto', quotes='auto')


class Head(NamedTuple):
  """The fields that all rows of a table share."""

  file: str  # path of the file, or name of the dataset
  columns: dict  # {key: column} to read
  word: str = 'column'  # the name of a column in messages


class Row(NamedTuple):
  head: Head
  place: str  # where it begins in the file, as 'line 7'
  values: dict  # {key: value}; values of JSON, parquet and datasets as they are, others as text

  def text(self, key, convert=None):
    """The value of a column by `convert` (`as_text`); '' without such a column."""
    value, convert = self.values.get(key, ''), convert or as_text
    if convert in (as_text, as_label) and isinstance(value, str) and value.isascii():
      return value
    head = self.head
    return convert(value, f'{head.file}, {self.place}, {head.word} {head.columns[key]!r}')


def records(file, choose, make, form=AUTO):
  """Yields make(row) of each row of a file, which is a Record or Skipped. See `rows`."""
  for row in rows(file.data, file.path, choose, form):
    yield row if isinstance(row, examples.Skipped) else make(row)


def rows(data: bytes, path, choose, form=AUTO):
  """Yields the rows of a file (Row or Skipped); its suffix decides how it is read.

  choose: names of columns → {key: column to read}; raises UserError if one is missing. form: the
  fields of parts/sources.py:table about columns and layout. The columns of a file without any names
  are called 0, 1, ….

  Raises UserError: another kind of file or encoding; quotes that do not end.
  """
  suffix = pathlib.PurePath(str(path)).suffix.lower()
  if suffix == '.parquet':
    return _parquet(data, path, choose)
  if suffix not in SUFFIXES:
    raise errors.UserError(
      f'{path}: a table is read by the end of its name, {", ".join(SUFFIXES)}: unpack or rename it.'
    )
  data = files.text_of(data, path)
  if suffix in JSON:
    return _objects(data, path, choose, getattr(form, 'layout', ''))
  separator = TEXT[suffix] if form.separator == 'auto' else form.separator
  if len(separator) != 1:
    raise errors.UserError(
      f'config.source.separator is {separator!r}: a separator is auto or one character.'
    )
  if excel := re.match(rb'"?sep=(.)"?[,;\t]*\r?\n', data):
    raise errors.UserError(
      f"{path} begins with Excel's line sep={excel[1].decode(errors='replace')}: delete the line, "
      f'and set --config.source.separator={excel[1].decode(errors="replace")!r}.'
    )
  if form.separator == 'auto' and suffix == '.csv':
    _refuse_separator(data, path)
  quotes = form.quotes
  if form.quotes == 'auto':
    quotes = 'double' if suffix == '.csv' else 'none'
    for other in _QUOTES.keys() - {quotes}:
      _refuse_quotes(data, path, separator, other, quotes)
  return _delimited(_fields(data, path, separator, _QUOTES.get(quotes)), path, choose, form)


# --- fields between separators ---


def _delimited(lines, path, choose, form):
  names = [str(name) for name in form.columns]
  head, width, blank = None, 0, []
  for number, fields in lines:
    place, is_empty = f'line {number}', not any(map(str.strip, fields))
    if is_empty and (not width or len(fields) < min(width, 2)):
      blank += [place] if width == 1 else []  # a blank line is a row if one with a text follows
      continue
    if not head:
      first = [field.strip() for field in fields]
      titled = first == names or _fits(first, choose) if names else form.header
      known = first if titled else _names_of(first, names, choose)
      columns, width = _chosen(known, path, choose, guess=titled and not names), len(known)
      head = Head(str(path), columns)
      at = [(key, known.index(name)) for key, name in columns.items()]
      if titled:
        continue
    # as Excel writes them after a table
    yield from (examples.Skipped(line, _EMPTY) for line in blank)
    blank = []
    if is_empty and width > 1:
      yield examples.Skipped(place, _EMPTY)
    elif len(fields) != width:
      quantity = 'fewer' if len(fields) < width else 'more'
      yield examples.Skipped(place, f'with {quantity} fields than {width}', remedy=_REMEDY)
    elif any('\0' in field for field in fields):
      yield examples.Skipped(place, 'with a NUL', remedy=_REMEDY)
    else:
      yield Row(head, place, {key: fields[i] for key, i in at})


def _fields(data, path, separator, quote):
  """Yields (number of the first line, fields) of each row, blank lines among them."""
  if not quote:
    for number, line in files.lines_of(data, path):
      yield number, line.split(separator) if line.strip(' ') else []
    return
  csv.field_size_limit(_FIELD)
  lines = (line.replace('\r', ' ') + '\n' for _, line in files.lines_of(data, path))
  reader, place = csv.reader(lines, delimiter=separator, quotechar=quote, strict=True), 1
  try:
    for fields in reader:
      yield place, fields
      place = reader.line_num + 1
  except csv.Error as e:
    raise errors.UserError(
      f'{path}, line {place}: a quoted field is broken ({e}): double the quotes inside quotes, '
      'or set --config.source.quotes=none if quotes mean nothing in this file.'
    ) from e


def _refuse_separator(data, path):
  """Raises UserError if all lines of a csv have a tab, or as many semicolons and no comma."""
  lines = [line for line in data[:100_000].splitlines()[:20] if line.strip()]
  counts = {line.count(b';') for line in lines}
  if lines and all(b'\t' in line for line in lines):
    raise _other_separator(path, '\t')
  if len(lines) > 2 and len(counts) == 1 and counts != {0} and b',' not in lines[0]:
    raise _other_separator(path, ';')


def _other_separator(path, mark):
  shown = "$'\\t'" if mark == '\t' else repr(mark)
  return errors.UserError(
    f'{path} has {mark!r} between its fields: set --config.source.separator={shown}.'
  )


def _refuse_quotes(data, path, separator, kind, usual):
  """Raises UserError if quotes enclose fields although the config has none, as pandas and Excel
  write them. Quotes within a text, as in GLUE, do not come in such pairs.

  kind: of _QUOTES; usual: config.source.quotes for a file of texts with such quotes.
  """
  quote = _QUOTES[kind]
  if not re.search(rf'(?:^|[\r\n{re.escape(separator)}]){quote}'.encode(), data):
    return
  lines = [line for _, line in files.lines_of(data, path)]
  csv.field_size_limit(_FIELD)
  rest = dict(delimiter=separator, quotechar=quote, strict=True)
  reader = csv.reader((line + '\n' for line in lines), **rest)
  proof, width, before, rows, commas, bare_commas, quoted = 0, 0, 0, 0, 0, 0, {}
  try:
    for fields in reader:
      source, place, before = lines[before : reader.line_num], before + 1, reader.line_num
      if not any(fields):
        continue
      rows, width = rows + 1, width or len(fields)
      widths = [line.count(separator) + 1 for line in source]
      if widths != [len(fields)]:  # a field holds a separator or the end of a line
        fits = len(fields) == width and (width == 1 or any(w != width for w in widths))
        proof = proof or (place if fits else 0)
        continue
      for column, field in enumerate(source[0].split(separator)):
        if field[:1] == quote:
          quoted.setdefault(column, []).append(place)
          proof = proof or (place if 2 * quote in field[1:-1] else 0)
          commas += ',' in field
        else:
          bare_commas += ',' in field
  except csv.Error as e:
    if 'unexpected end of data' not in str(e):
      return
  always = [places[0] for places in quoted.values() if len(places) >= max(2, rows - 1)]
  if commas and not bare_commas:  # Excel's files with tabs
    always.append(min(places[0] for places in quoted.values()))
  if proof or always:
    raise errors.UserError(
      f'{path}, line {proof or min(always)}: quotes enclose fields, as pandas and Excel write '
      f'them: set --config.source.quotes={kind}, or {usual} if the quotes are a part of the texts.'
    )


def _fits(names, choose) -> bool:
  try:
    choose(names)
  except errors.UserError:
    return False
  return True


def _names_of(first, names, choose) -> list[str]:
  """The names of the columns of a file without a header; unwanted ones at an end may be missing."""
  width = len(first)
  if not names:
    return [str(i) for i in range(width)]
  some = [names[:width], names[-width:]] if width < len(names) else []
  return next((part for part in some if _fits(part, choose)), names)


def _chosen(known, path, choose, guess=False) -> dict:
  try:
    chosen = choose(known)
  except errors.UserError as e:
    if len(known) == 1 and (marks := [mark for mark in '\t;|,' if mark in known[0]]):
      raise _other_separator(path, marks[0]) from e
    if guess:
      raise errors.UserError(
        f'{e} If the file has no line of names, set --config.source.header=False and give the '
        'numbers of the columns, from 0.'
      ) from e
    raise
  for name in chosen.values():
    if known.count(name) > 1:
      raise errors.UserError(f'{path} has {known.count(name)} columns {name!r}: rename one.')
  return chosen


# --- records ---


def _objects(data, path, choose, layout=''):
  """The objects of a JSON array, or of JSON lines (which files called .json hold, too).

  layout: of objects.BY_NAME; any other one for plain rows.
  """
  if data.lstrip()[:1] == b'[':
    unit = 'element'
    values = list(enumerate(files.json_of(files.text(data, path), path, 'JSON array'), 1))
  else:
    unit = 'line'
    values = [(place, _json(line)) for place, line in files.lines_of(data, path) if line.strip()]
  if layout in objects.BY_NAME:
    flat = ((n, objects.rows(layout, value, f'{path}, {unit} {n}')) for n, value in values)
    values = [(f'{n}, row {i}', row) for n, some in flat for i, row in enumerate(some, 1)]
  dicts = [value for _, value in values if isinstance(value, dict)]
  if not values:
    return
  if len(dicts) < len(values) / 2:
    first = next(place for place, value in values if not isinstance(value, dict))
    raise errors.UserError(
      f'{path}: most of its {len(values):,} {unit}s hold no JSON object, the first in {unit} '
      f'{first}: write one object per line.'
    )
  with errors.unreadable(f'{path} has an object that is nested too deeply: mend the file'):
    known = list(dict.fromkeys(name for value in dicts for name in _keys(value)))
  head = Head(str(path), choose(known), 'key')
  for place, value in values:
    place, fields = f'{unit} {place}', {}
    if isinstance(value, dict):
      fields = {key: keyed.field(value, name) for key, name in head.columns.items()}
    absent = [head.columns[key] for key, one in fields.items() if one is keyed.ABSENT]
    if not isinstance(value, dict):
      yield examples.Skipped(place, 'without a JSON object')
    elif absent:
      yield examples.Skipped(place, f'without the key {absent[0]!r}')
    else:
      yield Row(head, place, fields)


def _json(line):
  try:
    return json.loads(line)
  except (ValueError, RecursionError):
    return None


def _keys(record, before=''):
  """The keys of an object. Keys of objects inside it are joined with a dot, as `a.b`."""
  for key, value in record.items():
    yield before + key
    if isinstance(value, dict):
      yield from _keys(value, f'{before}{key}.')


def _parquet(data, path, choose):
  import pyarrow
  from pyarrow import parquet

  size = 0  # in memory, where one stored value may be repeated many times
  broken = f'{path} is not a complete parquet file of texts: copy it again'
  with errors.unreadable(broken, pyarrow.ArrowException, OSError):
    table = parquet.ParquetFile(pyarrow.BufferReader(data))
    head = Head(str(path), choose(table.schema_arrow.names))
    values = {name: [] for name in head.columns.values()}
    for batch in table.iter_batches(_BATCH, columns=list(values)):
      for name, items in values.items():
        column = batch.column(name)
        if pyarrow.types.is_dictionary(column.type):
          column = column.dictionary_decode()
        size += column.nbytes + 64 * len(column)
        if size > files.MOST:
          raise errors.UserError(f'{path} unpacks to over {files.MOST >> 30} GiB: divide it.')
        items += column.to_pylist()
    if ('label', 1) not in head.columns:  # several labels are 0 and 1
      values = {name: _called(items, table.schema_arrow, name) for name, items in values.items()}
  for number, row in enumerate(zip(*(values[name] for name in head.columns.values())), 1):
    yield Row(head, f'row {number}', dict(zip(head.columns, row)))


def _called(values, schema, column):
  """The values of a column, with the class names that the package `datasets` stores for numbers."""
  try:
    feature = json.loads(schema.metadata[b'huggingface'])['info']['features'][column]
    while 'names' not in feature:
      feature = feature[0] if isinstance(feature, list) else feature['feature']
    names = dict(enumerate(map(str, feature['names'])))
  except errors.UNREADABLE:
    return values
  named = lambda v: names.get(v, v) if type(v) is int else v
  name = lambda v: list(map(name, v)) if isinstance(v, list) else named(v)
  return name(values)


# --- values → texts ---


def as_text(value, where) -> str:
  """A value of JSON, parquet or a dataset as a text: numbers as Python writes them, a list of texts
  with blanks between, null and NaN as an empty text. Raises UserError for anything else.
  """
  if isinstance(value, bytes):
    with errors.unreadable(f'{where}: the bytes are not UTF-8: convert them'):
      value = value.decode('utf-8')
  if isinstance(value, str):
    # a lone surrogate ("\ud800" in JSON) is no character; tokenizers refuse it
    return value.encode('utf-8', 'replace').decode('utf-8')
  if value is None or isinstance(value, float) and math.isnan(value):
    return ''
  if isinstance(value, bool):
    return str(value).lower()
  if isinstance(value, int | float):
    return repr(value)
  if isinstance(value, list) and all(isinstance(v, str) for v in value):
    return ' '.join(as_text(v, where) for v in value)
  raise errors.UserError(f'{where} holds a {type(value).__name__}, no text: name another column.')


def as_label(value, where) -> str:
  """A label as a text. Raises UserError for a list: see `as_text` for other values."""
  if isinstance(value, list):
    raise errors.UserError(
      f'{where} holds a list, no label: write one label per row, or a column of 0 and 1 for '
      'each label (configs/tasks/own.py:multilabel).'
    )
  return as_text(value, where)
