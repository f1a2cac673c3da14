"""Rows of one table file as columns of values: tsv, csv, JSON lines, a JSON array, parquet.

No row is dropped in silence: `Read.left_out` counts the rows that could not be read, and has the
number of the first one.
"""

import csv
import io
import json
import pathlib
import re
from typing import NamedTuple

from bertzoo_jax.common import errors
from bertzoo_jax.text import binaries

TEXT = {'.tsv': '\t', '.txt': '\t', '.csv': ','}  # with the separator that `auto` stands for
JSON = ('.jsonl', '.json', '.ndjson')
SUFFIXES = (*TEXT, *JSON, '.parquet')
_FIELD = 1 << 30  # characters of a field, at most


class Read(NamedTuple):
  """What a file holds.

  Attributes:
    values: {column: values}, of the columns asked for.
    numbers: of the rows, from 0, rows that were left out counted too.
    places: where each row begins in the file; from 1.
    unit: of a place: line, element or row.
    left_out: {reason: [how many rows, place of the first]}.
  """

  values: dict[str, list]
  numbers: list[int]
  places: list[int]
  unit: str
  left_out: dict[str, list[int]]


def read(
  data: bytes,
  file,
  wanted,
  *,
  header=True,
  columns=(),
  separator='auto',
  quotes='auto',
  lists=(),
) -> Read:
  """The wanted columns of a file.

  Args:
    data: the bytes of the file.
    file: its path. The end of the name decides how it is read.
    wanted: function list of column names → those to read; it raises UserError if one is missing.
    header, columns, separator, quotes: of text files, as parts/sources.py:table has them.
      The columns of a file without any names are called 0, 1, ….
    lists: names of columns whose lists of texts stay lists, in JSON and parquet.

  Raises:
    UserError: another kind of file or encoding; quotes that do not end; most rows do not fit.
  """
  suffix = pathlib.PurePath(str(file)).suffix.lower()
  if suffix == '.parquet':
    return _parquet(data, file, wanted, lists)
  if suffix not in SUFFIXES:
    raise errors.UserError(
      f'{file}: a table is read by the end of its name, {", ".join(SUFFIXES)}: unpack or rename it.'
    )
  data = text_of(data, file)
  if suffix in JSON:
    return _records(data, file, wanted, lists)
  separator = TEXT[suffix] if separator == 'auto' else separator
  if quotes == 'auto':
    quotes = 'double' if suffix == '.csv' else 'none'
  if len(separator) != 1:
    raise errors.UserError(
      f'config.source.separator is {separator!r}: a separator is auto or one character.'
    )
  return _delimited(data, file, wanted, header, columns, separator, quotes == 'double')


# --- bytes → lines ---


def text_of(data, file) -> bytes:
  """The bytes of a text file without a byte-order mark. Raises UserError if it is no UTF-8 text."""
  if data[:2] in (b'\xff\xfe', b'\xfe\xff'):
    raise _encoding(file, 'UTF-16', 'UTF-16')
  if data[:2] == b'\x1f\x8b':
    raise errors.UserError(f'{file} is packed with gzip: unpack it (gunzip) first.')
  if any(data[:400][i::2].count(0) > len(data[:400]) / 4 for i in (0, 1)):
    raise _encoding(file, 'UTF-16 without a byte-order mark', 'UTF-16LE')
  binaries.refuse(data[: binaries.HEAD], file)
  return data.removeprefix(b'\xef\xbb\xbf')


def text(data: bytes, file) -> str:
  """The bytes of a text file as a text. Raises UserError if it is no UTF-8 text."""
  data = text_of(data, file)
  try:
    return data.decode('utf-8')
  except UnicodeDecodeError as e:
    raise _encoding(file, *_guess(data)) from e


def lines_of(data, file):
  """Yields (number from 1, line without its end). Lines end in LF or CR LF, or in CR alone where
  the file has no LF.
  """
  lines = io.BytesIO(data) if b'\n' in data else data.split(b'\r')
  for number, line in enumerate(lines, 1):
    try:
      yield number, line.rstrip(b'\r\n').decode('utf-8')
    except UnicodeDecodeError as e:
      raise _encoding(file, *_guess(data), f'line {number}, ') from e


