"""Cycles of every kernel on every TPU, off its final schedule, for preflight:
bertzoo_jax/preflight/tpu/kernel_cycles.csv, whose columns docs/tpu_kernels.md explains.

    make kernels
    PYTHONPATH=. python bench/tpu_kernels.py [--chips v4,v5e] [--lengths 128,512]
        [--heads 12x64] [--variants plain,window] [--rates 0.1] [--out FILE.csv]

Each kernel is compiled alone, for one row of the batch, in all shapes that the configs have.
Nothing runs. A bundle of instructions is a cycle. Kernels have no loops inside, so cycles are
bundles times programs of the grid. On a chip of two cores (v4, v5p) both share the programs; with
relative terms they share the groups of heads. Rows that --out already has of this libtpu are kept,
so that a table cut short goes on; after a change of a kernel, delete its rows.
"""

import csv
import functools
import glob
import importlib.metadata
import io
import itertools
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from typing import NamedTuple

from absl import app
from absl import flags

from bertzoo_jax.common import storage
from bertzoo_jax.preflight.tpu import estimate

_CHIPS = flags.DEFINE_string('chips', 'v4,v5e,v5p,v6e', 'Generations by comma.')
_LENGTHS = flags.DEFINE_string('lengths', '128,512', 'Tokens per row, by comma.')
_HEADS = flags.DEFINE_string('heads', '', 'Heads × width by comma (12x64). All if empty.')
_VARIANTS = flags.DEFINE_string('variants', '', 'Of attention, by comma. All if empty.')
_RATES = flags.DEFINE_list('rates', ['0.0', '0.1'], 'Of dropout.')
_OUT = flags.DEFINE_string('out', str(estimate.KERNELS), 'The table.')
_WORKER = flags.DEFINE_string('worker', '', 'CHIP: compiles, prints JSON lines; for itself.')

# (heads, width of one) of the networks in configs/, generators included.
HEADS = ((1, 64), (2, 64), (4, 64), (8, 64), (12, 64), (16, 64), (16, 128), (64, 64))
FEW_HEADS = ((1, 64), (2, 64), (12, 64))  # base and tiny
RELATIVE_HEADS = (*FEW_HEADS, (6, 64), (16, 64), (24, 64))  # DeBERTa's
STREAM_HEADS = ((12, 64), (16, 64))  # XLNet's
# Predictions of a row of 512; an enhanced mask decoder and a query stream normalise only these.
MASKED, PERMUTED = 77, 85
_STREAMS = ('c2p', 'query', 'halves', 'segments')


class Variant(NamedTuple):
  """A variant of attention.

  Attributes:
    terms: relative terms: 'c2p', 'p2c', 'bias', 'query' (c2p_query), 'segments'. 'halves': tables
      have two halves.
    heads: (number, width) of the heads it is compiled for.
    window, ordered: who sees whom.
    asked: predictions of a row of 512, where only they are queries; 0 elsewhere.
    memory: whether keys of a memory, three quarters of a row, stand before.
  """

  terms: tuple[str, ...]
  heads: tuple[tuple[int, int], ...]
  window: tuple[int, int] | None = None
  ordered: bool = False
  asked: int = 0
  memory: bool = False


VARIANTS = {
  'plain': Variant((), HEADS),
  'window': Variant((), (*FEW_HEADS, (16, 64)), window=(64, 64)),
  'c2p_p2c': Variant(('c2p', 'p2c'), RELATIVE_HEADS),
  'bias': Variant(('bias',), FEW_HEADS),
  'c2p_order': Variant(('c2p',), FEW_HEADS, ordered=True),
  'decoder': Variant(('c2p', 'p2c'), RELATIVE_HEADS, asked=MASKED),
  'content': Variant(_STREAMS, STREAM_HEADS, ordered=True, memory=True),
  'queries': Variant(_STREAMS, STREAM_HEADS, ordered=True, asked=PERMUTED, memory=True),
}
# And the cores that share the programs.
TOPOLOGIES = {
  'v4': ('v4:2x2x1', 2),
  'v5e': ('v5e:2x2', 1),
  'v5p': ('v5p:2x2x1', 2),
  'v6e': ('v6e:2x2', 1),
}
_NAME = re.compile(r'((?:attention|add_norm)_(?:forward|backward)\w*?)_*\.\d+-\d+-schedule-')


