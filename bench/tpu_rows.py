"""The largest and the smallest row of each paper table on the slice that its config names, by the
TPU compiler's own figures: bench/tpu_rows.csv.

    PYTHONPATH=. python bench/tpu_rows.py [--only albert_table5 …] [--out bench/tpu_rows.csv]

Largest and smallest are by train FLOPs. Nothing runs: the train step of each phase is compiled, a
minute or more for each row. Memory is that of the largest phase. Days are for one seed at the scale
`paper`. Lines that --out already has are kept, so that a table cut short goes on; delete a line to
make it anew.
"""

import importlib
import pathlib
import sys

import compiled
import jax
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


def lines(name: str) -> list[dict]:
  """Lines of the file for one table. Raises SystemExit for a row that does not fit."""
  config = importlib.import_module(f'configs.tables.{name}').get_config('paper').lock()
  kind, jobs = config.table.topology, plan.jobs(config, '/nowhere')
  ordered = sorted({job.name: job for job in jobs}.values(), key=_by_work)
  out = []
  for job in dict.fromkeys((ordered[-1].name, ordered[0].name)):
    experiment = next(j.experiment for j in jobs if j.name == job)
    title = config.rows[job].title
    print(f'{name}: {title} on {kind}', file=sys.stderr, flush=True)
    found = verdict.preflight(verdict.Request(experiment, tpu=kind, largest=False))
    jax.clear_caches()
    if not found.fits:
      why = found.findings.problems[0].sentence if found.findings.problems else 'no program'
      raise SystemExit(f'{name}: {title} does not fit {kind}: {why}')
    devices = found.slice_.chip.devices / chips.GIB
    peak = max(p.program.peak for p in found.phases) * devices
    days = '' if found.run is None else f'{found.run.days:.2f}'
    cells = (name, kind, title, f'{peak:.1f}', days, jax.__version__)
    out.append(dict(zip(COLUMNS, cells)))
  return out


def _by_work(job):
  return budget.work(job.experiment)


def _tables():
  for path in sorted((ROOT / 'configs/tables').glob('*.py')):
    if 'def get_config' in path.read_text(encoding='utf-8'):
      yield path.stem


def main(_):
  jax.config.update('jax_platforms', 'cpu')  # no chip is needed
  out, made = pathlib.Path(_OUT.value), {}
  for line in compiled.read_table(out):
    made.setdefault(line['table'], []).append(line)
  for name in _ONLY.value or _tables():
    if name not in made:
      made[name] = lines(name)
      compiled.write_table(out, COLUMNS, [line for key in sorted(made) for line in made[key]])


if __name__ == '__main__':
  app.run(main)
