"""Programs compiled in processes of their own, some at a time: each is ended as soon as it has
answered, and none outlives this process.

Whether a program fits is known a few seconds into its compilation (`program.dumped`), unless it is
so close that its code decides. That code, and with it the compiler's estimates of time, takes ten
times as long. The processes are copies of one that has imported jax and the networks and never
compiles: it may not have threads.
"""

import contextlib
import gzip
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
from multiprocessing import connection
from multiprocessing import forkserver
from typing import NamedTuple

import jax

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.common import trust
from bertzoo_jax.experiment import build
from bertzoo_jax.experiment import check
from bertzoo_jax.experiment import resolve
from bertzoo_jax.preflight.tpu import chips
from bertzoo_jax.preflight.tpu import program
from bertzoo_jax.training import data as training_data
from bertzoo_jax.training import phase_run as phase_runs
from bertzoo_jax.training import sharding

# Programs that are looked at at once for whether they fit.
_AT_ONCE = max(1, min(4, len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else 1))
_TRIES = 2  # of a process that is killed, as by a machine without memory
_PERIOD = 0.1  # seconds between two looks at the compiler's output
_PATIENCE = 5.0  # seconds that a process may take to end


class Job(NamedTuple):
  """The train step of a phase, or the way from one phase to the next.

  Attributes:
    run: of an experiment, its config locked and without references.
    features: of the batches of the phase, or of both, by its index.
    vocab_size: of the text.
    slice_: the chips.
    devices: how many of the slice's the mesh has.
  """

  run: resolve.Run
  features: dict
  vocab_size: int
  slice_: chips.Slice
  devices: int


class _Running(NamedTuple):
  number: int
  process: multiprocessing.Process
  connection: connection.Connection
  folder: str

  def end(self):
    self.connection.close()  # see _while_wanted
    self.process.join(_PATIENCE)
    if self.process.is_alive():
      self.process.kill()
      self.process.join()
    shutil.rmtree(self.folder, ignore_errors=True)


def compiled(
  jobs: list[Job], *, whole: bool, kept: str | None = None, known=lambda number, found: None
) -> list[program.Program | str]:
  """The result of each job: a Program, or the reason why there is none.

  Args:
    jobs: to compile.
    whole: if all of them fit, go on to their code, for their text. Else the Programs have their
      memory alone.
    kept: folder of earlier results; None for none.
    known: called with the number of a job when it is known whether it fits.
  """
  forkserver.set_forkserver_preload([__name__])
  found, died = [None] * len(jobs), [0] * len(jobs)
  todo, running = list(range(len(jobs))), {}
  try:
    while todo or running:
      undecided = sum(found[r.number] is None for r in running.values())
      # a killed job gets the machine for itself
      if todo and undecided < _AT_ONCE and not (died[todo[0]] and running):
        made = _start(todo.pop(0), jobs, whole, kept)
        running[made.connection] = made
        continue
      for ready in connection.wait(list(running)):
        number, process = running[ready].number, running[ready].process
        before = found[number]
        try:
          done, found[number] = ready.recv()
        except (EOFError, OSError):
          process.join(_PATIENCE)
          done, died[number] = True, died[number] + 1
          found[number] = None
          if died[number] < _TRIES:
            todo.append(number)
          else:
            found[number] = f'its compiler ended with exit code {process.exitcode}'
        if before is None and found[number] is not None:
          known(number, found[number])
        if done or not whole:
          running.pop(ready).end()
      refused = [f for f in found if isinstance(f, str) or f is not None and not f.fits]
      if None not in found and refused:
        break
  finally:
    for made in running.values():
      made.end()
  return found


def _start(number, jobs, whole, kept) -> _Running:
  context = multiprocessing.get_context('forkserver')
  ours, theirs = context.Pipe()
  folder = tempfile.mkdtemp(prefix='bertzoo_jax-')
  flags = os.environ.get('LIBTPU_INIT_ARGS')
  process = context.Process(
    target=_compile,
    args=(theirs, jobs[number], whole, kept, folder, flags, trust.get_allowed()),
    daemon=True,
  )
  process.start()
  theirs.close()
  return _Running(number, process, ours, folder)


