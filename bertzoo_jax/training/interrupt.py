"""Being asked to stop: SIGTERM (preemption) and the first SIGINT (Ctrl-C) let a run save and end with exit code 0."""

import contextlib
import signal

import jax
from jax.experimental import multihost_utils


class Interrupt:
  """Remembers the signal; a second SIGINT ends the process at once."""

  def __init__(self):
    self.name = None  # what asked for the end; with several hosts the same on all
    self._asked, self._alone = False, True

  @contextlib.contextmanager
  def listening(self):
    """Handles signals inside a `with`. With several hosts jax's own notice of SIGTERM is used, so that all agree on a step."""
    self._alone = jax.process_count() == 1  # here, since a handler must not ask what takes a lock
    wanted = (signal.SIGTERM, signal.SIGINT) if self._alone else (signal.SIGINT,)
    old = {s: signal.signal(s, self._notice) for s in wanted}
    try:
      yield self
    finally:
      for s, handler in old.items():
        signal.signal(s, handler)

  def _notice(self, number, frame):
    del frame
    if self._asked and number == signal.SIGINT:
      raise KeyboardInterrupt
    self._asked = True
    if self._alone:
      self.name = signal.Signals(number).name

  def reached(self, step: int) -> bool:
    """True if the run should save and end after this step. One process's Ctrl-C alone does not stop several."""
    if not self._alone and multihost_utils.reached_preemption_sync_point(step):
      self.name = 'preemption'
    return self.name is not None
