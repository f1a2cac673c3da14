"""preflight: what it says of runs that fit, that do not, and that would fail for other reasons.
Compiles for v5e, without a chip.
"""

import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import ml_collections
import pytest
import rich.console

from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.preflight import __main__ as command
from bertzoo_jax.preflight import compiling
from bertzoo_jax.preflight import readiness
from bertzoo_jax.preflight import report
from bertzoo_jax.preflight import verdict
from bertzoo_jax.tpu import chips
from bertzoo_jax.tpu import estimate
from bertzoo_jax.tpu import hlo
from bertzoo_jax.tpu import program
from bertzoo_jax.training import workdir as workdirs
from configs import bert
from configs import electra
from configs import macbert
from configs import parts

ROOT = pathlib.Path(__file__).parents[1]

CONFIG = """
from configs import parts

def get_config(argument=None):
  return parts.experiment(
      tokenizer=parts.wordpiece(vocab_size=300), corpus=parts.corpus(held_out=0.2),
      format=parts.full_sentences(), masking=parts.token(),
      encoder=parts.transformer(num_layers=1, hidden_size=128, num_heads=2, intermediate_size=128,
                                max_positions=64),
      objective=parts.mlm(), optimizer=parts.adamw_uncorrected(),
      schedule=parts.linear_from_start(learning_rate=1e-2, warmup=3),
      length=64, batch_size=8, phases=((60, {}), (40, {})), hf='BertForMaskedLM', run=parts.run())
"""


def config(**changes):
  namespace = {}
  exec(CONFIG, namespace)
  made = namespace['get_config']()
  made.update_from_flattened_dict({k.replace('__', '.'): v for k, v in changes.items()})
  return ml_collections.ConfigDict(made).lock()


def printed(found):
  out = io.StringIO()
  report.show(found, rich.console.Console(file=out, width=150, highlight=False))
  return out.getvalue()


def codes(found):
  return [f.code for f in found.findings]


needs_libtpu = pytest.mark.skipif(
  sys.platform != 'linux' or not program.importlib.util.find_spec('libtpu'),
  reason='the TPU compiler (libtpu) is not installed',
)


# --- a run that fits ---


@needs_libtpu
def test_the_border_of_phases_is_compiled_too(monkeypatch):
  compiled = []

  def entering(before, after):
    compiled.append((before.index, after.index))
    return program.Program(None, {}, None, 99 << 30, 0.0)

  monkeypatch.setattr(program, 'entering', entering)
  found = verdict.preflight(config(run__kernels='xla'), tpu='v5e-4', largest=False)
  assert compiled == [(0, 1)] and not found.ready
  said = next(f for f in found.findings.problems if f.code == 'P09')
  assert 'Entering phase 1 needs 99.00 GiB on each device' in str(said)


