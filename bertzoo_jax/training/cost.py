"""The cost of a step: floating-point operations of the model, and the peak of the device."""

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
