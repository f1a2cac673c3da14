"""batch(step): from a corpus, a format and a masking to the rows of a step, a pure function of
(corpus, config, seed, step).

Let epoch 0 have N rows. Example n = n₀ + step · B + i lies in epoch n div N. Its row is
shuffle(seed, epoch)(n mod N) of that epoch's list. If a list is longer than N, its surplus is not
read; if it is shorter, reading starts again at its front. n₀ is the number of rows that earlier
phases read in the same order, else 0: a border of phases leaves no row out and repeats none.
Several corpora take turns (mixture.py). A very large split is visited part by part (splits.Split).
B rows of the global batch, b of this host, L length, P predictions.
"""

import dataclasses
import itertools
import warnings

import numpy as np

from bertzoo_jax.batches import ahead
from bertzoo_jax.batches import epochs
from bertzoo_jax.batches import formats
from bertzoo_jax.batches import masking as maskings
from bertzoo_jax.batches import mixture as mixtures
from bertzoo_jax.batches import rows as rows_lib
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.common import hashing
from bertzoo_jax.common import moving
from bertzoo_jax.common import reading
from bertzoo_jax.corpus import mixture as corpora
from bertzoo_jax.parts import named
from bertzoo_jax.words import word_marks


def build(
  corpus,
  *,
  format,
  masking,
  length,
  batch_size,
  seed,
  split='train',
  host=(0, 1),
  phase=0,
  first_example=0,
  keep_units=False,
  moves=(),
  first_step=0,
  causal_at=None,
  mixture=(),
  before=(),
):
  """The pipeline of one phase of a run.

  Args:
    corpus: corpus.corpus.Corpus; a mixture has no held-out rows: see `held_out`.
    format, masking: config sections (`name` and the part's fields).
    length, batch_size: L, and the rows of the global batch, B.
    seed: of the run.
    phase: index of the phase whose order of rows and masks this is (Phase.order). Held-out rows
      depend on neither seed nor phase, and predict no special token (masking.of_text).
    first_example: n₀, place of the first row in that order.
    split: 'train' or 'held_out'.
    host: (index, count); the host holds the global rows [index · B / count, (index + 1) · B /
      count).
    keep_units: batches also have 'units' [B, L] (words/word_marks.py), for measuring.
    moves: common.moving.Move of fields of the masking; held-out rows have none.
    first_step: of the phase, of which the moves count.
    causal_at: step of the phase, None for held-out rows → share of rows whose `causal` is 1; None
      for batches without this feature.
    mixture, before: config.mixture and Phase.before; not read for a single corpus.

  Raises:
    UserError: unknown parts, a batch that does not divide, a split without rows, a length too short
      for the format, a masking of words (phrases, entities) over a corpus where none has two
      tokens, a format of lanes over a mixture.
  """
  if split != 'train' and len(corpus.members) > 1:
    raise ValueError('of a mixture, each corpus has held-out rows of its own')
  for member in corpus.members:
    _check_split(member, split, batch_size, host[1])

  def form_of(part):
    text = rows_lib.text_of(part)
    form = named.build(format, formats.BY_NAME, 'format', text, length)
    return form.in_lanes(batch_size, 'eod' in corpus.special) if form.in_lanes else form

  forms = [form_of(member.splits[split].part(0)) for member in corpus.members]
  for member, form in zip(corpus.members, forms):
    _check_fit(member, form, format, masking)

  def mask_of(changes):
    made = named.build({**masking, **changes}, maskings.BY_NAME, 'masking', length, corpus)
    if not isinstance(made, maskings.Masking):
      raise errors.UserError(
        f'masking={masking["name"]} gives a {type(made).__name__}: return a Masking '
        '(bertzoo_jax/batches/masking/contract.py).'
      )
    return maskings.keeping_units(made, length) if keep_units else made

  mask, mask_at = mask_of({}), None
  if split == 'train' and moves:
    ends = itertools.product(*(((m.field, m.start), (m.field, m.end)) for m in moves))
    mask = widest = max((mask_of(dict(e)) for e in ends), key=lambda m: m.num_predictions)
    at = lambda step: {m.field: m.at(first_step + step) for m in moves}
    mask_at = lambda step: maskings.widened(mask_of(at(step)), widest)
  of_words = [word_marks.check(member, masking) for member in corpus.members]
  # evaluation asks the same of every seed and phase, and nothing but text: so losses compare
  if split != 'train':
    seed, phase, mask = 0, 0, maskings.of_text(mask, corpus.special)
  key = hashing.fold(hashing.fold(hashing.new_key(seed), hashing.PHASE), phase)
  key = hashing.fold(key, sorted(corpus.splits).index(split))
  sources = []
  for number, (member, form) in enumerate(zip(corpus.members, forms)):
    # the first corpus has the draws of a run on it alone
    own = hashing.fold(hashing.fold(key, hashing.CORPUS), number) if number else key
    order = _order(member.splits[split], split, form, form_of, own, batch_size, mask)
    sources.append(mixtures.Source(member, order, length, mask.reads_units))
  source = sources[0] if len(sources) == 1 else mixtures.Mixture(sources, mixture, before)
  told = [(*form.warnings, *words) for form, words in zip(forms, of_words)]
  notes = _notes(split, corpus.members, told, source, mixture, batch_size)
  for sentence in notes:
    warnings.warn(sentence, stacklevel=2)
  place = Place(batch_size, length, *host, first_example)
  pipeline = Pipeline(forms[0], mask, source, place, tuple(notes), mask_at, causal_at)
  if named.is_outside(masking['name']):  # tests check the maskings of the package
    pipeline.check(masking['name'])
  return pipeline


