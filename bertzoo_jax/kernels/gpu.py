"""Fused attention for GPUs, forward and backward, as Triton kernels over tiles of queries and keys
(Dao 2023). Legend: model/attention.py; U rows of a relative table, T tiles.

The forward pass loops over the tiles of keys for a tile of queries. The backward pass does so again
for the gradients of queries, and over the tiles of queries for those of keys and values: each
gradient is the sum of one program. Tiles that see none of each other at the ends of a loop are left
out. gpu_tiles.py has the programs.

Of the size of a row's scores nothing is made. The products of queries and keys with the U rows of
the relative tables stand in memory; the backward pass makes them again.

Shared with the TPU kernels: bits of dropout, marks, the padding of arrays. Their descriptions of a
program are not: they count lanes of vector registers.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl

from bertzoo_jax.kernels import bits
from bertzoo_jax.kernels import gpu_tiles
from bertzoo_jax.kernels import operands
from bertzoo_jax.model import attention as plain

# Axes of a kernel's arrays: a program reads one row B of the batch, one head H and one number P.
_AXES = dict(
  **dict.fromkeys(('q', 'k', 'v', 'grad'), 'BLHK'),
  **dict.fromkeys(('lse', 'delta'), 'BHL'),
  **dict.fromkeys(gpu_tiles.TERMS, 'HBLU'),
  **dict.fromkeys(('q_marks', 'k_marks'), 'BNL'),
  **dict.fromkeys(('q_tiles', 'k_tiles'), 'BTN'),
  **dict.fromkeys(('rows', 'edges', 'seed'), 'N'),
  scratch='BHPRC',
)
_GRID = {'P': 0, 'H': 1, 'B': 2}


def runs_on(device) -> bool:
  """Whether a device can run the kernels: NVIDIA's GPUs can, from Ampere on."""
  version = str(getattr(device, 'compute_capability', ''))
  return gpu_tiles.triton is not None and version[:-2].isdigit() and float(version) >= 8


def takes(visible, relative) -> bool:
  """Whether `attend` computes this; else plain XLA does, with the same bits of dropout."""
  tables = relative is None or (
    not any(x is not None for x in relative[2:6])
    and (relative.row_R is None or (np.diff(relative.row_R) >= 0).all())
  )
  return visible.query_places_BL is None and tables


