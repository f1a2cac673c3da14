import itertools
import os
import signal
import socket
import time

import jax
import numpy as np
import processes
import pytest

from bertzoo_jax.common import storage
from bertzoo_jax.runs import distributed
from bertzoo_jax.runs import lock
from bertzoo_jax.runs import metrics
from bertzoo_jax.runs import preemption
from bertzoo_jax.runs import step_folders
from tests import commands
from tests.refused import refused


# The host that gets the signal, each in its turn; both stop at the same step.
def test_two_hosts_that_are_stopped_train_as_one(world, alone, tmp_path):
  workdir, saved = tmp_path / 'run', 0
  for asked in (1, 0):
    with processes.two(world, workdir, step_seconds=0.1) as both:
      processes.wait_for_step(workdir, saved + 3, both)
      both[asked].process.send_signal(signal.SIGTERM)
      assert [h.end() for h in both] == [0, 0], [h.said for h in both]
    newest = step_folders.steps(workdir)[-1]
    assert saved + 3 <= newest < processes.STEPS, both[0].said
    assert f'stopped at step {newest} of {processes.STEPS} and saved' in both[0].said
    assert metrics.read(workdir)[-1]['step'] == newest
    assert step_folders.verify(storage.path(workdir) / 'checkpoints' / str(newest)) is None
    saved = newest
  with processes.two(world, workdir) as both:
    assert [h.end() for h in both] == [0, 0], [h.said for h in both]
  assert f'resuming from the checkpoint of step {saved}' in both[0].said
  assert 'done' in both[0].said
  assert 'done' not in both[1].said
  assert not any('ended without saving' in h.said for h in both)
  ours, theirs = ([row['loss'] for row in metrics.read(w)] for w in (workdir, alone))
  assert len(ours) == processes.STEPS
  np.testing.assert_allclose(ours, theirs, rtol=1e-5)
  ours, theirs = (processes.parameters(w) for w in (workdir, alone))
  for path, x in ours.items():
    if not path.endswith('key/bias'):  # its gradient is 0 but for rounding, which Adam makes large
      np.testing.assert_allclose(x, theirs[path], atol=1e-4, err_msg=path)


@pytest.mark.parametrize('victim', [0, 1])
def test_a_host_that_dies_during_a_save_ends_the_other_which_says_so(world, tmp_path, victim):
  run, deadline = tmp_path / 'run', time.monotonic() + processes.PATIENCE
  # Every step is saved, so that the save before is under way or is waited for.
  with processes.two(world, run, '--config.run.save_minutes=0.0', SEAL_SECONDS='3') as both:
    processes.wait_for_step(run, 2, both)
    while not list((run / 'checkpoints').glob('*.orbax-checkpoint-tmp*')):
      assert time.monotonic() < deadline, [h.said for h in both]
      time.sleep(0.01)
    both[victim].process.kill()
    other = both[1 - victim]
    assert other.end() in (os.EX_TEMPFAIL, -signal.SIGABRT), other.said
    last = other.said.strip().splitlines()[-1]
    assert last.startswith(f'host {1 - victim} of 2 ended without saving'), other.said
    assert 'Run the same command on all hosts again' in last


GLOO = 'UNKNOWN: Gloo all-reduce failed: Connection closed by peer'
LOST = [jax.errors.JaxRuntimeError(GLOO), RuntimeError('DEADLINE_EXCEEDED: Barrier timed out')]
# as a library says it that saves an array, which was still being computed
LOST += [ValueError(GLOO.replace('Conn', '[external/gloo] Conn'))]


@pytest.mark.parametrize('error', LOST)
def test_a_failure_because_a_host_is_lost_ends_the_process(monkeypatch, capsys, error):
  def fail(error):
    with distributed.watched():
      raise error

  ended = []
  monkeypatch.setattr(distributed, '_exit', ended.append)
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  fail(error)
  assert ended == [os.EX_TEMPFAIL]
  assert capsys.readouterr().err.startswith('error: the hosts cannot continue: ')
  refused('odd', fail, ValueError('odd'), kind=ValueError)
  monkeypatch.setattr(jax, 'process_count', lambda: 1)
  refused('', fail, error, kind=type(error))


def test_a_host_that_ends_with_a_sentence_has_its_exit_code_and_ends_the_other(world, tmp_path):
  (tmp_path / 'run').mkdir()
  with lock.hold(tmp_path / 'run'), processes.two(world, tmp_path / 'run') as both:
    assert both[0].end() == os.EX_TEMPFAIL, both[0].said
    assert 'in use by process' in both[0].said.strip().splitlines()[-1]
    began = time.monotonic()
    assert both[1].end() in (os.EX_TEMPFAIL, -signal.SIGABRT), both[1].said
    assert time.monotonic() - began < 60


# A TPU VM of one host: jax finds it by what the machine says of itself.
ON_A_TPU_VM = """
import jax
from jax._src import clusters
class Vm(clusters.ClusterEnv):
  is_env_present = classmethod(lambda cls: True)
  get_coordinator_address = classmethod(lambda cls, **_: 'localhost:PORT')
  get_process_count = classmethod(lambda cls: 1)
  get_process_id = classmethod(lambda cls: 0)
clusters.ClusterEnv._cluster_types.insert(0, Vm)
jax.config.update('jax_platforms', 'tpu,cpu')
"""


