"""Fine-tuning: the vectors of texts that mean the same have one direction. Legend: B units, C texts
of a unit, D width.

A unit has a row per text, input_ids [B, C, L]: two texts, or a query, its positive and negatives.
labels [B] float32 are scores. Metrics have the total 'units'.
"""

import jax
import jax.numpy as jnp

from bertzoo_jax.model import operations
from bertzoo_jax.model import pooling
from bertzoo_jax.objectives import contrastive
from bertzoo_jax.objectives import networks
from bertzoo_jax.objectives import objective
from bertzoo_jax.parts import task_objectives as definitions


def cosine_regression(fields: definitions.CosineRegression, encoder, ops=operations.PLAIN):
  """Mean squared error of the cosine of two vectors (Reimers & Gurevych 2019 §3).

  The score `highest` stands for the cosine 1, and 0 for 0. Metrics: squared_error.
  """

  def squared_error(cosines_B, batch):
    errors_B = jnp.square(cosines_B - batch['labels'] / fields.highest)
    return jnp.sum(errors_B * batch['label_weights'])

  return _objective(fields, encoder, ops, _of_cosines(fields, 'squared_error', squared_error))


def cosent(fields: definitions.Cosent, encoder, ops=operations.PLAIN):
  """The ranking loss of scores (CoSENT; Su 2022): log(1 + Σ exp(scale·(cos_j − cos_i))) over the
  pairs of units of the batch in which the score of i is above that of j. Metrics: ranking_loss.
  """

  def ranking_loss(cosines_B, batch):
    labels_B, real_B = batch['labels'], batch['label_weights'] > 0
    counted_BB = (labels_B[:, None] > labels_B) & real_B[:, None] & real_B
    differences_BB = fields.scale * (cosines_B - cosines_B[:, None])
    exponents = jnp.where(counted_BB, differences_BB, -jnp.inf)
    # one number per batch, while metrics are means over its units
    return jax.nn.logsumexp(jnp.append(exponents, 0.0)) * jnp.sum(batch['label_weights'])

  return _objective(fields, encoder, ops, _of_cosines(fields, 'ranking_loss', ranking_loss))


def in_batch_negatives(fields: definitions.InBatchNegatives, encoder, ops=operations.PLAIN):
  """The first text of a unit finds the second among all texts of the batch; see
  contrastive.compare.
  """

  def compare(vectors_BCD, batch):
    ids_BC2 = contrastive.text_ids(batch)
    real_BC = jnp.broadcast_to(batch['label_weights'][:, None], vectors_BCD.shape[:2])
    return contrastive.compare(fields, vectors_BCD, ids_BC2, real_BC)

  return _objective(fields, encoder, ops, compare)


def _of_cosines(fields, name, summed):
  """compare of `_objective`. summed: (cosines [B] of two texts, batch) → Σ over the units."""

  def compare(vectors_BCD, batch):
    weights, value, sums = fields.width_weights or [1.0] * len(fields.widths), 0.0, {}
    for width, weight in ((None, 1.0), *zip(fields.widths, weights)):
      x_BCD = pooling.truncated(vectors_BCD, width)
      total = summed(jnp.sum(x_BCD[:, 0] * x_BCD[:, 1], axis=-1), batch)
      sums[f'{name}_{width}' if width else name] = total
      value += weight * total
    return value, sums

  return compare


def _objective(fields, encoder, ops, compare) -> objective.Objective:
  """compare: (vectors_BCD, batch) of the whole batch → (Σ over the units, {metric: Σ})."""
  contrastive.check(fields, encoder)

  def init(key):
    return networks.init(encoder, (key,), predicts=False)

  def normalizers(batch):
    return {'units': jnp.sum(batch['label_weights'])}

  def vectors(params, batch, normalizers, carry, key, train):
    return contrastive.unit_vectors(encoder, params, batch, fields.pooling, key, ops), (
      0.0,
      (carry, {}),
    )

  def couple(vectors_BCD, batch, normalizers):
    value, sums = compare(vectors_BCD, batch)
    return value / objective.at_least_one(normalizers['units']), {'units': sums}

  reads = (*encoder.reads, 'labels', 'label_weights')
  rows = objective.Objective(init, normalizers, None, reads, objective.whole(encoder))
  return objective.coupled(rows, vectors, couple)