def attend(
  q_BLHK,
  k_BMHK,
  v_BMHK,
  visible,
  dropout_rate=0.0,
  dropout_keys_B2=None,
  relative=None,
  scale=None,
  *,
  first_head=0,
  keep=False,
  kept=None,
  interpret=False,
):
  """model.attention.attend, fused. first_head, keep, kept, interpret: as of attention.attend; what
  is kept is (lse_BHL, out_BLHK), or (None, None) where plain XLA computes it.
  """
  arguments = q_BLHK, k_BMHK, v_BMHK, visible, dropout_rate, dropout_keys_B2, relative, scale
  if not takes(visible, relative):
    out_BLHK = plain.attend(*arguments, first_head=first_head)
    return (out_BLHK, (None, None)) if keep else out_BLHK
  batch, length, heads, width = q_BLHK.shape
  keys_B2 = dropout_keys_B2 if dropout_rate else None
  tables = {} if relative is None else dict(zip(gpu_tiles.TERMS, relative))
  tables = {name: table for name, table in tables.items() if table is not None}
  query_marks, key_marks = operands.marks(visible)
  program = gpu_tiles.Program(
    width**-0.5 if scale is None else float(scale),
    float(dropout_rate) if keys_B2 is not None else 0.0,
    visible.window,
    visible.first_query,
    'order' in query_marks,
    tuple(tables),
    _tile(q_BLHK.dtype, width, length, k_BMHK.shape[1], bool(tables)),
    interpret,
  )
  sizes = [-(-n // tile) * tile for n, tile in zip((length, k_BMHK.shape[1]), program.tile)]
  wide = max(16, 1 << (width - 1).bit_length())
  padded = lambda x, size: operands.pad(operands.pad(x, size, 1), wide, 3)
  arrays = [padded(x, size) for x, size in zip((q_BLHK, k_BMHK, v_BMHK), (*sizes, sizes[1]))]
  marks = operands.stacked(query_marks, sizes[0], -1), operands.stacked(key_marks, sizes[1], -2)
  rest = dict(zip(('q_marks', 'k_marks'), marks), seed=bits.seed(keys_B2, batch, first_head))
  rest |= dict(zip(('q_tiles', 'k_tiles'), _ends(program, *marks)))
  if tables:
    count = -(-len(next(iter(tables.values()))) // program.span) * program.span
    tables = {n: operands.pad(operands.pad(x, count, 0), wide, 2) for n, x in tables.items()}
    rest |= _rows(relative.row_R, k_BMHK.shape[1], sizes, count)
  if kept is not None:
    kept = operands.pad(kept[0], sizes[0], 2), padded(kept[1], sizes[0])
  out_BLHK, lse_BHL = _attend(program, *arrays, tables, rest, kept)
  out_BLHK = out_BLHK[:, :length, :, :width]
  return (out_BLHK, (lse_BHL[..., :length], out_BLHK)) if keep else out_BLHK


def _tile(dtype, width, length, keys, relative) -> tuple[int, int]:
  """(queries, keys) of a tile: as many as fit the shared memory and the registers of a program."""
  most = 32 if jnp.dtype(dtype).itemsize > 2 else 64
  queries = most if relative or width > 64 else 2 * most
  up = lambda n: max(16, 1 << (n - 1).bit_length())
  return min(queries, up(length)), min(most, up(keys))


def _rows(row_R, keys, sizes, count) -> dict:
  """rows: the row of a table for each distance of padded queries and keys, the smallest first.
  edges [U + 1]: the place in `rows` where each row begins.
  """
  place = np.arange(sum(sizes)) - (sizes[1] - keys)
  row_R = np.arange(sum(sizes)) if row_R is None else np.asarray(row_R)
  rows = row_R[np.clip(place, 0, len(row_R) - 1)].astype(np.int32)
  edges = np.searchsorted(rows, np.arange(count + 1)).astype(np.int32)
  return dict(rows=jnp.asarray(rows), edges=jnp.asarray(edges))


def _ends(program, q_marks_BNL, k_marks_BNM):
  """int32 [B, T, 2] for the tiles of queries and of keys: the first of the other side's tiles that
  it sees any of, and the one behind the last. By the least and greatest marks of a tile.
  """
  tiles = lambda x, size: x.reshape(*x.shape[:2], -1, size)
  q, k = tiles(q_marks_BNL, program.tile[0]), tiles(k_marks_BNM, program.tile[1])
  low, high = (
    [f(q, axis=-1)[..., :, None], f(k, axis=-1)[..., None, :]] for f in (jnp.min, jnp.max)
  )
  seen_BTT = (low[0][:, 0] <= high[1][:, 0]) & (low[1][:, 0] <= high[0][:, 0])
  if program.ordered:
    seen_BTT &= low[1][:, 1] <= high[0][:, 1]
  if program.window:
    i, j = np.arange(q.shape[2])[:, None] * program.tile[0], np.arange(k.shape[2]) * program.tile[1]
    nearest = i - j + program.first_query  # of the tiles' first tokens
    seen_BTT &= nearest - program.tile[1] < program.window[0]
    seen_BTT &= nearest + program.tile[0] > -program.window[1]

  def ends(seen_BTT):
    first, behind = (
      jnp.argmax(seen_BTT, -1),
      seen_BTT.shape[-1] - jnp.argmax(seen_BTT[..., ::-1], -1),
    )
    some = jnp.any(seen_BTT, -1)
    return jnp.stack([jnp.where(some, n, 0) for n in (first, behind)], -1).astype(jnp.int32)

  return ends(seen_BTT), ends(seen_BTT.mT)


def _products(program, q_BLHK, k_BMHK, tables) -> dict:
  """{term: [H, B, L or M, U]}: queries or keys times the rows of a table."""
  sides = dict(zip(gpu_tiles.TERMS, (q_BLHK, k_BMHK)))
  times = lambda x, table: jnp.einsum(
    'BLHK,UHK->HBLU', x, table.astype(x.dtype), preferred_element_type=jnp.float32
  )
  return {name: times(sides[name], tables[name]).astype(q_BLHK.dtype) for name in tables}


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(program, q_BLHK, k_BMHK, v_BMHK, tables, rest, kept):
  """(out_BLHK, lse_BHL). The second, to base 2, gets no gradient."""
  if kept is not None:
    return jnp.zeros_like(q_BLHK), kept[0]
  refs = dict(q=q_BLHK, k=k_BMHK, v=v_BMHK, **rest) | _products(program, q_BLHK, k_BMHK, tables)
  lse = jax.ShapeDtypeStruct((*q_BLHK.shape[::2], q_BLHK.shape[1]), jnp.float32)
  results = _call(gpu_tiles.forward, program, refs, dict(q=q_BLHK, lse=lse), 0)
  return results['q'], results['lse']


def _attend_forward(program, *args):
  out = _attend(program, *args)
  kept = args[-1] or tuple(checkpoint_name(x, 'attended') for x in reversed(out))
  return out, (args[:-1], kept)


def _attend_backward(program, saved, grads):
  (q_BLHK, k_BMHK, v_BMHK, tables, rest), (lse_BHL, out_BLHK) = saved
  terms, pull = jax.vjp(functools.partial(_products, program), q_BLHK, k_BMHK, tables)
  delta = jnp.einsum('BLHK,BLHK->BHL', *(x.astype(jnp.float32) for x in (out_BLHK, grads[0])))
  refs = dict(q=q_BLHK, k=k_BMHK, v=v_BMHK, **rest) | terms
  refs |= dict(grad=grads[0], lse=lse_BHL, delta=delta)
  results = {}
  for side, names in enumerate(('q', 'kv')):
    out = {name: refs[name] for name in names}
    term = gpu_tiles.TERMS[side]
    if term in terms:
      tiles = refs[names[0]].shape[1] // program.tile[side]
      size = q_BLHK.shape[0], q_BLHK.shape[2], tiles, *program.tile[:: 1 - 2 * side]
      shapes = {term: terms[term].shape, 'scratch': size}
      out |= {n: jax.ShapeDtypeStruct(shape, jnp.float32) for n, shape in shapes.items()}
    kernel = functools.partial(gpu_tiles.backward, by_key=bool(side))
    results |= _call(kernel, program, refs, out, side)
  dq, dk, dtables = pull(
    {n: (results[n] * program.scale).astype(x.dtype) for n, x in terms.items()}
  )
  return results['q'] + dq, results['k'] + dk, results['v'], dtables, None, None


_attend.defvjp(_attend_forward, _attend_backward)


def _call(kernel, program, refs, out, side) -> dict:
  """{name: array} of a kernel with a program for each tile of a side, head and row of the batch.
  out: {name: what has the shape and dtype}.
  """
  batch, length, heads, _ = refs['qk'[side]].shape
  return pl.pallas_call(
    functools.partial(kernel, program),
    out_shape={n: jax.ShapeDtypeStruct(x.shape, x.dtype) for n, x in out.items()},
    in_specs=[{n: _spec(n, x.shape) for n, x in refs.items()}],
    out_specs={n: _spec(n, x.shape) for n, x in out.items()},
    grid=(length // program.tile[side], heads, batch),
    interpret=program.interpret,
    compiler_params=gpu_tiles.triton.CompilerParams(num_warps=4, num_stages=2),
    name='attention_' + '_'.join(out),
  )(refs)


def _spec(name, shape):
  block = [None if axis in _GRID else size for axis, size in zip(_AXES[name], shape)]
  index = [_GRID.get(axis) for axis in _AXES[name]]
  return pl.BlockSpec(block, lambda *ids: tuple(0 if n is None else ids[n] for n in index))
