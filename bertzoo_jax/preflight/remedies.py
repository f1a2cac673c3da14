"""Changes that make a run fit; each was compiled until its memory was known."""

import contextlib
import functools
import itertools
from typing import NamedTuple

from bertzoo_jax.common import errors
from bertzoo_jax.model import stack
from bertzoo_jax.preflight import compiling
from bertzoo_jax.preflight import processes
from bertzoo_jax.preflight.tpu import chips
from bertzoo_jax.training import sharding

_POLICIES = list(stack.REMAT)  # each saves less than the one before
_TRIES = 3  # of a kind of change, each stronger than the one before
_BATCH = 'another experiment, scale the learning rate with it'


class Option(NamedTuple):
  change: str  # how a user makes it
  note: str  # meaning of the change; '' if it is clear
  values: tuple[tuple[str, object], ...]  # (field, value) pairs that it sets
  slice_: chips.Slice
  devices: int


class Remedy(NamedTuple):
  """A change that was tried: bytes per device, whether the phase fits; the rest as in Option."""

  change: str
  note: str
  peak: int
  fits: bool


def tried(work: compiling.Work, worst) -> tuple[int, list[Remedy]]:
  """(rows of the largest batch that was seen to fit, or 0; changes that were tried, sufficient ones
  first). Ctrl-C ends the search and keeps the results so far.

  worst: the Phase that needs most memory: a change that makes it fit should make the others fit.
  """
  usable, machinery = work.slice_.chip.usable, work.run.phases[worst.index].config.run
  programs = {}  # option → Program

  def ask(options):
    jobs = {}
    for option in options:
      with contextlib.suppress(errors.UserError):  # changes that do not go together are no remedy
        jobs[option] = work.job([worst.index], *option[2:])
    asked = [option for option in jobs if option not in programs]
    for option in asked:
      work.say(f'phase {worst.index}: trying {option.change}')

    def known(number, program):
      if not isinstance(program, str):
        programs[asked[number]] = program

    processes.compiled([jobs[option] for option in asked], whole=False, kept=work.kept, known=known)

  fits = lambda option: option in programs and programs[option].fits
  batches = {}  # rows → option

  def peaks(rows):
    for n in rows:
      batches[n] = _same_chips(work, _batch(work.run, worst, n), _BATCH, ('batch_size', n))
    ask([batches[n] for n in rows])
    return {n: programs[o].peak for n, o in batches.items() if fits(o)}

  with contextlib.suppress(KeyboardInterrupt):
    if worst.trained <= usable:  # else no batch size helps
      units, accumulation = range(1, worst.rows + 1), machinery.accumulation
      unit = next((n for n in units if _divides([n], accumulation, work)), worst.rows)
      _search(worst, unit, usable, peaks)
    rows = max((n for n, option in batches.items() if fits(option)), default=0)
    kinds = _kinds(work, worst, rows)
    helping = [k for name, k in kinds.items() if name == 'mesh' or worst.trained <= usable]
    for turn in range(_TRIES):
      ask([k[turn] for k in helping if turn < len(k) and not any(map(fits, k))])
    if not any(fits(option) for option in programs if option.note != _BATCH):
      ask(_together(work, worst, kinds))
  rows = max((n for n, option in batches.items() if fits(option)), default=0)
  known = [o for o in programs if o not in batches.values() or o == batches.get(rows)]
  known.sort(key=lambda o: (not programs[o].fits, o.note == _BATCH))
  return rows, [Remedy(o.change, o.note, programs[o].peak, programs[o].fits) for o in known]