def dump_schedules() -> str:
  """A folder that the TPU compiler will write its schedules to. Call it before jax is imported."""
  folder = tempfile.mkdtemp(prefix='schedules_')
  os.environ['LIBTPU_INIT_ARGS'] = (
    f'--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true '
    '--xla_jf_dump_llo_pass_label_regex=final_bundles'  # all passes take twice the time
  )
  os.environ.update(JAX_PLATFORMS='cpu', ALLOW_MULTIPLE_LIBTPU_LOAD='1', TPU_SKIP_MDS_QUERY='1')
  return folder


def lowered(f, shapes):
  """A function lowered for the TPU of its arguments' shardings."""
  import jax

  return jax.jit(f).trace(*shapes).lower(lowering_platforms=('tpu',))


def bundles(folder, program) -> dict[str, int]:
  """{kernel: bundles of its program}, of all kernels in a lowered function."""
  for path in glob.glob(f'{folder}/*'):
    os.remove(path)
  program.compile()
  found = {}
  for path in glob.glob(f'{folder}/*schedule-analysis_final_bundles.txt'):
    if name := _NAME.search(os.path.basename(path)):
      with open(path, encoding='utf-8') as file:
        count = re.search(r'total scheduled bundles:\s+(\d+)', file.read())
      found[name[1]] = int(count[1])
  return found


def attention_of(chip, place, heads, width, length, variant, rate=0.0, rows=1, attend=None):
  """(f, shapes): attention and its gradients, described for one device of a TPU. attend: None for
  the fused kernels.
  """
  import jax
  import jax.numpy as jnp

  from bertzoo_jax.kernels import attention
  from bertzoo_jax.model.attention import Relative
  from bertzoo_jax.model.attention import SameSegment
  from bertzoo_jax.model.attention import Visibility

  attend = attend or functools.partial(attention.attend, gather=chip != 'v4')
  array = lambda *shape, dtype=jnp.bfloat16: jax.ShapeDtypeStruct(shape, dtype, sharding=place)
  integers = lambda *shape: array(*shape, dtype=jnp.int32)
  keys, queries = sizes(length, variant)
  q, k = array(rows, queries, heads, width), array(rows, keys, heads, width)
  of_rows = (length + keys - 1) * (1 + ('halves' in variant.terms)), heads
  shapes = {'c2p': (*of_rows, width), 'p2c': (*of_rows, width), 'bias': of_rows}
  shapes |= {'query': (heads, width), 'numbers': (rows, queries, heads)}
  shapes['numbers'] = shapes['numbers'] if 'segments' in variant.terms else None
  learned = [
    array(*shape, dtype=jnp.float32) if name in (*variant.terms, 'numbers') and shape else None
    for name, shape in shapes.items()
  ]

  def f(grad, q, k, v, learned, own, ids, half_B, keys_B2):
    visible = Visibility(own, ids, variant.window, *((own, ids) if variant.ordered else ()))
    visible = visible._replace(first_query=keys - length)
    if variant.asked:
      visible = visible._replace(query_places_BL=own)
    half_B = half_B if 'halves' in variant.terms else None

    def of_learned(q, k, v, learned):
      *tables, numbers = learned
      same = None if numbers is None else SameSegment(numbers, own, ids)
      relative = Relative(*tables, half_B, same) if variant.terms else None
      return attend(q, k, v, visible, rate, keys_B2, relative)

    out, pull = jax.vjp(of_learned, q, k, v, learned)
    return out, pull(grad)

  of_batch = integers(rows, queries), integers(rows, keys), integers(rows)
  return f, (q, q, k, k, learned, *of_batch, array(rows, 2, dtype=jnp.uint32))


def sizes(length: int, variant: Variant) -> tuple[int, int]:
  """(keys, queries) of a row."""
  keys = length + 3 * length // 4 * variant.memory
  return keys, variant.asked * length // 512 or length


def _norm_of(place, depth, length, rate, with_sum, shifted):
  import jax
  import jax.numpy as jnp

  from bertzoo_jax.kernels import add_norm

  array = lambda *shape, dtype=jnp.bfloat16: jax.ShapeDtypeStruct(shape, dtype, sharding=place)
  x, scale = array(1, length, depth), array(depth, dtype=jnp.float32)

  def f(x, y, scale, shift, keys_B2):
    norm = lambda *learned: add_norm.add_norm(*learned, 1e-12, rate, keys_B2, with_sum)
    out, pull = jax.vjp(norm, x, y, scale, shift)
    return out, pull(jax.tree.map(lambda out: x, out))

  return f, (x, x, scale, scale if shifted else None, array(1, 2, dtype=jnp.uint32))


