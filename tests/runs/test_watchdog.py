import os
import signal
import subprocess
import time

import processes
import pytest

from bertzoo_jax.runs import watchdog
from tests import commands
from tests.refused import refused

HANG = '--config.run.hang_minutes=0.1'


def test_a_data_thread_that_waits_for_ever_ends_the_run_with_75_and_the_run_resumes_bitwise_equal(
  world, alone, tmp_path
):
  run = tmp_path / 'run'
  with processes.one(world, run, HANG, '--config.run.save_minutes=0', STUCK_AT='5') as process:
    assert process.end() == os.EX_TEMPFAIL, process.said
  last = process.said.strip().splitlines()[-1]
  words = 'error: the run hangs: the batch of step 5 has not finished for 0.1'
  assert last.startswith(words), process.said
  assert 'in stuck' in process.said  # the stack of the thread that waits
  with processes.one(world, run, HANG) as process:
    assert process.end() == 0 and 'resuming from the checkpoint of step' in process.said
  processes.assert_same_run(run, alone)


def test_a_peer_that_was_stopped_ends_the_run_with_75(world, tmp_path):
  # longer than the heartbeats may be away
  minutes = '--config.run.hang_minutes=0.2'
  with processes.two(world, tmp_path / 'run', minutes, step_seconds=0.1, lost_seconds=1000) as both:
    processes.wait_for_step(tmp_path / 'run', 5, both)
    both[1].process.send_signal(signal.SIGSTOP)
    assert both[0].end() == os.EX_TEMPFAIL, both[0].said
  said = both[0].said.strip().splitlines()
  assert 'error: the run hangs: step ' in both[0].said, both[0].said
  assert said[-1].startswith('host 0 of 2 ended without saving'), both[0].said


def _program(text):
  program = f'import ctypes, time\nfrom bertzoo_jax.runs import watchdog\n{text}'
  return commands.begin('-c', program, stderr=subprocess.PIPE)


def test_a_main_thread_that_is_stuck_in_native_code_ends_too():
  process = _program("""
with watchdog.Watchdog(0.01) as dog:
  for _ in range(2): dog.doing('step', 7)
  ctypes.CDLL(None).pause()
""")
  _, said = process.communicate(timeout=processes.PATIENCE)
  assert process.returncode == os.EX_TEMPFAIL and 'error: the run hangs: step 7 has' in said, said


def test_a_process_that_was_put_to_sleep_itself_goes_on_when_it_is_woken():
  process = _program("""
with watchdog.Watchdog(0.02) as dog:
  for _ in range(2): dog.doing('step', 7)
  print('begins', flush=True)
  time.sleep(0.6)
print('done')
""")
  assert process.stdout.readline() == 'begins\n'
  process.send_signal(signal.SIGSTOP)
  time.sleep(2)  # the limit is 1.2 seconds
  process.send_signal(signal.SIGCONT)
  out, said = process.communicate(timeout=processes.PATIENCE)
  assert process.returncode == 0 and out == 'done\n', said


@pytest.fixture
def ended(monkeypatch):
  """Exit codes with which the watchdog would have ended this process."""
  codes = []
  monkeypatch.setattr(watchdog, '_exit', codes.append)
  monkeypatch.setattr(watchdog.faulthandler, 'dump_traceback', lambda *_, **__: None)
  return codes


def test_compiling_may_take_ten_times_as_long_and_slow_steps_twenty_times_theirs(monkeypatch):
  dog, now = watchdog.Watchdog(1), [0.0]
  monkeypatch.setattr(time, 'monotonic', lambda: now[0])
  assert dog._allowed('step') == 600
  for seconds in (500, 1, 1, 2):  # the first one compiled
    dog.doing('step', 0)
    now[0] += seconds
  dog.doing('the save of step', 3)
  assert dog._allowed('step') == 60 and dog._allowed('the save of step') == 600
  for _ in range(5):
    now[0] += 30
    dog.doing('the save of step', 3)
  assert dog._allowed('step') == 60 and dog._allowed('the save of step') == 600
  dog.begin()  # another phase, another program
  assert dog._allowed('step') == 600


def test_a_run_that_goes_on_is_left_alone_no_minutes_are_no_watch_and_odd_ones_are_refused(ended):
  for minutes, seconds in ((0.005, 0.05), (0, 0.01)):
    with watchdog.Watchdog(minutes) as dog:
      for step in range(20):
        dog.doing('the batch of step', step)
        dog.doing('step', step)
        time.sleep(seconds)
      time.sleep(0.1 * (not minutes))
  assert not ended
  for odd in (-1, float('nan'), float('inf')):
    refused('run.hang_minutes is', watchdog.Watchdog, odd)
