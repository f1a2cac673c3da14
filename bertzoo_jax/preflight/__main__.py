"""Checks a TPU run without a TPU: whether it fits, how long it takes, its cost, and its errors.

    python -m bertzoo_jax.preflight --config configs/bert.py:base
                                    (--tpu v4-32 | --topology v4:2x2x4)
                                    [--corpus CORPUS] [--workdir W]
                                    [--price 3.22] [--preemptions 3]
                                    [--nolargest] [--confirm] [--json]

Compiles the real train step of each phase for the slice, with the compiler that a TPU VM has
(libtpu: Linux on x86-64, no chip needed), and reads memory and time off the program. With --corpus
and --workdir it also finds every error that `pretrain` would report. Every problem is listed, with
a code (bertzoo_jax/preflight/readiness.py) and a remedy. Nothing is written.

Memory is the compiler's own verdict. Times are its estimates, with bounds
(bertzoo_jax/tpu/estimate.py): none was measured on a chip. Ends with exit code 0 if everything fits
and nothing is wrong, by SIGINT if that came before a step was compiled, and with 2 otherwise;
--json prints one JSON object to stdout and nothing else.
"""

import contextlib
import io
import json
import math
import os
import re
import sys
from typing import NamedTuple

os.environ['JAX_PLATFORMS'] = 'cpu'  # a chip that is here belongs to the run
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
# it says three lines at import, and nothing here uses it
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')

import jax  # noqa: E402
from absl import flags  # noqa: E402
from ml_collections import config_flags  # noqa: E402

from bertzoo_jax import assembly  # noqa: E402
from bertzoo_jax.common import cli  # noqa: E402
from bertzoo_jax.common import config as configuration  # noqa: E402
from bertzoo_jax.common import errors  # noqa: E402
from bertzoo_jax.preflight import readiness  # noqa: E402
from bertzoo_jax.preflight import report  # noqa: E402
from bertzoo_jax.tpu import chips  # noqa: E402
from bertzoo_jax.tpu import estimate  # noqa: E402
from bertzoo_jax.tpu import hlo  # noqa: E402
from bertzoo_jax.tpu import kernel_costs  # noqa: E402
from bertzoo_jax.tpu import program  # noqa: E402
from bertzoo_jax.training import phase_run as phase_runs  # noqa: E402
from bertzoo_jax.training import sharding  # noqa: E402

# shares of FLOPs; of the compiler's count much is element-wise where a network is tiny
_VISITED, _NEEDED = (0.5, 0.95)
_TRIES = 3  # batches compiled at most, to confirm one that fits


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


class Preflight(NamedTuple):
  """All that was found.

  Attributes:
    config: the experiment.
    slice_: the chips; None where their name names nothing.
    mesh: {axis: devices}, {} without one.
    phases: compiled ones, [] where nothing could be.
    run: days and dollars; None where a time is missing.
    price, preemptions: as given.
    flags: LIBTPU_INIT_ARGS of the environment.
    remedies: what would make it fit, what is enough alone first.
    region: of the bucket of the workdir; None where it is not known.
    findings: problems and warnings.
  """

  config: object
  slice_: chips.Slice | None
  mesh: dict
  phases: list[Phase]
  run: estimate.Run | None
  price: float | None
  preemptions: int
  flags: str
  remedies: list[str]
  region: str | None
  findings: readiness.Findings

  @property
  def fits(self) -> bool:
    return bool(self.phases) and all(p.program is not None and p.program.fits for p in self.phases)

  @property
  def ready(self) -> bool:
    return self.fits and not self.findings.problems


