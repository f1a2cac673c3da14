import re
import subprocess
import time

import pytest

from tests.tpu_scripts import cloud as clouds


def test_a_line_runs_on_all_workers_with_its_words_as_they_were_and_its_log_in_the_workdir(ready):
  ready.write(LIBTPU_INIT_ARGS="'--a=1 --b=2'", CACHE='yes')
  words = ["it's", 'two words', '$HOME', '*', '--config.x=(1, 2)', '']
  ready.ok('run', *ready.line(*words), HF_TOKEN='hush', WANDB_API_KEY="q'k")
  # nor can others on this machine read it from its list of processes
  assert 'hush' not in str(ready.calls())
  logs = ready.folder / 'bucket/bucket/w/logs'
  for worker in (0, 1):
    given = """
      LIBTPU_INIT_ARGS=--a=1 --b=2
      JAX_COMPILATION_CACHE_DIR=gs://bucket/runs/jax-cache
      HF_TOKEN=hush
      WANDB_API_KEY=q'k
      TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS=60
      TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES=1024
      TPU_STDERR_LOG_LEVEL=2
      TPU_MIN_LOG_LEVEL=2
      JAX_COORDINATOR_ADDRESS=10.0.0.5:8482
      JAX_NUM_PROCESSES=2
    """.splitlines()[1:-1]
    assert {f'JAX_PROCESS_ID={worker}', *map(str.strip, given)} <= ready.variables(worker)
    base = ready.home(worker) / 'bertzoo_tpu'
    said = f'{["--workdir=gs://bucket/w", *words]} in {base}/code'
    assert said in ready.log(worker)
    job = base / 'job'
    assert 0 in ((job / 'env').stat().st_mode & 0o77, job.stat().st_mode & 0o77)
    copies = lambda n=worker: [p.read_text() for p in logs.glob(f'*.worker-{n}.log')]
    clouds.wait(lambda n=worker, of=copies: any(f'worker {n}' in text for text in of()))


def test_one_vm_on_demand_needs_no_bucket_waits_for_no_other_and_may_have_keys_in_its_settings(
  cloud,
):
  places = '(v5e-8@us-a v4-8@us-central2-b)'
  more = {'HF_TOKEN': 'hush', 'export CLOUDSDK_CORE_ACCOUNT': 'ann'}
  cloud.write(BUCKET='', SPOT='no', CANDIDATES=places, **more)
  assert 'HF_TOKEN=***' in cloud.ok('run', '--dry-run', '--', 'python', '--workdir', '/home/ann/w')
  cloud.write()
  cloud.ok('create')
  assert 'not set up' in cloud.ok('status') and 'setup.sh' in cloud.fails('run', *cloud.line())
  cloud.ok('setup')
  (cloud.folder / 'hosts').write_text('10.0.0.5\n')
  cloud.ok('run', *cloud.line())
  assert not any('JAX_' in variable for variable in cloud.variables())


SECRET = "'-----BEGIN\nUVhRk1L=\nexport W=UVhRk2L\n  UVhRk3L # UVhRk4L\n\"UVhRk5L\n-----END'"


@pytest.mark.parametrize('setting', [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_key_of_several_lines_is_masked_whole_and_arrives_whole(ready, setting):
  more = {} if setting else {'HF_TOKEN': SECRET[1:-1]}
  ready.write(**({'HF_TOKEN': SECRET} if setting else {}))
  for command in ('run', 'babysit'):
    done = ready.run(command, '--dry-run', *ready.line(), **more)
    assert done.returncode == 0 and '# environment: HF_TOKEN=***\n' in done.stdout, done.stderr
    assert 'UVhRk' not in done.stdout + done.stderr and 'END' not in done.stdout
  ready.ok('run', *ready.line(), **more)
  assert f'HF_TOKEN={SECRET[1:-1]}' in ready.variables()


def test_those_who_ask_whether_a_run_lives_neither_hinder_it_nor_take_each_other_for_one(ready):
  base, env = ready.home() / 'bertzoo_tpu', ready.environment(HOME=str(ready.home()))
  worker = lambda verb: clouds.run(['bash', str(base / 'worker.sh'), verb], env=env)
  (base / 'run/lock').touch()
  asking = subprocess.Popen(['flock', '--shared', base / 'run/lock', 'sleep', '1'])
  time.sleep(0.2)
  assert ': idle' in worker('state').stdout
  (base / 'job/env').write_text('')
  (base / 'job/line').write_text('sleep 60\n')
  started = worker('start')
  assert started.returncode == 0, started.stderr
  assert asking.wait() == 0
  clouds.wait((base / 'run/pid').exists)


def test_a_second_run_is_refused_while_one_lives_and_stop_lets_it_save(ready):
  ready.ok('run', *ready.line())
  clouds.wait(lambda: 'attempt 1' in ready.log(1))
  assert 'a run is alive on bert' in ready.fails('run', *ready.line())
  assert 'code must not change' in ready.fails('sync')
  assert re.findall(r'^worker (\d): running', ready.ok('status'), re.M) == ['0', '1']
  assert 'attempt 1 on worker 1' in ready.ok('logs', '--worker', '1', '--lines=1')
  stopped = ready.ok('stop')
  assert re.findall(r'^worker (\d): stopped · stopped at step 5', stopped, re.M) == ['0', '1']
  ready.ok('run', *ready.line())


def test_a_line_that_starts_on_some_workers_only_is_ended_on_all(ready):
  (ready.home(1) / 'bertzoo_tpu/run/lock').mkdir()  # its supervisor cannot begin
  assert 'worker 1: the run did not start' in ready.fails('run', *ready.line())
  status = ready.ok('status')
  # which babysit would take for a wish of the user's
  assert ': running' not in status and ': stopped' not in status


def test_a_run_that_was_killed_without_a_word_is_gone_and_one_that_failed_tells_its_sentence(ready):
  ready.plan('3')
  ready.ok('run', *ready.line(), BERTZOO_COPY_SECONDS='60')
  clouds.wait(lambda: 'worker 1: ended 3 · error: sentence 3.' in ready.ok('status'))
  # What it said last is in the bucket at once.
  logs = (ready.folder / 'bucket/bucket/w/logs').iterdir()
  found = [p.name[-12:] for p in logs if 'sentence 3' in p.read_text()]
  assert found.count('worker-1.log') == 1
  ready.plan('forever')
  ready.ok('run', *ready.line())
  ready.kill()
  clouds.wait(lambda: ready.ok('status').count(': gone') == 2)