def _notes(split, members, told, source, mixture, batch_size) -> list[str]:
  """Sentences on a pipeline. told: those on each of the corpora."""
  of = [f' of {member.name}' if member.name else '' for member in members]
  notes = [f'Split {split!r}{name}: {s}' for name, said in zip(of, told) for s in said]
  if split == 'train' and len(members) == 1 < len(mixture) and mixture[0] != 'size':
    notes.append(f'config.mixture has {len(mixture)} weights, and there is one corpus: it is all.')
  if len(members) > 1 and source.rounding > 0.05:
    notes.append(
      f'A corpus is so small in its mixture that its share is rounded by {source.rounding:.0%}: '
      'the epochs say how often each is read; a larger weight in config.mixture is met better.'
    )
  if split == 'train' and source.rows_per_epoch < batch_size:
    whole = of[0] if len(of) == 1 else ''
    notes.append(
      f'Split {split!r}{whole}: there are {source.rows_per_epoch} rows, less than a batch of '
      f'{batch_size}: rows repeat in a batch.'
    )
  return notes


def of_phase(corpus, phase, **options):
  """The pipeline of a configuration.Phase. options: others of `build`."""
  config, causal_at = phase.config, None
  if 'causal_share' in config.objective:
    share = config.objective.causal_share
    moved = [m for m in moving.of(config, 'objective') if m.field == 'causal_share']
    at = lambda step: moved[0].at(phase.first_step + step) if moved else share
    causal_at = lambda step: share if step is None else at(step)
  return build(
    corpus,
    format=config.format,
    masking=config.masking,
    length=config.length,
    batch_size=config.batch_size,
    seed=config.seed,
    phase=phase.order,
    first_example=phase.first_example,
    moves=moving.of(config, 'masking'),
    first_step=phase.first_step,
    causal_at=causal_at,
    mixture=config.mixture,
    before=phase.before,
    **options,
  )


def features(corpus, phase, host) -> dict:
  """The features of a phase over stand-in text with the facts of a corpus. Raises as `build`."""
  config = phase.config
  model = corpora.stand_in(corpus, documents=2 * config.batch_size, length=config.length)
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    return of_phase(model, phase, host=host).features