@needs_libtpu
def test_a_run_that_fits_ends_with_0_and_one_json_object(tmp_path):
  (tmp_path / 'config.py').write_text(CONFIG)
  done = subprocess.run(
    [
      sys.executable,
      '-m',
      'bertzoo_jax.preflight',
      f'--config={tmp_path}/config.py',
      '--tpu=v5e-4',
      '--price=1.2',
      '--preemptions=2',
      '--json',
      f'--workdir={tmp_path}/run',
      '--config.batch_size=32',
      '--config.run.kernels=xla',
    ],
    env={
      **os.environ,
      'PYTHONPATH': str(ROOT),
      'XLA_FLAGS': '',
      'LIBTPU_INIT_ARGS': '--xla_tpu_enable_data_parallel_all_reduce_opt=true',
    },
    capture_output=True,
    text=True,
    cwd=tmp_path,
  )
  assert done.returncode == 0, done.stderr
  found = json.loads(done.stdout)
  assert found['ready'] and found['fits'] and not found['problems']
  assert [w['code'] for w in found['warnings']] == ['W01', 'W01'], (
    'four times the batch and the tokens of the file'
  )
  assert found['slice'] == dict(
    type='v5litepod-4',
    topology='v5e:2x2',
    chips=4,
    devices=4,
    hosts=1,
    hbm_usable=int(15.75 * 2**30),
  )
  first, second = found['phases']
  assert (first['steps'], second['steps'], first['rows'], first['length']) == (60, 40, 32, 64)
  assert first['compile_seconds'] == second['compile_seconds'], (
    'phases of one shape are compiled once'
  )
  assert (
    first['optimizer'] == 2 * first['parameters'] + 4 and first['peak'] > 3 * first['parameters']
  ), 'two moments for each, and their count'
  assert 0 < first['time']['floor'] < first['time']['likely'] < first['time']['upper']
  assert 0 < first['mfu'] < 1 and first['tokens_per_second'] == pytest.approx(
    32 * 64 / first['time']['likely']
  )
  summed = sum(c['bytes'] for c in first['collectives'])
  assert [c['opcode'] for c in first['collectives']] == ['all-reduce'] and first['collectives'][0][
    'group'
  ] == 4
  assert first['parameters'] <= summed <= 1.02 * first['parameters'], (
    'the gradients in float32, each once'
  )
  assert found['run']['dollars'] == pytest.approx(found['run']['days'] * 24 * 4 * 1.2)
  assert found['run']['lost_seconds'] > 2 * 600
  assert not (tmp_path / 'run').exists(), 'nothing is written'
  assert [line.partition(':')[0] for line in found['to_make_it_faster']] == [
    '--config.run.kernels=auto'
  ]


@pytest.mark.parametrize(
  'changes, lines',
  [(dict(run__unroll=0), 0), (dict(run__unroll=24), 0), (dict(), 1), (dict(run__kernels='xla'), 2)],
)
def test_what_makes_steps_faster_is_said_until_it_is_set(changes, lines):
  found = report.faster(config(encoder__num_layers=2, **changes))
  assert len(found) == lines and all(line.startswith('--config.run.') for line in found)


def test_a_reading_that_missed_something_is_doubted():
  time = estimate.Time(1.0, 1.0, 1.0, 0.0, ())
  once = hlo.Cost('a', 'fusion', '', 12, 1, 1, 10.0, '')
  whole = hlo.Reading([once], [], [], [], 10.0)
  assert not compiling.doubts(whole, time, {'flops': 12.0}, 120.0)
  [said] = compiling.doubts(
    whole._replace(costs=[once._replace(times=1)]), time, {'flops': 12.0}, 120.0
  )
  assert 'the model needs 120' in said, 'a loop counted once'
  [said] = compiling.doubts(whole._replace(visited=5.0), time, {'flops': 12.0}, 120.0)
  assert 'own count' in said, 'a computation that was not reached'
  assert 'attend' in compiling.doubts(whole, time._replace(unknown=('attend',)), {}, 1.0)[0]
  assert '1 loops' in compiling.doubts(whole._replace(unknown_trips=['w']), time, {}, 1.0)[0]


def said_of_a_run(steps=10**6, preemptions=0, warnings=0):
  slice_, findings = chips.of_type('v5e-4'), readiness.Findings()
  run = estimate.run(
    [(steps, estimate.Time(0.1, 0.2, 0.4, 0.0, ()))],
    slice_,
    price=None,
    preemptions=preemptions,
    save_minutes=20,
    compile_seconds=60,
  )
  for n in range(warnings):
    findings.add('W01', f'warning {n}')
  fits = program.Program(None, {}, program.Memory(1, 1), None, 1.0)
  phase = compiling.Phase(0, steps, 8, 64, fits, 1, 1, 1, None, None, 1.0, [], [], None, None)
  return printed(
    verdict.Preflight(config(), slice_, {}, [phase], run, None, preemptions, '', [], None, findings)
  )


def test_the_whole_run_is_said_in_a_unit_that_shows_it_with_what_is_lost_in_it():
  assert 'whole run: 2.31 days (bounds 1.16 days – 4.63 days), no preemption' in said_of_a_run()
  assert ', of it 0.95 hours lost to 3 preemptions' in said_of_a_run(
    preemptions=3
  ) and 'lost to 1 preemption\n' in said_of_a_run(preemptions=1)
  assert 'whole run: 0.20 seconds' in said_of_a_run(
    steps=1
  ) and '(bounds 0.10 seconds – 0.40 seconds)' in said_of_a_run(steps=1)
  assert (
    'whole run: 3.33 minutes' in said_of_a_run(steps=1000) and '--price DOLLARS' in said_of_a_run()
  )


