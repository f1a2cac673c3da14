"""The data of a run, as plain values: a corpus behind its pipeline, or a file of batches."""

import json
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import numpy as np

from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.common import storage

_SEGMENTS = 3  # the most any network of the zoo tells apart
_TOKENS = ('input_ids', 'segment_ids', 'pack_ids', 'position_ids', 'order')  # [B, L]
_PREDICTIONS = ('masked_positions', 'masked_targets', 'masked_weights', 'sampled_ids')  # [B, P]


class PhaseData(NamedTuple):
  """Batches of one phase. Of stand-in text it has the features alone.

  Attributes:
    features: {name: (shape of the global batch, dtype)}.
    batches: (first, end) → iterator of this host's rows, one dict of numpy arrays for each step of
      the phase in [first, end).
    held_out: () → iterator of (name of the corpus, such a dict with fixed masks), the same ones at
      each call; empty without held-out text. The name is '' where there is one corpus.
    rows_per_epoch: rows, or None where it is not known.
    scores: parameters → {name: score}, of each evaluation; the checkpoint in which the first is
      highest is kept, in place of the one with the lowest held-out loss. None without.
    patience: evaluations without a better score after which the run ends; 0 for none.
    read: number of first steps of the phase → [common.reading.Reading] of the corpora; None where
      it is not known.
  """

  features: dict
  batches: Callable | None = None
  held_out: Callable | None = None
  rows_per_epoch: int | None = None
  read: Callable | None = None
  scores: Callable | None = None
  patience: int = 0


class Data(NamedTuple):
  """Batches of a run.

  Attributes:
    corpus: the workdir's record of the text: `hash`, which identifies it, and its sizes.
    vocab_size: ids are below it.
    last_step: no batches from here on; None for no end.
    entropy: of the unigrams of the training text, nats per token; None where not known.
    held_out_sizes: {name of the corpus: (tokens, bytes) of its held-out text}; {} where not known.
    phase: Phase of the config → PhaseData.
    trial: the same over stand-in text, at no cost: right in its features and refusals.
    save_tokenizer: folder → copies the tokenizer there.
    tokenizer: folder of its files; None without any.
    source: the file of batches; None for a corpus.
  """

  corpus: dict
  vocab_size: int
  last_step: int | None
  entropy: float | None
  held_out_sizes: dict
  phase: Callable
  trial: Callable
  save_tokenizer: Callable
  tokenizer: Any = None
  source: str | None = None

  def still_to_come(self, phases) -> str | None:
    """The sentence about steps beyond a file of batches, and the line that writes them; or None."""
    following = [p for p in phases if self.last_step is not None and p.end_step > self.last_step]
    if not following:
      return None
    first = max(following[0].first_step, self.last_step)
    return (
      f'{self.source} ended: steps {first:,} to {following[-1].end_step - 1:,} are still to come; '
      f'{_line(first, following[0].end_step)} writes the next ones, and --batches FILE goes on '
      'with them.'
    )


def from_file(path, config, host: tuple[int, int] = (0, 1)) -> Data:
  """The batches that `show --npz` wrote: needs no corpus and no TensorFlow.

  path: .npz with arrays [steps, B, …] by feature, and __meta__ with vocab_size, corpus_hash, steps,
  batch_size, length, phase; newer ones also have tokenizer_hash and the sections tokenizer and
  corpus. host: index and count; a host reads its own rows. Raises UserError for another file, or
  one of another vocabulary, tokenizer, batch size, length or phase, or with ids out of range.
  """
  meta, arrays = _read(path)
  first, end = meta['steps']
  configuration.check_text(f'The file {path}', meta, config.tokenizer, config.corpus)
  check_ids(arrays, meta['vocab_size'], str(path))
  rows = meta['batch_size'] // host[1]
  mine = slice(host[0] * rows, (host[0] + 1) * rows)

  def phase(phase):
    if phase.index != meta['phase']:
      raise _other_steps(path, meta, phase, phase.first_step, phase.end_step)
    if phase.config.batch_size != meta['batch_size']:
      raise errors.UserError(
        f'{path} has batches of {meta["batch_size"]} rows, the phase has '
        f'{phase.config.batch_size}: use the config that the file was written with.'
      )
    if phase.config.length != meta['length']:
      raise errors.UserError(
        f'{path} has rows of {meta["length"]} tokens, the phase of {phase.config.length}: use the '
        'config it was written with.'
      )

    def batches(a, b):
      if phase.first_step + a < first or phase.first_step + b > end:
        raise _other_steps(path, meta, phase, phase.first_step + a, phase.first_step + b)
      for step in range(phase.first_step + a, phase.first_step + b):
        yield {k: v[step - first, mine] for k, v in arrays.items()}

    return PhaseData(
      {k: (v.shape[1:], v.dtype) for k, v in arrays.items()}, batches, lambda: [], None
    )

  return Data(
    {k: meta[fact] for k, fact in _RECORDED.items() if fact in meta},
    meta['vocab_size'],
    end,
    None,
    {},
    phase,
    phase,
    lambda folder: None,
    source=str(path),
  )


