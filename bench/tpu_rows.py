"""The largest row of each paper table on the slice that its config names, by the TPU compiler's own
figures: bench/tpu_rows.csv.

    PYTHONPATH=. python bench/tpu_rows.py [--only albert_table5 …] [--out bench/tpu_rows.csv]

Largest is by train FLOPs. Nothing runs: the train step of each phase is compiled with run.unroll=1
and run.remat=none, a minute or more for each row. Memory is that of the largest phase. Days are for
one seed at the scale `paper`. Lines that --out already has are kept, so that a table cut short goes
on; delete a line to make it anew.
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
from bertzoo_jax.reproduce import budget
from bertzoo_jax.reproduce import plan

ROOT = pathlib.Path(__file__).parents[1]
COLUMNS = ('table', 'slice', 'row', 'peak_gib_per_chip', 'days', 'jax')
_ONLY = flags.DEFINE_multi_string('only', [], 'FILE of configs/tables/; all without it.')
_OUT = flags.DEFINE_string('out', str(ROOT / 'bench/tpu_rows.csv'), 'The table.')


def line(name: str) -> dict:
  """The line of the file for one table. Raises SystemExit for a row that does not fit."""
  job, title, kind = largest(name)
  experiment = ml_collections.ConfigDict(job.experiment).unlock()
  experiment.run.update(unroll=1, remat='none')
  print(f'{name}: {title} on {kind}', file=sys.stderr, flush=True)
  found = verdict.preflight(verdict.Request(experiment.lock(), tpu=kind, largest=False))
  jax.clear_caches()
  if not found.fits:
    why = found.findings.problems[0].sentence if found.findings.problems else 'no program'
    raise SystemExit(f'{name}: {title} does not fit {kind}: {why}')
  peak = max(p.program.peak for p in found.phases) * found.slice_.chip.devices / chips.GIB
  days = '' if found.run is None else f'{found.run.days:.2f}'
  return dict(zip(COLUMNS, (name, kind, title, f'{peak:.1f}', days, jax.__version__)))


def largest(name: str):
  """(job, its title, accelerator type) of a table's row with the most train FLOPs."""
  config = importlib.import_module(f'configs.tables.{name}').get_config('paper').lock()
  *_, job = sorted(plan.jobs(config, '/nowhere'), key=lambda job: budget.work(job.experiment))
  return job, config.rows[job.name].title, config.table.topology


def _tables():
  for path in sorted((ROOT / 'configs/tables').glob('*.py')):
    if 'def get_config' in path.read_text(encoding='utf-8'):
      yield path.stem


def main(_):
  jax.config.update('jax_platforms', 'cpu')  # no chip is needed
  out = pathlib.Path(_OUT.value)
  made = {line['table']: line for line in compiled.read_table(out)}
  for name in _ONLY.value or _tables():
    if name not in made:
      made[name] = line(name)
      compiled.write_table(out, COLUMNS, [made[key] for key in sorted(made)])


if __name__ == '__main__':
  app.run(main)
