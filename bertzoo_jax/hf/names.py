"""Hugging Face's names: one ordered table per architecture, read in both directions.

A row pairs a parameter's path with a tensor's name, and says how one becomes the other. `{i}` in
the name is a layer (`{g}` and `{j}`: a group, and a block within): the parameter then has its
copies in a leading axis, and what layers share is written for each of them where the architecture
has no sharing. Everything here is numpy.

torch keeps a dense weight as (out, in) and flat over heads; here kernels are (in, out) and heads
have their own axis.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bertzoo_jax.common import errors


class Sizes(NamedTuple):
  """What a transform must know besides the array.

  Attributes:
    num_heads: attention heads.
    hidden_size: width of the layers.
    table_width: of the embeddings.
    position_offset: rows in front of the position of the first token (RoBERTa counts from pad id +
      1).
    num_layers, num_groups, inner_group_num: of the stack; layers of a group may share, a layer is
      inner_group_num blocks.
    blocks: how many blocks there are tensors of.
  """

  num_heads: int
  hidden_size: int
  table_width: int
  position_offset: int
  num_layers: int
  num_groups: int
  inner_group_num: int
  blocks: int


class Transform(NamedTuple):
  """A change of layout and its inverse: (array, sizes) → array, for one layer."""

  to_theirs: Callable
  to_ours: Callable


SAME = Transform(lambda x, s: x, lambda y, s: y)
KERNEL = Transform(lambda x, s: x.T, lambda y, s: y.T)
HEADS_KERNEL = Transform(  # [D, H, K] and [H·K, D]
  lambda x, s: x.reshape(x.shape[0], -1).T, lambda y, s: y.T.reshape(y.shape[1], s.num_heads, -1)
)
HEADS_BIAS = Transform(  # [H, K] and [H·K]
  lambda x, s: x.reshape(-1), lambda y, s: y.reshape(s.num_heads, -1)
)
FROM_HEADS_KERNEL = Transform(  # [H, K, D] and [D, H·K]
  lambda x, s: x.reshape(-1, x.shape[-1]).T, lambda y, s: y.T.reshape(s.num_heads, -1, y.shape[0])
)
POSITIONS = Transform(  # the rows in front belong to padding: zeros
  lambda x, s: np.concatenate([np.zeros((s.position_offset, x.shape[1]), x.dtype), x]),
  lambda y, s: y[s.position_offset :],
)


class Row(NamedTuple):
  """A parameter's path, the tensor's name, and how the one becomes the other.

  absent: sizes → the tensor that is written where the encoder lacks the parameter, or None for no
  tensor; None for a parameter that must be there.
  """

  ours: str
  theirs: str
  transform: Transform = SAME
  absent: Callable | None = None


class Architecture(NamedTuple):
  """A class of transformers.

  Attributes:
    model_type: its config's name.
    rows: the name table; the first row whose path or name matches counts.
    segment_rows: rows of the segment table that is written where the encoder has none (all zeros).
    positions_after_padding: whether positions count from pad id + 1 (else from 0).
    head_activation: the activation its MLM head always has, or None if it is the encoder's.
    tied: tensors that are another tensor again, not written, and ignored when read: {name: the
      other}.
    groups: whether it has groups of layers that share all.
  """

  model_type: str
  rows: tuple[Row, ...]
  segment_rows: int
  positions_after_padding: bool
  head_activation: str | None
  tied: dict[str, str]
  groups: bool = False


def _norm(ours: str, theirs: str) -> tuple[Row, ...]:
  return Row(f'{ours}/scale', f'{theirs}.weight'), Row(f'{ours}/bias', f'{theirs}.bias')


def _dense(ours: str, theirs: str, kernel=KERNEL, bias=SAME) -> tuple[Row, ...]:
  return Row(f'{ours}/kernel', f'{theirs}.weight', kernel), Row(
    f'{ours}/bias', f'{theirs}.bias', bias
  )


def _embeddings(prefix: str, segment_rows: int) -> tuple[Row, ...]:
  """The tables and their norm."""
  at, embeddings = 'encoder/embeddings', f'{prefix}.embeddings'
  return (
    Row(f'{at}/word/embedding', f'{embeddings}.word_embeddings.weight'),
    Row(f'{at}/position/embedding', f'{embeddings}.position_embeddings.weight', POSITIONS),
    Row(
      f'{at}/type/embedding',
      f'{embeddings}.token_type_embeddings.weight',
      SAME,
      lambda s: np.zeros((segment_rows, s.table_width), np.float32),
    ),
    *_norm(f'{at}/norm', f'{embeddings}.LayerNorm'),
  )


def _projection(theirs: str, absent_kernel: Callable, absent_bias: Callable) -> tuple[Row, ...]:
  at = 'encoder/embedding_projection'
  return Row(f'{at}/kernel', f'{theirs}.weight', KERNEL, absent_kernel), Row(
    f'{at}/bias', f'{theirs}.bias', SAME, absent_bias
  )


def _encoder(prefix: str, segment_rows: int) -> tuple[Row, ...]:
  """Embeddings and layers as BERT and all that descend from its code name them."""
  layer, layers = f'{prefix}.encoder.layer.{{i}}', 'encoder/layers'
  return (
    *_embeddings(prefix, segment_rows),
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
  tied = {
    'cls.predictions.decoder.weight': 'bert.embeddings.word_embeddings.weight',
    'cls.predictions.decoder.bias': 'cls.predictions.bias',
  }
  # Two segment rows although they are zeros: tokenizers of BERT's kind send segment 1 for the
  # second text.
  return Architecture('bert', (*_encoder('bert', 2), *mlm, *heads), 2, False, None, tied)


def _albert(*heads: Row) -> Architecture:
  layer, layers = 'albert.encoder.albert_layer_groups.{g}.albert_layers.{j}', 'encoder/layers'
  rows = (
    *_embeddings('albert', 2),
    # Tables as wide as the layers have no projection here; there it is the identity.
    *_projection(
      'albert.encoder.embedding_hidden_mapping_in',
      lambda s: np.eye(s.hidden_size, dtype=np.float32),
      lambda s: np.zeros(s.hidden_size, np.float32),
    ),
    *_dense(f'{layers}/attention/query', f'{layer}.attention.query', HEADS_KERNEL, HEADS_BIAS),
    *_dense(f'{layers}/attention/key', f'{layer}.attention.key', HEADS_KERNEL, HEADS_BIAS),
    *_dense(f'{layers}/attention/value', f'{layer}.attention.value', HEADS_KERNEL, HEADS_BIAS),
    *_dense(f'{layers}/attention/output', f'{layer}.attention.dense', FROM_HEADS_KERNEL),
    *_norm(f'{layers}/attention_norm', f'{layer}.attention.LayerNorm'),
    *_dense(f'{layers}/feed_forward/in', f'{layer}.ffn'),
    *_dense(f'{layers}/feed_forward/out', f'{layer}.ffn_output'),
    *_norm(f'{layers}/feed_forward_norm', f'{layer}.full_layer_layer_norm'),
    *_dense('mlm_head/transform', 'predictions.dense'),
    *_norm('mlm_head/norm', 'predictions.LayerNorm'),
    Row('mlm_head/bias', 'predictions.bias'),
  )
  tied = {
    'predictions.decoder.weight': 'albert.embeddings.word_embeddings.weight',
    'predictions.decoder.bias': 'predictions.bias',
  }
  return Architecture('albert', (*rows, *heads), 2, False, None, tied, groups=True)


def _electra(
  *heads: Row, head_activation: str | None = None, tied: tuple[tuple[str, str], ...] = ()
) -> Architecture:
  none = lambda s: None
  rows = (*_encoder('electra', 2), *_projection('electra.embeddings_project', none, none), *heads)
  return Architecture('electra', rows, 2, False, head_activation, dict(tied))


ARCHITECTURES = {
  'BertForPreTraining': _bert(
    *_dense('pair_head/pooler', 'bert.pooler.dense'),
    *_dense('pair_head/classifier', 'cls.seq_relationship'),
  ),
  'BertForMaskedLM': _bert(),
  'RobertaForMaskedLM': Architecture(
    'roberta',
    (
      *_encoder('roberta', 1),
      *_dense('mlm_head/transform', 'lm_head.dense'),
      *_norm('mlm_head/norm', 'lm_head.layer_norm'),
      Row('mlm_head/bias', 'lm_head.bias'),
    ),
    1,
    True,
    'gelu',
    {
      'lm_head.decoder.weight': 'roberta.embeddings.word_embeddings.weight',
      'lm_head.decoder.bias': 'lm_head.bias',
    },
  ),
  'ElectraForPreTraining': _electra(
    *_dense('replaced_head/dense', 'discriminator_predictions.dense'),
    *_dense('replaced_head/score/classifier', 'discriminator_predictions.dense_prediction'),
  ),
  'ElectraForMaskedLM': _electra(
    *_dense('mlm_head/transform', 'generator_predictions.dense'),
    *_norm('mlm_head/norm', 'generator_predictions.LayerNorm'),
    Row('mlm_head/bias', 'generator_lm_head.bias'),
    head_activation='gelu',
    tied=(('generator_lm_head.weight', 'electra.embeddings.word_embeddings.weight'),),
  ),
  'AlbertForPreTraining': _albert(
    *_dense('pair_head/pooler', 'albert.pooler'),
    *_dense('pair_head/classifier', 'sop_classifier.classifier'),
  ),
  'AlbertForMaskedLM': _albert(),
}

# The architectures whose tables read a checkpoint of a model type: the one that it names, else the
# first.
READERS = {
  'bert': ('BertForPreTraining',),
  'roberta': ('RobertaForMaskedLM',),
  'albert': ('AlbertForPreTraining',),
  'electra': ('ElectraForPreTraining', 'ElectraForMaskedLM'),
}

TYPE_TABLE = 'encoder/embeddings/type/embedding'
POSITION_TABLE = 'encoder/embeddings/position/embedding'
WORD_TABLE = 'encoder/embeddings/word/embedding'
PROJECTION = 'encoder/embedding_projection/kernel'


def choose(name: str) -> Architecture:
  """The architecture of a name. Raises UserError for one without a table."""
  return errors.choose(name, ARCHITECTURES, 'Hugging Face architecture')


def fitting(paths, activation: str | None = None) -> list[str]:
  """Names of the architectures that hold exactly the parameters at `paths` (segment table and
  projection may be absent) and, where one is given, have the activation; the likeliest first."""
  return [
    name
    for name, a in ARCHITECTURES.items()
    if not any(misfits(name, paths))
    and (activation is None or a.head_activation in (None, activation))
  ]


def misfits(name: str, paths) -> tuple[list[str], list[str]]:
  """(paths without a place in the architecture, its places without a parameter), each sorted."""
  paths, rows = set(paths), choose(name).rows
  return sorted(paths - {row.ours for row in rows}), sorted(
    {row.ours for row in rows if row.absent is None} - paths
  )


def check(name: str, paths) -> None:
  """Raises UserError unless every parameter has a place in the architecture, and the architecture
  no place left empty.
  """
  homeless, empty = misfits(name, paths)
  if homeless or empty:
    what = (
      f'has no place for {homeless[0]!r}'
      if homeless
      else f'needs {empty[0]!r}, which was not trained'
    )
    fits = fitting(paths)
    remedy = f'--architecture={fits[0]} fits.' if fits else 'No architecture known here fits.'
    raise errors.UserError(f'{name} {what}. {remedy}')


def to_hf(name: str, params: dict, sizes: Sizes) -> dict[str, np.ndarray]:
  """Tensors by Hugging Face name. params: flat, by path; layers stacked. Raises UserError as
  `check` does.
  """
  check(name, params)
  tensors = {}
  for row in choose(name).rows:
    if row.ours not in params:
      if (x := row.absent(sizes)) is not None:
        tensors[row.theirs] = x
      continue
    x = np.asarray(params[row.ours], np.float32)
    for theirs, part in zip(
      _names(row, sizes), _for_each_block(x, sizes) if '{' in row.theirs else [x], strict=True
    ):
      tensors[theirs] = np.ascontiguousarray(row.transform.to_theirs(part, sizes))
  return tensors


def _for_each_block(x, sizes: Sizes):
  """The copies of a parameter, one for each block that is written."""
  if len(x) == sizes.blocks:
    return x
  layer, block = np.divmod(np.arange(sizes.blocks), sizes.inner_group_num)
  return x[layer * sizes.num_groups // sizes.num_layers * sizes.inner_group_num + block]


def to_ours(name: str, tensors: dict, sizes: Sizes) -> tuple[dict[str, np.ndarray], list[str]]:
  """Parameters by path, float32, and the names of the tensors that no row reads.

  A segment table of one row is the same vector for every token: it is added to the positions, and
  no parameter of ours. Raises UserError for a tensor that only some layers have, and for a
  projection that the encoder would not have.
  """
  params, used = {}, set()
  for row in choose(name).rows:
    theirs = _names(row, sizes)
    found = [t for t in theirs if t in tensors]
    if not found:
      continue
    if len(found) < len(theirs):
      missing = next(t for t in theirs if t not in tensors)
      raise errors.UserError(
        f'The checkpoint lacks {missing!r} but has {found[0]!r}: it is incomplete; download or '
        'export it again.'
      )
    parts = [
      np.ascontiguousarray(row.transform.to_ours(np.asarray(tensors[t], np.float32), sizes))
      for t in theirs
    ]
    params[row.ours] = np.stack(parts) if '{' in row.theirs else parts[0]
    used.update(theirs)
  if TYPE_TABLE in params and POSITION_TABLE in params and len(params[TYPE_TABLE]) == 1:
    params[POSITION_TABLE] = params[POSITION_TABLE] + params.pop(TYPE_TABLE)
  if sizes.table_width == sizes.hidden_size and PROJECTION in params:
    kernel, bias = params.pop(PROJECTION), params.pop(PROJECTION.replace('kernel', 'bias'))
    if bias.any() or not np.array_equal(kernel, np.eye(len(kernel))):
      raise errors.UserError(
        'The checkpoint has tables as wide as its layers and a projection between them, which an '
        'encoder here has only where '
        'the widths differ: it cannot be read.'
      )
  return params, sorted(set(tensors) - used)


def _names(row: Row, sizes: Sizes) -> list[str]:
  if '{' not in row.theirs:
    return [row.theirs]
  return [
    row.theirs.format(i=i, g=i // sizes.inner_group_num, j=i % sizes.inner_group_num)
    for i in range(sizes.blocks)
  ]
