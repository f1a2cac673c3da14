"""The overview that a run prints before its first step."""

import jax

from bertzoo_jax import hf
from bertzoo_jax.common import amounts
from bertzoo_jax.common import errors
from bertzoo_jax.experiment import build
from bertzoo_jax.experiment import machinery
from bertzoo_jax.runs import workdir as workdirs
from bertzoo_jax.training import cost
from bertzoo_jax.training import phase_run as phase_runs


def overview(built, start, state) -> list[str]:
  """The lines that are printed at the start."""
  run, data, mesh, current = built.run, built.data, built.mesh, built.phase_runs[0]
  config, shapes = run.config, phase_runs.param_shapes(state)
  flops = build.flops(run, data, mesh)
  lines = [
    f'workdir   {start.workdir} · commit {(workdirs.commit() or "unknown")[:12]} · '
    f'jax {jax.__version__}',
    f'devices   {devices()} · {jax.process_count()} host(s) · mesh '
    + ' × '.join(f'{axis} {size}' for axis, size in mesh.shape.items()),
    f'network   {config.encoder.name}, {cost.parameters(shapes):,} parameters · '
    f'{config.objective.name}',
    f'machinery {machinery.chosen_values(config)}',
    *idle_chips(),
    f'text      {data.corpus["hash"][:12]} · vocabulary {data.vocab_size:,}',
  ]
  if data.entropy is not None:
    tokens = f'{data.corpus["tokens"]:,} tokens · unigram entropy {data.entropy:.3f} nats'
    lines[-1] += f' · {tokens}'
  if data.driver:
    lines[-1] += f' · batches by {data.driver}'
  # a unit of options has several rows
  options = current.tokens // (current.rows * current.length)
  for p in run.phases:
    rows, length = p.config.batch_size, p.config.length
    all_rows = f'{rows}' if options == 1 else f'{rows} × {options}'
    line = (
      f'phase {p.index}   steps {p.first_step:,}–{p.end_step:,} · '
      f'{all_rows} rows × {length} tokens = {rows * options * length:,} tokens per step'
    )
    if p.config.frozen:
      line += f' · frozen: {", ".join(p.config.frozen)}'
    if p is current.phase:
      line += f' · {flops[p.index] / p.steps / 1e9:,.1f} GFLOP per step'
      line += f' · {amounts.describe(current.data.train.read(p.steps))}'
    lines.append(line)
  for field, first, end, from_step, last, shape in config.moving:
    lines.append(f'moves     {field} {first:g} → {end:g}, steps {from_step:,}–{last:,}, {shape}')
  return [*lines, f'flops     {sum(flops):.3e} for the whole run', *_kept(start)]


def export_notes(built) -> list[str]:
  """Notes if config.hf cannot hold the network; of several networks, the first."""
  notes, objective = [], built.phase_runs[0].objective
  shapes = built.phase_runs[0].target[0].params
  for n in objective.networks[:1]:
    flat = hf.flatten(jax.eval_shape(n.extract, shapes))
    notes.append(hf.fitting_note(built.run.config.hf, n.encoder.activation, flat))
  return [f'config.hf={note}' for note in notes if note]


def idle_chips() -> list[str]:
  """A note if this machine has a GPU or a TPU, and JAX lacks the packages to use it."""
  if jax.default_backend() != 'cpu' or jax.config.jax_platforms:
    return []
  try:  # not jax's public interface
    from jax._src import hardware_utils
  except ImportError:
    return []
  chips, _ = hardware_utils.num_available_tpu_chips_and_device_id()
  present = {'gpu': hardware_utils.has_visible_nvidia_gpu(), 'tpu': chips > 0}
  return [
    f'note      here is a {extra.upper()} that JAX cannot use without: {errors.install(extra)}'
    for extra in present
    if present[extra]
  ]


def devices() -> str:
  """'4 × TPU v4': the devices of all hosts."""
  return f'{jax.device_count()} × {", ".join(sorted({d.device_kind for d in jax.devices()}))}'


def _kept(start) -> list[str]:
  """A line on the checkpoints of run.keep_words; of a branch, the earlier ones are in the folder of
  the other run.
  """
  numbers = lambda words: ', '.join(f'{n:,}' for n in words)
  steps = [step for step in start.keep_at if not start.branch or step > start.step]
  listed = ', '.join(f'{step:,} ({numbers(start.keep_at[step])} words)' for step in steps)
  return [f'keeps     the checkpoints of steps {listed}'] if listed else []
