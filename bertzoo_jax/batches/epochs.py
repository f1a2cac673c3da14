"""The row lists of epochs, and the order in which rows are read. A list is built when it is needed
or shortly before; a large split has one list per part.
"""

import dataclasses
import threading

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.common import hashing


class Parts:
  """The parts of a split with the format of each; the last two stay in memory."""

  def __init__(self, split, first_form, make_format):
    """split: splits.Split. first_form: the format over part 0. make_format: part (a Split) → its
    format.
    """
    self._split, self._make_format, self._lock = split, make_format, threading.Lock()
    self._loaded = {0: (split.part(0), first_form)}
    self.count = split.num_parts
    self.every_epoch = first_form.every_epoch

  def split(self, part):
    return self._get(part)[0]

  def form(self, part):
    return self._get(part)[1]

  def rows(self, rows_of_first: int, multiple: int) -> np.ndarray:
    """Rows per epoch of each part, int64. Part 0: all rows of its list. Other parts: estimated by
    the rows per token of part 0.

    Exact counts would need an index of the whole split. Parts are alike, so each epoch misses only
    a few rows: others in each epoch, but of lanes always the last ones. multiple: if there are
    several parts, each has a multiple of this number of rows.
    """
    if self.count == 1:
      return np.array([rows_of_first])
    tokens = np.array([self._split.part(p).num_tokens for p in range(self.count)])
    return (
      np.maximum(tokens * (rows_of_first / tokens[0]) // multiple, 1).astype(np.int64) * multiple
    )

  def _get(self, part):
    with self._lock:
      if part in self._loaded:
        self._loaded[part] = self._loaded.pop(part)  # most recently used last
        return self._loaded[part]
    split = self._split.part(part)  # takes seconds: threads for other parts must not wait
    loaded = (split, self._make_format(split))
    with self._lock:
      self._loaded[part] = loaded
      while len(self._loaded) > 2:
        self._loaded.pop(next(iter(self._loaded)))
    return loaded


class Lists:
  """The row lists of epochs and parts: keeps the last few, builds the next one in the background.

  key: a pair of uint32, folded from seed, phase and split.
  """

  def __init__(self, parts, key, kept=2):
    self.parts, self._key, self._kept = parts, key, kept
    self._lock, self._built, self._building = threading.Lock(), {}, {}

  def get(self, epoch, part=0):
    """The row list of a part in an epoch. Waits until it is built."""
    name = self._name(epoch, part)
    with self._lock:
      if name in self._built:
        self._built[name] = self._built.pop(name)  # most recently used last
        return self._built[name]
      thread = self._start(name)
    thread.join()
    if thread.failure:
      raise thread.failure
    return thread.rows

  def prepare(self, epoch, part=0):
    """Starts building a list in a thread, unless it is built already."""
    name = self._name(epoch, part)
    with self._lock:
      if name not in self._built:
        self._start(name)

  def key(self, epoch, part=0, purpose=hashing.EPOCH):
    """The key of the list of a part in an epoch, or of another draw there."""
    key = hashing.fold(hashing.fold(self._key, purpose), epoch)
    return hashing.fold(key, part) if self.parts.count > 1 else key

  def _name(self, epoch, part):
    return (epoch if self.parts.every_epoch else 0, part)

  def _start(self, name):
    if name not in self._building:
      self._building[name] = _Builder(self._build, name)
      self._building[name].start()
    return self._building[name]

  def _build(self, name):
    rows = self.parts.form(name[1]).rows(self.key(*name))
    with self._lock:
      self._built[name] = rows
      while len(self._built) > self._kept:
        self._built.pop(next(iter(self._built)))
      self._building.pop(name)
    return rows


class _Builder(threading.Thread):
  """A thread that keeps the result or the exception of its function."""

  def __init__(self, build, name):
    super().__init__(daemon=True)
    self._build, self._list, self.rows, self.failure = build, name, None, None

  def run(self):
    try:
      self.rows = self._build(self._list)
    except Exception as e:
      self.failure = e


@dataclasses.dataclass(frozen=True)
class Order:
  """Maps a place in the order of a phase to a row of a row list."""

  split: str  # name of the split
  lists: Lists  # its row lists
  rows_of_parts: np.ndarray  # rows per epoch of each part, int64
  repeat: int  # number of epochs after which the lists repeat; 0: never
  in_lanes: bool  # rows continue from step to step, and are not shuffled

  @property
  def rows_per_epoch(self) -> int:
    """N, the rows of an epoch."""
    return int(self.rows_of_parts.sum())

  def stretches(self, epoch, place):
    """Yields (epoch, part, places in the part) for the rows of each epoch and part."""
    for e in np.unique(epoch).tolist():
      places, visited = place[epoch == e], self._visited(e)
      ends = np.cumsum(self.rows_of_parts[visited])
      slot = ends.searchsorted(places, 'right')
      for s in dict.fromkeys(slot.tolist()):
        yield e, int(visited[s]), places[slot == s] - (ends[s] - self.rows_of_parts[visited[s]])

  def rows(self, epoch, part, places, shuffled):
    """(row list, row numbers, key) for places of a part. shuffled: whether places are in the
    epoch's shuffled order, else in the list's; if so, the next list is built in time.
    """
    listed = self._listed(epoch)
    rows = self.lists.get(listed, part)
    if not len(rows):
      raise errors.UserError(
        f'Part {part} of the split {self.split!r} gives no row of this format in epoch {epoch}: '
        'prepare more text, or take another --config.format.'
      )
    numbers = places % len(rows)
    if shuffled:
      numbers = hashing.permute(self.lists.key(epoch, part, hashing.SHUFFLE), len(rows), numbers)
      if places[-1] * 2 > self.rows_of_parts[part]:
        self.lists.prepare(*self._after(epoch, part))
    return rows, numbers, self.lists.key(listed, part)

  def _visited(self, epoch):
    """The parts in the order in which an epoch visits them."""
    count = len(self.rows_of_parts)
    if count == 1:
      return np.zeros(1, np.int64)
    return hashing.permute(
      self.lists.key(epoch, hashing.PARTS, hashing.SHUFFLE), count, np.arange(count)
    )

  def _after(self, epoch, part):
    """(epoch, part) of the list that follows the one of this epoch and part."""
    visited = self._visited(epoch).tolist()
    at = visited.index(part) + 1
    if at < len(visited):
      return self._listed(epoch), visited[at]
    return self._listed(epoch + 1), int(self._visited(epoch + 1)[0])

  def _listed(self, epoch):
    return epoch % self.repeat if self.repeat else epoch
