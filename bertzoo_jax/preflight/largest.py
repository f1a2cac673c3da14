"""The largest batch that fits, where the config's does not."""

import contextlib

import jax

from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.training import sharding

_TRIES = 3  # batches compiled at most, to confirm one that fits


def batch(config, phase, mesh, slice_, confirm, peak) -> tuple[int, int | None]:
  """(rows, confirmed rows or None) of the largest batch that fits; 0 rows where none does.

  Memory is a line in the rows, through two batches that are smaller: at the limit the compiler
  already trades time for memory, and the batch that was refused would flatter. Small batches would
  too: their activations need no HBM.

  Args:
    config: an experiment.
    phase: a Phase that does not fit.
    mesh, slice_: of the run.
    confirm: compile the batch that is estimated, and smaller ones if it does not fit.
    peak: rows → (bytes per device, whether they fit), by a compilation.
  """
  state = phase.parameters + phase.optimizer  # bytes per device that no batch changes
  unit, usable = _unit(config, phase, mesh, slice_.hosts), slice_.chip.usable

  down = lambda rows: max(unit, int(rows) // unit * unit)
  points, first = {}, down(0.25 * phase.rows * usable / phase.program.needed)
  while first < phase.rows:
    points[first] = peak(first)
    if points[first][1] or first == unit:
      break
    first = down(first / 4)
  if not points or not points[first][1]:
    return 0, None
  seen = lambda: max(n for n, (_, fits) in points.items() if fits)
  rows = None
  # what was seen until then stands
  with contextlib.suppress(jax.errors.JaxRuntimeError, KeyboardInterrupt):
    low = points[first][0]
    second = down(0.8 * first * (usable - state) / max(low - state, 1))
    line = first
    if first < second < phase.rows:
      points[second] = peak(second)
      slope = max((points[second][0] - low) / (second - first), 1e-9)
      line = down(first + (usable - low) / slope)
    rows = min(max(line, seen()), phase.rows - unit)
    if not confirm:
      return rows, None
    for tried in range(_TRIES):
      at = max(rows - tried * max(unit, rows // 16 // unit * unit), first)
      if at not in points:
        points[at] = peak(at)
      if points[at][1]:
        return rows, at
  return rows or seen(), seen()


def _unit(config, phase, mesh, hosts) -> int:
  """The least number of rows that splits over microbatches, devices and hosts. The batch is a
  multiple of it.
  """
  accumulation = configuration.phases(config)[phase.index].config.run.accumulation
  for unit in range(1, phase.rows + 1):
    try:
      sharding.check_batch(unit, accumulation, mesh, hosts)
      return unit
    except errors.UserError:
      continue
  return phase.rows
