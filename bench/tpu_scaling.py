"""BERT-large's train step over more and more chips of v4, by the TPU compiler's own figures:
bench/tpu_scaling.csv.

    PYTHONPATH=. python bench/tpu_scaling.py [--topologies v4:2x2x1,v4:4x4x4] [--out FILE.csv]

Nothing runs: the step is compiled with --layers of its layers, unrolled, and extrapolated to all of
them. Every figure is of one chip and one step: 32 rows of 512 tokens, bfloat16. Exchange is the
time of all collectives, one after the other; computing is the rest, with bounds. --check compiles
one case with more layers, and writes by how much the line is off (FILE_checks.csv). A compilation
takes a minute or more. Rows that --out already has are kept, so that a table cut short goes on;
delete a row to make it anew. LIBTPU_INIT_ARGS stands beside the mesh, and makes a row of its own.
"""

import os
import pathlib
import sys

import compiled
import jax
from absl import app
from absl import flags

from bertzoo_jax.preflight.tpu import chips
from bertzoo_jax.preflight.tpu import estimate
from bertzoo_jax.preflight.tpu import hlo

ROOT = pathlib.Path(__file__).parents[1]
MODEL = ('bert', 'large')
ROWS, LENGTH = 32, 512  # a chip
EXCHANGED = ('all-reduce', 'reduce-scatter', 'all-gather', 'all-to-all', 'collective-permute')
COLUMNS = (
  'chips',
  'mesh',
  'computing_ms',
  'lower_ms',
  'upper_ms',
  *(f'{kind}_mb' for kind in EXCHANGED),
  'exchange_ms',
  'exchange_share',
  'peak_gib',
  'matrix_tflop',
  'hbm_gb',
  'jax',
)
CHECKED = ('computing', 'exchange', *EXCHANGED, 'peak', 'flops', 'hbm')

_TOPOLOGIES = flags.DEFINE_list('topologies', ['v4:2x2x1', 'v4:2x2x4', 'v4:4x4x4'], 'Slices.')
_AXES = flags.DEFINE_list('axes', ['data', 'fsdp'], 'Of the mesh, to lay all chips along.')
_LAYERS = flags.DEFINE_list(
  'layers',
  ['3', '6'],
  "Two depths to carry on from; with 1 layer the peak of memory is the head's, and no line.",
)
_CHECK = flags.DEFINE_string(
  'check',
  'v4:2x2x1 data 24',
  'Topology, axis of the mesh, and layers that the line is held against.',
)
_OUT = flags.DEFINE_string('out', str(ROOT / 'bench/tpu_scaling.csv'), 'The table.')


def figures(slice_: chips.Slice, axis: str, layers: int) -> dict:
  """Figures of the step with so many layers, per chip: seconds (`computing` with `least` and
  `most`, `exchange`), bytes and FLOPs.
  """
  print(f'{slice_.topology} over {axis}, {layers} layers', file=sys.stderr, flush=True)
  made = compiled.train_step(
    *MODEL, slice_, _mesh(slice_, axis), layers=layers, rows=ROWS * slice_.devices, length=LENGTH
  )
  jax.clear_caches()
  return read(hlo.read(made.text, estimate.kernel_cycles(slice_.chip.name)), slice_, made.peak)


def read(reading: hlo.Reading, slice_: chips.Slice, peak: int) -> dict:
  """The figures of a program: collectives apart from the rest."""
  time = estimate.step_time(reading, slice_)
  if doubtful := [
    *reading.unknown_trips,
    *time.unknown,
    *({c.opcode for c in reading.collectives} - {*EXCHANGED}),
  ]:
    raise ValueError(
      f'The program has operations without a figure or column in the table: {", ".join(doubtful)}.'
    )
  exchanged = {
    kind: sum(c.times * c.bytes for c in reading.collectives if c.opcode == kind)
    for kind in EXCHANGED
  }
  return dict(
    computing=time.likely - time.exchange,
    least=time.floor,
    most=time.upper - time.exchange,
    exchange=time.exchange,
    **exchanged,
    peak=peak,
    flops=reading.flops,
    hbm=reading.hbm,
  )


def row(slice_: chips.Slice, axis: str, found: dict) -> dict:
  """A row of the table."""
  cells = [
    slice_.chips,
    _named(slice_, axis),
    *(f'{1e3 * found[name]:.1f}' for name in ('computing', 'least', 'most')),
    *(f'{found[kind] / 1e6:.1f}' for kind in EXCHANGED),
    f'{1e3 * found["exchange"]:.1f}',
    f'{found["exchange"] / (found["computing"] + found["exchange"]):.3f}',
    f'{found["peak"] / chips.GIB:.2f}',
    f'{found["flops"] / 1e12:.2f}',
    f'{found["hbm"] / 1e9:.1f}',
    jax.__version__,
  ]
  return dict(zip(COLUMNS, cells, strict=True))


def check(slice_: chips.Slice, axis: str, layers: int, line: dict, found: dict) -> dict:
  """How much more the straight line says than was compiled, as shares."""
  off = {name: f'{line[name] / found[name] - 1:+.4f}' if found[name] else '' for name in CHECKED}
  return {'chips': slice_.chips, 'mesh': _named(slice_, axis), 'layers': layers, **off}


def _mesh(slice_, axis):
  return {'data': (slice_.devices, 1, 1), 'fsdp': (1, slice_.devices, 1)}[axis]


def _named(slice_, axis):
  asked = os.environ.get('LIBTPU_INIT_ARGS')
  return f'{axis} {slice_.chip.name}:{"×".join(map(str, slice_.shape))}' + (
    f', `{asked}`' if asked else ''
  )


def main(_):
  out, full = pathlib.Path(_OUT.value), compiled.depth(*MODEL)
  low, high = map(int, _LAYERS.value)
  beside = out.with_name(f'{out.stem}_checks.csv')
  scaling, checks = (
    {(one['chips'], one['mesh']): one for one in compiled.read_table(path)}
    for path in (out, beside)
  )
  checked, checked_axis, deeper = _CHECK.value.split()

  for slice_ in map(chips.by_topology, _TOPOLOGIES.value):
    for axis in _AXES.value:
      key = (str(slice_.chips), _named(slice_, axis))
      wanted = (slice_.topology, axis) == (checked, checked_axis) and key not in checks
      if key in scaling and not wanted:
        continue
      ends = [(n, figures(slice_, axis, n)) for n in (low, high)]
      scaling[key] = row(slice_, axis, compiled.at_depth(*ends, full))
      compiled.write_table(out, COLUMNS, _ordered(scaling))
      if wanted:
        checks[key] = check(
          slice_,
          axis,
          int(deeper),
          compiled.at_depth(*ends, int(deeper)),
          figures(slice_, axis, int(deeper)),
        )
        compiled.write_table(beside, ('chips', 'mesh', 'layers', *CHECKED), _ordered(checks))


def _ordered(found):
  return [found[key] for key in sorted(found, key=lambda key: (int(key[0]), key[1]))]


if __name__ == '__main__':
  app.run(main)
