"""From chosen positions to the masked row: slots, their replacements, and the scatter. Shared by
all maskings.

B rows, L length, P predictions, V vocabulary, K chosen positions of the whole batch.
"""

import numpy as np
import tensorflow as tf

from bertzoo_jax.common import errors
from bertzoo_jax.common import hashing


def predict(features, positions_BP, real_BP):
  """The features with the predictions at `positions_BP`; fillers have target and weight 0."""
  targets_BP = tf.where(real_BP, tf.gather(features['input_ids'], positions_BP, batch_dims=1), 0)
  return {
    **features,
    'masked_positions': positions_BP,
    'masked_targets': targets_BP,
    'masked_weights': tf.cast(real_BP, tf.float32),
  }


def replace(features, seen_BP, counts_BP=None):
  """The features with `seen_BP` in the places of the predictions.

  Args:
    features: as in `predict`.
    seen_BP: ids that the network sees.
    counts_BP: bool, False for a position that another slot already replaces; None where positions
      differ.
  """
  ids_BL, positions_BP = features['input_ids'], features['masked_positions']
  real_BP = features['masked_weights'] > 0 if counts_BP is None else counts_BP
  # added: a filler may share its place with a prediction
  changes_BP = tf.where(real_BP, seen_BP - features['masked_targets'], 0)
  flat_BP = positions_BP + ids_BL.shape[1] * tf.range(tf.shape(ids_BL)[0])[:, None]
  ids = tf.tensor_scatter_nd_add(
    tf.reshape(ids_BL, [-1]), tf.reshape(flat_BP, [-1, 1]), tf.reshape(changes_BP, [-1])
  )
  return {**features, 'input_ids': tf.reshape(ids, tf.shape(ids_BL))}


def slots(chosen_BL, num_predictions):
  """(positions [B, P] ascending, fillers 0; whether real) of at most P chosen positions a row."""
  count_B = tf.reduce_sum(tf.cast(chosen_BL, tf.int32), axis=1)
  chosen_K2 = tf.cast(tf.where(chosen_BL), tf.int32)
  row_K, position_K = chosen_K2[:, 0], chosen_K2[:, 1]
  slot_K = tf.range(tf.shape(row_K)[0]) - tf.gather(tf.cumsum(count_B, exclusive=True), row_K)
  positions_BP = tf.scatter_nd(
    tf.stack([row_K, slot_K], 1), position_K, [tf.shape(chosen_BL)[0], num_predictions]
  )
  return positions_BP, tf.sequence_mask(count_B, num_predictions)


def corrupter(corpus, shares, random_tokens):
  """Replaces tokens at chosen positions, by shares of [MASK], of random tokens, of kept tokens.

  Args:
    corpus: of which V, the special ids and unigram counts are read.
    shares: three that sum to 1.
    random_tokens: 'all': any id. 'no_specials': not pad, unk, cls and sep, but [MASK] as in
      fairseq. 'unigrams': as often as in the corpus.

  Returns:
    (key, positions [B, P], targets [B, P], groups [B, P]) -> ids that the network sees [B, P];
    positions of one group share the draw of mask, random or kept.
  """
  draw_token = random_token(corpus, random_tokens)
  as_mask = hashing.threshold(shares[0])
  as_random = hashing.threshold(shares[0] + shares[1])
  mask_id = corpus.special['mask']

  def corrupt(key, positions_BP, targets_BP, groups_BP):
    what_BP = tf.cast(draw(key, hashing.CORRUPT, groups_BP), tf.int64)
    random_BP = draw_token(draw(key, hashing.REPLACE, positions_BP))
    return tf.where(
      what_BP < as_mask, mask_id, tf.where(what_BP < as_random, random_BP, targets_BP)
    )

  return corrupt


def draw(key, purpose, counters):
  """32 random bits for every counter of [B] or [B, …], or of [1, …] for all rows."""
  key = hashing.fold(key, purpose)
  for _ in range(len(counters.shape) - 1):
    key = tuple(k[..., None] for k in key)
  return hashing.bits(key, tf.cast(counters, tf.uint32))


# --- random tokens ---


def random_token(corpus, name):
  """uint32 bits of any shape → random ids int32, of the tokens that `name` says (`corrupter`)."""
  return _RANDOM_TOKENS[name](corpus)


def _uniform(*excluded):
  def build(corpus):
    ids = np.setdiff1d(
      np.arange(corpus.vocab_size, dtype=np.int32), [corpus.special[name] for name in excluded]
    )
    return lambda random: tf.gather(tf.constant(ids), hashing.below(random, len(ids)))

  return build


def _unigrams(corpus):
  # of any size: a large corpus times 2³² is no int64
  counts = np.asarray(corpus.unigrams).astype(object)
  if not counts.any():
    raise errors.UserError(
      "config.masking.random_tokens is 'unigrams' and the corpus has no tokens: take "
      'random_tokens=all.'
    )
  # bits below least[i] are tokens up to i
  least = (np.cumsum(counts) * 2**32 // sum(counts)).astype(np.int64)

  def draw_token(random):
    flat = tf.searchsorted(
      tf.constant(least), tf.reshape(tf.cast(random, tf.int64), [-1]), side='right'
    )
    return tf.reshape(flat, tf.shape(random))

  return draw_token


_RANDOM_TOKENS = {
  'all': _uniform(),
  'no_specials': _uniform('pad', 'unk', 'cls', 'sep'),
  'unigrams': _unigrams,
}
