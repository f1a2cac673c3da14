"""How fast a run goes, beside the peak of its devices, and how many numbers a network has."""

import time

import numpy as np

# bfloat16 matrix peak of one device as jax names it, FLOP/s, from the vendors' data sheets; dense,
# not sparse.
PEAK = {
  'TPU v2': 22.5e12,  # a core of the chip's 45
  'TPU v3': 61.5e12,  # a core of the chip's 123
  'TPU v4': 275e12,
  'TPU v5 lite': 197e12,
  'TPU v5e': 197e12,
  'TPU v5': 459e12,
  'TPU v5p': 459e12,
  'TPU v6 lite': 918e12,
  'TPU v6e': 918e12,
  'TPU7x': 2307e12 / 2,  # a core of the chip's 2307
  'NVIDIA A100-SXM4-40GB': 312e12,
  'NVIDIA A100-SXM4-80GB': 312e12,
  'NVIDIA H100 80GB HBM3': 989e12,
  'NVIDIA H200': 989e12,
}


def peak(device) -> float | None:
  """FLOP/s of one jax device in bfloat16, or None where it is not known (CPUs)."""
  return PEAK.get(device.device_kind)


def parameters(shapes: dict) -> int:
  """How many numbers {path: shape} holds."""
  return int(sum(np.prod(s, dtype=np.int64) for s in shapes.values()))


class Meter:
  """Tokens per second, between steps that were waited for: the host runs ahead."""

  def __init__(self, phase_run, state):
    self._run = phase_run
    self._flops = phase_run.objective.flops(state.params, phase_run.feature_shapes)
    of_one = peak(phase_run.mesh.devices.flat[0])
    self._peak = of_one * phase_run.mesh.size if of_one else None
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
