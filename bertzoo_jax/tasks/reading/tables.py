"""Tables: columns of values from tsv, csv, JSON lines, a JSON array, parquet.

All values of text files are text as it is written ("NA" stays "NA"). No row is dropped in silence:
`Table.notes` counts the rows that could not be read, and names the first one.
"""

import csv
import dataclasses
import json
import math
import pathlib
import re
import types

from bertzoo_jax.common import errors
from bertzoo_jax.tasks.reading import files
from bertzoo_jax.text import records

TEXT = {'.tsv': '\t', '.txt': '\t', '.csv': ','}  # with the separator that `auto` stands for
JSON = ('.jsonl', '.json', '.ndjson')
SUFFIXES = (*TEXT, *JSON, '.parquet')
_FIELD = 1 << 30  # characters of a field, at most
_QUOTES = {'double': '"', 'single': "'"}
_BATCH = 256  # rows of parquet that are unpacked at a time
AUTO = types.SimpleNamespace(header=True, columns=(), separator='auto', quotes='auto')


@dataclasses.dataclass(frozen=True)
class Table:
  """A file and the columns to read of it.

  Attributes:
    file: its path, or the name of a dataset; name: of the file, for places of examples.
    known: names of all columns.
    columns: {key: column} to read.
    values: {column: its values}, of JSON, parquet and datasets as they are there, else texts.
    numbers: of the rows, from 0, rows that were left out counted too.
    places: where each row begins in the file; unit: of a place, as 'line'.
    left_out: rows that are not among them.
    column_word: the name of a column in messages.
  """

  file: str
  name: str
  known: list[str]
  columns: dict
  values: dict[str, list]
  numbers: list[int]
  places: list[int]
  unit: str
  left_out: files.LeftOut = dataclasses.field(default_factory=files.LeftOut)
  column_word: str = 'column'

  def __len__(self):
    return len(self.numbers)

  def place(self, i: int) -> str:
    """Where row i is, for messages."""
    return f'{self.name}, {self.unit} {self.places[i]}'

  def texts(self, key, convert=None) -> list:
    """The values of a column by `convert` (`as_text`); '' for all without such a column."""
    if key not in self.columns:
      return [''] * len(self)
    column, convert = self.columns[key], convert or as_text
    where = f'{self.file}, {self.unit} {{}}, {self.column_word} {column!r}'
    plain = lambda v: convert in (as_text, as_label) and isinstance(v, str) and v.isascii()
    return [
      v if plain(v) else convert(v, where.format(place))
      for v, place in zip(self.values[column], self.places)
    ]

  def notes(self, split: str) -> list[str]:
    """A sentence for each reason to leave rows out."""
    return self.left_out.notes(split, self.name, self.unit, self.unit)


def read(data: bytes, path, choose, form=AUTO) -> Table:
  """The table of a file, whose name's end decides how it is read.

  Args:
    data: the bytes of the file.
    path: where it is.
    choose: names of columns → {key: column to read}; raises UserError if one is missing.
    form: has header, columns, separator and quotes, as parts/sources.py:table has them. The columns
      of a file without any names are called 0, 1, ….

  Raises:
    UserError: another kind of file or encoding; quotes that do not end; most rows do not fit.
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
    return _records(data, path, choose)
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
  rows = _rows(data, path, separator, _QUOTES.get(quotes))
  return _delimited(rows, path, choose, form.header, form.columns)


# --- fields between separators ---


def _delimited(rows, path, choose, header, names) -> Table:
  names = [str(name) for name in names]
  left_out, numbers, places, width, number, blank = files.LeftOut(), [], [], 0, -1, []
  empty = files.LeftOut()  # as Excel writes them behind a table
  for place, fields in rows:
    is_empty = not any(map(str.strip, fields))
    if is_empty and (not width or len(fields) < min(width, 2)):
      blank += [place] if width == 1 else []  # a blank line is a row if one with a text follows
      continue
    if not width:
      first = [field.strip() for field in fields]
      titled = first == names or _fits(first, choose) if names else header
      known = first if titled else _names_of(first, names, choose)
      found, width = _chosen(known, path, choose, guess=titled and not names), len(known)
      at = {name: known.index(name) for name in found.values()}
      values = {name: [] for name in at}
      appends = [(values[name].append, i) for name, i in at.items()]
      if titled:
        continue
    for line in blank:
      empty.add('without a text', line)
    number, blank = number + 1 + len(blank), []
    if is_empty and width > 1:
      empty.add('without a text', place)
      continue
    problem = ''
    if len(fields) != width:
      problem = f'with {"fewer" if len(fields) < width else "more"} fields than {width}'
    elif any('\0' in field for field in fields):
      problem = 'with a NUL'
    if problem:
      left_out.add(problem, place)
      continue
    for append, i in appends:
      append(fields[i])
    numbers.append(number)
    places.append(place)
  if not width:
    known, found, values = [], {}, {}
  remedy = 'set --config.source.separator and --config.source.quotes as the file has them, or give '
  left_out.check(len(numbers), path, 'rows', f'{remedy}all rows as many fields')
  left_out |= empty
  return Table(str(path), path.name, known, found, values, numbers, places, 'line', left_out)


def _rows(data, path, separator, quote):
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
  """Raises UserError if quotes enclose the fields of a text that should have none, as pandas and
  Excel write them. Quotes of a text itself, as GLUE has them, do not come in such pairs.

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
      own, place, before = lines[before : reader.line_num], before + 1, reader.line_num
      if not any(fields):
        continue
      rows, width = rows + 1, width or len(fields)
      widths = [line.count(separator) + 1 for line in own]
      if widths != [len(fields)]:  # a field holds a separator or the end of a line
        fits = len(fields) == width and (width == 1 or any(w != width for w in widths))
        proof = proof or (place if fits else 0)
        continue
      for column, field in enumerate(own[0].split(separator)):
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
  """The names of the columns of a file without any; unwanted ones at an end may be missing."""
  width = len(first)
  if not names:
    return [str(i) for i in range(width)]
  some = [names[:width], names[-width:]] if width < len(names) else []
  return next((own for own in some if _fits(own, choose)), names)