def test_warnings_are_counted_at_the_end():
  assert 'it fits, and nothing is wrong.' in said_of_a_run()
  assert 'it fits; 2 warnings.' in said_of_a_run(
    warnings=2
  ) and 'it fits; 1 warning.' in said_of_a_run(warnings=1)


@needs_libtpu
def test_a_doubt_of_several_phases_is_said_once(monkeypatch):
  monkeypatch.setattr(compiling, 'doubts', lambda *_: ['a loop'])
  found = verdict.preflight(
    config(phases=((60, {'length': 32}), (40, {})), run__kernels='xla'), topology='v5e:2x2'
  )
  assert [f.sentence for f in found.findings] == [
    'Phases 0, 1: a loop; take the times as lower bounds.'
  ]


@pytest.mark.parametrize(
  'flags',
  [
    ['--config.masking.rat=1', '--tpu=v5e-4'],
    pytest.param(['--nolargest', '--confirm', '--tpu=v5e-4'], marks=pytest.mark.slow),
    pytest.param([], marks=pytest.mark.slow),
  ],
)
def test_a_wrong_command_line_is_json_too(flags):
  done = subprocess.run(
    [
      sys.executable,
      '-m',
      'bertzoo_jax.preflight',
      '--config=configs/bert.py:tiny',
      '--json',
      *flags,
    ],
    capture_output=True,
    text=True,
    cwd=ROOT,
  )
  [problem] = json.loads(done.stdout)['problems']
  assert (
    done.returncode == 2
    and problem['code'] == 'P00'
    and done.stderr == f'error: {problem["sentence"]}\n'
  )


@needs_libtpu
def test_what_needs_no_compiler_is_said_before_the_compilation_and_sigterm_ends_it_with_one_line(
  tmp_path,
):
  process = subprocess.Popen(
    [
      *(sys.executable, '-m', 'bertzoo_jax.preflight', '--config=configs/bert.py:base'),
      *('--tpu=v5e-8', '--json', f'--corpus={tmp_path}/none', f'--workdir={tmp_path}/run'),
    ],
    env={**os.environ, 'XLA_FLAGS': ''},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    cwd=ROOT,
  )
  said = []
  while not said or 'compiling' not in said[-1]:
    said.append(process.stderr.readline())
    assert said[-1], said
  assert 'P06' in said[0] and 'phase 0: compiling' in said[-1] and len(said) == 2, said
  time.sleep(1)  # into the compilation, which takes half a minute
  process.send_signal(signal.SIGTERM)
  out, rest = process.communicate(timeout=30)
  assert process.returncode == 143
  assert rest == 'error: Ended by SIGTERM before all was compiled. Nothing was written.\n'
  [problem] = json.loads(out)['problems']
  assert problem['code'] == 'P00' and 'SIGTERM' in problem['sentence']


# --- memory ---


@needs_libtpu
def test_each_side_of_the_limit_of_memory():
  # The state is 12 bytes a parameter (float32 and two moments), and here nearly all of it are words
  # of 1,024 numbers.
  wide = lambda words: config(
    tokenizer__vocab_size=words,
    encoder__hidden_size=1024,
    phases=((50, {}),),
    batch_size=4,
    run__kernels='xla',
  )
  fits = verdict.preflight(wide(500_000), topology='v5e:2x2')
  assert fits.ready and 0.5 < fits.phases[0].program.peak / fits.slice_.chip.usable < 1.0
  assert fits.phases[0].parameters + fits.phases[0].optimizer == pytest.approx(
    12 * 1024 * 500_000, rel=0.02
  )
  beyond = verdict.preflight(wide(1_000_000), topology='v5e:2x2')
  assert not beyond.fits and codes(beyond) == ['P09'] and beyond.run is None
  assert beyond.phases[0].program.peak > beyond.slice_.chip.usable
  assert 'no smaller batch fits' in beyond.findings[0].sentence
  assert any('run.mesh' in line for line in beyond.remedies), 'a large state is to be split'
  text = printed(beyond)
  assert 'P09' in text and 'to make it fit' in text and '1 problem' in text
  json.dumps(report.as_dict(beyond))


