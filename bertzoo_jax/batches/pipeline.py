"""batch(step): from a corpus, a format and a masking to the rows of a step, a pure function of
(corpus, config, seed, step).

Example n = n₀ + step · B + i lies in epoch n div N (N: rows of epoch 0); its row is shuffle(seed,
epoch)(n mod N) of that epoch's own list: a surplus is not visited, a shortage wraps. n₀ is the
number of rows that the phases before read of the same order, else 0. So a border of phases leaves
no row out and repeats none, also if their batches differ in size. A very large split is visited
part by part (splits.Split). B rows of the global batch, b of this host, L length, P predictions.
"""

import functools
import math
import warnings

import numpy as np
import tensorflow as tf

from bertzoo_jax.batches import epochs
from bertzoo_jax.batches import formats
from bertzoo_jax.batches import masking as maskings
from bertzoo_jax.batches import rows as rows_lib
from bertzoo_jax.common import errors
from bertzoo_jax.common import hashing
from bertzoo_jax.parts import named
from bertzoo_jax.words import word_marks

try:
  for _kind in ('GPU', 'TPU'):
    tf.config.set_visible_devices([], _kind)  # the accelerator belongs to the device program
except (RuntimeError, ValueError):
  pass  # TensorFlow is already running with what it has


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
):
  """The pipeline of one phase of a run.

  Args:
    corpus: corpus.corpus.Corpus.
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

  Raises:
    UserError: unknown parts, a batch that does not divide, a split without rows, a length too short
      for the format, a masking of words (phrases, entities) over a corpus where none has two
      tokens.
  """
  index, count = host
  if batch_size < 1 or batch_size % count:
    raise errors.UserError(
      f'config.batch_size is {batch_size}: a positive multiple of the {count} host processes is '
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

  def form_of(part):
    text = rows_lib.text_of(part)
    form = named.build(format, formats.BY_NAME, 'format', text, length)
    return form.in_lanes(batch_size, 'eod' in corpus.special) if form.in_lanes else form

  form = form_of(corpus.splits[split].part(0))
  if form.needs_sentences and corpus.manifest['splitter'] == 'none':
    raise errors.UserError(
      f'format={format["name"]} parts its segments where a sentence ends, and the corpus was not '
      'split into sentences: '
      'prepare it with --config.corpus.splitter=rules:LANG (or lines, or regex:PATTERN), or take '
      'format=full_sentences.'
    )
  if 'reuse_length' in format and 'block' in masking and format['reuse_length'] % masking['block']:
    raise errors.UserError(
      f'config.format.reuse_length is {format["reuse_length"]} and config.masking.block '
      f'{masking["block"]}: the reused part '
      'has to hold whole blocks, or what the memory keeps is permuted with what it does not.'
    )
  mask = named.build(masking, maskings.BY_NAME, 'masking', length, corpus)
  if not isinstance(mask, maskings.Masking):
    raise errors.UserError(
      f'masking={masking["name"]} gives a {type(mask).__name__}: return a Masking '
      '(bertzoo_jax/batches/masking/contract.py).'
    )
  notes = word_marks.check(corpus, masking)
  if keep_units:
    mask = maskings.keeping_units(mask, length)
  # evaluation asks the same of every seed and phase, and nothing but text: so losses compare
  if split != 'train':
    seed, phase, mask = 0, 0, maskings.of_text(mask, corpus.special)
  key = hashing.fold(hashing.fold(hashing.new_key(seed), hashing.PHASE), phase)
  key = hashing.fold(key, sorted(corpus.splits).index(split))
  pipeline = Pipeline(
    corpus,
    split,
    form,
    form_of,
    mask,
    key,
    length,
    batch_size,
    (index, count),
    notes,
    first_example,
  )
  if named.is_outside(masking['name']):  # those of the package are tested
    pipeline.check(masking['name'])
  return pipeline


def of_phase(corpus, phase, **options):
  """The pipeline of a configuration.Phase. options: others of `build`."""
  config = phase.config
  return build(
    corpus,
    format=config.format,
    masking=config.masking,
    length=config.length,
    batch_size=config.batch_size,
    seed=config.seed,
    phase=phase.order,
    first_example=phase.first_example,
    **options,
  )


class Pipeline:
  """The batches of one phase.

  Attributes:
    rows_per_epoch: N.
    num_predictions: P.
    features: {name: (shape of the global batch, numpy dtype)}.
    warnings: sentences for the user, which were also issued as Python warnings.
  """

  def __init__(
    self, corpus, split, form, form_of, mask, key, length, batch_size, host, notes, first_example
  ):
    self._split, self._split_name, self._format, self._masking = (
      corpus.splits[split],
      split,
      form,
      mask,
    )
    self._vocab_size, self._special, self._key = corpus.vocab_size, corpus.special, key
    self._has_marks, self._word_starts = corpus.has_marks, corpus.word_starts
    self._length, self._batch_size = length, batch_size
    self._in_order = form.assemble is not None  # lanes go on from step to step
    self._rows_here = batch_size // host[1]
    self._first_row = host[0] * self._rows_here
    self._first_example = first_example
    self._parts = epochs.Parts(self._split, form, form_of)
    self._lists = epochs.Lists(self._parts, self._epoch_key)
    self.num_predictions = mask.num_predictions
    self._rows_of_parts = self._parts.rows(
      len(self._lists.get(0)), batch_size if self._in_order else 1
    )
    self.rows_per_epoch = int(self._rows_of_parts.sum())
    if not self.rows_per_epoch:
      raise errors.UserError(
        f'The split {split!r} gives no row of this format: bring more text, or another '
        '--config.format.'
      )
    self.features = self._describe()
    self._mask = tf.function(mask.apply, input_signature=self._signature())
    self.warnings = tuple(
      f'Split {split!r}: {sentence}' for sentence in (*form.warnings, *notes, *self._small())
    )
    for sentence in self.warnings:
      warnings.warn(sentence, stacklevel=3)

  def check(self, name: str) -> None:
    """Raises UserError if the masking of this name writes other features than it declares."""
    written = self._mask.get_concrete_function().structured_outputs
    for feature, (shape, dtype) in self.features.items():
      declared = tf.TensorSpec([None, *shape[1:]], dtype)
      found = written.get(feature)
      if found is None or not declared.is_compatible_with(found):
        what = 'nothing' if found is None else f'{found.dtype.name} {[*found.shape]}'
        raise errors.UserError(
          f'masking={name} declares {feature} as {declared.dtype.name} {[*declared.shape]} and '
          f'writes {what}: mend its num_predictions or features, or what its `apply` returns '
          '(bertzoo_jax/batches/masking/contract.py).'
        )

  def batch(self, step: int) -> dict:
    """This host's rows of a step (from 0, local to the phase): {name: numpy array [b, …]}."""
    return self._finish(*self._step_rows(int(step)))

  def iterate(self, first_step: int, end_step: int):
    """The batches of first_step … end_step − 1, computed ahead in other threads; each equals
    `batch(step)` bit for bit.
    """
    failures = []

    def gather(step):
      try:
        features, keys = self._step_rows(int(step))
        return [features[name] for name in names] + [keys]
      except Exception as e:
        failures.append(e)
        raise

    unmasked = self._unmasked()
    names, kinds = list(unmasked), [dtype for _, dtype in unmasked.values()] + [np.uint32]

    def load(step):
      arrays = tf.numpy_function(gather, [step], kinds, stateful=False)
      for array, (shape, _) in zip(arrays, unmasked.values()):
        array.set_shape(shape)
      arrays[-1].set_shape([self._rows_here, 2])
      return self._mask(dict(zip(names, arrays[:-1])), arrays[-1])

    options = tf.data.Options()
    options.deterministic = True
    options.threading.max_intra_op_parallelism = (
      1  # whole batches run side by side: splitting each operation costs a third more
    )
    data = (
      tf.data.Dataset.range(first_step, end_step)
      .map(load, num_parallel_calls=tf.data.AUTOTUNE)
      .prefetch(tf.data.AUTOTUNE)
    )
    try:
      yield from data.with_options(options).as_numpy_iterator()
    except tf.errors.OpError:
      if failures:
        raise failures[0] from None
      raise

  def evaluation_batches(self, n: int):
    """Yields at most n batches that cover rows of epoch 0 once, in order, always the same ones with
    the same masks.

    More rows than n batches hold: evenly spaced ones, and of lanes the first n steps. Rows that
    fill the last batch are padding throughout (pack_ids 0) and predict nothing; pair labels have no
    weight, so a format that has them leaves the unfilled batch out, unless it is the only one.
    """
    total, size = self.rows_per_epoch, self._batch_size
    whole = max(1, total // size) if self._format.has_pairs else math.ceil(total / size)
    rows = np.arange(whole * size)
    if whole > n:
      rows = np.arange(n * size) if self._in_order else np.arange(n * size) * total // (n * size)
    for first in range(0, len(rows), size):
      here = rows[first : first + size][self._first_row : self._first_row + self._rows_here]
      batch = self._finish(*self._rows(0, here % total, shuffled=False))
      for name in ('masked_weights', 'pack_ids'):
        batch[name] = np.where((here < total)[:, None], batch[name], 0).astype(batch[name].dtype)
      yield batch

  # --- rows ---

  def _finish(self, features, keys):
    return {name: tensor.numpy() for name, tensor in self._mask(features, keys).items()}

  def _step_rows(self, step):
    """Features before masking and the row keys of this host's part of a step."""
    if step < 0:
      raise ValueError(f'step {step}: steps count from 0')
    first = self._first_example + step * self._batch_size + self._first_row
    example = first + np.arange(self._rows_here, dtype=np.int64)
    epoch, place = np.divmod(example, self.rows_per_epoch)
    return self._rows(epoch, place, shuffled=not self._in_order)

  def _rows(self, epoch, place, shuffled):
    """Features and row keys of the places [b] of epochs [b]; `shuffled`: of the epoch's order, else
    of the order of its lists.
    """
    stretches = []
    for e, part, here in self._stretches(np.broadcast_to(epoch, place.shape), place):
      e_repeated = self._repeated(e)
      rows, split, form = (
        self._lists.get(e_repeated, part),
        self._parts.split(part),
        self._parts.form(part),
      )
      if not len(rows):
        raise errors.UserError(
          f'Part {part} of the split {self._split_name!r} gives no row of this format in epoch '
          f'{e}: bring more text, or another '
          '--config.format.'
        )
      numbers = here % len(rows)
      if shuffled:
        numbers = hashing.permute(
          self._part_key(hashing.fold(hashing.fold(self._key, hashing.SHUFFLE), e), part),
          len(rows),
          numbers,
        )
      key = self._epoch_key(e_repeated, part)
      gather = functools.partial(self._gather, split)
      units = functools.partial(self._units, split) if self._masking.reads_units else None
      if form.assemble:
        features = form.assemble(key, rows, numbers, gather, self._special, units)
      else:
        features = rows_lib.assemble(
          form.spans(key, rows, numbers),
          len(numbers),
          self._length,
          gather,
          self._special,
          form.packed,
          units,
        )
      row_keys = hashing.fold(hashing.fold(key, hashing.ROW), numbers)
      stretches.append((features, np.stack(row_keys, axis=-1)))
      if shuffled and here[-1] * 2 > self._rows_of_parts[part]:
        self._lists.prepare(*self._after(e, part))
    if len(stretches) == 1:
      return stretches[0]
    return {
      name: np.concatenate([p[0][name] for p in stretches]) for name in stretches[0][0]
    }, np.concatenate([p[1] for p in stretches])

  def _stretches(self, epoch, place):
    """(epoch, part, places in the part) of rows that stand next to each other in a batch and in a
    part: neither decreases along it.
    """
    for e in np.unique(epoch).tolist():
      mine, order = place[epoch == e], self._order(e)
      ends = np.cumsum(self._rows_of_parts[order])
      slot = ends.searchsorted(mine, 'right')
      for s in dict.fromkeys(slot.tolist()):
        yield e, int(order[s]), mine[slot == s] - (ends[s] - self._rows_of_parts[order[s]])

  def _order(self, epoch):
    """The order in which an epoch visits the parts."""
    count = len(self._rows_of_parts)
    key = hashing.fold(hashing.fold(self._key, hashing.SHUFFLE), epoch)
    return (
      hashing.permute(hashing.fold(key, hashing.PARTS), count, np.arange(count))
      if count > 1
      else np.zeros(1, np.int64)
    )

  def _after(self, epoch, part):
    """The list that comes after that of a part in an epoch: (epoch, part)."""
    order = self._order(epoch).tolist()
    at = order.index(part) + 1
    return (
      (self._repeated(epoch), order[at])
      if at < len(order)
      else (self._repeated(epoch + 1), int(self._order(epoch + 1)[0]))
    )

  def _repeated(self, epoch):
    return epoch % self._masking.repeat if self._masking.repeat else epoch

  def _epoch_key(self, epoch, part=0):
    return self._part_key(hashing.fold(hashing.fold(self._key, hashing.EPOCH), epoch), part)

  def _part_key(self, key, part):
    return hashing.fold(key, part) if self._split.num_parts > 1 else key

  def _gather(self, split, positions):
    tokens = split.gather(positions)
    if tokens.max() >= self._vocab_size:
      where = int(positions.reshape(-1)[tokens.argmax()])
      raise errors.UserError(
        f'Token {where} of the split {self._split_name!r} is {int(tokens.max())}, in a vocabulary '
        f'of {self._vocab_size}: the '
        'corpus is damaged or not of this tokenizer; prepare it again into a new folder.'
      )
    return tokens

  def _units(self, split, positions, tokens):
    """The marks of tokens: from the corpus, or word starts as the pieces tell them."""
    if self._has_marks:
      return split.gather_units(positions)
    return np.where(self._word_starts[tokens], 0, word_marks.CONTINUES_WORD).astype(np.int32)

  # --- shapes ---

  def _unmasked(self):
    """{name: (shape on this host, dtype)} of the features that the format writes."""
    names = (
      ['input_ids', 'segment_ids', 'pack_ids']
      + ['units'] * self._masking.reads_units
      + ['position_ids'] * self._format.packed
    )
    out = {name: ((self._rows_here, self._length), np.int32) for name in names}
    if self._format.has_pairs:
      out['pair_labels'] = ((self._rows_here,), np.int32)
    return {
      **out,
      **{
        name: ((self._rows_here, *shape), dtype)
        for name, (shape, dtype) in self._format.features.items()
      },
    }

  def _signature(self):
    features = {
      name: tf.TensorSpec([None, *shape[1:]], dtype)
      for name, (shape, dtype) in self._unmasked().items()
    }
    return features, tf.TensorSpec([None, 2], tf.uint32)

  def _describe(self):
    out = {
      name: ((self._batch_size, *shape[1:]), dtype)
      for name, (shape, dtype) in self._unmasked().items()
      if name != 'units'
    }
    for name, dtype in (
      ('masked_positions', np.int32),
      ('masked_targets', np.int32),
      ('masked_weights', np.float32),
    ):
      out[name] = ((self._batch_size, self.num_predictions), dtype)
    out.update(
      {
        name: ((self._batch_size, *shape), dtype)
        for name, (shape, dtype) in self._masking.features.items()
      }
    )
    return out

  def _small(self):
    if self.rows_per_epoch < self._batch_size:
      return (
        f'there are {self.rows_per_epoch} rows, less than a batch of {self._batch_size}: rows '
        'repeat in a batch.',
      )
    return ()
