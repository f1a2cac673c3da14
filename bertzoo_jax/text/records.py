"""Records with keys (JSON, parquet, datasets): which key is the text, which records are wanted."""

import codecs
import itertools
import json

from bertzoo_jax.common import errors
from bertzoo_jax.text import finding

_PATIENCE = 1000  # records without a key before it counts as a mistake
_BATCH = 1 << 20  # bytes of parquet, approximately, converted to Python objects at a time
ABSENT = object()


class Wanted:
  """The key of a source's text and the pairs of `where`, checked against each record.

  A record is wanted if, for every key of `where`, its value is one of those given for the key. A
  key of several levels is written with dots (metadata.lang). A key that no record has is a mistake,
  raised after 1000 records or at the source's end.
  """

  def __init__(self, key: str, where):
    self.key, self.where, self._where = key, where, {}
    for name, value in where:
      self._where.setdefault(name, []).append(value)
    self._missing = dict.fromkeys((key, *self._where))
    self._keys, self._lacking = {}, 0

  def columns(self, known, where: str) -> list[str]:
    """The columns to read, the first being the text's. known: names of the file's columns. Raises
    UserError if one is missing. where: 'FILE has', for the message.
    """
    names = {}
    for key in (self.key, *self._where):
      name = key if key in known else key.partition('.')[0]
      if name not in known:
        raise no_key(where, key, self.key, known)
      names[name] = None
    return list(names)

  def see(self, record: dict, file: str) -> None:
    """Notes a record's keys. Raises UserError if all of the first records lack a wanted key."""
    if not self._missing:
      return
    self._missing = {key: None for key in self._missing if field(record, key) is ABSENT}
    self._keys.update(dict.fromkeys(record, file))
    self._lacking += bool(self._missing)
    if self._missing and self._lacking >= _PATIENCE:
      self._refuse()

  def end(self) -> None:
    """Raises UserError if the source's records never had a key."""
    if self._missing and self._lacking:
      self._refuse()

  def _refuse(self):
    files = list(dict.fromkeys(self._keys.values()))
    where = (
      f'{files[0]} {"and others have" if len(files) > 1 else "has"}' if files else 'The source has'
    )
    raise no_key(where, next(iter(self._missing)), self.key, self._keys)

  def refusal(self, record: dict) -> str:
    """Why `where` leaves a record out, or ''."""
    for key, values in self._where.items():
      if not any(value in _spellings(field(record, key)) for value in values):
        return f'record whose {key} is not {" or ".join(values)}'
    return ''

  def text(self, record: dict):
    """The value of the text's key: str or bytes if it is a text."""
    return field(record, self.key)


def no_key(where: str, key: str, text_key: str, keys) -> errors.UserError:
  """The sentence that something ('FILE has') lacks a key, with the keys that exist."""
  remedy = ': name the text with #KEY.' if key == text_key else ', which --where asks for.'
  return errors.UserError(
    f'{where} no key {key!r}{remedy}{errors.did_you_mean(key, keys)} The keys: '
    f'{", ".join(list(keys)[:50])}.'
  )


def field(record, key):
  """record[key], also a.b for record['a']['b']; ABSENT if the record has no such key."""
  while isinstance(record, dict):
    if key in record:
      return record[key]
    head, dot, key = key.partition('.')
    if not dot:
      break
    record = record.get(head)
  return ABSENT


def _spellings(value):
  """The spellings of a value in a filter: of Python and of JSON."""
  if value is ABSENT:
    return ()
  if isinstance(value, bytes):
    return (value.decode('utf-8', 'replace'),)
  as_json = [json.dumps(value)] * (value is None or isinstance(value, bool))
  return str(value), *as_json


# --- JSON arrays ---


class NotJson(Exception):
  """A JSON array has invalid JSON, or a value that is too long.

  rest: characters read from that place on.
  """

  def __init__(self, words: str, rest: int):
    super().__init__(words)
    self.rest = rest