@needs_libtpu
def test_a_state_that_no_batch_makes_fit_is_said_without_a_compilation(monkeypatch):
  asked = linear(monkeypatch, per_row=0)
  found = verdict.preflight(
    config(encoder__num_layers=1000, encoder__hidden_size=8192), topology='v5e:2x2'
  )
  assert codes(found) == ['P09'] and not asked
  assert 'no smaller batch fits' in found.findings[0].sentence and found.remedies
  assert '1 problem' in printed(found)
  json.dumps(report.as_dict(found))


def test_a_huge_network_is_a_problem_of_the_config_and_nothing_is_built():
  found = verdict.preflight(config(encoder__num_layers=10**9, batch_size=-8), tpu='v5e-4')
  assert codes(found)[0] == 'P01' and 'config.batch_size is -8' in found.findings[0].sentence


def linear(monkeypatch, per_row, fixed=1 << 30, usable=chips.CHIPS['v5e'].usable, bend=1.0):
  """Replaces the compiler by a line in the rows; from the limit on it is a better one, as the
  compiler's is. Returns the rows it was asked for.
  """
  asked = []

  def compiled(config, phase_run):
    asked.append(phase_run.rows)
    need = fixed + per_row * phase_run.rows
    if need > usable:
      return program.Program(None, {}, None, int(usable + bend * (need - usable)), 1.0)
    return program.Program(None, {}, program.Memory(0, need), None, 1.0)

  monkeypatch.setattr(compiling, '_program', compiled)
  return asked


@needs_libtpu
@pytest.mark.parametrize('bend', [1.0, 0.2])
def test_the_largest_batch_is_found_from_two_smaller_ones(monkeypatch, bend):
  asked = linear(monkeypatch, per_row=1 << 24, bend=bend)
  found = verdict.preflight(config(batch_size=4096), topology='v5e:2x2')
  most = int((found.slice_.chip.usable - (1 << 30)) / (1 << 24)) // 4 * 4
  assert (
    found.phases[0].largest == (most, None) and f'about {most:,} rows' in found.findings[0].sentence
  )
  assert len(asked) == 3 and max(asked[1:]) < most, (
    'the batch that was refused is not a point of the line'
  )
  assert any(
    f'run.accumulation={2 ** (4096 // most).bit_length()}:' in line for line in found.remedies
  )
  assert any(
    line.startswith(
      f'--config.batch_size={most}: another experiment, scale the learning rate with it'
    )
    for line in found.remedies
  )
  assert all('enough alone, by' in line or 'may not be' in line for line in found.remedies)
  assert any('--tpu=v5litepod-32: 128 rows per device' in line for line in found.remedies), (
    'a slice by its name'
  )
  assert not any('run.mesh' in line for line in found.remedies), (
    'the state is not what does not fit'
  )


@needs_libtpu
def test_a_search_that_is_not_waited_for_loses_nothing_of_what_was_found(monkeypatch):
  asked = linear(monkeypatch, per_row=1 << 24)
  line, said = compiling._program, []

  def found(compiled, **options):
    def interrupted(config, phase_run):
      if len(asked) == compiled:
        raise KeyboardInterrupt
      return line(config, phase_run)

    asked.clear()
    monkeypatch.setattr(compiling, '_program', interrupted)
    return verdict.preflight(
      config(batch_size=4096), topology='v5e:2x2', say=said.append, **options
    )

  nothing = found(1)
  assert codes(nothing) == ['P09'] and nothing.phases[0].largest is None and nothing.remedies
  assert any(
    'does not fit (65.00 GiB on each device, and v5e gives 15.75)' in line for line in said
  )
  for confirm in (False, True):
    first = found(2, confirm=confirm)
    assert first.phases[0].largest == (asked[1], asked[1]) and any(
      f'batch_size={asked[1]}:' in line for line in first.remedies
    )
  second = found(3, confirm=True)
  estimated, seen = second.phases[0].largest
  assert 0 < seen < estimated and seen == asked[2], 'what was compiled before is not lost'
  assert (
    f'{seen:,} rows per batch fit, compiled and seen (the estimate was {estimated:,})'
    in second.findings[0].sentence
  )
  assert found(None, largest=False).phases[0].largest is None and len(asked) == 1


