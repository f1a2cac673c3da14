"""The verdict on a TPU run: first all checks that need no compiler, then the compilation."""

import dataclasses
import math
import os
from typing import NamedTuple

import jax

from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.experiment import check
from bertzoo_jax.experiment import machinery
from bertzoo_jax.experiment import resolve
from bertzoo_jax.finetune import plan
from bertzoo_jax.finetune import rows as task_rows
from bertzoo_jax.finetune import work as tuning
from bertzoo_jax.preflight import compiling
from bertzoo_jax.preflight import readiness
from bertzoo_jax.preflight import remedies
from bertzoo_jax.preflight.tpu import chips
from bertzoo_jax.preflight.tpu import estimate
from bertzoo_jax.preflight.tpu import program
from bertzoo_jax.pretrained import loading
from bertzoo_jax.training import sharding


@dataclasses.dataclass(frozen=True)
class Request:
  config: object  # an experiment, or the fine-tuning of one task
  # tpu, topology: accelerator type ('v4-32'), or topology ('v4:2x2x4'): one of them
  tpu: str | None = None
  topology: str | None = None
  # corpus, workdir: of a pretraining, local or gs://; None: not looked at. corpus may be several.
  corpus: str | list[str] | None = None
  workdir: str | None = None
  # init, task_dir: of a fine-tuning, the address of its weights and the folder of its files
  init: str | None = None
  task_dir: str = '.'
  recipe: object = None  # the config file's own experiment, to compare with; None for none
  price: float | None = None  # dollars per chip and hour
  preemptions: int = 0  # number in the whole run
  # if a phase does not fit, search for the largest batch that does and for other changes that help
  largest: bool = True
  # cycles of Pallas kernels, see `hlo.read`; None: the table of kernel_cycles.csv
  kernels: dict[str, int] | None = None

  @property
  def is_task(self) -> bool:
    return plan.is_fine_tuning(self.config)

  def check(self) -> None:
    """Raises UserError: not one of tpu and topology, or a flag of the other kind of config."""
    if (self.tpu is None) == (self.topology is None):
      raise errors.UserError(
        'Give either --tpu (as Cloud names it: v4-32) or --topology (chips along each axis: '
        'v4:2x2x4).'
      )
    if self.is_task and (self.corpus or self.workdir):
      raise errors.UserError(
        f'--{"corpus" if self.corpus else "workdir"} is checked for a pretraining, and the config '
        'is a fine-tuning: leave it out.'
      )
    if self.is_task and not self.init:
      raise errors.UserError(
        'The config is a fine-tuning: give the weights that it begins with, as --init W or hf:DIR.'
      )
    if self.init and not self.is_task:
      raise errors.UserError('--init is for a fine-tuning, which the config is not: leave it out.')


class Runs(NamedTuple):
  number: int  # number of all runs
  at_once: int  # how many run at the same time, each on its own device; 1: each has all devices
  rows: int  # rows that the device with the most work trains on


class Preflight(NamedTuple):
  request: Request
  config: object  # the experiment
  slice_: chips.Slice | None  # the chips; None for an unknown name
  mesh: dict  # {axis: devices}, {} without one
  phases: list[compiling.Phase]  # compiled ones, or []
  run: estimate.Run | None  # days and dollars; None if a time is missing
  flags: str  # LIBTPU_INIT_ARGS of the environment
  # changes that were tried to make the run fit, those that do first; None without a search
  remedies: list[remedies.Remedy] | None
  region: str | None  # region of the workdir's bucket; None if unknown
  findings: readiness.Findings  # problems and warnings
  runs: Runs | None = None  # the runs of a fine-tuning; None for a pretraining

  @property
  def fits(self) -> bool:
    return bool(self.phases) and all(p.program is not None and p.program.fits for p in self.phases)

  @property
  def ready(self) -> bool:
    return self.fits and not self.findings.problems


