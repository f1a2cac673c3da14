"""Cycles of every kernel on every TPU, off its final schedule, for preflight: docs/tpu_kernels.md.

    PYTHONPATH=. python bench/tpu_kernels.py [--chips v4,v5e] [--lengths 128,512]
        [--heads 12x64] [--variants plain,window] [--rates 0.1] [--out docs/tpu_kernels.md]

Each kernel is compiled alone, for one row of the batch, in all shapes that the configs have.
Nothing runs. A bundle of instructions is a cycle. Kernels have no loops inside, so cycles are
bundles times programs of the grid. On a chip of two cores (v4, v5p) both share the programs; with
relative terms they share the groups of heads. Rows of the table that are not made again are kept.
"""

import glob
import itertools
import json
import math
import os
import re
import subprocess
import sys
import tempfile

from absl import app
from absl import flags

_CHIPS = flags.DEFINE_string('chips', 'v4,v5e,v5p,v6e', 'Generations by comma.')
_LENGTHS = flags.DEFINE_string('lengths', '128,512', 'Tokens per row, by comma.')
_HEADS = flags.DEFINE_string('heads', '', 'Heads × width by comma (12x64). All if empty.')
_VARIANTS = flags.DEFINE_string('variants', '', 'Of attention, by comma. All if empty.')
_RATES = flags.DEFINE_list('rates', ['0.0', '0.1'], 'Of dropout.')
_OUT = flags.DEFINE_string(
  'out', os.path.join(os.path.dirname(__file__), '../docs/tpu_kernels.md'), 'The table.'
)
_WORKER = flags.DEFINE_string('worker', '', 'CHIP: compiles, prints JSON lines; for itself.')

# (heads, width of one) of the networks in configs/, generators included.
HEADS = ((1, 64), (2, 64), (4, 64), (8, 64), (12, 64), (16, 64), (16, 128), (64, 64))
FEW_HEADS = ((1, 64), (2, 64), (12, 64))  # base and tiny
RELATIVE_HEADS = (*FEW_HEADS, (6, 64), (16, 64), (24, 64))  # DeBERTa's
PREDICTIONS = 77  # of a row of 512, which are all that an enhanced mask decoder norms
# Variants of attention: (relative terms, window, whether tokens have an order, heads).
VARIANTS = {
  'plain': ((), None, False, HEADS),
  'window': ((), (64, 64), False, FEW_HEADS),
  'c2p_p2c': (('c2p', 'p2c'), None, False, RELATIVE_HEADS),
  'bias': (('bias',), None, False, FEW_HEADS),
  'c2p_order': (('c2p',), None, True, FEW_HEADS),
}
# And the cores that share the programs.
TOPOLOGIES = {
  'v4': ('v4:2x2x1', 2),
  'v5e': ('v5e:2x2', 1),
  'v5p': ('v5p:2x2x1', 2),
  'v6e': ('v6e:2x2', 1),
}
_NAME = re.compile(r'((?:attention|add_norm)_(?:forward|backward)\w*?)_*\.\d+-\d+-schedule-')


HEADER = """# Kernels on TPUs, by their final schedules

Made by `PYTHONPATH=. python bench/tpu_kernels.py`; `preflight` reads it. **Nothing here was
measured on a chip.** Cycles are those of one row of the batch: bundles of a program (one is a
cycle) times its programs, over the cores of a chip. Transfers from and to memory overlap with
them, where they take less time. Shapes are tokens × width of the network; `k64` is the width of a
head.

| chip | kernel | shape | cycles per row | bundles per program |
|---|---|---|---|---|"""


def dump_schedules() -> str:
  """A folder that the TPU compiler will write its schedules to. Call it before jax is imported."""
  folder = tempfile.mkdtemp(prefix='schedules_')
  os.environ['LIBTPU_INIT_ARGS'] = f'--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true'
  os.environ.update(JAX_PLATFORMS='cpu', ALLOW_MULTIPLE_LIBTPU_LOAD='1', TPU_SKIP_MDS_QUERY='1')
  return folder


def bundles(folder, f, *shapes) -> dict[str, int]:
  """{kernel: bundles of its program}, of all kernels in a function. shapes: for a TPU."""
  import jax

  for path in glob.glob(f'{folder}/*'):
    os.remove(path)
  jax.jit(f).trace(*shapes).lower(lowering_platforms=('tpu',)).compile()
  found = {}
  for path in glob.glob(f'{folder}/*schedule-analysis_final_bundles.txt'):
    if name := _NAME.search(os.path.basename(path)):
      with open(path, encoding='utf-8') as file:
        count = re.search(r'total scheduled bundles:\s+(\d+)', file.read())
      found[name[1]] = int(count[1])
  return found


