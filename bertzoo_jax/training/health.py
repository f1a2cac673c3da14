"""Decides by the metrics of its steps whether a run goes on: spikes and non-finite numbers."""

import jax
import numpy as np

from bertzoo_jax.common import errors

# More non-finite updates in a row than bad data can explain.
MOST_IN_A_ROW = 20


class Health:
  """Collects the metrics of every step; `verdict` reads them later, so that no step waits for the
  devices.
  """

  def __init__(self, machinery, say, nonfinite: int):
    """machinery: the config's `run` section. say: prints a line. nonfinite: number of updates that
    earlier attempts left out.
    """
    self._machinery, self._say, self._nonfinite = machinery, say, nonfinite
    self._calls = []  # (last step, metrics) of calls without a verdict

  def add(self, step: int, values: dict) -> None:
    """Takes the metrics of a call that ends with a step: of one step, or of several, stacked."""
    self._calls.append((step, values))

  def verdict(self, step: int) -> errors.Stopped | None:
    """The reason to stop after `step`, or None. Waits for the steps, and prints their spikes."""
    names = ('spike', 'loss', 'grad_norm', 'nonfinite', 'nonfinite_in_a_row')
    calls = [(last, [values[k] for k in names]) for last, values in self._calls if last <= step]
    self._calls, judged = self._calls[len(calls) :], []
    for last, columns in jax.device_get(calls):
      rows = [dict(zip(names, row)) for row in zip(*map(np.atleast_1d, columns))]
      judged += [(last - len(rows) + n, row) for n, row in enumerate(rows, 1)]
    spikes = [
      f'step {s:,} (loss {float(v["loss"]):.4g}, gradient norm {float(v["grad_norm"]):.4g})'
      for s, v in judged
      if v['spike']
    ]
    if spikes:
      more = f' and {len(spikes) - 5} more' if len(spikes) > 5 else ''
      message = f'spike: {", ".join(spikes[:5])}{more}'
      self._say(message)
      if self._machinery.on_spike == 'stop':
        return errors.Stopped(
          f'The run stops at a {message}. The last checkpoint before it is kept. '
          'run.on_spike=report goes on; a lower learning rate or clipping (optimizer.clip_norm) '
          'may avoid it.'
        )
    first = next((s for s, v in judged if v['nonfinite'] > self._nonfinite), None)
    if first is not None and self._machinery.on_nonfinite == 'stop':
      return errors.Diverged(
        f'The loss or its gradient is not finite in step {first}; the run stops, the last good '
        'checkpoint is kept. Try a lower learning rate, clipping (optimizer.clip_norm) or '
        'run.dtype=float32; run.on_nonfinite=skip leaves such updates out and counts them.'
      )
    in_a_row = judged[-1][1]['nonfinite_in_a_row'] if judged else 0
    if in_a_row >= MOST_IN_A_ROW:
      return errors.Diverged(
        f'The last {in_a_row} updates had a loss or gradient that is not finite (up to step '
        f'{judged[-1][0]}). The last good checkpoint is kept; try a lower learning rate, clipping, '
        'or run.dtype=float32.'
      )
    return None
