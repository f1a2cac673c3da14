"""Disentangled attention: scores of content and of relative position (He et al. 2020 §3.1).

Legend: B batch, L length, P predictions, D width, H heads, K head width, T rows of the relative
table, U the rows of it that are used, R = 2L − 1 distances of two tokens.
"""

import functools
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax
import numpy as np
from flax import linen as nn

from bertzoo_jax.common import row_keys
from bertzoo_jax.model import attention
from bertzoo_jax.model import layers


class Relation(NamedTuple):
  """Relative positions, as attention reads them."""

  # the rows of the relative table that are used, float32; None without relative terms
  table_UD: jax.Array | None
  # static; for each of attention.distances, the index of its row in table_UD
  which_R: np.ndarray | None
  # dropout key of the table; None without dropout. All rows of the batch read the same table after
  # dropout (code of the release), so it is projected once.
  key_2: jax.Array | None
  rate: float  # dropout rate of the table

  def with_key_of(self, number):
    """The Relation with its dropout key folded with `number`."""
    return self if self.key_2 is None else self._replace(key_2=row_keys.fold_in(self.key_2, number))

  def dropped(self):
    """table_UD after its dropout."""
    return layers.dropout(self.table_UD, self.rate, self.key_2)


class DisentangledAttention(nn.Module):
  """Multi-head attention with relative terms (He et al. 2020 §3.1)."""

  num_heads: int  # H, which divides the width
  dropout_rate: float  # dropout rate of the attention probabilities
  kernel_init: Callable
  dtype: Any
  # content_to_position, position_to_content: which relative terms the scores have
  content_to_position: bool
  position_to_content: bool
  # whether `key` and `query`, which project contents, also project the table; else further
  # projections do
  shared_projections: bool
  key_bias: bool  # whether keys have a bias

  @nn.compact
  def __call__(self, x_BLD, visible, dropout_keys_B2, ops, relation, keys_values=()):
    """y_BLD, the output of self-attention for x_BLD.

    With keys_values = (k_BLHK, v_BLHK): y_BPD of queries x_BPD over these keys and values.
    With `visible` None: only (k_BLHK, v_BLHK) of x_BLD.
    """
    width = x_BLD.shape[-1]
    heads = (self.num_heads, width // self.num_heads)
    dense = layers.dense_of(self, ops)
    query, value = dense(heads, name='query'), dense(heads, name='value')
    key = dense(heads, use_bias=self.key_bias, name='key')
    pin = functools.partial(ops.constrain, 'heads')
    k_BLHK, v_BLHK = keys_values or (pin(key(x_BLD)), pin(value(x_BLD)))
    if visible is None:
      return k_BLHK, v_BLHK

    tables = {}
    if self.content_to_position or self.position_to_content:
      table_UD = relation.dropped()
    if self.content_to_position:
      project = key
      if not self.shared_projections:
        project = dense(heads, use_bias=False, name='position_key')
      tables['c2p_RHK'] = project(table_UD)
    if self.position_to_content:
      project = query if self.shared_projections else dense(heads, name='position_query')
      tables['p2c_RHK'] = project(table_UD)

    out_BLHK = ops.attend(
      pin(query(x_BLD)),
      k_BLHK,
      v_BLHK,
      visible,
      self.dropout_rate,
      dropout_keys_B2,
      attention.Relative(**tables, row_R=relation.which_R) if tables else None,
      (heads[1] * (1 + len(tables))) ** -0.5,
    )
    return dense((width,), in_axes=2, input_name='attended', name='output')(pin(out_BLHK))


def buckets_of(distances: np.ndarray, buckets: int, max_distance: int) -> np.ndarray:
  """The signed bucket of each distance (code of the release, make_log_bucket_position). Up to
  buckets / 2 it is the distance, above it grows in logarithmic steps. Computed on the host in
  float64.
  """
  middle = buckets // 2
  size = np.maximum(np.abs(distances), middle).astype(np.float64)
  steps = np.log(size / middle) / np.log((max_distance - 1) / middle) * (middle - 1)
  far = np.sign(distances) * (np.ceil(steps).astype(np.int64) + middle)
  return np.where(np.abs(distances) <= middle, distances, far)


def table_rows(length: int, max_distance: int, buckets: int = 0) -> np.ndarray:
  """Row of the relative table for each distance of two tokens of a row, in attend's order.

  length: L. max_distance: distances of at least max_distance share the outermost rows. buckets:
  number of rows to each side; 0 for a row per distance.
  """
  distances, half = attention.distances(length, length), buckets or max_distance
  if buckets:
    distances = buckets_of(distances, buckets, max_distance)
  return np.clip(distances + half, 0, 2 * half - 1)
