"""Operations that depend on the devices and are passed to a model: attention, the norm of a
residual sum, placement, gradients of kernels.
"""

from collections.abc import Callable
from typing import NamedTuple

from bertzoo_jax.model import attention
from bertzoo_jax.model import layers


class Operations(NamedTuple):
  """The defaults are plain XLA; `experiment.build.operations_on` makes those for a mesh."""

  attend: Callable = attention.attend  # as model.attention.attend
  add_norm: Callable = layers.add_norm  # as model.layers.add_norm
  # (name, x) → x, which may be sharded. Names: 'hidden' [B,L,D], 'heads' [B,L,H,K], 'feed_forward'
  # [B·L,F]; in heads 'predictions' [B,P,D] and 'logits' [B,P,V].
  constrain: Callable = layers.unconstrained
  # as model.layers.sum_kernel_gradients, of the kernels in layers
  kernel_gradients: Callable = layers.sum_kernel_gradients


PLAIN = Operations()