@needs_libtpu
def test_only_the_phase_that_needs_most_is_looked_at_for_a_batch(monkeypatch):
  asked = linear(monkeypatch, per_row=1 << 24)
  said = []
  found = verdict.preflight(
    config(batch_size=4096, phases=((60, {'length': 32}), (40, {}))),
    topology='v5e:2x2',
    say=said.append,
  )
  assert len(asked) == 4 and codes(found) == ['P09', 'P09'], (
    'each phase, and two smaller batches of one'
  )
  assert sum(p.largest is not None for p in found.phases) == 1 and any(
    'looking for the largest batch' in line for line in said
  )


@needs_libtpu
def test_a_phase_with_a_batch_of_its_own_is_judged_by_it_and_mended_in_the_phase(monkeypatch):
  asked = linear(monkeypatch, per_row=1 << 24)
  own = {'batch_tokens': 4096 * 64, 'run.accumulation': 2}
  found = verdict.preflight(config(phases=((60, {}), (40, own))), topology='v5e:2x2')
  assert [(p.rows, p.program.fits) for p in found.phases] == [(8, True), (4096, False)]
  most, _ = found.phases[1].largest
  assert asked[:2] == [8, 4096] and 8 < most < 4096 and most % 8 == 0
  advice = '\n'.join(found.remedies)
  assert 'run.accumulation=16 in phase 1 of the config: the same update' in advice
  assert f'batch_tokens={most * 64} in phase 1 of the config: another experiment' in advice
  assert '--config.' not in advice.replace('--config.run.', '')


@needs_libtpu
@pytest.mark.parametrize(
  'mesh', [(-1, 1, 1), pytest.param((1, 4, 1), marks=pytest.mark.slow)], ids=str
)
def test_what_cannot_be_enough_is_not_advised(monkeypatch, mesh):
  linear(monkeypatch, per_row=1 << 24)
  found = verdict.preflight(
    config(batch_size=1 << 18, run__dtype='float32', run__accumulation=2, run__mesh=mesh),
    topology='v5e:2x2',
  )
  text = '\n'.join(found.remedies)
  if mesh == (1, 4, 1):
    assert 'exchange grows' in text, 'gradients that are split are summed in each microbatch'
    return
  assert 'remat' not in text and 'bfloat16' not in text and 'mesh' not in text
  assert 'microbatches in turn, not 2' in text and 'exchange grows' not in text


@pytest.mark.parametrize(
  'needed, shape, said',
  [(20, '(-1, 2, 1)', '(enough alone'), (60, '(-1, 4, 1)', '(may not be enough alone')],
)
def test_a_state_that_does_not_fit_is_split_over_as_many_devices_as_that_takes(needed, shape, said):
  refused = program.Program(None, {}, None, needed * chips.GIB, 1.0)
  phase = compiling.Phase(
    0, 1, 8, 64, refused, 4 * chips.GIB, 8 * chips.GIB, 1, None, None, 1.0, [], [], (0, None), None
  )
  mesh = type('Mesh', (), dict(shape=dict(data=4, fsdp=1, tensor=1), size=4))
  [line] = report.remedies(config(run__dtype='bfloat16'), [phase], mesh, chips.of_type('v5e-4'))
  assert f"--config.run.mesh='{shape}'" in line and said in line, 'nothing else helps'


