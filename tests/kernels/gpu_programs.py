"""Attention for GPUs compiled for CUDA on a processor:

    python -m tests.kernels.gpu_programs NAME [KERNEL]

prints {kernel: [bytes of shared memory, bytes of the program]} of a row of SHAPES. KERNEL: a part
of the names of those to compile.
"""

import json
import os
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

from bertzoo_jax.kernels import gpu
from bertzoo_jax.model import attention
from bertzoo_jax.model import disentangled_attention as disentangled

# name: (length, heads, width, relative terms, dropout rate, dtype, window, card)
H100, H200 = 'NVIDIA H100 80GB HBM3', 'NVIDIA H200'
SHAPES = {
  'deberta_v3_512': (512, 12, 64, True, 0.1, jnp.bfloat16, None, H100),
  'deberta_v3_1024': (1024, 12, 64, True, 0.1, jnp.bfloat16, None, H200),
  'deberta_v3_4096': (4096, 12, 64, True, 0.1, jnp.bfloat16, None, H100),
  'layer_8192': (8192, 12, 64, True, 0.1, jnp.bfloat16, None, H200),
  'bert_512': (512, 12, 64, False, 0.1, jnp.bfloat16, None, H200),
  'in float32': (512, 12, 64, True, 0.1, jnp.float32, None, H100),
  'heads of 32': (1024, 12, 32, True, 0.1, jnp.bfloat16, (64, 64), H100),
  'heads of 128': (512, 6, 128, True, 0.1, jnp.bfloat16, None, H100),
  'heads of 128 in float32': (512, 6, 128, True, 0.1, jnp.float32, None, H100),
}


def environment(folder) -> dict:
  return {**os.environ, 'JAX_PLATFORMS': 'cpu', 'TRITON_CACHE_DIR': str(folder)}


def lowered(length, heads, width, relative, rate, dtype, window, card):
  """Attention and its gradients, lowered for a card."""
  shaped = lambda *shape, dtype=dtype: jax.ShapeDtypeStruct(shape, dtype)
  q, ids = shaped(2, length, heads, width), shaped(2, length, dtype=jnp.int32)
  used, row_R = np.unique(disentangled.table_rows(length, 512, 256), return_inverse=True)
  table = shaped(len(used), heads, width) if relative else None

  def both(q, k, v, tables, ids, keys_B2):
    visible = attention.same_pack(ids, window)

    def attend(q, k, v, tables):
      terms = attention.Relative(*tables, row_R=row_R) if relative else None
      return gpu.attend(q, k, v, visible, rate, keys_B2, terms)

    out, pull = jax.vjp(attend, q, k, v, tables)
    return pull(out)

  device = jax.sharding.AbstractDevice(device_kind=card, num_cores=None, platform='gpu')
  mesh = jax.sharding.AbstractMesh((1,), ('d',), abstract_device=device)
  with jax.sharding.use_abstract_mesh(mesh):
    traced = jax.jit(both).trace(q, q, q, (table, table), ids, shaped(2, 2, dtype=jnp.uint32))
    return traced.lower(lowering_platforms=('cuda',))


def kernels(lowered):
  """Yields (name, Triton IR as text, options of the compiler) of each kernel."""
  from jax._src.pallas.triton import lowering
  from jaxlib.mlir import ir

  def walk(op):
    for block in (block for region in op.regions for block in region):
      for inner in block:
        if 'mhlo.backend_config' in inner.operation.attributes:
          yield inner.operation.attributes['mhlo.backend_config']
        yield from walk(inner.operation)

  for config in walk(lowered.compiler_ir('stablehlo').operation):
    raw = ir.StringAttr(config['ir']).value_bytes
    number = lambda name, config=config: ir.IntegerAttr(config[name]).value
    options = {name: number(name) for name in ('num_warps', 'num_stages')}
    with lowering._new_ir_context():
      text = str(ir.Module.parse(raw))
    yield ir.StringAttr(config['name']).value, text, options


def main(name, kernel=''):
  import triton
  from triton.backends.compiler import GPUTarget

  folder, built = pathlib.Path(os.environ['TRITON_CACHE_DIR']), {}
  for title, text, options in kernels(lowered(*SHAPES[name])):
    if kernel in title:
      file = folder / f'{title}.ttir'
      file.write_text(text)
      made = triton.compile(str(file), target=GPUTarget('cuda', 90, 32), options=options)
      built[title] = made.metadata.shared, len(made.asm['cubin'])
  print(json.dumps(built))


if __name__ == '__main__':
  main(*sys.argv[1:])
