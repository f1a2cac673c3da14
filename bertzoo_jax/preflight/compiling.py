"""Compiles the train step of each phase for chips that are not here: memory and time."""

import json
import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

import jax

from bertzoo_jax.common import config as configuration
from bertzoo_jax.experiment import build
from bertzoo_jax.experiment import check
from bertzoo_jax.experiment import resolve
from bertzoo_jax.preflight import processes
from bertzoo_jax.preflight.tpu import chips
from bertzoo_jax.preflight.tpu import estimate
from bertzoo_jax.preflight.tpu import hlo
from bertzoo_jax.preflight.tpu import program

# shares of FLOPs; in tiny networks much of the compiler's count is element-wise
_VISITED, _NEEDED = (0.5, 0.95)


class Phase(NamedTuple):
  index: int
  steps: int
  rows: int
  length: int
  # parameters, optimizer: bytes per device of the state; the average counts with the optimizer
  parameters: int
  optimizer: int
  state: int  # bytes of the whole state, as a checkpoint has it
  flops: float  # model FLOPs per step, over all devices (cost.step_flops)
  replicated: list[str]  # a line for each parameter that the mesh could not split
  epochs: float | None  # epochs of the text; None without a corpus
  epochs_of: dict  # {corpus of a mixture: epochs}
  carry: int = 0  # bytes per device of the memory that one step hands to the next; 0 without one
  devices: int = 1  # devices of its mesh
  program: 'program.Program | None' = None  # its compiled train step, or None
  # reading, time: of the program; None if its text cannot be printed
  reading: hlo.Reading | None = None
  time: estimate.Time | None = None
  doubts: Sequence[str] = ()  # why the times may be too low
  # rows of the largest batch that was seen to fit, 0 if none did; None without a search
  largest: int | None = None

  @property
  def trained(self) -> int:
    """Bytes per device of parameters, gradients and the optimizer's state."""
    return 2 * self.parameters + self.optimizer


class Work(NamedTuple):
  """A run to compile, and its slice."""

  run: resolve.Run  # the resolved experiment
  text: object
  mesh: jax.sharding.Mesh
  slice_: chips.Slice
  kept: str | None  # folder of earlier results; None for none
  say: Callable  # prints a line of progress

  def job(self, indices, changes=(), slice_=None, devices: int = 0) -> processes.Job:
    """The step of a phase, or the transition from one phase to the next, to be compiled.

    indices: indices of the phase, or of both phases. changes: (field, value) pairs that are set in
    the experiment. slice_, devices: other chips, and how many devices of them the mesh has.
    """
    run, features = self.run.changed(dict(changes)), {}
    for i in indices:
      rows, shapes = run.phases[i].config.batch_size, self.text.data.phases[i].features
      features[i] = {k: ((rows, *shape[1:]), dtype) for k, (shape, dtype) in shapes.items()}
    where = (slice_, devices) if slice_ else (self.slice_, self.mesh.size)
    return processes.Job(run, features, self.text.data.vocab_size, *where)


def described(findings, run, text, mesh) -> list:
  """[(Phase, PhaseRun)] of a run, traced; phases that do not fit together are left out (P08)."""
  out = []
  for phase in run.phases if len(text.data.phases) == len(run.phases) else ():
    with findings.collecting('P08'):
      phase_run = build.phase_run(run, phase, text.data, mesh)
      check.parts(run, phase, phase_run.data.features, text.data.vocab_size, mesh)
      target, replicated = phase_run.target
      for line in replicated:
        findings.add('W04', line)
      rows = text.rows.get(phase.index)
      entry = Phase(
        index=phase.index,
        steps=phase.steps,
        rows=phase_run.rows,
        length=phase_run.length,
        parameters=check.per_device(target.params),
        optimizer=check.per_device((target.opt_state, target.average)),
        state=sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(target)),
        flops=phase_run.flops,
        replicated=replicated,
        epochs=phase.steps * phase_run.rows / rows if rows else None,
        epochs_of={r.name: float(r.epochs) for r in text.read.get(phase.index, ()) if r.name},
        carry=check.per_device(target.carry),
        devices=mesh.size,
      )
      out.append((entry, phase_run))
  return out


