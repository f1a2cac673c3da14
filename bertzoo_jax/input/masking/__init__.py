"""Masking: which tokens of a row are predicted, and what the network sees in their place.

A masking is TensorFlow integer operations on the whole batch, of static shapes, the same eagerly and inside tf.data; its
randomness comes with every row as a key. Schemes that go step by step are loops over steps, all rows of the batch in each.
"""

from bertzoo_jax.input.masking.contract import Masking
from bertzoo_jax.input.masking.tokens import token

__all__ = ['BY_NAME', 'Masking']

BY_NAME = {
    'token': token,
}
