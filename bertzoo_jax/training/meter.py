"""How fast a run goes."""

import time

from bertzoo_jax.training import cost


class Meter:
  """Tokens per second, between steps that were waited for: the host runs ahead."""

  def __init__(self, phase_run, state):
    self._run = phase_run
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
    mfu = {'mfu': self._flops * per_second / self._peak} if self._peak and self._flops else {}
    return {'tokens_per_second': per_second * self._run.tokens, **mfu}

  def place(self, step) -> dict:
    """{'phase', 'examples': rows read after a step, 'epoch': where the rows are counted}."""
    phase, per_epoch = self._run.phase, self._run.data.train.rows_per_epoch
    rows = (step - phase.first_step) * self._run.rows
    epoch = {'epoch': round((phase.first_example + rows) / per_epoch, 4)} if per_epoch else {}
    return {'phase': phase.index, 'examples': phase.examples + rows, **epoch}
