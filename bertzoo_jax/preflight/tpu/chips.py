"""The generations of TPU chips, and the slices that Cloud offers, by names like `v4-32` or
`v4:2x2x4`.

A device of jax is a chip; for v2 and v3, one of a chip's two cores. Figures are of the vendor's
system architecture pages (links of v2 and v3: Jouppi et al. 2020); clocks are those at which a
generation's matrix units reach its published peak.
"""

import csv
import math
import pathlib
import re
from typing import NamedTuple

from bertzoo_jax.common import errors
from bertzoo_jax.training import cost

GIB = 1 << 30


class Chip(NamedTuple):
  """One generation: a row of chips.csv."""

  name: str  # 'v4'
  kind: str  # device kind, as jax names it; the key of cost.PEAK
  devices: int  # per chip
  # bytes of a device's memory that the compiler gives to a program (its own figure, GiB in the
  # table; the rest is the runtime's)
  usable: int
  bandwidth: float  # memory bandwidth of a chip, bytes/s
  clock: float  # cycles/s
  link: float  # bytes/s of one link to a neighbouring chip, in one direction
  rank: int  # axes of the torus
  most: int  # chips in the largest slice
  wrap: int  # an axis closes to a ring where every axis of the slice is a multiple of it
  host_chips: int  # chips of a host in a slice of several hosts
  max_alone: int  # chips at most in a slice of one host
  # units per chip in an accelerator type's number: 2 where it counts cores, 1 for chips
  counts: int

  @property
  def peak(self) -> float:
    """bfloat16 FLOP/s of a device."""
    return cost.PEAK[self.kind]

  @property
  def device_bandwidth(self) -> float:
    """Bytes/s a device reads and writes."""
    return self.bandwidth / self.devices


def _read() -> dict[str, Chip]:
  out = {}
  with open(pathlib.Path(__file__).with_name('chips.csv'), encoding='utf-8') as f:
    for row in csv.DictReader(f):
      row['usable'] = float(row['usable']) * GIB
      out[row['name']] = Chip(**{k: convert(row[k]) for k, convert in Chip.__annotations__.items()})
  return out


CHIPS = _read()
_ALIASES = {'v5litepod': 'v5e', 'v5lite': 'v5e', 'v6lite': 'v6e'}


class Slice(NamedTuple):
  """Chips that are rented together."""

  chip: Chip  # their generation
  shape: tuple[int, ...]  # chips along each axis

  @property
  def topology(self) -> str:
    """'v4:2x2x4', as the compiler names it."""
    return f'{self.chip.name}:{"x".join(map(str, self.shape))}'

  @property
  def accelerator_type(self) -> str:
    """'v4-32', as Cloud names it."""
    name = 'v5litepod' if self.chip.name == 'v5e' else self.chip.name
    return f'{name}-{self.chips * self.chip.counts}'

  @property
  def chips(self) -> int:
    return math.prod(self.shape)

  @property
  def devices(self) -> int:
    return self.chips * self.chip.devices

  @property
  def hosts(self) -> int:
    return 1 if self.chips <= self.chip.max_alone else math.ceil(self.chips / self.chip.host_chips)

  @property
  def options(self) -> dict:
    """Options that make the compiler see a Cloud machine, besides the topology's name."""
    options = {'chip_config_name': 'megacore'} if self.chip.name == 'v4' else {}
    if self.hosts == 1:
      options['chips_per_host_bounds'] = (*self.shape, 1, 1)[:3]
    return options

  def egress(self, group: int) -> float:
    """Bytes/s that a device sends to the rest of its group while all do: one link along each axis,
    two where the axis closes to a ring. A group that is not the whole slice counts as one axis.
    """
    axes = self._axes(group)
    return sum(rate for _, rate in axes) if axes else math.inf

  def mixing(self, group: int) -> float:
    """Bytes/s per device while each device of a group sends every other one its share of an array:
    half of the array crosses the middle of the longest axis, where the links are fewest.
    """
    axes = self._axes(group)
    return min(4 * rate / n for n, rate in axes) if axes else math.inf

  def _axes(self, group):
    """[(chips along an axis, bytes/s that a device sends along it)] of the axes a group uses."""
    long = [n for n in self.shape if n > 1]
    if not long or group <= 1:
      return []
    closed = all(n % self.chip.wrap == 0 for n in long) and len(long) == self.chip.rank
    rate = self.chip.link * (2 if closed else 1) / self.chip.devices
    return [(n, rate) for n in (long if group == self.devices else [group])]


