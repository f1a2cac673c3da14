"""How fast a run goes."""

import time

from bertzoo_jax.training import cost


class Meter:
  """Tokens per second, between steps whose end was waited for: the host runs ahead of the
  devices.
  """

  def __init__(self, phase_run, state):
    self.phase = phase_run.phase.index
    self._rows, self._tokens, self._per_epoch = (
      phase_run.rows,
      phase_run.tokens,
      phase_run.data.rows_per_epoch,
    )
    self._first_step, self._examples, self._first_example = (
      phase_run.phase.first_step,
      phase_run.phase.examples,
      phase_run.phase.first_example,
    )
    self._flops = phase_run.objective.flops(state.params, phase_run.feature_shapes)
    peak = cost.peak(phase_run.mesh.devices.flat[0])
    self._peak = peak * phase_run.mesh.size if peak else None
    # (step, time) of the last figure, and of the last step that was waited for
    self._since = self._last = None

  @property
  def started(self) -> bool:
    """Whether the first step, which compiled, is over."""
    return self._since is not None

  def waited(self, step):
    """A step has just ended."""
    self._last = step, time.monotonic()
    self._since = self._since or self._last

  def restart(self, step):
    """As `waited`, after a pause that counts for nothing."""
    self._since = self._last = step, time.monotonic()

  def rates(self) -> dict:
    if not self.started or self._last[0] == self._since[0]:
      return {}
    count, seconds = (b - a for a, b in zip(self._since, self._last))
    self._since = self._last
    per_second = count / seconds
    known = self._peak and self._flops
    mfu = {'mfu': self._flops * per_second / self._peak} if known else {}
    return {'tokens_per_second': per_second * self._tokens, **mfu}

  def examples(self, step) -> int:
    """Rows that the run has read after a step."""
    return self._examples + (step - self._first_step) * self._rows

  def epoch(self, step) -> float | None:
    """Epochs of the phase's order of rows after a step; None if the rows are not counted."""
    if not self._per_epoch:
      return None
    place = self._first_example + (step - self._first_step) * self._rows
    return round(place / self._per_epoch, 4)
