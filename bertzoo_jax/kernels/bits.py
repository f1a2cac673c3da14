"""Random bits of kernels, from the keys of the rows (row_keys.py).

The backward pass draws the same bits, and so does any mesh.
"""

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from bertzoo_jax.common import row_keys


def seed(keys_B2, rows: int, first_head=0) -> jax.Array:
  """int32 [2·rows + 1]: two words per row (0 without keys), then the first head of the kernel."""
  words = jnp.zeros(2 * rows, jnp.int32)
  if keys_B2 is not None:
    words = jax.lax.bitcast_convert_type(keys_B2, jnp.int32).reshape(-1)
  return jnp.append(words, jnp.asarray(first_head, jnp.int32))


def keep(rate: float, hashed: bool, seed, row, head, block, first: tuple, size: tuple, axes=(0, 1)):
  """bool `size`, True with probability 1 − rate. To be called inside a kernel.

  Args:
    rate: in (0, 1), rounded to 2^−32.
    hashed: draw by row_keys.py, as plain XLA does. Else by the hardware generator of a TPU.
    seed: as `seed` returns.
    row, head: indices in the kernel's arrays; head is None for arrays without heads.
    block: number of the block within its row and head.
    first: (row, column) of the block's first element.
    size: (rows, columns) of the block.
    axes: see `row_keys.bits_at`; only with `hashed`.
  """
  word, other = seed[2 * row], seed[2 * row + 1]
  head = None if head is None else seed[seed.shape[0] - 1] + head
  if hashed:
    word, other = (jnp.asarray(n).astype(jnp.uint32) for n in (word, other))
    word, other = (word, other) if head is None else row_keys.folded(word, other, head)
    return row_keys.bits_at(word, other, first, size, axes) >= row_keys.threshold(rate)
  # A seed has two words.
  pltpu.prng_seed(word, other ^ ((0 if head is None else head) * (1 << 16) + block))
  return pltpu.bitcast(pltpu.prng_random_bits(size), jnp.uint32) >= row_keys.threshold(rate)


def variant(program, dtype) -> str:
  """The part of a kernel's name that its cost depends on."""
  drawn = '_dropout' * bool(program.rate) + '_hashed' * bool(program.rate and program.hashed)
  return drawn if dtype == jnp.bfloat16 else f'{drawn}_{dtype}'