def phases(findings, work: Work, described, kernels) -> list[Phase]:
  """The described phases with the figures of their compiled programs: whether they fit and, if all
  do, how long they take; [] if one cannot be compiled.

  Phases of the same shapes and objective are compiled once. Adds P09, P10 and W05. kernels: see
  `hlo.read`.
  """
  slice_ = work.slice_
  firsts, alike = {}, []  # {traits of a program: first phase with them}; the first of each phase
  for phase, phase_run in described:
    same = (
      json.dumps(configuration.flatten(work.run.phases[phase.index].config.objective), default=str),
      str(sorted(phase_run.data.features.items())),
      phase_run.phase.config.run.accumulation,
      phase_run.phase.config.frozen,
    )
    alike.append(firsts.setdefault(same, phase.index))
  results = {(i,): refused for i in set(alike) if (refused := _too_large(described[i][0], slice_))}
  todo, fitting = [(i,) for i in firsts.values() if (i,) not in results], not results
  for (index,) in todo:
    phase, frozen = described[index][0], described[index][1].phase.config.frozen
    work.say(
      f'phase {index}: compiling the step of {phase.rows:,} rows × {phase.length} tokens for '
      f'{slice_.topology}' + f', frozen: {", ".join(frozen)}' * bool(frozen)
    )
  if fitting:  # between two phases a run holds one state and the added parameters
    todo += {(alike[i - 1], alike[i]): (i - 1, i) for i in range(1, len(alike))}.values()

  def known(number, program):
    if not isinstance(program, str) and program.fits and len(todo[number]) == 1:
      gives = f'{slice_.chip.usable / chips.GIB:.2f}'
      work.say(f'phase {todo[number][0]} fits: {program.peak / chips.GIB:.2f} GiB of {gives}')

  jobs = [work.job(indices) for indices in todo]
  results |= zip(todo, processes.compiled(jobs, whole=fitting, kept=work.kept, known=known))
  for indices, result in results.items():
    step = len(indices) == 1
    what = f'{"Phase" if step else "Entering phase"} {indices[-1]}'
    if isinstance(result, str):
      findings.add(
        'P10',
        f'{what} cannot be compiled for {slice_.topology} ({result}): it would fail on the chips '
        'too; take another run.kernels or run.mesh, or another libtpu.',
      )
    elif not result.fits:
      remedy = 'take a larger slice, or more devices along fsdp in run.mesh'
      if step:
        remedy = 'see "to make it fit"'
      findings.add('P09', f'{what} needs {needs(result, slice_)}: {remedy}.')
  if any(isinstance(result, str) for result in results.values()):
    return []
  out = [phase._replace(program=results[first,]) for first, (phase, _) in zip(alike, described)]
  if all(result.fits for result in results.values()):
    out = [_timed(p, kernels, slice_) for p in out]
  for doubt in dict.fromkeys(d for p in out for d in p.doubts):
    where = [str(p.index) for p in out if doubt in p.doubts]
    findings.add('W05', f'Phase{"s" * (len(where) > 1)} {", ".join(where)}: {doubt}.')
  return out


def needs(program, slice_) -> str:
  """The memory of a program that does not fit, as text."""
  gib = lambda n: f'{n / chips.GIB:.2f}'
  needed, usable = program.peak, slice_.chip.usable
  return (
    f'{gib(needed)} GiB on each device, {gib(needed - usable)} more than the {gib(usable)} that '
    f'{slice_.chip.name} gives'
  )


def _too_large(phase, slice_) -> program.Program | None:
  """A refused Program, without compiling, if parameters, gradients and optimizer state alone do not
  fit: no batch would help. None if they fit.
  """
  fits = phase.trained <= slice_.chip.usable
  return None if fits else program.Program(None, {}, None, phase.trained, 0.0)


def _timed(phase, kernels, slice_):
  """A Phase with the time of its program."""
  compiled_program = phase.program
  if compiled_program.text is None:
    return phase._replace(
      doubts=['this libtpu cannot print its program, so the time is not estimated']
    )
  reading = hlo.read(compiled_program.text, kernels)
  time = estimate.step_time(reading, slice_)
  sentences = [
    f'{d}; take the times as lower bounds'
    for d in doubts(reading, time, compiled_program.analysis, phase.flops / phase.devices)
  ]
  return phase._replace(reading=reading, time=time, doubts=sentences)


def doubts(reading: hlo.Reading, time: estimate.Time, analysis: dict, flops: float) -> list[str]:
  """Reasons why the estimate of a program may be too low. analysis: the compiler's cost_analysis().
  flops: of the model, per step and device.
  """
  out = []
  if reading.unknown_trips:
    out.append(f'{len(reading.unknown_trips)} loops have no known trip count and count once')
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
  if reading.flops < _NEEDED * flops:
    out.append(
      f'the model needs {flops:.3g} operations per step and device, and {reading.flops:.3g} were '
      'found (a kernel without a cost estimate?)'
    )
  return out