def preflight(request: Request, say=lambda line: None) -> Preflight:
  """Compiles every phase for a slice and checks for everything that would fail, first for mistakes
  that need no compiler.

  say: prints a line of progress. Raises UserError where `Request.check` does.
  """
  request.check()
  findings, slice_, mesh = readiness.Findings(), None, None
  with findings.collecting('P02'):
    by_type = request.tpu is not None
    slice_ = chips.by_type(request.tpu) if by_type else chips.by_topology(request.topology)
  config, text, runs = request.config, None, None
  if request.is_task:
    config, text, runs = _fine_tuning(findings, request, slice_)
  elif request.corpus and config.epochs:
    with findings.collecting('P06'):
      config = readiness.with_epochs(findings, config, request.corpus)
  resolved, sound = None, False
  if text is not None or not request.is_task:
    with findings.collecting('P01'):
      resolved = resolve.run(config)
      check.config(resolved)
      sound = True
  flags = os.environ.get('LIBTPU_INIT_ARGS', '')
  devices = _devices(findings, slice_, flags)
  if request.recipe is not None and resolved:
    readiness.check_recipe(findings, resolved.phases, configuration.phases(request.recipe))
  if devices and resolved:
    with findings.collecting('P04'):
      mesh = sharding.mesh(config.run.mesh, devices[:1] if runs and runs.at_once > 1 else devices)
      check.batches(resolved.phases, mesh, slice_.hosts)
  fitting = mesh is not None and not any(f.code == 'P04' for f in findings)
  if resolved and not request.is_task:
    with findings.collecting('P06'):
      text = readiness.text(findings, resolved, request.corpus, slice_.hosts if fitting else 1)
  described = []
  if sound and text is not None and fitting:
    kept = readiness.machinery(request.workdir, devices[0].device_kind)
    resolved = machinery.resolved(resolved, text.data.vocab_size, mesh, kept)
    config = resolved.config
  if sound and text is not None:
    described = _described(findings, resolved, text, mesh if fitting else None)
  if request.workdir is not None and text is not None:
    size = max((p.state for p, _ in described), default=None)
    readiness.check_workdir(findings, config, request.workdir, text, size)
  phases, changes = [], None
  if described and fitting:
    # beside a run's compiled programs
    folder = os.environ.get('JAX_COMPILATION_CACHE_DIR') or config.run.compile_cache
    cache = os.path.join(os.path.expanduser(folder), 'preflight') if folder else None
    work = compiling.Work(resolved, text, mesh, slice_, cache, say)
    work, phases, changes = _compiled(findings, request, work, described)
    config = work.run.config
  return Preflight(
    request,
    config,
    slice_,
    dict(mesh.shape) if mesh is not None else {},
    phases,
    _whole(request, config, slice_, phases, runs),
    flags,
    changes,
    readiness.bucket_location(request.workdir or ''),
    findings,
    runs,
  )


def _fine_tuning(findings, request, slice_):
  """(config, text, Runs) of the run that is compiled; (config, None, None) with a finding."""
  config, runs = request.config, None
  labelled, text = runs_of(findings, config, request.init, request.task_dir)
  if labelled:
    config = labelled[0].experiment
    with findings.collecting('P04'):
      runs = slice_ and placed(labelled, slice_)
      if runs and runs.at_once > 1:  # each has one device
        config = config.copy_and_resolve_references().unlock()
        config.run.mesh = (1, 1, 1)
        config.lock()
  return config, text, runs


def runs_of(findings, config, init: str, task_dir: str) -> tuple[list, readiness.Text | None]:
  """The jobs of a fine-tuning, the one with the largest batch first, and the text of that job.

  ([], None) with a finding if something does not fit (P01: the config, P06: weights or files).
  """
  with findings.collecting('P01'):
    (name, config), *others = plan.tasks(config).items()
    if others:
      raise errors.UserError(
        f'The config has {1 + len(others)} tasks, and preflight takes one: name it, as in '
        f'FILE.py:{name}.'
      )
    weights = task = None
    with findings.collecting('P06'):
      weights = plan.weights(init)
    if weights is not None:
      plan.check(config, weights[0])
      with findings.collecting('P06'):
        task = tuning.opened(config, task_dir, loading.tokenizer_of(weights[0]), weights[0])
    if task is not None:
      jobs = plan.runs(name, config, task, weights, 'runs')
      jobs.sort(key=lambda run: -run.experiment.batch_size)
      data = task_rows.data_of(jobs[0].resolved, task, weights[0])
      return jobs, readiness.Text(data, {0: len(task.splits['train'])}, None, task.hash)
  return [], None


