"""Fine-tuning: texts that mean the same get vectors of one direction. Legend: B units, C texts of a
unit, D width.

A unit has a row per text, input_ids [B, C, L]: two texts, or a query, its positive and negatives.
labels [B] float32 are scores. Metrics have the total 'units'.
"""

import jax
import jax.numpy as jnp

from bertzoo_jax.model import operations
from bertzoo_jax.model import pooling
from bertzoo_jax.objectives import heads
from bertzoo_jax.objectives import networks
from bertzoo_jax.objectives import objective
from bertzoo_jax.parts import task_objectives as definitions

_READS = ('labels', 'label_weights')


def cosine_regression(fields: definitions.CosineRegression, encoder, ops=operations.PLAIN):
  """Mean squared error of the cosine of two vectors (Reimers & Gurevych 2019 §3).

  The score `highest` stands for the cosine 1, and 0 for 0. Metrics: squared_error.
  """

  def squared_error(cosines_B, batch):
    errors_B = jnp.square(cosines_B - batch['labels'] / fields.highest)
    return jnp.sum(errors_B * batch['label_weights'])

  return _of_scores(fields, encoder, ops, 'squared_error', squared_error)


def cosent(fields: definitions.Cosent, encoder, ops=operations.PLAIN):
  """The ranking loss of scores, log(1 + Σ exp(scale·(cos_j − cos_i))) over the pairs of units whose
  score i is above j's (CoSENT; Su 2022). It couples the units of a batch. Metrics: ranking_loss.
  """

  def ranking_loss(cosines_B, batch):
    labels_B, real_B = batch['labels'], batch['label_weights'] > 0
    counted_BB = (labels_B[:, None] > labels_B) & real_B[:, None] & real_B
    differences_BB = fields.scale * (cosines_B - cosines_B[:, None])
    exponents = jnp.where(counted_BB, differences_BB, -jnp.inf)
    # the loss of the batch, times its units: metrics are means over units
    total = jax.nn.logsumexp(jnp.append(exponents, 0.0))
    return total * jnp.sum(batch['label_weights'])

  return _of_scores(fields, encoder, ops, 'ranking_loss', ranking_loss)._replace(couples_rows=True)


def _of_scores(fields, encoder, ops, name, summed):
  """The Objective. summed: (cosines [B], batch) → a float32 sum over the units of the batch."""

  def init(key):
    return networks.init(encoder, (key,), predicts=False)

  def normalizers(batch):
    return {'units': jnp.sum(batch['label_weights'])}

  def loss(params, batch, normalizers, carry, key, train):
    vectors_BCD = unit_vectors(encoder, params, batch, fields.pooling, key, ops)
    total, weights = 0.0, fields.width_weights or (1.0,) * len(fields.widths)
    for width, weight in ((None, 1.0), *zip(fields.widths, weights, strict=True)):
      x_BCD = pooling.truncated(vectors_BCD, width)
      total += weight * summed(jnp.sum(x_BCD[:, 0] * x_BCD[:, 1], axis=-1), batch)
    sums = {'units': {name: total}}
    return total / objective.at_least_one(normalizers['units']), (carry, sums)

  reads = (*encoder.reads, *_READS)
  return objective.Objective(init, normalizers, loss, reads, objective.whole(encoder))


def unit_vectors(encoder, params, batch, kind: str, key=None, ops=operations.PLAIN):
  """Vectors [B, C, D], float32, of units of C texts.

  params: of the network. kind: see model.pooling. key: see networks.encode.
  """
  rows = heads.rows_of_options(batch)
  hidden_BLD = networks.encode(encoder, params['encoder'], rows, key, ops)
  vectors = pooling.pooled(kind, encoder, hidden_BLD, rows)
  return vectors.reshape(*batch['input_ids'].shape[:2], -1)
