"""Compiles programs in child processes, a few at a time. A child ends as soon as it has answered,
and none outlives this process.

Whether a program fits is known a few seconds into its compilation (`program.dumped`), unless it is
so close to the limit that the size of its code decides. Generating code, with the compiler's
estimates of time, takes ten times as long. The children are forked from a server that has imported
jax and the networks and never compiles, since it may not have threads.
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

# Programs that are compiled at the same time until it is known whether they fit.
_AT_ONCE = max(1, min(4, len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else 1))
_TRIES = 2  # of a process that is killed, as by a machine without memory
_PERIOD = 0.1  # seconds between two looks at the compiler's output
_PATIENCE = 5.0  # seconds that a process may take to end


class Job(NamedTuple):
  """The train step of a phase, or the transition from one phase to the next."""

  run: resolve.Run  # resolved experiment, its config locked and without references
  features: dict  # {index of the phase: batch features} of the phase, or of both
  vocab_size: int  # vocabulary size of the text
  slice_: chips.Slice  # the chips
  devices: int  # number of devices in the mesh


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
  jobs: list[Job], *, whole: bool, kept: str | None = None, known=lambda number, result: None
) -> list[program.Program | str]:
  """The result of each job: a Program, or why it could not be compiled.

  jobs: to compile. whole: if all jobs fit, generate their code and return their text. Otherwise the
  Programs have only their memory. kept: folder of earlier results; None for none. known: called
  with (number of the job, result) once it is known whether the job fits.
  """
  forkserver.set_forkserver_preload([__name__])
  results, died = [None] * len(jobs), [0] * len(jobs)
  todo, running = list(range(len(jobs))), {}
  try:
    while todo or running:
      undecided = sum(results[r.number] is None for r in running.values())
      # a killed job gets the machine for itself
      if todo and undecided < _AT_ONCE and not (died[todo[0]] and running):
        started = _start(todo.pop(0), jobs, whole, kept)
        running[started.connection] = started
        continue
      for ready in connection.wait(list(running)):
        number, process = running[ready].number, running[ready].process
        before = results[number]
        try:
          done, results[number] = ready.recv()
        except (EOFError, OSError):
          process.join(_PATIENCE)
          done, died[number] = True, died[number] + 1
          results[number] = None
          if died[number] < _TRIES:
            todo.append(number)
          else:
            results[number] = f'its compiler ended with exit code {process.exitcode}'
        if before is None and results[number] is not None:
          known(number, results[number])
        if done or not whole:
          running.pop(ready).end()
      refused = [f for f in results if isinstance(f, str) or f is not None and not f.fits]
      if None not in results and refused:
        break
  finally:
    for started in running.values():
      started.end()
  return results


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
  """Sends (whether this is the last message, Program or error), once or twice."""
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
  except Exception as e:  # whatever a compiler raises for a program that it cannot compile
    answers.send((True, f'{errors.named(e, 200)}'))
  shutil.rmtree(folder, ignore_errors=True)
  os._exit(0)


def _while_wanted(answers, folder):
  """Ends this process when the other end of the connection is closed, or its process has died. Runs
  in a thread, since the compiler handles no signals.
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
  if path and (result := _read(path, whole)):
    answers.send((True, result))
    return
  finished = threading.Event()

  def watch():
    while not finished.wait(_PERIOD):
      if memory := program.dumped(folder, limit=job.slice_.chip.usable):
        result = program.Program(None, {}, memory, None, 0.0)
        if path:
          _write(path, result, False)
        answers.send((False, result))
        return

  watching = threading.Thread(target=watch)
  watching.start()
  try:
    result = program.finished(lowered, folder, quick=True)
  finally:
    finished.set()
    watching.join()
  if path:
    _write(path, result, True)
  answers.send((True, result))


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
  precision = 'highest' if config.run.dtype == 'float32' else None  # same as in `pretrain`
  with jax.default_matmul_precision(precision):
    make = program.lowered_step if len(runs) == 1 else program.lowered_entering
    lowered = make(*runs)
  flags = [os.environ.get(name) for name in ('LIBTPU_INIT_ARGS', 'XLA_FLAGS')]
  options = phase_runs.compiler_options(devices[0].device_kind, mesh.shape['fsdp'] > 1)
  inputs = (job.slice_, job.devices, flags, options, devices[0].client.platform_version)
  return lowered, hashlib.sha256(f'{inputs}\n{lowered.as_text()}'.encode()).hexdigest()


def _read(path, whole) -> program.Program | None:
  """The cached result of a job; None without one, or if it lacks the code that `whole` asks for."""
  try:
    fields = json.loads(gzip.decompress(path.read_bytes()))
    if fields.pop('whole') < whole:
      return None
    memory = fields.pop('memory')
    return program.Program(memory=memory and program.Memory(*memory), **fields)
  except Exception:  # absent, cut short, of another version, or the bucket does not answer
    return None


def _write(path, result, whole):
  with contextlib.suppress(Exception):  # a folder that is not to be written to
    text = json.dumps({**result._asdict(), 'whole': whole})
    path.parent.mkdir(parents=True, exist_ok=True)
    storage.write_bytes(path, gzip.compress(text.encode()))
