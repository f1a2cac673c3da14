"""Shared by tests of text: files are written and read."""

import json

from bertzoo_jax.text import finding
from bertzoo_jax.text import sources


def read(*names, where=()):
  """(documents, {reason: how many were left out for it}) of sources."""
  reader = sources.Reader([finding.find(str(n)) for n in names], where)
  documents = list(reader.documents())
  return documents, {reason: d['count'] for reason, d in reader.dropped.reasons.items()}


def write(path, data):
  path.write_bytes(data if isinstance(data, bytes) else data.encode())
  return path


def write_rows(path, kind, rows, **options):
  if kind == 'jsonl':
    return write(path, '\n'.join(map(json.dumps, rows)))
  import pyarrow as pa
  from pyarrow import parquet

  parquet.write_table(pa.Table.from_pylist(rows), path, **options)
  return path
