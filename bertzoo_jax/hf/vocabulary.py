"""The vocabulary that weights were trained with, and whether it is another one's. json only."""

import json

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage


def vocabulary(folder) -> dict[str, int] | None:
  """{piece: id} of a folder with tokenizer files: a Hugging Face directory, CORPUS/tokenizer or
  WORKDIR/tokenizer.

  Read from tokenizer.json (added tokens included), else vocab.txt; None if the folder has neither.

  Args:
    folder: local or gs://.

  Raises:
    UserError: a tokenizer.json that is damaged or of an unknown form; in a folder that prepare
      wrote, also one that says otherwise than the vocabulary file beside it.
  """
  folder = storage.path(folder)
  if (folder / 'tokenizer.json').exists():
    try:
      found = ids(json.loads((folder / 'tokenizer.json').read_bytes()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
      raise errors.UserError(
        f'{folder / "tokenizer.json"} is no readable tokenizer ({type(e).__name__}: {e}): download '
        'or prepare it again.'
      ) from e
    if (folder / 'bertzoo.json').exists():
      _check_beside(folder, found)
    return found
  return _of_lines(folder / 'vocab.txt') if (folder / 'vocab.txt').exists() else None


def _check_beside(folder, found):
  for name, read in (('vocab.txt', _of_lines), ('vocab.json', _of_json)):
    if (folder / name).exists() and (
      difference := vocabulary_difference(read(folder / name), found)
    ):
      raise errors.UserError(
        f'{folder}/{name} and the tokenizer.json beside it do not belong together: {difference} '
        "Copy the folder again from its corpus's tokenizer folder."
      )


def _of_json(file):
  try:
    return dict(json.loads(file.read_bytes()))
  except (ValueError, TypeError) as e:
    raise errors.UserError(f'{file} is cut or damaged: copy its folder again.') from e


def _of_lines(file):
  # Pieces may hold what str.splitlines takes for an end of line.
  lines = file.read_bytes().decode('utf-8', 'backslashreplace').replace('\r\n', '\n')
  return {piece: i for i, piece in enumerate(lines.removesuffix('\n').split('\n'))}


def tokenizer_hash(folder) -> str | None:
  """The hash of a tokenizer that prepare wrote; None of a folder that says none."""
  return _said(folder, 'hash')


def tokenizer_section(folder) -> dict | None:
  """The config section of a tokenizer that prepare wrote; None of a folder that says none."""
  return _said(folder, 'section')


def _said(folder, key):
  file = storage.path(folder) / 'bertzoo.json'
  if not file.exists():
    return None
  try:
    return json.loads(file.read_bytes())[key]
  except (ValueError, KeyError, TypeError) as e:
    raise errors.UserError(f'{file} is cut or damaged: copy its folder again.') from e


def ids(tokenizer: dict) -> dict[str, int]:
  """{piece: id} of a tokenizer.json: WordPiece and BPE have a dict, Unigram has a list of (piece,
  score).
  """
  vocab = tokenizer['model']['vocab']
  out = dict(vocab) if isinstance(vocab, dict) else {piece: i for i, (piece, _) in enumerate(vocab)}
  return out | {t['content']: t['id'] for t in tokenizer.get('added_tokens') or []}


def vocabulary_difference(a: dict[str, int], b: dict[str, int]) -> str | None:
  """How the vocabulary `b` of some weights differs from the run's own `a`, in a sentence with an
  example; None if they are equal.
  """
  moved = [piece for piece in a if piece in b and a[piece] != b[piece]]
  absent = [piece for piece in a if piece not in b]
  if moved or absent:
    example = moved[0] if moved else absent[0]
    there = f'{b[example]:,}' if moved else 'not a piece'
    return (
      f'{len(moved) + len(absent):,} of {len(a):,} pieces have another id, e.g. {example!r} is '
      f'{a[example]:,} here and {there} there.'
    )
  more = [piece for piece in b if piece not in a]
  return (
    f'{len(more):,} pieces are only there, e.g. {more[0]!r}; the {len(a):,} of here have the same '
    'ids.'
    if more
    else None
  )
