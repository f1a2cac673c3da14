"""Vectors of texts, learned by comparing all texts of a batch.

Legend: B units of texts, C texts of a unit, L length, D width. The first text of a unit searches
the second, its positive, among the other texts of the batch; further texts are hard negatives.
"""

import jax
import jax.numpy as jnp

from bertzoo_jax.common import errors
from bertzoo_jax.common import row_keys
from bertzoo_jax.model import head_modules
from bertzoo_jax.model import operations
from bertzoo_jax.model import pooling
from bertzoo_jax.objectives import generator
from bertzoo_jax.objectives import heads
from bertzoo_jax.objectives import mlm
from bertzoo_jax.objectives import networks
from bertzoo_jax.objectives import objective
from bertzoo_jax.parts import objectives as definitions


def contrastive(fields: definitions.Contrastive, encoder, ops=operations.PLAIN):
  """The loss of `compare` on each row before its masking and the same row with another draw of
  dropout (Gao, Yao & Chen 2021: SimCSE), plus mlm_weight · mlm. Held-out rows have no dropout.

  Metrics under the total 'rows': those of `compare`; those of `mlm` if its weight is above 0.
  Raises UserError: see `check`.
  """
  check(fields, encoder)
  alone = isinstance(fields.mlm_weight, int | float) and not fields.mlm_weight  # moving: traced
  plain = mlm.mlm(encoder, ops)
  names = (*encoder.reads, 'position_ids')

  def init(key):
    return networks.init(encoder, jax.random.split(key, 1), predicts=False)

  def normalizers(batch):
    masked = {} if alone else plain.normalizers(batch)
    return {**masked, 'rows': jnp.sum(networks.row_weights(batch))}

  def vectors(params, batch, normalizers, carry, key, train):
    of_rows = 0.0, (carry, {})
    if not alone:
      value, rest = plain.loss(params, batch, normalizers, carry, key, train)
      of_rows = fields.mlm_weight * value, rest
    original_BL, _ = generator.fill(batch, batch['masked_targets'])
    row = {name: batch[name] for name in names if name in batch} | {'input_ids': original_BL}
    views = 1 if key is None else 2
    units = {name: jnp.stack([jnp.asarray(x)] * views, axis=1) for name, x in row.items()}
    units['row_keys'] = batch['row_keys']
    vectors_BCD = unit_vectors(encoder, params, units, fields.pooling, key, ops)
    return (vectors_BCD, text_ids(units)), of_rows

  def couple(encoded, batch, normalizers):
    both = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(x), 2, *x.shape[2:])), encoded)
    value, sums = compare(fields, *both, jnp.stack([networks.row_weights(batch)] * 2, axis=1))
    if encoded[0].shape[1] == 1:  # a row compared with itself is always right
      del sums['contrast_accuracy']
    return value / objective.at_least_one(normalizers['rows']), {'rows': sums}

  plain = plain._replace(init=init) if alone else plain
  return objective.coupled(plain._replace(normalizers=normalizers), vectors, couple)


def check(fields, encoder) -> None:
  """Raises UserError for `widths` that the encoder does not have, or not one weight for each."""
  widths, weights = fields.widths, fields.width_weights
  if widths and max(widths) >= encoder.hidden_size:
    raise errors.UserError(
      f'objective.widths has {max(widths)}, and the vectors have {encoder.hidden_size} numbers: '
      'give smaller widths; the whole vector always has a loss.'
    )
  if weights and len(weights) != len(widths):
    raise errors.UserError(
      f'objective.width_weights has {len(weights)} numbers, and there are {len(widths)} widths: '
      'give one for each, or () for 1 each.'
    )


def unit_vectors(encoder, params, batch, kind: str, key=None, ops=operations.PLAIN):
  """Vectors [B, C, D], float32, of units of C texts.

  params: of the network. kind: see model.pooling. key: see networks.encode.
  """
  rows = heads.rows_of_options(batch)
  hidden_BLD = networks.encode(encoder, params['encoder'], rows, key, ops)
  return pooling.pooled(kind, encoder, hidden_BLD, rows).reshape(*batch['input_ids'].shape[:2], -1)


