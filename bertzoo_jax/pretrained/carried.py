"""Word tables for another vocabulary: --vocabulary=carry.

A row of the new table is the old row of the same piece. Without one, the old tokenizer splits the
piece, and the row is the mean of these tokens' rows (Dobler & de Melo 2023 compare such ways). If
the tokens are unknown, it is the mean of all old rows. Two pieces are the same if they spell the
same text and both, or neither, begin a word: `##ing` of WordPiece is `ing` of a byte-level BPE, and
its `Ġing` is `▁ing` of SentencePiece.
"""

import numpy as np
from scipy import sparse
from tokenizers import decoders
from tokenizers import pre_tokenizers

from bertzoo_jax import hf
from bertzoo_jax.hf import architecture

_BLANK = '▁'  # U+2581
_BYTES = decoders.ByteLevel()
_ALPHABET = frozenset(pre_tokenizers.ByteLevel.alphabet())


def parameters(params: dict, old, new) -> tuple[dict, list[str]]:
  """(nested parameters with a row per piece of `new` in word tables and vocabulary biases, lines
  that say where the rows come from).

  params: with a row per piece of `old`; further rows are dropped. old, new: tokenizers
  (`tokenizers.open_folder`).
  """
  means_VW = rows_of(old, new)
  sizes = np.diff(means_VW.indptr)
  flat, count = hf.flatten(params), hf.vocabulary_size(params)
  for path, table in flat.items():
    has_words = path.endswith(architecture.WORD_TABLE) or path.endswith('_head/bias')
    if has_words and len(table) == count:
      table = np.asarray(table)[: old.vocab_size]
      carried = np.asarray(means_VW @ table, table.dtype)
      carried[sizes == 0] = table.mean(axis=0)
      flat[path] = carried
  averaged = sizes[sizes > 1]
  kinds = [f'{np.sum(sizes == 1):,} have the row of one old piece']
  if len(averaged):
    kinds.append(f'{len(averaged):,} the mean of {averaged.mean():.1f} rows')
  if unknown := np.sum(sizes == 0):
    kinds.append(f'{unknown:,} the mean of all rows')
  return hf.unflatten(flat), [f'vocabulary: of {new.vocab_size:,} pieces ' + ', '.join(kinds)]


def rows_of(old, new) -> sparse.csr_array:
  """[new pieces, old pieces] float32: the weight of each old row in each new one. Entries of a row
  sum to 1; a row is empty if the old tokenizer does not know the piece.
  """
  spelt = spellings(old)
  by_spelling = {key: i for i, key in reversed([*enumerate(spelt)]) if key}
  same_piece = {piece: i for i, piece in enumerate(old.pieces) if piece}
  roles = {i: old.special[role] for role, i in new.special.items() if role in old.special}
  keys = spellings(new)
  encoded = old.encode([' ' * key[1] + key[0] if key else '' for key in keys])
  rows = []
  for i, (piece, key, tokens) in enumerate(zip(new.pieces, keys, encoded)):
    same = roles.get(i, by_spelling.get(key) if key else same_piece.get(piece))
    if same is not None:
      rows.append([same])
    else:
      rows.append(_tokens(old, by_spelling, spelt, key, tokens) if key else [])
  sizes = np.array([len(row) for row in rows])
  columns = np.array([i for row in rows for i in row], np.int64)
  shares = np.repeat(1 / np.maximum(sizes, 1), sizes).astype(np.float32)
  shape = len(rows), old.vocab_size
  return sparse.csr_array((shares, columns, np.append(0, np.cumsum(sizes))), shape)


def spellings(tokenizer) -> list[tuple[str, bool] | None]:
  """(text of a piece, whether it begins a word) by id; None for special pieces, bytes that are no
  text, and ids without a piece.
  """
  special, read = set(tokenizer.special.values()), _reader(tokenizer.pieces)
  return [read(p) if p and i not in special else None for i, p in enumerate(tokenizer.pieces)]


def _reader(pieces):
  """The function from a piece to (text, whether it begins a word), by how the pieces mark words."""
  count = lambda mark: sum(p.startswith(mark) and p != mark for p in pieces)
  mark = max(('##', 'Ġ', _BLANK), key=count)

  def read(piece):
    inside = mark == '##' and piece.startswith('##') and len(piece) > 2
    if mark == '##':
      return (piece[2:], False) if inside else (piece, True)
    if mark == 'Ġ' and set(piece) <= _ALPHABET:
      piece = _BYTES.decode([piece])
      if '\ufffd' in piece:
        return None
    blank = ' ' if mark == 'Ġ' else _BLANK
    return piece.removeprefix(blank), piece.startswith(blank)

  return read


def _tokens(old, by_spelling, spelt, key, tokens) -> list[int]:
  """Ids of the old tokens of a new piece; [] if one is unknown. tokens: ids of its text as a word.

  A tokenizer that begins a word with every text cannot split the inside of a word. So if the piece
  begins no word, the first token becomes the same token inside a word.
  """
  ids = [int(i) for i in tokens]
  if old.special['unk'] in ids or not ids:
    return []
  first = spelt[ids[0]]
  if key[1] or not first or not first[1]:
    return ids
  if not first[0] and len(ids) > 1:  # a blank alone
    return ids[1:]
  return [by_spelling.get((first[0], False), ids[0]), *ids[1:]]