def _search(worst, unit, usable, peaks):
  """Searches for the largest batch that fits, compiling two at a time: first two small ones, then
  those that a line through them predicts, then batches between the largest that fits and the
  smallest that does not.

  Memory is linear in the rows, except for large batches, where the compiler trades time for memory:
  a refused batch would predict too little, and so would batches whose activations need no HBM.

  unit: rows that a batch is a multiple of. usable: bytes per device. peaks: compiles batches, and
  returns {rows: bytes} of all that were seen to fit.
  """
  down = lambda rows: max(unit, int(rows) // unit * unit)
  first, refused, seen = worst.rows * usable / worst.program.needed, worst.rows, {}
  while not seen and refused > unit:
    first = down(first / 4)
    seen = peaks({n for n in (first, 2 * first) if n < refused})
    refused = min([n for n in (first, 2 * first) if n not in seen] + [refused])
  for _ in range(_TRIES):
    best, before = max(seen, default=refused), sorted(seen)[-2:-1]
    step = max(unit, best // 16 // unit * unit)
    if best + step >= refused:
      return
    top = refused
    if before:
      slope = max((seen[best] - seen[before[0]]) / (best - before[0]), 1e-9)
      top = down(best + (usable - seen[best]) / slope)
    straight = top < refused
    top = top if straight else down((best + refused) / 2)
    tries = {n for n in (top, top - step) if best < n < refused}
    seen = peaks(tries)
    if straight and top in seen:
      return
    refused = min({refused, *tries} - set(seen))


def _same_chips(work, change, note, *values) -> Option:
  """A change on the chips that were asked for."""
  return Option(change, note, values, work.slice_, work.mesh.size)


def _divides(batches, accumulation, work) -> bool:
  with contextlib.suppress(errors.UserError):
    for rows in batches:
      sharding.check_batch(rows, accumulation, work.mesh, work.slice_.hosts)
    return True
  return False


def _kinds(work, worst, rows) -> dict[str, list[Option]]:
  """Changes that leave the experiment as it is, by kind, each from the weakest that should be
  enough to the strongest. rows: of the largest batch that fits, or 0.
  """
  run, mesh, slice_ = work.run, work.mesh, work.slice_
  usable, state, over = slice_.chip.usable, worst.trained, sharding.rows_over(mesh)
  split, tensor = mesh.shape['fsdp'], mesh.shape['tensor']
  machinery = run.phases[worst.index].config.run
  times = -(-worst.rows // rows) if rows else 2  # as many microbatches or devices should be enough
  option = functools.partial(_same_chips, work)
  kinds = {
    'accumulation': [
      option(
        _set(run, worst, 'run.accumulation', n),
        f'the same update from {n} microbatches in turn, not {machinery.accumulation}'
        + '; gradients are exchanged in each' * (mesh.shape['data'] < mesh.size),
        ('run.accumulation', n),
      )
      for n in _accumulations(work, worst, times * machinery.accumulation)
    ],
    'remat': [
      option(
        f'--config.run.remat={policy}',
        'activations are computed again in the backward pass',
        ('run.remat', policy),
      )
      for policy in _POLICIES[_POLICIES.index(machinery.remat) + 1 :]
    ],
    'dtype': [option('--config.run.dtype=bfloat16', '', ('run.dtype', 'bfloat16'))],
    'mesh': [
      option(
        f"--config.run.mesh='(-1, {parts}, {tensor})'",
        f'parameters, gradients and optimizer ({state / chips.GIB:.1f} GiB) are split over fsdp',
        ('run.mesh', (-1, parts, tensor)),
      )
      for parts in range(split + 1, over + 1)
      if over % parts == 0 and worst.program.needed - state * (1 - split / parts) <= usable
    ],
    'slice': [
      Option(f'--tpu={s.accelerator_type}', '', (), s, s.devices)
      for s in _larger(work, times * over)
    ],
  }
  if machinery.dtype != 'float32':
    del kinds['dtype']
  return {name: k[: _TRIES - 1] + k[_TRIES - 1 :][-1:] for name, k in kinds.items() if k}


def _together(work, worst, kinds) -> list[Option]:
  """All changes combined, for when none alone is enough: on these chips, and on more."""
  mesh, slice_ = work.mesh, work.slice_
  tensor, split = mesh.shape['tensor'], mesh.shape['fsdp']
  state, usable, over = worst.trained, slice_.chip.usable, sharding.rows_over(mesh)
  leaner = [kinds[name][-1] for name in ('remat', 'dtype') if name in kinds]
  smaller = kinds.get('accumulation', [])[-1:] + leaner
  whole = Option(
    f"--config.run.mesh='(1, -1, {tensor})'", '', (('run.mesh', (1, -1, tensor)),), slice_, 0
  )

  def combined(options, where=slice_, devices=mesh.size):
    return Option(
      ' '.join(o.change for o in options), '', sum((o.values for o in options), ()), where, devices
    )

  out = [combined(smaller)] if len(smaller) > 1 and state <= usable else []
  if split < over and state * split <= usable * over:
    out.append(combined([*smaller, whole]))
  for larger in itertools.islice(_larger(work, 2 * over), _TRIES):
    if state * split <= usable * larger.devices // tensor:
      chosen = whole._replace(change=f'--tpu={larger.accelerator_type} {whole.change}')
      out.append(combined([chosen, *leaner], larger, larger.devices))
  return out


def _accumulations(work, worst, least) -> list[int]:
  """Numbers of microbatches that split the batches of all phases that share the field, each at
  least twice the one before, from the least that should be enough.
  """
  key, planned = 'run.accumulation', work.run.phases
  overrides = lambda index: key in dict(work.run.config.phases[index][1])
  sharing = [
    p.config.batch_size
    for p in planned
    if p.index == worst.index or not overrides(worst.index) and not overrides(p.index)
  ]
  now = planned[worst.index].config.run.accumulation
  valid = [n for n in range(now + 1, min(sharing) + 1) if _divides(sharing, n, work)]
  out = []
  for n in valid:
    if n >= (2 * out[-1] if out else least):
      out.append(n)
  return out or valid[-1:]


def _larger(work, over):
  """The usual slices whose mesh spreads rows over at least `over` devices, small to large."""
  chip, planned = work.slice_.chip, work.run.phases
  for power in range(chip.most.bit_length() * (-1 in work.run.config.run.mesh[:2])):
    with contextlib.suppress(errors.UserError):
      larger = chips.by_type(f'{chip.name}-{2**power * chip.counts}')
      devices = larger.devices // work.mesh.shape['tensor']
      if (
        devices >= over
        and larger.chips > work.slice_.chips
        and not any(p.config.batch_size % (devices * p.config.run.accumulation) for p in planned)
      ):
        yield larger


def _batch(run, phase, rows) -> str:
  """How a user sets the rows of a phase's batch, as text."""
  overrides = dict(run.config.phases[phase.index][1])
  if 'batch_tokens' in overrides or 'batch_size' not in overrides and run.config.batch_tokens:
    return _set(run, phase, 'batch_tokens', rows * phase.length)
  return _set(run, phase, 'batch_size', rows)


def _set(run, phase, key, value) -> str:
  """How a user sets a field of a phase: in the phase if it overrides it, else by a flag."""
  if key in dict(run.config.phases[phase.index][1]):
    return f'{key}={value} in phase {phase.index} of the config'
  return f'--config.{key}={value}'
