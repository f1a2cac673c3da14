"""Operations of a model as kernels of an accelerator: BY_NAME[run.kernels] → Kernels."""

import functools
from collections.abc import Callable
from typing import NamedTuple

from bertzoo_jax.common import errors
from bertzoo_jax.kernels import add_norm
from bertzoo_jax.kernels import attention
from bertzoo_jax.kernels import cudnn
from bertzoo_jax.model import attention as plain_attention
from bertzoo_jax.model import layers


class Kernels(NamedTuple):
  """Two operations, and whether the compiler can split them over devices (plain XLA) or each device
  must be given its own part and told which head that begins with (`first_head`)."""

  attend: Callable
  add_norm: Callable
  partitioned: bool


XLA = Kernels(plain_attention.attend, layers.add_norm, True)


def fused(**options) -> Kernels:
  """TPU kernels. options: `hashed`, `interpret` of both."""
  return Kernels(
    functools.partial(attention.attend, **options),
    functools.partial(add_norm.add_norm, **options),
    False,
  )


BY_NAME = {
  'xla': XLA,
  'fused': fused(),
  'fused_hashed': fused(hashed=True),
  'cudnn': Kernels(cudnn.attend, layers.add_norm, True),
}


def choose(name: str, device, attention_dropout: float) -> Kernels:
  """The kernels of a name; `auto` takes what is fastest on a device: fused on TPUs since v4, cuDNN
  on GPUs without dropout of attention, else XLA. Elsewhere than on a TPU the fused kernels are
  interpreted, with hashed bits: right, and slow.

  Raises UserError for kernels that the device does not have.
  """
  platform, old = (
    device.platform,
    device.device_kind in ('TPU v2', 'TPU v3'),
  )  # whose vector units have no bfloat16, and little memory
  if name == 'auto':
    name = {
      'tpu': 'xla' if old else 'fused',
      'gpu': 'cudnn' if not attention_dropout else 'xla',
    }.get(platform, 'xla')
  if (name == 'cudnn' and platform != 'gpu') or (name.startswith('fused') and old):
    raise errors.UserError(
      f'run.kernels={name} does not exist on {device.device_kind}: take auto or xla.'
    )
  if name.startswith('fused') and platform != 'tpu':
    return fused(hashed=True, interpret=True)
  return BY_NAME[name]
