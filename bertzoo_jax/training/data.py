"""The data of a run, and checks of its batches."""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import numpy as np

from bertzoo_jax.common import errors

_TOKEN_TYPES = 3  # the most any network of the zoo tells apart


class PhaseData(NamedTuple):
  """Rows of one phase.

  `train`, and each of `held_out`, has

    count()              counts the rows of an epoch; raises UserError for 0
    rows_per_epoch       that number; None if unknown

  `train` also has

    iterate(first, end)  yields this host's rows, one dict of numpy arrays for each step of the
                         phase in [first, end)
    read(steps)          [common.amounts.Reading] of each corpus, for the first steps of the phase

  and each of `held_out`

    evaluation_batches(n)  yields at most n such dicts with fixed masks, the same ones at each call
  """

  features: dict  # {name: (shape of the global batch, dtype)}
  train: Any = None  # rows to learn from; None: compile only
  # {name of the corpus ('' for a single one): rows to evaluate on}; {} if there are none
  held_out: dict = {}
  eval_batches: int = 0  # most batches per evaluation and corpus
  # parameters → ({name: score}, the number that ranks checkpoints); the checkpoint with the highest
  # is kept, in place of the one with the lowest held-out loss. None: no scores.
  scores: Callable | None = None
  # the run ends after this number of evaluations without a better score; 0: never
  patience: int = 0

  @property
  def batch(self) -> dict:
    """{name: shape struct} of the global batch."""
    import jax  # the --help of pretrain does not wait for it

    return {name: jax.ShapeDtypeStruct(*shape_dtype) for name, shape_dtype in self.features.items()}

  def evaluation_batches(self):
    """Yields (name of the corpus, batch) of the held-out rows, the same ones at each call."""
    for name, rows in self.held_out.items():
      for batch in rows.evaluation_batches(self.eval_batches):
        yield name, batch


class Data(NamedTuple):
  """Rows of a run."""

  corpus: dict  # the workdir's record of the text: `hash`, which identifies it, and its sizes
  vocab_size: int  # ids are below this
  phases: dict[int, PhaseData]  # {index of a phase: PhaseData}
  # entropy of the unigrams of the training text, nats per token; None if unknown
  entropy: float | None = None
  # {name of the corpus: (tokens, bytes) of its held-out text}; {} if unknown
  held_out_sizes: dict = {}
  save_tokenizer: Callable | None = None  # folder → copies the tokenizer there
  tokenizer: Any = None  # folder of its files, or None
  driver: str = ''  # name of the library that computes batches ahead, for the overview; '' for none


def check_ids(batch: dict, vocab_size: int, where: str) -> None:
  """Raises UserError, beginning with `where`, for values outside their table: on a device they
  would silently give NaN, or the last row of the table.

  batch: of one step. Ids must be below vocab_size, positions below the length of the rows, token
  types below 3, labels of pairs 0 or 1. A row without position_ids must be one segment without
  padding inside: kernels rely on this.
  """
  errors.refuse_pack_ids(batch, where)
  length = batch['input_ids'].shape[-1] if 'input_ids' in batch else 0
  wrong_corpus = 'the corpus was made with another tokenizer or is damaged; prepare it again'
  ids = 'id', vocab_size, 'the vocabulary ends', wrong_corpus
  wrong_part = 'the format or the masking has a mistake'
  for name, (kind, end, ends, why) in {
    'input_ids': ids,
    'masked_targets': ids,
    'sampled_ids': ids,
    'masked_positions': ('position', length, 'they end', wrong_part),
    'token_type_ids': ('token type', _TOKEN_TYPES, 'they end', wrong_part),
    'pair_labels': ('label', 2, 'they end', wrong_part),
    'causal': ('label', 2, 'they end', wrong_part),
  }.items():
    if name in batch and batch[name].size:
      low, high = int(batch[name].min()), int(batch[name].max())
      if low < 0 or high >= end:
        raise errors.UserError(
          f'{where}: {name} has the {kind} {low if low < 0 else high}, {ends} at {end - 1}: {why}.'
        )
  if 'segment_ids' in batch and 'position_ids' not in batch:
    real = batch['segment_ids'] > 0
    borders = np.count_nonzero(np.diff(real, axis=-1, prepend=False, append=False), axis=-1)
    if (batch['segment_ids'] > 1).any() or (borders > 2).any():
      raise errors.UserError(
        f'{where}: a row has several packs, or padding between tokens, and no position_ids: write '
        'them (Format.packed).'
      )


def entropy(counts: np.ndarray) -> float:
  """Entropy of a unigram distribution in nats per token, from its counts [V]."""
  share = counts[counts > 0] / max(counts.sum(), 1)
  return float(-np.sum(share * np.log(share)))
