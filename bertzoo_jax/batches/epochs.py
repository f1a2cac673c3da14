"""The row lists of epochs, built when they are needed or a little before; of a large split for a
part at a time.
"""

import threading

import numpy as np


class Parts:
  """The parts of a split with the format of each; the last two stay in memory."""

  def __init__(self, split, first_form, form_of):
    """Args: split: splits.Split. first_form: the format over part 0. form_of: part (a Split) -> its
    format.
    """
    self._split, self._form_of, self._lock = split, form_of, threading.Lock()
    self._made = {0: (split.part(0), first_form)}
    self.count = split.num_parts
    self.every_epoch = first_form.every_epoch

  def split(self, part):
    return self._get(part)[0]

  def form(self, part):
    return self._get(part)[1]

  def rows(self, of_first: int, multiple: int) -> np.ndarray:
    """Rows an epoch visits of each part, int64: of part 0 what its list holds, of the others as
    many a token.

    Counting theirs would mean to index the whole split; parts are alike, so what this misses is a
    small share of an epoch, drawn anew each time (of lanes, always their ends). `multiple`: of
    which the rows of a part are to be a multiple, where there are several.
    """
    if self.count == 1:
      return np.array([of_first])
    tokens = np.array([self._split.part(p).num_tokens for p in range(self.count)])
    return np.maximum(tokens * (of_first / tokens[0]) // multiple, 1).astype(np.int64) * multiple

  def _get(self, part):
    with self._lock:
      if part in self._made:
        self._made[part] = self._made.pop(part)  # most recently used last
        return self._made[part]
    split = self._split.part(part)  # takes seconds: who needs another part must not wait
    made = (split, self._form_of(split))
    with self._lock:
      self._made[part] = made
      while len(self._made) > 2:
        self._made.pop(next(iter(self._made)))
    return made


class Lists:
  """The row lists of epochs and parts: the last few, and the next one, built in the background."""

  def __init__(self, parts, epoch_key, kept=2):
    self._parts, self._epoch_key, self._kept = parts, epoch_key, kept
    self._lock, self._built, self._building = threading.Lock(), {}, {}

  def get(self, epoch, part=0):
    """The list of a part in an epoch; waits for it, or builds it."""
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
    """Starts building a list in a thread of its own, unless it is there."""
    name = self._name(epoch, part)
    with self._lock:
      if name not in self._built:
        self._start(name)

  def _name(self, epoch, part):
    return (epoch if self._parts.every_epoch else 0, part)

  def _start(self, name):
    if name not in self._building:
      self._building[name] = _Builder(self._build, name)
      self._building[name].start()
    return self._building[name]

  def _build(self, name):
    rows = self._parts.form(name[1]).rows(self._epoch_key(*name))
    with self._lock:
      self._built[name] = rows
      while len(self._built) > self._kept:
        self._built.pop(next(iter(self._built)))
      self._building.pop(name)
    return rows


class _Builder(threading.Thread):
  """A thread that keeps what its function returned or raised."""

  def __init__(self, build, name):
    super().__init__(daemon=True)
    self._build, self._list, self.rows, self.failure = build, name, None, None

  def run(self):
    try:
      self.rows = self._build(self._list)
    except Exception as e:
      self.failure = e
