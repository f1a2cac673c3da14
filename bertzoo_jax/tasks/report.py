"""Lines about a task that several kinds share: labels in a table, lengths, repeated texts."""

import numpy as np

from bertzoo_jax.tasks.examples import TRAIN

_SHOWN = 30  # labels of a table


def label_lines(labels, counts) -> list[str]:
  """A table of how often each label occurs.

  Args:
    labels: names.
    counts: {split: (how often each label occurs [C], of how many)}.
  """
  wide = max(len(label[:40]) for label in ('label', *labels))
  lines = ['label'.ljust(wide) + ''.join(f'{name:>20}' for name in counts)]
  for c, label in enumerate(labels[:_SHOWN]):
    cells = (f'{int(many[c]):,} {many[c] / max(of, 1):7.1%}' for many, of in counts.values())
    lines.append(label[:40].ljust(wide) + ''.join(f'{cell:>20}' for cell in cells))
  if len(labels) > _SHOWN:
    lines.append(f'… and {len(labels) - _SHOWN} more labels')
  if TRAIN in counts:
    if absent := [label for c, label in enumerate(labels) if not counts[TRAIN][0][c]]:
      lines.append(f'No train example has the label {", ".join(map(repr, absent[:10]))}.')
  return lines


def length_lines(task) -> list[str]:
  """Tokens per row of each split, and how many rows were cut."""
  return [
    f'{s.name}: tokens per row median {int(np.median(s.uncut))}, 95 % at most '
    f'{int(np.quantile(s.uncut, 0.95))}, longest {s.uncut.max()}; {np.mean(s.truncated):.1%} '
    f'cut to {task.max_length}'
    for s in task.splits.values()
  ]


def window_lines(task) -> list[str]:
  """Tokens per row of each split whose long texts are windows."""
  return [
    f'{s.name}: tokens per row median {int(np.median(s.sizes))}, longest {s.sizes.max()}'
    for s in task.splits.values()
  ]


def repeat_lines(task) -> list[str]:
  """Examples that are repeated, and examples of other splits that train has, too."""
  lines, train = [], task.splits[TRAIN].source
  learned = set(train.keys)
  if len(learned) < len(train):
    lines.append(f'train: {len(train) - len(learned):,} examples are repeated')
  for s in task.splits.values():
    if s.name != TRAIN and (known := sum(key in learned for key in s.source.keys)):
      lines.append(f'{s.name}: {known:,} of {len(s.source):,} examples are in train, too')
  return lines
