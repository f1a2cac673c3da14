"""FLOPs of a train step, the speed of a run, and the peak of its devices."""

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
  """Peak FLOP/s of one jax device in bfloat16; None if unknown (CPUs)."""
  return PEAK.get(device.device_kind)


def step_flops(objective, params, batch: dict) -> float:
  """FLOPs of the matrix products of a train step: loss and gradient over a global batch, without
  recomputation. A multiplication and an addition count as two.

  They are counted in the traced program, so further passes, heads and the user's own parts are
  included.

  objective: must use plain XLA operations, and an encoder that saves all activations. params:
  parameters of the objective, arrays or shapes. batch: {name: shape struct}.
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
  """FLOPs of the matrix products of a program; the body of a scan counts once per iteration.
  Products of the highest precision only gather rows, and are not counted.
  """
  total = 0.0
  for eqn in jaxpr.eqns:
    exact = jax.lax.Precision.HIGHEST in (eqn.params.get('precision') or ())
    if eqn.primitive.name == 'dot_general' and not exact:
      (contracted, _), _ = eqn.params['dimension_numbers']
      sizes = [eqn.invars[0].aval.shape[axis] for axis in contracted]
      total += 2.0 * float(np.prod(eqn.outvars[0].aval.shape)) * float(np.prod(sizes))
    times = eqn.params['length'] if eqn.primitive.name == 'scan' else 1
    total += times * sum(map(products, inner(eqn)))
  return total


def inner(eqn):
  """Yields the jaxprs inside an equation."""
  for value in eqn.params.values():
    for part in value if isinstance(value, tuple | list) else (value,):
      part = getattr(part, 'jaxpr', part)
      if hasattr(part, 'eqns'):
        yield part


def parameters(shapes: dict) -> int:
  """Number of parameters in {path: shape}."""
  return int(sum(np.prod(s, dtype=np.int64) for s in shapes.values()))


class Meter:
  """The speed between steps that the host waited for: the host runs ahead of the devices."""

  def __init__(self, phase_run):
    self._run = phase_run
    device_peak = peak(phase_run.mesh.devices.flat[0])
    self._peak = device_peak * phase_run.mesh.size if device_peak else None
    # (step, time) of the last rates, and of the last step that the host waited for
    self._since = self._last = None

  @property
  def started(self) -> bool:
    """Whether the first step, which compiled, is over."""
    return self._since is not None

  def waited(self, step):
    """Records that a step has just ended."""
    self._last = step, time.monotonic()
    self._since = self._since or self._last

  def restart(self, step):
    """As `waited`, after a pause that no speed includes."""
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
    """{'phase', 'examples': rows read up to a step, 'epoch': only if the rows are counted}."""
    phase, per_epoch = self._run.phase, self._run.data.train.rows_per_epoch
    rows = (step - phase.first_step) * self._run.rows
    epoch = {'epoch': round((phase.first_example + rows) / per_epoch, 4)} if per_epoch else {}
    return {'phase': phase.index, 'examples': phase.examples + rows, **epoch}