def json_array(blocks, most: int):
  """Yields (value, its text) of the values of a JSON array, or of several in sequence. Bytes that
  are not UTF-8 become lone surrogates.

  blocks: iterator of bytes. most: characters of a value, at most. One value and a block are in
  memory. Raises NotJson: the array is cut, a value is too long or no JSON.
  """
  decoder = codecs.getincrementaldecoder('utf-8')('surrogateescape')
  texts = itertools.chain(map(decoder.decode, blocks), [decoder.decode(b'', True)])
  text, at, place = '', 0, 'outside'
  while True:
    at = _BLANKS(text, at).end()
    char = text[at : at + 1]
    if char and place == 'outside':
      if char != '[':
        raise NotJson(f'{char!r} after its end', len(text) - at)
      at, place = at + 1, 'begun'
    elif char == ']' and place in ('begun', 'behind a value'):
      at, place = at + 1, 'outside'
    elif char and place == 'behind a value':
      if char != ',':
        raise NotJson(f'{char!r} between its values', len(text) - at)
      at, place = at + 1, 'before a value'
    elif char and (parsed := _value(text, at)):
      value, end = parsed
      yield value, text[at:end]
      at, place = end, 'behind a value'
    elif (more := next(texts, None)) is not None:
      if len(text) - at > most:
        raise NotJson(f'a value of over {most >> 20} MiB', len(text) - at)
      text, at = text[at:] + more, 0
    elif place == 'outside':
      return
    else:
      raise NotJson('cut, or no JSON', len(text) - at)


_BLANKS = json.decoder.WHITESPACE.match
_PARSE = json.JSONDecoder().raw_decode


def _value(text, at):
  """(value, its end) at a position of a text; None if it is incomplete."""
  try:
    value, end = _PARSE(text, at)
  except (ValueError, RecursionError):
    return None
  whole = end < len(text) or text[-1] in '}]"'  # 12 may be the start of 123
  return (value, end) if whole else None


# --- parquet ---


def parquet(raw, file: str, wanted: Wanted):
  """Yields (record, share of the rows read) of a parquet file: the wanted columns, texts as bytes,
  one row group at a time.

  Raises UserError: a column is not there, or holds no text. OSError without a number, or
  pyarrow.ArrowException: the file is damaged.
  """
  import pyarrow as pa
  from pyarrow import parquet as pq

  table = pq.ParquetFile(
    raw, buffer_size=1 << 16, pre_buffer=False, page_checksum_verification=True
  )
  schema = table.schema_arrow
  columns = wanted.columns(schema.names, f'{file} has')
  texts = [field.name for field in schema if _is_text(field.type)]
  if columns[0] == wanted.key and columns[0] not in texts:
    raise errors.UserError(
      f'{file}: its column {wanted.key!r} holds {schema.field(wanted.key).type}, no text. '
      f'Columns of text: {", ".join(texts) or "none"}.'
    )
  done, rows = 0, table.metadata.num_rows
  for batch in table.iter_batches(_rows(table.metadata), columns=columns, use_threads=False):
    values = {name: _plain(batch.column(name), pa).to_pylist() for name in batch.schema.names}
    for row in zip(*values.values()):
      done += 1
      yield dict(zip(values, row)), done / rows


def damaged() -> tuple:
  """The exceptions of a damaged parquet file; an OSError with an errno is no damage."""
  import pyarrow as pa

  return pa.ArrowException, OSError, *errors.UNREADABLE


def _is_text(kind) -> bool:
  return any(word in str(kind) for word in ('string', 'binary')) and not str(kind).startswith(
    ('struct', 'list', 'map', 'large_list')
  )


def _plain(column, pa):
  """A column with texts as bytes, to be decoded strictly: parquet does not promise UTF-8."""
  if pa.types.is_dictionary(column.type):
    column = column.dictionary_decode()
  return column.cast(pa.large_binary()) if _is_text(column.type) else column


def _rows(metadata) -> int:
  """Rows of about _BATCH bytes in total, in the group with the longest rows."""
  groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
  longest = max((g.total_byte_size / max(g.num_rows, 1) for g in groups), default=1)
  return int(min(max(_BATCH / max(longest, 1), 1), 1024))


# --- TensorFlow datasets ---


def examples(dataset: str, wanted: Wanted):
  """Yields the examples of a dataset's train split in order, with the features asked for.

  Raises UserError: no such dataset, or no such feature.
  """
  builder, _ = finding.tfds_builder(dataset)
  import tensorflow_datasets as tfds

  features = builder.info.features
  known = list(features) if hasattr(features, 'keys') else []
  names = wanted.columns(known, f'{dataset} has')
  data = builder.as_dataset(
    split='train', shuffle_files=False, read_config=tfds.ReadConfig(interleave_cycle_length=1)
  )
  yield from (
    data.map(lambda example: {name: example[name] for name in names})
    .prefetch(16)
    .as_numpy_iterator()
  )
