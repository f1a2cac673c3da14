"""What a watcher sees: a bar on a terminal, plain lines elsewhere. Both say step, percent, loss,
tokens/s and time left.
"""

import sys
import time


class Progress:
  """Reports on one process; silent on the others."""

  def __init__(
    self, total_steps: int, start_step: int, *, show: bool, terminal: bool | None = None
  ):
    """total_steps: of the run. start_step: where this attempt begins. show: False for silence.
    terminal: None to find out.
    """
    self._total, self._start, self._began = total_steps, start_step, None
    self._show = show
    terminal = sys.stdout.isatty() if terminal is None else terminal
    self._bar = _bar(total_steps, start_step) if show and terminal else None

  def say(self, text: str) -> None:
    """A line above the bar."""
    if not self._show:
      return
    if self._bar:
      self._bar[0].console.print(text, markup=False, highlight=False)
    else:
      print(text, flush=True)

  def begin(self) -> None:
    """Starts the clock of the time left: compilation is over."""
    if self._began is None:
      self._began = (time.monotonic(), self._start + 1)

  def step(self, step: int) -> None:
    """Moves the bar."""
    if self._bar:
      self._bar[0].update(self._bar[1], completed=step)

  def row(self, row: dict) -> None:
    """Shows the numbers of a logged step."""
    if not self._show:
      return
    step, rate = row['step'], row.get('tokens_per_second')
    parts = [f'loss {_number(row.get("loss"))}', f'{rate:,.0f} tokens/s' if rate else '']
    parts += [f'held out {_number(row["held_out_loss"])}'] if 'held_out_loss' in row else []
    text = ' · '.join(p for p in parts if p)
    if self._bar:
      self._bar[0].update(self._bar[1], completed=step, numbers=text)
      if 'held_out_loss' in row:
        self.say(f'step {step:,}: {text}')
    else:
      print(
        f'step {step:,}/{self._total:,} {100 * step / self._total:.1f}% · {text} · '
        f'{self._eta(step)} left',
        flush=True,
      )

  def close(self) -> None:
    if self._bar:
      self._bar[0].stop()

  def _eta(self, step):
    if self._began is None or step <= self._began[1]:
      return '?'
    return clock(
      (time.monotonic() - self._began[0]) / (step - self._began[1]) * (self._total - step)
    )


def clock(seconds: float) -> str:
  """'3:07', '2:03:07' or '4d 02:03' for a number of seconds."""
  minutes, s = divmod(int(seconds), 60)
  hours, m = divmod(minutes, 60)
  days, h = divmod(hours, 24)
  if days:
    return f'{days}d {h:02d}:{m:02d}'
  return f'{h}:{m:02d}:{s:02d}' if h else f'{m}:{s:02d}'


def _number(value):
  return 'nan' if value is None else f'{value:.4f}'


def _bar(total, start):
  try:
    from rich import progress
  except ImportError:
    return None
  bar = progress.Progress(
    progress.TextColumn('step'),
    progress.MofNCompleteColumn(),
    progress.BarColumn(),
    progress.TaskProgressColumn(),
    progress.TextColumn('{task.fields[numbers]}'),
    progress.TimeRemainingColumn(compact=True),
    refresh_per_second=4,
  )
  bar.start()
  return bar, bar.add_task('', total=total, completed=start, numbers='compiling')
