"""The values of `auto` in config.run on the devices of a run."""

import contextlib
import dataclasses
import math
import pathlib
import re

import jax
import numpy as np
from jax.experimental import multihost_utils

from bertzoo_jax import kernels
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.experiment import build
from bertzoo_jax.experiment import check
from bertzoo_jax.experiment import resolve
from bertzoo_jax.model import stack
from bertzoo_jax.parts import ranges
from bertzoo_jax.runs import failures
from bertzoo_jax.training import sharding

FIELDS = ('kernels', *build.USUAL)
# {beginning of a device's name: number of steps from which unrolled layers save more time than they
# take to compile} (bench/tpu_choices.csv, bench/README.md; other devices were not tried), and the
# most layers to unroll.
_UNROLLED = {
  **dict.fromkeys(('TPU v4', 'TPU v5 lite', 'TPU v5e', 'TPU v6 lite', 'TPU v6e'), 10_000),
  'NVIDIA': 2_000,
  'cpu': 250,
}
_LAYERS = 24
# Share of the memory that a step may take: what lies between two arrays is lost.
_SHARE = 0.95
# Flags of processors with bfloat16 products. Without these, the gradient of a feed-forward took 1.3
# to 1.4 times as long as in float32 (AVX2, widths 768 and 256).
_BFLOAT16 = re.compile(r'\b(avx512_bf16|amx_bf16|bf16)\b')


def resolved(run: resolve.Run, vocab_size: int, mesh, kept: dict | None = None) -> resolve.Run:
  """The run with values in place of `auto`: run.kernels, run.unroll and run.dtype for the devices
  of a mesh, and run.remat=none.

  kept: {'run.unroll': …} of earlier attempts, which override the devices; None for a new run.
  Raises UserError for a kept value that its field does not allow.
  """
  device, encoder = mesh.devices.flat[0], build.shared_encoder(run, vocab_size)
  attention = encoder.attention_dropout, encoder.relative_attention
  chosen = kernels.choose('auto', device, *attention, encoder.dtype, encoder.padding_side)
  kind, few = device.device_kind, encoder.num_layers <= _LAYERS
  unrolled = few and any(
    kind.startswith(name) and run.end_step >= steps for name, steps in _UNROLLED.items()
  )
  values = {
    'run.kernels': next((n for n, k in kernels.BY_NAME.items() if k is chosen), 'fused'),  # v4's
    'run.unroll': 0 if unrolled else build.USUAL['unroll'],
    'run.remat': build.USUAL['remat'],
    'run.dtype': 'float32'
    if kind == 'cpu' and not _BFLOAT16.search(cpu())
    else build.USUAL['dtype'],
  }
  # auto takes cuDNN where it can, which run.dtype may have changed
  known = {k: x for k, x in (kept or {}).items() if x not in (configuration.AUTO, 'cudnn')}
  out = run.changed({field: known.get(field, values[field]) for field in autos(run.config)})
  ranges.check_fields(out.config)
  return out


def cpu() -> str:
  """The line of a processor's instruction sets; '' if the system does not list them."""
  try:
    with open('/proc/cpuinfo', encoding='utf-8') as f:
      return next((line for line in f if line.startswith(('flags', 'Features'))), '')
  except OSError:
    return ''


def autos(config) -> list[str]:
  """The fields of config.run that are auto, as 'run.unroll'."""
  return [f'run.{field}' for field in FIELDS if config.run[field] == configuration.AUTO]


def policies(config) -> list[str]:
  """[the config's run.remat, then the policies that save less]."""
  known = list(stack.REMAT)
  return known[known.index(config.run.remat) :]


def fitted(built: build.Built, config, kept: dict, show: bool = True) -> build.Built:
  """The run with values in place of `auto` that the compiler decides: run.remat, which is unchanged
  on other devices than TPUs, and run.accumulation of each remaining phase.

  config: the run's config, in which run.remat may be auto. kept: as in `resolved`. show: whether to
  print lines. Raises UserError for a phase that does not fit with one row per microbatch.
  """
  if 'run.remat' in autos(config) and built.mesh.devices.flat[0].platform == 'tpu':
    built = _with_remat(built, show)
  phases, taken, limit = [], {}, None
  for phase_run in built.phase_runs:
    if phase_run.phase.config.run.accumulation == configuration.AUTO:
      limit = limit or _limit(built.mesh)
      phase_run, line = _in_microbatches(built.run, phase_run, limit, kept)
      taken[phase_run.phase.index] = phase_run.phase.config.run.accumulation
      if show:
        print(line, flush=True)
    phases.append(phase_run)
  return build.Built(built.run.in_microbatches(taken), built.data, phases) if taken else built