def _chosen(known, path, choose, guess=False) -> dict:
  try:
    found = choose(known)
  except errors.UserError as e:
    if len(known) == 1 and (marks := [mark for mark in '\t;|,' if mark in known[0]]):
      raise _other_separator(path, marks[0]) from e
    if guess:
      raise errors.UserError(
        f'{e} If the file has no line of names, set --config.source.header=False and give the '
        'numbers of the columns, from 0.'
      ) from e
    raise
  for name in found.values():
    if known.count(name) > 1:
      raise errors.UserError(f'{path} has {known.count(name)} columns {name!r}: rename one.')
  return found


# --- records ---


def _records(data, path, choose) -> Table:
  """The records of a JSON array of objects, or of JSON lines (which files called .json hold,
  too).
  """
  if data.lstrip()[:1] == b'[':
    unit = 'element'
    rows = list(enumerate(files.json_of(files.text(data, path), path, 'JSON array'), 1))
  else:
    unit = 'line'
    rows = [(place, _json(line)) for place, line in files.lines_of(data, path) if line.strip()]
  left_out = files.LeftOut()
  objects = [(i, place, row) for i, (place, row) in enumerate(rows) if isinstance(row, dict)]
  if len(objects) < len(rows):
    first = next(place for place, row in rows if not isinstance(row, dict))
    left_out.add('without a JSON object', first, len(rows) - len(objects))
    if len(objects) < len(rows) / 2:
      raise errors.UserError(
        f'{path}: most of its {len(rows):,} {unit}s hold no JSON object, the first in {unit} '
        f'{first}: write one object per line.'
      )
  with errors.unreadable(f'{path} has an object that is nested too deeply: mend the file'):
    known = list(dict.fromkeys(name for _, _, row in objects for name in _keys(row)))
  found = choose(known)
  names = list(dict.fromkeys(found.values()))
  values, numbers, places = {name: [] for name in names}, [], []
  for number, place, row in objects:
    own = [records.field(row, name) for name in names]
    if records.ABSENT in own:
      reason = f'without the key {names[own.index(records.ABSENT)]!r}'
      left_out.add(reason, place)
      continue
    for name, value in zip(names, own):
      values[name].append(value)
    numbers.append(number)
    places.append(place)
  return Table(str(path), path.name, known, found, values, numbers, places, unit, left_out, 'key')


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


def _parquet(data, path, choose) -> Table:
  import pyarrow
  from pyarrow import parquet

  size = 0  # that it takes in memory, where one value may stand for many
  broken = f'{path} is no whole parquet file of texts: copy it again'
  with errors.unreadable(broken, pyarrow.ArrowException, OSError):
    table = parquet.ParquetFile(pyarrow.BufferReader(data))
    known = table.schema_arrow.names
    found = choose(known)
    values = {name: [] for name in found.values()}
    for batch in table.iter_batches(_BATCH, columns=list(values)):
      for name, own in values.items():
        column = batch.column(name)
        if pyarrow.types.is_dictionary(column.type):
          column = column.dictionary_decode()
        size += column.nbytes + 64 * len(column)
        if size > files.MOST:
          raise errors.UserError(f'{path} unpacks to over {files.MOST >> 30} GiB: divide it.')
        own += column.to_pylist()
    if ('label', 1) not in found:  # several labels are 0 and 1
      values = {name: _called(own, table.schema_arrow, name) for name, own in values.items()}
  numbers = list(range(max(map(len, values.values()), default=0)))
  places = [n + 1 for n in numbers]
  return Table(str(path), path.name, known, found, values, numbers, places, 'row')


def _called(values, schema, column):
  """The values of a column; numbers of classes as the package `datasets` wrote their names down."""
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
