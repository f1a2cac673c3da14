"""The input pipeline. Pipeline.batch(step) is a pure function of (corpus, config, seed, step).

Let epoch 0 have N rows. Row i of a step is example n = n₀ + step · B + i. Example n is row n mod N
of epoch n div N. Each epoch has a list of rows, which is shuffled by (seed, epoch). If the list has
more than N rows, some are not read. If it has fewer, reading wraps around.

A phase with the format and length of the phase before it continues the order of rows. n₀ is then
the number of rows read so far in that order, so no row is skipped or repeated. For any other phase
n₀ is 0. Several corpora take turns (mixture.py). A large split is read by parts (splits.py).

Sizes: B rows per global batch, b rows per host, L tokens per row, P predictions per row.
"""

import dataclasses
import functools
import warnings

import numpy as np

from bertzoo_jax.batches import ahead
from bertzoo_jax.batches import epochs
from bertzoo_jax.batches import masking as maskings
from bertzoo_jax.batches import mixture as mixtures
from bertzoo_jax.batches import phase_parts
from bertzoo_jax.common import amounts
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.common import hashing
from bertzoo_jax.common import moving
from bertzoo_jax.parts import named
from bertzoo_jax.words import word_marks


def build(corpus, **fields) -> 'Pipeline':
  """A Pipeline whose rows are counted. fields: the fields of its RowSpec.

  Raises the errors of Pipeline and of `Pipeline.count`.
  """
  pipeline = Pipeline(corpus, phase_parts.RowSpec(**fields))
  pipeline.count()
  return pipeline


def for_phase(corpus, phase, mask=None, **options) -> 'Pipeline':
  """The Pipeline of a configuration.Phase. Its rows are counted at first use. mask: see Pipeline.
  options: other fields of RowSpec.
  """
  config = phase.config
  spec = phase_parts.RowSpec(
    format=config.format,
    masking=config.masking,
    length=config.length,
    batch_size=config.batch_size,
    seed=config.seed,
    phase=phase.order,
    first_example=phase.first_example,
    moves=moving.get_moves(config, 'masking'),
    first_step=phase.first_step,
    causal_at=_causal_share(phase) if 'causal_share' in config.objective else None,
    mixture=config.mixture,
    before=phase.before,
    **options,
  )
  return Pipeline(corpus, spec, mask)


def held_out(corpus, phase, mask=None, **options) -> dict[str, 'Pipeline']:
  """{name of the corpus ('' for a single one): Pipeline of its held-out rows}. In a mixture,
  corpora without held-out text are left out, and each corpus has its own masking.
  """
  # If no corpus has held-out text, none is left out: the Pipeline of the first raises UserError.
  members = [m for m in corpus.members if m.splits['held_out'].num_tokens] or corpus.members
  for name in [m.name for m in corpus.members if m not in members]:
    warnings.warn(f'The corpus {name} has no held-out text: it is not evaluated.', stacklevel=2)
  mask = mask if len(corpus.members) == 1 else None
  return {m.name: for_phase(m, phase, mask, split='held_out', **options) for m in members}


def with_epoch_steps(config, corpus):
  """The config with steps computed from config.epochs; unchanged if `epochs` is not set."""
  if not config.epochs:
    return config
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # the run itself gives these warnings
    phases = configuration.phases(config)
    return amounts.with_epoch_steps(
      config, phases, {p.index: for_phase(corpus, p).read for p in phases}
    )


def _causal_share(phase):
  """A function: step of the phase (None for held-out rows) → share of rows read left to right."""
  share = phase.config.objective.causal_share
  moved = [m for m in moving.get_moves(phase.config, 'objective') if m.field == 'causal_share']

  def at(step):
    return moved[0].at(phase.first_step + step) if moved and step is not None else share

  return at


def _key(spec, corpus):
  """The key of all draws. In evaluation it ignores seed and phase, so losses are comparable."""
  seed, phase = (spec.seed, spec.phase) if spec.learns else (0, 0)
  key = hashing.fold(hashing.fold(hashing.new_key(seed), hashing.PHASE), phase)
  return hashing.fold(key, sorted(corpus.splits).index(spec.split))


def _notes(spec, members, by_member, source) -> list[str]:
  """Warnings about a pipeline. by_member: for each member, the warnings about its text."""
  split, mixture, batch_size = spec.split, spec.mixture, spec.batch_size
  suffixes = [f' of {member.name}' if member.name else '' for member in members]
  notes = [f'Split {split!r}{name}: {s}' for name, texts in zip(suffixes, by_member) for s in texts]
  if split == 'train' and len(members) == 1 < len(mixture) and mixture[0] != 'size':
    notes.append(f'config.mixture has {len(mixture)} weights for one corpus: they are not used.')
  if len(members) > 1 and source.rounding > 0.05:
    notes.append(
      'A corpus has so small a share of the mixture that rounding changes the share by '
      f'{source.rounding:.0%}. Look at the epochs of each corpus, or give the corpus a larger '
      'weight in config.mixture.'
    )
  if split == 'train' and source.rows_per_epoch < batch_size:
    suffix = suffixes[0] if len(suffixes) == 1 else ''
    notes.append(
      f'Split {split!r}{suffix}: there are {source.rows_per_epoch} rows, fewer than a batch of '
      f'{batch_size}: a batch repeats rows.'
    )
  return notes