def attention_of(
  chip, place, heads, width, length, terms=(), window=None, ordered=False, rate=0.0, rows=1
):
  """(f, shapes): attention and its gradients, described for one device of a TPU."""
  import jax
  import jax.numpy as jnp

  from bertzoo_jax.kernels import attention
  from bertzoo_jax.model.attention import Relative
  from bertzoo_jax.model.attention import Visibility

  array = lambda *shape, dtype=jnp.bfloat16: jax.ShapeDtypeStruct(shape, dtype, sharding=place)
  x, ids = array(rows, length, heads, width), array(rows, length, dtype=jnp.int32)
  shape = lambda name: (2 * length - 1, heads) + (width,) * (name != 'bias')
  tables = [
    array(*shape(n), dtype=jnp.float32) if n in terms else None for n in ('c2p', 'p2c', 'bias')
  ]

  def f(grad, q, k, v, relative, ids, keys_B2):
    visible = Visibility(ids, ids, window, *((ids, ids) if ordered else ()))
    attend = lambda q, k, v, relative: attention.attend(
      q, k, v, visible, rate, keys_B2, relative, gather=chip != 'v4'
    )
    out, pull = jax.vjp(attend, q, k, v, relative)
    return out, pull(grad)

  relative = Relative(*tables) if terms else None
  return f, (x, x, x, x, relative, ids, array(rows, 2, dtype=jnp.uint32))


def _norm_of(place, depth, length, rate, with_sum):
  import jax
  import jax.numpy as jnp

  from bertzoo_jax.kernels import add_norm

  array = lambda *shape, dtype=jnp.bfloat16: jax.ShapeDtypeStruct(shape, dtype, sharding=place)
  x, vector = array(1, length, depth), array(depth, dtype=jnp.float32)

  def f(x, y, scale, shift, keys_B2):
    norm = lambda *learned: add_norm.add_norm(*learned, 1e-12, rate, keys_B2, with_sum)
    out, pull = jax.vjp(norm, x, y, scale, shift)
    return out, pull(jax.tree.map(lambda out: x, out))

  return f, (x, x, vector, vector, array(1, 2, dtype=jnp.uint32))


def _worker(chip, lengths, chosen, variants):
  folder = dump_schedules()
  import jax

  from bertzoo_jax.kernels import add_norm
  from bertzoo_jax.kernels import attention
  from bertzoo_jax.tpu import chips
  from bertzoo_jax.tpu import program

  topology, cores = TOPOLOGIES[chip]
  place = jax.sharding.SingleDeviceSharding(program.devices(chips.of_topology(topology))[0])

  # Bundles by program: networks with more heads often run more of the same one.
  made = {}

  def say(program, f_and_shapes, steps, length, depth, whole=False):
    if program not in made:
      f, shapes = f_and_shapes
      made[program] = bundles(folder, f, *shapes)
    for name, count in made[program].items():
      programs = steps['_backward' in name] / cores
      cycles = count * (math.ceil(programs) if whole else programs)
      print(json.dumps([chip, name, f'[{length},{depth}]', cycles, count]), flush=True)

  for variant in variants:
    terms, window, ordered, all_heads = VARIANTS[variant]
    for heads, width in [h for h in all_heads if not chosen or h in chosen]:
      for length, rate in itertools.product(lengths, map(float, _RATES.value)):
        depth, steps = heads * width, attention.steps(heads, width, length, relative=bool(terms))
        together = tuple((heads / n, n == 1) for n in steps)
        say(
          (variant, width, length, rate, together),
          attention_of(chip, place, heads, width, length, terms, window, ordered, rate),
          steps,
          length,
          depth,
          whole=bool(terms),
        )
        with_sum = variant == 'window'  # of pre-norm networks
        decoded = variant == 'c2p_p2c' and length == 512
        for rows in (length, PREDICTIONS) if decoded else (length,):
          if variant in ('plain', 'window', 'c2p_p2c'):
            say(
              ('norm', depth, rows, rate, with_sum),
              _norm_of(place, depth, rows, rate, with_sum),
              add_norm.steps(rows, depth),
              rows,
              depth,
            )


def main(_):
  lengths = [int(n) for n in _LENGTHS.value.split(',')]
  heads = [tuple(map(int, h.split('x'))) for h in _HEADS.value.split(',') if h]
  if _WORKER.value:
    variants = _VARIANTS.value.split(',') if _VARIANTS.value else VARIANTS
    _worker(_WORKER.value, lengths, heads, variants)
    return
  lines = {}
  if os.path.exists(_OUT.value):
    with open(_OUT.value, encoding='utf-8') as f:
      for line in f.read().splitlines():
        if line.startswith('| v'):
          lines[tuple(cell.strip(' `') for cell in line.split('|')[1:4])] = line
  for chip in _CHIPS.value.split(','):
    command = [
      sys.executable,
      __file__,
      f'--worker={chip}',
      f'--lengths={_LENGTHS.value}',
      f'--heads={_HEADS.value}',
      f'--variants={_VARIANTS.value}',
      f'--rates={",".join(_RATES.value)}',
    ]
    made = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    for line in made.splitlines():
      if line.startswith('['):
        kind, name, shape, cycles, count = json.loads(line)
        lines[kind, name, shape] = f'| {kind} | `{name}` | `{shape}` | {cycles:,.0f} | {count:,} |'
    print(f'{chip}: {len(lines)} rows', flush=True)
  with open(_OUT.value, 'w', encoding='utf-8') as f:
    f.write('\n'.join([HEADER, *(lines[key] for key in sorted(lines))]) + '\n')


if __name__ == '__main__':
  app.run(main)
