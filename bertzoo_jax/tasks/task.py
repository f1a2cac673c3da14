"""A task ready for training: its splits as rows of tokens, and what is said of it at the start."""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from bertzoo_jax.tasks.examples import TRAIN


@dataclasses.dataclass(frozen=True)
class Split:
  """N rows of tokens with their labels.

  Attributes:
    name: train, dev… or test….
    ids, segments: int32 [sum of lengths], rows behind one another.
    offsets: int64 [N + 1]: row i is ids[offsets[i]:offsets[i + 1]].
    labels: int32 [N] classes, float32 [N] scores, float32 [N, C] of 0 and 1; None where the split
      has none.
    examples: name of each example in a submission.
    texts: first texts; second: second texts, None for single texts; both as read.
    uncut: int64 [N], tokens of each row before its texts were cut.
    label_shape: of the labels of one row, () or (C,); label_type: their dtype.
  """

  name: str
  ids: np.ndarray
  segments: np.ndarray
  offsets: np.ndarray
  labels: np.ndarray | None
  examples: list[str]
  texts: list[str]
  second: list[str] | None
  uncut: np.ndarray
  label_shape: tuple[int, ...]
  label_type: type

  def __len__(self):
    return len(self.offsets) - 1

  @functools.cached_property
  def lengths(self) -> np.ndarray:
    """Tokens of each row, int64 [N]."""
    return np.diff(self.offsets)

  @property
  def truncated(self) -> np.ndarray:
    """Which rows were cut, bool [N]."""
    return self.uncut > self.lengths

  def row(self, i: int) -> np.ndarray:
    """The ids of one row."""
    return self.ids[self.offsets[i] : self.offsets[i + 1]]

  def no_labels(self, rows: int) -> np.ndarray:
    """Labels of a batch of a split without labels: zeros."""
    return np.zeros((rows, *self.label_shape), self.label_type)


@dataclasses.dataclass(frozen=True)
class Task:
  """What fine-tuning learns.

  Attributes:
    name: config.name.
    kind: classification | regression | multilabel.
    labels: in the order of their classes; () for a score.
    num_outputs: of the network.
    metrics: names; the first is the dev score.
    splits: {name: Split}: train, then dev…, then test….
    hash: SHA-256 of what was read and of all rows and labels made of it.
    max_length: tokens of a row, at most.
    padding: left | right. pad: id of the padding token.
    notes: sentences about files and rows.
    read: function path of a table → Split without labels, for predictions.
  """

  name: str
  kind: str
  labels: tuple[str, ...]
  num_outputs: int
  metrics: tuple[str, ...]
  splits: dict[str, Split]
  hash: str
  max_length: int
  padding: str
  pad: int
  notes: tuple[str, ...]
  read: Callable

  def report(self) -> str:
    """Classes, majority baseline, lengths and what is odd about the files, as lines of text."""
    heading = f'Task {self.name or "(without a name)"}: ' + {
      'classification': f'{len(self.labels)} classes',
      'multilabel': f'{len(self.labels)} labels, each true or false',
      'regression': 'a score',
    }.get(self.kind, self.kind)
    lines = [
      f'{heading}; metrics {", ".join(self.metrics)}',
      '  ' + ' · '.join(f'{s.name} {len(s):,}' for s in self.splits.values()),
      *{
        'classification': self._class_lines,
        'multilabel': self._mark_lines,
        'regression': self._score_lines,
      }[self.kind](),
      *self._length_lines(),
      *self._text_lines(),
      *self.notes,
    ]
    return '\n  '.join(
      lines[:1] + [line.strip() if i == 0 else line for i, line in enumerate(lines[1:])]
    )

  def _labelled(self):
    return [s for s in self.splits.values() if s.labels is not None]

  def _class_lines(self):
    splits, shown = self._labelled(), 30
    counts = {s.name: np.bincount(s.labels, minlength=len(self.labels)) for s in splits}
    wide = max(len(label[:40]) for label in ('label', *self.labels))
    lines = ['label'.ljust(wide) + ''.join(f'{s.name:>20}' for s in splits)]
    for c, label in enumerate(self.labels[:shown]):
      cells = (f'{counts[s.name][c]:,} {counts[s.name][c] / len(s):7.1%}' for s in splits)
      lines.append(label[:40].ljust(wide) + ''.join(f'{cell:>20}' for cell in cells))
    if len(self.labels) > shown:
      lines.append(f'… and {len(self.labels) - shown} more labels')
    if absent := [l for c, l in enumerate(self.labels) if not counts[TRAIN][c]]:
      lines.append(f'No train example has the label {", ".join(map(repr, absent[:10]))}.')
    common = int(np.argmax(counts[TRAIN]))
    shares = (f'{s.name} {np.mean(s.labels == common):.1%}' for s in splits if s.name != TRAIN)
    lines.append(
      f'Majority baseline (always {self.labels[common]!r}), accuracy: {", ".join(shares)}'
    )
    return lines

  def _mark_lines(self):
    splits = self._labelled()
    wide = max(len(label[:40]) for label in ('label', *self.labels))
    lines = ['label'.ljust(wide) + ''.join(f'{s.name:>20}' for s in splits)]
    for c, label in enumerate(self.labels):
      cells = (f'{int(s.labels[:, c].sum()):,} {s.labels[:, c].mean():7.1%}' for s in splits)
      lines.append(label[:40].ljust(wide) + ''.join(f'{cell:>20}' for cell in cells))
    usual = self.splits[TRAIN].labels.mean(axis=0) > 0.5
    shares = (
      f'{s.name} {np.mean(np.all((s.labels > 0.5) == usual, axis=1)):.1%}'
      for s in splits
      if s.name != TRAIN
    )
    lines.append(f'Baseline (each label as most of train has it), all right: {", ".join(shares)}')
    return lines

  def _score_lines(self):
    mean = self.splits[TRAIN].labels.mean()
    return [
      f'{s.name}: scores {s.labels.min():g} to {s.labels.max():g}, mean {s.labels.mean():.3f}; '
      f'always {mean:.3f} has a squared error of {np.mean((s.labels - mean) ** 2):.3f}'
      for s in self._labelled()
    ]

  def _length_lines(self):
    lines = []
    for s in self.splits.values():
      lengths = s.uncut
      lines.append(
        f'{s.name}: tokens per row median {int(np.median(lengths))}, 95 % at most '
        f'{int(np.quantile(lengths, 0.95))}, longest {lengths.max()}; {np.mean(s.truncated):.1%} '
        f'cut to {self.max_length}'
      )
    return lines

  def _text_lines(self):
    lines, train = [], self.splits[TRAIN]
    learned = set(_texts(train))
    if len(learned) < len(train):
      lines.append(f'train: {len(train) - len(learned):,} examples are repeated')
    for s in self.splits.values():
      empty = sum(not any(text.strip() for text in texts) for texts in _texts(s))
      if empty:
        lines.append(f'{s.name}: {empty:,} examples have no text')
      if s.name != TRAIN and (known := sum(texts in learned for texts in _texts(s))):
        lines.append(f'{s.name}: {known:,} of {len(s):,} examples are in train, too')
    return lines


def _texts(split):
  """(first text, second text) of each example."""
  return zip(split.texts, split.second) if split.second else ((text,) for text in split.texts)
