"""The values of `auto` in config.run on the devices of a run."""

import contextlib
import dataclasses
import math
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
  """The run with values of `auto` with which all remaining steps fit, as compiled: the first of the
  `policies` on TPUs, and the fewest microbatches of each phase. The run takes these programs.

  config: the run's config, in which run.remat may be auto. kept: as in `resolved`. show: whether to
  print lines. Raises UserError for a step that does not fit in any way.
  """
  mesh, first = built.mesh, built.phase_runs[0].phase.first_step
  auto = {p.index for p in built.run.phases if p.config.run.accumulation == configuration.AUTO}
  remat = 'run.remat' in autos(config) and mesh.devices.flat[0].platform == 'tpu'
  if not auto and not remat:
    return built
  limit, tried = _limit(mesh), policies(built.run.config) if remat else [None]
  for policy in tried:
    if remat:
      built = build.phases(built.run.changed({'run.remat': policy}), built.data, mesh, first)
    with contextlib.suppress(() if policy == tried[-1] else errors.UserError):
      ready = [
        _fitting(p, built.run, limit, kept, show) if remat or p.phase.index in auto else p
        for p in built.phase_runs
      ]
      break
  taken = {p.phase.index: p.phase.config.run.accumulation for p in ready if p.phase.index in auto}
  return build.Built(built.run.in_microbatches(taken), built.data, ready)


def _fitting(phase_run, run, limit, kept, show):
  """The phase with its run.accumulation; for auto that of the attempt before if it fits, else the
  least that fits. Raises UserError if none does.
  """
  index, given = phase_run.phase.index, phase_run.phase.config.run
  auto, before, tried = given.accumulation == configuration.AUTO, None, ''
  numbers = divisors(phase_run.phase, phase_run.mesh) if auto else [given.accumulation]
  with contextlib.suppress(KeyError, IndexError, TypeError):
    before = kept['phases'][index][1]['run.accumulation']
  numbers = [before] * (auto and before in numbers) + numbers
  of = f' of the {limit / 1e9:,.3g} GB' * (limit < math.inf)
  while numbers:
    number, fields = numbers[0], f'run.accumulation={numbers[0]} and run.remat={given.remat}'
    if show:
      print(f'phase {index}: compiling with {fields}, to see whether it fits …', flush=True)
    phase = run.in_microbatches({index: number}).phases[index]
    candidate = dataclasses.replace(phase_run, phase=phase)
    needed = peak(candidate)
    gb = f'{needed / 1e9:,.3g} GB' if needed < math.inf else 'too much'
    if needed <= limit and needed < math.inf:
      if show and auto:
        chosen = f'{number} in phase {index}' + ', as before' * (number == before)
        print(f'run.accumulation=auto: {chosen} ({gb}{of} per device{tried})', flush=True)
      return candidate
    tried = f'; with {number} it needs {gb}'
    numbers = larger(numbers, needed, check.per_device(candidate.inputs()), limit)
  more = 'run.accumulation=auto, ' * (not auto) + 'run.remat=full, ' * (given.remat != 'full')
  raise errors.UserError(
    f'The step of phase {index} has no room on a device: with {fields} it needs {gb}{of}. Take '
    f'{more}more devices along fsdp in run.mesh, a smaller encoder or a smaller config.length.'
  )


def divisors(phase, mesh) -> list[int]:
  """The numbers of equal microbatches that a phase may have."""
  rows = phase.config.batch_size // sharding.rows_over(mesh)
  return [n for n in range(1, rows + 1) if rows % n == 0]


def larger(numbers: list[int], needed: float, fixed: int, limit: float) -> list[int]:
  """The numbers after the first, which needs too much, that may fit, and the last. At best all
  bytes but the fixed ones (state and batch) shrink with the rows of a microbatch.
  """
  least = lambda n: 0 if needed == math.inf else fixed + (needed - fixed) * numbers[0] / n
  return [n for n in numbers if n > numbers[0] and (least(n) <= limit or n == numbers[-1])]


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
  """Bytes that a step may take per device, on all hosts; infinite on TPUs: the compiler decides."""
  tpu = mesh.devices.flat[0].platform == 'tpu'
  limit = math.inf if tpu else check.memory_of(mesh.local_devices) or math.inf
  if jax.process_count() > 1:
    limit = float(multihost_utils.process_allgather(np.float32(limit)).min())
  return _SHARE * limit


def chosen_values(config) -> str:
  """A line with each of FIELDS and its value."""
  return ' · '.join(f'{field} {config.run[field]}' for field in FIELDS)
