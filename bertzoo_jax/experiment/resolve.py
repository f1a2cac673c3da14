"""A resolved config: its phases in order, and a cache of their networks."""

import dataclasses
from typing import Any

from bertzoo_jax.common import config as configuration
from bertzoo_jax.parts import ranges


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
  """One training run, as its config defines it."""

  config: Any  # an experiment, locked
  phases: tuple[configuration.Phase, ...]  # in order
  # cache of its encoder and networks, for build.py
  built: dict = dataclasses.field(default_factory=dict, init=False, repr=False)

  @property
  def length(self) -> int:
    """Tokens of the longest rows."""
    return max(phase.config.length for phase in self.phases)

  @property
  def end_step(self) -> int:
    return self.phases[-1].end_step

  def changed(self, values: dict) -> 'Run':
    """The run with these fields set, {'run.remat': 'full'}, in all phases."""
    phases = [dataclasses.replace(p, config=_changed(p.config, values)) for p in self.phases]
    return Run(_changed(self.config, values), tuple(phases))

  def in_microbatches(self, numbers: dict[int, int]) -> 'Run':
    """The run with run.accumulation set in some phases, {index: number}, and the same networks."""
    change = lambda i: {'run.accumulation': numbers[i]} if i in numbers else {}
    plan = tuple((n, {**more, **change(i)}) for i, (n, more) in enumerate(self.config.phases))
    config = _changed(self.config, {'phases': plan})
    out = Run(config, configuration.phases(config))
    out.built.update(self.built)
    return out


def run(config) -> Run:
  """The Run of a config. Raises UserError for a wrong number or phase; check.py checks the rest."""
  return Run(config, ranges.check(config, choices=False))


def _changed(config, values):
  """A copy of the config, locked, with other values."""
  copy = config.copy_and_resolve_references().unlock()
  with copy.ignore_type():  # a number in place of 'auto'
    copy.update_from_flattened_dict(values)
  return copy.lock()
