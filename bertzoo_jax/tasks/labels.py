"""Labels as numbers: the classes of a task, the split of a train file that has no dev file."""

import hashlib
import math
import re
import unicodedata

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.tasks.examples import TRAIN
from bertzoo_jax.tasks.examples import Examples
from bertzoo_jax.tasks.examples import Source

_MANY = 20  # labels, beyond which a column that differs in most rows is taken for a mistake
# as pandas writes a list or a set
_LIST = re.compile(r'\[\s*([\'"].*[\'"]|-?\d.*)?\s*\]|\{\s*[\'"].*[\'"]\s*\}')
# how programs write that there is none: always, and where all others are numbers
_MISSING = '', 'nan', 'NaN', '<NA>'
_NO_NUMBER = 'none', 'null', 'na', 'n/a', 'nan', 'inf', '-inf'
_TRUE, _FALSE = ('1', '1.0', 'true', 'yes'), ('0', '0.0', 'false', 'no', '')


def numbered(source: Source, kind: str):
  """The labels of all splits as numbers.

  Args:
    source: of sources.BY_NAME.
    kind: classification | regression | multilabel.

  Returns:
    (names, splits, notes). names: tuple of labels in the order of their classes, () for scores.
    splits: {name: (Examples, array or None)}; the array is int32 [N] of classes, float32 [N] of
    scores, float32 [N, C] of several labels, None for a split without labels. `dev` is part of
    train where the source has no dev split. notes: sentences for the user.

  Raises:
    UserError: a label that is unknown, missing or no number; only one class.
  """
  notes, splits = [], {}
  several = len(source.label_columns) > 1
  if several != (kind == 'multilabel') and source.splits[TRAIN].labels is not None:
    raise errors.UserError(
      f'config.source.label names {len(source.label_columns)} column'
      f'{"s" if several else ""} ({", ".join(source.label_columns)}), and config.objective is '
      f'{kind}: '
      + (
        'several columns are for configs/tasks/own.py:multilabel.'
        if several
        else 'several labels per text need several columns of 0 and 1, with commas between.'
      )
    )
  if kind == 'regression' and source.stratified:
    raise errors.UserError(
      'config.source.stratified is of labels, and scores are no labels: leave it out.'
    )
  for name, examples in source.splits.items():
    if examples.labels is None and not name.startswith('test'):
      raise errors.UserError(
        'config.source.label is empty: name the column of the label, --config.source.label=NAME.'
      )
    splits[name], more = _without(examples, source.leave_out, name)
    notes += more
  notes += take_dev(splits, source)
  names, spellings = (), {}
  if kind == 'classification':
    names, spellings = _classes(splits[TRAIN], source.labels)
  notes += cap(splits, source)
  if kind == 'regression':
    return (), {n: (e, _scores(e, n)) for n, e in splits.items()}, notes
  if kind == 'multilabel':
    names = source.label_columns
    empty = {n: sum(own.count('') for own in e.labels or ()) for n, e in splits.items()}
    notes += [f'{n}: {many:,} empty labels are read as 0.' for n, many in empty.items() if many]
    return names, {n: (e, _marks(e, n, names)) for n, e in splits.items()}, notes
  out = {}
  for name, examples in splits.items():
    out[name] = (examples, None)
    if examples.labels is not None:
      array, unknown = _class_numbers(examples, spellings)
      if unknown is None:
        out[name] = (examples, array)
      elif name.startswith('test'):
        if examples.labels[unknown][0]:
          notes.append(
            f'{name}: its labels are not used, {examples.labels[unknown][0]!r} is none of train.'
          )
      else:
        raise _unknown(examples, unknown, names)
  return names, out, notes


def balanced(numbers, count: int) -> tuple[float, ...]:
  """Weights of classes by which all of them weigh the same: rows / (classes · rows of the class).

  numbers: classes of the rows, int [N]. count: of classes; one without rows has the weight of one
  row.
  """
  rows = np.maximum(np.bincount(numbers, minlength=count), 1)
  return tuple(float(x) for x in len(numbers) / (count * rows))


