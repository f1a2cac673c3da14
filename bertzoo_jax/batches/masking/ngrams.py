"""N-grams of words."""

import functools

import numpy as np

from bertzoo_jax.batches.masking import contract
from bertzoo_jax.batches.masking import corruption as corruptions
from bertzoo_jax.batches.masking import substitutes
from bertzoo_jax.batches.masking import words as words_lib
from bertzoo_jax.common import hashing
from bertzoo_jax.parts import maskings as definitions

_UNIT = 1 << 10  # parts of a word in which mean lengths are counted
_LOOK = 16  # words examined per step from left to right: about every tenth word begins a run


def ngram(fields: definitions.Ngram, length, corpus):
  """Runs of one to N whole words (Lan et al. 2019 §3.1, after the release's code; Cui et al. 2020
  §3.2).

  Args:
    length, corpus: as for `whole_word`.
    weights: if fewer than N words follow, the lengths that fit keep their proportions (ALBERT's
      release shortens the longer ones instead).
    order: 'shuffled': first words in random order, each with its own length; a run that exceeds the
      rest of the budget is shortened word by word, and a run that touches a word taken before is
      left out (ALBERT). 'left_to_right': word by word, with a chance that spends the budget evenly
      over the rest of the row (MacBERT, which does not publish its chance: see _left_to_right).

  Raises UserError: wrong shares or weights, or no table of similar words.
  """
  contract.check_corruption(fields.corruption)
  thresholds = contract.cumulative(fields.weights, 'weights')
  select = {'shuffled': _shuffled, 'left_to_right': _left_to_right}[fields.order]
  corrupt = substitutes.corrupter(corpus, fields)
  counts = contract.nearest(length, fields.rate, fields.max_predictions)
  num_predictions = int(counts[-1])

  def apply(features, keys_B2):
    key = contract.row_key(keys_B2)
    features, _, words = words_lib.read(features, corpus.special, 'word')
    left_B = counts.take(np.count_nonzero(features['segment_ids'], axis=1))
    chosen_BL = words_lib.tokens(words, select(key, words, left_B, thresholds))
    seen = functools.partial(corrupt, key, features['input_ids'], words, words)
    return corruptions.masked(features, chosen_BL, num_predictions, seen)

  return contract.Masking(num_predictions, fields.repeat, apply, reads_units=True)


def _shuffled(key, words, left_B, thresholds):
  order_BL, column_BL = words_lib.shuffled(key, words)
  random_BL = corruptions.draw(key, hashing.COUNT, column_BL)
  room_BL = words.last.take(order_BL) - order_BL + 1
  size_BL = contract.draw_length(random_BL, thresholds, room_BL)
  return words_lib.take(words, order_BL, size_BL, left_B, len(thresholds) - 1)


def _left_to_right(key, words, left_B, thresholds):
  """bool [K+1]: the word is taken.

  With r tokens of the budget and R tokens of the row left and runs of E words on average, a run
  begins at a word with the chance (r / E) / (r / E + R − r): as if r / E runs and R − r single
  words were left, in random order. The budget is spent evenly over the row and, where words fit,
  completely. A run that exceeds the budget loses its last words.
  """
  none, largest = words_lib.stand_in(words), len(thresholds) - 1
  share = [int(b) - int(a) for a, b in zip(thresholds, thresholds[1:])]
  mean = round(_UNIT * sum((n + 1) * s for n, s in enumerate(share)) / sum(share))
  look, more = np.arange(_LOOK), np.arange(largest)
  row_K = np.append(np.repeat(np.arange(len(words.count)), words.count), 0)
  draw_K = lambda purpose: hashing.bits(
    tuple(k.take(row_K) for k in hashing.fold(key, purpose)), words.start
  )
  coin_K = draw_K(hashing.COIN).astype(np.int64)
  room_K = words.last - np.arange(none + 1) + 1
  size_K = contract.draw_length(draw_K(hashing.COUNT), thresholds, room_K)
  tokens_K = words.end - words.start
  taken = np.zeros(none + 1, bool)
  # of the R unfinished rows: the next word, the one behind the row, tokens of row and budget left
  state = words.first, words.first + words.count, np.count_nonzero(words.of < none, axis=1), left_B
  while True:
    word_R, behind_R, rest_R, left_R = state
    open_R = (left_R > 0) & (word_R < behind_R)
    if not open_R.all():
      word_R, behind_R, rest_R, left_R = (x[open_R] for x in state)
    if not len(word_R):
      return taken
    # examines up to _LOOK words; the first one that begins a run counts
    seen_RW = word_R[:, None] + look
    seen_RW = np.where(seen_RW < behind_R[:, None], seen_RW, none)
    size_RW = tokens_K.take(seen_RW)
    passed_RW = np.cumsum(size_RW, axis=1)
    rest_RW = rest_R[:, None] - passed_RW + size_RW
    chance_RW = _UNIT * left_R[:, None] + mean * (rest_RW - left_R[:, None])
    begins_RW = coin_K.take(seen_RW) * chance_RW < (_UNIT * left_R << 32)[:, None]
    begins_RW &= seen_RW < none
    begins_R = begins_RW.any(axis=1)
    skipped_R = np.where(begins_R, begins_RW.argmax(axis=1), _LOOK)
    first_R = np.where(begins_R, np.minimum(word_R + skipped_R, none), none)
    run_RN = np.minimum(first_R[:, None] + more, none)
    cost_RN = words.end.take(run_RN) - words.start.take(first_R)[:, None]
    fits_RN = begins_R[:, None] & (more < size_K.take(first_R)[:, None])
    fits_RN &= cost_RN <= left_R[:, None]
    taken[run_RN[fits_RN]] = True
    spent_R = (cost_RN * fits_RN).max(axis=1)
    used_R = np.where(begins_R, np.maximum(1, np.count_nonzero(fits_RN, axis=1)), 0)
    gone_R = (size_RW * (look < skipped_R[:, None])).sum(axis=1)
    rest_R = rest_R - gone_R - np.maximum(spent_R, tokens_K.take(first_R))
    state = word_R + skipped_R + used_R, behind_R, rest_R, left_R - spent_R
