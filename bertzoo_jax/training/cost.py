"""What a step computes, how fast a run goes, and the peak of its devices."""

import time

import jax
import numpy as np
from jax.interpreters import partial_eval

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


def of_step(objective, params, batch: dict) -> float:
  """Operations of the matrix products of a step: of the loss and its gradient over a global batch,
  without recomputation. A multiplication and an addition are two.

  They are counted in the traced program, so passes, heads and parts of one's own count as they
  compute.

  Args:
    objective: with operations in plain XLA and an encoder that saves all activations.
    params: its parameters, arrays or shapes.
    batch: {name: shape struct}.
  """
  rows = batch['input_ids'].shape[0]
  batch = {**batch, 'row_keys': jax.ShapeDtypeStruct((rows, 2), np.uint32)}

  def gradient(params, batch, key):
    rest = objective.normalizers(batch), objective.carry(rows), key, True
    return jax.grad(lambda params: objective.loss(params, batch, *rest)[0])(params)

  with jax.default_matmul_precision('default'):  # `products` tells precisions apart
    traced = jax.make_jaxpr(gradient)(params, batch, jax.eval_shape(jax.random.key, 0)).jaxpr
  used, _ = partial_eval.dce_jaxpr(traced, [True] * len(traced.outvars))
  return products(used)


def products(jaxpr) -> float:
  """Operations of the matrix products of a program, those of a scan once per turn. Products of the
  highest precision only move rows, and do not count.
  """
  total = 0.0
  for eqn in jaxpr.eqns:
    exact = jax.lax.Precision.HIGHEST in (eqn.params.get('precision') or ())
    if eqn.primitive.name == 'dot_general' and not exact:
      (contracted, _), _ = eqn.params['dimension_numbers']
      of_one = [eqn.invars[0].aval.shape[axis] for axis in contracted]
      total += 2.0 * float(np.prod(eqn.outvars[0].aval.shape)) * float(np.prod(of_one))
    times = eqn.params['length'] if eqn.primitive.name == 'scan' else 1
    total += times * sum(map(products, inner(eqn)))
  return total


def inner(eqn):
  """The programs in an equation."""
  for value in eqn.params.values():
    for part in value if isinstance(value, tuple | list) else (value,):
      part = getattr(part, 'jaxpr', part)
      if hasattr(part, 'eqns'):
        yield part


def parameters(shapes: dict) -> int:
  """How many numbers {path: shape} holds."""
  return int(sum(np.prod(s, dtype=np.int64) for s in shapes.values()))


class Meter:
  """Tokens per second, between steps that were waited for: the host runs ahead."""

  def __init__(self, phase_run):
    self._run = phase_run
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
    mfu = {'mfu': self._run.flops * per_second / self._peak} if self._peak else {}
    return {'tokens_per_second': per_second * self._run.tokens, **mfu}

  def place(self, step) -> dict:
    """{'phase', 'examples': rows read after a step, 'epoch': where the rows are counted}."""
    phase, per_epoch = self._run.phase, self._run.data.train.rows_per_epoch
    rows = (step - phase.first_step) * self._run.rows
    epoch = {'epoch': round((phase.first_example + rows) / per_epoch, 4)} if per_epoch else {}
    return {'phase': phase.index, 'examples': phase.examples + rows, **epoch}
