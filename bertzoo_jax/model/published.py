"""Operations per token of a forward pass as Clark et al. 2020 count them (flops_computation.py of
their release). A multiplication and an addition are two. Dropout, norms, activations, the softmax
and biases are counted, and a lookup is a product with the whole table.

Legend: D width, H heads, F width of the feed-forward, L keys.
"""

# Per element.
DROPOUT, NORM, ACTIVATION, SOFTMAX = 4, 5, 8, 5
# Share of the tokens that are predicted.
PREDICTED = 0.15625


def query(width: int, heads: int, keys: int) -> float:
  """One query of D: its projection, its scores and sum over L keys, the output, dropout, the
  residual sum and the norm. The release counts the norm once, not per element.
  """
  scores = 4 * width * keys + (SOFTMAX + DROPOUT + 1) * keys * heads
  return scores + 4 * width * width + (1 + 1 + DROPOUT + 1) * width + NORM


def key_value(width: int) -> float:
  """One key and one value of D: their projections."""
  return 4 * width * width + 2 * width


def feed_forward(width: int, hidden: int) -> float:
  """One vector of D through a feed-forward of F, dropout, the residual sum and the norm."""
  return 4 * width * hidden + (ACTIVATION + 1) * hidden + (1 + DROPOUT + 1 + NORM) * width


def embeddings(width: int, vocab_size: int, others: int, hidden: int) -> float:
  """The vectors of one token from the word table and from two tables with `others` rows together,
  their sum, norm and dropout, and a projection to D where their width is another.
  """
  total = 2 * width * vocab_size + 2 * width * others + (2 + NORM + DROPOUT) * width
  return total + (2 * hidden * width + hidden if width != hidden else 0)
