"""Operations of a model as kernels of an accelerator: BY_NAME[run.kernels] → Kernels."""

import functools
from collections.abc import Callable
from typing import NamedTuple

from bertzoo_jax.kernels import add_norm
from bertzoo_jax.kernels import attention
from bertzoo_jax.kernels import cudnn
from bertzoo_jax.model import attention as plain_attention
from bertzoo_jax.model import layers


class Kernels(NamedTuple):
  """Two operations, and whether the compiler can split them over devices (plain XLA) or each device must be given its own
  part and told where that begins (`origin`)."""
  attend: Callable
  add_norm: Callable
  partitioned: bool


XLA = Kernels(plain_attention.attend, layers.add_norm, True)


def fused(**options) -> Kernels:
  """TPU kernels. options: `hashed`, `interpret` of both."""
  return Kernels(functools.partial(attention.attend, **options), functools.partial(add_norm.add_norm, **options), False)


BY_NAME = {
    'xla': XLA,
    'fused': fused(),
    'fused_hashed': fused(hashed=True),
    'cudnn': Kernels(cudnn.attend, layers.add_norm, True),
}


def choose(name: str, platform: str, attention_dropout: float) -> Kernels:
  """The kernels of a name; `auto` takes what is fastest on a platform: fused on TPUs, cuDNN on GPUs without dropout of
  attention, else XLA. Elsewhere than on a TPU the fused kernels are interpreted, with hashed bits: right, and slow."""
  if name == 'auto':
    name = {'tpu': 'fused', 'gpu': 'cudnn' if not attention_dropout else 'xla'}.get(platform, 'xla')
  if name.startswith('fused') and platform != 'tpu':
    return fused(hashed=True, interpret=True)
  return BY_NAME[name]
