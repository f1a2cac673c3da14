"""Hugging Face's names: one ordered table per architecture, read in both directions.

A row pairs a parameter's path with a tensor's name, and says how one becomes the other. `{i}` in the name is a layer: the
parameter is then stacked over a leading layer axis, the tensors are one a layer. Everything here is numpy.

torch keeps a dense weight as (out, in) and flat over heads; here kernels are (in, out) and heads have their own axis.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bertzoo_jax import errors


class Sizes(NamedTuple):
  """What a transform must know besides the array.

  Attributes:
    num_heads: attention heads.
    num_layers: layers of the stack.
    hidden_size: model width.
    position_offset: rows in front of the position of the first token (RoBERTa counts from pad id + 1).
  """
  num_heads: int
  num_layers: int
  hidden_size: int
  position_offset: int


class Transform(NamedTuple):
  """A change of layout and its inverse: (array, sizes) → array, for one layer."""
  to_theirs: Callable
  to_ours: Callable


SAME = Transform(lambda x, s: x, lambda y, s: y)
KERNEL = Transform(lambda x, s: x.T, lambda y, s: y.T)
HEADS_KERNEL = Transform(  # [D, H, K] and [H·K, D]
    lambda x, s: x.reshape(x.shape[0], -1).T, lambda y, s: y.T.reshape(y.shape[1], s.num_heads, -1))
HEADS_BIAS = Transform(  # [H, K] and [H·K]
    lambda x, s: x.reshape(-1), lambda y, s: y.reshape(s.num_heads, -1))
FROM_HEADS_KERNEL = Transform(  # [H, K, D] and [D, H·K]
    lambda x, s: x.reshape(-1, x.shape[-1]).T, lambda y, s: y.T.reshape(s.num_heads, -1, y.shape[0]))
POSITIONS = Transform(  # the rows in front belong to padding: zeros
    lambda x, s: np.concatenate([np.zeros((s.position_offset, x.shape[1]), x.dtype), x]), lambda y, s: y[s.position_offset:])


class Row(NamedTuple):
  """A parameter's path, the tensor's name, and how the one becomes the other."""
  ours: str
  theirs: str
  transform: Transform = SAME


class Architecture(NamedTuple):
  """A class of transformers.

  Attributes:
    model_type: its config's name.
    rows: the name table; the first row whose path or name matches counts.
    segment_rows: rows of the segment table that is written where the encoder has none (all zeros).
    positions_after_padding: whether positions count from pad id + 1 (else from 0).
    head_activation: the activation its MLM head always has, or None if it is the encoder's.
    tied: tensors that are another tensor again, not written, and ignored when read: {name: the other}.
  """
  model_type: str
  rows: tuple[Row, ...]
  segment_rows: int
  positions_after_padding: bool
  head_activation: str | None
  tied: dict[str, str]


def _norm(ours: str, theirs: str) -> tuple[Row, ...]:
  return Row(f'{ours}/scale', f'{theirs}.weight'), Row(f'{ours}/bias', f'{theirs}.bias')


def _dense(ours: str, theirs: str, kernel=KERNEL, bias=SAME) -> tuple[Row, ...]:
  return Row(f'{ours}/kernel', f'{theirs}.weight', kernel), Row(f'{ours}/bias', f'{theirs}.bias', bias)


def _encoder(prefix: str) -> tuple[Row, ...]:
  """Embeddings and layers as BERT and all that descend from its code name them."""
  at, embeddings, layer, layers = 'encoder/embeddings', f'{prefix}.embeddings', f'{prefix}.encoder.layer.{{i}}', 'encoder/layers'
  return (
      Row(f'{at}/word/embedding', f'{embeddings}.word_embeddings.weight'),
      Row(f'{at}/position/embedding', f'{embeddings}.position_embeddings.weight', POSITIONS),
      Row(f'{at}/type/embedding', f'{embeddings}.token_type_embeddings.weight'),
      *_norm(f'{at}/norm', f'{embeddings}.LayerNorm'),
      *_dense(f'{layers}/attention/query', f'{layer}.attention.self.query', HEADS_KERNEL, HEADS_BIAS),
      *_dense(f'{layers}/attention/key', f'{layer}.attention.self.key', HEADS_KERNEL, HEADS_BIAS),
      *_dense(f'{layers}/attention/value', f'{layer}.attention.self.value', HEADS_KERNEL, HEADS_BIAS),
      *_dense(f'{layers}/attention/output', f'{layer}.attention.output.dense', FROM_HEADS_KERNEL),
      *_norm(f'{layers}/attention_norm', f'{layer}.attention.output.LayerNorm'),
      *_dense(f'{layers}/feed_forward/in', f'{layer}.intermediate.dense'),
      *_dense(f'{layers}/feed_forward/out', f'{layer}.output.dense'),
      *_norm(f'{layers}/feed_forward_norm', f'{layer}.output.LayerNorm'),
  )


def _bert(*heads: Row) -> Architecture:
  mlm = (
      *_dense('mlm_head/transform', 'cls.predictions.transform.dense'),
      *_norm('mlm_head/norm', 'cls.predictions.transform.LayerNorm'),
      Row('mlm_head/bias', 'cls.predictions.bias'),
  )
  tied = {'cls.predictions.decoder.weight': 'bert.embeddings.word_embeddings.weight', 'cls.predictions.decoder.bias': 'cls.predictions.bias'}
  # Two segment rows although they are zeros: tokenizers of BERT's kind send segment 1 for the second text.
  return Architecture('bert', (*_encoder('bert'), *mlm, *heads), 2, False, None, tied)


ARCHITECTURES = {
    'BertForPreTraining': _bert(*_dense('pair_head/pooler', 'bert.pooler.dense'), *_dense('pair_head/classifier', 'cls.seq_relationship')),
    'BertForMaskedLM': _bert(),
    'RobertaForMaskedLM': Architecture(
        'roberta',
        (*_encoder('roberta'), *_dense('mlm_head/transform', 'lm_head.dense'), *_norm('mlm_head/norm', 'lm_head.layer_norm'),
         Row('mlm_head/bias', 'lm_head.bias')),
        1, True, 'gelu',
        {'lm_head.decoder.weight': 'roberta.embeddings.word_embeddings.weight', 'lm_head.decoder.bias': 'lm_head.bias'}),
}

# The architecture whose table reads a checkpoint of a model type: the one with most rows.
READERS = {'bert': 'BertForPreTraining', 'roberta': 'RobertaForMaskedLM'}

TYPE_TABLE = 'encoder/embeddings/type/embedding'
POSITION_TABLE = 'encoder/embeddings/position/embedding'
WORD_TABLE = 'encoder/embeddings/word/embedding'


def choose(name: str) -> Architecture:
  """The architecture of a name. Raises UserError for one without a table."""
  return errors.choose(name, ARCHITECTURES, 'Hugging Face architecture')


def fitting(paths, activation: str | None = None) -> list[str]:
  """Names of the architectures that hold exactly the parameters at `paths` (a segment table may be absent) and, where one
  is given, have the activation."""
  return [name for name, a in ARCHITECTURES.items() if not any(misfits(name, paths)) and (
      activation is None or a.head_activation in (None, activation))]


def misfits(name: str, paths) -> tuple[list[str], list[str]]:
  """(paths without a place in the architecture, its places without a parameter), each sorted."""
  paths, places = set(paths), {row.ours for row in choose(name).rows}
  return sorted(paths - places), sorted(places - paths - {TYPE_TABLE})


def check(name: str, paths) -> None:
  """Raises UserError unless every parameter has a place in the architecture, and the architecture no place left empty."""
  homeless, empty = misfits(name, paths)
  if homeless or empty:
    what = f'has no place for {homeless[0]!r}' if homeless else f'needs {empty[0]!r}, which was not trained'
    fits = fitting(paths)
    remedy = f'--architecture={fits[0]} fits.' if fits else 'No architecture known here fits.'
    raise errors.UserError(f'{name} {what}. {remedy}')


def to_hf(name: str, params: dict, sizes: Sizes) -> dict[str, np.ndarray]:
  """Tensors by Hugging Face name. params: flat, by path; layers stacked. Raises UserError as `check` does."""
  check(name, params)
  architecture, tensors = choose(name), {}
  for row in architecture.rows:
    if row.ours not in params:  # the segment table
      tensors[row.theirs] = np.zeros((architecture.segment_rows, sizes.hidden_size), np.float32)
      continue
    x = np.asarray(params[row.ours], np.float32)
    for theirs, part in zip(_names(row, sizes), x if '{i}' in row.theirs else [x], strict=True):
      tensors[theirs] = np.ascontiguousarray(row.transform.to_theirs(part, sizes))
  return tensors


def to_ours(name: str, tensors: dict, sizes: Sizes) -> tuple[dict[str, np.ndarray], list[str]]:
  """Parameters by path, float32, and the names of the tensors that no row reads.

  A segment table of one row is the same vector for every token: it is added to the positions, and no parameter of ours.
  Raises UserError for a tensor that only some layers have.
  """
  params, used = {}, set()
  for row in choose(name).rows:
    theirs = _names(row, sizes)
    found = [t for t in theirs if t in tensors]
    if not found:
      continue
    if len(found) < len(theirs):
      missing = next(t for t in theirs if t not in tensors)
      raise errors.UserError(f'The checkpoint lacks {missing!r} but has {found[0]!r}: it is incomplete; download or export it again.')
    parts = [np.ascontiguousarray(row.transform.to_ours(np.asarray(tensors[t], np.float32), sizes)) for t in theirs]
    params[row.ours] = np.stack(parts) if '{i}' in row.theirs else parts[0]
    used.update(theirs)
  if TYPE_TABLE in params and POSITION_TABLE in params and len(params[TYPE_TABLE]) == 1:
    params[POSITION_TABLE] = params[POSITION_TABLE] + params.pop(TYPE_TABLE)
  return params, sorted(set(tensors) - used)


def _names(row: Row, sizes: Sizes) -> list[str]:
  return [row.theirs.format(i=i) for i in range(sizes.num_layers)] if '{i}' in row.theirs else [row.theirs]
