"""SIGTERM (preemption) and the first SIGINT (Ctrl-C) let a run save and end with exit code 0."""

import contextlib
import itertools
import os
import signal

import jax
from jax.experimental import multihost_utils

_count = itertools.count(1)  # of this process: jax agrees on a number once and for all


class Preemption:
  """Remembers the signal; a second SIGINT ends the process at once."""

  def __init__(self):
    self.name = None  # of the signal, or 'preemption' on all of several hosts
    self._asked, self._alone = False, True

  @contextlib.contextmanager
  def listening(self):
    """Handles signals inside a `with`; to be entered as soon as the hosts have joined.

    A lone process can end after the very next step. With several hosts SIGTERM stays with jax's own
    handler, written in C++, which joining them (distributed.py) has installed: it notifies the
    others, so that all agree on a step.
    """
    self._alone = not jax.distributed.is_initialized()
    wanted = (signal.SIGTERM, signal.SIGINT) if self._alone else (signal.SIGINT,)
    old = {s: signal.signal(s, self._notice) for s in wanted}
    try:
      yield self
    finally:
      for s, handler in old.items():
        signal.signal(s, handler or signal.SIG_DFL)  # None: one that Python cannot put back

  def _notice(self, number, frame):
    del frame
    if self._asked and number == signal.SIGINT:
      raise KeyboardInterrupt
    if not self._asked:
      # not by `print`, in the middle of which the signal may come
      line = (
        f'{signal.Signals(number).name}: this run stops after the current step and saves. A second '
        'Ctrl-C ends it at once and saves nothing.\n'
      )
      with contextlib.suppress(OSError):
        os.write(2, line.encode())
    self._asked = True
    if self._alone:
      self.name = signal.Signals(number).name
    else:
      signal.raise_signal(signal.SIGTERM)  # jax's handler tells the other hosts

  def reached(self) -> bool:
    """Whether to save and end now; on several hosts the same on all. Ask after every step."""
    # A count of its own, not the step of the run: jax agrees on the next number after the highest
    # that it was asked for, which is 0 if a notice came before the first one, and then waits for
    # that very number.
    if not self._alone and multihost_utils.reached_preemption_sync_point(next(_count)):
      self.name = 'preemption'
    return self.name is not None
