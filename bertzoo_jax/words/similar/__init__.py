"""Similar words (MacBERT, Cui et al. 2020 §3.2): for each word of a corpus, the words that may
replace it.

The papers leave open which similar word is taken, and how its length fits (Cui et al. 2021 §IV).
Here a similar word has as many pieces as the word itself, so that the row keeps its length and
every piece its target. A word keeps the 10 nearest other words of that length, nearest first. A
masking draws one of them uniformly: always the same one would be a code that the network can learn
to undo. A word without similar words is replaced by a random one: a frequent word of the corpus
with as many pieces.

A table consists of arrays; its rows are words as pieces, ordered by a 64-bit hash. It is small
enough to be a constant of the input program. N words, M = 8 pieces at most (longer words have no
similar ones), R frequent words; K words are looked up.
"""

from typing import NamedTuple

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.common import hashing
from bertzoo_jax.common import storage
from bertzoo_jax.words import lexicons
from bertzoo_jax.words.similar import providers
from bertzoo_jax.words.similar import words as words_lib

PIECES, NEAREST = words_lib.PIECES, words_lib.NEAREST
_FREQUENT = 10_000  # of each length, for random words


class Table(NamedTuple):
  words: np.ndarray  # int32 [N, M], pieces, padded with -1
  hashes: np.ndarray  # int64 [N], ascending
  similar: np.ndarray  # int32 [N, 10], rows of the similar words, nearest first, padded with -1
  # int32 [R], rows of frequent words by length: of m pieces from offsets[m] to offsets[m + 1]
  frequent: np.ndarray
  offsets: np.ndarray  # int32 [M + 2]

  def report(self) -> dict:
    """{'words', 'with_similar', 'frequent': [of 1 … M pieces]}."""
    return dict(
      words=len(self.words),
      with_similar=int((self.similar[:, 0] >= 0).sum()),
      frequent=np.diff(self.offsets)[1:].tolist(),
    )


def build(section, out, tokenizer, file=None) -> Table | None:
  """The table of a corpus whose shards are written; None if config.corpus.similar is 'none'.

  section: config.corpus. out: CORPUS; its train/*.{tokens,sentences,units}.npy are read in blocks;
  of a large corpus, an even sample. tokenizer: the corpus's. file: for 'vectors' and 'thesaurus'.

  Raises UserError: unknown provider, a file missing or too many, a library not installed, or no
  word with a similar one.
  """
  check_file(section, file)
  if section['similar'] == 'none':
    return None
  counted = words_lib.count(
    words_lib.Stream(out, tokenizer.word_starts, list(tokenizer.special.values()))
  )
  if not len(counted.words):
    raise errors.UserError(
      'The corpus has no words, so none has a similar one: set --config.corpus.similar=none.'
    )
  words_NM, similar_ND = BY_NAME[section['similar']](counted, tokenizer, file)
  table = _table(counted, words_NM, similar_ND)
  if not (table.similar >= 0).any():
    raise errors.UserError(
      f'Of {len(words_NM)} words none has a similar one of as many pieces '
      f'(similar={section["similar"]!r}): is '
      f'{file or "the text"} of the language of the corpus, and large enough?'
    )
  return table


def check_file(section, file) -> None:
  """Raises UserError if config.corpus.similar needs a file and none is given, or the reverse."""
  lexicons.check_given('similar', section['similar'], file, ('vectors', 'thesaurus'))


def _table(counted, words_NM, similar_ND) -> Table:
  """Joins the provider's words and the frequent words of the corpus."""
  all_NM = np.concatenate([words_NM, counted.words])
  order, first, row_of = np.unique(words_lib.hashes(all_NM), return_index=True, return_inverse=True)
  similar = np.full((len(order), NEAREST), -1, np.int32)
  mine = row_of[: len(words_NM)]
  rows_ND = np.where(similar_ND >= 0, row_of[similar_ND], -1)
  similar[mine[::-1], : similar_ND.shape[1]] = rows_ND[::-1]  # the first of equal words
  rows, sizes = row_of[len(words_NM) :], (counted.words >= 0).sum(axis=1)
  frequent = [rows[sizes == m][:_FREQUENT] for m in range(1, PIECES + 1)]
  offsets = np.concatenate([[0, 0], np.cumsum([len(f) for f in frequent])]).astype(np.int32)
  return Table(
    all_NM[first].astype(np.int32),
    order,
    similar,
    np.concatenate(frequent).astype(np.int32),
    offsets,
  )


