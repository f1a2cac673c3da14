"""The verdict on a TPU run: everything that needs no compiler first, then the compilation."""

import math
import os
from typing import NamedTuple

import jax

from bertzoo_jax import assembly
from bertzoo_jax.assembly import checks
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.finetune import plan
from bertzoo_jax.preflight import compiling
from bertzoo_jax.preflight import fine_tuning
from bertzoo_jax.preflight import readiness
from bertzoo_jax.preflight import remedies
from bertzoo_jax.preflight.tpu import chips
from bertzoo_jax.preflight.tpu import estimate
from bertzoo_jax.preflight.tpu import kernel_costs
from bertzoo_jax.preflight.tpu import program
from bertzoo_jax.training import sharding


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
    remedies: changes that were tried to make the run fit, first those that do; None where none was
      looked for.
    region: of the bucket of the workdir; None where it is not known.
    findings: problems and warnings.
    runs: of a fine-tuning; None for a pretraining.
  """

  config: object
  slice_: chips.Slice | None
  mesh: dict
  phases: list[compiling.Phase]
  run: estimate.Run | None
  price: float | None
  preemptions: int
  flags: str
  remedies: list[remedies.Remedy] | None
  region: str | None
  findings: readiness.Findings
  runs: fine_tuning.Runs | None = None

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
  init: str | None = None,
  task_dir: str = '.',
  recipe=None,
  price: float | None = None,
  preemptions: int = 0,
  largest: bool = True,
  kernels: dict[str, int] | None = None,
  say=lambda line: None,
) -> Preflight:
  """Compiles every phase for a slice and looks for everything that would fail.

  Args:
    config: an experiment, or the fine-tuning of one task.
    tpu: accelerator type ('v4-32'), or topology ('v4:2x2x4'): one of them.
    corpus, workdir: of the run, local or gs://; None: not looked at.
    init, task_dir: of a fine-tuning, the address of its weights and the folder of its files.
    recipe: the config file's own experiment, to compare with; None for none.
    price: dollars per chip and hour. preemptions: of the whole run.
    largest: where a phase does not fit, look for the largest batch that does, and for what else
      would help.
    kernels: cycles of Pallas kernels, see `hlo.read`; None: those in tpu/kernel_cycles.csv.
    say: prints a line of progress.

  Raises:
    UserError: not exactly one of tpu and topology, or an argument of the other kind of config. All
      else is a finding.
  """
  if (tpu is None) == (topology is None):
    raise errors.UserError(
      'Give either --tpu (as Cloud names it: v4-32) or --topology (chips along each axis: '
      'v4:2x2x4).'
    )
  is_task = plan.is_fine_tuning(config)
  _check_arguments(is_task, init, corpus, workdir)
  findings, slice_, mesh = readiness.Findings(), None, None
  with findings.collecting('P02'):
    slice_ = chips.of_type(tpu) if tpu is not None else chips.of_topology(topology)
  text, labelled, runs = None, [], None
  if is_task:
    labelled, text = fine_tuning.runs(findings, config, init, task_dir)
  if labelled:
    config = labelled[0].experiment
    with findings.collecting('P04'):
      runs = slice_ and fine_tuning.placed(labelled, slice_)
      config = fine_tuning.alone(config) if runs and runs.at_once > 1 else config
  resolved, sound = None, False
  if labelled or not is_task:
    with findings.collecting('P01'):
      resolved = assembly.resolve(config)
      checks.of_run(resolved)
      sound = True
  libtpu_flags = os.environ.get('LIBTPU_INIT_ARGS', '')
  devices = _devices(findings, slice_, libtpu_flags)
  if recipe is not None and resolved:
    readiness.check_recipe(findings, resolved.phases, configuration.phases(recipe))
  if devices and resolved:
    with findings.collecting('P04'):
      mesh = sharding.mesh(config.run.mesh, devices[:1] if runs and runs.at_once > 1 else devices)
      checks.of_batches(resolved.phases, mesh, slice_.hosts)
  fitting = mesh is not None and not any(f.code == 'P04' for f in findings)
  described = []
  if resolved and not is_task:
    with findings.collecting('P06'):
      text = readiness.text(findings, resolved, corpus, slice_.hosts if fitting else 1)
  if sound and text is not None:
    described = _described(findings, resolved, text, mesh if fitting else None)
  if workdir is not None and text is not None:
    readiness.check_workdir(
      findings, config, workdir, text, max((p.state for p, _ in described), default=None)
    )

  phases, changes, kept = [], None, _kept(config)
  if described and fitting:
    for finding in findings.problems:  # a compilation takes minutes
      say(f'{finding.code}  {finding.sentence}')
    phases = compiling.phases(
      findings,
      resolved,
      text,
      mesh,
      slice_,
      described,
      kernels=kernel_costs.of(slice_.chip.name) if kernels is None else kernels,
      kept=kept,
      say=say,
    )
  if largest and (tight := [p for p in phases if not p.program.fits]):
    worst = max(tight, key=lambda p: p.program.needed)
    say(
      f'phase {worst.index} does not fit ({compiling.needs(worst.program, slice_)}): looking for '
      'what would. Ctrl-C ends the search, and --nolargest leaves it out'
    )
    rows, changes = remedies.tried(resolved, worst, text, mesh, slice_, kept=kept, say=say)
    phases = [p._replace(largest=rows) if p == worst else p for p in phases]
  run = None
  if phases and all(p.time for p in phases):
    run = estimate.run(
      [(p.steps if runs is None else math.ceil(runs.rows / p.rows), p.time) for p in phases],
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
    changes,
    readiness.bucket_location(workdir or ''),
    findings,
    runs,
  )


def _kept(config) -> str | None:
  """The folder of what earlier calls found, beside a run's compiled programs; None for none."""
  folder = os.environ.get('JAX_COMPILATION_CACHE_DIR') or config.run.compile_cache
  return os.path.join(os.path.expanduser(folder), 'preflight') if folder else None


def _check_arguments(is_task, init, corpus, workdir):
  if is_task and (corpus or workdir):
    raise errors.UserError(
      f'--{"corpus" if corpus else "workdir"} is checked for a pretraining, and the config is a '
      'fine-tuning: leave it out.'
    )
  if is_task and not init:
    raise errors.UserError(
      'The config is a fine-tuning: give the weights that it begins with, as --init W or hf:DIR.'
    )
  if init and not is_task:
    raise errors.UserError('--init is for a fine-tuning, and the config is none: leave it out.')


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
  """What `compiling.described` returns, if all phases go together; without a mesh to compile for,
  that of one device.
  """
  mesh = sharding.mesh((1, 1, 1), jax.devices()[:1]) if mesh is None else mesh
  found = compiling.described(findings, resolved, text, mesh)
  if len(found) == len(resolved.phases):
    with findings.collecting('P08'):
      checks.of_order(resolved, resolved.phases, text.data.vocab_size, mesh)
      return found
  return []
