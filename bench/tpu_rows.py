"""The largest and the smallest row of each paper table on the slice that its config names, by the
TPU compiler's own figures: the last section of docs/tables.md.

    PYTHONPATH=. python bench/tpu_rows.py [--only albert_table5 …] [--out docs/tables.md]

Largest and smallest are by train FLOPs. Nothing runs: the train step of each phase is compiled, a
minute or more for each row. Lines that --out already has are kept, so that a table cut short goes
on; delete a line to make it anew.
"""

import importlib
import pathlib
import re
import sys

import jax
from absl import app
from absl import flags

from bertzoo_jax.common import storage
from bertzoo_jax.preflight import verdict
from bertzoo_jax.preflight.tpu import chips
from bertzoo_jax.reproduce import budget
from bertzoo_jax.reproduce import plan

ROOT = pathlib.Path(__file__).parents[1]
HEADING = '## The largest and the smallest row on a slice'
COLUMNS = ('table', 'slice', 'row', 'peak GiB a chip', 'days')
_ONLY = flags.DEFINE_multi_string('only', [], 'FILE of configs/tables/; all without it.')
_OUT = flags.DEFINE_string('out', str(ROOT / 'docs/tables.md'), 'The page.')


def lines(name: str) -> list[str]:
  """Lines of the section for one table. Raises SystemExit for a row that does not fit."""
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
    days = '–' if found.run is None else f'{found.run.days:,.2f}'
    out.append(f'| `{name}` | {kind} | {title} | {peak:.1f} | {days} |')
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
  section = out.read_text(encoding='utf-8').partition(HEADING)[2]
  for line in section.splitlines():
    if match := re.match(r'\| `(\w+)` \|', line):
      made.setdefault(match[1], []).append(line)
  for name in _ONLY.value or _tables():
    if name not in made:
      made[name] = lines(name)
    missing = [f'`{name}`' for name in _tables() if name not in made]
    page = out.read_text(encoding='utf-8').partition(HEADING)[0]  # it may have been edited
    storage.write_text(
      out,
      '\n'.join(
        [
          page.rstrip() + '\n',
          HEADING,
          '',
          f'Made by `PYTHONPATH=. python bench/tpu_rows.py` with jax {jax.__version__}. Nothing '
          'was run: the step of',
          'each phase is compiled for the slice that the config names (`table.topology`). Memory '
          'is the',
          'largest of the phases. Days are for one seed at the scale `paper`, as '
          '[preflight](preflight.md)',
          'estimates them. Largest and smallest are by train FLOPs.',
          '',
          f'| {" | ".join(COLUMNS)} |',
          '|---' * len(COLUMNS) + '|',
          *(line for key in sorted(made) for line in made[key]),
          *(['', f'Not compiled: {", ".join(missing)}.'] if missing else []),
        ]
      )
      + '\n',
    )


if __name__ == '__main__':
  app.run(main)
