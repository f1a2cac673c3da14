"""The values of `auto` in config.run on the devices of a run."""

import re

import jax

from bertzoo_jax import kernels
from bertzoo_jax.common import config as configuration
from bertzoo_jax.experiment import build
from bertzoo_jax.experiment import resolve
from bertzoo_jax.model import stack
from bertzoo_jax.parts import ranges
from bertzoo_jax.runs import failures
from bertzoo_jax.training import phase_run as phase_runs

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


def fitted(built: build.Built, config, show: bool = True) -> build.Built:
  """The run with the first of its `policies` that fits a TPU, else the last one. Compiles the step
  of the phase with the most tokens per microbatch (ties: the last). Unchanged on other devices, and
  if the config names a policy.

  config: the run's config, in which run.remat may be auto. show: whether to print a line per try.
  """
  mesh, auto = built.mesh, 'run.remat' in autos(config)
  if not auto or mesh.devices.flat[0].platform != 'tpu':
    return built
  tokens = lambda p: p.config.batch_size * p.config.length / p.config.run.accumulation
  # a phase may add parameters, not drop them
  largest = max((p.phase for p in built.phase_runs), key=lambda p: (tokens(p), p.index)).index
  first = built.phase_runs[0].phase.first_step
  *tried, last = policies(built.run.config)
  for policy in tried:
    candidate = build.phases(built.run.changed({'run.remat': policy}), built.data, mesh, first)
    if show:
      line = f'run.remat=auto: compiling phase {largest} with {policy}, to see whether it fits …'
      print(line, flush=True)
    if fits(next(p for p in candidate.phase_runs if p.phase.index == largest)):
      return candidate
  return build.phases(built.run.changed({'run.remat': last}), built.data, mesh, first)


def fits(phase_run) -> bool:
  """Whether a phase's step, as compiled, fits into the memory of the devices."""
  try:
    phase_runs.train_step(phase_run).lower(*phase_run.inputs).compile()
  except jax.errors.JaxRuntimeError as e:
    if failures.out_of_memory(e):
      return False
    raise
  return True


def chosen_values(config) -> str:
  """A line with each of FIELDS and its value."""
  return ' · '.join(f'{field} {config.run[field]}' for field in FIELDS)