def test_there_is_always_something_to_try_and_never_what_keeps_more():
  refused = program.Program(None, {}, None, 20 * chips.GIB, 1.0)
  phase = compiling.Phase(
    0, 1, 8, 64, refused, 5 * chips.GIB, 10 * chips.GIB, 1, None, None, 1.0, [], [], (0, None), None
  )
  mesh = type('Mesh', (), dict(shape=dict(data=1, fsdp=4, tensor=1)))
  lines = lambda phase, **changes: report.remedies(
    config(**changes), [phase], mesh, chips.of_type('v5e-4')
  )
  [line] = lines(phase)
  assert 'a larger slice than v5litepod-4' in line and 'may not' in line
  [line] = [
    x
    for x in lines(
      phase._replace(parameters=chips.GIB, optimizer=chips.GIB), run__remat='feed_forward'
    )
    if 'remat' in x
  ]
  assert 'run.remat=full' in line and 'sublayers' not in line


def test_no_larger_slice_is_named_for_a_mesh_that_would_not_grow_with_it():
  phase = compiling.Phase(
    0,
    1,
    64,
    64,
    program.Program(None, {}, None, 20 * chips.GIB, 1.0),
    1,
    1,
    1,
    None,
    None,
    1.0,
    [],
    [],
    (32, None),
    None,
  )
  mesh = type('Mesh', (), dict(shape=dict(data=4, fsdp=1, tensor=1), size=4))
  lines = lambda **changes: ' '.join(
    report.remedies(config(batch_size=64, **changes), [phase], mesh, chips.of_type('v5e-4'))
  )
  assert '--tpu=v5litepod-8: 8 rows per device, of which 8 fit' in lines() and '--tpu' not in lines(
    run__mesh=(4, 1, 1)
  )


@needs_libtpu
def test_with_confirm_the_batch_is_one_that_was_seen_to_fit(monkeypatch):
  asked = linear(monkeypatch, per_row=1 << 24)
  found = verdict.preflight(config(batch_size=4096), topology='v5e:2x2', confirm=True)
  estimated, seen = found.phases[0].largest
  assert seen == estimated == asked[-1] and 'compiled and seen' in found.findings[0].sentence


@needs_libtpu
def test_a_line_that_promised_too_much_is_corrected_by_confirm(monkeypatch):
  asked = linear(monkeypatch, per_row=1 << 24, usable=chips.CHIPS['v5e'].usable - (1 << 28))
  estimated, seen = (
    verdict.preflight(config(batch_size=4096), topology='v5e:2x2', confirm=True).phases[0].largest
  )
  assert seen < estimated and seen in asked and estimated in asked


# --- everything else that would fail ---


@needs_libtpu
def test_all_problems_are_listed_at_once(tmp_path, monkeypatch):
  (tmp_path / 'file').write_text('')
  monkeypatch.setenv('LIBTPU_INIT_ARGS', '--xla_no_such_flag=true')
  wrong = config(run__mesh=(3, 1, 1), run__dtype='float17', objective=parts.replaced_token())
  found = verdict.preflight(
    wrong,
    tpu='v5e-4',
    corpus=str(tmp_path / 'none'),
    workdir=str(tmp_path / 'file' / 'run'),
    recipe=config(batch_size=64),
  )
  assert codes(found) == ['P01', 'P05', 'W01', 'W01', 'P04', 'P06', 'P11']
  assert all(re.search(r':|Did you mean|There is', f.sentence) for f in found.findings), (
    'each with its remedy'
  )
  assert 'LIBTPU_INIT_ARGS' not in os.environ
  text = printed(found)
  assert all(code in text for code in codes(found)) and '5 problems' in text
  assert not found.ready and not report.as_dict(found)['phases']


@pytest.mark.parametrize(
  'flag, name, meant',
  [
    ('tpu', 'v5e8', '--tpu=v5e-8'),
    ('tpu', 'v5litepod8', '--tpu=v5litepod-8'),
    ('tpu', 'v4_32', '--tpu=v4-32'),
    ('tpu', 'v4-33', '--tpu=v4-32'),
    ('topology', 'v5e8', '--tpu=v5e-8'),
    ('topology', 'v4-2x2x4', '--topology=v4:2x2x4'),
  ],
)
def test_a_misspelt_slice_is_told_which_one_was_meant(flag, name, meant):
  [problem] = verdict.preflight(config(), **{flag: name}).findings.problems
  assert problem.code == 'P02' and f'Did you mean {meant}?' in problem.sentence


