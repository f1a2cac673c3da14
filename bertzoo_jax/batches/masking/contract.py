"""The type of all maskings, and functions for budgets and lengths that they share."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.common import hashing


class Masking(NamedTuple):
  """One masking for rows of one length."""

  num_predictions: int  # P, which no row exceeds
  repeat: int  # 0: new rows and masks in every epoch; k: epoch e repeats epoch e mod k
  # ({'input_ids', 'segment_ids', …} [B, L] int32, keys [B, 2] uint32) -> the features, `input_ids`
  # masked, with 'masked_positions', 'masked_targets' int32 and 'masked_weights' float32 [B, P], and
  # the `features`
  apply: Callable
  # {name: (shape without B, numpy dtype)} of the features that `apply` writes beyond these three
  features: dict = {}
  # whether `apply` needs 'units' [B, L] int32 (bits of words/word_marks.py), which it removes from
  # the features
  reads_units: bool = False


def with_units(masking, length):
  """The same masking, but 'units' [B, L] stay in the features: for statistics, not for networks."""

  def apply(features, keys_B2):
    read = (
      features
      if masking.reads_units
      else {name: x for name, x in features.items() if name != 'units'}
    )
    return {**masking.apply(read, keys_B2), 'units': features['units']}

  return masking._replace(
    apply=apply, features={**masking.features, 'units': ((length,), np.int32)}, reads_units=True
  )


def padded_to(masking, widest):
  """The same masking, its features padded with zeros to the shapes of the masking `widest`."""
  slots = ('masked_positions', 'masked_targets', 'masked_weights')
  wanted = dict.fromkeys(slots, (widest.num_predictions,))
  wanted |= {name: shape for name, (shape, _) in widest.features.items()}

  def apply(features, keys_B2):
    out = dict(masking.apply(features, keys_B2))
    for name, shape in wanted.items():
      more = [(0, most - size) for most, size in zip(shape, out[name].shape[1:])]
      out[name] = np.pad(out[name], [(0, 0), *more])
    return out

  return widest._replace(apply=apply)


def without_special_targets(masking, special):
  """The same masking without predictions of special tokens: these stay in input_ids, and their
  slots have weight 0. Used for held-out rows: their loss and accuracy then measure text only.

  special: {'pad' | 'unk' | 'cls' | 'sep' | 'mask' | …: id}; an unknown token counts as text.
  """
  ids = sorted({i for name, i in special.items() if name != 'unk'})

  def apply(features, keys_B2):
    before_BL, out = features['input_ids'], masking.apply(features, keys_B2)
    special_BL = np.isin(before_BL, ids)
    special_BP = np.take_along_axis(special_BL, out['masked_positions'], axis=1)
    return {
      **out,
      'input_ids': np.where(special_BL, before_BL, out['input_ids']),
      'masked_weights': np.where(special_BP, np.float32(0), out['masked_weights']),
    }

  return masking._replace(apply=apply)


def row_key(keys_B2):
  """The key of each row, as a pair of uint32 [B]."""
  return keys_B2[:, 0], keys_B2[:, 1]


def check_corruption(corruption):
  """Raises UserError unless `corruption` has three shares that sum to 1."""
  if len(corruption) != 3 or abs(sum(corruption) - 1) > 1e-6:
    raise errors.UserError(
      f'config.masking.corruption is {tuple(corruption)}: three shares that sum to 1 are needed '
      '(mask, random, keep).'
    )


# --- budgets ---


def nearest(length, rate, most=0):
  """int64 [L+1]: predictions of a row of n = 0 … L tokens: max(1, round(rate · n)), halves to even,
  at most `most` (0: no limit).
  """
  counts = np.maximum(np.rint(rate * np.arange(length + 1)), 1).astype(np.int64)
  counts[0] = 0
  return np.minimum(counts, most) if most else counts


def upwards(length, rate):
  """int64 [L+1]: ceil(rate · n) for n = 0 … L tokens, without rounding errors (0.15 · 20 is 3)."""
  return np.ceil(rate * np.arange(length + 1) - 1e-9).astype(np.int64)


# --- lengths ---


def cumulative(weights, field):
  """int64 [N+1]: thresholds for `draw_length`; length n of 1 … N has probability ∝ weights[n−1]."""
  weights = np.asarray(weights, np.float64)
  if not len(weights) or weights.min() < 0 or weights[0] <= 0 or not np.isfinite(weights).all():
    raise errors.UserError(
      f'config.masking.{field} is {tuple(weights.tolist())}: weights of 1, 2, 3, … words are '
      'needed, the first above 0.'
    )
  return np.array(
    [0] + [hashing.threshold(share) // 2 for share in np.cumsum(weights) / weights.sum()], np.int64
  )


def draw_length(random, thresholds, most=None):
  """Random lengths of 1 … N: int64, in the shape of `random`.

  random: random bits, uint32 of any shape. thresholds: from `cumulative`. most: largest length,
  integers ≥ 1 of the same shape; the lengths up to it keep their proportions. None: N.
  """
  last = len(thresholds) - 1
  bound = thresholds[last] if most is None else thresholds.take(np.minimum(most, last))
  value = hashing.below(random, bound)
  return sum((value >= least for least in thresholds[1:-1]), np.ones(value.shape, np.int64))
