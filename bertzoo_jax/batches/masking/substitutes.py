"""The first of the three shares: the mask token, or a similar word (Cui et al. 2020 §3.2)."""

import tensorflow as tf

from bertzoo_jax.batches.masking import corruption as corruptions
from bertzoo_jax.common import errors
from bertzoo_jax.common import hashing
from bertzoo_jax.words import similar


def corrupter(corpus, fields):
  """Replaces the tokens of whole words.

  Args:
    corpus: see corruption.corrupter.
    fields: of config.masking. substitute 'similar': a similar word of as many pieces, from the
      corpus's table; a word without one gets a random word of as many pieces, and so does the
      second share; random tokens where the corpus has no such word.

  Returns:
    (key, ids [B, L], positions [B, P], targets [B, P], words, units) -> ids that the network sees
    [B, P]. `words` are the words that are looked up, `units` those that one draw covers.
  """
  shares = fields.corruption
  plain = corruptions.corrupter(corpus, shares, fields.random_tokens)
  by_unit = fields.corrupted == 'units'
  groups = (
    (
      lambda positions_BP, units: tf.gather(
        units.start, tf.gather(units.of, positions_BP, batch_dims=1)
      )
    )
    if by_unit
    else (lambda positions_BP, units: positions_BP)
  )
  if fields.substitute == 'mask':
    return lambda key, ids_BL, positions_BP, targets_BP, words, units: plain(
      key, positions_BP, targets_BP, groups(positions_BP, units)
    )
  if not by_unit:
    raise errors.UserError(
      "config.masking.substitute is 'similar' and config.masking.corrupted is 'pieces': a word is "
      'replaced as a whole, take corrupted=units.'
    )
  if corpus.similar is None:
    raise errors.UserError(
      "config.masking.substitute is 'similar' and the corpus has no table of similar words: "
      'prepare it with config.corpus.similar=trained, or with a file of them.'
    )
  draw_token = corruptions.random_token(corpus, fields.random_tokens)
  as_similar, as_random = hashing.threshold(shares[0]), hashing.threshold(shares[0] + shares[1])

  def corrupt(key, ids_BL, positions_BP, targets_BP, words, units):
    what_BP = tf.cast(corruptions.draw(key, hashing.CORRUPT, groups(positions_BP, units)), tf.int64)
    token_BP = draw_token(corruptions.draw(key, hashing.REPLACE, positions_BP))
    similar_BP, random_BP = _words(corpus.similar, key, ids_BL, positions_BP, words, token_BP)
    return tf.where(
      what_BP < as_similar, similar_BP, tf.where(what_BP < as_random, random_BP, targets_BP)
    )

  return corrupt


def _words(table, key, ids_BL, positions_BP, words, token_BP):
  """(similar, random) words, each position's piece of them [B, P]; `token_BP` without one."""
  shape, length = tf.shape(positions_BP), ids_BL.shape[1]
  word_BP = tf.gather(words.of, positions_BP, batch_dims=1)
  start_BP = tf.gather(words.start, word_BP)
  size_N = tf.reshape(tf.gather(words.end, word_BP) - start_BP, [-1])
  column_BPM = tf.minimum(start_BP[..., None] + tf.range(similar.PIECES), length - 1)
  pieces_NM = tf.reshape(tf.gather(ids_BL, column_BPM, batch_dims=1), [-1, similar.PIECES])
  random_N = tf.reshape(corruptions.draw(key, hashing.SIMILAR, start_BP), [-1])
  which_N = tf.reshape(positions_BP - start_BP, [-1])
  piece = lambda words_NM: tf.reshape(
    tf.gather(words_NM, tf.minimum(which_N, similar.PIECES - 1), batch_dims=1), shape
  )
  random_NM, known_N = similar.random_words(table, size_N, random_N)
  random_BP = tf.where(tf.reshape(known_N, shape), piece(random_NM), token_BP)
  similar_NM, found_N = similar.lookup(table, pieces_NM, size_N, random_N)
  return tf.where(tf.reshape(found_N, shape), piece(similar_NM), random_BP), random_BP