def preflight(
  config,
  *,
  tpu: str | None = None,
  topology: str | None = None,
  corpus: str | None = None,
  workdir: str | None = None,
  recipe=None,
  price: float | None = None,
  preemptions: int = 0,
  largest: bool = True,
  confirm: bool = False,
  kernels: dict[str, int] | None = None,
  say=lambda line: None,
) -> Preflight:
  """Compiles every phase for a slice and looks for everything that would fail.

  Args:
    config: an experiment.
    tpu: accelerator type ('v4-32'), or topology ('v4:2x2x4'): one of them.
    corpus, workdir: of the run, local or gs://; None: not looked at.
    recipe: the config file's own experiment, to compare with; None for none.
    price: dollars per chip and hour. preemptions: of the whole run.
    largest: where a phase does not fit, look for the largest batch that does, for the phase that
      needs most (two more compilations).
    confirm: compile that batch, and say what was true.
    kernels: cycles of Pallas kernels, as of `hlo.read`; those of docs/tpu_kernels.md if None.
    say: takes a line about what is being done.

  Raises:
    UserError: not exactly one of tpu and topology. All else is a finding.
  """
  if (tpu is None) == (topology is None):
    raise errors.UserError(
      'Give either --tpu (as Cloud names it: v4-32) or --topology (chips along each axis: '
      'v4:2x2x4).'
    )
  findings, slice_, devices = readiness.Findings(), None, None
  with findings.collecting('P02'):
    slice_ = chips.of_type(tpu) if tpu is not None else chips.of_topology(topology)
  planned = sound = False
  with findings.collecting('P01'):
    configuration.phases(config)
    planned = True
    assembly.check(config)
    sound = True
  libtpu_flags = os.environ.get('LIBTPU_INIT_ARGS', '')
  with findings.collecting('P03'):
    program.prepare()
    if libtpu_flags and (complaint := program.check_flags(libtpu_flags)):
      findings.add(
        'P05',
        f'libtpu does not take LIBTPU_INIT_ARGS ({complaint}): mend or unset it; everything below '
        'is without it.',
      )
      del os.environ['LIBTPU_INIT_ARGS']  # with it this process would end when libtpu is loaded
    devices = slice_ and program.devices(slice_)
  if recipe is not None and planned:
    readiness.check_recipe(findings, config, recipe)

  mesh, phases, text = None, [], None
  hosts = slice_.hosts if slice_ else 1
  if devices:
    with findings.collecting('P04'):
      mesh = sharding.mesh(config.run.mesh, devices)
      sharding.check_batch(config.batch_size, config.run.accumulation, mesh, hosts)
  divides = not any(f.code == 'P04' for f in findings)
  if planned:
    text = readiness.text(findings, config, corpus, hosts if divides else 1)
  if sound and mesh is not None and divides:
    phases = _compile(
      findings,
      config,
      text,
      mesh,
      slice_,
      kernel_costs.of(slice_.chip.name) if kernels is None else kernels,
      largest,
      confirm,
      say,
    )
  elif sound:
    _check_networks(findings, config, text)
  if workdir is not None and planned:
    readiness.check_workdir(
      findings, config, workdir, text, max((p.state for p in phases), default=None)
    )
  run = None
  if phases and all(p.time for p in phases):
    run = estimate.run(
      [(p.steps, p.time) for p in phases],
      slice_,
      price=price,
      preemptions=preemptions,
      save_minutes=config.run.save_minutes,
      compile_seconds=max(p.program.seconds for p in phases),
    )
  return Preflight(
    config,
    slice_,
    dict(mesh.shape) if mesh is not None else {},
    phases,
    run,
    price,
    preemptions,
    libtpu_flags,
    report.remedies(config, phases, mesh, slice_),
    readiness.bucket_location(workdir or ''),
    findings,
  )


# --- compiling ---


