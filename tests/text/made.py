"""Shared by tests of text: files are written and read."""

import json

from bertzoo_jax.text import finding
from bertzoo_jax.text import sources
from tests import commands


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


# VmHWM starts anew with a program; ru_maxrss is inherited from the parent, a worker of gigabytes.
_PEAK = """
import json, re, sys
from bertzoo_jax.text import finding, sources
reader = sources.Reader([finding.find(sys.argv[1])])
characters = sum(len(p) for document in reader.documents() for p in document)
peak = int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) // 1024
print(json.dumps([characters, reader.dropped.reasons, peak]))
"""


def peak(file):
  """(characters, what was left out, MB of memory) of a process that reads a source."""
  return json.loads(commands.run('-c', _PEAK, str(file), check=True).stdout)