def test_a_misspelt_type_is_a_problem_beside_the_others(tmp_path):
  found = verdict.preflight(config(), tpu='v5e-5', corpus=str(tmp_path))
  assert (
    codes(found) == ['P02', 'P06']
    and 'v5e-4' in found.findings[0].sentence
    and found.slice_ is None
  )
  assert '2 problems' in printed(found)


def test_without_the_compiler_one_sentence_says_where_to_run(monkeypatch):
  monkeypatch.setattr(program.platform, 'system', lambda: 'Darwin')
  found = verdict.preflight(config(), tpu='v5e-4')
  assert (
    codes(found) == ['P03']
    and 'Linux on x86-64 only' in found.findings[0].sentence
    and not found.ready
  )


def test_parts_that_do_not_go_together_are_said_without_chips(monkeypatch):
  monkeypatch.setattr(program.platform, 'system', lambda: 'Darwin')
  found = verdict.preflight(config(objective=parts.mlm_pair()), tpu='v5e-4')
  assert codes(found) == ['P03', 'P08'] and 'pair_labels' in found.findings[1].sentence


@needs_libtpu
@pytest.mark.parametrize(
  'changes, code, words',
  [
    (
      dict(batch_size=6),
      'P04',
      '1 microbatch for 4 devices along data and fsdp: take a multiple of 4',
    ),
    (dict(length=128), 'P01', 'max_positions'),
    (dict(masking__name='tokn'), 'P08', "Did you mean 'token'"),
  ],
)
def test_what_pretrain_refuses_is_refused_here(changes, code, words):
  found = verdict.preflight(config(**changes), tpu='v5e-4')
  assert codes(found)[0] == code and words in found.findings[0].sentence


@needs_libtpu
def test_flags_that_libtpu_does_not_take_are_found_in_another_process():
  assert 'xla_no_such_flag' in program.check_flags('--xla_no_such_flag=true')


def test_one_of_type_and_topology_is_needed():
  for both in ({}, dict(tpu='v5e-4', topology='v5e:2x2')):
    with pytest.raises(errors.UserError, match='either --tpu'):
      verdict.preflight(config(), **both)


# --- text, workdir, recipe ---


@pytest.mark.parametrize(
  'made',
  [
    bert.get_config('base'),
    electra.get_config('tiny_two_stage'),
    macbert.get_config('tiny'),
    config(),
  ],
)
def test_the_config_alone_tells_the_features_of_its_rows(made):
  found = readiness.Findings()
  text = readiness.text(found, ml_collections.ConfigDict(made).lock(), None, 1)
  for phase in configuration.phases(made):
    features = text.data.phase(phase).features
    assert (
      features['input_ids'][0] == (made.batch_size, phase.config.length)
      and 'masked_positions' in features
    )
  assert not found and text.data.vocab_size == made.tokenizer.vocab_size


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  from bertzoo_jax import prepare

  folder = tmp_path_factory.mktemp('text')
  words = (ROOT / 'data/sample/time_machine.txt').read_text().split()[1000:]
  (folder / 'text.txt').write_text(
    '\n\n'.join(' '.join(words[i : i + 80]) for i in range(0, 960, 80))
  )
  prepare.prepare(
    config(), [str(folder / 'text.txt')], str(folder / 'corpus'), workers=1, say=lambda line: None
  )
  return folder / 'corpus'


def test_a_corpus_gives_epochs_and_its_own_warnings(corpus):
  found = readiness.Findings()
  text = readiness.text(found, config(phases=((40000, {}),)), str(corpus), 1)
  assert text.rows[0] > 4 and text.hash and text.tokens > 500
  assert [f.code for f in found] == ['W02'] and 'times' in found[0].sentence
  few = readiness.Findings()
  readiness.text(few, config(batch_size=4096), str(corpus), 1)
  assert 'W03' in [f.code for f in few] and any('rows repeat in a batch' in f.sentence for f in few)


