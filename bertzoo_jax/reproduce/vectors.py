"""How alike the word vectors of a network are (He et al. 2021, embedding sharing)."""

import numpy as np


def mean_cosine(words_VE) -> float:
  """The mean cosine of two different rows of a table; rows of zeros are left out.

  words_VE: one row per piece. Rows that belong to no piece (config.encoder.vocab_multiple) are not
    to be among them.
  """
  words_VE = np.asarray(words_VE, np.float64)
  norm_V = np.linalg.norm(words_VE, axis=1)
  unit_VE = words_VE[norm_V > 0] / norm_V[norm_V > 0, None]
  count = len(unit_VE)
  if count < 2:
    return float('nan')
  # |Σ u|² is the sum over all pairs, each row with itself included
  return float((np.sum(unit_VE.sum(axis=0) ** 2) - count) / (count * (count - 1)))
