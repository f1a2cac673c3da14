"""Masking: which tokens of a row are predicted, and which ids the network sees in their place.

A masking is integer numpy operations on the whole batch; each row has a key for its random draws.
A sequential scheme loops over steps, and a step handles all unfinished rows of the batch.

Fields: bertzoo_jax/parts/maskings.py. The docstrings here add the details of the algorithms.
"""

from bertzoo_jax.batches.masking.contract import Masking
from bertzoo_jax.batches.masking.contract import padded_to
from bertzoo_jax.batches.masking.contract import with_units
from bertzoo_jax.batches.masking.contract import without_special_targets
from bertzoo_jax.batches.masking.ngrams import ngram
from bertzoo_jax.batches.masking.permutations import in_order
from bertzoo_jax.batches.masking.permutations import permutation
from bertzoo_jax.batches.masking.spans import span
from bertzoo_jax.batches.masking.tokens import token
from bertzoo_jax.batches.masking.whole_words import whole_word
from bertzoo_jax.batches.masking.windows import ngram_windows

__all__ = ['BY_NAME', 'Masking', 'with_units', 'without_special_targets', 'padded_to']

BY_NAME = {
  'token': token,
  'whole_word': whole_word,
  'ngram': ngram,
  'span': span,
  'ngram_windows': ngram_windows,
  'permutation': permutation,
  'in_order': in_order,
}
