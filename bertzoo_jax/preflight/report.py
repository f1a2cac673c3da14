"""What preflight found, in words and tables, and as JSON."""

import contextlib
import math

import rich.console
import rich.table
import rich.text

from bertzoo_jax import assembly
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.model import stack
from bertzoo_jax.tpu import chips
from bertzoo_jax.tpu import estimate
from bertzoo_jax.training import sharding

_POLICIES = list(stack.REMAT)  # each saves less than the one before
_REMAT = 1 / 16  # of a layer's activations is its input, which is all that remat=full keeps
_HALF = 0.4  # what bfloat16 leaves of activations, and some of the compiler's own savings


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
    'run': found.run
    and {**found.run._asdict(), 'price': found.price, 'preemptions': found.preemptions},
    'libtpu_init_args': found.flags,
    'bucket_region': found.region,
    'to_make_it_fit': found.remedies,
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
    largest_batch=p.largest and p.largest[0],
    largest_batch_confirmed=p.largest and p.largest[1],
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


def remedies(config, phases, mesh, slice_) -> list[str]:
  """What would make it fit, estimated, none compiled: first what is enough alone, then what may be;
  what cannot be is left out.
  """
  tight = [p for p in phases if not p.program.fits]
  if not tight:
    return []
  enough, perhaps = [], []
  worst, usable = max(tight, key=lambda p: p.program.needed), slice_.chip.usable
  state = worst.parameters + worst.optimizer
  room = usable - state - worst.parameters  # the gradients are there with any batch
  # what activations must shrink to
  share = room / max(worst.program.needed - state - worst.parameters, 1)
  rows = min(
    (p.largest[0] if p.largest[1] is None else p.largest[1] for p in tight if p.largest), default=0
  )
  if rows:
    enough += [
      line
      for line in (
        _accumulation(config, rows, worst, room, mesh, slice_),
        _larger(config, rows, worst, mesh, slice_),
      )
      if line
    ]
  if split := _split(worst, room, mesh, usable):
    (enough if split[1] else perhaps).append(split[0])
  if rows:
    enough.append(
      f'{_batch(config, worst, rows)}: another experiment, scale the learning rate with it'
    )
  if config.run.remat != 'full' and share > _REMAT:
    policies = ' or '.join(
      f'--config.run.remat={p}' for p in _POLICIES[_POLICIES.index(config.run.remat) + 1 :]
    )
    perhaps.append(
      f'{policies}: activations are computed again in the backward pass (about a third more FLOPs '
      'with full)'
    )
  if config.run.dtype == 'float32' and share > _HALF:
    perhaps.append('--config.run.dtype=bfloat16: products and what is kept of them take half')
  if not enough + perhaps:
    perhaps.append(
      f'a larger slice than {slice_.accelerator_type}, with run.mesh along fsdp where the state '
      'itself is too large'
    )
  return [f'{line} (enough alone, by the estimate)' for line in enough] + [
    f'{line} (may not be enough alone)' for line in perhaps
  ]


def _accumulation(config, rows, worst, room, mesh, slice_):
  """The remedy of smaller microbatches: a sentence, or None if no number of them fits."""
  planned = configuration.phases(config)
  now = planned[worst.index].config.run.accumulation
  if now == 1:  # accumulation adds a sum of gradients to the memory
    rows = int(rows * (room - worst.parameters) / room) if room > worst.parameters else 0
  if not rows:
    return None
  own = 'run.accumulation' in dict(config.phases[worst.index][1])
  # rows per batch of each phase that reads this field
  sharing = [
    p.config.batch_size
    for p, (_, overrides) in zip(planned, config.phases)
    if p.index == worst.index or not own and 'run.accumulation' not in dict(overrides)
  ]
  for more in range(math.ceil(worst.rows / rows) * now, min(sharing) + 1):
    with contextlib.suppress(errors.UserError):
      for batch_size in sharing:
        sharding.check_batch(batch_size, more, mesh, slice_.hosts)
      summed = (
        '; gradients are summed over the chips in every one, so exchange grows with them'
        if mesh.shape['data'] < mesh.size
        else ''
      )
      return (
        f'{_set(config, worst, "run.accumulation", more)}: the same update from {more} '
        f'microbatches in turn, not {now}; activations shrink to about 1/{more / now:.3g}{summed}'
      )
  return None


def _batch(config, phase, rows) -> str:
  """How a user sets the rows of a phase's batch, as text."""
  overrides = dict(config.phases[phase.index][1])
  in_tokens = 'batch_tokens' in overrides or 'batch_size' not in overrides and config.batch_tokens
  if in_tokens:
    return _set(config, phase, 'batch_tokens', rows * phase.length)
  return _set(config, phase, 'batch_size', rows)


def _set(config, phase, key, value) -> str:
  """How a user sets a field of a phase, as text: in the phase if it overrides the field, else on
  the command line.
  """
  if key in dict(config.phases[phase.index][1]):
    return f'{key}={value} in phase {phase.index} of the config'
  return f'--config.{key}={value}'


def _larger(config, rows, worst, mesh, slice_):
  """The smallest usual slice whose devices have no more rows than fit on one here."""
  chip, here, planned = slice_.chip, sharding.rows_over(mesh), configuration.phases(config)
  if -1 not in config.run.mesh[:2]:
    return None
  for power in range(chip.most.bit_length()):
    with contextlib.suppress(errors.UserError):
      larger = chips.of_type(f'{chip.name}-{2**power * chip.counts}')
      over = larger.devices // mesh.shape['tensor']
      if (
        over > here
        and worst.rows * here <= rows * over
        and not any(p.config.batch_size % (over * p.config.run.accumulation) for p in planned)
      ):
        return (
          f'--tpu={larger.accelerator_type}: {worst.rows // over} rows per device, of which '
          f'{rows // here} fit'
        )
  return None


def _split(worst, room, mesh, usable):
  """(line, whether it is enough) of the fewest devices along fsdp that are; where the state does
  not fit and none are, of all; or None.
  """
  whole, now, over = (
    2 * worst.parameters + worst.optimizer,
    mesh.shape['fsdp'],
    sharding.rows_over(mesh),
  )
  choices = [parts for parts in range(now + 1, over + 1) if over % parts == 0]
  enough = [
    parts for parts in choices if worst.program.needed - whole * (1 - now / parts) <= usable
  ]
  if not enough and (room > 0 or not choices):
    return None
  parts = (enough or choices[-1:])[0]
  return (
    f"--config.run.mesh='(-1, {parts}, {mesh.shape['tensor']})': parameters, gradients and "
    f'optimizer ({whole / chips.GIB:.1f} GiB per device) '
    'are split over fsdp',
    bool(enough),
  )


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
    'bertzoo_jax/tpu/estimate.py',
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
  many = found.preemptions
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
    yield rich.text.Text(
      f'at {found.price:.2f} dollars per chip and hour: {_money(run.dollars)} dollars (bounds '
      f'{_money(run.least_dollars)} – '
      f'{_money(run.most_dollars)})',
      'bold',
    )


def _span(seconds) -> str:
  for unit, size in (('days', 86400), ('hours', 3600), ('minutes', 60)):
    if seconds >= 0.1 * size:
      return f'{seconds / size:.2f} {unit}'
  return f'{seconds:.2f} seconds'


def _money(dollars) -> str:
  return f'{dollars:,.0f}' if dollars >= 10 else f'{dollars:.2f}'
