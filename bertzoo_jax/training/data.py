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

    count()              counts the rows of an epoch; UserError if there are none
    rows_per_epoch       that number; None where it is not known

  `train` also has

    iterate(first, end)  yields this host's rows, one dict of numpy arrays for each step of the
                         phase in [first, end)
    read(steps)          [common.reading.Reading] of the corpora, of the first steps of the phase

  and each of `held_out`

    evaluation_batches(n)  yields at most n such dicts with fixed masks, the same ones at each call

  Attributes:
    features: {name: (shape of the global batch, dtype)}.
    train: rows to learn from; None: to compile only.
    held_out: {name of the corpus: rows to evaluate on}, '' of the only one; {} without any.
    eval_batches: at most, of each corpus.
    scores: parameters → ({name: score} of each evaluation, number by which they compare); the
      checkpoint with the highest is kept, in place of the one with the lowest held-out loss. None
      without.
    patience: evaluations without a better score after which the run ends; 0 for none.
  """

  features: dict
  train: Any = None
  held_out: dict = {}
  eval_batches: int = 0
  scores: Callable | None = None
  patience: int = 0

  @property
  def batch(self) -> dict:
    """{name: shape struct} of the global batch."""
    import jax  # the --help of pretrain does not wait for it

    return {name: jax.ShapeDtypeStruct(*of) for name, of in self.features.items()}

  def evaluation_batches(self):
    """Yields (name of the corpus, batch) of the held-out rows, the same ones at each call."""
    for name, rows in self.held_out.items():
      for batch in rows.evaluation_batches(self.eval_batches):
        yield name, batch


class Data(NamedTuple):
  """Rows of a run.

  Attributes:
    corpus: the workdir's record of the text: `hash`, which identifies it, and its sizes.
    vocab_size: ids are below it.
    phases: {index of a phase: PhaseData}.
    entropy: of the unigrams of the training text, nats per token; None where not known.
    held_out_sizes: {name of the corpus: (tokens, bytes) of its held-out text}; {} where not known.
    save_tokenizer: folder → copies the tokenizer there.
    tokenizer: folder of its files; None without any.
    driver: what computes batches ahead, for the overview; '' for the loop itself.
  """

  corpus: dict
  vocab_size: int
  phases: dict[int, PhaseData]
  entropy: float | None = None
  held_out_sizes: dict = {}
  save_tokenizer: Callable | None = None
  tokenizer: Any = None
  driver: str = ''


def check_ids(batch: dict, vocab_size: int, where: str) -> None:
  """Raises UserError, beginning with `where`, for values outside their table: on a device they
  would silently give NaN, or the last row of the table.

  batch: of one step. Ids are below vocab_size, positions below the length of the rows, token types
  below 3, labels of pairs 0 or 1. A row without position_ids is one pack, without padding inside:
  kernels rely on it.
  """
  errors.refuse_pack_ids(batch, where)
  length = batch['input_ids'].shape[-1] if 'input_ids' in batch else 0
  of_text = 'the corpus was made with another tokenizer or is damaged; prepare it again'
  ids = 'id', vocab_size, 'the vocabulary ends', of_text
  made = 'the format or the masking has a mistake'
  for name, (kind, end, ends, why) in {
    'input_ids': ids,
    'masked_targets': ids,
    'sampled_ids': ids,
    'masked_positions': ('position', length, 'they end', made),
    'token_type_ids': ('token type', _TOKEN_TYPES, 'they end', made),
    'pair_labels': ('label', 2, 'they end', made),
    'causal': ('label', 2, 'they end', made),
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
  """Nats a token of a unigram distribution, from its counts [V]."""
  share = counts[counts > 0] / max(counts.sum(), 1)
  return float(-np.sum(share * np.log(share)))
