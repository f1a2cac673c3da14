"""Whole words, phrases or entities: one unit at a time."""

import functools
import math

import numpy as np

from bertzoo_jax.batches.masking import contract
from bertzoo_jax.batches.masking import corruption as corruptions
from bertzoo_jax.batches.masking import substitutes
from bertzoo_jax.batches.masking import words as words_lib
from bertzoo_jax.common import hashing
from bertzoo_jax.parts import maskings as definitions


def whole_word(fields: definitions.WholeWord, length, corpus):
  """All tokens of the chosen words (code of Devlin et al. 2018; Cui et al. 2019), phrases or
  entities (Sun et al. 2019 §3.2).

  length, corpus: as for `token`; the table of similar words is read for substitute 'similar'.
  selection: 'independent': if the chosen units of a row exceed P tokens, random ones are left out.
  substitute: see substitutes.py. max_predictions: P. 0 with 'independent': the mean plus four
  standard deviations, for units of three tokens.

  Raises UserError: wrong shares, or no table of similar words.
  """
  contract.check_corruption(fields.corruption)
  select, num_predictions = _SELECTIONS[fields.selection](
    length, fields.rate, fields.max_predictions
  )
  corrupt = substitutes.corrupter(corpus, fields)
  levels = dict.fromkeys((fields.level, 'word'))

  def apply(features, keys_B2):
    key = contract.row_key(keys_B2)
    features, _, *by_level = words_lib.read(features, corpus.special, *levels)
    units, words = by_level[0], by_level[-1]
    chosen_BL = select(key, units, features['segment_ids'])
    seen = functools.partial(corrupt, key, features['input_ids'], words, units)
    return corruptions.masked(features, chosen_BL, num_predictions, seen)

  return contract.Masking(num_predictions, fields.repeat, apply, reads_units=True)


def _budget(length, rate, most):
  counts = contract.nearest(length, rate, most)

  def select(key, units, pack_BL):
    order_BL, _ = words_lib.shuffled(key, units)
    left_B = counts.take(np.count_nonzero(pack_BL, axis=1))
    return words_lib.tokens(units, words_lib.take_single(units, order_BL, left_B))

  return select, int(counts[-1])


def _independent(length, rate, most):
  most = min(
    length, most or math.ceil(rate * length + 4 * math.sqrt(3 * rate * (1 - rate) * length))
  )
  bound = hashing.threshold(rate)

  def select(key, units, pack_BL):
    coin_BL = corruptions.draw(key, hashing.COIN, np.arange(length)[None])
    # of each word the coin of its first token
    heads_BL = corruptions.at(coin_BL, units.start.take(units.of)) < bound
    chosen_BL = (units.of < words_lib.stand_in(units)) & heads_BL
    if np.count_nonzero(chosen_BL, axis=1).max() <= most:
      return chosen_BL
    order_BL, _ = words_lib.shuffled(key, units, chosen_BL & words_lib.begins(units))
    left_B = np.full(len(pack_BL), most)
    return words_lib.tokens(units, words_lib.take_single(units, order_BL, left_B))

  return select, most


_SELECTIONS = {'budget': _budget, 'independent': _independent}
