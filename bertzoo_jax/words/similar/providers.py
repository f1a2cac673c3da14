"""Where similar words come from: a thesaurus, given word vectors, or vectors trained on the corpus.

A provider is a function (words counted in the corpus, tokenizer, file) -> (words int32 [N, M],
similar int32 [N, ≤ 10]: row numbers of each word's similar words of equal size, nearest first,
padded with -1). M = 8 pieces, D numbers per vector.
"""

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.words import characters
from bertzoo_jax.words import lexicons
from bertzoo_jax.words.similar import vector_files
from bertzoo_jax.words.similar import words as words_lib

_ROWS = 256
_TRAINING = dict(
  vector_size=100, window=5, min_count=1, sg=0, negative=5, sample=1e-3, seed=1, workers=1
)
_LEAST, _EPOCHS = 5, 5  # rarer words get no vector


def thesaurus(counted, tokenizer, file):
  """Synonyms of a file in the format of the cilin: `Aa01A02= 人类 生人 …`, one group per line.

  '=' marks synonyms; groups marked '#' (related) and '@' (a single word) are left out. A word of
  several groups has the words of all of them, in the order of the file.
  """
  del counted
  groups = [words for mark, words in _cilin(file) if mark == '=']
  entries = list(dict.fromkeys(w for words in groups for w in words))
  row_of, words_NM = _as_pieces(entries, tokenizer)
  sizes, synonyms = (words_NM >= 0).sum(axis=1), [{} for _ in range(len(words_NM))]
  for words in groups:
    rows = [row_of[w] for w in words if w in row_of]
    for row in rows:
      synonyms[row].update(
        (other, None) for other in rows if other != row and sizes[other] == sizes[row]
      )
  similar_ND = np.full((len(words_NM), words_lib.NEAREST), -1, np.int64)
  for row, others in enumerate(synonyms):
    others = list(others)[: words_lib.NEAREST]
    similar_ND[row, : len(others)] = others
  return words_NM, similar_ND


def vectors(counted, tokenizer, file):
  """The nearest words by cosine among the frequent words of the corpus, from vectors in word2vec's
  format, text or binary.

  Text without the first line (GloVe) is read too. The first of several words with the same pieces
  counts.
  """
  wished, seen, rows, kept = set(words_lib.hashes(counted.words).tolist()), set(), [], []
  for words, numbers_WD in vector_files.read(file):
    row_of, words_NM = _as_pieces(words, tokenizer)
    hashes = words_lib.hashes(words_NM).tolist()
    for i, word in enumerate(words):
      row = row_of.get(word, -1)
      if row >= 0 and hashes[row] in wished and hashes[row] not in seen:
        seen.add(hashes[row])
        rows.append(words_NM[row])
        kept.append(numbers_WD[i])
  words_NM = np.array(rows, np.int32).reshape(-1, words_lib.PIECES)
  vectors_ND = np.array(kept, np.float32).reshape(len(kept), -1)
  return words_NM, _nearest(vectors_ND, (words_NM >= 0).sum(axis=1))


def trained(counted, tokenizer, file):
  """The nearest words by cosine of word2vec vectors of the corpus (gensim; reproducible)."""
  del tokenizer, file
  with errors.needing('Training word vectors needs gensim', 'zh'):
    from gensim import models
  often = counted.counts >= _LEAST
  words_NM = counted.words[often]
  if len(words_NM) < 2:
    raise errors.UserError(
      f'The corpus has less than two words that occur {_LEAST} times: too little text to train '
      'word vectors on.'
    )
  model = models.Word2Vec(**_TRAINING)
  model.build_vocab_from_freq(
    {str(i): int(n) for i, n in enumerate(counted.counts[often])}, corpus_count=counted.sentences
  )
  model.train(
    _Sentences(counted.stream, words_NM), total_examples=counted.sentences, epochs=_EPOCHS
  )
  vectors_ND = model.wv.vectors[[model.wv.key_to_index[str(i)] for i in range(len(words_NM))]]
  return words_NM, _nearest(vectors_ND, (words_NM >= 0).sum(axis=1))


