"""Ends a run that hangs: a data thread that waits for ever, a collective whose peer has stopped."""

import faulthandler
import math
import os
import statistics
import sys
import threading
import time

from bertzoo_jax.common import errors

TYPICAL = 20  # times the usual duration, if that is longer than the limit
FIRST = 10  # times the limit for the first of each kind, since it may compile
_LOOKS = 20  # per limit
_KEPT = 50  # durations of each kind
_WORDS_SECONDS = 10.0  # to say why, where nobody may be reading

# Not sys.exit, which ends a thread only; the main thread may be stuck in native code.
_exit = os._exit


class Watchdog:
  """Inside a `with`, ends the process with exit code 75 if nothing finishes for a time."""

  def __init__(self, minutes: float):
    """minutes: within which a step, an evaluation or a save finishes; 0 for no watch.

    A part that usually takes more than a twentieth of that may take twenty times its usual time.
    A part that runs for the first time may take ten times the minutes. Raises UserError for a
    negative number and for one that is not finite.
    """
    if not (math.isfinite(minutes) and minutes >= 0):
      raise errors.UserError(
        f'run.hang_minutes is {minutes}: give minutes, or 0 to turn the watchdog off.'
      )
    self._limit = 60.0 * minutes
    self._took = {}
    self._now = None  # [kind, step, since when, seconds of it that the watch has seen]
    self._over = threading.Event()

  def begin(self) -> None:
    """Forgets the usual durations: the next steps may be compiled."""
    self._took, self._now = {}, None

  def doing(self, kind: str, step: int) -> None:
    """Ends the current task and starts timing `kind` of `step`, such as 'the save of step'."""
    if self._now is not None:
      before, _, since, _ = self._now
      self._took[before] = [*self._took.get(before, ())[-_KEPT:], time.monotonic() - since]
    self._now = [kind, step, time.monotonic(), 0.0]

  def __enter__(self):
    if self._limit:
      threading.Thread(target=self._watch, name='watchdog', daemon=True).start()
    return self

  def __exit__(self, *_):
    self._over.set()

  def _watch(self):
    looked = time.monotonic()
    while not self._over.wait(self._limit / _LOOKS):
      # No more than two looks' worth: a process that slept itself (Ctrl-Z) does not hang.
      seen = min(time.monotonic() - looked, 2 * self._limit / _LOOKS)
      looked = time.monotonic()
      if (now := self._now) is not None:
        now[3] += seen
        if now[3] > self._allowed(now[0]):
          self._end(*now)

  def _allowed(self, kind) -> float:
    if took := self._took.get(kind):
      return max(self._limit, TYPICAL * statistics.median(took))
    return FIRST * self._limit

  def _end(self, kind, step, since, seen):
    del since
    give_up = threading.Timer(_WORDS_SECONDS, _exit, (errors.TransientError.code,))
    give_up.daemon = True
    give_up.start()
    faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
    print(
      f'error: the run hangs: {kind} {step:,} has not finished for {seen / 60:.3g} minutes '
      f'(run.hang_minutes={self._limit / 60:g}). Above are the stacks of all its threads. It ends '
      'here; run the same command again to resume at the last checkpoint.',
      file=sys.stderr,
    )
    _exit(errors.TransientError.code)