def _compile(findings, config, text, mesh, slice_, kernels, largest, confirm, say):
  """Every phase compiled; phases of the same shapes and objective once."""
  known, met = {}, []
  for phase in configuration.phases(config):
    with findings.collecting('P08'):
      phase_run = _phase_run(config, phase, text.data, mesh)
      same = (
        json.dumps(configuration.flatten(phase.config.objective), default=str),
        str(sorted(phase_run.data.features.items())),
      )
      if same not in known:
        say(
          f'phase {phase.index}: compiling the step of {phase_run.rows:,} rows × '
          f'{phase_run.length} tokens for {slice_.topology}'
        )
        known[same] = _compiled(findings, config, phase, phase_run, slice_, kernels)
      met.append((phase, same))
  refused = {same: p for same, p in known.items() if p.program is not None and not p.program.fits}
  if refused and largest:  # a batch that fits where most is needed fits in the other phases
    same, p = max(refused.items(), key=lambda item: item[1].program.needed)
    say(
      f'phase {p.index} does not fit ({_needs(p, slice_)}): looking for the largest batch that '
      'does. A compilation may take minutes; Ctrl-C ends '
      'the search once it is done, and --nolargest leaves it out'
    )
    # What the compiler cannot make, or was not waited for, before any was seen to fit: no batch is
    # named.
    with (
      findings.collecting('P08'),
      contextlib.suppress(jax.errors.JaxRuntimeError, KeyboardInterrupt),
    ):
      known[same] = refused[same] = p._replace(
        largest=_largest(config, p, text, mesh, slice_, confirm, say)
      )
  for p in refused.values():
    findings.add(
      'P09',
      f'Phase {p.index} needs {_needs(p, slice_)}{_fitting(p.largest)}; what else would help is '
      'under "to make it fit".',
    )
  out = []
  for phase, same in met:
    rows = text.rows.get(phase.index)
    epochs = phase.steps * config.batch_size / rows if rows else None
    out.append(known[same]._replace(index=phase.index, steps=phase.steps, epochs=epochs))
  for doubt in dict.fromkeys(d for p in out for d in p.doubts):
    where = [str(p.index) for p in out if doubt in p.doubts]
    findings.add('W05', f'Phase{"s" * (len(where) > 1)} {", ".join(where)}: {doubt}.')
  return out if all(p.program is not None for p in out) else []


