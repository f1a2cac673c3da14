"""An n-gram model of a corpus's words, scored on minimal pairs: the yardstick of a network.

PYTHONPATH=. python bench/ngrams.py CORPUS PAIRS [--order=5] [--json=FILE]

The words are the corpus's pieces, put together again, so the model reads the text that a network
reads. Smoothing is interpolated modified Kneser-Ney (Chen and Goodman 1998, §3, eq. 17-26). The
highest order counts n-grams. An order below it counts the words that stand before one; at the
beginning of a sentence, where none can, n-grams. Each order has three discounts. Last comes a
uniform share. A pair is right if its good sentence has the higher log-likelihood.

N words of all sentences, with one before and one after each sentence. K order.
"""

import argparse
import json
from typing import NamedTuple

import numpy as np

from bertzoo_jax.corpus import corpus as corpora
from bertzoo_jax.evaluate import minimal_pairs
from bertzoo_jax.evaluate import pair_files

BEGIN, END, UNKNOWN = range(3)
_PRIME = np.uint64(0x9E3779B97F4A7C15)


def _mixed(keys, values):
  """Hashes uint64 of (key, value)."""
  x = (keys ^ (values.astype(np.uint64) + np.uint64(1))) * _PRIME
  return (x ^ (x >> np.uint64(29))) * _PRIME


def _spellings(tokens_T, starts_S, is_start_V):
  """(hash of each word's pieces, sentence of each word). starts_S: [S+1] token offsets."""
  first_T = is_start_V[tokens_T]
  first_T[starts_S[:-1]] = True
  begins = np.flatnonzero(first_T)
  place_T = np.arange(len(tokens_T)) - begins[np.cumsum(first_T) - 1]
  keys = np.add.reduceat(_mixed(place_T.astype(np.uint64), tokens_T), begins)
  return keys, np.searchsorted(starts_S, begins, 'right') - 1


def _framed(words, sentence, count):
  """(numbers [N], sentence of each [N]) with BEGIN and END around the words of each sentence."""
  lengths = np.bincount(sentence, minlength=count) + 2
  of_N = np.repeat(np.arange(count), lengths)
  numbers_N = np.full(len(of_N), END)
  ends = np.cumsum(lengths)
  numbers_N[ends - lengths] = BEGIN
  inner = np.ones(len(of_N), bool)
  inner[ends - 1] = inner[ends - lengths] = False
  numbers_N[inner] = words
  return numbers_N, of_N


def _windows(words_N, order):
  """keys[k] [N]: hash of the k words that end at each place; 0 where a sentence begins within."""
  keys = [np.full(len(words_N), 1, np.uint64)]
  for k in range(1, order + 1):
    longer = np.zeros(len(words_N), np.uint64)
    key = np.full(max(len(words_N) - k + 1, 0), k, np.uint64)
    whole = np.ones(len(key), bool)
    for j in range(k):
      part = words_N[j : j + len(key)]
      key = _mixed(key, part)
      whole &= (part != BEGIN) if j else True
    longer[k - 1 :] = np.where(whole, key, 0)
    keys.append(longer)
  return keys


class Order(NamedTuple):
  """One order of the model.

  Attributes:
    grams, counts: keys, sorted, and their counts.
    contexts: keys of the words before, sorted. totals: their counts.
    kept: the share of a context that the order below divides.
    discounts: of the counts 1, 2, and more.
  """

  grams: np.ndarray
  counts: np.ndarray
  contexts: np.ndarray
  totals: np.ndarray
  kept: np.ndarray
  discounts: np.ndarray


def _context(words_N, at, k):
  """The key of the k-1 words before the last of the n-grams that end at `at`."""
  key = np.full(len(at), k - 1, np.uint64)
  for j in range(k - 1):
    key = _mixed(key, words_N[at - (k - 1) + j])
  return key


def _order(words_N, grams, at, counts, k) -> Order:
  """grams, at, counts: of each distinct n-gram, its key, where one ends, its count."""
  n1, n2, n3, n4 = (max(1, int((counts == n).sum())) for n in range(1, 5))
  y = n1 / (n1 + 2 * n2)
  discounts = np.clip([1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3], 0.05, None)
  contexts, which = np.unique(_context(words_N, at, k), return_inverse=True)
  totals = np.bincount(which, counts)
  kept = np.bincount(which, discounts[np.minimum(counts, 3) - 1]) / totals
  return Order(grams, counts, contexts, totals, kept, discounts)


