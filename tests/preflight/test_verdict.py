import json
import os
import signal
import subprocess
import sys
import time

import pytest

from bertzoo_jax.preflight import compiling
from bertzoo_jax.preflight import processes
from bertzoo_jax.preflight import readiness
from bertzoo_jax.preflight import report
from bertzoo_jax.preflight import verdict
from bertzoo_jax.preflight.tpu import chips
from bertzoo_jax.preflight.tpu import estimate
from bertzoo_jax.preflight.tpu import hlo
from bertzoo_jax.preflight.tpu import program
from tests.preflight import asked
from tests.preflight.test_processes import gone

COMMAND = [sys.executable, '-m', 'bertzoo_jax.preflight']


@asked.needs_libtpu
def test_the_border_of_phases_is_compiled_too(monkeypatch):
  seen = []

  def compiled(jobs, **_):
    seen.extend([*job.features] for job in jobs)
    refused = program.Program(None, {}, None, 99 << 30, 0.0)
    fits = program.Program(None, {}, program.Memory(1, 1), None, 0.0)
    return [fits if len(job.features) == 1 else refused for job in jobs]

  monkeypatch.setattr(processes, 'compiled', compiled)
  found = asked.preflight(asked.config(run__kernels='xla'), tpu='v5e-4')
  assert seen == [[0], [0, 1]] and not found.ready, 'phases of one shape are compiled once'
  said = next(f for f in found.findings.problems if f.code == 'P09')
  assert 'Entering phase 1 needs 99.00 GiB on each device, 83.25 more than the 15.75' in str(said)


