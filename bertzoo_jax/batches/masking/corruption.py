"""From chosen positions to the masked row: slots, replacements and scatter. Used by all maskings.

B rows, L length, P predictions, V vocabulary, K chosen positions of the whole batch.
"""

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.common import hashing


def predict(features, positions_BP, real_BP):
  """The features plus predictions at `positions_BP`; fillers have target and weight 0."""
  return {
    **features,
    'masked_positions': positions_BP,
    'masked_targets': at(features['input_ids'], positions_BP) * real_BP,
    'masked_weights': real_BP.astype(np.float32),
  }


def replace(features, seen_BP, counts_BP=None):
  """The features with `seen_BP` at the positions of the predictions.

  features: from `predict`. seen_BP: ids that the network sees. counts_BP: bool, False for a
  position that another slot already replaces; None if all positions of a row differ.
  """
  ids_BL, positions_BP = features['input_ids'], features['masked_positions']
  real_BP = features['masked_weights'] > 0 if counts_BP is None else counts_BP
  ids_N = ids_BL.reshape(-1).copy()
  ids_N[flat(positions_BP, ids_BL.shape[1])[real_BP]] = seen_BP[real_BP]
  return {**features, 'input_ids': ids_N.reshape(ids_BL.shape)}


def masked(features, chosen_BL, num_predictions, corrupt):
  """The features with predictions at the chosen positions, at most P per row, and their tokens
  replaced. corrupt: (positions, targets [B, P]) → ids that the network sees.
  """
  features = predict(features, *slots(chosen_BL, num_predictions))
  return replace(features, corrupt(features['masked_positions'], features['masked_targets']))


def flat(columns, length):
  """int64 [B, …]: indices into the flattened rows of `length` columns, for columns [B, …]."""
  rows = np.arange(0, len(columns) * length, length)
  return columns + rows.reshape(-1, *[1] * (columns.ndim - 1))


def at(x_BL, columns):
  """The values [B, …] of each row at some of its columns [B, …]."""
  return x_BL.reshape(-1).take(flat(columns, x_BL.shape[1]))


def slots(chosen_BL, num_predictions):
  """(positions [B, P], ascending, fillers 0; bool [B, P], False for fillers) of chosen positions,
  at most P per row.
  """
  real_BP = np.arange(num_predictions) < np.count_nonzero(chosen_BL, axis=1)[:, None]
  positions_BP = np.zeros(real_BP.shape, np.int32)
  positions_BP[real_BP] = np.flatnonzero(chosen_BL) % chosen_BL.shape[1]
  return positions_BP, real_BP


def corrupter(corpus, shares, random_tokens):
  """Replaces tokens at chosen positions by [MASK], by random tokens, or not at all.

  corpus: its vocabulary size, special ids and unigram counts are read. shares: shares of [MASK],
  random and kept tokens; they sum to 1. random_tokens: 'all': any id. 'no_specials': not pad, unk,
  cls and sep, but [MASK] as in fairseq. 'unigrams': as often as in the corpus.

  Returns (key, positions [B, P], targets [B, P], groups [B, P]) -> ids that the network sees [B,
  P]; positions of one group share the draw of mask, random or kept.
  """
  draw_token = random_token(corpus, random_tokens)
  as_mask = hashing.threshold(shares[0])
  as_random = hashing.threshold(shares[0] + shares[1])
  mask_id = corpus.special['mask']

  def corrupt(key, positions_BP, targets_BP, groups_BP):
    draw_BP = draw(key, hashing.CORRUPT, groups_BP)
    random_BP = draw_token(draw(key, hashing.REPLACE, positions_BP))
    return np.where(
      draw_BP < as_mask, mask_id, np.where(draw_BP < as_random, random_BP, targets_BP)
    )

  return corrupt


def draw(key, purpose, counters):
  """32 random bits for every counter of [B] or [B, …], or of [1, …] for all rows."""
  key = hashing.fold(key, purpose)
  for _ in range(counters.ndim - 1):
    key = tuple(k[..., None] for k in key)
  return hashing.bits(key, counters)


# --- random tokens ---


def random_token(corpus, name):
  """uint32 bits of any shape → random ids int32; `name` is corrupter's argument random_tokens."""
  return _RANDOM_TOKENS[name](corpus)


def _uniform(*excluded):
  def build(corpus):
    excluded_ids = [corpus.special[name] for name in excluded]
    ids = np.delete(np.arange(corpus.vocab_size, dtype=np.int32), excluded_ids)
    return lambda random: ids.take(hashing.below(random, len(ids)))

  return build


def _unigrams(corpus):
  ends = np.cumsum(corpus.unigrams, dtype=np.int64)
  if not ends[-1]:
    raise errors.UserError(
      "config.masking.random_tokens is 'unigrams' and the corpus has no tokens: take "
      'random_tokens=all.'
    )
  # bits below least[i] are tokens up to i: ends · 2³² // total, in halves, as ends · 2³² of a large
  # corpus exceeds int64
  high, rest = np.divmod(ends << 16, ends[-1])
  least = (high << 16) + (rest << 16) // ends[-1]
  return lambda random: least.searchsorted(random.astype(np.int64), 'right').astype(np.int32)


_RANDOM_TOKENS = {
  'all': _uniform(),
  'no_specials': _uniform('pad', 'unk', 'cls', 'sep'),
  'unigrams': _unigrams,
}
