"""A format, an optimizer and a schedule from outside the package. In a config, for instance
`parts.part('tests.outside.own_parts:lion', weight_decay=0.1)`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bertzoo_jax.batches import rows as rows_lib
from bertzoo_jax.batches.formats import format as format_lib
from bertzoo_jax.parts import fields


def document_starts(text, length):
  """A row per document: [CLS], its first length − 2 tokens, [SEP]."""
  format_lib.check_length(length, 3, 'format=document_starts')
  borders = text.sentence_starts[text.document_starts]
  sizes = np.minimum(np.diff(borders), length - 2)

  def spans(key, rows, numbers):
    numbers = np.asarray(numbers)
    row, one = np.arange(len(numbers)), np.ones(len(numbers), np.int64)
    return rows_lib.Spans(row, borders[numbers], sizes[numbers], one, one, 0 * one, one, None)

  whole_list = lambda key: range(len(sizes))
  return format_lib.Format(whole_list, spans, every_epoch=False, has_pairs=False, packed=False)


def lion(
  schedule,
  paths,
  *,
  b1: fields.SHARE_BELOW_1 = 0.9,
  b2: fields.SHARE_BELOW_1 = 0.99,
  weight_decay: fields.AT_LEAST_0 = 0.0,
):
  """Lion (Chen et al. 2023, Algorithm 2) by optax."""
  tx = optax.chain(optax.scale_by_lion(b1, b2), optax.add_decayed_weights(weight_decay))

  def update(gradients, state, params, *, step):
    updates, state = tx.update(gradients, state, params)
    rate = schedule(step)
    return jax.tree.map(lambda u: -rate * u, updates), state

  return optax.GradientTransformationExtraArgs(tx.init, update)


def restarts(total_steps, *, learning_rate: fields.AT_LEAST_0 = 1e-4, cycles: fields.COUNT = 2):
  """Half a cosine from the peak to 0 in each cycle (Loshchilov and Hutter 2017, eq. 5)."""
  share = lambda s: jnp.asarray(s, jnp.float32) * cycles / total_steps % 1.0
  return lambda s: learning_rate * 0.5 * (1.0 + jnp.cos(jnp.pi * share(s)))