# --- in the other process ---


def _compile(answers, job, whole, kept, folder, flags, trusted):
  """Sends (whether that is all, Program or a line), once or twice."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the first process
  threading.Thread(target=_while_wanted, args=(answers, folder), daemon=True).start()
  os.environ.pop('LIBTPU_INIT_ARGS', None)
  if flags is not None:
    os.environ['LIBTPU_INIT_ARGS'] = flags
  trust.set_allowed(trusted)
  jax.config.update('jax_platforms', 'cpu')
  jax.config.update('jax_enable_compilation_cache', False)  # its programs were not watched
  try:
    _answer(answers, job, whole, kept, folder)
  except Exception as e:  # whatever a compiler may say of a program that it cannot make
    answers.send((True, f'{errors.named(e, 200)}'))
  shutil.rmtree(folder, ignore_errors=True)
  os._exit(0)


def _while_wanted(answers, folder):
  """Ends this process when the other end of the connection is closed, also because the process
  there has died. A thread does it: the compiler listens to nothing.
  """
  with contextlib.suppress(EOFError, OSError):
    answers.recv()
  for _ in range(100):  # the compiler may be writing there
    shutil.rmtree(folder, ignore_errors=True)
    if not os.path.exists(folder):
      break
  os._exit(0)


def _answer(answers, job, whole, kept, folder):
  lowered, key = _lowered(job)
  path = kept and storage.path(kept) / f'{key}.json.gz'
  if path and (found := _read(path, whole)):
    answers.send((True, found))
    return
  finished = threading.Event()

  def watch():
    while not finished.wait(_PERIOD):
      if memory := program.dumped(folder, limit=job.slice_.chip.usable):
        found = program.Program(None, {}, memory, None, 0.0)
        if path:
          _write(path, found, False)
        answers.send((False, found))
        return

  watching = threading.Thread(target=watch)
  watching.start()
  try:
    found = program.finished(lowered, folder, quick=True)
  finally:
    finished.set()
    watching.join()
  if path:
    _write(path, found, True)
  answers.send((True, found))


def _lowered(job):
  """A job's program, lowered as in a run, and the key of its result."""
  devices = program.devices(job.slice_)[: job.devices]
  config, phases = job.run.config, job.run.phases
  mesh = sharding.mesh(config.run.mesh, devices)
  features = {i: training_data.PhaseData(shapes) for i, shapes in job.features.items()}
  data = training_data.Data({}, job.vocab_size, features)
  for i, shapes in job.features.items():
    check.parts(job.run, phases[i], shapes, job.vocab_size, mesh)
  runs = [build.phase_run(job.run, phases[i], data, mesh) for i in job.features]
  precision = 'highest' if config.run.dtype == 'float32' else None  # as `pretrain` sets it
  with jax.default_matmul_precision(precision):
    make = program.lowered_step if len(runs) == 1 else program.lowered_entering
    lowered = make(*runs)
  flags = [os.environ.get(name) for name in ('LIBTPU_INIT_ARGS', 'XLA_FLAGS')]
  options = phase_runs.compiler_options(devices[0].device_kind, mesh.shape['fsdp'] > 1)
  told = (job.slice_, job.devices, flags, options, devices[0].client.platform_version)
  return lowered, hashlib.sha256(f'{told}\n{lowered.as_text()}'.encode()).hexdigest()


def _read(path, whole) -> program.Program | None:
  """The result of an earlier call, if it went as far."""
  try:
    found = json.loads(gzip.decompress(path.read_bytes()))
    if found.pop('whole') < whole:
      return None
    memory = found.pop('memory')
    return program.Program(memory=memory and program.Memory(*memory), **found)
  except Exception:  # absent, cut short, of another version, or the bucket does not answer
    return None


def _write(path, found, whole):
  with contextlib.suppress(Exception):  # a folder that is not to be written to
    text = json.dumps({**found._asdict(), 'whole': whole})
    path.parent.mkdir(parents=True, exist_ok=True)
    storage.write_bytes(path, gzip.compress(text.encode()))
