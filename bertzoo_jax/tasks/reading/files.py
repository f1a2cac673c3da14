"""The files of a task: their paths, bytes and lines.

A file whose content does not fit its name is refused before anything of it is read.
"""

import gzip
import io
import json
import os
import pathlib
import re
import zlib

from bertzoo_jax.common import errors
from bertzoo_jax.common import hub
from bertzoo_jax.common import storage
from bertzoo_jax.common.folders import check_given
from bertzoo_jax.tasks.examples import PREFIXES
from bertzoo_jax.tasks.examples import TRAIN
from bertzoo_jax.text import binaries

MOST = 1 << 30  # bytes of an unpacked file, at most
OPTIONAL = '?'  # ends a name that may be absent
_GZIP = b'\x1f\x8b'
_MAGIC = {'.parquet': b'PAR1', '.gz': _GZIP}  # the first bytes of these files


def find(task_dir, files, folders=False) -> dict:
  """{split: path, an address of hub.data, or None for an absent optional file}; train is the first.

  files: {split: name in `task_dir`, 'NAME|NAME' or 'NAME?'}, as parts/sources.py:table says.
  folders: whether a name may name a folder.

  Raises UserError for a file that is not there, and for a split of another name.
  """
  for split, names in files.items():
    if not split.startswith(PREFIXES) or (split.startswith(TRAIN) and split != TRAIN):
      raise errors.UserError(
        f'config.source.files has a split {split!r}: splits are called train, dev… (scored) and '
        'test… (predicted).'
      )
    if not names and split == TRAIN:
      raise errors.UserError(
        'config.source.files.train is empty: name the file of examples, '
        '--config.source.files.train=FILE, in --task_dir or with its whole path.'
      )
  if TRAIN not in files:
    raise errors.UserError('config.source.files has no train: every task learns from a file.')
  out = {}
  for split in sorted(files, key=lambda s: (s != TRAIN, s)):
    if not files[split]:
      continue
    if files[split].startswith(hub.PREFIX):
      out[split] = files[split]
      continue
    # a file of that very name comes first, with its | and ?
    whole = storage.path(os.path.join(task_dir or '', files[split]))
    looked_for = [
      storage.path(os.path.join(task_dir or '', name))
      for name in files[split].removesuffix(OPTIONAL).split('|')
    ]
    is_there = lambda p: p.exists() and (folders or not p.is_dir())
    out[split] = next(filter(is_there, (whole, *looked_for)), None)
    check_given(task_dir, out[split])
    if out[split] is None and not files[split].endswith(OPTIONAL):
      remedy = (
        'set --task_dir to the folder of the task'
        if split == TRAIN
        else f"set --config.source.files.{split}='' if there is no such file"
      )
      raise errors.UserError(
        f'The {split} file {" or ".join(map(str, looked_for))} does not exist: {remedy}, or '
        f'--config.source.files.{split} to its path.'
      )
  return out


# --- bytes ---


def bytes_of(path, digest, name='') -> bytes:
  """The bytes of a file. Adds its name, if any, and the bytes to the digest.

  Raises UserError if there is no such file, or its content does not fit its name.
  """
  with storage.reading(path):
    try:
      data = path.read_bytes()
    except (FileNotFoundError, IsADirectoryError) as e:
      raise errors.UserError(f'There is no file {path}: give the path of a file.') from e
  if not data.startswith(begin := _MAGIC.get(pathlib.PurePath(str(path)).suffix.lower(), b'')):
    binaries.refuse(data[: binaries.HEAD], path)
    raise errors.UserError(
      f'{path} is not what its name says, since it does not begin with {begin}: copy it again, or '
      'rename it.'
    )
  digest.update((f'{name} {len(data)} ' if name else '').encode() + data)
  return data


def unpacked(data, path) -> bytes:
  """The bytes of a file, unpacked if it is packed with gzip. UserError for more than MOST."""
  if not data.startswith(_GZIP):
    return data
  broken = f'{path} is not a complete gzip file: copy it again'
  with errors.unreadable(broken, OSError, EOFError, zlib.error):
    out = gzip.open(io.BytesIO(data)).read(MOST + 1)
  if len(out) > MOST:
    raise errors.UserError(f'{path} unpacks to more than {MOST >> 30} GiB: unpack and divide it.')
  return out


# --- text ---


def text_of(data, file, ignored=b'') -> bytes:
  """The bytes of a text file without a byte-order mark. Raises UserError if it is no UTF-8 text.

  ignored: control characters that this text may have.
  """
  if data[:2] in (b'\xff\xfe', b'\xfe\xff'):
    raise _encoding(file, 'UTF-16', 'UTF-16')
  if data.startswith(_GZIP):
    raise errors.UserError(f'{file} is packed with gzip: unpack it (gunzip) first.')
  if any(data[:400][i::2].count(0) > len(data[:400]) / 4 for i in (0, 1)):
    raise _encoding(file, 'UTF-16 without a byte-order mark', 'UTF-16LE')
  binaries.refuse(data[: binaries.HEAD].translate(None, ignored), file)
  return data.removeprefix(b'\xef\xbb\xbf')


def text(data: bytes, file) -> str:
  """The bytes of a text file as a text. Raises UserError if it is no UTF-8 text."""
  data = text_of(data, file)
  try:
    return data.decode('utf-8')
  except UnicodeDecodeError as e:
    raise _encoding(file, *_guess(data)) from e


def json_of(data, where, what='JSON'):
  """Parses a JSON text, str or bytes. UserError if it is not JSON; what: its kind, for messages."""
  with errors.unreadable(f'{where} holds no {what}: mend or copy the file'):
    return json.loads(data)


def lines_of(data, file):
  """Yields (number from 1, line without its end: LF, CR LF, or CR in a file without LF)."""
  lines = io.BytesIO(data) if b'\n' in data else data.split(b'\r')
  for number, line in enumerate(lines, 1):
    try:
      yield number, line.rstrip(b'\r\n').decode('utf-8')
    except UnicodeDecodeError as e:
      raise _encoding(file, *_guess(data), f'line {number}, ') from e


def _guess(data):
  """('not UTF-8', encoding for iconv): bytes above 127 stand side by side in Chinese text."""
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
