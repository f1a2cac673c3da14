import pathlib
import tarfile

from tests.tpu_scripts import cloud as clouds

LINES = pathlib.Path(__file__).parent / 'dry_runs.txt'


def test_dry_runs_print_the_lines_of_the_file_run_nothing_and_show_no_key(cloud, tmp_path):
  def printed(command, *flags):
    return cloud.ok(command, '--dry-run', *flags, HF_TOKEN='hush', WANDB_API_KEY='q')

  clouds.check_transcript(cloud, LINES, printed, tmp_path)
  assert cloud.calls() == [] and not (cloud.folder / 'cloud').exists()
  assert 'hush' not in LINES.read_text()


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
  assert 'hush' not in (cloud.folder / 'startup.sh').read_text() + str(cloud.calls())

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
  ask = ('create', '--autostart', *cloud.line('first'))
  assert 'bert is asked for in us-c' in cloud.ok(*ask)
  assert cloud.asked() == ['create us-a', 'create us-b', 'delete us-b', 'create us-c']
  # Nor does it leave the queue when someone waits for it, and it keeps its line.
  assert 'stays in the queue' in cloud.fails('create')
  assert 'delete it first' in cloud.fails('create', '--autostart', *cloud.line('second'))
  assert 'first' in (cloud.folder / 'bucket/bucket/runs/jobs/bert/line').read_text()
  assert cloud.home(zone='us-c').exists()
  cloud.ok('delete', '--yes')
  cloud.capacity(**dict.fromkeys(('us_a', 'us_b', 'us_c', 'us_d'), 'REFUSED'))
  assert 'gcloud takes no candidate' in cloud.fails(*ask)