# --- looking up ---


def lookup(table: Table, words_KM, sizes_K, random_K):
  """A similar word for each word, drawn uniformly.

  Args:
    words_KM: int32 [K, M], each word's pieces; values beyond its size are ignored.
    sizes_K: [K]; words of more than M pieces, or of 0, have no similar word.
    random_K: uint32 [K] bits, of a row and a position.

  Returns (int32 [K, M], as many pieces as the word has, padded with -1; bool [K]: whether the word
  has a similar one; otherwise its row is -1).
  """
  words_KM = np.where(np.arange(PIECES) < sizes_K[:, None], words_KM, -1)
  row_K = np.minimum(table.hashes.searchsorted(words_lib.hashes(words_KM)), len(table.hashes) - 1)
  same_K = (table.words.take(row_K, axis=0) == words_KM).all(axis=1)
  count_K = np.count_nonzero(table.similar.take(row_K, axis=0) >= 0, axis=1)
  known_K = same_K & (sizes_K > 0) & (sizes_K <= PIECES) & (count_K > 0)
  choice_K = hashing.below(random_K, np.maximum(count_K, 1))
  similar_K = table.similar.reshape(-1).take(row_K * NEAREST + choice_K)
  similar_KM = table.words.take(np.maximum(similar_K, 0), axis=0)
  return np.where(known_K[:, None], similar_KM, np.int32(-1)), known_K


def random_words(table: Table, sizes_K, random_K):
  """A frequent word of each size, drawn uniformly. Returns: see `lookup`."""
  # there are no words of 0 pieces
  sizes_K = np.where((sizes_K > 0) & (sizes_K <= PIECES), sizes_K, 0)
  first_K, count_K = table.offsets.take(sizes_K), np.diff(table.offsets).take(sizes_K)
  choice_K = hashing.below(random_K, np.maximum(count_K, 1))
  row_K = table.frequent.take(np.minimum(first_K + choice_K, len(table.frequent) - 1))
  known_K = count_K > 0
  return np.where(known_K[:, None], table.words.take(row_K, axis=0), np.int32(-1)), known_K


# --- on disk ---


def save(folder, table: Table) -> dict[str, str]:
  """Writes FOLDER/{words,hashes,similar,frequent,offsets}.npy. Returns {file: SHA-256}."""
  folder = storage.path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  return {
    f'{name}.npy': storage.write_array(folder / f'{name}.npy', array)
    for name, array in table._asdict().items()
  }


def load(folder) -> Table:
  """Reads the files of `save`; UserError if they are missing, damaged or inconsistent."""
  folder, arrays = storage.path(folder), {}
  for name in Table._fields:
    try:
      with (folder / f'{name}.npy').open('rb') as f:
        arrays[name] = np.load(f, allow_pickle=False)
    except (OSError, EOFError, *errors.UNREADABLE) as e:
      raise errors.damaged_corpus(f'{folder}/{name}.npy is missing or damaged') from e
  table = Table(**arrays)
  size = len(table.words)
  if (
    table.words.shape != (size, PIECES)
    or table.hashes.shape != (size,)
    or table.similar.shape != (size, NEAREST)
    or not size
    or table.offsets.shape != (PIECES + 2,)
    or table.offsets[-1] != len(table.frequent)
    or table.similar.max() >= size
  ):
    raise errors.damaged_corpus(f'The arrays in {folder} do not fit each other')
  return table


BY_NAME = {
  'thesaurus': providers.thesaurus,
  'vectors': providers.vectors,
  'trained': providers.trained,
}
