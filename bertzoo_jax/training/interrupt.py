"""Being asked to stop: SIGTERM (preemption) and the first SIGINT (Ctrl-C) let a run save and end with exit code 0."""

import contextlib
import signal

import jax
from jax.experimental import multihost_utils


class Interrupt:
  """Remembers the signal; a second SIGINT ends the process at once."""

  def __init__(self):
    self.name = None

  @contextlib.contextmanager
  def listening(self):
    """Handles signals inside a `with`. With several hosts jax's own notice of SIGTERM is used, so that all agree on a step."""
    wanted = (signal.SIGINT,) if jax.process_count() > 1 else (signal.SIGTERM, signal.SIGINT)
    old = {s: signal.signal(s, self._notice) for s in wanted}
    try:
      yield self
    finally:
      for s, handler in old.items():
        signal.signal(s, handler)

  def _notice(self, number, frame):
    del frame
    if self.name and number == signal.SIGINT:
      raise KeyboardInterrupt
    self.name = signal.Signals(number).name

  def reached(self, step: int) -> bool:
    """True if the run should save and end after this step. One process's Ctrl-C alone does not stop several."""
    if jax.process_count() > 1:
      self.name = 'preemption' if multihost_utils.reached_preemption_sync_point(step) else None
    return self.name is not None
