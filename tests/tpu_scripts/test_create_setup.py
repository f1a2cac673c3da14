import re
import shlex
import tarfile

from tests.tpu_scripts import cloud as clouds


def test_candidates_are_asked_in_order_until_one_is_active_and_failed_ones_are_deleted(cloud):
  cloud.write(CANDIDATES='(v4-16@z-a v5p-16@z-b v6e-16@z-c v4-16@z-d v4-32@z-e)')
  cloud.capacity(z_a='WAITING_FOR_RESOURCES', z_b='FAILED', z_c='REFUSED')
  cloud.ok('create')
  failed = ['create z-a', 'delete z-a', 'create z-b', 'delete z-b', 'create z-c']
  assert cloud.asked() == [*failed, 'create z-d']
  # The others find it without being told where.
  assert 'in z-d' in cloud.ok('status')
  cloud.forget()
  cloud.ok('create')
  assert not cloud.asked()
  (cloud.home(zone='z-d').parent / 'resource').write_text('SUSPENDED')
  cloud.write(CANDIDATES='(v4-16@z-d)')
  cloud.ok('create')
  assert cloud.asked() == ['delete z-d', 'create z-d']
  cloud.ok('delete', '--yes')
  cloud.capacity(z_d='WAITING_FOR_RESOURCES')
  assert 'no candidate' in cloud.fails('create') and not cloud.home(zone='z-d').parent.exists()


def test_nothing_is_created_or_deleted_while_gcloud_cannot_be_reached(cloud):
  (cloud.folder / 'offline').touch()
  for command in ('create', 'delete', 'sync'):
    output = cloud.fails(command)
    assert 'gcloud does not say' in output and 'network' in output
  assert {c.split()[4] for c in cloud.calls()} == {'describe'}


def test_the_zones_of_grants_are_ready_in_the_example(cloud):
  """With the # taken from them, and a bucket's name put in."""
  text = (clouds.SCRIPTS / 'tpu.env.example').read_text()
  grants = re.findall(r'^  # (v\S+@\S+),gs://NAME(\S*)$', text, re.M)
  assert {place.partition('@')[0] for place, _ in grants} == {'v4-64', 'v6e-64', 'v5litepod-64'}
  assert len(grants) == 6
  text = re.sub(r'^  # (v\S+@\S+,gs://)NAME', r'  \1ann', text, flags=re.M)
  text = text.replace('NAME= ', 'NAME=bert ').replace('PROJECT= ', 'PROJECT=proj ')
  cloud.settings.write_text(text.replace('BUCKET=gs://', 'BUCKET=gs://ann-us-central2', 1))
  lines = [shlex.split(x) for x in cloud.ok('create', '--dry-run').splitlines() if ' create ' in x]
  flag = lambda words, name: next(w for w in words if w.startswith(f'--{name}=')).partition('=')[2]
  asked = [(flag(x, 'accelerator-type'), flag(x, 'zone'), '--spot' in x) for x in lines[1:]]
  wanted = [(*place.partition(',')[0].split('@'), place.endswith(',spot')) for place, _ in grants]
  assert asked == wanted


def test_delete_asks_and_takes_the_keys_in_the_bucket_along(ready):
  job = ready.folder / 'bucket/bucket/runs/jobs/bert'
  job.mkdir(parents=True)
  (job / 'env').write_text('key')
  assert 'v4-16 in us-central2-b' in ready.fails('delete', input='n\n') and ready.home().exists()
  ready.ok('delete', '--yes')
  assert not ready.home().exists() and not job.exists()


def test_sync_sends_the_checkout_with_uncommitted_changes_to_all_workers_in_one_archive(
  ready, tmp_path
):
  checkout = ready.checkout = clouds.checkout(tmp_path / 'checkout')
  packed = lambda: next(x for x in ready.ok('sync', '--dry-run').splitlines() if ' archive ' in x)
  assert packed().endswith(' HEAD')
  (checkout / 'code.py').write_text('changed\n')
  (checkout / 'gone.py').unlink()
  (checkout / 'untracked.py').write_text('x')
  (ready.home() / 'bertzoo_tpu/code/old.py').touch()
  status = lambda: clouds.run(['git', '-C', checkout, 'status', '--porcelain']).stdout
  before, shown = status(), tmp_path / 'shown.tgz'
  clouds.run(['bash', '-c', re.sub(r'-o \S+', f'-o {shown}', packed())])
  done = ready.run('sync')
  assert done.returncode == 0 and '1 files that git does not know' in done.stderr
  with tarfile.open(shown) as archive:
    assert archive.extractfile('code.py').read() == b'changed\n'
  for worker in (0, 1):
    code = ready.home(worker) / 'bertzoo_tpu/code'
    assert (code / 'code.py').read_text() == 'changed\n'
    assert not any((code / name).exists() for name in ('gone.py', 'untracked.py', 'old.py'))
  assert status() == before  # files and index of the user


def test_setup_installs_the_tested_versions_once_and_ends_with_a_table_of_all_workers(cloud):
  cloud.ok('create')
  table = cloud.ok('setup').splitlines()
  assert table[0].split() == ['worker', 'python', 'jax', 'chips', 'free', 'disk', 'bucket']
  rows = [re.fullmatch(r'(\d) +3\.\d+\.\d+ +\d+(\.\d+)+ +\d+ +\d+G +yes', x) for x in table[1:]]
  assert [row[1] for row in rows] == ['0', '1']
  installed = lambda: (cloud.folder / 'installed').read_text().splitlines()
  base = cloud.home() / 'bertzoo_tpu'
  assert installed()[:2] == [
    f'uv venv --quiet --seed --python 3.12 {base}/venv',
    f'pip -m pip install --quiet --disable-pip-version-check -c {base}/code/constraints.txt -e '
    f'{base}/code[tpu]',
  ]
  cloud.ok('setup')
  assert len(installed()) == 4
  cloud.write(EXTRAS='tpu,zh')
  (cloud.folder / 'no_bucket').touch()
  assert ' NO\n' in cloud.fails('setup') and installed()[4].endswith('code[tpu,zh]')
