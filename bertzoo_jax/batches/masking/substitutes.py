"""Replaces tokens of the first share by the mask, or by a similar word (Cui et al. 2020 §3.2)."""

import numpy as np

from bertzoo_jax.batches.masking import corruption as corruptions
from bertzoo_jax.common import errors
from bertzoo_jax.common import hashing
from bertzoo_jax.words import similar


def corrupter(corpus, fields):
  """Replaces the tokens of whole words.

  Args:
    corpus: see corruption.corrupter.
    fields: config.masking. With substitute 'similar' the first share gets a similar word of as many
      pieces, from the corpus's table; the second share, and words without a similar one, a random
      word of as many pieces, or random tokens if the corpus has no such word.

  Returns (key, ids [B, L], words, units, positions [B, P], targets [B, P]) -> ids that the network
  sees [B, P]. `words` are looked up in the table; all pieces of one of the `units` share a draw.
  """
  shares = fields.corruption
  plain = corruptions.corrupter(corpus, shares, fields.random_tokens)
  by_unit = fields.corrupted == 'units'
  groups = lambda positions_BP, units: (
    units.start.take(corruptions.at(units.of, positions_BP)) if by_unit else positions_BP
  )
  if fields.substitute == 'mask':
    return lambda key, ids_BL, words, units, positions_BP, targets_BP: plain(
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

  def corrupt(key, ids_BL, words, units, positions_BP, targets_BP):
    draw_BP = corruptions.draw(key, hashing.CORRUPT, groups(positions_BP, units))
    token_BP = draw_token(corruptions.draw(key, hashing.REPLACE, positions_BP))
    similar_BP, random_BP = _words(corpus.similar, key, ids_BL, positions_BP, words, token_BP)
    return np.where(
      draw_BP < as_similar, similar_BP, np.where(draw_BP < as_random, random_BP, targets_BP)
    )

  return corrupt


def _words(table, key, ids_BL, positions_BP, words, token_BP):
  """(pieces of similar words, of random words) [B, P]; `token_BP` where the table has no word."""
  word_BP, last = corruptions.at(words.of, positions_BP), ids_BL.shape[1] - 1
  start_BP = words.start.take(word_BP)
  size_N = (words.end.take(word_BP) - start_BP).reshape(-1)
  column_BPM = np.minimum(start_BP[..., None] + np.arange(similar.PIECES), last)
  pieces_NM = corruptions.at(ids_BL, column_BPM).reshape(-1, similar.PIECES)
  random_N = corruptions.draw(key, hashing.SIMILAR, start_BP).reshape(-1)
  which_BP = np.minimum(positions_BP - start_BP, similar.PIECES - 1)

  def pieces(words_NM, known_N, other_BP):
    piece_BP = corruptions.at(words_NM, which_BP.reshape(-1)).reshape(which_BP.shape)
    return np.where(known_N.reshape(which_BP.shape), piece_BP, other_BP)

  random_BP = pieces(*similar.random_words(table, size_N, random_N), token_BP)
  return pieces(*similar.lookup(table, pieces_NM, size_N, random_N), random_BP), random_BP