def text_ids(rows) -> jax.Array:
  """Two hashes of the tokens of each row, uint32 [..., 2]: equal texts have equal ones."""
  ids = jnp.asarray(rows['input_ids']).astype(jnp.uint32)
  hashes = row_keys.fold_in(jnp.stack([ids, ids], axis=-1), jnp.arange(ids.shape[-1]))
  visible = (jnp.asarray(rows['segment_ids']) > 0)[..., None]
  return jnp.sum(jnp.where(visible, hashes, 0), axis=-2, dtype=jnp.uint32)


def compare(fields, vectors_BCD, ids_BC2, real_BC) -> tuple[jax.Array, dict[str, jax.Array]]:
  """(Σ over the units of their loss, {metric: Σ over the units}).

  The loss of a unit is the cross-entropy, of cosines over the temperature, of the second text among
  the candidates for the first: all texts of the batch but the first ones. With the weight
  `backward` it is that of the first text among all first ones, for the second. Left out are units
  that share a text with this unit, as far as these two texts go, and negatives that equal one of
  the two. `widths` add the same losses of the first numbers of the vectors.

  fields: parts.objectives.TextVectors. ids_BC2: of `text_ids`. real_BC: 1 for a text, 0 for one
  that only fills its place.

  Metrics: contrast_loss (nats), contrast_accuracy (whether the second text has the highest score),
  and contrast_loss_N of each width.
  """
  kept_BBC = _kept(ids_BC2, real_BC > 0)
  real_B = real_BC[:, 0].astype(jnp.float32)
  count, others = real_BC.shape[0], real_BC.shape[1] - 1
  numbers_B = jnp.arange(count)

  def losses(x_BCD):
    """(loss, whether the positive is first) of each unit."""
    cosines = jnp.einsum('id,jcd->ijc', x_BCD[:, 0], x_BCD[:, 1:], precision='high')
    scores = cosines / fields.temperature
    there = jnp.where(kept_BBC[:, :, 1:], scores, head_modules.FORBIDDEN)
    there_B, first_B = networks.nll(there.reshape(count, -1), numbers_B * others)
    back = jnp.where(kept_BBC[:, :, 0], scores[:, :, 0].T, head_modules.FORBIDDEN)
    back_B, _ = networks.nll(back, numbers_B)
    return (1 - fields.backward) * there_B + fields.backward * back_B, first_B

  loss_B, first_B = losses(pooling.normalized(vectors_BCD))
  value = jnp.sum(real_B * loss_B)
  sums = {'contrast_loss': value, 'contrast_accuracy': jnp.sum(real_B * first_B)}
  for width, weight in zip(fields.widths, fields.width_weights or [1.0] * len(fields.widths)):
    loss_B, _ = losses(pooling.truncated(vectors_BCD, width))
    sums[f'contrast_loss_{width}'] = jnp.sum(real_B * loss_B)
    value += weight * sums[f'contrast_loss_{width}']
  return value, sums


def _kept(ids_BC2, real_BC):
  """[B, B, C] booleans: whether text c of unit j is a candidate for unit i; its own two are."""
  pair_B211 = ids_BC2[:, :2, None, None]
  equal_BBC = jnp.any(jnp.all(pair_B211 == ids_BC2, axis=-1), axis=1)
  shares_BB1 = jnp.any(equal_BBC[:, :, :2], axis=2, keepdims=True)
  left_out_BBC = jnp.concatenate(
    [jnp.broadcast_to(shares_BB1, equal_BBC[:, :, :2].shape), equal_BBC[:, :, 2:]], axis=2
  )
  positive_BBC = jnp.eye(len(ids_BC2), dtype=bool)[:, :, None] & (jnp.arange(real_BC.shape[1]) < 2)
  return positive_BBC | (real_BC & ~left_out_BBC)