def by_type(name: str) -> Slice:
  """The slice of an accelerator type ('v4-32', 'v5e-8'). Raises UserError with the known names."""
  match = re.fullmatch(r'([a-z0-9]+)-(\d+)', name.strip().lower())
  chip = _chip(match[1] if match else re.split(r'[-:]', name)[0], f'--tpu={name}')
  shapes = {math.prod(shape) * chip.counts: shape for shape in _shapes(chip)}
  if not match or int(match[2]) not in shapes:
    what = 'TensorCores, 2 a chip' if chip.counts == 2 else 'chips'
    nearest = min(shapes, key=lambda n: abs(n - int(match[2]))) if match else None
    raise errors.UserError(
      f'--tpu={name} is no accelerator type.'
      + (f' Did you mean --tpu={chip.name}-{nearest}?' if nearest else '')
      + f' Of {chip.name} there is '
      f'{", ".join(f"{chip.name}-{n}" for n in shapes)} '
      f'(the number counts {what}); other shapes with --topology.'
    )
  return Slice(chip, shapes[int(match[2])])


def by_topology(name: str) -> Slice:
  """The slice of a topology, chips along each axis ('v4:2x2x4'). Raises UserError."""
  generation, _, axes = name.strip().lower().partition(':')
  chip = _chip(generation, f'--topology={name}')
  shape = tuple(map(int, axes.split('x'))) if re.fullmatch(r'\d+(x\d+)*', axes) else ()
  host_blocks = len(shape) > 1 and shape[0] % 2 == 0 and shape[1] % 2 == 0
  if (
    len(shape) != chip.rank
    or min(shape) < 1
    or math.prod(shape) > chip.most
    or not (host_blocks or math.prod(shape) == 1)
  ):
    examples = ', '.join(Slice(chip, s).topology for s in _shapes(chip)[:5])
    raise errors.UserError(
      f'--topology={name} is no slice: {chip.name} has {chip.rank} axes, the first two in steps of '
      f'2, and at most {chip.most} chips, as in {examples}.'
    )
  return Slice(chip, shape)


def _chip(name, flag):
  name = _ALIASES.get(name, name)
  if name not in CHIPS:
    meant = _near(flag.partition('=')[2].lower())
    raise errors.UserError(
      f'{flag}: no TPU generation is called {name!r}. '
      + (f'Did you mean {meant}?' if meant else f'There is: {", ".join(CHIPS)}.')
      + ' Write --tpu=v4-32 or --topology=v4:2x2x4.'
    )
  return CHIPS[name]


def _near(name) -> str | None:
  """The flag with the usual slice that a name misspells."""
  flags = {}
  for chip in CHIPS.values():
    for shape in _shapes(chip):
      slice_ = Slice(chip, shape)
      flags[slice_.topology] = f'--topology={slice_.topology}'
      for called in (chip.name, *(alias for alias, real in _ALIASES.items() if real == chip.name)):
        type_ = f'{called}-{slice_.chips * chip.counts}'
        flags[type_] = f'--tpu={type_}'
  near = errors.near(name, flags, cutoff=0.8)
  return flags[near[0]] if near else None


def _shapes(chip) -> list[tuple[int, ...]]:
  """The usual slices, small to large: each doubles the shortest axis of the one before."""
  shape = (1, 2, 2) if chip.rank == 3 else (2, 2)
  out = [(1, 1)] if chip.max_alone == 8 else []
  while math.prod(shape) <= chip.most:
    out.append((2, 2, 1) if shape == (1, 2, 2) else shape)
    longer = max(i for i, n in enumerate(shape) if n == min(shape))
    shape = tuple(sorted((*shape[:longer], 2 * shape[longer], *shape[longer + 1 :])))
  return out