def test_a_vocabulary_size_that_only_a_corpus_tells_is_a_problem_without_one():
  found = verdict.preflight(config(tokenizer__vocab_size='auto'), tpu='v5e8')
  assert codes(found) == ['P02', 'P06'] and 'give --corpus' in found.findings[1].sentence


def test_a_corpus_of_another_vocabulary_is_a_problem_and_the_rest_is_still_looked_at(corpus):
  found = readiness.Findings()
  text = readiness.text(found, config(tokenizer__vocab_size=301), str(corpus), 1)
  assert [f.code for f in found] == ['P06'] and 'vocabulary of 300' in found[0].sentence
  assert text.data.vocab_size == 300


def test_an_object_store_that_does_not_answer_is_a_problem_beside_the_others(monkeypatch):
  def refuse(path):
    raise ConnectionError('no such host')

  monkeypatch.setattr(readiness.corpora, 'read_manifest', refuse)
  monkeypatch.setattr(readiness.workdirs, 'check_writable', refuse)
  monkeypatch.setattr(readiness.storage, 'path', lambda p: pathlib.Path('/nowhere'))
  monkeypatch.setattr(readiness.storage, 'is_remote', lambda p: True)
  found = readiness.Findings()
  text = readiness.text(found, config(), 'gs://bucket/corpus', 1)
  readiness.check_workdir(found, config(), 'gs://bucket/run', text, 1)
  assert [f.code for f in found] == [
    'P14',
    'P14',
  ] and 'gs://bucket/corpus cannot be asked' in found[0].sentence
  assert text.data.vocab_size == 300


def test_a_workdir_with_another_run_or_without_room_is_a_problem(tmp_path, corpus, monkeypatch):
  found = readiness.Findings()
  text = readiness.text(found, config(), str(corpus), 1)
  readiness.check_workdir(found, config(), str(tmp_path / 'a' / 'b'), text, 1 << 20)
  assert not found and not (tmp_path / 'a').exists()
  workdirs.describe(tmp_path, config(), {'hash': text.hash}, lambda folder: None)
  readiness.check_workdir(found, config(run__save_minutes=7.0), str(tmp_path), text, 1 << 20)
  assert not found, 'machinery may change'
  readiness.check_workdir(found, config(batch_size=16), str(tmp_path), text, 1 << 20)
  assert [f.code for f in found] == ['P12'] and 'batch_size' in found[0].sentence
  monkeypatch.setattr(
    readiness.shutil, 'disk_usage', lambda path: type('Usage', (), dict(free=5 << 20))
  )
  found.clear()
  readiness.check_room(found, tmp_path, 1 << 20, keep=3, for_good=0)
  assert not found, 'five checkpoints of a mebibyte'
  readiness.check_room(found, tmp_path, 1 << 20, keep=3, for_good=1)
  assert [f.code for f in found] == ['P13']


def test_a_folder_of_a_corpus_is_no_workdir(corpus):
  found = readiness.Findings()
  readiness.check_workdir(
    found, config(), str(corpus), readiness.text(found, config(), None, 1), None
  )
  assert 'P11' in [f.code for f in found]


def test_the_recipe_is_the_file_without_what_the_command_sets():
  line = [
    'preflight',
    '--config=configs/bert.py:tiny,steps=26,masking=span',
    '--config.batch_size=512',
  ]
  made = command.recipe(line)
  assert (
    made.batch_size == 64
    and made.masking.name == 'token'
    and made.phases == bert.get_config('tiny').phases
  )
  assert (
    command.recipe(['preflight', '--config', 'configs/bert.py:base', '--tpu=v4-8']).batch_size
    == 256
  )
  found = readiness.Findings()
  readiness.check_recipe(found, config(batch_size=16), config())
  assert not found, 'twice is near enough'
  readiness.check_recipe(found, config(batch_size=24), config())
  assert [f.code for f in found] == ['W01', 'W01'] and 'learning_rate' in found[0].sentence
