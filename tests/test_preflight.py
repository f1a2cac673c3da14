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

from bertzoo_jax import assembly
from bertzoo_jax import pretrain
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.preflight import __main__ as command
from bertzoo_jax.preflight import compiling
from bertzoo_jax.preflight import processes
from bertzoo_jax.preflight import readiness
from bertzoo_jax.preflight import report
from bertzoo_jax.preflight import verdict
from bertzoo_jax.preflight.tpu import chips
from bertzoo_jax.preflight.tpu import estimate
from bertzoo_jax.preflight.tpu import hlo
from bertzoo_jax.preflight.tpu import program
from bertzoo_jax.runs import workdir as workdirs
from configs import bert
from configs import electra
from configs import macbert
from configs import parts
from tests.test_preflight_processes import gone

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
      length=64, batch_size=8, phases=((60, {}), (40, {})), hf='BertForMaskedLM',
      run=parts.run(compile_cache=''))
"""


def config(**changes):
  namespace = {}
  exec(CONFIG, namespace)
  made = ml_collections.ConfigDict(namespace['get_config']())
  for key, value in changes.items():
    section, _, field = key.partition('__')
    if field:
      made[section][field] = value
    else:
      made[section] = value
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
  asked = []

  def compiled(jobs, **_):
    asked.extend([*job.features] for job in jobs)
    refused = program.Program(None, {}, None, 99 << 30, 0.0)
    fits = program.Program(None, {}, program.Memory(1, 1), None, 0.0)
    return [fits if len(job.features) == 1 else refused for job in jobs]

  monkeypatch.setattr(processes, 'compiled', compiled)
  found = verdict.preflight(config(run__kernels='xla'), tpu='v5e-4')
  assert asked == [[0], [0, 1]] and not found.ready, 'phases of one shape are compiled once'
  said = next(f for f in found.findings.problems if f.code == 'P09')
  assert 'Entering phase 1 needs 99.00 GiB on each device, 83.25 more than the 15.75' in str(said)


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
    verdict.Preflight(
      config(), slice_, {}, [phase], run, None, preemptions, '', None, None, findings
    )
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
    env={**os.environ, 'XLA_FLAGS': '', 'TMPDIR': str(tmp_path)},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    cwd=ROOT,
  )
  said = []
  while not said or said[-1] and 'phase 1: compiling' not in said[-1]:
    said.append(process.stderr.readline())
  # before them: what is wrong without a compilation (on a full disk one problem more)
  assert 'phase 0: compiling' in said[-2] and any('P06' in line for line in said[:-2]), said
  while not (at_work := list(tmp_path.glob('bertzoo_jax-*/*'))):
    time.sleep(0.1)  # until a compilation is under way, which takes half a minute
  process.send_signal(signal.SIGTERM)
  out, rest = process.communicate(timeout=30)
  assert process.returncode == 143
  assert rest == 'error: Ended by SIGTERM before all was compiled. Nothing was written.\n'
  [problem] = json.loads(out)['problems']
  assert problem['code'] == 'P00' and 'SIGTERM' in problem['sentence']
  assert at_work and gone(tmp_path)


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
  needed, usable = beyond.phases[0].program.peak, beyond.slice_.chip.usable
  assert needed > usable and beyond.phases[0].largest == 0, 'no batch helps'
  more = f'{(needed - usable) / chips.GIB:.2f} more than the 15.75 that v5e gives'
  assert more in beyond.findings[0].sentence
  *_, split = sorted(beyond.remedies, key=lambda r: r.fits)
  assert "--config.run.mesh='(-1, " in split.change and split.fits and split.peak < usable
  text = printed(beyond)
  assert f'{split.change}: {split.peak / chips.GIB:.2f} GiB; parameters, gradients' in text
  assert 'P09' in text and '1 problem' in text
  json.dumps(report.as_dict(beyond))


@needs_libtpu
def test_a_state_that_no_slice_holds_is_said_without_a_compilation(monkeypatch):
  asked = linear(monkeypatch, per_row=0)
  found = verdict.preflight(
    config(encoder__num_layers=1000, encoder__hidden_size=8192), topology='v5e:2x2'
  )
  assert codes(found) == ['P09'] and not asked and found.remedies == []
  assert 'nothing that was tried is enough; take a larger slice' in printed(found)
  json.dumps(report.as_dict(found))


def test_a_huge_network_is_a_problem_of_the_config_and_nothing_is_built():
  found = verdict.preflight(config(encoder__num_layers=10**9, batch_size=-8), tpu='v5e-4')
  assert codes(found)[0] == 'P01' and 'config.batch_size is -8' in found.findings[0].sentence


def linear(monkeypatch, per_row=1 << 24, fixed=1 << 30, usable=chips.CHIPS['v5e'].usable, **less):
  """Replaces the compiler by a line in the rows of a microbatch on a device, which bends down where
  it is refused, as the compiler's does. Returns the jobs that it was asked for.

  Args:
    less: {policy of remat, or a data type: what it leaves of the line}.
  """
  asked = []

  def compiled(jobs, *, whole, kept=None, known=lambda number, found: None):
    out = []
    for number, (resolved, features, _, _, devices) in enumerate(jobs):
      last = max(features)
      run, rows = resolved.phases[last].config.run, features[last]['input_ids'][0][0]
      line = per_row * rows * 4 / devices / run.accumulation
      need = fixed + line * less.get(run.remat, 1) * less.get(run.dtype, 1) * (len(features) == 1)
      asked.append(jobs[number])
      if need > usable:
        out.append(program.Program(None, {}, None, int(usable + 0.2 * (need - usable)), 1.0))
      else:
        out.append(program.Program(None, {}, program.Memory(0, int(need)), None, 1.0))
      known(number, out[-1])
    return out

  monkeypatch.setattr(processes, 'compiled', compiled)
  return asked


def rows_of(jobs):
  return [job.features[min(job.features)]['input_ids'][0][0] for job in jobs]


def changes(found, fits=True):
  return [r.change for r in found.remedies if r.fits == fits]


MOST = (int(15.75 * 2**30) - (1 << 30)) >> 24  # rows that fit on the line


@needs_libtpu
def test_the_largest_batch_is_found_and_what_else_helps_and_each_was_tried(monkeypatch):
  asked = linear(monkeypatch, full=0.1)
  found = verdict.preflight(config(batch_size=4096), topology='v5e:2x2')
  most = MOST // 4 * 4
  assert found.phases[0].largest == most and len(asked) <= 12
  assert changes(found) == [
    '--config.run.accumulation=8',
    '--tpu=v5litepod-32',
    '--config.run.remat=full',
    f'--config.batch_size={most}',
  ]
  assert changes(found, False) == [
    '--config.run.remat=sublayers',
    '--config.run.remat=feed_forward',
  ]
  assert all((r.peak <= found.slice_.chip.usable) == r.fits for r in found.remedies)
  text = printed(found)
  assert (
    f'--config.run.accumulation=8: {1 + 512 / 64:.2f} GiB; the same update from 8 micro' in text
  )
  assert 'not enough: --config.run.remat=sublayers (25.60 GiB), --config.run' in text


@needs_libtpu
@pytest.mark.parametrize(
  'usable, batch, most',
  [
    pytest.param(-(1 << 28), 4096, (880, 928), id='the line promises too much'),
    pytest.param(0, 948, (MOST // 4 * 4, 944), id='nearly fits'),
    pytest.param(-(15 << 30), 4096, (0, 0), id='none fits'),
  ],
)
def test_the_largest_batch_is_one_that_was_seen_to_fit(monkeypatch, usable, batch, most):
  asked = linear(monkeypatch, usable=chips.CHIPS['v5e'].usable + usable)
  found = verdict.preflight(config(batch_size=batch), topology='v5e:2x2')
  least, highest = most
  assert least <= found.phases[0].largest <= highest
  assert found.phases[0].largest in (0, *rows_of(asked))


@needs_libtpu
def test_ctrl_c_ends_the_search_and_what_was_found_stands(monkeypatch):
  linear(monkeypatch)
  line, said, turns = processes.compiled, [], []

  def found(compiled):
    def interrupted(jobs, **options):
      turns.append(len(jobs))
      if len(turns) > compiled:
        raise KeyboardInterrupt
      return line(jobs, **options)

    turns.clear()
    monkeypatch.setattr(processes, 'compiled', interrupted)
    return verdict.preflight(config(batch_size=4096), topology='v5e:2x2', say=said.append)

  nothing = found(1)
  assert codes(nothing) == ['P09'] and nothing.phases[0].largest == 0 and nothing.remedies == []
  assert any('phase 0 does not fit (' in line for line in said)
  first = found(2)
  assert 0 < first.phases[0].largest < MOST
  assert changes(first) == [f'--config.batch_size={first.phases[0].largest}']
  assert changes(found(5))[0] == '--config.run.accumulation=8'
  turns.clear()
  quiet = verdict.preflight(config(batch_size=4096), topology='v5e:2x2', largest=False)
  assert quiet.phases[0].largest is None and quiet.remedies is None and len(turns) == 1


@needs_libtpu
def test_only_the_phase_that_needs_most_is_mended(monkeypatch):
  asked, said = linear(monkeypatch), []
  own = {'batch_tokens': 4096 * 64, 'run.accumulation': 2}
  phases = ((60, {'batch_size': 3072}), (40, own))
  found = verdict.preflight(config(phases=phases), topology='v5e:2x2', say=said.append)
  assert codes(found) == ['P09', 'P09'] and [p.largest is None for p in found.phases] == [
    False,
    True,
  ]
  found = verdict.preflight(config(phases=((60, {}), (40, own))), topology='v5e:2x2')
  assert [(p.rows, p.program.fits) for p in found.phases] == [(8, True), (4096, False)]
  most = found.phases[1].largest
  assert most == 2 * MOST // 8 * 8 and {min(j.features) for j in asked[-6:]} == {1}
  assert 'run.accumulation=8 in phase 1 of the config' in changes(found)
  assert f'batch_tokens={most * 64} in phase 1 of the config' in changes(found)


@needs_libtpu
@pytest.mark.parametrize(
  'made, less, fits, words',
  [
    pytest.param(
      dict(batch_size=1 << 15),
      dict(full=0.1),
      '--config.run.accumulation=64',
      'not enough: --config.run.remat=sublayers',
      id='one is enough',
    ),
    pytest.param(
      dict(batch_size=4, run__mesh=(4, 1, 1), run__dtype='float32'),
      dict(full=0.5, bfloat16=0.5),
      '--config.run.remat=full --config.run.dtype=bfloat16',
      'not enough: --config.run.remat=sublayers',
      id='all together',
    ),
    pytest.param(
      dict(batch_size=4, run__mesh=(4, 1, 1)),
      dict(),
      None,
      'nothing that was tried is enough',
      id='nothing',
    ),
  ],
)
def test_what_is_not_enough_alone_is_tried_together(monkeypatch, made, less, fits, words):
  small = made['batch_size'] == 4
  linear(monkeypatch, per_row=(8 << 30) if small else 1 << 24, **less)
  found = verdict.preflight(config(**made), topology='v5e:2x2')
  assert changes(found)[:1] == [fits] * (fits is not None) and words in printed(found)


@needs_libtpu
def test_no_larger_slice_is_tried_for_a_mesh_that_would_not_grow_with_it(monkeypatch):
  linear(monkeypatch)
  tried = lambda mesh: (
    verdict.preflight(config(batch_size=1024, run__mesh=mesh), topology='v5e:2x2').remedies
  )
  assert '--tpu=v5litepod-8' in [r.change for r in tried((-1, 1, 1))]
  assert not any('--tpu' in r.change for r in tried((4, 1, 1)))
  assert any('exchanged in each' in r.note for r in tried((1, 4, 1)))


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


PAIRS = {'objective': parts.mlm_pair(), 'format': parts.segment_pairs()}


@needs_libtpu
@pytest.mark.parametrize(
  'code, changes',
  [
    ('P01', dict(seed=2**32)),
    ('P01', dict(phases=())),
    ('P01', dict(phases=((0, {}),))),
    ('P01', dict(phases=((5, {}), (5, {'lenght': 32})))),
    ('P01', dict(phases=((5, {'encoder.num_layers': 2}),))),
    ('P01', dict(batch_tokens=512)),
    ('P01', dict(run__dtype='float64')),
    ('P01', dict(run__kernels='xls')),
    ('P01', dict(run__remat='everything')),
    ('P01', dict(run__on_spike='go')),
    ('P01', dict(run__corpus_cache='tape')),
    ('P01', dict(schedule__warmup=100)),
    ('P01', dict(schedule__name='linear')),
    ('P01', dict(objective__name='mlmm')),
    ('P01', dict(optimizer__name='adam')),
    ('P01', dict(encoder__num_heads=3)),
    ('P01', dict(encoder__activation='gulu')),
    ('P01', dict(hf='BertForMaskedLMs')),
    ('P01', dict(hf='nowhere.at_all:Bert')),
    ('P01', dict(length=128)),
    ('P04', dict(batch_size=12)),
    ('P04', dict(run__accumulation=3)),
    ('P04', dict(run__mesh=(3, 1, 1))),
    ('P06', dict(tokenizer__vocab_size=301)),
    ('P06', dict(corpus__splitter='none')),
    ('P07', dict(length=2)),
    ('P08', dict(objective={'name': 'mlm', 'odd': 1})),
    ('P08', dict(optimizer={'name': 'lamb'})),
    ('P08', dict(optimizer__no_decay=('(',))),
    ('P08', dict(optimizer__rates=(('nothing', 0.5),))),
    ('P08', dict(objective=parts.mlm_pair())),
    ('P08', dict(masking=parts.permutation(num_predictions=8))),
    ('P08', {**PAIRS, 'encoder__type_vocab_size': 1}),
    ('P08', dict(phases=((5, PAIRS), (5, {})))),
  ],
)
def test_what_pretrain_refuses_is_refused_here_in_the_same_words(corpus, tmp_path, code, changes):
  made = config(**changes)
  with pytest.raises(errors.UserError) as refused:
    pretrain.pretrain(made, str(tmp_path / 'run'), corpus=str(corpus))
  found = verdict.preflight(made, tpu='v5e-8', corpus=str(corpus))
  assert found.findings.problems == [readiness.Finding(code, str(refused.value))]
  assert not (tmp_path / 'run').exists()


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
  text = readiness.text(found, assembly.resolve(ml_collections.ConfigDict(made).lock()), None, 1)
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
  text = readiness.text(found, assembly.resolve(config(phases=((40000, {}),))), str(corpus), 1)
  assert text.rows[0] > 4 and text.hash and text.tokens > 500
  assert [f.code for f in found] == ['W02'] and 'times' in found[0].sentence
  few = readiness.Findings()
  readiness.text(few, assembly.resolve(config(batch_size=4096)), str(corpus), 1)
  assert 'W03' in [f.code for f in few] and any('rows repeat in a batch' in f.sentence for f in few)


def test_a_vocabulary_size_that_only_a_corpus_tells_is_a_problem_without_one():
  found = verdict.preflight(config(tokenizer__vocab_size='auto'), tpu='v5e8')
  assert codes(found) == ['P02', 'P06'] and 'give --corpus' in found.findings[1].sentence


def test_a_corpus_of_another_vocabulary_is_a_problem_and_the_rest_is_still_looked_at(corpus):
  found = readiness.Findings()
  text = readiness.text(found, assembly.resolve(config(tokenizer__vocab_size=301)), str(corpus), 1)
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
  text = readiness.text(found, assembly.resolve(config()), 'gs://bucket/corpus', 1)
  readiness.check_workdir(found, config(), 'gs://bucket/run', text, 1)
  assert [f.code for f in found] == [
    'P14',
    'P14',
  ] and 'gs://bucket/corpus cannot be asked' in found[0].sentence
  assert text.data.vocab_size == 300


def test_a_workdir_with_another_run_or_without_room_is_a_problem(tmp_path, corpus, monkeypatch):
  found = readiness.Findings()
  text = readiness.text(found, assembly.resolve(config()), str(corpus), 1)
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
    found, config(), str(corpus), readiness.text(found, assembly.resolve(config()), None, 1), None
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
  readiness.check_recipe(
    found, configuration.phases(config(batch_size=16)), configuration.phases(config())
  )
  assert not found, 'twice is near enough'
  readiness.check_recipe(
    found, configuration.phases(config(batch_size=24)), configuration.phases(config())
  )
  assert [f.code for f in found] == ['W01', 'W01'] and 'learning_rate' in found[0].sentence
