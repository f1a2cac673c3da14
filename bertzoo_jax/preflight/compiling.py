"""The train step of each phase, compiled for chips that are not here: whether it fits, and how long
it takes.
"""

import contextlib
import dataclasses
import itertools
import json
import math
from typing import NamedTuple

import jax

from bertzoo_jax import assembly
from bertzoo_jax.assembly import memory
from bertzoo_jax.common import config as configuration
from bertzoo_jax.preflight import largest
from bertzoo_jax.tpu import chips
from bertzoo_jax.tpu import estimate
from bertzoo_jax.tpu import hlo
from bertzoo_jax.tpu import program
from bertzoo_jax.training import phase_run as phase_runs

# shares of FLOPs; of the compiler's count much is element-wise where a network is tiny
_VISITED, _NEEDED = (0.5, 0.95)


class Phase(NamedTuple):
  """A phase as it would run.

  Attributes:
    index, steps, rows, length: of the phase.
    program: its train step, compiled; None where it could not be.
    parameters, optimizer: bytes per device of the state.
    state: bytes of the whole state, as a checkpoint has it.
    reading, time: of the program; None where its text does not tell.
    flops: that the model needs per step, over all devices (Objective.flops); None if not known.
    replicated: a line for each parameter that the mesh could not split.
    doubts: why the times may be too low.
    largest: rows of the largest batch that fits, estimated (0: none), and confirmed or None; None
      where it was not looked for, or not found.
    epochs: of the text; None without a corpus.
    carry: bytes per device of the memory that goes from step to step; 0 without one.
    devices: of its mesh.
  """

  index: int
  steps: int
  rows: int
  length: int
  program: program.Program | None
  parameters: int
  optimizer: int
  state: int
  reading: hlo.Reading | None
  time: estimate.Time | None
  flops: float | None
  replicated: list[str]
  doubts: list[str]
  largest: tuple[int, int | None] | None
  epochs: float | None
  carry: int = 0
  devices: int = 1


def described(findings, config, text, mesh) -> list:
  """[(Phase, PhaseRun)] of a run, traced and not compiled; without the phases that do not fit
  together (P08).
  """
  out = []
  for phase in configuration.phases(config):
    with findings.collecting('P08'):
      phase_run = assembly.phase_run(config, phase, text.data, mesh, phase.end_step)
      target, replicated = phase_runs.target(phase_run)
      for line in replicated:
        findings.add('W04', line)
      rows = text.rows.get(phase.index)
      made = Phase(
        index=phase.index,
        steps=phase.steps,
        rows=phase_run.rows,
        length=phase_run.length,
        program=None,
        parameters=memory.per_device(target.params),
        optimizer=memory.per_device(target.opt_state),
        state=sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(target)),
        reading=None,
        time=None,
        flops=phase_run.objective.flops(target.params, phase_run.feature_shapes),
        replicated=replicated,
        doubts=[],
        largest=None,
        epochs=phase.steps * phase_run.rows / rows if rows else None,
        carry=memory.per_device(target.carry),
        devices=mesh.size,
      )
      out.append((made, phase_run))
  return out


def phases(
  findings, config, text, mesh, slice_, described, *, kernels, search, confirm, say
) -> list[Phase]:
  """The described phases with what their compiled programs tell; [] if one cannot be compiled.

  Phases of the same shapes and objective are compiled once.

  Args:
    findings: to add to (P08 to P10, W05).
    described: see `described`.
    kernels: cycles of Pallas kernels, see `hlo.read`.
    search: look for the largest batch that fits, where a phase does not. confirm: compile it.
    say: prints a line of progress.
  """
  known, met = {}, []
  for made, phase_run in described:
    same = (
      json.dumps(_objective(config, made), default=str),
      str(sorted(phase_run.data.features.items())),
      phase_run.accumulation,
    )
    if same not in known:
      known[same] = _compiled(findings, config, made, phase_run, slice_, kernels, say)
    met.append((made, same))
  refused = {same: p for same, p in known.items() if p.program is not None and not p.program.fits}
  if refused and search:  # a batch that fits where most is needed fits in the other phases
    same, p = max(refused.items(), key=lambda item: item[1].program.needed)
    known[same] = refused[same] = _with_largest(
      findings, config, p, text, mesh, slice_, confirm, say
    )
  for p in refused.values():
    findings.add(
      'P09',
      f'Phase {p.index} needs {_needs(p, slice_)}{_fitting(p.largest)}; what else would help is '
      'under "to make it fit".',
    )
  if not refused:
    for (_, before), (made, after) in itertools.pairwise(described):
      _check_entering(findings, made, before, after, slice_)
  out = [
    known[same]._replace(index=made.index, steps=made.steps, epochs=made.epochs)
    for made, same in met
  ]
  for doubt in dict.fromkeys(d for p in out for d in p.doubts):
    where = [str(p.index) for p in out if doubt in p.doubts]
    findings.add('W05', f'Phase{"s" * (len(where) > 1)} {", ".join(where)}: {doubt}.')
  return out if all(p.program is not None for p in out) else []