def check_ids(batch: dict, vocab_size: int, where: str) -> None:
  """Raises UserError, beginning with `where`, for values outside their table: on a device they
  would silently give NaN, or the last row of the table.

  batch: of one step, or of several in a leading axis. Ids are below vocab_size, positions below the
  length of the rows, segments below 3, labels of pairs 0 or 1. A row without position_ids is one
  pack, without padding inside: kernels rely on it.
  """
  length = batch['input_ids'].shape[-1] if 'input_ids' in batch else 0
  of_text = 'the corpus was made with another tokenizer or is damaged; prepare it again'
  ids = 'id', vocab_size, 'the vocabulary ends', of_text
  made = 'the batches were made by another version or are damaged; write them again'
  for name, (kind, end, ends, why) in {
    'input_ids': ids,
    'masked_targets': ids,
    'sampled_ids': ids,
    'masked_positions': ('position', length, 'they end', made),
    'segment_ids': ('segment', _SEGMENTS, 'they end', made),
    'pair_labels': ('label', 2, 'they end', made),
    'causal': ('label', 2, 'they end', made),
  }.items():
    if name in batch and batch[name].size:
      low, high = int(batch[name].min()), int(batch[name].max())
      if low < 0 or high >= end:
        raise errors.UserError(
          f'{where}: {name} has the {kind} {low if low < 0 else high}, {ends} at {end - 1}: {why}.'
        )
  if 'pack_ids' in batch and 'position_ids' not in batch:
    real = batch['pack_ids'] > 0
    borders = np.count_nonzero(np.diff(real, axis=-1, prepend=False, append=False), axis=-1)
    if (batch['pack_ids'] > 1).any() or (borders > 2).any():
      raise errors.UserError(
        f'{where}: a row has several packs, or padding between tokens, and no position_ids: write '
        'them (Format.packed).'
      )


def entropy(counts: np.ndarray) -> float:
  """Nats a token of a unigram distribution, from its counts [V]."""
  share = counts[counts > 0] / max(counts.sum(), 1)
  return float(-np.sum(share * np.log(share)))


def _read(path):
  """(facts, {feature: array}) of a file; the facts and the form of the arrays are checked."""
  path = storage.path(path)
  try:
    with path.open('rb') as f, np.load(f) as z:
      arrays = {k: z[k] for k in z.files}
    raw = arrays.pop('__meta__')
    meta = json.loads(bytes(raw) if raw.dtype == np.uint8 else str(raw))
    missing = _FACTS.keys() - meta.keys()
  except OSError as e:
    raise errors.UserError(
      f'{path} cannot be read ({e.strerror or type(e).__name__}): give the file of batches that '
      'python -m bertzoo_jax.show --npz wrote.'
    ) from e
  # Numpy, zip and JSON have many errors for a foreign or damaged file, and advice of their own that
  # is none here
  except Exception as e:
    raise errors.UserError(
      f'{path} is no file of batches: write one with python -m bertzoo_jax.show --npz.'
    ) from e
  problem = f'lacks {", ".join(sorted(missing))} in its __meta__' if missing else ''
  if problem := problem or _odd_facts(meta) or _odd_arrays(meta, arrays):
    raise errors.UserError(
      f'{path} {problem}: write it again with python -m bertzoo_jax.show --npz.'
    )
  return meta, arrays


def _odd_facts(meta) -> str:
  """The first mistake in the facts of a file; '' for none."""
  for name, (is_right, wanted) in {**_FACTS, **_NEWER_FACTS}.items():
    if name in meta and not is_right(meta[name]):
      return f'has {name}={json.dumps(meta[name])[:50]} in its __meta__, which is to be {wanted}'
  return ''


def _odd_arrays(meta, arrays) -> str:
  """The first mistake in the arrays of a file; '' for none."""
  (first, end), rows, length = meta['steps'], meta['batch_size'], meta['length']
  if 'input_ids' not in arrays:
    return 'holds no input_ids'
  predictions = arrays.get('masked_positions', np.zeros((0, 0, 0))).shape[2:]
  sizes = {**dict.fromkeys(_TOKENS, (length,)), **dict.fromkeys(_PREDICTIONS, predictions)}
  for name, x in arrays.items():
    whole = name in sizes and name != 'masked_weights' or name in ('pair_labels', 'causal')
    if x.dtype.kind not in ('iu' if whole else 'iufb'):
      return f'holds {name} as {x.dtype}, which are no {"whole " if whole else ""}numbers'
    wanted = (end - first, rows, *sizes.get(name, ()))
    if x.shape[: len(wanted)] != wanted or name in sizes and x.ndim != 3:
      return (
        f'does not hold the batches it says: {name} is {list(x.shape)}, which for steps {first} to '
        f'{end - 1} of {rows} rows of {length} tokens would begin with {list(wanted)}'
      )
  return ''


def _is_number(least):
  """(whether a value is a whole number of at least that many, the same in words)."""
  return lambda x: type(x) is int and x >= least, f'a whole number of at least {least}'


def _is_span(x):
  return isinstance(x, list) and len(x) == 2 and all(type(i) is int for i in x) and 0 <= x[0] < x[1]


_TEXT = lambda x: isinstance(x, str), 'a text'
_SECTION = lambda x: isinstance(x, dict), 'a section of a config'
# {fact: (whether a value is right, the right values in words)}
_FACTS = {
  'vocab_size': _is_number(1),
  'batch_size': _is_number(1),
  'length': _is_number(1),
  'phase': _is_number(0),
  'steps': (_is_span, 'the first step and the one behind the last, at least one step'),
  'corpus_hash': _TEXT,
}
# of those, what the workdir records, and as what
_RECORDED = {'hash': 'corpus_hash', 'tokenizer_hash': 'tokenizer_hash'}
_NEWER_FACTS = {'tokenizer_hash': _TEXT, 'tokenizer': _SECTION, 'corpus': _SECTION}


def _other_steps(path, meta, phase, first, end):
  held = meta['steps']
  return errors.UserError(
    f'{path} holds steps {held[0]:,} to {held[1] - 1:,} (phase {meta["phase"]}), the run needs '
    f'{first:,} to {end - 1:,} '
    f'of phase {phase.index}: {_line(first, end)}.'
  )


def _line(first, end):
  return f'python -m bertzoo_jax.show … --npz FILE --steps {first}:{end}'
