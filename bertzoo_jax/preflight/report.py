"""The report of preflight: as JSON, or in words and tables."""

import rich.table
import rich.text

from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import screen
from bertzoo_jax.experiment import machinery
from bertzoo_jax.preflight.tpu import chips
from bertzoo_jax.preflight.tpu import estimate


def as_dict(result) -> dict:
  """A Preflight as plain values, in bytes, seconds and dollars."""
  slice_ = result.slice_
  request_fields = {name: getattr(result.request, name) for name in ('price', 'preemptions')}
  return {
    'ready': result.ready,
    'fits': result.fits,
    'slice': slice_
    and dict(
      type=slice_.accelerator_type,
      topology=slice_.topology,
      chips=slice_.chips,
      devices=slice_.devices,
      hosts=slice_.hosts,
      hbm_usable=slice_.chip.usable,
    ),
    'mesh': result.mesh,
    'machinery': {field: result.config.run[field] for field in machinery.FIELDS},
    'phases': [_phase(result, p) for p in result.phases],
    'runs': result.runs and result.runs._asdict(),
    'run': result.run and {**result.run._asdict(), **request_fields},
    'libtpu_init_args': result.flags,
    'bucket_region': result.region,
    'to_make_it_fit': [r._asdict() for r in result.remedies or ()],
    'to_make_it_faster': faster(result.request.config) if result.fits else [],
    'problems': [f._asdict() for f in result.findings.problems],
    'warnings': [f._asdict() for f in result.findings.warnings],
  }


def _phase(result, p):
  as_they_are = 'index steps rows length parameters optimizer carry epochs epochs_of replicated'
  out = {name: getattr(p, name) for name in as_they_are.split()} | dict(
    fits=p.program.fits,
    peak=p.program.peak,
    temporaries=p.program.memory and p.program.memory.temporaries,
    checkpoint=p.state,
    largest_batch=p.largest,
    microbatches=configuration.phases(result.config)[p.index].config.run.accumulation,
    model_flops=p.flops,
    compile_seconds=p.program.seconds,
    time=None,
  )
  if p.time:
    out.update(
      time=p.time._asdict(),
      tokens_per_second=p.rows * p.length / p.time.likely,
      mfu=mfu(result.slice_, p),
      program_flops=p.reading.flops,
      hbm_bytes=p.reading.hbm,
      estimated_cycles=p.reading.cycles,
      kernels=p.reading.kernels,
      without_estimate=[dict(what=n, times=t, bytes=b) for n, t, b in p.reading.without_estimate()],
      collectives=[
        dict(zip(('opcode', 'group', 'times', 'bytes', 'seconds'), row))
        for row in collectives(result.slice_, p)
      ],
    )
  return out


def faster(config) -> list[str]:
  """Settings that only shorten steps, by bench/tpu_choices.csv; [] if all of them are auto."""
  out = []
  if config.run.unroll == 1:
    out.append(
      '--config.run.unroll=auto: unrolls the loop over layers in a long run; a tenth to a fifth '
      'less time and a sixth less memory, but it compiles longer'
    )
  if config.run.kernels == 'xla':
    out.append(
      '--config.run.kernels=auto: attention with dropout, and sums with their norms, in fused '
      'kernels'
    )
  return out


def mfu(slice_, p) -> float | None:
  """Share of the devices' peak that the model's FLOPs take in the likely time, if known."""
  return p.flops and p.flops / (p.time.likely * p.devices * slice_.chip.peak)


def collectives(slice_, p) -> list[tuple]:
  """(opcode, group, times, bytes and seconds per step) of a phase, by opcode and group."""
  out = {}
  for c in p.reading.collectives:
    times, moved, seconds = out.get((c.opcode, c.group), (0, 0, 0.0))
    took = seconds + c.times * estimate.exchange_time(c, slice_)
    out[c.opcode, c.group] = times + c.times, moved + c.times * c.bytes, took
  return [(*key, *value) for key, value in sorted(out.items(), key=lambda item: -item[1][1])]


# In words and tables.


