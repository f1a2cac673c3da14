"""A task ready for training: its splits as rows of tokens, and its report at the start."""

import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import numpy as np

from bertzoo_jax.tasks.kinds import kind as kind_lib


@dataclasses.dataclass(frozen=True)
class Split:
  """N units of a task, of which batches are made: rows of tokens, or groups of `group` rows."""

  name: str  # train, dev… or test…
  # ids, segments: int32 [T], concatenated rows
  ids: np.ndarray
  segments: np.ndarray
  offsets: np.ndarray  # int64 [N · group + 1]: row i is ids[offsets[i]:offsets[i + 1]]
  uncut: np.ndarray  # int64 [N · group], tokens of each row before its texts were cut
  labels: np.ndarray | None  # None for a split without labels
  # rows: labels are [N, …] | tokens: int32 [T], −1 for tokens without a loss | places: int32 [N,
  # K], positions of tokens in their row
  label_axis: str
  group: int  # rows per unit
  features: Mapping[str, np.ndarray]  # {name: [N, …]} for the batch
  token_features: Mapping[str, np.ndarray]  # {name: int32 [T]}
  examples: list[str]  # name of each example in a submission
  source: Any  # the examples as read
  detail: Any  # depends on the kind: which rows belong to which examples
  # label_shape, label_type: shape and dtype of the labels of one unit
  label_shape: tuple[int, ...]
  label_type: type

  def __len__(self):
    return (len(self.offsets) - 1) // self.group

  @functools.cached_property
  def sizes(self) -> np.ndarray:
    """Tokens of each row, int64 [N · group]."""
    return np.diff(self.offsets)

  @functools.cached_property
  def lengths(self) -> np.ndarray:
    """Tokens of the longest row of each unit, int64 [N]."""
    return self.sizes.reshape(len(self), self.group).max(axis=1, initial=0)

  @property
  def truncated(self) -> np.ndarray:
    """Whether each row was cut, bool [N · group]."""
    return self.uncut > self.sizes

  def rows(self, units: np.ndarray) -> np.ndarray:
    """The numbers of the rows of these units, int64."""
    return (units[:, None] * self.group + np.arange(self.group)).reshape(-1)

  def row(self, i: int) -> np.ndarray:
    return self.ids[self.offsets[i] : self.offsets[i + 1]]

  def no_labels(self, units: int) -> np.ndarray:
    """Labels of a batch of a split without labels: zeros."""
    return np.zeros((units, *self.label_shape), self.label_type)


@dataclasses.dataclass(frozen=True)
class Task:
  name: str  # config.name
  kind: kind_lib.Kind  # its Kind
  labels: tuple[str, ...]  # in the order of their classes; () for a task without labels
  metrics: tuple[str, ...]  # names; the first is the dev score
  splits: dict[str, Split]  # {name: Split}: train, then dev…, then test…
  hash: str  # SHA-256 of the files and of all rows and labels made of them
  max_length: int  # tokens of a row, at most
  padding: str  # left | right
  pad: int  # id of the padding token
  notes: tuple[str, ...]  # sentences about files and rows
  # facts of the train split, needed by predictions; JSON, kept with the run
  facts: Mapping[str, Any]
  rows: Callable  # function (examples, their labels as numbers or None, name) → Split
  # function path of a file → Split without labels; None of a trained network
  read: Callable | None = None
  # function seed → the task with as many examples, drawn with replacement; None as `read`
  drawn: Callable | None = None
  positive: str = ''  # the label that metrics of one label count; '' for none
  logit_threshold: float = 0.0  # the logit above which one of several labels is predicted

  @property
  def sign(self) -> int:
    """1 if a higher first metric is better, −1 if a lower one is."""
    return kind_lib.sign(self.kind, self.metrics[0])

  def report(self) -> str:
    """Labels, baseline, lengths and oddities of the files, as lines of text."""
    name, first = self.name or '(without a name)', self.metrics[0]
    how = 'higher' if self.sign > 0 else 'lower'
    direction = f' ({how} is better)' * (how == 'lower' or ':' in first)
    heading, *lines = self.kind.report(self)
    lines = [
      f'Task {name}: {heading}; metrics {", ".join((first + direction, *self.metrics[1:]))}',
      ' · '.join(f'{s.name} {len(s.source):,}' for s in self.splits.values()),
      *lines,
      *self.notes,
    ]
    return '\n  '.join(lines)
