"""Writes vectors of the lines of a text.

    python -m bertzoo_jax.encode --model run --text sentences.txt --out vectors.npy
                                 [--pooling mean|first|tokens] [--prompt NAME] [--length N]
                                 [--batch 32]

docs/commands.md explains the flags. With mean or first, row n of --out is the vector of line n:
float32 [N, D]. An empty line has the vector of the special tokens alone. With tokens there are
three files for --out vectors.npy:

    vectors.npy         float32 [T, D], the tokens of all lines one after another
    vectors.rows.npy    int64 [N + 1]; the tokens of line n are vectors[rows[n]:rows[n + 1]]
    vectors.tokens.npy  [T] with the fields id, start and end: characters of the line. They are −1
                        for the special tokens around a line

Read large files with numpy.load(FILE, mmap_mode='r'). The files appear when they are complete.
"""

import itertools
import os
import pathlib
from typing import NamedTuple

import numpy as np
from absl import flags

from bertzoo_jax import cli
from bertzoo_jax.common import errors
from bertzoo_jax.common import folders
from bertzoo_jax.common import progress
from bertzoo_jax.common import storage
from bertzoo_jax.text import binaries

POOLING = ('mean', 'first', 'tokens')
TOKEN = np.dtype([('id', '<i4'), ('start', '<i4'), ('end', '<i4')])
_CONTENTS = {
  None: 'vectors as the network makes them',
  'mean': 'means of the tokens of a line',
  'first': 'vectors that classify a line',
  'tokens': 'vectors of tokens',
}


class Encoded(NamedTuple):
  shape: tuple[int, int]  # shape of the vectors
  lines: int  # number of lines of the text
  cut: int  # how many were longer than a row
  empty: int  # how many lines were empty
  first_empty: int  # number of the first one, from 1; 0 for none


def encode(
  address: str,
  text: str,
  out: str,
  *,
  pooling: str | None = None,
  prompt: str | None = None,
  length: int | None = None,
  batch_size: int = 32,
  header: bool = False,
  dtype: str = 'float32',
) -> Encoded:
  """Writes the vectors of a text; arguments as the flags. Raises UserError if `out` exists or is no
  local *.npy, if the text is missing, empty or not UTF-8, or if the address has no network.
  """
  from bertzoo_jax.pretrained import loading  # with jax: --help does not wait for it

  errors.choose(pooling or 'mean', dict.fromkeys(POOLING), 'pooling')
  names = _free(out, pooling)
  text = storage.path(text)
  lines, empty, first_empty = _count(text, header)
  model = loading.load(address, dtype)
  width = model.encoder.hidden_size
  with folders.scratch(storage.path(out), 'an encode') as folder:
    parts = {name: pathlib.Path(folder) / name for name in names}
    offsets, how = None, (text, header, length, prompt, batch_size)
    if pooling == 'tokens':
      offsets = _offsets(model, lines, how)
      np.save(parts[names[1]], offsets)
      tokens = np.lib.format.open_memmap(
        parts[names[2]], 'w+', dtype=TOKEN, shape=(int(offsets[-1]),)
      )
    count = lines if offsets is None else int(offsets[-1])
    vectors = np.lib.format.open_memmap(
      parts[names[0]], 'w+', dtype=np.float32, shape=(count, width)
    )
    cut = 0
    for first, rows in _chunks(model, how, 'encoding'):
      cut += sum(row.cut for row in rows)
      if offsets is None:
        for n, x in model.vectors(rows, pooling, batch_size):
          vectors[first + n] = x
        continue
      for n, x in model.vectors(rows, 'none', batch_size):
        place = slice(offsets[first + n], offsets[first + n + 1])
        vectors[place] = x
        for field, values in zip(TOKEN.names, (rows[n].ids, rows[n].starts, rows[n].ends)):
          tokens[field][place] = values
    vectors.flush()
    if offsets is not None:
      tokens.flush()
    _free(out, pooling)
    target = pathlib.Path(storage.path(out)).parent
    for name in reversed(names):  # the vectors last: if they exist, all files do
      os.replace(parts[name], target / name)
  return Encoded((count, width), lines, cut, empty, first_empty)


def _free(out, pooling) -> list[str]:
  """Names of the files to write, the vectors first. Raises UserError if one exists."""
  path = storage.path(out)
  if storage.is_remote(path):
    raise errors.UserError(
      f'--out {out} is in an object store, which cannot be written piece by piece: give a local '
      'file and copy it there.'
    )
  if path.suffix != '.npy':
    raise errors.UserError(f'--out {out}: give a name that ends with .npy.')
  names = [path.name]
  if pooling == 'tokens':
    names += [f'{path.stem}.rows.npy', f'{path.stem}.tokens.npy']
  for name in names:
    storage.check_new(path.parent / name)
  return names


