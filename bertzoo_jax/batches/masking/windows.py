"""N-grams, one in each window of words."""

import math

import numpy as np

from bertzoo_jax.batches.masking import contract
from bertzoo_jax.batches.masking import corruption as corruptions
from bertzoo_jax.batches.masking import words as words_lib
from bertzoo_jax.common import hashing
from bertzoo_jax.parts import maskings as definitions


def ngram_windows(fields: definitions.NgramWindows, length, corpus):
  """One run of n words in every window of n · int(1 / rate) words, n up to max_gram with p ∝ 1/n
  (code of He et al. 2020).

  Args:
    length, corpus: as for `token`.
    rate: the row's budget is max(1, round(rate · n)).
    corruption: drawn for each token.
    scan: where the windows lie, and which of them count until the budget is spent. 'left_to_right':
      from the row's start to the first word that does not fit (the release masks that word, too);
      the end of a full row stays unmasked. 'spread': our own. The windows begin at a random word
      and wrap to the start of the row; they count in random order. If the row's windows hold less
      than the budget, the windows of a second lap follow. A run that exceeds the budget loses its
      last words.
  """
  contract.check_corruption(fields.corruption)
  select = {'left_to_right': _left_to_right, 'spread': _spread}[fields.scan]
  window, max_gram = int(1 / fields.rate), fields.max_gram
  corrupt = corruptions.corrupter(corpus, fields.corruption, fields.random_tokens)
  thresholds = contract.cumulative([1 / n for n in range(1, max_gram + 1)], 'max_gram')
  counts = contract.nearest(length, fields.rate)
  num_predictions = int(counts[-1])

  def apply(features, keys_B2):
    key, level = contract.row_key(keys_B2), 'word' if max_gram > 1 else 'token'
    features, _, words = words_lib.read(features, corpus.special, level, also=('mask', 'unk'))
    left_B = counts.take(np.count_nonzero(features['segment_ids'], axis=1))
    chosen_BL = select(key, words, thresholds, window, left_B)
    seen = lambda positions_BP, targets_BP: corrupt(key, positions_BP, targets_BP, positions_BP)
    return corruptions.masked(features, chosen_BL, num_predictions, seen)

  return contract.Masking(num_predictions, fields.repeat, apply, reads_units=max_gram > 1)


def _windows(key, words, thresholds, window, laps=1):
  """The runs of the windows that lie one after the other over a row, or over `laps` laps round it.

  Returns (places, sizes) of T runs, [B, T]: the first word of a run, numbered on from lap to lap
  (the end of the last lap if there is no run), and its number of words. T windows hold any row.
  """
  count = math.ceil(laps * words.of.shape[1] / window)
  numbers = np.arange(count)[None]
  size_BT = contract.draw_length(corruptions.draw(key, hashing.COUNT, numbers), thresholds)
  random_BT = corruptions.draw(key, hashing.CONTEXT, numbers)
  end_B = laps * words.count
  place_BT, offset_B = np.repeat(end_B[:, None], count, axis=1), np.zeros_like(end_B)
  for t in range(count):
    if (offset_B == end_B).all():
      break
    size_B = size_BT[:, t]
    context_B = np.minimum(window * size_B, end_B - offset_B)
    # at the end of the laps, where no context is left, this is the end
    place_BT[:, t] = begin_B = offset_B + hashing.below(random_BT[:, t], context_B)
    offset_B = np.minimum(np.maximum(offset_B + context_B, begin_B + size_B), end_B)
  return place_BT, size_BT


def _left_to_right(key, words, thresholds, window, left_B):
  place_BT, size_BT = _windows(key, words, thresholds, window)
  none, largest = words_lib.stand_in(words), len(thresholds) - 1
  first_BT = np.where(place_BT < words.count[:, None], words.first[:, None] + place_BT, none)
  behind_BT = np.minimum(first_BT + size_BT, words.last.take(first_BT) + 1)
  word_BTN = first_BT[..., None] + np.arange(largest)
  taken = np.zeros(none + 1, bool)
  taken[word_BTN[word_BTN < np.minimum(behind_BT, none)[..., None]]] = True
  chosen_BL = words_lib.tokens(words, taken)
  # tokens of the same word that follow
  behind_BL = words.end.take(words.of) - 1 - np.arange(words.of.shape[1])
  return chosen_BL & (np.cumsum(chosen_BL, axis=1) + behind_BL <= left_B[:, None])


def _spread(key, words, thresholds, window, left_B):
  place_BT, size_BT = _windows(key, words, thresholds, window, laps=2)
  none, count = words_lib.stand_in(words), place_BT.shape[1]
  count_B1 = words.count[:, None]
  shift_B1 = hashing.below(
    corruptions.draw(key, hashing.SELECT, np.zeros((1, 1), np.uint32)), count_B1
  )
  word_BT = (place_BT + shift_B1) % np.maximum(count_B1, 1)
  first_BT = np.where(place_BT < 2 * count_B1, words.first[:, None] + word_BT, none)
  # ranks of the first lap are random and at least 0; ranks of the second lap are −1, −2, …
  rank_BT = np.where(
    place_BT < count_B1,
    words_lib.ranks(key, hashing.SPREAD, count) & np.int32(2**31 - 1),
    -1 - np.arange(count, dtype=np.int32),
  )
  order_BT = np.argsort(-rank_BT, axis=1)
  ordered = lambda x_BT: corruptions.at(x_BT, order_BT)
  taken = words_lib.take(words, ordered(first_BT), ordered(size_BT), left_B, len(thresholds) - 1)
  return words_lib.tokens(words, taken)
