"""Shows progress: a bar on a terminal, plain lines elsewhere.

`Progress` shows a training: step, percent, losses, tokens/s and time left. `Meter` shows work on
files: percent, MB/s and time left.
"""

import math
import sys
import time

import numpy as np

from bertzoo_jax.common import screen

_EVERY = 5.0  # seconds between plain lines about bytes
_SILENCE = 30.0  # most seconds without a plain line about steps, if steps are shorter
# numbers of a row that are not metrics of the objective
_COMMON = (
  *('step', 'phase', 'examples', 'epoch', 'batch_crc32', 'tokens_per_second', 'mfu'),
  *('loss', 'lr', 'grad_norm', 'nonfinite', 'spikes'),
)


class Progress:
  """Prints on one process; silent on the others."""

  def __init__(
    self,
    total_steps: int,
    start_step: int,
    *,
    show: bool,
    terminal: bool | None = None,
    entropy: float | None = None,
  ):
    """total_steps: of the run. start_step: of this attempt. show: False for silence. terminal:
    whether stdout is one; None to find out. entropy: of the unigrams (nats), printed beside the
    loss of masked tokens.
    """
    self._total, self._at, self._began = total_steps, start_step, None
    self._finished, self._printed = start_step, -math.inf
    self._show, self._entropy = show, entropy
    terminal = sys.stdout.isatty() if terminal is None else terminal
    self._bar = None
    if show and terminal:
      columns = 'step MofNComplete Bar TaskProgress {task.fields[numbers]} TimeRemaining'
      self._bar = _bar(columns, '', total_steps, completed=start_step, numbers='compiling')

  def say(self, text: str) -> None:
    """Prints a line, above the bar if there is one."""
    if not self._show:
      return
    if self._bar:
      self._bar[0].console.print(text)
    else:
      print(text, flush=True)

  def finished(self, step: int, loss) -> None:
    """Records that a step has been computed. The estimate of the time left starts after the first.

    loss: loss of the step, or those of its call, for a plain line if none was printed for half a
    minute.
    """
    now, self._finished = time.monotonic(), step
    self._began = self._began or (now, step)
    silent = now - self._printed >= _SILENCE and step > 1  # the row of step 1 comes at once
    if self._show and not self._bar and silent:
      self._line(step, f'loss {_number(float(np.ravel(loss)[-1]))}')

  def step(self, step: int) -> None:
    """Moves the bar to a step that was dispatched."""
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
    held_out += [f'{name} {value:.4f}' for name, value in row.items() if name.startswith('dev_')]
    for corpus in dict.fromkeys(key.partition('/')[1:] for key in row if '/' in key):
      held_out.append(f'{corpus[1]} {", ".join(self._losses(row, "held_out_", "".join(corpus)))}')
    text = ' · '.join(now + speed + [f'held out: {", ".join(held_out)}'] * bool(held_out))
    if self._bar:
      self._bar[0].update(self._bar[1], completed=self._at, numbers=' · '.join(now[:1] + speed))
      if held_out:
        self.say(f'step {step:,}: {text}')
    else:
      self._line(step, text)

  def _line(self, step, text):
    share = f'{100 * step / self._total:.1f}%'
    print(f'step {step:,}/{self._total:,} {share} · {text} · {self._left(step)} left', flush=True)
    self._printed = time.monotonic()

  def _losses(self, row, prefix, suffix='') -> list[str]:
    """The losses of a row. The loss of masked tokens comes first: it compares with the entropy. An
    objective without this loss shows two other metrics. suffix: of the metrics of one corpus.
    """
    get = lambda name: row.get(prefix + name + suffix)
    loss, masked, accuracy = get('loss'), get('mlm_loss'), get('rtd_accuracy')
    parts = []
    if masked is not None:
      beside = '' if self._entropy is None or suffix else f' (unigram entropy {self._entropy:.4f})'
      parts.append(f'masked-token loss {_number(masked)}{beside}')
    is_another = lambda x: x is not None and (loss is None or abs(loss - x) > 1e-4 * abs(loss))
    if suffix and masked is None:
      losses = {k.removeprefix(prefix): v for k, v in row.items() if k.endswith(f'_loss{suffix}')}
      return [f'{k.removesuffix(suffix)} {_number(v)}' for k, v in losses.items()]
    if not suffix and (masked is None or is_another(masked)):
      parts.append(f'loss {_number(loss)}' if not parts else f'total loss {_number(loss)}')
    if accuracy is not None:
      parts.append(
        f'replaced tokens: accuracy {100 * accuracy:.2f} % '
        f'(calling all original {100 * get("rtd_base_rate"):.2f} %), AUC {get("rtd_auc"):.3f}'
      )
    if len(parts) == 1 and masked is None:
      names = [
        name.removeprefix(prefix)
        for name in row
        if name.startswith(prefix)
        and '/' not in name
        and (prefix or not name.startswith('held_out_'))
      ]
      shown = [name for name in names if name not in _COMMON and is_another(get(name))]
      parts += [f'{name} {_number(get(name))}' for name in shown[:2]]
    return parts

  def close(self) -> None:
    if self._bar:
      self._bar[0].stop()

  def _left(self, step):
    """Time from a step to the end, at the pace of the computed steps."""
    finished = max(step, self._finished)
    if self._began is None or finished <= self._began[1]:
      return '?'
    seconds_per_step = (time.monotonic() - self._began[0]) / (finished - self._began[1])
    return clock(seconds_per_step * (self._total - step))


class Meter:
  """A context manager; call `update(done)` at any rate."""

  def __init__(self, what: str, total: int, say=print):
    """total: bytes. say: prints a plain line."""
    self._what, self._total, self._say, self._bar = what, total, say, None
    self._start = self._printed_at = time.monotonic()

  def __enter__(self):
    if sys.stderr.isatty():
      columns = '{task.description} Bar TaskProgress Download TransferSpeed TimeRemaining'
      self._bar = _bar(columns, self._what, self._total or None, to_stderr=True)
    return self

  def __exit__(self, kind, *_):
    if self._bar:
      if kind is None:
        self._bar[0].update(self._bar[1], completed=self._total)
      self._bar[0].stop()

  def update(self, done: int) -> None:
    """`done` bytes of the total are done."""
    now = time.monotonic()
    if self._bar:
      self._bar[0].update(self._bar[1], completed=done)
    elif now - self._printed_at >= _EVERY:
      self._printed_at = now
      rate = done / (now - self._start)
      percent = f'{100 * done / self._total:.1f} %, ' if self._total else ''
      left = f', {clock((self._total - done) / rate)} left' if rate and self._total > done else ''
      self._say(f'{self._what}: {percent}{rate / 1e6:.1f} MB/s{left}')


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


def _bar(columns, what, total, to_stderr=False, **fields):
  """(a running bar, its task). columns: names of rich's columns without 'Column', or texts."""
  from rich import progress

  widgets = [
    getattr(progress, f'{c}Column')()
    if hasattr(progress, f'{c}Column')
    else progress.TextColumn(c, markup=False)
    for c in columns.split()
  ]
  bar = progress.Progress(*widgets, console=screen.Console(stderr=to_stderr), refresh_per_second=4)
  bar.start()
  return bar, bar.add_task(what, total=total, **fields)