def _check_entering(findings, made, before, after, slice_):
  """Where a run goes from a phase to the next, it holds one state and what the phase adds."""
  try:
    found = program.entering(before, after)
  except Exception as e:  # see _compiled
    findings.add(
      'P10',
      f'Entering phase {made.index} cannot be compiled for {slice_.topology} ({type(e).__name__}: '
      f'{" ".join(str(e).split())[:160]}): take another run.mesh, or another libtpu.',
    )
    return
  if not found.fits:
    findings.add(
      'P09',
      f'Entering phase {made.index} needs {_needs(made._replace(program=found), slice_)}: take a '
      'larger slice, or more devices along fsdp in run.mesh.',
    )


def _objective(config, made):
  return configuration.flatten(configuration.phases(config)[made.index].config.objective)


def _compiled(findings, config, made, phase_run, slice_, kernels, say):
  """A Phase with its program. Parameters, gradients and optimizer state that do not fit are not
  given to the compiler: no batch would help.
  """
  state = 2 * made.parameters + made.optimizer
  if state > slice_.chip.usable:
    return made._replace(program=program.Program(None, {}, None, state, 0.0), largest=(0, None))
  say(
    f'phase {made.index}: compiling the step of {made.rows:,} rows × {made.length} tokens for '
    f'{slice_.topology}'
  )
  try:
    found = _program(config, phase_run)
  except Exception as e:  # whatever a compiler may say of a program that it cannot make
    findings.add(
      'P10',
      f'Phase {made.index} cannot be compiled for {slice_.topology} ({type(e).__name__}: '
      f'{_line(e)}): this step would fail on the '
      'chips too; take another run.kernels or run.mesh, or another libtpu.',
    )
    return made
  made = made._replace(program=found)
  if not found.fits:
    return made
  if found.text is None:
    return made._replace(
      doubts=['this libtpu cannot print the program it made, so there is no time']
    )
  reading = hlo.read(found.text, kernels)
  time = estimate.step_time(reading, slice_)
  said = [
    f'{d}; take the times as lower bounds'
    for d in doubts(reading, time, found.analysis, made.flops and made.flops / phase_run.mesh.size)
  ]
  return made._replace(reading=reading, time=time, doubts=said)


def doubts(
  reading: hlo.Reading, time: estimate.Time, analysis: dict, flops: float | None
) -> list[str]:
  """Why the reading of a program may have missed something.

  Args:
    reading, time: of the program.
    analysis: the compiler's cost_analysis().
    flops: that the model needs per step and device; None if that is not known.
  """
  out = []
  if reading.unknown_trips:
    out.append(f'{len(reading.unknown_trips)} loops do not tell how often they run and count once')
  if time.unknown:
    out.append(
      f'there is no figure for the kernels {", ".join(time.unknown)}, which are charged by their '
      'bytes'
    )
  if (counted := analysis.get('flops', 0.0)) and reading.visited < _VISITED * counted:
    out.append(
      f"the program has {counted:.3g} operations by the compiler's own count, and "
      f'{reading.visited:.3g} were found'
    )
  if flops is None:
    out.append('the network does not tell its operations, so MFU is not known')
  elif reading.flops < _NEEDED * flops:
    out.append(
      f'the model needs {flops:.3g} operations per step and device, and {reading.flops:.3g} were '
      'found (a kernel without a cost estimate?)'
    )
  return out


def _with_largest(findings, config, p, text, mesh, slice_, confirm, say):
  """A phase that does not fit, with the largest batch that does where one is found."""
  if p.largest is not None:
    return p
  say(
    f'phase {p.index} does not fit ({_needs(p, slice_)}): looking for the largest batch that '
    'does. A compilation may take minutes; Ctrl-C ends the search once it is done, and '
    '--nolargest leaves it out'
  )

  def peak(rows):
    say(f'phase {p.index}: compiling {rows:,} rows')
    phase = configuration.phases(config)[p.index]
    resized = dataclasses.replace(phase, config=_with(phase.config, batch_size=rows))
    found = _program(config, assembly.phase_run(config, resized, text.data, mesh, resized.end_step))
    return found.peak, found.fits

  # What the compiler cannot make, or was not waited for, before any was seen to fit: no batch is
  # named.
  with (
    findings.collecting('P08'),
    contextlib.suppress(jax.errors.JaxRuntimeError, KeyboardInterrupt),
  ):
    return p._replace(largest=largest.batch(config, p, mesh, slice_, confirm, peak))
  return p


def _needs(phase, slice_) -> str:
  return (
    f'{phase.program.needed / chips.GIB:.2f} GiB on each device, and {slice_.chip.name} gives '
    f'{slice_.chip.usable / chips.GIB:.2f}'
  )


def _fitting(largest) -> str:
  if largest is None:
    return ''
  estimated, seen = largest
  if seen is None:
    return (
      f': about {estimated:,} rows per batch would fit' if estimated else ': no smaller batch fits'
    )
  return f': {seen:,} rows per batch fit, compiled and seen' + (
    f' (the estimate was {estimated:,})' if estimated != seen else ''
  )


def _program(config, phase_run):
  """The compiled train step, with the precision that `pretrain` sets."""
  precision = (
    jax.default_matmul_precision('highest')
    if config.run.dtype == 'float32'
    else contextlib.nullcontext()
  )
  with precision:
    return program.train_step(phase_run)


def _with(config, **changes):
  made = config.copy_and_resolve_references().unlock()
  made.update(changes)
  return made.lock()


def _line(e) -> str:
  return ' '.join(str(e).split())[:200]