def _order(text, split, form, make, key, batch_size, repeat) -> epochs.Order:
  lists, in_lanes = epochs.Lists(epochs.Parts(text, form, make), key), form.assemble is not None
  rows = lists.parts.rows(len(lists.get(0)), batch_size if in_lanes else 1)
  order = epochs.Order(split, lists, rows, repeat, in_lanes)
  if not order.rows_per_epoch:
    raise errors.UserError(
      f'The split {split!r} gives no row of this format: prepare more text, or take another '
      '--config.format.'
    )
  return order


@dataclasses.dataclass(frozen=True)
class Place:
  """Where a row of this host is in the global batch and in the order of the phase."""

  batch_size: int
  length: int
  host: int
  hosts: int
  first_example: int

  @property
  def rows(self) -> int:
    """Rows per host."""
    return self.batch_size // self.hosts

  @property
  def first(self) -> int:
    """Index of this host's first row in the global batch."""
    return self.host * self.rows

  def examples(self, step: int) -> int:
    """n₀ + step · B, the number of the first example of a step of the phase."""
    return self.first_example + step * self.batch_size


class Pipeline:
  """The batches of one phase.

  Attributes:
    mask: the masking of config.masking; config.moving does not change it. The Pipeline of held-out
      rows can share it.
    num_predictions: P.
    features: {name: (shape of the global batch, numpy dtype)}.
  """

  def __init__(self, corpus, spec: phase_parts.RowSpec, mask=None):
    """Builds format and masking. mask: the masking, if it is already built.

    corpus: corpus.corpus.Corpus. For held-out rows it must be a single corpus: see `held_out`.

    Raises UserError: a part is unknown; hosts do not divide the batch; the split is empty; the
    length is too short for the format; the masking is of words (phrases, entities) and each of them
    in the corpus is a single token; a mixture is given to a format of lanes (memory_segments).
    """
    if not spec.learns and len(corpus.members) > 1:
      raise ValueError('a mixture has no held-out rows: each corpus has its own')
    for member in corpus.members:
      phase_parts.check_split(member, spec.split, spec.batch_size, spec.host[1])
    if len(corpus.members) > 1:
      mixtures.check(spec.mixture, len(corpus.members))
    self._corpus, self._spec = corpus, spec
    self._make_format = functools.partial(phase_parts.format_over, spec, 'eod' in corpus.special)
    firsts = (member.splits[spec.split].part(0) for member in corpus.members)
    self._forms = [self._make_format(part) for part in firsts]
    for member, form in zip(corpus.members, self._forms):
      phase_parts.check_fit(member, form, spec.format, spec.masking)
    self.mask = mask or phase_parts.masking_of(spec, corpus)
    moving_masks = phase_parts.Moving(spec, corpus) if spec.learns and spec.moves else None
    self._mask_at = moving_masks and moving_masks.at
    used = moving_masks.widest if moving_masks else self.mask
    if spec.keep_units and not moving_masks:
      used = maskings.with_units(used, spec.length)
    # Evaluation predicts no special tokens.
    self._masking = used if spec.learns else maskings.without_special_targets(used, corpus.special)
    self._word_notes = [word_marks.check(member, spec.masking) for member in corpus.members]
    self._format, self._causal_at = self._forms[0], spec.causal_at
    self._place = Place(spec.batch_size, spec.length, *spec.host, spec.first_example)
    self.num_predictions = self._masking.num_predictions
    self.features = self._describe()
    if named.is_outside(spec.masking['name']):  # the package's own are checked by tests
      self.check(spec.masking['name'])

  @property
  def rows_per_epoch(self) -> int:
    """N, the rows of an epoch."""
    return self._source.rows_per_epoch

  @property
  def warnings(self) -> tuple[str, ...]:
    """Sentences for the user. `count` also issues them as Python warnings."""
    return self._counted[1]

  def count(self) -> None:
    """Builds the row list of epoch 0 and issues `warnings`. Raises UserError if it is empty."""
    _ = self._counted

  @property
  def _source(self):
    return self._counted[0]

  @functools.cached_property
  def _counted(self):
    """(mixture.Source or Mixture, sentences for the user)."""
    spec, sources = self._spec, []
    key = _key(spec, self._corpus)
    for number, (member, form) in enumerate(zip(self._corpus.members, self._forms)):
      # The first corpus has the same key as in a run on that corpus alone.
      member_key = hashing.fold(hashing.fold(key, hashing.CORPUS), number) if number else key
      options = member_key, spec.batch_size, self._masking.repeat
      order = _order(member.splits[spec.split], spec.split, form, self._make_format, *options)
      sources.append(mixtures.Source(member, order, spec.length, self._masking.reads_units))
    mixed = len(sources) > 1
    source = mixtures.Mixture(sources, spec.mixture, spec.before) if mixed else sources[0]
    by_member = [(*form.warnings, *words) for form, words in zip(self._forms, self._word_notes)]
    notes = _notes(spec, self._corpus.members, by_member, source)
    for sentence in notes:
      warnings.warn(sentence, stacklevel=4)
    return source, tuple(notes)

  def check(self, name: str) -> None:
    """Raises UserError if the masking writes other features than it declares. name: its name."""
    try:
      written = self._masking.apply(*self._step_rows(0))
    except KeyError as e:
      errors.refuse_pack_ids(e.args, f'masking={name}')
      raise
    for feature, (shape, dtype) in self.features.items():
      declared = f'{np.dtype(dtype).name} {[self._place.rows, *shape[1:]]}'
      array = written.get(feature)
      actual = 'nothing' if array is None else f'a {type(array).__name__}, not a numpy array'
      if isinstance(array, np.ndarray):
        actual = f'{array.dtype.name} {[*array.shape]}'
      if actual != declared:
        raise errors.UserError(
          f'masking={name} declares {feature} as {declared} and writes {actual}: correct its '
          'num_predictions, its features or the result of its `apply` '
          '(bertzoo_jax/batches/masking/contract.py).'
        )

  def batch(self, step: int) -> dict:
    """This host's rows of a step: {name: numpy array [b, …]}. step: from 0 in each phase."""
    mask = self._mask_at(step) if self._mask_at else self._masking
    return self._finish(mask, *self._step_rows(step))

  def read(self, steps: int) -> tuple[amounts.Reading, ...]:
    """How often the first `steps` steps of the phase read each corpus, as amounts.Reading."""
    return self._source.read(self._place.first_example, self._place.examples(steps))

  def iterate(self, first_step: int, end_step: int):
    """Iterates over batch(step) for first_step … end_step − 1, computed ahead in threads."""
    self.count()  # here, so that its warnings and errors do not come from a thread
    return ahead.iterate(self.batch, self.features, first_step, end_step)

  def evaluation_batches(self, n: int):
    """Yields at most n batches of the rows of epoch 0: always the same rows in the same order with
    the same masks, each row at most once.

    If n batches cannot hold all rows, evenly spaced rows are taken. With a format of lanes, the
    rows of the first n steps are taken.
    Rows that fill up the last batch are padding (segment_ids 0) and predict nothing.
    """
    total, size, place = self.rows_per_epoch, self._place.batch_size, self._place
    rows = np.arange(-(-total // size) * size)
    if len(rows) > n * size:
      rows = np.arange(n * size)
      rows = rows if self._source.order.in_lanes else rows * total // (n * size)
    for first in range(0, len(rows), size):
      chosen = rows[first : first + size][place.first : place.first + place.rows]
      features, keys = self._source.rows(0, chosen % total, shuffled=False)
      batch = self._finish(self._masking, self._with_causal(features, keys), keys)
      for name in ('masked_weights', 'segment_ids'):
        batch[name] = np.where((chosen < total)[:, None], batch[name], 0).astype(batch[name].dtype)
      yield batch

  # --- rows ---

  def _finish(self, mask, features, keys):
    masked = mask.apply(features, keys)
    return {name: masked[name] for name in self.features}

  def _step_rows(self, step):
    """(features before masking, row keys [b, 2]) of this host's part of a step."""
    if step < 0:
      raise ValueError(f'step {step}: steps count from 0')
    first = self._place.examples(step) + self._place.first
    features, keys = self._source.at(first + np.arange(self._place.rows, dtype=np.int64))
    return self._with_causal(features, keys, step), keys

  def _with_causal(self, features, keys, step=None):
    """The features. If the objective has a causal_share, adds `causal`, drawn by the row keys."""
    if self._causal_at is None:
      return features
    bits = hashing.bits(hashing.fold((keys[:, 0], keys[:, 1]), hashing.CAUSAL), 0)
    share = hashing.threshold(self._causal_at(step))
    return {**features, 'causal': (bits.astype(np.int64) < share).astype(np.int32)}

  def _describe(self):
    """{name: (shape of the global batch, dtype)} of the features of a batch."""
    names = ['input_ids', 'token_type_ids', 'segment_ids'] + ['position_ids'] * self._format.packed
    features = {name: ((self._place.length,), np.int32) for name in names}
    if self._format.has_pairs:
      features['pair_labels'] = ((), np.int32)
    if self._causal_at is not None:
      features['causal'] = ((), np.int32)
    features |= self._format.features
    predictions = (self.num_predictions,)
    features |= dict(
      masked_positions=(predictions, np.int32),
      masked_targets=(predictions, np.int32),
      masked_weights=(predictions, np.float32),
    )
    features |= self._masking.features
    size = self._place.batch_size
    return {name: ((size, *shape), dtype) for name, (shape, dtype) in features.items()}