def _guess(data):
  """('not UTF-8', the encoding for iconv) of bytes that are no UTF-8. Bytes above 127 stand side by
  side in Chinese text and alone in European text.
  """
  beside = sum(map(len, re.findall(rb'[\x80-\xff]{2,}', data[:100_000])))
  alone = len(re.findall(rb'(?<![\x80-\xff])[\x80-\xff](?![\x80-\xff])', data[:100_000]))
  return 'not UTF-8', 'GB18030' if beside > alone else 'LATIN1'


def _encoding(file, what, name, where=''):
  return errors.UserError(
    f'{file}, {where}is {what}: convert the file (iconv -f {name} -t UTF-8; name the encoding that '
    'it has).'
    if where
    else f'{file} is {what}: convert it (iconv -f {name} -t UTF-8).'
  )


# --- fields between separators ---


def _delimited(data, file, wanted, header, names, separator, quoted) -> Read:
  names = [str(name) for name in names]
  rows, left_out, blank = _rows(data, file, separator, quoted), {}, 0
  at, out, numbers, places, width, number = [], {}, [], [], 0, -1
  for place, fields in rows:
    if not any(field.strip() for field in fields):
      blank += 1
      continue
    if not width:
      first = [field.strip() for field in fields]
      titled = _is_header(first, names, wanted) if names else header
      known = first if titled else _names_of(first, names, wanted)
      at, width = _find(known, file, wanted, guess=titled and not names), len(known)
      out = {name: [] for name in at}
      if titled:
        continue
    number += 1
    problem = ''
    if len(fields) != width:
      problem = f'with {"fewer" if len(fields) < width else "more"} fields than {width}'
    elif any('\0' in field for field in fields):
      problem = 'with a NUL'
    if problem:
      left_out.setdefault(problem, [0, place])[0] += 1
      continue
    for name, i in at.items():
      out[name].append(fields[i])
    numbers.append(number)
    places.append(place)
  lost = sum(many for many, _ in left_out.values())
  if lost > len(numbers):
    problem, (many, place) = max(left_out.items(), key=lambda item: item[1][0])
    raise errors.UserError(
      f'{file}: {many:,} of {lost + len(numbers):,} rows are rows {problem}, the first one in line '
      f'{place}: set --config.source.separator and --config.source.quotes as the file has them.'
    )
  return Read(out, numbers, places, 'line', left_out)


def _rows(data, file, separator, quoted):
  """Yields (number of the first line, fields) of each row, blank lines among them."""
  if not quoted:
    yield from ((number, line.split(separator)) for number, line in lines_of(data, file))
    return
  csv.field_size_limit(_FIELD)
  reader = csv.reader(
    (line.replace('\r', ' ') + '\n' for _, line in lines_of(data, file)),
    delimiter=separator,
    strict=True,
  )
  while True:
    place = reader.line_num + 1
    try:
      fields = next(reader)
    except StopIteration:
      return
    except csv.Error as e:
      raise errors.UserError(
        f'{file}, line {place}: a quoted field is broken ({e}): double the quotes inside quotes, '
        'or set --config.source.quotes=none if quotes mean nothing in this file.'
      ) from e
    yield place, fields


def _is_header(first, names, wanted) -> bool:
  """Whether the first line names the columns of a file that may have none."""
  try:
    wanted(first)
  except errors.UserError:
    return first == names
  return True


def _names_of(first, names, wanted) -> list[str]:
  """The names of the columns of a file without a line of names. Its first or last columns may be
  missing, if none of them is wanted: a test file often has no label.
  """
  width = len(first)
  if not names:
    return [str(i) for i in range(width)]
  if width < len(names):
    for some in (names[:width], names[-width:]):
      try:
        wanted(some)
      except errors.UserError:
        continue
      return some
  return names


def _find(known, file, wanted, guess=False) -> dict[str, int]:
  """{wanted column: its place}."""
  try:
    names = wanted(known)
  except errors.UserError as e:
    if guess and any(len(name) > 40 or name.isdigit() for name in known):
      raise errors.UserError(
        f'{e} If the file has no line of names, set --config.source.header=False and give the '
        'numbers of the columns, from 0.'
      ) from e
    raise
  for name in names:
    if known.count(name) > 1:
      raise errors.UserError(f'{file} has {known.count(name)} columns {name!r}: rename one.')
  return {name: known.index(name) for name in names}


# --- records ---


