"""A masking from outside the package that asks the corpus for its tokenizer: it predicts tokens
whose text has a letter. `tests.outside.lettered:lettered` in a config.
"""

import numpy as np

from bertzoo_jax.batches.masking.contract import Masking
from bertzoo_jax.common import hashing
from bertzoo_jax.parts import fields


def lettered(length, corpus, *, rate: fields.SHARE_BETWEEN = 0.15):
  """The first letters of a row, in an order that is drawn. rate: share of the row, at most."""
  pieces = corpus.tokenizer().pieces
  has_letter = np.array([any(c.isalpha() for c in piece) for piece in pieces])
  has_letter[list(corpus.special.values())] = False
  most, mask = max(1, int(rate * length)), corpus.special['mask']

  def apply(features, keys_B2):
    ids_BL = features['input_ids']
    key = keys_B2[:, :1], keys_B2[:, 1:]
    drawn_BL = hashing.bits(key, np.arange(length)).astype(np.int64)
    order_BL = np.where(has_letter[ids_BL], drawn_BL, np.iinfo(np.int64).max)
    positions_BP = np.sort(np.argsort(order_BL, axis=1, kind='stable')[:, :most], axis=1)
    targets_BP = np.take_along_axis(ids_BL, positions_BP, axis=1)
    weights_BP = has_letter[targets_BP].astype(np.float32)
    masked_BL = ids_BL.copy()
    shown_BP = np.where(weights_BP > 0, mask, targets_BP)
    np.put_along_axis(masked_BL, positions_BP, shown_BP, axis=1)
    slots = dict(
      masked_positions=np.where(weights_BP > 0, positions_BP, 0).astype(np.int32),
      masked_targets=np.where(weights_BP > 0, targets_BP, 0).astype(np.int32),
      masked_weights=weights_BP,
    )
    return {**features, 'input_ids': masked_BL.astype(np.int32), **slots}

  return Masking(most, 0, apply)
