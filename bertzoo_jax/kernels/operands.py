"""Arguments of the attention kernels: padded arrays, and marks, which decide who sees whom."""

import jax
import jax.numpy as jnp

LANES = 128


def product(a, b, axes):
  """a · b over one axis of each, summed in float32; jax's default precision has no effect."""
  exact = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else jax.lax.Precision.DEFAULT
  return jax.lax.dot_general(
    a, b, (((axes[0],), (axes[1],)), ((), ())), precision=exact, preferred_element_type=jnp.float32
  )


def up(n: int) -> int:
  return -(-n // LANES) * LANES


def pad(x, size, axis, value=0):
  widths = [(0, size - n if i == axis else 0) for i, n in enumerate(x.shape)]
  return jnp.pad(x, widths, constant_values=value)


def marks(visible, same_segment=None, relative=False) -> tuple[dict, dict]:
  """({name: int32 [B, L]} of queries, the same of keys). relative: whether scores have tables."""
  _, q_segments_BL, k_segments_BM = (None,) * 3 if same_segment is None else same_segment
  places_BL = visible.query_places_BL if relative or visible.window is not None else None
  orders = visible.query_order_BL, visible.key_order_BM
  query_marks = dict(
    packs=visible.query_packs_BL, order=orders[0], segments=q_segments_BL, places=places_BL
  )
  key_marks = dict(packs=visible.key_packs_BM, order=orders[1], segments=k_segments_BM)
  return tuple({n: x for n, x in d.items() if x is not None} for d in (query_marks, key_marks))


def stacked(arrays, size, padding):
  """int32 [B, marks, size] of {name: [B, length]}. Padding gets `padding` as its packs."""
  rows = [pad(x, size, 1, padding if name == 'packs' else 0) for name, x in arrays.items()]
  return jnp.stack(rows, axis=1).astype(jnp.int32)
