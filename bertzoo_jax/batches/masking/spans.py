"""Spans of words of geometric length, with the tokens beside them."""

import numpy as np

from bertzoo_jax.batches.masking import contract
from bertzoo_jax.batches.masking import corruption as corruptions
from bertzoo_jax.batches.masking import words as words_lib
from bertzoo_jax.common import hashing
from bertzoo_jax.parts import maskings as definitions


def span(fields: definitions.Span, length, corpus):
  """Spans of words (Joshi et al. 2020 §3.1), and for each token of a span the tokens beside the
  span (§3.2).

  A span begins at the word of a token drawn uniformly from the unmasked ones, and has ℓ whole
  words, ℓ geometric; words that are masked already cost nothing. Spans that touch or overlap merge.

  length, corpus: as for `token`. rate: rounded upwards. p, max_words: ℓ is n with a chance in
  proportion to (1 − p)ⁿ⁻¹ p, up to max_words. random_tokens: drawn for each position. overflow:
  'skip': the span ends before a word that exceeds the budget. max_pair_targets: tokens of a span
  from this offset on have no border tokens.

  Features:
    span_left, span_right: int32 [B, P]; positions of the tokens before and behind the span.
    span_offset: int32 [B, P]; the prediction's place in its span, from 0.
    All three are 0 for fillers, for offsets from max_pair_targets on, and for spans at the first or
    last token of a run of text. For all others span_right > 0.
  """
  contract.check_corruption(fields.corruption)
  thresholds = contract.cumulative((1 - fields.p) ** np.arange(fields.max_words), 'p')
  # `left` is the budget after all earlier words, so no word follows the first that does not fit
  cost = {
    'skip': lambda new, left: np.where(new <= left, new, 0),
    'cut': lambda new, left: np.clip(left, 0, new),
  }[fields.overflow]
  group = _GROUPS[fields.corrupted]
  corrupt = corruptions.corrupter(corpus, fields.corruption, fields.random_tokens)
  counts = contract.upwards(length, fields.rate)
  num_predictions = int(counts[-1])

  def apply(features, keys_B2):
    key = contract.row_key(keys_B2)
    features, text_BL, words = words_lib.read(features, corpus.special, 'word')
    left_B = counts.take(np.count_nonzero(text_BL, axis=1))
    masked = _spans(key, words, text_BL, left_B, thresholds, cost)
    chosen_BL = np.arange(length) < (words.start + masked).take(words.of)
    positions_BP, real_BP = corruptions.slots(chosen_BL & text_BL, num_predictions)
    features = corruptions.predict(features, positions_BP, real_BP)
    start_BP, end_BP = _merged(words, positions_BP, real_BP)
    seen_BP = corrupt(
      key, positions_BP, features['masked_targets'], group(words, positions_BP, start_BP)
    )
    features = corruptions.replace(features, seen_BP)
    return features | _borders(
      words, positions_BP, real_BP, start_BP, end_BP, fields.max_pair_targets
    )

  shape = ((num_predictions,), np.int32)
  return contract.Masking(
    num_predictions,
    fields.repeat,
    apply,
    dict(span_left=shape, span_right=shape, span_offset=shape),
    reads_units=True,
  )


def _spans(key, words, text_BL, left_B, thresholds, cost):
  """int64 [K+1]: how many tokens of each word are masked, from its first on."""
  none, more = words_lib.stand_in(words), np.arange(len(thresholds) - 1)
  anchor_BL, column_BL = words_lib.shuffled(key, words, text_BL)
  size_BL = contract.draw_length(corruptions.draw(key, hashing.COUNT, column_BL), thresholds)
  masked, tokens_K = np.zeros(none + 1, np.int64), words.end - words.start
  rows, left_R = np.arange(len(left_B)), left_B  # R rows are unfinished
  for first_B, size_B in zip(anchor_BL.T, size_BL.T):
    first_R = first_B.take(rows)
    open_R = (left_R > 0) & (first_R < none)
    if not open_R.all():
      rows, left_R, first_R = rows[open_R], left_R[open_R], first_R[open_R]
      if not len(rows):
        break
    last_R = np.minimum(words.last.take(first_R), first_R + size_B.take(rows) - 1)
    word_RN = np.minimum(first_R[:, None] + more, none)
    new_RN = tokens_K.take(word_RN) * (word_RN <= last_R[:, None]) * (masked.take(word_RN) == 0)
    new_RN *= (masked.take(first_R) == 0)[:, None]
    taken_RN = cost(new_RN, left_R[:, None] - np.cumsum(new_RN, axis=1) + new_RN)
    takes_RN = taken_RN > 0
    masked[word_RN[takes_RN]] = taken_RN[takes_RN]
    left_R = left_R - taken_RN.sum(axis=1)
  return masked


def _merged(words, positions_BP, real_BP):
  """(first, last) column [B, P] of the run of predictions of a slot, within one run of text."""
  slot_P = np.arange(positions_BP.shape[1])
  run_BP = words.last.take(corruptions.at(words.of, positions_BP))
  fresh_BP = ~real_BP
  fresh_BP[:, :1] = True
  fresh_BP[:, 1:] |= positions_BP[:, 1:] != positions_BP[:, :-1] + 1
  fresh_BP[:, 1:] |= run_BP[:, 1:] != run_BP[:, :-1]
  first_BP = np.maximum.accumulate(np.where(fresh_BP, slot_P, 0), axis=1)
  final_BP = np.append(fresh_BP[:, 1:], np.ones_like(fresh_BP[:, :1]), axis=1)
  behind_BP = np.where(final_BP, slot_P, len(slot_P))
  last_BP = np.minimum.accumulate(behind_BP[:, ::-1], axis=1)[:, ::-1]
  return corruptions.at(positions_BP, first_BP), corruptions.at(positions_BP, last_BP)


def _borders(words, positions_BP, real_BP, start_BP, end_BP, most):
  length = words.of.shape[1]
  run_of = lambda columns_BP: words.last.take(
    corruptions.at(words.of, np.clip(columns_BP, 0, length - 1))
  )
  run_BP = run_of(positions_BP)
  offset_BP = positions_BP - start_BP
  learns_BP = (
    real_BP
    & (start_BP > 0)
    & (end_BP < length - 1)
    & (run_of(start_BP - 1) == run_BP)
    & (run_of(end_BP + 1) == run_BP)
    & (offset_BP < most)
  )
  return dict(
    span_left=(start_BP - 1) * learns_BP,
    span_right=(end_BP + 1) * learns_BP,
    span_offset=offset_BP * learns_BP,
  )


_GROUPS = {
  'spans': lambda words, positions_BP, start_BP: start_BP,
  'units': lambda words, positions_BP, start_BP: words.start.take(
    corruptions.at(words.of, positions_BP)
  ),
  'pieces': lambda words, positions_BP, start_BP: positions_BP,
}
