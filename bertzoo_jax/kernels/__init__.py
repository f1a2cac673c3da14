"""Attention and norm as kernels of an accelerator: BY_NAME[run.kernels] → Kernels."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from bertzoo_jax.common import errors
from bertzoo_jax.kernels import add_norm
from bertzoo_jax.kernels import attention
from bertzoo_jax.kernels import cudnn
from bertzoo_jax.kernels import gpu
from bertzoo_jax.model import attention as plain_attention
from bertzoo_jax.model import layers


class Kernels(NamedTuple):
  """Two operations for a model."""

  attend: Callable  # as model.attention.attend
  add_norm: Callable  # as model.layers.add_norm
  # whether the compiler splits them over devices (plain XLA). If not, they are called with one
  # device's part, and `first_head`, the number of the first head in it.
  partitioned: bool


XLA = Kernels(plain_attention.attend, layers.add_norm, True)


def fused(hashed=False, interpret=False, gather=True) -> Kernels:
  """TPU kernels. hashed, interpret: see add_norm and attention.attend; gather: see the latter."""
  options = dict(hashed=hashed, interpret=interpret)
  attend = functools.partial(attention.attend, gather=gather, **options)
  return Kernels(attend, functools.partial(add_norm.add_norm, **options), False)


FUSED_ON_GPUS = Kernels(gpu.attend, cudnn.add_norm, False)
BY_NAME = {
  'xla': XLA,
  'fused': fused(),
  'cudnn': Kernels(cudnn.attend, cudnn.add_norm, True),
}


def choose(
  name: str,
  device,
  attention_dropout: float,
  relative: bool = False,
  dtype=jnp.bfloat16,
  padding_side: str = 'right',
) -> Kernels:
  """The kernels of a name, for a device.

  `auto`: fused on TPUs since v4; on GPUs cuDNN where it can compute the attention; else XLA: no
  step with the fused kernels of GPUs was timed yet. On a processor fused kernels are interpreted,
  with hashed bits: correct and slow.

  name: a key of BY_NAME, or 'auto'. device: a jax device. attention_dropout: rate of dropout of the
  attention probabilities. relative: whether scores have relative terms. dtype: dtype of queries,
  keys and values. padding_side: where rows are padded.

  Raises UserError: kernels that the device does not have, or that cannot compute the attention.
  """
  platform, needs = device.platform, (attention_dropout, relative, dtype, padding_side)
  # These chips' vector units have no bfloat16, and their fast memory is small.
  old = device.device_kind in ('TPU v2', 'TPU v3')
  old = old or (platform == 'gpu' and not gpu.runs_on(device))
  if name == 'auto':
    if platform == 'gpu':
      name = 'cudnn' if _cudnn_can(*needs) else 'xla'
    else:
      name = 'fused' if platform == 'tpu' and not old else 'xla'
  if (name == 'cudnn' and platform != 'gpu') or (name == 'fused' and old):
    raise errors.UserError(
      f'run.kernels={name} does not exist on {device.device_kind}: take auto or xla.'
    )
  if name == 'cudnn':
    cudnn.check(*needs)
  if name == 'fused' and platform == 'gpu':
    return FUSED_ON_GPUS
  if name == 'fused' and platform != 'tpu':
    return fused(hashed=True, interpret=True)
  if name == 'fused' and device.device_kind == 'TPU v4':
    return fused(gather=False)
  return BY_NAME[name]


def _cudnn_can(*needs) -> bool:
  try:
    cudnn.check(*needs)
  except errors.UserError:
    return False
  return True