def cap(splits: dict, source: Source) -> list[str]:
  """Takes as many examples of train and dev as `source.caps` says, out of `splits`; its notes."""
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
  """Moves a share of train to the split `dev` if there is no dev split; the note about it, or none.

  Args:
    splits: {name: examples}, which is changed.
    source: has dev_share and stratified, see `held_out`.
    units, by: words of the note: the name of examples, and the rule that chooses them.
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
  """(the rest, a share of the examples), chosen by a hash of `examples.keys`.

  Equal keys go to the same side. The choice does not depend on the order of the examples or on a
  seed.

  stratified: whether the share is taken of the examples of each label; equal keys with different
    labels may then be parted.

  Raises:
    UserError: the share leaves one side without examples.
  """
  if not 0 < share < 1:
    raise errors.UserError(
      f'config.source.dev_share={share}: without a dev file a share between 0 and 1 is needed.'
    )
  hashes, strata, last = _hashes(examples), {}, {}
  labels = examples.labels if stratified else [()] * len(hashes)
  for label, h in zip(labels, hashes):
    strata.setdefault(label, []).append(h)
  for label, own in strata.items():
    count = max(round(share * len(own)), 0 if stratified else 1)
    last[label] = sorted(own)[count - 1] if count else b''
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
    return Examples(**{**vars(examples), 'labels': None}), []  # a test file whose labels are hidden
  listed = ' or '.join(map(repr, leave_out))
  return examples.take(kept), [f'{split}: {lost:,} examples with the label {listed} left out.']


def _classes(train, given):
  """(names, {spelling: class}) of config.source.labels, or of the train split."""
  if given:
    spellings = {s: i for i, names in enumerate(given) for s in names.split('|')}
    return tuple(names.split('|')[0] for names in given), spellings
  found = {label[0] for label in train.labels}
  words = {label for label in found if _number(label) is None}
  beside_numbers = words < found and all(word.lower() in _NO_NUMBER for word in words)
  # −1 to 1 and −2 to 2 are opinions; beside names, or beside 0, 1 and 2, −1 alone is no label
  no_gold = {x for x in found - words if _number(x) < 0}
  if len(found) <= 3 and not words or not {_number(x) for x in no_gold} <= {-1, -100}:
    no_gold = set()
  for label in sorted(words | no_gold):
    if label in _MISSING or beside_numbers or label in no_gold:
      place = train.places[train.labels.index((label,))]
      raise errors.UserError(
        f'{place} has no label{f", but {label!r}" if label else ""}: write one, or leave such rows '
        f'out with --config.source.leave_out="({label!r},)", or give all labels '
        '(--config.source.labels).'
      )
  if len(found) > max(_MANY, len(train) / 2):
    raise errors.UserError(
      f'The label column has {len(found):,} different values in {len(train):,} examples '
      f'({", ".join(map(repr, sorted(found)[:3]))}, …): name another column with '
      '--config.source.label, or take configs/tasks/own.py:regress for numbers.'
    )
  if len(found) == 1:
    raise errors.UserError(
      f'All {len(train):,} train examples have the label {min(found)!r}: there is nothing to '
      'learn; name another column with --config.source.label.'
    )
  _check_spellings(found, train)
  names = tuple(sorted(found, key=_number if all(_number(n) is not None for n in found) else str))
  return names, {name: i for i, name in enumerate(names)}


def _check_spellings(found, train):
  """Raises UserError for a label in two spellings (1 and 1.0, Joy and joy), or a list as text."""
  seen, place = {}, lambda label: train.places[train.labels.index((label,))]
  for label in sorted(found):
    if _LIST.fullmatch(label):
      raise errors.UserError(
        f'{place(label)} has the label {label!r}, a list: write one label per row, or a column of '
        '0 and 1 for each label (configs/tasks/own.py:multilabel).'
      )
    plain = unicodedata.normalize('NFKC', label).casefold()
    plain = ''.join(c for c in plain if unicodedata.category(c) != 'Cf')
    value = {'true': 1.0, 'false': 0.0}.get(plain, _number(plain))
    other = seen.setdefault(plain if value is None else value, label)
    if other != label:
      raise errors.UserError(
        f'{place(label)} has the label {label!r}, and other rows have {other!r}: spell both alike, '
        'or give all labels, with | between spellings of one, '
        f'--config.source.labels="(…, {f"{other}|{label}"!r}, …)".'
      )


def _class_numbers(examples, spellings):
  """(int32 [N], index of the first example with an unknown label or None)."""
  out = np.zeros(len(examples), np.int32)
  for i, (label,) in enumerate(examples.labels):
    if label not in spellings:
      return out, i
    out[i] = spellings[label]
  return out, None


def _unknown(examples, i, names):
  label = examples.labels[i][0]
  return errors.UserError(
    f'{examples.places[i]} has the label {label!r}, and the labels are '
    f'{", ".join(map(repr, names[:50]))}{", …" if len(names) > 50 else ""}: mend the row, leave '
    f'such rows out (--config.source.leave_out="({label!r},)") or give all labels '
    '(--config.source.labels).'
  )


def _number(text):
  """A text as a number; None if it is none."""
  try:
    value = float(text)
  except ValueError:
    return None
  return value if math.isfinite(value) else None


def _scores(examples, split):
  """float32 [N]; None for a test split without scores."""
  if examples.labels is None:
    return None
  values = [_number(label) for (label,) in examples.labels]
  if None in values:
    i = values.index(None)
    if split.startswith('test'):
      return None
    raise errors.UserError(
      f'{examples.places[i]} has the score {examples.labels[i][0]!r}, which is no number: mend the '
      'row, or take configs/tasks/own.py:classify for labels that are words.'
    )
  return np.array(values, np.float32)


def _marks(examples, split, names):
  """float32 [N, C] of 0 and 1; None for a test split without labels."""
  if examples.labels is None:
    return None
  out = np.zeros((len(examples), len(names)), np.float32)
  for i, labels in enumerate(examples.labels):
    for j, label in enumerate(labels):
      if label.lower() not in (*_TRUE, *_FALSE):
        raise errors.UserError(
          f'{examples.places[i]} has {label!r} in the column {names[j]!r}: a label of several is 1 '
          'or 0 (true, false, yes, no).'
        )
      out[i, j] = label.lower() in _TRUE
  return out
