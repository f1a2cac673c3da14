"""Cycles of every kernel on every TPU, off its final schedule: docs/tpu_kernels.md, from which
preflight takes them.

    PYTHONPATH=. python bench/tpu_kernels.py [--chips v4,v5e,v6e] [--lengths 128,512] [--out
    docs/tpu_kernels.md]

Each kernel is compiled alone, for one row of the batch, in all shapes that the configs have;
nothing runs. A bundle of instructions is a cycle; the programs of the grid are counted. On a chip
of two cores (v4) the rows of a batch share them.
"""

import functools
import glob
import json
import os
import re
import subprocess
import sys
import tempfile

from absl import app
from absl import flags

_CHIPS = flags.DEFINE_string('chips', 'v4,v5e,v6e', 'Generations by comma.')
_LENGTHS = flags.DEFINE_string('lengths', '128,512', 'Tokens a row, by comma.')
_OUT = flags.DEFINE_string(
  'out', os.path.join(os.path.dirname(__file__), '../docs/tpu_kernels.md'), 'The table.'
)
_WORKER = flags.DEFINE_string(
  'worker', '', 'CHIP: compiles and prints its rows as JSON lines; for this program itself.'
)

# (heads, width of one) of the networks in configs/, generators included.
HEADS = ((1, 64), (2, 64), (4, 64), (8, 64), (12, 64), (16, 64), (16, 128), (64, 64))
# and the cores that share the rows
TOPOLOGIES = {'v4': ('v4:2x2x1', 2), 'v5e': ('v5e:2x2', 1), 'v6e': ('v6e:2x2', 1)}


def _worker(chip, lengths):
  folder = tempfile.mkdtemp(prefix='schedules_')
  os.environ['LIBTPU_INIT_ARGS'] = f'--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true'
  os.environ.update(JAX_PLATFORMS='cpu', ALLOW_MULTIPLE_LIBTPU_LOAD='1', TPU_SKIP_MDS_QUERY='1')
  import jax
  import jax.numpy as jnp

  from bertzoo_jax.kernels import add_norm
  from bertzoo_jax.kernels import attention
  from bertzoo_jax.tpu import chips
  from bertzoo_jax.tpu import program

  topology, cores = TOPOLOGIES[chip]
  device = program.devices(chips.of_topology(topology))[0]
  place = jax.sharding.SingleDeviceSharding(device)
  array = lambda *shape, dtype=jnp.bfloat16: jax.ShapeDtypeStruct(shape, dtype, sharding=place)
  keys_B2 = array(1, 2, dtype=jnp.uint32)

  for heads, width in HEADS:
    for length in lengths:
      for rate in (0.0, 0.1):
        depth = heads * width
        x, ids, vector = (
          array(1, length, heads, width),
          array(1, length, dtype=jnp.int32),
          array(depth, dtype=jnp.float32),
        )
        row = array(1, length, depth)
        attend = lambda q, k, v, ids, keys, rate=rate: attention.attend(q, k, v, ids, rate, keys)
        norm = lambda x, y, a, b, keys, rate=rate: add_norm.add_norm(x, y, a, b, 1e-12, rate, keys)
        for f, shapes, learned, steps in (
          (attend, (x, x, x, ids), 3, attention.steps(heads, width, length)),
          (norm, (row, row, vector, vector), 4, add_norm.steps(length, depth)),
        ):

          def grad(w, *args, f=f, learned=learned):
            return jax.vjp(functools.partial(_first(f), args[learned:]), *args[:learned])[1](w)

          for g, given, times in ((f, shapes, steps[0]), (grad, (shapes[0], *shapes), steps[1])):
            for path in glob.glob(f'{folder}/*'):
              os.remove(path)
            jax.jit(g).trace(*given, keys_B2).lower(lowering_platforms=('tpu',)).compile()
            for path in glob.glob(f'{folder}/*schedule-analysis_final_bundles.txt'):
              if found := re.search(r'(attention|add_norm)_(forward|backward)', path):
                name = found[0] + (f'_k{width}' if found[1] == 'attention' else '')
                name += '_dropout' if rate else ''
                bundles = int(re.search(r'total scheduled bundles:\s+(\d+)', open(path).read())[1])
                print(
                  json.dumps([chip, name, f'[{length},{depth}]', bundles * times / cores, bundles]),
                  flush=True,
                )


def _first(f):
  return lambda last, *args: f(*args, *last)


def main(_):
  lengths = [int(n) for n in _LENGTHS.value.split(',')]
  if _WORKER.value:
    _worker(_WORKER.value, lengths)
    return
  lines = {}
  for chip in _CHIPS.value.split(','):
    command = [sys.executable, __file__, f'--worker={chip}', f'--lengths={_LENGTHS.value}']
    for line in subprocess.run(
      command, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.splitlines():
      if line.startswith('['):
        kind, name, shape, cycles, bundles = json.loads(line)
        lines[kind, name, shape] = (
          f'| {kind} | `{name}` | `{shape}` | {cycles:,.0f} | {bundles:,} |'
        )
    print(f'{chip}: {len(lines)} rows', flush=True)
  with open(_OUT.value, 'w', encoding='utf-8') as f:
    f.write(
      '\n'.join(
        [
          '# Kernels on TPUs, by their final schedules',
          '',
          'Made by `PYTHONPATH=. python bench/tpu_kernels.py`; `preflight` reads it. **Nothing '
          'here was measured on a chip.** Cycles are those of',
          'one row of the batch: bundles of a program (one is a cycle) times its programs, over '
          'the cores of a chip. What comes from and goes to',
          'memory overlaps with them, where it takes less time. Shapes are tokens × width of the '
          'network; `k64` is the width of a head.',
          '',
          '| chip | kernel | shape | cycles a row | bundles a program |',
          '|---|---|---|---|---|',
          *(lines[key] for key in sorted(lines)),
        ]
      )
      + '\n'
    )


if __name__ == '__main__':
  app.run(main)
