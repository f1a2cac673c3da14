"""The overview of a run before its first step, and its floating-point operations."""

import jax
from jax._src import hardware_utils

from bertzoo_jax import hf
from bertzoo_jax.assembly import machinery
from bertzoo_jax.assembly import published_flops
from bertzoo_jax.common import errors
from bertzoo_jax.common import reading
from bertzoo_jax.runs import workdir as workdirs
from bertzoo_jax.training import cost
from bertzoo_jax.training import phase_run as phase_runs


def overview(run, workdir, here, phase_run, state, data, mesh):
  """The block at the start, line by line."""
  config = run.config
  shapes = phase_runs.param_shapes(state)
  flops = phase_run.objective.flops(state.params, phase_run.feature_shapes)
  lines = [
    f'workdir   {workdir} · commit {(workdirs.commit() or "unknown")[:12]} · jax {jax.__version__}',
    f'devices   {devices()} · {jax.process_count()} host(s) · mesh '
    + ' × '.join(f'{axis} {size}' for axis, size in mesh.shape.items()),
    f'network   {config.encoder.name}, {cost.parameters(shapes):,} parameters · '
    f'{config.objective.name}',
    f'machinery {machinery.said(config)}',
    *idle_chips(),
    f'text      {data.corpus["hash"][:12]} · vocabulary {data.vocab_size:,}',
  ]
  if data.entropy is not None:
    tokens = f'{data.corpus["tokens"]:,} tokens · unigram entropy {data.entropy:.3f} nats'
    lines[-1] += f' · {tokens}'
  if data.driver:
    lines[-1] += f' · batches by {data.driver}'
  # of a batch of options, each unit is several rows
  of_unit = phase_run.tokens // (phase_run.rows * phase_run.length)
  for p in run.phases:
    rows, length = p.config.batch_size, p.config.length
    all_rows = f'{rows}' if of_unit == 1 else f'{rows} × {of_unit}'
    line = (
      f'phase {p.index}   steps {p.first_step:,}–{p.end_step:,} · '
      f'{all_rows} rows × {length} tokens = {rows * of_unit * length:,} tokens per step'
    )
    if p.index == here.index:
      line += '' if flops is None else f' · {flops / 1e9:,.1f} GFLOP per step'
      if epoch := phase_run.data.rows_per_epoch:
        read = phase_run.data.read
        one = [reading.Reading('', p.steps * rows, epoch, None)]
        line += f' · {reading.told(one if read is None else read(p.steps))}'
    lines.append(line)
  for field, start, end, first, last, shape in config.moving:
    lines.append(f'moves     {field} {start:g} → {end:g}, steps {first:,}–{last:,}, {shape}')
  published = published_flops.of_run(run, data.vocab_size, mesh, of_unit)
  counted = 'not known for this network'
  if published is not None:
    counted = f'{published:.3e} for the whole run, as Clark et al. 2020 count'
  return [*lines, f'flops     published FLOPs: {counted}']


def kept(keep_at: dict) -> list[str]:
  """A line on the steps of run.keep_words; keep_at: see reading.kept."""
  numbers = lambda words: ', '.join(f'{n:,}' for n in words)
  said = ', '.join(f'{step:,} ({numbers(words)} words)' for step, words in keep_at.items())
  return [f'keeps     the checkpoints of steps {said}'] if said else []


def export_notes(hf_class, network) -> list[str]:
  """Notes on a network that config.hf cannot hold; of several networks, on the first."""
  notes = []
  for n in network.objective.networks[:1]:
    shapes = hf.flatten(jax.eval_shape(n.of, network.shapes))
    notes.append(hf.fitting_note(hf_class, n.encoder.activation, shapes))
  return [f'config.hf={note}' for note in notes if note]


def idle_chips() -> list[str]:
  """A note where this machine has a GPU or a TPU, and JAX lacks the packages to compute on it."""
  if jax.default_backend() != 'cpu' or jax.config.jax_platforms:
    return []
  chips, _ = hardware_utils.num_available_tpu_chips_and_device_id()
  there = {'gpu': hardware_utils.has_visible_nvidia_gpu(), 'tpu': chips > 0}
  return [
    f'note      a {extra.upper()} is here, and JAX has no packages for it: {errors.install(extra)}'
    for extra in there
    if there[extra]
  ]


def devices():
  kinds = sorted({d.device_kind for d in jax.devices()})
  return f'{jax.device_count()} × {", ".join(kinds)}'
