"""Report lines that several kinds of tasks share: labels in a table, lengths, repeated texts."""

import numpy as np

from bertzoo_jax.tasks.examples import TRAIN

_SHOWN = 30  # labels of a table


def labelled(task) -> dict:
  """{name: split} of the splits with labels."""
  return {name: s for name, s in task.splits.items() if s.labels is not None}


def label_lines(labels, counts) -> list[str]:
  """A table of how often each label occurs.

  labels: names. counts: {split: (how often each label occurs [C], the total)}.
  """
  wide = max(len(label[:40]) for label in ('label', *labels))
  lines = ['label'.ljust(wide) + ''.join(f'{name:>20}' for name in counts)]
  for c, label in enumerate(labels[:_SHOWN]):
    cells = (f'{int(n[c]):,} {n[c] / max(total, 1):7.1%}' for n, total in counts.values())
    lines.append(label[:40].ljust(wide) + ''.join(f'{cell:>20}' for cell in cells))
  if len(labels) > _SHOWN:
    lines.append(f'… and {len(labels) - _SHOWN} more labels')
  if TRAIN in counts:
    if absent := [label for c, label in enumerate(labels) if not counts[TRAIN][0][c]]:
      lines.append(f'No train example has the label {", ".join(map(repr, absent[:10]))}.')
  return lines


def class_lines(task, names, shown=repr, numbers=lambda split: split.labels) -> list[str]:
  """`label_lines` of classes, and the score of always saying train's most frequent one.

  names: of the classes. shown: name → its words in the sentence. numbers: split → its classes.
  """
  each = {name: numbers(split) for name, split in labelled(task).items()}
  counts = {n: (np.bincount(ids, minlength=len(names)), len(ids)) for n, ids in each.items()}
  usual = int(np.argmax(counts[TRAIN][0]))
  shares = ', '.join(
    f'{name} {count[usual] / max(total, 1):.1%}'
    for name, (count, total) in counts.items()
    if name != TRAIN
  )
  always = f'Majority baseline (always {shown(names[usual])}), accuracy: {shares}'
  return [*label_lines(names, counts), always]


def length_lines(task) -> list[str]:
  """Tokens per row of each split, and how many rows were cut."""
  return [
    f'{s.name}: tokens per row median {int(np.median(s.uncut))}, 95 % at most '
    f'{int(np.quantile(s.uncut, 0.95))}, longest {s.uncut.max()}; {np.mean(s.truncated):.1%} '
    f'cut to {task.max_length}'
    for s in task.splits.values()
  ]


def repeat_lines(task) -> list[str]:
  """Examples that are repeated, and examples of other splits that train has, too."""
  train = task.splits[TRAIN].source
  repeated = len(train) - len(set(train.keys))
  lines = [f'train: {repeated:,} examples are repeated'] if repeated else []
  return lines + known_lines(task, '{known:,} of {total:,} examples')


def known_lines(task, what: str) -> list[str]:
  """How many examples share a key with train. what: the sentence, with `known` and `total`."""
  lines, learned = [], set(task.splits[TRAIN].source.keys)
  for s in task.splits.values():
    if s.name != TRAIN and (known := sum(key in learned for key in s.source.keys)):
      lines.append(f'{s.name}: {what.format(known=known, total=len(s.source))} are in train, too')
  return lines