def of_epochs(config, corpus):
  """The config with the steps of config.epochs, if it has them."""
  if not config.epochs:
    return config
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # the run says them
    read_of = lambda phase: of_phase(corpus, phase).read
    return reading.of_epochs(config, configuration.phases(config), read_of)


def held_out(corpus, phase, **options) -> dict:
  """{name of the corpus: pipeline of its held-out rows}, '' for the only corpus. Of a mixture,
  corpora without held-out text are left out.
  """
  # without any, the first one is refused
  some = [m for m in corpus.members if m.splits['held_out'].num_tokens] or corpus.members
  for name in [m.name for m in corpus.members if m not in some]:
    warnings.warn(f'The corpus {name} has no held-out text: it is not evaluated.', stacklevel=2)
  return {m.name: of_phase(m, phase, split='held_out', **options) for m in some}


def _check_split(corpus, split, batch_size, hosts):
  if batch_size < 1 or batch_size % hosts:
    raise errors.UserError(
      f'config.batch_size is {batch_size}: a positive multiple of the {hosts} host processes is '
      'needed.'
    )
  if split not in corpus.splits:
    raise errors.UserError(
      f'No split is called {split!r}.{errors.did_you_mean(split, corpus.splits)}'
    )
  if not corpus.splits[split].num_tokens:
    raise errors.UserError(
      f'The split {split!r} of the corpus is empty: prepare a corpus with more text'
      + (' or a larger config.corpus.held_out.' if split == 'held_out' else '.')
    )


def _check_fit(corpus, form, format, masking):
  """Raises UserError where format, masking and corpus do not go together."""
  if form.assemble and corpus.name:
    raise errors.UserError(
      f'format={format["name"]} reads each lane as one continuous text, which a mixture of corpora '
      'interrupts: give one --corpus, or take another --config.format.'
    )
  if form.needs_sentences and corpus.manifest['splitter'] == 'none':
    raise errors.UserError(
      f'format={format["name"]} parts its segments where a sentence ends, and the corpus was not '
      'split into sentences: prepare it with --config.corpus.splitter=rules:LANG (or lines, or '
      'regex:PATTERN), or take format=full_sentences.'
    )
  if 'reuse_length' in format and 'block' in masking and format['reuse_length'] % masking['block']:
    raise errors.UserError(
      f'config.format.reuse_length is {format["reuse_length"]} and config.masking.block '
      f'{masking["block"]}: the reused part '
      'must hold whole blocks, or the tokens of the memory are permuted with others.'
    )


def _order(text, split, form, form_of, key, batch_size, mask) -> epochs.Order:
  lists, in_lanes = epochs.Lists(epochs.Parts(text, form, form_of), key), form.assemble is not None
  rows = lists.parts.rows(len(lists.get(0)), batch_size if in_lanes else 1)
  order = epochs.Order(split, lists, rows, mask.repeat, in_lanes)
  if not order.rows_per_epoch:
    raise errors.UserError(
      f'The split {split!r} gives no row of this format: bring more text, or another '
      '--config.format.'
    )
  return order


@dataclasses.dataclass(frozen=True)
class Place:
  """The global batch, which host this is of how many, and the first example of the phase."""

  batch_size: int
  length: int
  host: int
  hosts: int
  first_example: int

  @property
  def rows(self) -> int:
    """Rows of this host."""
    return self.batch_size // self.hosts

  @property
  def first(self) -> int:
    """The first of them."""
    return self.host * self.rows

  def examples(self, step: int) -> int:
    """Examples of the phase's order before a step of it."""
    return self.first_example + step * self.batch_size


