"""BERT-large's train step over more and more chips of v4, by the TPU compiler's own figures:
docs/tpu_scaling.md.

    PYTHONPATH=. python bench/tpu_scaling.py [--topologies v4:2x2x1,v4:4x4x4] [--out
    docs/tpu_scaling.md]

Nothing runs: the step is compiled with --layers of its layers, unrolled, and carried on in a
straight line to all of them; --check compiles one case with more layers and holds the line against
it. A compilation takes a minute or more. Rows that --out already has are kept, so that a table cut
short goes on; delete a row to make it anew. What LIBTPU_INIT_ARGS asks of the compiler stands
beside the mesh, and makes a row of its own.
"""

import os
import pathlib
import re
import sys

import compiled
import jax
from absl import app
from absl import flags

from bertzoo_jax.common import storage
from bertzoo_jax.preflight.tpu import chips
from bertzoo_jax.preflight.tpu import estimate
from bertzoo_jax.preflight.tpu import hlo
from bertzoo_jax.preflight.tpu import kernel_costs

ROOT = pathlib.Path(__file__).parents[1]
MODEL = ('bert', 'large')
ROWS, LENGTH = 32, 512  # a chip
EXCHANGED = ('all-reduce', 'reduce-scatter', 'all-gather', 'all-to-all', 'collective-permute')
COLUMNS = (
  'chips',
  'mesh',
  'computing, ms (bounds)',
  *(f'{kind}, MB' for kind in EXCHANGED),
  'exchange, ms',
  'share of the step',
  'peak, GiB',
  'matrix TFLOP',
  'HBM, GB',
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
_OUT = flags.DEFINE_string('out', str(ROOT / 'docs/tpu_scaling.md'), 'The table.')


def figures(slice_: chips.Slice, axis: str, layers: int) -> dict:
  """Of the step with so many layers, a chip: seconds (`computing` with `least` and `most`,
  `exchange`), bytes and FLOPs.
  """
  print(f'{slice_.topology} over {axis}, {layers} layers', file=sys.stderr, flush=True)
  made = compiled.train_step(
    *MODEL, slice_, _mesh(slice_, axis), layers=layers, rows=ROWS * slice_.devices, length=LENGTH
  )
  jax.clear_caches()
  return read(hlo.read(made.text, kernel_costs.of(slice_.chip.name)), slice_, made.peak)


def read(reading: hlo.Reading, slice_: chips.Slice, peak: int) -> dict:
  """The figures of a program: collectives apart from the rest."""
  time = estimate.step_time(reading, slice_)
  if doubtful := [
    *reading.unknown_trips,
    *time.unknown,
    *({c.opcode for c in reading.collectives} - {*EXCHANGED}),
  ]:
    raise ValueError(
      f'The program has what the table has no figure or column for: {", ".join(doubtful)}.'
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


def row(slice_: chips.Slice, axis: str, found: dict) -> str:
  """A line of the table."""
  cells = [
    slice_.chips,
    _named(slice_, axis),
    f'{1e3 * found["computing"]:.1f} ({1e3 * found["least"]:.1f} – {1e3 * found["most"]:.1f})',
    *(f'{found[kind] / 1e6:,.1f}' for kind in EXCHANGED),
    f'{1e3 * found["exchange"]:.1f}',
    f'{found["exchange"] / (found["computing"] + found["exchange"]):.1%}',
    f'{found["peak"] / chips.GIB:.2f}',
    f'{found["flops"] / 1e12:.2f}',
    f'{found["hbm"] / 1e9:.1f}',
  ]
  return f'| {" | ".join(map(str, cells))} |'


def check(slice_: chips.Slice, axis: str, layers: int, line: dict, found: dict) -> str:
  """A line of the second table: what the straight line says is more (or less) than what was
  compiled.
  """
  off = (f'{line[name] / found[name] - 1:+.2%}' if found[name] else '–' for name in CHECKED)
  return f'| {slice_.chips} | {_named(slice_, axis)} | {layers} | {" | ".join(off)} |'


def _mesh(slice_, axis):
  return {'data': (slice_.devices, 1, 1), 'fsdp': (1, slice_.devices, 1)}[axis]


def _named(slice_, axis):
  asked = os.environ.get('LIBTPU_INIT_ARGS')
  return f'{axis} {slice_.chip.name}:{"×".join(map(str, slice_.shape))}' + (
    f', `{asked}`' if asked else ''
  )


def _key(line):
  return tuple(re.split(r' *\| *', line)[1:3])


def main(_):
  out, full = pathlib.Path(_OUT.value), compiled.depth(*MODEL)
  low, high = map(int, _LAYERS.value)
  kept = out.read_text().partition('\n## ') if out.exists() else ('', '', '')
  scaling, checks = (
    {_key(line): line for line in part.splitlines() if re.match(r'\| \d', line)}
    for part in (kept[0], kept[2])
  )
  checked, checked_axis, deeper = _CHECK.value.split()

  def write():
    storage.write_text(out, '\n'.join(_page(scaling, checks, low, high, full)) + '\n')

  for slice_ in map(chips.of_topology, _TOPOLOGIES.value):
    for axis in _AXES.value:
      key = (str(slice_.chips), _named(slice_, axis))
      wanted = (slice_.topology, axis) == (checked, checked_axis) and key not in checks
      if key in scaling and not wanted:
        continue
      ends = [(n, figures(slice_, axis, n)) for n in (low, high)]
      scaling[key] = row(slice_, axis, compiled.at_depth(*ends, full))
      write()
      if wanted:
        checks[key] = check(
          slice_,
          axis,
          int(deeper),
          compiled.at_depth(*ends, int(deeper)),
          figures(slice_, axis, int(deeper)),
        )
        write()


def _page(scaling, checks, low, high, full):
  table = lambda columns, lines: [f'| {" | ".join(columns)} |', '|---' * len(columns) + '|', *lines]
  ordered = lambda found: [
    found[key] for key in sorted(found, key=lambda key: (int(key[0]), key[1]))
  ]
  lines = [
    '# BERT-large over more chips, as the compiler sees it',
    '',
    f'Made by `PYTHONPATH=. python bench/tpu_scaling.py` with jax {jax.__version__}. **Nothing '
    'here was measured on a chip.** The train step of',
    f'`configs/bert.py:large` is compiled for v4 with {low} and {high} layers, and carried on in a '
    f'straight line to {full}: {ROWS} rows of {LENGTH} tokens per',
    'chip, bfloat16, layers unrolled. Every figure is of one chip and one step. Exchange is the '
    'time of all collectives, one after the other, at',
    '50 GB/s per link and direction. Computing is the rest, with bounds.',
    '',
    *table(COLUMNS, ordered(scaling)),
  ]
  if checks:
    lines += [
      '',
      '## The straight line',
      '',
      f'How much more the line through {low} and {high} layers says than a compiled depth has.',
      '',
      *table(('chips', 'mesh', 'layers', *CHECKED), ordered(checks)),
    ]
  return lines


if __name__ == '__main__':
  app.run(main)
