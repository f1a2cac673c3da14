"""What preflight found, in words and tables, and as JSON."""

import rich.console
import rich.table
import rich.text

from bertzoo_jax import assembly
from bertzoo_jax.preflight.tpu import chips
from bertzoo_jax.preflight.tpu import estimate


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
    console.print(f"the workdir's bucket lies in {found.region}: the TPU should too.")
  if found.remedies is not None:
    console.print()
    for line in _to_make_it_fit(found):
      console.print(line)
  if found.fits and (lines := faster(found.config)):
    console.print('\nto make it faster:', style='bold')
    for line in lines:
      console.print(f'  {line}')
  for finding in found.findings.warnings:
    console.print(rich.text.Text(f'{finding.code}  {finding.sentence}', 'yellow'))
  for finding in found.findings.problems:
    console.print(rich.text.Text(f'{finding.code}  {finding.sentence}', 'bold red'))
  many, doubtful = len(found.findings.problems), len(found.findings.warnings)
  fine = (
    f'it fits; {doubtful} warning{"s" * (doubtful != 1)}.'
    if doubtful
    else 'it fits, and nothing is wrong.'
  )
  said = fine if found.ready else f'{many} problem{"s" * (many != 1)}: it would not run.'
  console.print(rich.text.Text(said, 'bold green' if found.ready else 'bold red'))


def as_dict(found) -> dict:
  """A Preflight as plain values: bytes, seconds, dollars."""
  slice_ = found.slice_
  given = {name: getattr(found.request, name) for name in ('price', 'preemptions')}
  return {
    'ready': found.ready,
    'fits': found.fits,
    'slice': slice_
    and dict(
      type=slice_.accelerator_type,
      topology=slice_.topology,
      chips=slice_.chips,
      devices=slice_.devices,
      hosts=slice_.hosts,
      hbm_usable=slice_.chip.usable,
    ),
    'mesh': found.mesh,
    'phases': [_phase(found, p) for p in found.phases],
    'runs': found.runs and found.runs._asdict(),
    'run': found.run and {**found.run._asdict(), **given},
    'libtpu_init_args': found.flags,
    'bucket_region': found.region,
    'to_make_it_fit': [r._asdict() for r in found.remedies or ()],
    'to_make_it_faster': faster(found.config) if found.fits else [],
    'problems': [f._asdict() for f in found.findings.problems],
    'warnings': [f._asdict() for f in found.findings.warnings],
  }


def _phase(found, p):
  out = dict(
    index=p.index,
    steps=p.steps,
    rows=p.rows,
    length=p.length,
    fits=p.program.fits,
    peak=p.program.peak,
    parameters=p.parameters,
    optimizer=p.optimizer,
    carry=p.carry,
    temporaries=p.program.memory and p.program.memory.temporaries,
    checkpoint=p.state,
    largest_batch=p.largest,
    epochs=p.epochs,
    model_flops=p.flops,
    compile_seconds=p.program.seconds,
    replicated=p.replicated,
    time=None,
  )
  if p.time:
    out.update(
      time=p.time._asdict(),
      tokens_per_second=p.rows * p.length / p.time.likely,
      mfu=mfu(found.slice_, p),
      program_flops=p.reading.flops,
      hbm_bytes=p.reading.hbm,
      estimated_cycles=p.reading.cycles,
      kernels=p.reading.kernels,
      without_estimate=[dict(what=n, times=t, bytes=b) for n, t, b in p.reading.without_estimate()],
      collectives=[
        dict(zip(('opcode', 'group', 'times', 'bytes', 'seconds'), row))
        for row in collectives(found.slice_, p)
      ],
    )
  return out


def _to_make_it_fit(found):
  """Lines of what was tried, each with what it needs."""
  gib = lambda remedy: f'{remedy.peak / chips.GIB:.2f} GiB'
  if enough := [r for r in found.remedies if r.fits]:
    yield f'to make it fit (of {found.slice_.chip.usable / chips.GIB:.2f} GiB, compiled with each):'
    for r in enough:
      yield f'  {r.change}: {gib(r)}' + f'; {r.note}' * bool(r.note)
  else:
    yield 'to make it fit: nothing that was tried is enough; take a larger slice'
  if short := [r for r in found.remedies if not r.fits]:
    yield f'  not enough: {", ".join(f"{r.change} ({gib(r)})" for r in short)}'


def faster(config) -> list[str]:
  """What makes steps shorter and changes nothing else, by docs/tpu_choices.md and docs/TPU.md; []
  where all of it is set.
  """
  out = []
  if config.run.unroll and config.run.unroll < assembly.encoder(config, 1).num_layers:
    out.append(
      '--config.run.unroll=0: layers side by side, not in a loop; a tenth to a fifth less time and '
      'a sixth less memory, and '
      'longer to compile'
    )
  if config.run.kernels == 'xla':
    out.append(
      '--config.run.kernels=auto: attention with dropout, and sums with their norms, in fused '
      'kernels'
    )
  return out


def mfu(slice_, p, seconds=None) -> float | None:
  """Share of its devices' peak that the model's own FLOPs take, in the likely time or another; None
  if they are not known.
  """
  return p.flops and p.flops / ((seconds or p.time.likely) * p.devices * slice_.chip.peak)


def _mfu_cells(slice_, p) -> tuple[str, str]:
  if not p.flops:
    return 'not known', ''
  low, high = mfu(slice_, p, p.time.upper), mfu(slice_, p, p.time.floor)
  return f'{mfu(slice_, p):.0%}', f'{low:.0%} – {high:.0%}'


