"""The words of a corpus, in blocks of finished shards. K words of a block, M = 8 pieces at most."""

import re
from typing import NamedTuple

import numpy as np

from bertzoo_jax.common import storage
from bertzoo_jax.words import word_marks

NEAREST = 10  # similar words of a word, at most
PIECES = 8
FACTOR = -7046029254386353131  # odd; 2⁶⁴/φ as a signed number
_BLOCK = 1 << 19  # tokens read at a time
_TOKENS = 1 << 26  # tokens read, at most; of a larger corpus, an even sample
_WORDS = 100_000  # number of most frequent words that are kept
_COUNTED = 1 << 21  # distinct words counted at a time; beyond, the rarest half is dropped


class Block(NamedTuple):
  """Some sentences: words int32 [K, M], padded with -1; sentence int64 [K]; number of sentences."""

  words: np.ndarray
  sentence: np.ndarray
  sentences: int


class Counted(NamedTuple):
  """The most frequent words: words int32 [W, M]; counts int64 [W]; sentences read; their stream."""

  words: np.ndarray
  counts: np.ndarray
  sentences: int
  stream: object


class Stream:
  """Blocks of a corpus, the same ones in every iteration."""

  def __init__(self, out, word_starts, special):
    self._folder = storage.path(out) / 'train'
    self._word_starts = word_starts
    self._special = special
    self._names = sorted(
      f.name.removesuffix('.tokens.npy')
      for f in self._folder.iterdir()
      if re.fullmatch(r'\d+\.tokens\.npy', f.name)
    )

  def __iter__(self):
    spans = [(name, a, b) for name in self._names for a, b in self._spans(name)]
    share = min(1.0, _TOKENS / max(1, len(spans) * _BLOCK))
    chosen = [s for i, s in enumerate(spans) if int((i + 1) * share) > int(i * share)]
    shard = None
    for name, a, b in chosen:
      if shard != name:
        shard, arrays = name, [self._load(name, kind) for kind in ('tokens', 'sentences', 'units')]
      yield self._block(*arrays, a, b)

  def _spans(self, name):
    """Yields (first, end) of sentences, about a block each."""
    sentences = self._load(name, 'sentences')
    borders = np.searchsorted(sentences, np.arange(0, int(sentences[-1]), _BLOCK))
    borders = np.unique(np.append(borders, len(sentences) - 1)).tolist()
    return zip(borders[:-1], borders[1:])

  def _load(self, name, kind):
    path = self._folder / f'{name}.{kind}.npy'
    if kind == 'units' and not path.exists():
      return None
    if storage.is_remote(path):
      with path.open('rb') as f:
        return np.load(f, allow_pickle=False)
    return np.load(path, mmap_mode='r', allow_pickle=False)

  def _block(self, tokens, sentences, units, first, end):
    starts = sentences[first : end + 1].astype(np.int64)
    a, b = int(starts[0]), int(starts[-1])
    tokens = np.asarray(tokens[a:b]).astype(np.int32)
    starts = starts - a
    more = (
      ~self._word_starts[tokens] if units is None else (units[a:b] & word_marks.CONTINUES_WORD) > 0
    )
    more[starts[:-1][starts[:-1] < len(tokens)]] = False
    begins = np.flatnonzero(~more)
    sizes = np.diff(np.append(begins, len(tokens)))
    place_KM = begins[:, None] + np.arange(PIECES)
    words_KM = np.where(
      np.arange(PIECES) < sizes[:, None], tokens[np.minimum(place_KM, max(len(tokens) - 1, 0))], -1
    )
    words_KM[(sizes > PIECES) | np.isin(words_KM, self._special).any(axis=1)] = -1
    return Block(
      words_KM.astype(np.int32), np.searchsorted(starts, begins, 'right') - 1, end - first
    )


def hashes(words_KM) -> np.ndarray:
  """64-bit hashes of words, int64 [K]; -1 is padding."""
  out_K = np.zeros(len(words_KM), np.int64)
  with np.errstate(over='ignore'):
    for m in range(PIECES):
      out_K = (out_K ^ (words_KM[:, m].astype(np.int64) + 1)) * np.int64(FACTOR)
  return out_K


def count(stream) -> Counted:
  """The most frequent words of a stream; equally frequent ones by their hashes."""
  known = np.zeros(0, np.int64)
  words = np.zeros((0, PIECES), np.int32)
  counts = np.zeros(0, np.int64)
  sentences = 0
  for block in stream:
    sentences += block.sentences
    block_words = block.words[block.words[:, 0] >= 0]
    block_hashes, first, n = np.unique(hashes(block_words), return_index=True, return_counts=True)
    merged, where, index = np.unique(
      np.concatenate([known, block_hashes]), return_index=True, return_inverse=True
    )
    words = np.concatenate([words, block_words[first]])[where]
    total = np.zeros(len(merged), np.int64)
    np.add.at(total, index, np.concatenate([counts, n]))
    known, counts = merged, total
    if len(known) > _COUNTED:
      kept = np.sort(np.argsort(-counts, kind='stable')[: _COUNTED // 2])
      known, words, counts = known[kept], words[kept], counts[kept]
  order = np.argsort(-counts, kind='stable')[:_WORDS]
  return Counted(words[order], counts[order], sentences, stream)
