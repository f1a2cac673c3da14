"""What preflight found, in words and tables, and as JSON."""

import contextlib
import math

import rich.console
import rich.table
import rich.text

from bertzoo_jax import errors
from bertzoo_jax.tpu import chips
from bertzoo_jax.tpu import estimate
from bertzoo_jax.training import sharding


def show(found, console=None) -> None:
  """Prints a Preflight."""
  console = console or rich.console.Console(highlight=False, soft_wrap=True)
  if found.slice_:
    console.print(_heading(found))
  if found.phases:
    console.print(_memory(found))
    if any(p.time for p in found.phases):
      console.print(_times(found))
      for line in _remarks(found):
        console.print(line)
  if found.run:
    for line in _whole(found):
      console.print(line)
  if found.flags and not any(f.code == 'P05' for f in found.findings):
    console.print(f'LIBTPU_INIT_ARGS are taken: {found.flags}')
  if found.region:
    console.print(f'the workdir\'s bucket lies in {found.region}: the TPU should too.')
  if found.remedies:
    console.print('\nto make it fit:', style='bold')
    for line in found.remedies:
      console.print(f'  {line}')
  if found.fits and (lines := faster(found.config)):
    console.print('\nto make it faster:', style='bold')
    for line in lines:
      console.print(f'  {line}')
  for finding in found.findings.warnings:
    console.print(rich.text.Text(f'{finding.code}  {finding.sentence}', 'yellow'))
  for finding in found.findings.problems:
    console.print(rich.text.Text(f'{finding.code}  {finding.sentence}', 'bold red'))
  many = len(found.findings.problems)
  said = 'it fits, and nothing is wrong.' if found.ready else f'{many} problem{"s" * (many != 1)}: it would not run.'
  console.print(rich.text.Text(said, 'bold green' if found.ready else 'bold red'))


def as_dict(found) -> dict:
  """A Preflight as plain values: bytes, seconds, dollars."""
  slice_ = found.slice_
  return {
      'ready': found.ready,
      'fits': found.fits,
      'slice': slice_ and dict(type=slice_.accelerator_type, topology=slice_.topology, chips=slice_.chips, devices=slice_.devices, hosts=slice_.hosts,
                               hbm_usable=slice_.chip.usable),
      'mesh': found.mesh,
      'phases': [_phase(found, p) for p in found.phases],
      'run': found.run and {**found.run._asdict(), 'price': found.price, 'preemptions': found.preemptions},
      'libtpu_init_args': found.flags,
      'bucket_region': found.region,
      'to_make_it_fit': found.remedies,
      'to_make_it_faster': faster(found.config),
      'problems': [f._asdict() for f in found.findings.problems],
      'warnings': [f._asdict() for f in found.findings.warnings],
  }


def _phase(found, p):
  out = dict(index=p.index, steps=p.steps, rows=p.rows, length=p.length, fits=p.program.fits, peak=p.program.peak, parameters=p.parameters,
             optimizer=p.optimizer, temporaries=p.program.memory and p.program.memory.temporaries, checkpoint=p.state,
             largest_batch=p.largest and p.largest[0], largest_batch_confirmed=p.largest and p.largest[1], epochs=p.epochs, model_flops=p.flops,
             compile_seconds=p.program.seconds, replicated=p.replicated, time=None)
  if p.time:
    out.update(
        time=p.time._asdict(), tokens_per_second=p.rows * p.length / p.time.likely, mfu=mfu(found.slice_, p), program_flops=p.reading.flops,
        hbm_bytes=p.reading.hbm, estimated_cycles=p.reading.cycles, kernels=p.reading.kernels,
        without_estimate=[dict(what=n, times=t, bytes=b) for n, t, b in p.reading.without_estimate()],
        collectives=[dict(zip(('opcode', 'group', 'times', 'bytes', 'seconds'), row)) for row in collectives(found.slice_, p)])
  return out


def remedies(config, phases, mesh, slice_) -> list[str]:
  """What would make it fit, most likely first; estimates, none compiled."""
  tight = [p for p in phases if not p.program.fits]
  if not tight:
    return []
  out, rows = [], min((0 if p.largest is None else p.largest[0] if p.largest[1] is None else p.largest[1]) for p in tight)
  accumulation = config.run.accumulation
  if rows:
    wished = math.ceil(config.batch_size / rows) * accumulation
    for more in range(wished, config.batch_size + 1):
      with contextlib.suppress(errors.UserError):
        sharding.check_batch(config.batch_size, more, mesh, slice_.hosts)
        out.append(f'--config.run.accumulation={more}: the same update from {more} microbatches in turn; activations shrink to about '
                   f'1/{more / accumulation:.3g}, gradients are added up beside them')
        break
  if config.run.remat != 'full':
    policies = ' or '.join(f'--config.run.remat={p}' for p in ('sublayers', 'feed_forward', 'full') if p != config.run.remat)
    out.append(f'{policies}: activations are computed again in the backward pass (about a third more FLOPs with full)')
  state = max(p.parameters + p.optimizer for p in tight)
  if state > 0.2 * slice_.chip.usable:
    out.append(f"--config.run.mesh='(-1, 2, 1)': parameters and optimizer ({state / chips.GIB:.1f} GiB a device) are split over fsdp")
  if config.run.dtype == 'float32':
    out.append('--config.run.dtype=bfloat16: products and what is kept of them take half')
  if rows:
    out.append(f'--config.batch_size={rows}: another experiment, scale the learning rate with it')
  out.append(f'a larger slice than {slice_.accelerator_type}: rows are divided by its devices')
  return out