def _compiled(findings, config, phase, phase_run, slice_, kernels):
  """A Phase."""
  target, replicated = phase_runs.target(phase_run)
  size = lambda tree: sum(
    math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
  )
  whole = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(target))
  for line in replicated:
    findings.add('W04', line)
  flops = phase_run.objective.flops(target.params, phase_run.feature_shapes)
  made = Phase(
    phase.index,
    phase.steps,
    phase_run.rows,
    phase_run.length,
    None,
    size(target.params),
    size(target.opt_state),
    whole,
    None,
    None,
    flops,
    replicated,
    [],
    None,
    None,
  )
  try:
    found = _program(config, phase_run)
  except Exception as e:  # whatever a compiler may say of a program that it cannot make
    findings.add(
      'P10',
      f'Phase {phase.index} cannot be compiled for {slice_.topology} ({type(e).__name__}: '
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
    for d in doubts(reading, time, found.analysis, flops and flops / phase_run.mesh.size)
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


def _phase_run(config, phase, data, mesh):
  return assembly.phase_run(config, phase, data, mesh, phase.end_step)


def _check_networks(findings, config, text):
  """What does not go together, where there is nothing to compile for."""
  with findings.collecting('P08'):
    phases = configuration.phases(config)
    assembly.check_phases(
      config, phases, text.data, sharding.mesh((1, 1, 1), jax.devices()[:1]), phases[-1].end_step
    )


# --- what would fit ---


def _largest(config, phase, text, mesh, slice_, confirm, say):
  """(rows, confirmed rows or None) of the largest batch that fits; 0 rows where none does.

  Memory is a line in the rows, through two batches that are smaller: at the limit the compiler
  already trades time for memory, and the batch that was refused would flatter. Small batches would
  too: their activations need no HBM. phase: a Phase that does not fit.
  """
  state = phase.parameters + phase.optimizer  # bytes per device that no batch changes
  unit, usable = _unit(config, mesh, slice_.hosts), slice_.chip.usable

  def peak(rows):
    say(f'phase {phase.index}: compiling {rows:,} rows')
    resized = configuration.phases(_with(config, batch_size=rows))[phase.index]
    found = _program(config, _phase_run(config, resized, text.data, mesh))
    return found.peak, found.fits

  down = lambda rows: max(unit, int(rows) // unit * unit)
  points, first = {}, down(0.25 * config.batch_size * usable / phase.program.needed)
  while first < config.batch_size:
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
    if first < second < config.batch_size:
      points[second] = peak(second)
      slope = max((points[second][0] - low) / (second - first), 1e-9)
      line = down(first + (usable - low) / slope)
    rows = min(max(line, seen()), config.batch_size - unit)
    if not confirm:
      return rows, None
    for tried in range(_TRIES):
      at = max(rows - tried * max(unit, rows // 16 // unit * unit), first)
      if at not in points:
        points[at] = peak(at)
      if points[at][1]:
        return rows, at
  return rows or seen(), seen()


def _unit(config, mesh, hosts) -> int:
  """The batch is a multiple of it."""
  for unit in range(1, config.batch_size + 1):
    try:
      sharding.check_batch(unit, config.run.accumulation, mesh, hosts)
      return unit
    except errors.UserError:
      continue
  return config.batch_size


def _with(config, **changes):
  made = config.copy_and_resolve_references().unlock()
  made.update(changes)
  return made.lock()


def _line(e) -> str:
  return ' '.join(str(e).split())[:200]


# --- the command ---


def recipe(argv: list[str]):
  """The experiment that the config file itself gives for the size on a command line, without what
  the line sets or swaps.
  """
  value = next(
    (
      re.sub(r'^--?config=', '', a) if '=' in a else argv[i + 1]
      for i, a in enumerate(argv)
      if re.match(r'--?config(=|$)', a)
    ),
    None,
  )
  if value is None:
    return None
  alone = flags.FlagValues()
  config_flags.DEFINE_config_file('config', flag_values=alone)
  kept, sys.argv = sys.argv, [argv[0]]  # where ml_collections looks for what is set
  try:
    alone([argv[0], f'--config={value.split(",")[0]}'])
    return alone.config
  finally:
    sys.argv = kept


def failed(sentence: str) -> None:
  """With --json on the command line: prints an object with the one problem that ended all, a
  mistake in the line or Ctrl-C.
  """
  asked = [a for a in sys.argv[1:] if re.fullmatch(r'--?(no)?json(=.*)?', a)]
  if asked and re.fullmatch(r'--?json(=(true|t|1))?', asked[-1], re.I):
    print(
      json.dumps(
        dict(ready=False, problems=[readiness.Finding('P00', sentence)._asdict()]),
        ensure_ascii=False,
      )
    )


def main(_):
  if _CONFIRM.value and not _LARGEST.value:
    raise errors.UserError(
      '--confirm compiles the batch that --nolargest does not look for: leave one of them out.'
    )
  out = sys.stdout
  with contextlib.redirect_stdout(io.StringIO() if _JSON.value else out):
    found = preflight(
      _CONFIG.value,
      tpu=_TPU.value,
      topology=_TOPOLOGY.value,
      corpus=_CORPUS.value,
      workdir=_WORKDIR.value,
      recipe=recipe(sys.argv),
      price=_PRICE.value,
      preemptions=_PREEMPTIONS.value,
      largest=_LARGEST.value,
      confirm=_CONFIRM.value,
      say=lambda line: print(line, file=sys.stderr, flush=True),
    )
  if _JSON.value:
    print(json.dumps(report.as_dict(found), ensure_ascii=False), file=out)
  else:
    report.show(found)
  sys.exit(0 if found.ready else 2)


if __name__ == '__main__':
  _CONFIG = cli.define_config()
  _TPU = flags.DEFINE_string(
    'tpu', None, 'Accelerator type as Cloud names it: v4-32, v5litepod-8 (v5e-8), v6e-8.'
  )
  _TOPOLOGY = flags.DEFINE_string(
    'topology', None, 'In place of --tpu: generation and chips along each axis, v4:2x2x4.'
  )
  _CORPUS = flags.DEFINE_string(
    'corpus', None, 'Corpus of the run, local or gs://, to be checked too.'
  )
  _WORKDIR = flags.DEFINE_string(
    'workdir', None, 'Folder of the run, local or gs://, to be checked too.'
  )
  _PRICE = flags.DEFINE_float('price', None, 'Dollars per chip and hour.', lower_bound=0.0)
  _PREEMPTIONS = flags.DEFINE_integer(
    'preemptions', 0, 'That the run is to survive.', lower_bound=0
  )
  _LARGEST = flags.DEFINE_bool(
    'largest',
    True,
    'Where it does not fit: look for the largest batch that does, by compiling two smaller ones.',
  )
  _CONFIRM = flags.DEFINE_bool(
    'confirm',
    False,
    'Where it does not fit: compile the largest batch that should, and say what was true.',
  )
  _JSON = flags.DEFINE_bool('json', False, 'One JSON object in place of the report.')
  cli.run(main, also=failed)
