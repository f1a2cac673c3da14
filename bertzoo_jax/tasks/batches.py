"""Batches of a task: numpy arrays, a function of (seed, step).

B units of a split, L tokens per row; L is the smallest of the bucket lengths that holds the longest
row.
"""

import numpy as np

from bertzoo_jax.common import hashing

# Lengths of rows: each length in use is one more program to compile.
BUCKETS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)


def buckets(length: int) -> tuple[int, ...]:
  """The lengths that batches of rows of at most `length` tokens may have, ascending."""
  return (*(b for b in BUCKETS if b < length), length)


def rows_of(count: int, step: int, *, batch_size: int, seed: int) -> np.ndarray:
  """The rows of a train batch, int64 [B].

  Example n = step·B + i lies in epoch n div N and is row permutation(seed, epoch)(n mod N). Batches
  cross the borders of epochs.

  count: N, rows of the split.
  """
  n = np.arange(step * batch_size, (step + 1) * batch_size, dtype=np.int64)
  epochs, places = np.divmod(n, count)
  out = np.empty(batch_size, np.int64)
  root = hashing.fold(hashing.new_key(seed), hashing.SHUFFLE)
  for epoch in np.unique(epochs):
    in_epoch = epochs == epoch
    out[in_epoch] = hashing.permute(hashing.fold(root, int(epoch)), count, places[in_epoch])
  return out


def train_batch(
  split, step: int, *, batch_size: int, seed: int, length_buckets, padding: str, pad: int
) -> dict[str, np.ndarray]:
  """The batch of a train step.

  split: Split with labels. step: from 0. length_buckets: ascending lengths (`buckets`). padding:
  left | right. pad: id of the padding token.

  Returns input_ids, token_type_ids, segment_ids (1 token, 0 padding) int32 [B, L]; [B, group, L] of
  a split with groups of rows; the split's features; labels: [B, …] of rows, [B, K] of places, [B,
  L] of tokens; label_weights float32 [B], all 1; of tokens [B, L], 1 where there is a label.
  """
  rows = rows_of(len(split), step, batch_size=batch_size, seed=seed)
  length = _length(split, rows, length_buckets)
  return gathered(split, rows, length=length, padding=padding, pad=pad)


def ordered_batches(split, batch_size: int, *, length_buckets, padding: str, pad: int):
  """Yields (rows, batch) over all rows of a split once, shortest rows first.

  Args: see train_batch.

  Returns rows: int64 [number of real rows], so that `out[rows] = predictions[:len(rows)]` restores
  the order. batch: see train_batch. The last batch is filled with copies of a row, with
  label_weights 0. A split without labels has labels 0.
  """
  order = np.argsort(split.lengths, kind='stable')
  for start in range(0, len(order), batch_size):
    rows = order[start : start + batch_size]
    filled = np.concatenate([rows, np.repeat(rows[:1], batch_size - len(rows))])
    length = _length(split, rows, length_buckets)
    batch = gathered(split, filled, length=length, padding=padding, pad=pad)
    batch['label_weights'][len(rows) :] = 0
    yield rows, batch


def gathered(split, units, *, length: int, padding: str, pad: int) -> dict[str, np.ndarray]:
  """The batch of these units (int64 [B]), padded to `length`; see train_batch."""
  rows = split.rows(units)
  starts, sizes = split.offsets[rows], split.sizes[rows]
  before = length - sizes if padding == 'left' else np.zeros_like(sizes)
  places = np.arange(length) - before[:, None]
  real = (places >= 0) & (places < sizes[:, None])
  at = np.where(real, starts[:, None] + places, 0)
  tokens = {
    'input_ids': np.where(real, split.ids[at], pad),
    'token_type_ids': np.where(real, split.segments[at], 0),
    'segment_ids': real,
    **{name: np.where(real, x[at], 0) for name, x in split.token_features.items()},
  }
  shape = (len(units), length) if split.group == 1 else (len(units), split.group, length)
  return {
    **{name: x.astype(np.int32).reshape(shape) for name, x in tokens.items()},
    **{name: x[units] for name, x in split.features.items()},
    **_labels(split, units, at, real, before),
  }


def _labels(split, units, at, real, before):
  weights = np.ones(len(units), np.float32)
  if split.label_axis == 'tokens':
    labels = np.full(at.shape, -1) if split.labels is None else split.labels[at]
    counted = real & (labels >= 0)
    weights, labels = counted.astype(np.float32), np.where(counted, labels, 0).astype(np.int32)
  elif split.labels is None:
    labels = split.no_labels(len(units))
  elif split.label_axis == 'places':
    labels = (split.labels[units] + before[:, None]).astype(np.int32)
  else:
    labels = split.labels[units]
  return {'labels': labels, 'label_weights': weights}


def _length(split, units, length_buckets) -> int:
  longest = int(split.lengths[units].max())
  return next(b for b in length_buckets if b >= longest)