def fit(words_N, order: int) -> list[Order]:
  """The orders 1 … K of a text."""
  keys = _windows(words_N, order)
  orders = []
  longer = None  # where each distinct n-gram of one word more ends
  for k in range(order, 0, -1):
    real = np.flatnonzero(keys[k] != 0)
    if k == 1:
      real = real[words_N[real] != BEGIN]
    if longer is not None:  # the words before: one for each distinct longer n-gram
      first = real[words_N[real - k + 1] == BEGIN] if k > 1 else real[:0]
      real = np.concatenate([longer, first])
    grams, index, counts = np.unique(keys[k][real], return_index=True, return_counts=True)
    longer = real[index]
    orders.append(_order(words_N, grams, longer, counts, k))
  return orders[::-1]


def _found(table, keys):
  """(index of each key, whether it is there)."""
  index = np.minimum(np.searchsorted(table, keys), len(table) - 1)
  return index, table[index] == keys


def log_probabilities(orders: list[Order], words_N, vocab_size: int) -> np.ndarray:
  """ln p of each word after those before it; 0 of BEGIN. [N]"""
  keys = _windows(words_N, len(orders))
  p_N = np.full(len(words_N), 1.0 / vocab_size)
  for k, order in enumerate(orders, 1):
    at = np.flatnonzero((keys[k] != 0) & (words_N != BEGIN))
    context, known = _found(order.contexts, _context(words_N, at, k))
    at, context = at[known], context[known]
    gram, there = _found(order.grams, keys[k][at])
    count = np.where(there, order.counts[gram], 0)
    left = np.maximum(count - np.r_[0.0, order.discounts][np.minimum(count, 3)], 0.0)
    p_N[at] = left / order.totals[context] + order.kept[context] * p_N[at]
  p_N[words_N == BEGIN] = 1.0
  return np.log(p_N)


def main(corpus, pairs, order, out):
  corpus = corpora.open(corpus)
  tokenizer = corpus.tokenizer()
  starts_V = tokenizer.word_starts

  def read(split):
    tokens = split.gather(np.arange(split.num_tokens)).astype(np.int64)
    starts = split.sentence_starts
    return _spellings(tokens, starts, starts_V), len(starts) - 1

  (spellings, sentence), count = read(corpus.splits['train'])
  known, words = np.unique(spellings, return_inverse=True)
  vocab_size = len(known) + 3
  orders = fit(_framed(words + 3, sentence, count)[0], order)

  def score(spellings, sentence, count):
    index, there = _found(known, spellings)
    words_N, of_N = _framed(np.where(there, index + 3, UNKNOWN), sentence, count)
    return np.bincount(of_N, log_probabilities(orders, words_N, vocab_size), count)

  held_out = corpus.splits['held_out']
  (spellings, sentence), count = read(held_out)
  nats = -score(spellings, sentence, count).sum()
  bits = nats / np.log(2) / held_out.bytes
  read_pairs = pair_files.read(pairs)
  texts = tokenizer.encode_as_transformers([t for p in read_pairs for t in p.texts])
  offsets = np.cumsum([0, *map(len, texts)])
  found = score(*_spellings(np.concatenate(texts).astype(np.int64), offsets, starts_V), len(texts))
  groups, total = minimal_pairs.accuracies(read_pairs, found.reshape(-1, 2))
  print(minimal_pairs.table(minimal_pairs.Result('', None, '', '', groups, total, [])))
  print(f'{len(words):,} words, {len(known):,} different; held out: {bits:.3f} bits per byte')
  if out:
    rows = {row.group or 'all': row.accuracy for row in [*groups, total]}
    with open(out, 'w') as f:
      json.dump(dict(order=order, words=len(words), bits_per_byte=bits, accuracy=rows), f, indent=1)


if __name__ == '__main__':
  parser = argparse.ArgumentParser()
  parser.add_argument('corpus')
  parser.add_argument('pairs')
  parser.add_argument('--order', type=int, default=5)
  parser.add_argument('--json', default='')
  args = parser.parse_args()
  main(args.corpus, args.pairs, args.order, args.json)
