"""The cost of a train step by each choice of machinery, by generation of TPU and length:
bench/tpu_choices.csv.

    PYTHONPATH=. python bench/tpu_choices.py [--chips v5e,v4,v6e] [--lengths 512,128] [--out
    bench/tpu_choices.csv]

The train step of configs/bert.py:base, masked language modelling alone, dropout 0.1, 16,384 tokens
on one chip, compiled at full depth for each choice. Nothing runs. `ms` is the likely time, with its
bounds (bertzoo_jax/preflight/tpu/estimate.py). `cycles_ms` sums all estimates, which makes stacking
in a scan up to three times too dear. `run.unroll=1` is the scan. Settings of `run.remat`, and rows
of 128 tokens, are compiled for v4 alone, which takes half the time. Rows that --out already has are
kept, so that a table cut short goes on; delete a row to make it anew.
"""

import concurrent.futures
import itertools
import multiprocessing
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
TOKENS = 16_384
SCAN, BESIDE = 'run.unroll=1', 'run.unroll=0'
# Settings beside the config's own run(). The first is what `auto` takes in a long run.
CHOICES = ((BESIDE,), (SCAN,), (SCAN, 'run.kernels=xla'))
POLICIES = tuple(
  (BESIDE, f'run.remat={policy}') for policy in ('sublayers', 'feed_forward', 'full')
)
WHOLE = 'v4'  # has all choices and lengths
COLUMNS = (
  'chip',
  'tokens_per_row',
  'set',
  'ms',
  'lower_ms',
  'upper_ms',
  'cycles_ms',
  'peak_gib',
  'hbm_gb',
  'jax',
)
_CHIPS = flags.DEFINE_string('chips', 'v5e,v4,v6e', 'Generations by comma.')
_LENGTHS = flags.DEFINE_string('lengths', '512,128', 'Tokens a row, by comma.')
_OUT = flags.DEFINE_string('out', str(ROOT / 'bench/tpu_choices.csv'), 'The table.')


def row(chip: str, length: int, choice: tuple[str, ...]) -> dict:
  """The figures of one program, by column."""
  slice_, layers = chips.by_topology(compiled.TOPOLOGIES[chip]), compiled.depth('bert', 'base')
  settings = [f'run.unroll={layers}' if s == BESIDE else s for s in choice]
  made = compiled.train_step(
    'bert',
    'base',
    slice_,
    (1, 1, 1),
    layers=layers,
    rows=TOKENS // length,
    length=length,
    settings=settings,
  )
  if not made.fits:
    return {'peak_gib': f'{made.needed / chips.GIB:.2f}: more than there is'}
  reading = hlo.read(made.text, estimate.kernel_cycles(slice_.chip.name))
  time = estimate.step_time(reading, slice_)
  cycles = sum(
    c.times
    * max(
      (c.cycles or 0) / slice_.chip.clock, c.hbm / slice_.chip.device_bandwidth * bool(c.kernel)
    )
    for c in reading.costs
  )
  return {
    'ms': f'{1e3 * time.likely:.1f}',
    'lower_ms': f'{1e3 * time.floor:.1f}',
    'upper_ms': f'{1e3 * time.upper:.1f}',
    'cycles_ms': f'{1e3 * cycles:.1f}',
    'peak_gib': f'{made.memory.peak / chips.GIB:.2f}',
    'hbm_gb': f'{reading.hbm / 1e9:.1f}',
  }


def main(_):
  out = pathlib.Path(_OUT.value)
  found = {
    (row['chip'], int(row['tokens_per_row']), tuple(row['set'].split())): row
    for row in compiled.read_table(out)
  }
  for key in _keys(_CHIPS.value.split(','), map(int, _LENGTHS.value.split(','))):
    if key not in found:
      print(*key, file=sys.stderr, flush=True)
      chip, length, choice = key
      named = {'chip': chip, 'tokens_per_row': length, 'set': ' '.join(choice)}
      found[key] = {**named, **_apart(key), 'jax': jax.__version__}
      order = [k for k in _keys(compiled.TOPOLOGIES, (512, 128)) if k in found]
      compiled.write_table(out, COLUMNS, [found[k] for k in order])


def _keys(names, lengths):
  """(chip, length, choice) of each row, in the table's order."""
  return [
    (chip, length, choice)
    for chip, length in itertools.product(names, lengths)
    if chip == WHOLE or length == 512
    for choice in CHOICES + POLICIES * ((chip, length) == (WHOLE, 512))
  ]


def _apart(key):
  """`row`, in a process of its own: some programs end the compiler, and with it all that is
  there.
  """
  with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context('spawn')) as pool:
    try:
      return pool.submit(row, *key).result()
    except concurrent.futures.process.BrokenProcessPool:
      return {'ms': 'the compiler dies'}


if __name__ == '__main__':
  app.run(main)
