"""What a watcher sees: a bar on a terminal, plain lines elsewhere. Both say step, percent, losses,
tokens/s and time left.
"""

import sys
import time


class Progress:
  """Reports on one process; silent on the others."""

  def __init__(
    self,
    total_steps: int,
    start_step: int,
    *,
    show: bool,
    terminal: bool | None = None,
    entropy: float | None = None,
  ):
    """total_steps: of the run. start_step: where this attempt begins. show: False for silence.
    terminal: None to find out. entropy: of the unigrams (nats), to stand beside the loss of masked
    tokens.
    """
    self._total, self._at, self._began = total_steps, start_step, None
    self._finished = start_step
    self._show, self._entropy = show, entropy
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

  def finished(self, step: int) -> None:
    """A step is computed. The first starts the clock for the time left, so that it excludes
    compilation.
    """
    self._finished = step
    if self._began is None:
      self._began = (time.monotonic(), step)

  def step(self, step: int) -> None:
    """Moves the bar: a step is dispatched."""
    self._at = step
    if self._bar:
      self._bar[0].update(self._bar[1], completed=step)

  def row(self, row: dict) -> None:
    """Shows the numbers of a logged step."""
    if not self._show:
      return
    step, rate = row['step'], row.get('tokens_per_second')
    speed = [f'{rate:,.0f} tokens/s'] if rate else []
    now = self._losses(row, '')
    held_out = self._losses(row, 'held_out_') if 'held_out_loss' in row else []
    text = ' · '.join(now + speed + [f'held out: {", ".join(held_out)}'] * bool(held_out))
    if self._bar:
      self._bar[0].update(self._bar[1], completed=self._at, numbers=' · '.join(now[:1] + speed))
      if held_out:
        self.say(f'step {step:,}: {text}')
    else:
      print(
        f'step {step:,}/{self._total:,} {100 * step / self._total:.1f}% · {text} · '
        f'{self._left(max(step, self._finished))} left',
        flush=True,
      )

  def _losses(self, row, prefix) -> list[str]:
    """What a row says of learning. The loss of masked tokens comes first: it compares with the
    entropy.
    """
    get = lambda name: row.get(prefix + name)
    loss, masked, found = get('loss'), get('mlm_loss'), get('rtd_accuracy')
    parts = []
    if masked is not None:
      beside = '' if self._entropy is None else f' (unigram entropy {self._entropy:.4f})'
      parts.append(f'masked-token loss {_number(masked)}{beside}')
    if masked is None or loss is None or abs(loss - masked) > 1e-4 * abs(loss):
      parts.append(f'loss {_number(loss)}' if not parts else f'total loss {_number(loss)}')
    if found is not None:
      parts.append(
        f'replaced tokens: accuracy {100 * found:.2f} % '
        f'(calling all original {100 * get("rtd_base_rate"):.2f} %), AUC {get("rtd_auc"):.3f}'
      )
    return parts

  def close(self) -> None:
    if self._bar:
      self._bar[0].stop()

  def _left(self, finished):
    if self._began is None or finished <= self._began[1]:
      return '?'
    of_step = (time.monotonic() - self._began[0]) / (finished - self._began[1])
    return clock(of_step * (self._total - finished))


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