@asked.needs_libtpu
def test_a_run_that_fits_ends_with_0_and_one_json_object(tmp_path):
  one = asked.CONFIG.replace('((60, {}), (40, {}))', '((60, {}),)')  # a border is compiled, too
  (tmp_path / 'config.py').write_text(one)
  line = f'--config={tmp_path}/config.py --tpu=v5e-4 --price=1.2 --preemptions=2 --json '
  line += f'--workdir={tmp_path}/run --config.batch_size=32 --config.run.kernels=xla'
  own = '--xla_tpu_enable_data_parallel_all_reduce_opt=true'
  env = {**os.environ, 'PYTHONPATH': str(asked.ROOT), 'XLA_FLAGS': '', 'LIBTPU_INIT_ARGS': own}
  words = [*COMMAND, *line.split()]
  done = subprocess.run(words, env=env, capture_output=True, text=True, cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  found = json.loads(done.stdout)
  assert found['ready'] and found['fits'] and not found['problems']
  # four times the batch and the tokens of the file
  assert [w['code'] for w in found['warnings']] == ['W01', 'W01']
  sizes = dict(chips=4, devices=4, hosts=1, hbm_usable=int(15.75 * 2**30))
  assert found['slice'] == dict(type='v5litepod-4', topology='v5e:2x2', **sizes)
  [first] = found['phases']
  assert (first['steps'], first['rows'], first['length']) == (60, 32, 64)
  # two moments for each, and their count
  assert first['optimizer'] == 2 * first['parameters'] + 4
  assert first['peak'] > 3 * first['parameters']
  likely = first['time']['likely']
  assert 0 < first['time']['floor'] < likely < first['time']['upper']
  assert 0 < first['mfu'] < 1 and first['tokens_per_second'] == pytest.approx(32 * 64 / likely)
  # the gradients in float32, each once
  [exchanged] = first['collectives']
  assert (exchanged['opcode'], exchanged['group']) == ('all-reduce', 4)
  assert first['parameters'] <= exchanged['bytes'] <= 1.02 * first['parameters']
  assert found['run']['dollars'] == pytest.approx(found['run']['days'] * 24 * 4 * 1.2)
  assert found['run']['lost_seconds'] > 2 * 600
  assert not (tmp_path / 'run').exists(), 'nothing is written'
  [faster] = found['to_make_it_faster']
  assert faster.startswith('--config.run.kernels=auto: ')


def test_settings_that_make_steps_faster_are_said_until_they_are_set():
  for changes, lines in (({}, 0), (dict(run__unroll=24), 0), (dict(run__unroll=1), 2)):
    kernels = dict(run__kernels='xla') if lines else {}
    found = report.faster(asked.config(encoder__num_layers=2, **changes, **kernels))
    assert len(found) == lines and all(line.startswith('--config.run.') for line in found)


def test_a_reading_that_missed_something_is_doubted():
  time = estimate.Time(1.0, 1.0, 1.0, 0.0, ())
  once = hlo.Cost('a', 'fusion', '', 12, 1, 1, 10.0, '')
  whole, counted = hlo.Reading([once], [], [], [], 10.0), {'flops': 12.0}
  assert not compiling.doubts(whole, time, counted, 120.0)
  for reading, at, analysis, flops, words in (
    (whole._replace(costs=[once._replace(times=1)]), time, counted, 120.0, 'the model needs 120'),
    (whole._replace(visited=5.0), time, counted, 120.0, 'own count'),  # something was not reached
    (whole, time._replace(unknown=('attend',)), {}, 1.0, 'attend'),
    (whole._replace(unknown_trips=['w']), time, {}, 1.0, '1 loops'),
  ):
    assert words in compiling.doubts(reading, at, analysis, flops)[0]


def said_of_a_run(steps=10**6, preemptions=0, warnings=0):
  slice_, findings = chips.by_type('v5e-4'), readiness.Findings()
  how = dict(price=None, preemptions=preemptions, save_minutes=20, compile_seconds=60)
  run = estimate.run([(steps, estimate.Time(0.1, 0.2, 0.4, 0.0, ()))], slice_, **how)
  for n in range(warnings):
    findings.add('W01', f'warning {n}')
  fits = program.Program(None, {}, program.Memory(1, 1), None, 1.0)
  phase = compiling.Phase(0, steps, 8, 64, 1, 1, 1, 1.0, [], None, {}, program=fits)
  request = verdict.Request(asked.config(), preemptions=preemptions)
  made = (request, request.config, slice_, {}, [phase], run, '', None, None, findings)
  return asked.printed(verdict.Preflight(*made))


def test_the_whole_run_is_said_in_a_unit_that_shows_it_with_losses_and_warnings():
  for changes, words in (
    ({}, 'whole run: 2.31 days (bounds 1.16 days – 4.63 days), no preemption'),
    ({}, '--price DOLLARS'),
    ({}, 'it fits, and nothing is wrong.'),
    (dict(preemptions=3), ', of it 0.95 hours lost to 3 preemptions'),
    (dict(preemptions=1), 'lost to 1 preemption\n'),
    (dict(steps=1), 'whole run: 0.20 seconds (bounds 0.10 seconds – 0.40 seconds)'),
    (dict(steps=1000), 'whole run: 3.33 minutes'),
    (dict(warnings=2), 'it fits; 2 warnings.'),
    (dict(warnings=1), 'it fits; 1 warning.'),
  ):
    assert words in said_of_a_run(**changes)


def test_a_wrong_command_line_is_json_too():
  words = [*COMMAND, '--config=configs/bert.py:tiny', '--json', '--config.masking.rat=1']
  done = subprocess.run(words, capture_output=True, text=True, cwd=asked.ROOT)
  [problem] = json.loads(done.stdout)['problems']
  assert done.returncode == 2 and problem['code'] == 'P00'
  assert done.stderr == f'error: {problem["sentence"]}\n'


@asked.needs_libtpu
def test_problems_without_a_compiler_are_said_first_and_sigterm_ends_it_with_one_line(tmp_path):
  where = f'--corpus={tmp_path}/none --workdir={tmp_path}/run'
  line = [*COMMAND, *f'--config=configs/bert.py:base --tpu=v5e-8 --json {where}'.split()]
  place = dict(env={**os.environ, 'XLA_FLAGS': '', 'TMPDIR': str(tmp_path)}, cwd=asked.ROOT)
  pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
  process = subprocess.Popen(line, **place, **pipes)
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