def show(result, console=None) -> None:
  console = console or screen.Console(soft_wrap=True)
  for line in _lines(as_dict(result), result.remedies is not None):
    console.print(line)


def _lines(report, searched):
  """The text of a report. searched: whether remedies were looked for."""
  if report['slice']:
    yield _heading(report)
    yield ' · '.join(f'run.{field} {value}' for field, value in report['machinery'].items())
  if report['phases']:
    yield _memory(report)
    for p in (p for p in report['phases'] if p['microbatches'] > 1):
      yield f'phase {p["index"]}: {p["microbatches"]} microbatches per step'
    if any(p['time'] for p in report['phases']):
      yield _times(report)
      yield from _remarks(report)
  if report['run']:
    yield from _whole(report)
  problems, warnings = report['problems'], report['warnings']
  if report['libtpu_init_args'] and not any(p['code'] == 'P05' for p in problems):
    yield f'LIBTPU_INIT_ARGS are in use: {report["libtpu_init_args"]}'
  if report['bucket_region']:
    yield f"the workdir's bucket lies in {report['bucket_region']}: the TPU should too."
  if searched:
    yield ''
    yield from _to_make_it_fit(report)
  if report['to_make_it_faster']:
    yield rich.text.Text('\nto make it faster:', 'bold')
    yield from (f'  {line}' for line in report['to_make_it_faster'])
  for findings, style in ((warnings, 'yellow'), (problems, 'bold red')):
    yield from (rich.text.Text(f'{f["code"]}  {f["sentence"]}', style) for f in findings)
  fine = f'it fits; {_counted(len(warnings), "warning")}.'
  fine = fine if warnings else 'it fits, and nothing is wrong.'
  verdict = fine if report['ready'] else f'{_counted(len(problems), "problem")}: it would not run.'
  yield rich.text.Text(verdict, 'bold green' if report['ready'] else 'bold red')


def _heading(report):
  s = report['slice']
  mesh = ' × '.join(f'{name} {n}' for name, n in report['mesh'].items())
  counts = ', '.join(_counted(s[f'{what}s'], what) for what in ('chip', 'host', 'device'))
  line = f'{s["type"]} ({s["topology"]}): {counts} of {_gib(s["hbm_usable"])} GiB'
  return rich.text.Text(line + (f' · mesh {mesh}' if mesh else ''), 'bold')


def _table(*columns, **fields):
  """A table with all columns aligned right but the first and `fits`."""
  right = lambda name: rich.table.Column(name, justify='right')
  return rich.table.Table(
    *(name if name in ('phase', 'fits') else right(name) for name in columns), **fields
  )


def _memory(report):
  carries = any(p['carry'] for p in report['phases'])
  table = _table(
    *('phase', 'steps', 'rows × tokens', 'params', 'optim', *['memory'] * carries),
    *('temp', 'peak', 'of HBM', 'fits'),
    title='memory of a device, GiB',
    caption='optim: state of the optimizer; temp: activations, gradients, copies'
    + "; memory: the encoder's, from step to step" * carries,
  )
  gib = lambda n: '?' if n is None else f'{n / chips.GIB:.3f}' if n < chips.GIB else _gib(n)
  for p in report['phases']:
    names = 'parameters', 'optimizer', *['carry'] * carries, 'temporaries', 'peak'
    table.add_row(
      str(p['index']),
      f'{p["steps"]:,}',
      f'{p["rows"]:,} × {p["length"]}',
      *(gib(p[name]) for name in names),
      f'{p["peak"] / report["slice"]["hbm_usable"]:.0%}',
      rich.text.Text('yes', 'green') if p['fits'] else rich.text.Text('no', 'bold red'),
    )
  return table


