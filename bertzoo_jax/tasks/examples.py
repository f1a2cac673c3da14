"""The examples of a task as they are read, before tokens and class numbers."""

import dataclasses
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

TRAIN = 'train'
PREFIXES = (TRAIN, 'dev', 'test')
UNLABELLED = 'test without labels'  # the split of a file whose labels are not read


def taken(self, indices):
  """The examples with these indices; fields that are no lists stay."""
  lists = {k: v for k, v in vars(self).items() if isinstance(v, list)}
  return dataclasses.replace(self, **{k: [v[i] for i in indices] for k, v in lists.items()})


@dataclasses.dataclass(frozen=True)
class Examples:
  """The examples of one split, as read.

  Attributes:
    a: first texts.
    b: second texts; None for a task of single texts.
    labels: as written, a tuple of texts per example (one, or one per label column); None if the
      split has none.
    ids: how a submission calls each example: the value of its column, or its number from 0.
    places: where each example is, for messages ('FILE, line 7').
  """

  a: list[str]
  b: list[str] | None
  labels: list[tuple[str, ...]] | None
  ids: list[str]
  places: list[str]
  take = taken

  def __len__(self):
    return len(self.a)

  @property
  def keys(self) -> list[str]:
    """A text for each example that tells it from others; equal texts have equal ones."""
    return [f'{a}\x1f{b}' for a, b in zip(self.a, self.b or [''] * len(self.a))]


@dataclasses.dataclass(frozen=True)
class Source:
  """The examples of a task.

  Attributes:
    splits: {name: examples}: `train`, and names that begin with `dev` or `test`. All are of one
      class, Examples or another with len(), ids, keys and take(indices).
    labels: the labels in the order of their classes, 'a|b' where b is another spelling of a; ()
      for those of train, sorted.
    label_columns: their names, with several columns one label each.
    leave_out: labels whose examples are left out.
    dev_share: of train, which becomes `dev` where there is no such split; stratified: whether this
      share is of each label.
    digest: SHA-256 of all bytes that were read.
    notes: sentences about files and rows for the user.
    read: function path of a file → examples without labels, for predictions.
    caps: {'train' | 'dev': most examples of such splits}; 0 for all.
  """

  splits: dict[str, Any]
  labels: tuple[str, ...] = ()
  label_columns: tuple[str, ...] = ()
  leave_out: tuple[str, ...] = ()
  dev_share: float = 0.1
  digest: str = ''
  notes: tuple[str, ...] = ()
  read: Callable | None = None
  stratified: bool = False
  caps: Mapping[str, int] = dataclasses.field(default_factory=dict)