def _with_remat(built, show):
  """The run with the first of its `policies` that fits a TPU, else the last one. Compiles the step
  of the phase with the most tokens per microbatch (ties: the last). run.accumulation=auto counts as
  one row per microbatch: it costs less time.
  """
  mesh, first = built.mesh, built.phase_runs[0].phase.first_step
  most = {p.index: divisors(p, mesh)[-1] for p in auto_phases(built.run)}
  trial = built.run.in_microbatches(most) if most else built.run
  tokens = lambda p: p.config.batch_size * p.config.length / p.config.run.accumulation
  # a phase may add parameters, not drop them
  remaining = trial.phases[-len(built.phase_runs) :]
  largest = max(remaining, key=lambda p: (tokens(p), p.index)).index
  *tried, last = policies(built.run.config)
  for policy in tried:
    candidate = build.phases(trial.changed({'run.remat': policy}), built.data, mesh, first)
    if show:
      line = f'run.remat=auto: compiling phase {largest} with {policy}, to see whether it fits …'
      print(line, flush=True)
    if peak(next(p for p in candidate.phase_runs if p.phase.index == largest)) < math.inf:
      if not most:
        return candidate
      last = policy
      break
  return build.phases(built.run.changed({'run.remat': last}), built.data, mesh, first)


def _in_microbatches(run, phase_run, limit, kept):
  """(the phase with the fewest microbatches that fit, a line on them). The number of the attempt
  before is tried first.
  """
  index, tried, before = phase_run.phase.index, '', None
  of = f' of {limit / 1e9:,.3g} GB' * (limit < math.inf)
  with contextlib.suppress(KeyError, IndexError, TypeError):
    before = kept['phases'][index][1]['run.accumulation']
  numbers = divisors(phase_run.phase, phase_run.mesh)
  numbers = [before] * (before in numbers) + numbers
  while numbers:
    number = numbers[0]
    phase = run.in_microbatches({index: number}).phases[index]
    candidate = dataclasses.replace(phase_run, phase=phase)
    needed = peak(candidate)
    gb = f'{needed / 1e9:,.3g} GB' if needed < math.inf else 'too much'
    if needed < math.inf and needed <= limit:
      line = f'{number} in phase {index}' + ', as before' * (number == before)
      return candidate, f'run.accumulation=auto: {line} ({gb}{of} per device{tried})'
    tried = f'; with {number} it needs {gb}'
    numbers = larger(numbers, number, needed, check.per_device(candidate.inputs()), limit)
  remat = 'run.remat=full, ' * (phase_run.phase.config.run.remat != 'full')
  raise errors.UserError(
    f'run.accumulation=auto: a step of phase {index} has no room on a device, even '
    f'with one row per microbatch{tried}{of}: take {remat}more devices along fsdp in run.mesh, '
    'a smaller encoder or a smaller config.length.'
  )


def divisors(phase, mesh) -> list[int]:
  """The numbers of equal microbatches that a phase may have."""
  rows = phase.config.batch_size // sharding.rows_over(mesh)
  return [n for n in range(1, rows + 1) if rows % n == 0]


def larger(numbers, number: int, needed: float, fixed: int, limit: float) -> list[int]:
  """The numbers of microbatches to try after one that did not fit, of `numbers`.

  needed: bytes per device with that number, infinite if unknown. fixed: bytes of state and batch.
  The others shrink with the rows of a microbatch at most. The largest number is always tried.
  """
  enough = lambda n: needed == math.inf or fixed + (needed - fixed) * number / n <= limit
  return [n for n in numbers if n > number and (enough(n) or n == numbers[-1])]


def peak(phase_run) -> float:
  """Bytes per device of a phase's step, as compiled; infinite if the compiler finds no room."""
  try:
    sizes = phase_run.compiled().memory_analysis()
  except jax.errors.JaxRuntimeError as e:
    if failures.out_of_memory(e):
      return math.inf
    raise
  arrays = sizes.argument_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes
  return arrays + sizes.temp_size_in_bytes


def _limit(mesh) -> float:
  """Bytes that a step may take per device, the same on all hosts. Infinite on a TPU, whose compiler
  refuses what does not fit.
  """
  devices = mesh.local_devices
  if devices[0].platform == 'tpu':
    return math.inf
  limit = check.memory_of(devices) or math.inf
  if devices[0].platform == 'cpu':
    limit = min(limit, _available() / jax.local_device_count())
  if jax.process_count() > 1:
    limit = float(multihost_utils.process_allgather(np.float32(limit)).min())
  return _SHARE * limit


def _available() -> float:
  """Bytes of the host that other programs do not use; infinite if the system does not say."""
  with contextlib.suppress(OSError, StopIteration):
    lines = pathlib.Path('/proc/meminfo').read_text(encoding='utf-8').splitlines()
    return 1024 * int(next(x for x in lines if x.startswith('MemAvailable')).split()[1])
  return math.inf


def auto_phases(run: resolve.Run) -> list[configuration.Phase]:
  """The phases whose run.accumulation is auto."""
  return [p for p in run.phases if p.config.run.accumulation == configuration.AUTO]


def chosen_values(config) -> str:
  """A line with each of FIELDS and its value."""
  return ' · '.join(f'{field} {config.run[field]}' for field in FIELDS)
