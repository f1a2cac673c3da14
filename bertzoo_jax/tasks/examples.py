"""The examples of a task as they are read, before tokens and class numbers."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

TRAIN = 'train'
PREFIXES = (TRAIN, 'dev', 'test')
UNLABELLED = 'test without labels'  # the split of a file whose labels are not read


class Record(NamedTuple):
  place: str  # for messages: within its file ('line 7'); in Examples, with the file's name
  id: str | None  # its name in a submission, from the file; None for its number from 0
  # a Text, Sentence, Question or Choice. It has `label` or None; `key`, equal for examples that
  # must be on the same side of a split; and `form`, for messages.
  value: Any


class Skipped(NamedTuple):
  """An example that is left out."""

  place: str  # as in Record; '' if the config asks to leave it out
  reason: str  # words of the note, after '3 lines of FILE'
  unit: str = ''  # '' for the first word of the place
  # if not empty, a file that loses most of its examples for this reason is refused with it
  remedy: str = ''
  # words after 'FILE has no', if the file has no other examples; '' for the usual words
  alone: str = ''


class Text(NamedTuple):
  """A text or a pair; b: None for a single text. label: as written, a text per label column.
  negatives: texts that are unlike a.
  """

  a: str
  b: str | None = None
  label: tuple[str, ...] | None = None
  negatives: tuple[str, ...] = ()
  form = 'examples'

  @property
  def key(self) -> str:
    return f'{self.a}\x1f{self.b or ""}'


@dataclasses.dataclass(frozen=True)
class Examples:
  """The examples of one split: all with labels, or all without."""

  records: list[Record]

  def __len__(self):
    return len(self.records)

  def column(self, name: str) -> list:
    return [getattr(record.value, name) for record in self.records]

  values = functools.cached_property(lambda self: [record.value for record in self.records])
  ids = functools.cached_property(lambda self: [record.id for record in self.records])
  places = functools.cached_property(lambda self: [record.place for record in self.records])
  keys = functools.cached_property(lambda self: self.column('key'))

  @functools.cached_property
  def labels(self) -> list | None:
    """The label of each example; None if the split has none."""
    labels = self.column('label')
    return None if None in labels[:1] else labels

  def take(self, indices) -> 'Examples':
    return Examples([self.records[i] for i in indices])

  def changed(self, change: Callable) -> 'Examples':
    """The examples with change(record) as the value of each."""
    return Examples([record._replace(value=change(record)) for record in self.records])

  def unlabelled(self) -> 'Examples':
    return self.changed(lambda record: record.value._replace(label=None))


@dataclasses.dataclass(frozen=True)
class Source:
  # {name: examples}: `train`, and names that begin with `dev` or `test`
  splits: dict[str, Examples]
  # the labels in the order of their classes, 'a|b' where b is another spelling of a; () for those
  # of train, sorted
  labels: tuple[str, ...] = ()
  label_columns: tuple[str, ...] = ()  # their names, with several columns one label each
  leave_out: tuple[str, ...] = ()  # labels whose examples are left out
  dev_share: float = 0.1  # share of train that becomes `dev` if there is no such split
  digest: str = ''  # SHA-256 of all bytes that were read
  notes: tuple[str, ...] = ()  # sentences about files and rows for the user
  read: Callable | None = None  # function path of a file → examples without labels, for predictions
  stratified: bool = False  # whether the share is taken per label
  # {'train' | 'dev': most examples of such splits}; 0 for all
  caps: dict[str, int] = dataclasses.field(default_factory=dict)
