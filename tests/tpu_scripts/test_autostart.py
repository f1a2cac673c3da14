"""--dry-run and --autostart."""

import re
import shlex
import tarfile

import pytest

from tests.tpu_scripts import cloud as clouds


@pytest.mark.parametrize('command', clouds.COMMANDS)
def test_a_dry_run_prints_lines_runs_nothing_and_shows_no_key(cloud, command):
  line = cloud.line('a b') if command in ('run', 'babysit') else []
  out = cloud.ok(command, '--dry-run', *line, HF_TOKEN='hush', WANDB_API_KEY='q')
  assert cloud.calls() == [] and not (cloud.folder / 'cloud').exists()
  assert 'hush' not in out and 'resource ACTIVE' not in out  # nobody was asked
  assert all(
    x.startswith('# ') or shlex.split(x)[0] in ('gcloud', 'git', 'cp') for x in out.splitlines()
  )
  if line:
    shown = f"# line: python {cloud.folder}/line.py --workdir=gs://bucket/w 'a b'"
    assert all(words in out for words in ('HF_TOKEN=***', 'WANDB_API_KEY=***', shown))


def test_a_dry_run_of_sync_prints_the_archive_that_is_sent_changes_included(cloud, tmp_path):
  checkout = cloud.checkout = clouds.checkout(tmp_path / 'checkout')

  def archived():
    line = next(x for x in cloud.ok('sync', '--dry-run').splitlines() if ' archive ' in x)
    target = tmp_path / 'shown.tgz'
    made = clouds.run(['bash', '-c', re.sub(r'-o \S+', f'-o {target}', line)])
    assert made.returncode == 0, made.stderr
    with tarfile.open(target) as archive:
      return archive.extractfile('code.py').read().decode(), line

  text, line = archived()
  assert text == 'committed\n' and line.endswith(' HEAD')
  (checkout / 'code.py').write_text('changed\n')
  (checkout / 'untracked.py').write_text('x')
  assert archived()[0] == 'changed\n'
  assert '1 files that git does not know' in cloud.run('sync', '--dry-run').stderr
  assert cloud.calls() == []


def test_a_dry_run_prints_the_very_lines_that_are_run(cloud):
  cloud.ok('create')
  for line in ('sync', 'setup', 'run', 'status', 'logs', 'stop', 'delete --yes'):
    command, *flags = line.split() + (cloud.line() if line == 'run' else [])
    cloud.forget()
    out = cloud.ok(command, '--dry-run', *flags).splitlines()
    shown = [clouds.no_temporary(x) for x in out if x.startswith('gcloud')]
    cloud.ok(command, *flags)
    done = [c for c in cloud.calls() if 'storage cp' not in c and '/.probe-' not in c]
    if command == 'stop':  # asks for the states until all have ended
      done = done[:3]
    assert done == shown, command


def test_a_machine_that_boots_after_autostart_runs_the_line_with_nothing_but_the_bucket(cloud):
  cloud.write(LOGIN=clouds.user(), RETRIES='3')
  cloud.plan('1', 'forever')
  cloud.ok('create', '--autostart', *cloud.line('a b'), HF_TOKEN='hush')
  job = cloud.folder / 'bucket/bucket/runs/jobs/bert'
  assert {p.name for p in job.iterdir()} == {'bertzoo.tgz', 'line', 'env'}
  assert 'hush' in (job / 'env').read_text()
  with tarfile.open(job / 'bertzoo.tgz') as archive:
    assert {'setup.py', 'tpu_scripts/worker.sh'} <= set(archive.getnames())
  startup = '--metadata-from-file=startup-script=TMP/startup.sh'
  asked = clouds.create('v4-16', clouds.ZONE, 'tpu-ubuntu2204-base', '--spot', startup)
  assert [c for c in cloud.calls() if ' create ' in c] == [asked]
  assert 'hush' not in (cloud.folder / 'startup.sh').read_text()

  cloud.boot(0, 1)
  # The first try fails; it is rerun there, by nobody.
  clouds.wait(lambda: cloud.ok('status').count(': running · attempt 2') == 2)
  assert "'a b'" in cloud.log()
  cloud.kill()  # the machine reboots
  cloud.boot(0)
  clouds.wait(lambda: cloud.attempts() == 3)
  cloud.ok('stop')
  assert cloud.attempts() == 3