def placed(jobs: list, slice_) -> Runs:
  """Distributes the jobs over a slice. Raises UserError if it has several hosts."""
  if slice_.hosts > 1:
    raise errors.UserError(
      f'A fine-tuning runs on one host, and {slice_.accelerator_type} has {slice_.hosts}: take a '
      'smaller slice.'
    )
  at_once = min(tuning.at_once(jobs, slice_.devices), len(jobs))
  rows = [0] * at_once
  for experiment in (run.experiment for run in jobs):  # each goes where one ends first
    rows[rows.index(min(rows))] += experiment.phases[0][0] * experiment.batch_size
  return Runs(len(jobs), at_once, max(rows))


def _compiled(findings, request, work, described):
  """(Work with the run.remat that fits, phases, remedies that were compiled, or None)."""
  for finding in findings.problems:  # a compilation takes minutes
    work.say(f'{finding.code}  {finding.sentence}')
  kernels = request.kernels
  if kernels is None:
    kernels = estimate.kernel_cycles(work.slice_.chip.name)
  auto = request.config.run.remat == configuration.AUTO
  policies = machinery.policies(work.run.config)
  asked, changes = work.run, None
  for policy in policies if auto else policies[:1]:
    work = work._replace(run=asked.changed({'run.remat': policy}))
    work, phases, notes = _in_microbatches(work, described, kernels)
    if all(p.program.fits for p in phases):
      break
  for finding in notes:
    findings.add(*finding)
  if request.largest and (tight := [p for p in phases if not p.program.fits]):
    worst = max(tight, key=lambda p: p.program.needed)
    work.say(
      f'phase {worst.index} does not fit ({compiling.needs(worst.program, work.slice_)}): looking '
      'for changes that make it fit. Ctrl-C ends the search, and --nolargest leaves it out'
    )
    rows, changes = remedies.tried(work, worst)
    phases = [p._replace(largest=rows) if p == worst else p for p in phases]
  return work, phases, changes


def _in_microbatches(work, described, kernels):
  """(Work, phases, Findings) with the fewest microbatches that fit where run.accumulation=auto."""
  usable = work.slice_.chip.usable
  auto = [p for p in work.run.phases if p.config.run.accumulation == configuration.AUTO]
  left = {p.index: machinery.divisors(p, work.mesh) for p in auto}
  while True:
    run, notes = work.run.in_microbatches({i: left[i][0] for i in left}), readiness.Findings()
    work = work._replace(run=run)
    phases = compiling.phases(notes, work, described, kernels)
    tight = [p for p in phases if not p.program.fits and p.trained <= usable]
    tight = [p for p in tight if len(left.get(p.index, ())) > 1]
    if not tight:
      return work, phases, notes
    for p in tight:
      fixed = p.parameters + p.optimizer + p.carry
      left[p.index] = machinery.larger(left[p.index], p.program.needed, fixed, usable)


def _whole(request, config, slice_, phases, runs) -> estimate.Run | None:
  """Days and dollars; None if a time is missing."""
  if not phases or not all(p.time for p in phases):
    return None
  return estimate.run(
    [(p.steps if runs is None else math.ceil(runs.rows / p.rows), p.time) for p in phases],
    slice_,
    price=request.price,
    preemptions=request.preemptions,
    save_minutes=config.run.save_minutes,
    compile_seconds=max(p.program.seconds for p in phases),
  )


def _devices(findings, slice_, libtpu_flags):
  """The devices of a slice, to compile for; None without the compiler or a slice."""
  with findings.collecting('P03'):
    program.prepare()
    if libtpu_flags and (complaint := program.check_flags(libtpu_flags)):
      findings.add(
        'P05',
        f'libtpu does not take LIBTPU_INIT_ARGS ({complaint}): mend or unset it; everything below '
        'is without it.',
      )
      del os.environ['LIBTPU_INIT_ARGS']  # with it this process would end when libtpu is loaded
    return slice_ and program.devices(slice_)
  return None


def _described(findings, resolved, text, mesh):
  """`compiling.described`, with the order of phases checked. mesh: None for one of one device."""
  mesh = sharding.mesh((1, 1, 1), jax.devices()[:1]) if mesh is None else mesh
  phases = compiling.described(findings, resolved, text, mesh)
  if len(phases) == len(resolved.phases):
    with findings.collecting('P08'):
      check.order(resolved, resolved.phases, text.data.vocab_size, mesh)
      return phases
  return []