class Pipeline:
  """The batches of one phase.

  Attributes:
    rows_per_epoch: N.
    num_predictions: P.
    features: {name: (shape of the global batch, numpy dtype)}.
    warnings: sentences for the user, which were also issued as Python warnings.
  """

  def __init__(self, form, mask, source, place: Place, warnings=(), mask_at=None, causal_at=None):
    """form: over the first part of the split; mask: masking.Masking; source: mixture.Source or
    Mixture; mask_at: step of the phase → its masking, with features as wide as those of `mask`, or
    None; causal_at: see `build`.
    """
    self._mask_at, self._causal_at = mask_at, causal_at
    self._format, self._masking = form, mask
    self._source, self._place, self.warnings = source, place, warnings
    self.rows_per_epoch, self.num_predictions = source.rows_per_epoch, mask.num_predictions
    self.features = self._describe()

  def check(self, name: str) -> None:
    """Raises UserError if the masking of this name writes other features than it declares."""
    try:
      written = self._masking.apply(*self._step_rows(0))
    except KeyError as e:
      errors.refuse_pack_ids(e.args, f'masking={name}')
      raise
    for feature, (shape, dtype) in self.features.items():
      declared = f'{np.dtype(dtype).name} {[self._place.rows, *shape[1:]]}'
      found = written.get(feature)
      what = 'nothing' if found is None else f'a {type(found).__name__}, which is no numpy array'
      if isinstance(found, np.ndarray):
        what = f'{found.dtype.name} {[*found.shape]}'
      if what != declared:
        raise errors.UserError(
          f'masking={name} declares {feature} as {declared} and writes {what}: mend its '
          'num_predictions or features, or what its `apply` returns '
          '(bertzoo_jax/batches/masking/contract.py).'
        )

  def batch(self, step: int) -> dict:
    """This host's rows of a step (from 0, local to the phase): {name: numpy array [b, …]}."""
    mask = self._mask_at(step) if self._mask_at else self._masking
    return self._finish(mask, *self._step_rows(step))

  def read(self, steps: int) -> tuple[reading.Reading, ...]:
    """Reading of the first steps of the phase, per corpus."""
    return self._source.read(self._place.first_example, self._place.examples(steps))

  def iterate(self, first_step: int, end_step: int):
    """The batches of first_step … end_step − 1, computed ahead in threads; each is batch(step)."""
    return ahead.iterate(self.batch, self.features, first_step, end_step)

  def evaluation_batches(self, n: int):
    """Yields at most n batches that cover rows of epoch 0 once, in order, always the same ones with
    the same masks.

    More rows than n batches hold: evenly spaced ones, and of lanes the first n steps. Rows that
    fill the last batch are padding throughout (segment_ids 0) and predict nothing.
    """
    total, size, place = self.rows_per_epoch, self._place.batch_size, self._place
    rows = np.arange(-(-total // size) * size)
    if len(rows) > n * size:
      rows = np.arange(n * size)
      rows = rows if self._source.order.in_lanes else rows * total // (n * size)
    for first in range(0, len(rows), size):
      here = rows[first : first + size][place.first : place.first + place.rows]
      features, keys = self._source.rows(0, here % total, shuffled=False)
      batch = self._finish(self._masking, self._with_causal(features, keys), keys)
      for name in ('masked_weights', 'segment_ids'):
        batch[name] = np.where((here < total)[:, None], batch[name], 0).astype(batch[name].dtype)
      yield batch

  # --- rows ---

  def _finish(self, mask, features, keys):
    masked = mask.apply(features, keys)
    return {name: masked[name] for name in self.features}

  def _step_rows(self, step):
    """Features before masking and the row keys of this host's part of a step."""
    if step < 0:
      raise ValueError(f'step {step}: steps count from 0')
    first = self._place.examples(step) + self._place.first
    features, keys = self._source.at(first + np.arange(self._place.rows, dtype=np.int64))
    return self._with_causal(features, keys, step), keys

  def _with_causal(self, features, keys, step=None):
    """The features with `causal`, which is drawn by the row keys, if it is wanted."""
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