def faster(config) -> list[str]:
  """What makes steps shorter and changes nothing else, by docs/tpu_choices.md; [] where all of it is set."""
  out = []
  if config.run.unroll not in (0, config.encoder.num_layers):
    out.append('--config.run.unroll=0: layers side by side, not in a loop; a tenth to a fifth less time and a fifth less memory, and two to four times '
               'as long to compile')
  if config.run.kernels == 'xla':
    out.append('--config.run.kernels=auto: attention with dropout, and sums with their norms, in fused kernels')
  if config.run.prng == 'threefry2x32':
    out.append('--config.run.prng=rbg: the keys of dropout by the hardware')
  return out


def mfu(slice_, p, seconds=None) -> float:
  """Share of the slice's peak that the model's own FLOPs take, in the likely time or another."""
  return p.flops / ((seconds or p.time.likely) * slice_.devices * slice_.chip.peak)


def collectives(slice_, p) -> list[tuple]:
  """(opcode, group, how often, bytes a step, seconds a step) of a phase's collectives, by opcode and group."""
  out = {}
  for c in p.reading.collectives:
    times, moved, seconds = out.get((c.opcode, c.group), (0, 0, 0.0))
    out[c.opcode, c.group] = times + c.times, moved + c.times * c.bytes, seconds + c.times * estimate.exchange_time(c, slice_)
  return [(*key, *value) for key, value in sorted(out.items(), key=lambda item: -item[1][1])]


def _heading(found):
  s = found.slice_
  mesh = ' × '.join(f'{name} {n}' for name, n in found.mesh.items())
  return rich.text.Text(
      f'{s.accelerator_type} ({s.topology}): {s.chips} chips, {s.hosts} host{"s" * (s.hosts > 1)}, {s.devices} devices of '
      f'{s.chip.usable / chips.GIB:.2f} GiB' + (f' · mesh {mesh}' if mesh else ''), 'bold')


def _memory(found):
  right = lambda name: rich.table.Column(name, justify='right')
  table = rich.table.Table('phase', right('steps'), right('rows × tokens'), right('params'), right('optim'), right('temp'), right('peak'),
                           right('of HBM'), 'fits', title='memory of a device, GiB',
                           caption='optim: state of the optimizer; temp: activations, gradients, copies')
  gib = lambda n: '?' if n is None else f'{n / chips.GIB:.3f}' if n < chips.GIB else f'{n / chips.GIB:.2f}'
  for p in found.phases:
    table.add_row(str(p.index), f'{p.steps:,}', f'{p.rows:,} × {p.length}', gib(p.parameters), gib(p.optimizer),
                  gib(p.program.memory and p.program.memory.temporaries), gib(p.program.peak), f'{p.program.peak / found.slice_.chip.usable:.0%}',
                  rich.text.Text('yes', 'green') if p.program.fits else rich.text.Text('no', 'bold red'))
  return table


def _times(found):
  right = lambda name: rich.table.Column(name, justify='right')
  table = rich.table.Table('phase', right('ms/step'), right('bounds'), right('exchange'), right('tokens/s'), right('MFU'), right('bounds'),
                           title='time, by the compiler\'s estimates: not measured on a chip',
                           caption='exchange: of it in collectives, if nothing overlaps; bounds: see bertzoo_jax/tpu/estimate.py')
  for p in found.phases:
    if p.time:
      table.add_row(str(p.index), f'{1e3 * p.time.likely:,.1f}', f'{1e3 * p.time.floor:,.1f} – {1e3 * p.time.upper:,.1f}',
                    f'{1e3 * p.time.exchange:,.1f}', f'{p.rows * p.length / p.time.likely:,.0f}', f'{mfu(found.slice_, p):.0%}',
                    f'{mfu(found.slice_, p, p.time.upper):.0%} – {mfu(found.slice_, p, p.time.floor):.0%}')
  return table


def _remarks(found):
  for p in found.phases:
    if not p.time:
      continue
    for opcode, group, times, moved, seconds in collectives(found.slice_, p):
      yield f'phase {p.index}: {opcode} over {group} devices, {times} times, {moved / 1e6:,.1f} MB, {1e3 * seconds:.2f} ms a step'
    bare = [(name, times, moved) for name, times, moved in p.reading.without_estimate() if moved > 0.005 * p.reading.hbm]
    if bare:
      parts = ', '.join(f'{name} ({times} times, {moved / 1e6:,.0f} MB)' for name, times, moved in bare)
      yield f'phase {p.index}: without an estimate, charged by bytes: {parts}'
    if p.epochs is not None:
      yield f'phase {p.index}: {p.epochs:.2f} epochs of the corpus'


def _whole(found):
  run = found.run
  lost = f', {found.preemptions} preemptions with {run.lost_seconds / 3600:.1f} hours lost' if found.preemptions else ', no preemption'
  yield rich.text.Text(f'whole run: {run.days:.2f} days (bounds {run.least_days:.2f} – {run.most_days:.2f}){lost}', 'bold')
  if run.dollars is not None:
    yield rich.text.Text(f'at {found.price:.2f} dollars a chip and hour: {run.dollars:,.0f} dollars (bounds {run.least_dollars:,.0f} – '
                         f'{run.most_dollars:,.0f})', 'bold')
