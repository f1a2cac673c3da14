"""Whether a run may go on, by the metrics of its steps: spikes, and numbers that are not finite."""

import jax

from bertzoo_jax.common import errors

# So many updates in a row without a finite gradient are no accident of the data.
MOST_IN_A_ROW = 20


class Health:
  """Takes the metrics of every step; they are read when they are judged, which may be later, so
  that no step waits for the devices.
  """

  def __init__(self, machinery, say, nonfinite: int):
    """machinery: the config's `run` section. say: takes the line about a spike. nonfinite: updates
    that earlier attempts left out.
    """
    self._machinery, self._say, self._nonfinite = machinery, say, nonfinite
    self._steps = []  # (step, metrics) of steps that were not judged

  def add(self, step: int, values: dict) -> None:
    """values: the train step's result."""
    self._steps.append((step, values))

  def verdict(self, step: int) -> errors.Stopped | None:
    """Judges the steps up to `step`, waits for them, and says their spikes. None to go on."""
    names = ('spike', 'loss', 'grad_norm', 'nonfinite', 'nonfinite_in_a_row')
    judged = [(s, {k: values[k] for k in names}) for s, values in self._steps if s <= step]
    self._steps = self._steps[len(judged) :]
    judged = jax.device_get(judged)
    spikes = [
      f'step {s:,} (loss {float(v["loss"]):.4g}, gradient norm {float(v["grad_norm"]):.4g})'
      for s, v in judged
      if v['spike']
    ]
    if spikes:
      more = f' and {len(spikes) - 5} more' if len(spikes) > 5 else ''
      said = f'spike: {", ".join(spikes[:5])}{more}'
      self._say(said)
      if self._machinery.on_spike == 'stop':
        return errors.Stopped(
          f'The run stops at a {said}. The last checkpoint before it is kept. '
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