def test_where_chips_are_held_a_line_is_not_run_again(cloud):
  cloud.write(RETRIES='3', LOGIN=clouds.user())
  cloud.plan('held', '0')
  cloud.ok('create', '--autostart', *cloud.line())
  cloud.boot(0)
  clouds.wait(lambda: 'worker 0: ended 1' in cloud.ok('status'))
  assert cloud.attempts() == 1


def test_spot_and_bucket_are_those_of_the_candidate_that_is_had(cloud):
  places = '(v4-8@us-a,on-demand,gs://a/x v6e-8@eu-b,gs://b v4-8@us-central2-b)'
  cloud.write(CANDIDATES=places)
  cloud.capacity(us_a='REFUSED')
  line = ['--', 'python', 'line.py', '--corpus', 'gs://BUCKET/c', '--workdir=gs://w/w']
  cloud.ok('create', '--autostart', *line)
  created = [c for c in cloud.calls() if ' create ' in c]
  assert ['--spot' in c for c in created] == [False, True]
  jobs = {b: cloud.folder / f'bucket/{b}/jobs/bert' for b in ('a/x', 'b', 'bucket/runs')}
  said = {b: job.exists() and (job / 'line').read_text() for b, job in jobs.items()}
  filled = lambda bucket: f'python line.py --corpus gs://{bucket}/c --workdir=gs://w/w\n'
  assert said == {'a/x': filled('a/x'), 'b': filled('b'), 'bucket/runs': False}
  assert 'JOB=gs://b/jobs/bert' in (cloud.folder / 'startup.sh').read_text()
  cloud.ok('delete', '--yes')
  assert not any(job.exists() for job in jobs.values())
  cloud.write(CANDIDATES=places, CACHE='yes')
  cloud.capacity(eu_b='REFUSED')
  for command in ('create', 'setup'):
    cloud.ok(command)
  cloud.ok('run', *line)
  job = cloud.home() / 'bertzoo_tpu/job'
  assert (job / 'line').read_text() == filled('bucket/runs')
  assert 'gs://bucket/runs/jax-cache' in (job / 'env').read_text()


def test_a_request_of_autostart_stays_in_the_queue_and_the_command_ends_at_once(cloud):
  cloud.write(CANDIDATES='(v4-16@us-a v4-16@us-b v4-16@us-c v4-32@us-d)')
  cloud.capacity(us_a='REFUSED', us_b='FAILED', us_c='WAITING_FOR_RESOURCES')
  assert 'bert is asked for in us-c' in cloud.ok('create', '--autostart', *cloud.line())
  asked = [re.search(r'--zone=(\S+)', c).group(1) for c in cloud.calls() if ' create ' in c]
  assert asked == ['us-a', 'us-b', 'us-c'] and cloud.times('delete') == 1
  # Nor does it leave the queue when someone waits for it.
  assert 'stays in the queue' in cloud.fails('create')
  assert cloud.home(zone='us-c').exists()


def test_a_machine_that_is_there_keeps_its_line_when_another_is_asked_for(cloud):
  cloud.ok('create', '--autostart', *cloud.line('first'))
  assert 'delete it first' in cloud.fails('create', '--autostart', *cloud.line('second'))
  assert 'first' in (cloud.folder / 'bucket/bucket/runs/jobs/bert/line').read_text()


def test_autostart_ends_with_1_when_gcloud_takes_no_request(cloud):
  cloud.capacity(us_central2_b='REFUSED')
  assert 'gcloud takes no candidate' in cloud.fails('create', '--autostart', *cloud.line())


def test_a_dry_run_of_autostart_shows_that_it_waits_for_nothing(cloud):
  out = cloud.ok('create', '--autostart', '--dry-run', *cloud.line())
  lines = [x.split() for x in out.splitlines() if x.startswith('gcloud')]
  shown = [x[4] if 'tpus' in x else 'cp' for x in lines]
  assert shown == ['describe', 'cp', 'create', 'describe'] and cloud.calls() == []
