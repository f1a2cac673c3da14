"""Time, speed and price of a step from the compiler's figures. None was measured on a chip.

Three times per step. The truth should lie between the outer two:

    floor    matrix FLOPs / peak: nothing else takes time
    likely   each product by its estimated cycles, everything else by its bytes at full bandwidth or
             a third of its cycles, whichever is longer; no overlap
    upper    the sum of all estimated cycles, or bytes at full bandwidth where these are longer; no
             overlap

The estimates were compared with known answers on v5e. Cycles of matrix products are within 3–14 %.
Cycles of element-wise operations are up to three times too high, for example for an addition that
is limited by memory. Gathers and small operations have no estimate; their time is their bytes
divided by the bandwidth. Latency of collectives, input and host are left out.

On v6e, 16,384 × 768 × 3,072 in bfloat16 is estimated at 377,734 cycles; its final schedule has 18
turns of 8,400 bundles, 151,200 cycles, and the peak allows 147,400 (libtpu 0.0.52).
"""

import csv
import pathlib
from typing import NamedTuple

from bertzoo_jax.preflight.tpu import chips
from bertzoo_jax.preflight.tpu import hlo

_ELEMENTWISE = 3.0  # cycles of operations bound by memory are too high by this factor
_PER_BYTE = {'all-reduce': 2.0, 'all-gather': 1.0, 'reduce-scatter': 1.0}

# The cost of bertzoo_jax/kernels, which `make kernels` counts (bench/tpu_kernels.py;
# docs/tpu_kernels.md explains it): the compiler has no estimate for a Pallas kernel in a program.
# Compiled alone, a bundle of its final schedule is a cycle, times the programs of the grid.
KERNELS = pathlib.Path(__file__).with_name('kernel_cycles.csv')
COLUMNS = ('chip', 'kernel', 'tokens', 'width', 'cycles', 'bundles', 'libtpu')

# Seconds that a preemption costs before the step it died at is reached again, besides lost work;
# hours until capacity returns are not in it.
RESTART = {'machine and environment': 300.0, 'mirror of the corpus': 120.0, 'restore': 60.0}


class Time(NamedTuple):
  """Seconds per step."""

  # floor, likely, upper: see the module
  floor: float
  likely: float
  upper: float
  exchange: float  # the part of likely and upper that is spent in collectives
  unknown: tuple[str, ...]  # kernels without a figure, which are charged by their bytes


class Run(NamedTuple):
  steps_seconds: float  # likely time of all steps
  # floor_seconds, upper_seconds: the bounds of it
  floor_seconds: float
  upper_seconds: float
  lost_seconds: float  # to preemptions
  # days, dollars: of the whole, likely; least and most by the bounds. Without a price dollars are
  # None.
  days: float
  least_days: float
  most_days: float
  dollars: float | None
  least_dollars: float | None
  most_dollars: float | None


def kernel_cycles(chip: str) -> dict[str, float]:
  """{'kernel [L,D]': cycles per row of the batch} on a chip ('v5e'), as `hlo.read` takes it."""
  with open(KERNELS, encoding='utf-8') as f:
    return {
      f'{row["kernel"]} [{row["tokens"]},{row["width"]}]': float(row['cycles'])
      for row in csv.DictReader(f)
      if row['chip'] == chip
    }


def step_time(reading: hlo.Reading, slice_: chips.Slice) -> Time:
  """The time of one execution of a program on a slice."""
  chip, likely, upper, unknown = slice_.chip, 0.0, 0.0, {}
  for cost in reading.costs:
    moved = cost.hbm / chip.device_bandwidth
    computed = (cost.cycles or 0) / chip.clock
    product = cost.flops / chip.peak
    exact = bool(cost.flops or cost.kernel)
    likely += cost.times * max(moved, product, computed if exact else computed / _ELEMENTWISE)
    upper += cost.times * max(moved, product, computed)
    if cost.kernel and cost.cycles is None:
      unknown[cost.kernel] = None
  exchange = sum(c.times * exchange_time(c, slice_) for c in reading.collectives)
  return Time(
    reading.flops / chip.peak, likely + exchange, upper + exchange, exchange, tuple(unknown)
  )


def exchange_time(collective: hlo.Collective, slice_: chips.Slice) -> float:
  """Seconds of a collective without latency: as a ring over the links of `Slice.egress`, or, if a
  device sends different data to every other one, over those of `Slice.mixing`.
  """
  n = collective.group
  if n <= 1:
    return 0.0
  if collective.opcode.endswith('all-to-all'):
    return collective.bytes / slice_.mixing(n)
  per_byte = _PER_BYTE.get(collective.opcode)
  share = 1 if per_byte is None else per_byte * (n - 1) / n
  return share * collective.bytes / slice_.egress(n)


def run(
  times: list[tuple[int, Time]],
  slice_: chips.Slice,
  *,
  price: float | None,
  preemptions: int,
  save_minutes: float,
  compile_seconds: float,
) -> Run:
  """Days and dollars.

  times: (steps, Time) by phase. price: dollars per chip and hour, or None. preemptions: of the
  whole run; each costs RESTART, a compilation, and half of the time between two checkpoints
  (save_minutes).
  """
  lost = preemptions * (sum(RESTART.values()) + compile_seconds + 30.0 * save_minutes)
  floor, likely, upper = (
    sum(steps * getattr(t, name) for steps, t in times) for name in ('floor', 'likely', 'upper')
  )
  days = [(seconds + lost) / 86400 for seconds in (likely, floor, upper)]
  dollars = [None if price is None else 24 * d * slice_.chips * price for d in days]
  return Run(likely, floor, upper, lost, *days, *dollars)
