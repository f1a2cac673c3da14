"""Reads the vocabulary of tokenizer files, and compares two vocabularies."""

import json
import re

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage


def read_folder(folder) -> dict[str, int] | None:
  """`read_files` of a folder: a Hugging Face directory, CORPUS/tokenizer or WORKDIR/tokenizer. In a
  folder that prepare wrote, raises UserError also if tokenizer.json differs from the vocabulary
  file beside it.
  """
  folder = storage.path(folder)
  files = {f.name: f for f in folder.iterdir()} if folder.is_dir() else {}
  vocabulary = read_files(files)
  if {'bertzoo.json', 'tokenizer.json'} <= files.keys():
    for name in files.keys() & {'vocab.txt', 'vocab.json'}:
      if difference := difference_of(read_files({name: files[name]}), vocabulary):
        raise errors.UserError(
          f'{folder}/{name} and the tokenizer.json beside it do not belong together: {difference} '
          "Copy the folder again from its corpus's tokenizer folder."
        )
  return vocabulary


def read_files(files) -> dict[str, int] | None:
  """{piece: id}, with added tokens, of tokenizer.json, else vocab.txt, else vocab.json (or
  encoder.json); None without these files. files: {file name: path}. Raises UserError for a damaged
  file, an unknown form, or a vocab.txt with a repeated piece.
  """
  if file := files.get('tokenizer.json'):
    content = read_json(file)
    with errors.unreadable(f'{file} is no readable tokenizer: download or prepare it again'):
      vocabulary = ids(content)
  elif 'vocab.txt' in files:
    vocabulary = {piece: i for i, piece in enumerate(lines(files['vocab.txt']))}
  elif name := next((name for name in ('vocab.json', 'encoder.json') if name in files), None):
    vocabulary = read_json(files[name])
  else:
    return None
  return {**{token['content']: token['id'] for token in added(files)}, **vocabulary}


def added(files) -> list[dict]:
  """Tokens that tokenizer_config.json or added_tokens.json adds to a vocabulary, by ascending id:
  {'content', 'id', …}, as in tokenizer.json.
  """
  read = lambda name: read_json(files[name]) if name in files else {}
  decoder = read('tokenizer_config.json').get('added_tokens_decoder') or {}
  with errors.unreadable(
    f'The added tokens of {min(map(str, files.values()))} are not readable: download its folder '
    'again'
  ):
    tokens = {x: dict(content=x, id=int(i)) for x, i in read('added_tokens.json').items()}
    tokens |= {token['content']: {**token, 'id': int(i)} for i, token in decoder.items()}
  return sorted(tokens.values(), key=lambda token: token['id'])


def lines(file) -> list[str]:
  """The pieces of a vocab.txt, without BOM and final empty lines. UserError if a piece repeats."""
  # Pieces may hold what str.splitlines takes for an end of line.
  pieces = re.sub(r'\r\n?', '\n', read_text(file)).rstrip('\n').split('\n')
  if len(first := {piece: i for i, piece in enumerate(reversed(pieces))}) < len(pieces):
    first = {piece: len(pieces) - i for piece, i in first.items()}
    again, piece = next((n, x) for n, x in enumerate(pieces, 1) if first[x] < n)
    raise errors.UserError(
      f'{file} has {piece!r} twice, in lines {first[piece]:,} and {again:,}. A piece has one id: '
      f'write [unused{first[piece]}] into line {first[piece]:,} (transformers takes the later one).'
    )
  return pieces


def section_of(folder) -> dict | None:
  """The config section of a tokenizer that prepare wrote; None for another folder."""
  file = storage.path(folder) / 'bertzoo.json'
  if not file.exists():
    return None
  with errors.unreadable(f'{file} is cut or damaged: copy its folder again'):
    return json.loads(file.read_bytes())['section']


def ids(tokenizer: dict) -> dict[str, int]:
  """{piece: id} of a tokenizer.json: a dict, or in Unigram a list of (piece, score)."""
  vocab = tokenizer['model']['vocab']
  out = dict(vocab) if isinstance(vocab, dict) else {piece: i for i, (piece, _) in enumerate(vocab)}
  return out | {t['content']: t['id'] for t in tokenizer.get('added_tokens') or []}


def difference_of(a: dict[str, int], b: dict[str, int]) -> str | None:
  """A sentence on how vocabulary `b` (of weights) differs from `a` (of the run); None if equal."""
  moved = [piece for piece in a if piece in b and a[piece] != b[piece]]
  absent = [piece for piece in a if piece not in b]
  if moved or absent:
    example = moved[0] if moved else absent[0]
    other_id = f'{b[example]:,}' if moved else 'not a piece'
    return (
      f'{len(moved) + len(absent):,} of {len(a):,} pieces have another id, e.g. {example!r} is '
      f'{a[example]:,} here and {other_id} there.'
    )
  if not (more := [piece for piece in b if piece not in a]):
    return None
  example = f'{len(more):,} pieces are only there, e.g. {more[0]!r}'
  return f'{example}; the {len(a):,} pieces here have the same ids.'


def read_text(path) -> str:
  """The text of a vocabulary file without a byte-order mark; UserError if it is not UTF-8."""
  with errors.unreadable(f'{path} is not UTF-8: is it a vocabulary file?'):
    return path.read_bytes().decode('utf-8').removeprefix('\ufeff')


def read_json(path) -> dict:
  """The object of a JSON file; UserError if the file holds no object."""
  text, known = read_text(path), 'is not JSON, or cut short, or holds no JSON object'
  with errors.unreadable(f'{path} {known}: is it a vocabulary file?'):
    return {**json.loads(text)}