def collectives(slice_, p) -> list[tuple]:
  """(opcode, group, how often, bytes per step, seconds per step) of a phase's collectives, by
  opcode and group.
  """
  out = {}
  for c in p.reading.collectives:
    times, moved, seconds = out.get((c.opcode, c.group), (0, 0, 0.0))
    out[c.opcode, c.group] = (
      times + c.times,
      moved + c.times * c.bytes,
      seconds + c.times * estimate.exchange_time(c, slice_),
    )
  return [(*key, *value) for key, value in sorted(out.items(), key=lambda item: -item[1][1])]


def _heading(found):
  s = found.slice_
  mesh = ' × '.join(f'{name} {n}' for name, n in found.mesh.items())
  counts = ', '.join(
    f'{n} {what}{"s" * (n > 1)}'
    for n, what in ((s.chips, 'chip'), (s.hosts, 'host'), (s.devices, 'device'))
  )
  return rich.text.Text(
    f'{s.accelerator_type} ({s.topology}): {counts} of {s.chip.usable / chips.GIB:.2f} GiB'
    + (f' · mesh {mesh}' if mesh else ''),
    'bold',
  )


def _memory(found):
  right = lambda name: rich.table.Column(name, justify='right')
  carries = any(p.carry for p in found.phases)
  table = rich.table.Table(
    'phase',
    right('steps'),
    right('rows × tokens'),
    right('params'),
    right('optim'),
    *([right('memory')] if carries else []),
    right('temp'),
    right('peak'),
    right('of HBM'),
    'fits',
    title='memory of a device, GiB',
    caption='optim: state of the optimizer; temp: activations, gradients, copies'
    + "; memory: the encoder's, from step to step" * carries,
  )
  gib = lambda n: (
    '?' if n is None else f'{n / chips.GIB:.3f}' if n < chips.GIB else f'{n / chips.GIB:.2f}'
  )
  for p in found.phases:
    table.add_row(
      str(p.index),
      f'{p.steps:,}',
      f'{p.rows:,} × {p.length}',
      gib(p.parameters),
      gib(p.optimizer),
      *([gib(p.carry)] if carries else []),
      gib(p.program.memory and p.program.memory.temporaries),
      gib(p.program.peak),
      f'{p.program.peak / found.slice_.chip.usable:.0%}',
      rich.text.Text('yes', 'green') if p.program.fits else rich.text.Text('no', 'bold red'),
    )
  return table


def _times(found):
  right = lambda name: rich.table.Column(name, justify='right')
  table = rich.table.Table(
    'phase',
    right('ms/step'),
    right('bounds'),
    right('exchange'),
    right('tokens/s'),
    right('MFU'),
    right('bounds'),
    title="time, by the compiler's estimates: not measured on a chip",
    caption='exchange: of it in collectives, if nothing overlaps; bounds: see '
    'bertzoo_jax/preflight/tpu/estimate.py',
  )
  ms = lambda seconds: f'{1e3 * seconds:,.1f}' if seconds >= 1e-3 else f'{1e3 * seconds:.3f}'
  for p in found.phases:
    if p.time:
      table.add_row(
        str(p.index),
        ms(p.time.likely),
        f'{ms(p.time.floor)} – {ms(p.time.upper)}',
        ms(p.time.exchange),
        f'{p.rows * p.length / p.time.likely:,.0f}',
        *_mfu_cells(found.slice_, p),
      )
  return table


def _remarks(found):
  for p in found.phases:
    if not p.time:
      continue
    for opcode, group, times, moved, seconds in collectives(found.slice_, p):
      yield (
        f'phase {p.index}: {opcode} over {group} devices, {times} times, {moved / 1e6:,.1f} MB, '
        f'{1e3 * seconds:.2f} ms per step'
      )
    bare = [
      (name, times, moved)
      for name, times, moved in p.reading.without_estimate()
      if moved > 0.005 * p.reading.hbm
    ]
    if bare:
      parts = ', '.join(
        f'{name} ({times} times, {moved / 1e6:,.0f} MB)' for name, times, moved in bare
      )
      yield f'phase {p.index}: without an estimate, charged by bytes: {parts}'
    if p.epochs is not None:
      what = 'corpus' if found.runs is None else 'train rows'
      yield f'phase {p.index}: {p.epochs:.2f} epochs of the {what}'


def _whole(found):
  run = found.run
  many = found.request.preemptions
  lost = (
    f', of it {_span(run.lost_seconds)} lost to {many} preemption{"s" * (many > 1)}'
    if many
    else ', no preemption'
  )
  least, most = _span(86400 * run.least_days), _span(86400 * run.most_days)
  whole = 'whole run'
  if found.runs:
    number, at_once, _ = found.runs
    own = f', {at_once} at a time, each on its own device' if at_once > 1 else ''
    whole = f'{number} run{"s" * (number > 1)}{own}, without compilation and scoring'
  yield rich.text.Text(
    f'{whole}: {_span(86400 * run.days)} (bounds {least} – {most}){lost}', 'bold'
  )
  if run.dollars is None:
    yield '--price DOLLARS (per chip and hour) gives the cost'
  else:
    price, least, most = found.request.price, _money(run.least_dollars), _money(run.most_dollars)
    said = f'at {price:.2f} dollars per chip and hour: {_money(run.dollars)} dollars'
    yield rich.text.Text(f'{said} (bounds {least} – {most})', 'bold')


def _span(seconds) -> str:
  for unit, size in (('days', 86400), ('hours', 3600), ('minutes', 60)):
    if seconds >= 0.1 * size:
      return f'{seconds / size:.2f} {unit}'
  return f'{seconds:.2f} seconds'


def _money(dollars) -> str:
  return f'{dollars:,.0f}' if dollars >= 10 else f'{dollars:.2f}'