def _lines(text, header):
  """Yields (line without its end, bytes read so far). A byte-order mark is left out."""
  done = 0
  with text.open('rb') as f:
    for number, line in enumerate(f, 1):
      done += len(line)
      line = line.removesuffix(b'\n').removesuffix(b'\r')
      if number == 1:
        line = line.removeprefix(b'\xef\xbb\xbf')
        if header:
          continue
      try:
        yield line.decode('utf-8'), done
      except UnicodeDecodeError as e:
        raise errors.UserError(
          f'{text}: line {number} is not UTF-8 (byte {e.start}): convert the file, as with iconv.'
        ) from e


def _count(text, header) -> tuple[int, int, int]:
  """(lines, empty ones, number of the first empty one or 0). Raises UserError without a line."""
  if not text.exists() or text.is_dir():
    raise errors.UserError(f'--text {text} is no file: give a file with one text per line.')
  with text.open('rb') as f:
    binaries.refuse(f.read(binaries.HEAD), text)
  lines = empty = first = 0
  for lines, (line, _) in enumerate(_lines(text, header), 1):
    if not line.strip():
      empty, first = empty + 1, first or lines + header
  if not lines:
    raise errors.UserError(f'--text {text} has no line: give a file with one text per line.')
  return lines, empty, first


def _chunks(model, how, what):
  """Yields (number of the first line, rows of a chunk of lines). how: arguments of `encode`: text,
  header, length, prompt, batch_size.
  """
  text, header, length, prompt, batch_size = how
  first, size = 0, model.chunk_size(batch_size)
  lines = _lines(text, header)
  with progress.Meter(what, text.stat().length) as meter:
    while chunk := list(itertools.islice(lines, size)):
      yield first, model.rows([line for line, _ in chunk], length, prompt)
      first += len(chunk)
      meter.update(chunk[-1][1])


def _offsets(model, lines, how) -> np.ndarray:
  """int64 [N + 1]: where the tokens of each line begin."""
  sizes = np.zeros(lines, np.int64)
  for first, rows in _chunks(model, how, 'tokenising'):
    sizes[first : first + len(rows)] = [len(row.ids) for row in rows]
  return np.concatenate([[0], np.cumsum(sizes)])


def summary(encoded: Encoded, out: str, pooling: str | None) -> str:
  lines = [
    f'{out}: {encoded.shape[0]:,} × {encoded.shape[1]:,} numbers, float32, {_CONTENTS[pooling]}; '
    f'{encoded.lines:,} lines'
  ]
  if encoded.empty:
    lines.append(
      f'note: {encoded.empty:,} lines are empty, the first is line {encoded.first_empty:,}: they '
      'have the vectors of the special tokens alone'
    )
  if encoded.cut:
    lines.append(f'note: {encoded.cut:,} lines are longer than a row and were cut (--length)')
  return '\n'.join(lines)


def main(asked):
  asked = dict(vars(asked))
  encoded = encode(asked.pop('model'), batch_size=asked.pop('batch'), **asked)
  print(summary(encoded, asked['out'], asked['pooling']))


if __name__ == '__main__':
  cli.required(
    model='Network: W, W@STEP, W@best, hf:DIR or hf:OWNER/NAME[@REVISION].',
    text='File with one text per line, UTF-8.',
    out='File *.npy to write; an existing one is refused.',
  )
  flags.DEFINE_enum(
    'pooling',
    None,
    POOLING,
    'mean: of the tokens of a line. first: the vector that classifies a row. tokens: every token. '
    'Default: as the network was trained, else mean.',
  )
  cli.texts(
    prompt='Name of a text of the network to put before each line, as query; empty for none. '
    'Default: as the network says.'
  )
  flags.DEFINE_integer(
    'length',
    None,
    'Tokens per row; longer lines are cut. Default: as many as the encoder takes, or 512 if it '
    'takes any number.',
    lower_bound=1,
  )
  flags.DEFINE_integer('batch', 32, 'Rows that go through the network together.', lower_bound=1)
  flags.DEFINE_boolean('header', False, 'The first line is a header and is left out.')
  flags.DEFINE_string('dtype', 'float32', 'Of matrix products: float32 or bfloat16.')
  cli.run(main)
