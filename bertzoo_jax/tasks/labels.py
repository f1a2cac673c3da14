"""The labels of a task as numbers, and the split of a train file that has no dev file."""

import hashlib

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.tasks.examples import TRAIN
from bertzoo_jax.tasks.examples import Source


def numbered(source: Source, kind):
  """The labels of all splits as numbers.

  source: Source of one of sources.BY_NAME. kind: Kind of the task. Raises UserError: a label that
  is unknown, missing or of another form; only one class.

  Returns (names, splits, notes). names: of the labels, in the order of their classes. splits:
  {name: (examples, array or None)}; the array is from `kind.encode`. `dev` is part of train if the
  source has no dev split. notes: sentences for the user.
  """
  kind.accept(source)
  notes, splits, inputs = [], {}, kind.inputs
  for name, examples in source.splits.items():
    if examples.labels is None and not name.startswith('test'):
      raise errors.UserError(inputs.unlabelled(name, examples))
    splits[name], more = _without(examples, source.leave_out, name)
    notes += more
  notes += take_dev(splits, source, inputs.units, inputs.chosen_by)
  splits[TRAIN], more = kind.learnable(splits[TRAIN])
  names = kind.names(splits[TRAIN], source)
  notes += more + cap(splits, source)
  out = {}
  for name, examples in splits.items():
    array, more = None, []
    if examples.labels is not None:
      array, more = kind.encode(examples, name, names, source)
    out[name] = examples, array
    notes += more
  return names, out, notes


def balanced(numbers, count: int) -> tuple[float, ...]:
  """Weights that give all classes the same total: rows / (classes · rows of the class).

  numbers: classes of the rows, int [N]. count: number of classes; an empty class counts as one row.
  """
  rows = np.maximum(np.bincount(numbers, minlength=count), 1)
  return tuple(float(x) for x in len(numbers) / (count * rows))


def cap(splits: dict, source: Source) -> list[str]:
  """Cuts train and dev in `splits` to the numbers of `source.caps`; returns notes."""
  notes = []
  for name, examples in splits.items():
    group = 'dev' if name.startswith('dev') else name
    if (most := source.caps.get(group)) and most < len(examples):
      hashes = _hashes(examples)
      kept = sorted(sorted(range(len(examples)), key=lambda i: (hashes[i], i))[:most])
      splits[name] = examples.take(kept)
      notes.append(f'{name}: {most:,} of {len(examples):,} are taken (max_{group}), by a hash.')
  return notes


def take_dev(splits: dict, source: Source, units='examples', by='a hash') -> list[str]:
  """Moves a share of train to `dev` in `splits` if there is no dev split; returns notes. units, by:
  the name of examples, and the rule that chooses them, for the note.
  """
  if any(name.startswith('dev') for name in splits):
    return []
  whole = len(splits[TRAIN])
  splits[TRAIN], splits['dev'] = held_out(splits[TRAIN], source.dev_share, source.stratified)
  return [
    f'No dev file: {len(splits["dev"]):,} of the {whole:,} train {units} are dev, chosen by {by} '
    '(source.dev_share).'
  ]


def held_out(examples, share: float, stratified: bool = False) -> tuple:
  """(the rest, a share of the examples), chosen by a hash of `examples.keys`: equal keys go to
  the same side. stratified: whether the share is taken of each label; it may part equal keys.

  Raises UserError: the share leaves one side without examples.
  """
  if not 0 < share < 1:
    raise errors.UserError(
      f'config.source.dev_share={share}: without a dev file a share between 0 and 1 is needed.'
    )
  hashes, strata, last = _hashes(examples), {}, {}
  labels = examples.labels if stratified else [()] * len(hashes)
  for label, h in zip(labels, hashes):
    strata.setdefault(label, []).append(h)
  for label, group in strata.items():
    count = max(round(share * len(group)), 0 if stratified else 1)
    last[label] = sorted(group)[count - 1] if count else b''
  is_dev = [h <= last[label] for label, h in zip(labels, hashes)]
  sides = [i for i, x in enumerate(is_dev) if not x], [i for i, x in enumerate(is_dev) if x]
  if not sides[0] or not sides[1]:
    raise errors.UserError(
      f'The train file has {len(hashes):,} examples with {len(set(hashes)):,} different texts, too '
      'few to take a dev split from: name a dev file, --config.source.files.dev=FILE.'
    )
  return examples.take(sides[0]), examples.take(sides[1])


def _hashes(examples) -> list[bytes]:
  return [hashlib.sha256(key.encode()).digest() for key in examples.keys]


def _without(examples, leave_out, split):
  if not leave_out or examples.labels is None:
    return examples, []
  kept = [i for i, label in enumerate(examples.labels) if label[0] not in leave_out]
  lost = len(examples) - len(kept)
  if not lost:
    return examples, []
  if not kept:
    return examples.unlabelled(), []  # a test file whose labels are hidden
  listed = ' or '.join(map(repr, leave_out))
  return examples.take(kept), [f'{split}: {lost:,} examples with the label {listed} left out.']