def _records(data, file, wanted, lists) -> Read:
  """Of a JSON array of objects, or of JSON lines (which files called .json hold, too)."""
  left_out, records = {}, []
  if data.lstrip()[:1] == b'[':
    unit = 'element'
    try:
      array = json.loads(data.decode('utf-8'))
    except UnicodeDecodeError as e:
      raise _encoding(file, *_guess(data)) from e
    except (ValueError, RecursionError) as e:
      raise errors.UserError(f'{file} holds no JSON array ({e}): mend or copy the file.') from e
    rows = list(enumerate(array, 1))
  else:
    unit, rows = 'line', []
    for place, line in lines_of(data, file):
      if line.strip():
        try:
          rows.append((place, json.loads(line)))
        except (ValueError, RecursionError):
          rows.append((place, None))
  for number, (place, row) in enumerate(rows):
    if isinstance(row, dict):
      records.append((number, place, row))
    else:
      left_out.setdefault('without a JSON object', [0, place])[0] += 1
  if len(records) < len(rows) / 2:
    place = left_out['without a JSON object'][1]
    raise errors.UserError(
      f'{file}: most of its {len(rows):,} {unit}s hold no JSON object, the first in {unit} '
      f'{place}: write one object per line.'
    )
  known = dict.fromkeys(name for _, _, row in records for name in _keys(row))
  names = wanted(list(known))
  out, numbers, places = {name: [] for name in names}, [], []
  for number, place, row in records:
    values = [_value(row, name) for name in names]
    if _ABSENT in values:
      reason = f'without the key {names[values.index(_ABSENT)]!r}'
      left_out.setdefault(reason, [0, place])[0] += 1
      continue
    for name, value in zip(names, values):
      where = f'{file}, {unit} {place}, key {name!r}'
      out[name].append(_shown(value, where, name in lists))
    numbers.append(number)
    places.append(place)
  return Read(out, numbers, places, unit, left_out)


_ABSENT = object()


def _keys(record, before=''):
  """The keys of an object; those of objects inside it with a dot."""
  for key, value in record.items():
    yield before + key
    if isinstance(value, dict):
      yield from _keys(value, f'{before}{key}.')


def _value(record, name):
  while isinstance(record, dict):
    if name in record:
      return record[name]
    head, _, name = name.partition('.')
    record = record.get(head, _ABSENT) if name else _ABSENT
  return _ABSENT


def _parquet(data, file, wanted, lists) -> Read:
  import pyarrow
  from pyarrow import parquet

  try:
    table = parquet.ParquetFile(pyarrow.BufferReader(data))
    names = wanted(table.schema_arrow.names)
    columns = table.read(columns=names)
    values = {name: columns.column(name).to_pylist() for name in names}
  except (pyarrow.ArrowException, OSError) as e:
    raise errors.UserError(f'{file} is no whole parquet file ({e}): copy it again.') from e
  out = {
    name: [
      _shown(v, f'{file}, row {i}, column {name!r}', name in lists) for i, v in enumerate(column, 1)
    ]
    for name, column in values.items()
  }
  count = table.metadata.num_rows
  return Read(out, list(range(count)), list(range(1, count + 1)), 'row', {})


def _shown(value, where, stays):
  if stays and isinstance(value, list):
    return [as_text(v, where) for v in value]
  return as_text(value, where)


def as_text(value, where: str) -> str:
  """A value of JSON, parquet or a dataset as a text: numbers as Python writes them, a list of texts
  with blanks between, None as an empty text. Raises UserError for anything else.
  """
  if isinstance(value, bytes):
    try:
      value = value.decode('utf-8')
    except UnicodeDecodeError as e:
      raise errors.UserError(f'{where}: the bytes are not UTF-8: convert them.') from e
  if isinstance(value, str):
    # a lone surrogate ("\ud800" in JSON) is no character; tokenizers refuse it
    return value.encode('utf-8', 'replace').decode('utf-8')
  if value is None:
    return ''
  if isinstance(value, bool):
    return str(value).lower()
  if isinstance(value, int | float):
    return repr(value)
  if isinstance(value, list) and all(isinstance(v, str) for v in value):
    return ' '.join(as_text(v, where) for v in value)
  raise errors.UserError(f'{where} holds a {type(value).__name__}, no text: name another column.')