def _times(report):
  table = _table(
    *('phase', 'ms/step', 'bounds', 'exchange', 'tokens/s', 'MFU', 'bounds'),
    title="time, by the compiler's estimates: not measured on a chip",
    caption='exchange: part of it in collectives, if nothing overlaps; bounds: see '
    'bertzoo_jax/preflight/tpu/estimate.py',
  )
  ms = lambda seconds: f'{1e3 * seconds:,.1f}' if seconds >= 1e-3 else f'{1e3 * seconds:.3f}'
  for p in (p for p in report['phases'] if p['time']):
    floor, likely, upper = (p['time'][name] for name in ('floor', 'likely', 'upper'))
    share = 'not known', ''
    if p['mfu']:
      low, high = (p['mfu'] * likely / seconds for seconds in (upper, floor))
      share = f'{p["mfu"]:.0%}', f'{low:.0%} – {high:.0%}'
    bounds, exchange = f'{ms(floor)} – {ms(upper)}', ms(p['time']['exchange'])
    speed = f'{p["tokens_per_second"]:,.0f}'
    table.add_row(str(p['index']), ms(likely), bounds, exchange, speed, *share)
  return table


def _remarks(report):
  for p in (p for p in report['phases'] if p['time']):
    for c in p['collectives']:
      yield (
        f'phase {p["index"]}: {c["opcode"]} over {c["group"]} devices, {c["times"]} times, '
        f'{c["bytes"] / 1e6:,.1f} MB, {1e3 * c["seconds"]:.2f} ms per step'
      )
    bare = [
      f'{x["what"]} ({x["times"]} times, {x["bytes"] / 1e6:,.0f} MB)'
      for x in p['without_estimate']
      if x['bytes'] > 0.005 * p['hbm_bytes']
    ]
    if bare:
      yield f'phase {p["index"]}: no estimate, so timed by bytes: {", ".join(bare)}'
    if p['epochs'] is not None:
      what = 'corpus' if report['runs'] is None else 'train rows'
      each = ''.join(f', {n:.2f} of {name}' for name, n in p['epochs_of'].items())
      yield f'phase {p["index"]}: {p["epochs"]:.2f} epochs of the {what}{each}'


def _whole(report):
  run, runs, whole, lost = report['run'], report['runs'], 'whole run', ', no preemption'
  if preemptions := run['preemptions']:
    lost = f', of it {_span(run["lost_seconds"])} lost to {_counted(preemptions, "preemption")}'
  if runs:
    at_once = runs['at_once']
    parallel = f', {at_once} at a time, each on its own device' if at_once > 1 else ''
    whole = f'{_counted(runs["number"], "run")}{parallel}, without compilation and scoring'
  days, least, most = (_span(86400 * run[x]) for x in ('days', 'least_days', 'most_days'))
  yield rich.text.Text(f'{whole}: {days} (bounds {least} – {most}){lost}', 'bold')
  if run['dollars'] is None:
    yield '--price DOLLARS (per chip and hour) gives the cost'
  else:
    money = lambda dollars: f'{dollars:,.0f}' if dollars >= 10 else f'{dollars:.2f}'
    cost, least, most = (money(run[x]) for x in ('dollars', 'least_dollars', 'most_dollars'))
    line = f'at {run["price"]:.2f} dollars per chip and hour: {cost} dollars'
    yield rich.text.Text(f'{line} (bounds {least} – {most})', 'bold')


def _to_make_it_fit(report):
  """The changes that were tried, each with the memory that it needs."""
  needs = lambda remedy: f'{_gib(remedy["peak"])} GiB'
  if enough := [r for r in report['to_make_it_fit'] if r['fits']]:
    yield f'to make it fit (of {_gib(report["slice"]["hbm_usable"])} GiB, compiled with each):'
    for r in enough:
      yield f'  {r["change"]}: {needs(r)}' + f'; {r["note"]}' * bool(r['note'])
  else:
    yield 'to make it fit: nothing that was tried is enough; take a larger slice'
  if short := [r for r in report['to_make_it_fit'] if not r['fits']]:
    yield f'  not enough: {", ".join(f"{r['change']} ({needs(r)})" for r in short)}'


def _gib(n) -> str:
  return f'{n / chips.GIB:.2f}'


def _counted(n, what) -> str:
  return f'{n} {what}{"s" * (n != 1)}'


def _span(seconds) -> str:
  for unit, size in (('days', 86400), ('hours', 3600), ('minutes', 60)):
    if seconds >= 0.1 * size:
      return f'{seconds / size:.2f} {unit}'
  return f'{seconds:.2f} seconds'
