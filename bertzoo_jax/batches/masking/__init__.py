"""Masking: which tokens of a row are predicted, and what the network sees in their place.

A masking is integer operations of numpy on the whole batch; its randomness comes with every row as
a key. Schemes that go step by step are loops over steps, all unfinished rows of the batch in each.

Fields: bertzoo_jax/parts/maskings.py. Here they are explained where the algorithm needs more words.
"""

from bertzoo_jax.batches.masking.contract import Masking
from bertzoo_jax.batches.masking.contract import keeping_units
from bertzoo_jax.batches.masking.contract import of_text
from bertzoo_jax.batches.masking.contract import widened
from bertzoo_jax.batches.masking.ngrams import ngram
from bertzoo_jax.batches.masking.permutations import in_order
from bertzoo_jax.batches.masking.permutations import permutation
from bertzoo_jax.batches.masking.spans import span
from bertzoo_jax.batches.masking.tokens import token
from bertzoo_jax.batches.masking.whole_words import whole_word
from bertzoo_jax.batches.masking.windows import ngram_windows

__all__ = ['BY_NAME', 'Masking', 'keeping_units', 'of_text', 'widened']

BY_NAME = {
  'token': token,
  'whole_word': whole_word,
  'ngram': ngram,
  'span': span,
  'ngram_windows': ngram_windows,
  'permutation': permutation,
  'in_order': in_order,
}