class _Sentences:
  """The corpus for gensim: lists of the numbers of known words; other words are left out."""

  def __init__(self, stream, words_NM):
    hashes = words_lib.hashes(words_NM)
    self._order = np.argsort(hashes)
    self._stream = stream
    self._hashes = hashes[self._order]
    self._names = [str(i) for i in self._order.tolist()]

  def __iter__(self):
    for block in self._stream:
      hashes = words_lib.hashes(block.words)
      place = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
      known = self._hashes[place] == hashes
      borders = np.searchsorted(block.sentence[known], np.arange(block.sentences + 1)).tolist()
      names = [self._names[i] for i in place[known].tolist()]
      yield from (names[a:b] for a, b in zip(borders[:-1], borders[1:]))


def _nearest(vectors_ND, sizes_N):
  """Rows of the nearest vectors by cosine among words of one size, int64 [N, 10]; ties in order."""
  similar_ND = np.full((len(vectors_ND), words_lib.NEAREST), -1, np.int64)
  norms = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
  unit_ND = (vectors_ND / np.maximum(norms, 1e-30)).astype(np.float32)
  for size in np.unique(sizes_N):
    mine = np.flatnonzero((sizes_N == size) & (norms[:, 0] > 0))
    kept = min(words_lib.NEAREST, len(mine) - 1)
    for a in range(0, len(mine) if kept > 0 else 0, _ROWS):
      rows = mine[a : a + _ROWS]
      cosine = unit_ND[rows] @ unit_ND[mine].T
      cosine[np.arange(len(rows)), a + np.arange(len(rows))] = -np.inf
      near = np.sort(np.argpartition(-cosine, kept - 1, axis=1)[:, :kept], axis=1)
      order = np.argsort(-np.take_along_axis(cosine, near, axis=1), axis=1, kind='stable')
      similar_ND[rows, :kept] = mine[np.take_along_axis(near, order, axis=1)]
  return similar_ND


def _as_pieces(entries, tokenizer):
  """({entry: row}, rows as pieces int32 [N, M]) of words, tokenised as within a sentence.

  Left out: words with an unknown piece or a blank, or of more than M pieces. Words with the same
  pieces share a row.
  """
  row_of, rows = {}, {}
  whole = [w for w in entries if w and not any(c.isspace() for c in w)]
  fronts = ['。' if characters.is_cjk(characters.codes(w[0]))[0] else '. ' for w in whole]
  ahead = {front: tokenizer.encode([front.strip()])[0].tolist() for front in ('。', '. ')}
  special = set(tokenizer.special.values())
  encoded = tokenizer.encode([f + w for f, w in zip(fronts, whole)])
  for word, front, ids in zip(whole, fronts, encoded):
    size = len(ahead[front])
    begin, pieces = ids[:size].tolist(), ids[size:].tolist()
    fits = 0 < len(pieces) <= words_lib.PIECES and not special & set(pieces)
    if fits and begin == ahead[front]:
      row_of[word] = rows.setdefault(tuple(pieces), len(rows))
  words_NM = np.full((len(rows), words_lib.PIECES), -1, np.int32)
  for ids, row in rows.items():
    words_NM[row, : len(ids)] = ids
  return row_of, words_NM


def _cilin(file):
  """[(mark, words)] of the lines."""
  groups = []
  for number, line in enumerate(lexicons.text_of(file, 'thesaurus').splitlines(), 1):
    code, *words = line.split() or ['']
    if code and code[-1] not in '=#@':
      raise errors.UserError(
        f'Line {number} of the thesaurus {file} begins with {code[:20]!r}: each line is a code '
        'that ends in =, # or @, then the words of a group (Aa01A02= 人类 生人).'
      )
    groups += [(code[-1], words)] if code else []
  return groups
