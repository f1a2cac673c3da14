"""The cost of a table on a TPU: every unlike pretraining compiled for a slice, summed."""

from typing import NamedTuple

from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.experiment import resolve
from bertzoo_jax.preflight import readiness
from bertzoo_jax.preflight import verdict
from bertzoo_jax.reproduce import plan

_DEVICE = ('encoder', 'objective', 'optimizer', 'schedule', 'run')  # sections that programs have


class Line(NamedTuple):
  row: str  # name of the row
  runs: int  # how many seeds
  fits: bool  # whether it fits the slice
  why: str  # the first problem if it does not
  # days, dollars: of all its runs, likely; None if unknown
  days: float | None
  dollars: float | None


def lines(jobs, tpu: str, price: float | None = None, say=print) -> list[Line]:
  """The cost of the pretraining of each row. Equal programs are compiled once: NSP and SOP differ
  only in how the host makes rows of the text.

  price: dollars per chip and hour; None for preflight's table.
  """
  known, out = {}, []
  for row in dict.fromkeys(job.name for job in jobs):
    row_jobs = [job for job in jobs if job.name == row]
    program = _programs(row_jobs[0].experiment)
    if program not in known:
      say(f'{row}: compiling for {tpu}')
      request = verdict.Request(row_jobs[0].experiment, tpu=tpu, price=price, largest=False)
      known[program] = verdict.preflight(request)
    result = known[program]
    run, times = result.run if result.fits else None, len(row_jobs)
    why = '' if result.fits else next(iter(f.sentence for f in result.findings), 'it does not fit')
    days = None if run is None else times * run.days
    dollars = None if run is None or run.dollars is None else times * run.dollars
    out.append(Line(row, times, result.fits, why, days, dollars))
  return out


def _programs(experiment) -> str:
  """Identifies the compiled programs of an experiment: by its sections for the device, and by the
  shapes of its batches. Of an experiment that does not fit together, by all its fields.
  """
  findings, out = readiness.Findings(), [experiment.tokenizer.vocab_size]
  with findings.collecting('P08'):
    run = resolve.run(experiment)
    data = readiness.text(findings, run, None, 1).data
    for phase in run.phases if not findings.problems else ():
      flat = configuration.flatten({section: phase.config[section] for section in _DEVICE})
      features = data.phases[phase.index].features
      out.append((phase.steps, sorted(flat.items()), sorted(features.items())))
  return plan.program_of(experiment) if findings.problems else repr(out)


def seconds(costs: list[Line], tpu: str) -> float:
  """Seconds of all runs of all rows. Raises UserError if the time of a row is not known."""
  if lacking := [line for line in costs if line.days is None]:
    raise errors.UserError(
      f'How long {lacking[0].row} takes on {tpu} is not known ({lacking[0].why or "no estimate"}): '
      'take a larger --tpu, leave the row out with --rows, or give FILE.py:budget,k=K.'
    )
  return 86400 * sum(line.days for line in costs)


def table(costs: list[Line], tpu: str, chips: int) -> str:
  """The lines and their sum, as text."""
  wide = max(len(line.row) for line in costs)
  shown = [f"Pretraining on {tpu} ({chips} chips), by the compiler's estimate; nothing was run."]
  for line in costs:
    cost = line.why or 'no estimate' if line.days is None else f'{line.days:8.2f} days'
    money = '' if line.dollars is None else f'  ${line.dollars:,.0f}'
    shown.append(f'{line.row.ljust(wide)}  {line.runs} ×  {cost}{money}')
  known = [line for line in costs if line.days is not None]
  lacking = [line.row for line in costs if line.days is None]
  days = sum(line.days for line in known)
  dollars = sum(line.dollars or 0.0 for line in known)
  money = f'  ${dollars:,.0f}' if dollars else ''
  but = f', without {", ".join(lacking)}' if lacking else ''
  shown.append(f'{"all".ljust(wide)}       {days:8.2f} days{money}{but}')
  return '\n'.join(shown)
