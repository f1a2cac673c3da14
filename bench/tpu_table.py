"""The usual sizes of every config, each on the smallest usual slice that holds it, by the TPU
compiler's own figures: bench/tpu_table.csv.

    PYTHONPATH=. python bench/tpu_table.py [--only bert:base --only electra] [--types v5e-8,v4-8]
    [--out bench/tpu_table.csv]

Nothing runs: the train step of the last phase of each length is compiled as `preflight` does,
minutes for each row. Memory is the compiler's own peak per chip, time its estimate with bounds, for
the batch and the accumulation of the config, with run.unroll=1 and run.remat=none. A config
that no slice holds so has a row that says it. Rows that --out already has are kept, so that a table
cut short goes on; delete a row to make it anew.
"""

import importlib
import pathlib
import sys

import compiled
import jax
import ml_collections
from absl import app
from absl import flags

from bertzoo_jax.preflight import verdict
from bertzoo_jax.preflight.tpu import chips

ROOT = pathlib.Path(__file__).parents[1]
TYPES = 'v5e-4,v4-8,v5e-8,v6e-8,v5e-16,v4-32,v5e-32,v5e-64,v4-64,v4-128,v5e-256,v4-512'
COLUMNS = (
  'config',
  'slice',
  'phase',
  'rows',
  'tokens_per_row',
  'peak_gib_per_chip',
  'ms',
  'lower_ms',
  'upper_ms',
  'tokens_per_s_per_chip',
  'jax',
)
USUAL = ('base', 'large', 'deberta_v2:xlarge', 'electra:small')
_ONLY = flags.DEFINE_multi_string(
  'only', [], 'FILE or FILE:SIZE of configs/; the usual ones without it.'
)
_TYPES = flags.DEFINE_string(
  'types', TYPES, 'Accelerator types by comma, the first that holds a config is taken.'
)
_OUT = flags.DEFINE_string('out', str(ROOT / 'bench/tpu_table.csv'), 'The table.')


def rows(name: str, size: str, types: list[str]):
  """Rows of the table for one config and size, one per length; one row if no type holds it."""
  config = ml_collections.ConfigDict(importlib.import_module(f'configs.{name}').get_config(size))
  config.run.update(unroll=1, remat='none')
  last = {dict(c).get('length', config.length): i for i, (_, c) in enumerate(config.phases)}
  numbers = sorted(last.values())
  config.phases = tuple(config.phases[i] for i in numbers)
  config.lock()
  for kind in types:
    print(f'{name}:{size} on {kind}', file=sys.stderr, flush=True)
    found = verdict.preflight(verdict.Request(config, tpu=kind, largest=False))
    jax.clear_caches()
    if wrong := [f.sentence for f in found.findings.problems if f.code not in ('P04', 'P09')]:
      raise SystemExit(f'{name}:{size}: {wrong[0]}')
    if found.fits:
      return [_row(name, size, found, *of_phase) for of_phase in zip(numbers, found.phases)]
  none = f'none of {types[0]} to {types[-1]}'
  return [{'config': f'{name}:{size}', 'slice': none, 'jax': jax.__version__}]


def _row(name, size, found, number, phase):
  peak = phase.program.peak * found.slice_.chip.devices / chips.GIB
  out = {
    'config': f'{name}:{size}',
    'slice': found.slice_.accelerator_type,
    'phase': number,
    'rows': phase.rows,
    'tokens_per_row': phase.length,
    'peak_gib_per_chip': f'{peak:.2f}',
    'jax': jax.__version__,
  }
  if time := phase.time:
    times = dict(ms=time.likely, lower_ms=time.floor, upper_ms=time.upper)
    out |= {column: f'{1e3 * seconds:.1f}' for column, seconds in times.items()}
    speed = phase.rows * phase.length / time.likely / found.slice_.chips
    out['tokens_per_s_per_chip'] = f'{speed:.0f}'
  return out


def _sizes(only=()):
  for path in sorted((ROOT / 'configs').glob('*.py')):
    module = importlib.import_module(f'configs.{path.stem}')
    for size in getattr(module, 'SIZES', ()):
      named = {f'{path.stem}:{size}'} | ({path.stem} if only else {size})
      if named.intersection(only or USUAL) and not size.startswith('tiny'):
        yield path.stem, size


def main(_):
  jax.config.update('jax_platforms', 'cpu')  # no chip is needed
  out = pathlib.Path(_OUT.value)
  made = {}
  for row in compiled.read_table(out):
    made.setdefault(row['config'], []).append(row)
  for name, size in _sizes(_ONLY.value):
    if f'{name}:{size}' not in made:
      made[f'{name}:{size}'] = rows(name, size, _TYPES.value.split(','))
      compiled.write_table(out, COLUMNS, [row for key in sorted(made) for row in made[key]])


if __name__ == '__main__':
  app.run(main)
