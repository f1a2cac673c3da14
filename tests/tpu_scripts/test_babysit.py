import re
import time

import pytest

from tests.tpu_scripts import cloud as clouds

SLOW = pytest.mark.slow


@pytest.mark.parametrize(
  'plan, code, attempts, creates, said',
  [
    # all workers are restarted together
    ('suspended vanish preempted 0', 0, 4, 4, r'(?s)restart 1 of 10.*restart 3 of 10'),
    ('crash 0', 0, 2, 1, 'worker 0: ended 134'),
    # saved at the notice of a preemption: not done
    ('notice 0', 0, 2, 1, 'worker 0: interrupted'),
    # is there and does not answer: three looks
    ('deaf 0', 0, 2, 2, r'(?s)(does not answer: waiting.*){2}does not answer: again'),
    # a worker that ends well after the others is waited for
    ('late', 0, 1, 1, ''),
    # chips that are held: not run there again
    ('held 0', 0, 2, 2, r'worker 0: ended 1 · RuntimeError.*/dev/vfio/0.*busy'),
    # as many restarts as it is told
    pytest.param('1', 1, 2, 1, '1 of 1 restarts in a row: worker 0: ended 1', marks=SLOW),
    ('75', 1, 2, 1, '1 of 1 restarts in a row: worker 0: ended 75'),
    # mistakes, and numbers that are not finite, are not tried again
    ('2', 2, 1, 1, 'error: sentence 2.'),
    pytest.param('3', 3, 1, 1, 'error: sentence 3.', marks=SLOW),
  ],
)
def test_an_end_of_a_line_is_answered_by_as_many_attempts_and_machines(
  cloud, plan, code, attempts, creates, said
):
  cloud.plan(*plan.split())
  retries = ['--retries', '1'] if plan in ('1', '75') else []
  out = cloud.fails('babysit', *retries, *cloud.line('a b'), code=code, HF_TOKEN='hush')
  assert re.search(said, out) and 'hush' not in out
  assert (cloud.attempts(), cloud.times('create')) == (attempts, creates)
  if plan.split()[0] in ('suspended', 'crash', 'notice'):
    assert cloud.attempts(1) == attempts
    assert "--workdir=gs://bucket/w', 'a b'" in cloud.log()


def test_the_end_of_an_earlier_line_is_not_taken_for_that_of_this_one(cloud):
  cloud.plan('2', '0')
  cloud.fails('babysit', *cloud.line(), code=2)
  cloud.ok('babysit', *cloud.line())  # the mistake was mended
  assert cloud.attempts() == 2


def test_a_run_that_is_stopped_by_its_user_is_not_started_again(cloud):
  process = cloud.start('babysit', *cloud.line())
  clouds.wait(lambda: (cloud.folder / 'attempts.1').exists())
  time.sleep(0.3)
  cloud.ok('stop')
  out, _ = process.communicate(timeout=20)
  assert process.returncode == 0 and 'stopped by tpu_scripts/stop.sh' in out, out
  assert cloud.attempts() == 1


def test_babysit_waits_without_counting_while_its_own_network_is_gone_and_takes_up_a_run_that_lives(
  ready,
):
  ready.ok('run', *ready.line())
  (ready.folder / 'offline').touch()
  process = ready.start('babysit', '--retries=0', *ready.line())
  clouds.wait(lambda: len(ready.calls()) > 9)
  (ready.folder / 'offline').unlink()
  time.sleep(0.5)
  ready.ok('stop')
  out, _ = process.communicate(timeout=20)
  assert process.returncode == 0 and 'gcloud gives no answer: waiting' in out, out
  assert ready.attempts() == 1


# of what create --autostart has asked for


@pytest.mark.parametrize('waits, plan, code', [(True, 'late', 0), (False, '2', 2)])
def test_it_lets_the_machine_begin_by_itself_and_runs_no_line_again_that_has_ended(
  cloud, waits, plan, code
):
  cloud.write(LOGIN=clouds.user())
  cloud.plan(plan)
  if waits:
    cloud.capacity(us_central2_b='WAITING_FOR_RESOURCES')
  cloud.ok('create', '--autostart', *cloud.line())
  cloud.forget()
  process = cloud.start('babysit', *cloud.line())
  if waits:
    clouds.wait(lambda: len(cloud.calls()) > 9)
    (cloud.home().parent / 'resource').write_text('ACTIVE')
  clouds.wait(lambda: cloud.times('ssh') > 2)
  cloud.boot(0, 1)
  out, _ = process.communicate(timeout=20)
  assert process.returncode == code and cloud.attempts() == 1, out
  assert out.count('WAITING_FOR_RESOURCES, asked for with --autostart') == waits
  assert not any(cloud.times(verb) for verb in ('create', 'delete', 'scp'))


def test_it_sets_up_a_machine_of_autostart_that_never_begins(cloud):
  cloud.plan('0')
  cloud.ok('create', '--autostart', *cloud.line())
  out = cloud.ok('babysit', *cloud.line(), BERTZOO_STARTUP_SECONDS='1')
  assert 'not set up: again in' in out and cloud.attempts() == 1
