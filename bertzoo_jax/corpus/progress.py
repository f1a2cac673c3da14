"""Progress by bytes: a bar on a terminal, plain lines elsewhere."""

import sys
import time

_EVERY = 5.0  # seconds between plain lines


class Meter:
  """A context manager; `update(done)` as often as you like."""

  def __init__(self, what: str, total: int, say=print):
    """`total` bytes are to be done; `say` takes the plain lines."""
    self._what, self._total, self._say, self._bar = what, total, say, None
    self._start = self._said = time.monotonic()

  def __enter__(self):
    if sys.stderr.isatty():
      from rich import progress

      columns = (
        progress.TextColumn('{task.description}'),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
      )
      from rich.console import Console

      self._bar = progress.Progress(*columns, console=Console(stderr=True))
      self._bar.start()
      self._task = self._bar.add_task(self._what, total=self._total or None)
    return self

  def __exit__(self, kind, *_):
    if self._bar is not None:
      if kind is None:
        self._bar.update(self._task, completed=self._total)
      self._bar.stop()

  def update(self, done: int) -> None:
    """`done` bytes of the total are done."""
    if self._bar is not None:
      self._bar.update(self._task, completed=done)
      return
    now = time.monotonic()
    if now - self._said < _EVERY:
      return
    self._said = now
    rate = done / (now - self._start)
    percent = f'{100 * done / self._total:.1f} %, ' if self._total else ''
    left = f', {_duration((self._total - done) / rate)} left' if rate and self._total > done else ''
    self._say(f'{self._what}: {percent}{rate / 1e6:.1f} MB/s{left}')


def _duration(seconds: float) -> str:
  minutes, seconds = divmod(int(seconds), 60)
  return (
    f'{minutes // 60} h {minutes % 60} min'
    if minutes >= 60
    else f'{minutes} min {seconds} s'
    if minutes
    else f'{seconds} s'
  )