def _worker(chip, lengths, chosen, variants):
  folder = dump_schedules()
  import jax

  from bertzoo_jax.kernels import add_norm
  from bertzoo_jax.kernels import attention
  from bertzoo_jax.kernels import flash
  from bertzoo_jax.kernels import operands
  from bertzoo_jax.preflight.tpu import chips
  from bertzoo_jax.preflight.tpu import program

  topology, cores = TOPOLOGIES[chip]
  place = jax.sharding.SingleDeviceSharding(program.devices(chips.by_topology(topology))[0])

  # Bundles by program: networks with more heads often run more of the same one.
  libtpu, made = importlib.metadata.version('libtpu'), {}
  kept = {key for key, row in _rows().items() if row['libtpu'] == libtpu}

  def say(program, f_and_shapes, steps, length, depth, whole=False):
    if program not in made:
      step = lowered(*f_and_shapes)
      names = re.findall(r'kernel_name = "(\w+)"', step.as_text())
      if kept.issuperset((chip, name, length, depth) for name in names):
        return
      made[program] = bundles(folder, step)
    for name, count in made[program].items():
      programs = steps['_backward' in name] / cores
      cycles = round(count * (math.ceil(programs) if whole else programs))
      row = chip, name, length, depth, cycles, count, libtpu
      print(json.dumps(dict(zip(estimate.COLUMNS, row))), flush=True)

  for name in variants:
    variant, relative = VARIANTS[name], bool(VARIANTS[name].terms)
    for heads, width in [h for h in variant.heads if not chosen or h in chosen]:
      for length, rate in itertools.product(lengths, map(float, _RATES.value)):
        depth, (keys, queries) = heads * width, sizes(length, variant)
        steps = attention.steps(heads, width, queries, keys, relative, variant.window)
        together = tuple((heads / n, n == 1) for n in steps)
        say(
          (name, width, length, rate, together),
          attention_of(chip, place, heads, width, length, variant, rate),
          steps,
          operands.up(queries),
          depth if relative else heads * flash.width_of(heads, width),
          whole=relative,
        )
        for norm in _norms(name):
          say(
            ('norm', depth, queries, rate, *norm),
            _norm_of(place, depth, queries, rate, *norm),
            add_norm.steps(queries, depth),
            queries,
            depth,
          )


def _norms(variant: str):
  """[(with_sum, shifted)] of the norms that a variant's networks have."""
  if variant == 'window':  # of pre-norm networks, with biases or without
    return (True, True), (True, False)
  return ((False, True),) * (variant in ('plain', 'c2p_p2c', 'decoder', 'queries'))


def main(_):
  lengths = [int(n) for n in _LENGTHS.value.split(',')]
  heads = [tuple(map(int, h.split('x'))) for h in _HEADS.value.split(',') if h]
  if _WORKER.value:
    variants = _VARIANTS.value.split(',') if _VARIANTS.value else VARIANTS
    _worker(_WORKER.value, lengths, heads, variants)
    return
  rows = _rows()
  for chip in _CHIPS.value.split(','):
    command = [
      sys.executable,
      __file__,
      f'--worker={chip}',
      f'--lengths={_LENGTHS.value}',
      f'--heads={_HEADS.value}',
      f'--variants={_VARIANTS.value}',
      f'--rates={",".join(_RATES.value)}',
      f'--out={_OUT.value}',
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
      for line in worker.stdout:
        if line.startswith('{'):
          row = json.loads(line)
          rows[_key(row)] = row
          _write(rows)
    if worker.returncode:
      raise SystemExit(f'{chip}: the compiling process ended with {worker.returncode}.')
    print(f'{chip}: {len(rows)} rows', flush=True)


def _key(row):
  return row['chip'], row['kernel'], int(row['tokens']), int(row['width'])


def _rows():
  """{(chip, kernel, tokens, width): row} of the table."""
  if not os.path.exists(_OUT.value):
    return {}
  with open(_OUT.value, encoding='utf-8') as f:
    return {_key(row): row for row in csv.DictReader(f)}


def _write(rows):
  text = io.StringIO()
  table = csv.DictWriter(text, estimate.COLUMNS, lineterminator='\n')
  table.writeheader()
  table.writerows(rows[key] for key in sorted(rows))
  storage.write_text(_OUT.value, text.getvalue())


if __name__ == '__main__':
  app.run(main)
