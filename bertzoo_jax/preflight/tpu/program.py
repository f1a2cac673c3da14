"""The real train step compiled for TPU chips that are not here.

The compiler comes with libtpu and needs no chip. On the chips it would report the same memory and
refuse the same programs. State and batch are only described, never allocated.
"""

import importlib.util
import os
import pathlib
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import NamedTuple

import jax
from jax.experimental import topologies

from bertzoo_jax.common import errors
from bertzoo_jax.preflight.tpu import chips
from bertzoo_jax.training import phase_run as phase_runs

# Read once, when libtpu is loaded: no chip is looked for, another process may compile too, and
# nothing is logged.
_ENVIRONMENT = {
  'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
  'TPU_SKIP_MDS_QUERY': '1',
  'TPU_WORKER_HOSTNAMES': 'localhost',
  'TPU_ACCELERATOR_TYPE': 'v5litepod-4',
  'TPU_STDERR_LOG_LEVEL': '3',
  'TPU_MIN_LOG_LEVEL': '3',
}
# Passes over the code of single operations, after memory is assigned and cost is estimated. Without
# them a compilation takes 0.6 of its processor time, and BERT-base's cycles are 0.1 % fewer (libtpu
# 0.0.52).
_LEFT_OUT = {
  'xla_jf_xlu_optimizer': 'false',
  'xla_jf_critical_path_scheduler': 'false',
  'xla_tpu_enable_emitter_rolling': 'true',
}
# Bytes of code at most, for any program and for each character of its text: 1.1 MB, and 14 to 57
# where the text is long, were seen (libtpu 0.0.52).
_CODE = (4 << 20, 80)
_UNITS = {'': 1, 'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30, 'T': 1 << 40}
_FLAGS_TIMEOUT = 120  # seconds in which libtpu loads, on a slow machine


class Memory(NamedTuple):
  """Bytes of a program on each device."""

  arguments: int  # state and batch; the new state takes the place of the old
  # bytes that the compiler compares with its limit: the allocated arrays (`dumped`) and, if
  # generated, the code
  peak: int

  @property
  def temporaries(self) -> int:
    """Memory of a step besides state and batch: activations, gradients, copies."""
    return self.peak - self.arguments


class Program(NamedTuple):
  # of the optimized program, for `hlo.read`; None if it did not fit, or cannot be printed
  text: str | None
  analysis: dict  # the compiler's cost_analysis(), or {}
  memory: Memory | None  # None if it did not fit
  needed: int | None  # bytes per device of a program that did not fit; None if it did
  seconds: float  # compilation time

  @property
  def fits(self) -> bool:
    return self.memory is not None

  @property
  def peak(self) -> int:
    """Bytes that a device needs, even if it has fewer."""
    return self.memory.peak if self.fits else self.needed


def prepare() -> None:
  """Sets the variables that libtpu reads when it is loaded. UserError if it is not installed."""
  system, machine = platform.system(), platform.machine()
  if system != 'Linux' or machine not in ('x86_64', 'AMD64'):
    raise errors.UserError(
      f'The TPU compiler (libtpu) exists for Linux on x86-64 only and this is {system} on '
      f'{machine}: run the same command there, on a TPU VM, any small Cloud VM or a CI machine; no '
      'chip is needed.'
    )
  if importlib.util.find_spec('libtpu') is None and not os.environ.get('TPU_LIBRARY_PATH'):
    raise errors.UserError(
      f'The TPU compiler (libtpu) is not installed here: {errors.install("tpu")}, or run the same '
      'line on a TPU VM; no chip is needed.'
    )
  for name, value in _ENVIRONMENT.items():
    os.environ.setdefault(name, value)


def check_flags(flags: str) -> str | None:
  """The error of libtpu about LIBTPU_INIT_ARGS; None if it takes them. A wrong flag ends the
  process, so a child process asks.
  """
  ask = (
    'from jax.experimental import topologies; '
    "topologies.get_topology_desc(platform='tpu', topology_name='v5e:2x2')"
  )
  environment = {**os.environ, **_ENVIRONMENT, 'JAX_PLATFORMS': 'cpu', 'LIBTPU_INIT_ARGS': flags}
  line, caught = [sys.executable, '-c', ask], dict(capture_output=True, text=True)
  done = subprocess.run(line, env=environment, timeout=_FLAGS_TIMEOUT, **caught)
  if not done.returncode:
    return None
  lines = (done.stderr + done.stdout).splitlines()
  complaints = [line for line in lines if re.search(r'flag|argument', line, re.I)]
  last = (complaints or done.stderr.splitlines() or ['it ended without a message'])[-1]
  return ' '.join(last.split())[:300]


def devices(slice_: chips.Slice) -> list:
  """Abstract devices of a slice, to compile for. UserError as `prepare`, or for no such slice."""
  prepare()
  handler = signal.getsignal(signal.SIGTERM)
  try:
    return list(topologies.get_topology_desc(slice_.topology, 'tpu', **slice_.options).devices)
  except jax.errors.JaxRuntimeError as e:
    raise errors.UserError(
      f'The TPU compiler here does not take {slice_.topology} ({errors.words(e, 160)}): take '
      'another shape, or another libtpu.'
    ) from e
  finally:  # libtpu takes SIGTERM over, to print the stacks of its threads
    if threading.current_thread() is threading.main_thread():
      signal.signal(signal.SIGTERM, handler)


def lowered_step(phase_run: phase_runs.PhaseRun):
  """A phase_run's train step, lowered for its mesh, the state donated and placed as in a run."""
  return _lowered(phase_runs.train_step(phase_run), *phase_run.inputs())


def lowered_entering(before: phase_runs.PhaseRun, after: phase_runs.PhaseRun):
  """The transition of a state from one phase_run to the next, lowered likewise."""
  return _lowered(phase_runs.make_transition(after), before.target[0])


def compiled(function, *arguments) -> Program:
  """A jitted function compiled for the TPU devices of its arguments' shardings: trees of
  jax.ShapeDtypeStruct. Raises JaxRuntimeError as `finished`.
  """
  return finished(_lowered(function, *arguments))


def _lowered(function, *arguments):
  return function.trace(*arguments).lower(lowering_platforms=('tpu',))


def finished(lowered, folder: str | None = None, quick: bool = False) -> Program:
  """Compiles a lowered program.

  lowered: as `lowered_step` returns. folder: empty, for the compiler's dumps (see `dumped`); None:
  a temporary one. quick: leave out the passes that only make the code faster.

  Raises JaxRuntimeError: any failure but running out of memory, which is a result.
  """
  if folder is None:
    with tempfile.TemporaryDirectory() as temporary:
      return finished(lowered, temporary, quick)
  began = time.monotonic()
  try:
    program = lowered.compile({'xla_dump_to': folder, **(_LEFT_OUT if quick else {})})
  except jax.errors.JaxRuntimeError as e:
    if quick and 'No such compile option' in str(e):  # in this libtpu
      return finished(lowered, folder)
    needed = needed_bytes(str(e))
    if needed is None:
      raise
    exact = dumped(folder, refused=True)  # the message rounds, and counts the code if it was made
    needed = max(needed, exact.peak) if exact else needed
    return Program(None, {}, None, needed, time.monotonic() - began)
  analysis = program.memory_analysis()
  memory = memory_of(analysis)
  if dump := dumped(folder):
    memory = dump._replace(peak=dump.peak + analysis.generated_code_size_in_bytes)
  seconds = time.monotonic() - began
  try:
    return Program(program.as_text(), program.cost_analysis(), memory, None, seconds)
  # some programs compile and cannot be printed (asynchronous fusions of v6e, libtpu 0.0.51)
  except jax.errors.JaxRuntimeError:
    return Program(None, {}, memory, None, seconds)


def dumped(folder: str, refused: bool = False, limit: int | None = None) -> Memory | None:
  """The Memory of a program during its compilation, from the dumps in a folder; None until they are
  complete, or if this libtpu writes none.

  The compiler writes `…-buffer-assignment.txt` when every array is allocated, compares the sum with
  the limit, and goes on with `…_after_buffer_assignment.txt` if it fits. Most of a compilation
  comes after that. A refusal names the same sum, without arrays in other memories (they have a
  color) and thread-local ones (they repeat others of the list). Generated code is added to the sum
  later, so a program may still be refused.

  folder: the one given as xla_dump_to. refused: whether it did not fit. limit: usable bytes of a
  device; the result is None if the code could exceed it.
  """
  written = lambda name: next(pathlib.Path(folder).glob(f'*.after_optimizations{name}.txt'), None)
  listed, text = written('-buffer-assignment'), written('')
  if listed is None or text is None or not (refused or written('_after_buffer_assignment')):
    return None
  line = re.compile(r'^allocation \d+: size (\d+), (?!color)(?!.*thread-local)(.*parameter)?', re.M)
  sizes = [(int(size), kind) for size, kind in line.findall(listed.read_text())]
  if not sizes:
    return None
  memory = Memory(sum(n for n, kind in sizes if kind), sum(n for n, _ in sizes))
  code = _CODE[0] + _CODE[1] * text.stat().st_size
  return None if limit is not None and memory.peak + code > limit else memory


def memory_of(analysis) -> Memory:
  """A Memory, from a compiled program's memory_analysis(), where `dumped` has none.

  The compiler has two counts of a peak, neither below the sum that it compares with its limit. The
  sum of the parts has too many temporaries (by a tenth, for BERT in a scan, libtpu 0.0.51). The
  peak of live arrays includes fast memory. Not every libtpu gives the second.
  """
  arguments = analysis.argument_size_in_bytes
  parts = (
    arguments
    + analysis.output_size_in_bytes
    - analysis.alias_size_in_bytes
    + analysis.temp_size_in_bytes
  )
  return Memory(
    arguments,
    min(parts, analysis.peak_memory_in_bytes or parts) + analysis.generated_code_size_in_bytes,
  )


def needed_bytes(message: str) -> int | None:
  """Bytes per device that a program needed, by the compiler's message; None for another error."""
  if 'RESOURCE_EXHAUSTED' not in message:
    return None
  match = re.search(r'\(([\d.]+)([KMGT]?)\) exceeds available HBM', message) or re.search(
    r'Used ([\d.]+)([KMGT]?) of [\d.]+[KMGT]? hbm', message, re.I
  )
  return int(float(match[1]) * _UNITS[match[2]]) if match else None