def alone_environment(**more):
  kept = {k: v for k, v in os.environ.items() if not k.startswith('JAX_C')}
  return {**kept, 'PYTHONPATH': str(processes.ROOT), **more}


def free_port():
  with socket.create_server(('', 0)) as s:
    return s.getsockname()[1]


@pytest.mark.parametrize('who', ['a TPU VM', 'nobody', 'by hand'])
def test_a_lone_process_stays_out_of_the_service_and_stops_at_a_signal_by_itself(who):
  port = free_port()
  program = """
import os, signal, jax
from bertzoo_jax.runs import distributed, preemption
distributed.join()
jax.config.update('jax_platforms', 'cpu')
print(jax.distributed.is_initialized(), jax.process_count(), distributed._with_others)
with preemption.Preemption().listening() as asked:
  print(asked.reached())
  os.kill(os.getpid(), signal.SIGTERM)
  print(asked.reached(), asked.name)
"""
  environment = alone_environment(JAX_COORDINATOR_PORT=str(port))
  if who == 'by hand':
    environment |= dict(JAX_NUM_PROCESSES='1', JAX_PROCESS_ID='0')
    environment['JAX_COORDINATOR_ADDRESS'] = f'127.0.0.1:{port}'
  elif who == 'a TPU VM':
    program = ON_A_TPU_VM.replace('PORT', str(port)) + program
  done = commands.run('-c', program, env=environment, timeout=processes.PATIENCE)
  lines = done.stdout.split('\n')[:3]
  assert lines == ['False 1 False', 'False', 'True SIGTERM'], done.stdout + done.stderr


def test_a_notice_before_the_hosts_listen_ends_the_run_also_when_it_resumes():
  program = """
import os, signal, time, jax
from bertzoo_jax.runs import preemption
jax.distributed.initialize('127.0.0.1:PORT', 1, 0)  # jax does the same with one as with several
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(2)  # jax looks once a second
with preemption.Preemption().listening() as asked:
  for step in range(501, 801):
    if asked.reached():
      print('ends after', asked.name)
      break
    time.sleep(0.01)
"""
  program = program.replace('PORT', str(free_port()))
  done = commands.run('-c', program, timeout=processes.PATIENCE)
  assert done.stdout == 'ends after preemption\n', done.stdout + done.stderr


def test_who_waits_in_vain_is_told_in_a_sentence():
  program = 'from bertzoo_jax.runs import distributed; distributed.join(3)'
  second = {**OF_TWO, 'JAX_PROCESS_ID': '1', 'JAX_COORDINATOR_ADDRESS': '127.0.0.1:1'}
  environment = alone_environment(**second)
  done = commands.run('-c', program, env=environment, timeout=processes.PATIENCE)
  last = (done.stdout + done.stderr).strip().splitlines()[-1]
  assert done.returncode == os.EX_TEMPFAIL, last
  assert last.startswith('error: Not all 2 processes came to 127.0.0.1:1'), last


OF_TWO = dict(JAX_NUM_PROCESSES='2', JAX_PROCESS_ID='0')


@pytest.mark.parametrize(
  'environment, words, code',
  [
    (dict(JAX_COORDINATOR_ADDRESS='here:1'), 'JAX_NUM_PROCESSES', 2),
    (dict(OF_TWO, JAX_COORDINATOR_ADDRESS='here'), 'HOST:PORT', 2),
    (dict(OF_TWO, JAX_COORDINATOR_ADDRESS='here:1', JAX_PROCESS_ID='2'), 'are 0 to 1', 2),
    # the other may end
    (dict(OF_TWO, JAX_COORDINATOR_ADDRESS='here:TAKEN'), r'Port \d+ of this machine', 75),
  ],
)
def test_a_wrong_environment_variable_is_refused(monkeypatch, environment, words, code):
  monkeypatch.delenv('JAX_NUM_PROCESSES', raising=False)
  monkeypatch.setattr(jax.distributed, 'is_initialized', lambda: False)
  with socket.create_server(('', 0)) as taken:
    for k, v in environment.items():
      monkeypatch.setenv(k, v.replace('TAKEN', str(taken.getsockname()[1])))
    assert refused(words, distributed.join).code == code


def test_a_second_ctrl_c_ends_one_of_several_hosts_and_one_tells_the_others(monkeypatch, capfd):
  monkeypatch.setattr(preemption.jax.distributed, 'is_initialized', lambda: True)
  hosts = preemption.multihost_utils
  monkeypatch.setattr(hosts, 'reached_preemption_sync_point', lambda number: number == 2)
  monkeypatch.setattr(preemption, '_count', itertools.count(1))
  signals = []
  # in the place of jax's, which tells the other hosts
  before = signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
  try:
    with preemption.Preemption().listening() as interrupt:
      signal.raise_signal(signal.SIGINT)
      assert signals == [signal.SIGTERM] and interrupt.name is None and not interrupt.reached()
      assert capfd.readouterr().err.startswith('SIGINT: this run stops after the current step and')
      with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
      assert interrupt.reached() and interrupt.name == 'preemption'
      assert capfd.readouterr().err == ''
  finally:
    signal.signal(signal.SIGTERM, before)
