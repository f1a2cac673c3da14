"""A Google Cloud made of folders. gcloud is a script that keeps its state there. A worker is a
folder with a home: the lines that tpu_scripts send by ssh really run in it.
"""

import ast
import contextlib
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).parents[2]
SCRIPTS = ROOT / 'tpu_scripts'
COMMANDS = ['create', 'setup', 'sync', 'run', 'status', 'logs', 'babysit', 'stop', 'delete']
ZONE = 'us-central2-b'

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
  what, *sources, target = plain[1:]
  if os.path.exists(fake + 'no_bucket'): end(1, '403')
  for s in sources if what == 'cp' else ():
    data = sys.stdin.buffer.read() if s == '-' else read(real(s))
    write(real(target) + (os.path.basename(s) if target.endswith('/') else ''), data)
  if what == 'rm':
    if not os.path.exists(real(target)): end(1, 'not found')
    delete(real(target)) if os.path.isdir(real(target)) else os.remove(real(target))
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
  for name, data in dict(resource=state, node=b'READY').items(): write(place + name, data)
  for w in range(2): os.makedirs(place + f'w{w}')
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
  print('stopped at step 5 of 10 and saved: run the same command to resume', flush=True)
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
  """The folder, and the commands run against it."""

  def __init__(self, folder, checkout):
    self.folder, self.checkout, self.settings = folder, checkout, folder / 'tpu.env'
    (folder / 'bin').mkdir()
    (folder / 'capacity').mkdir()
    self.plan('forever')
    (folder / 'line.py').write_text(LINE)
    (folder / 'gcloud.py').write_text(GCLOUD)
    (folder / 'hosts').write_text('n:0:10.0.0.5,n:1:10.0.0.6\n')
    for name, text in {
      'gcloud': f'#!/bin/sh\nexec {sys.executable} -I -S {folder}/gcloud.py "$@"\n',
      'uv': UV.replace('REAL', sys.executable),
      'curl': '#!/bin/sh\ncase "$4" in */worker-network-endpoints) cat "$FAKE/hosts" ;; '
      '*/agent-worker-number) echo "$WORKER" ;; esac\n',
      'sudo': '#!/bin/sh\nshift 3\nexec "$@"\n',  # sudo -u USER -H
    }.items():
      (folder / 'bin' / name).write_text(text)
      (folder / 'bin' / name).chmod(0o755)
    self.write()

  # What a test sets.

  def write(self, **settings):
    values = dict(PROJECT='proj', NAME='bert', BUCKET='gs://bucket/runs', LOGIN='ann')
    values |= {'CANDIDATES': f'(v4-16@{ZONE})', 'CREATE_MINUTES': '0', **settings}
    self.settings.write_text(''.join(f'{k}={v}\n' for k, v in values.items()))

  def plan(self, *attempts):
    """What the line does, attempt by attempt; the last one for ever."""
    (self.folder / 'plan').write_text('\n'.join(attempts))

  def capacity(self, **zones):
    """The state of what is asked for in a zone, with _ for -."""
    for zone, state in zones.items():
      (self.folder / 'capacity' / zone.replace('_', '-')).write_text(state)

  def forget(self):
    (self.folder / 'calls').unlink(missing_ok=True)

  def line(self, *more):
    return ['--', 'python', str(self.folder / 'line.py'), '--workdir=gs://bucket/w', *more]

  # What a test runs.

  def environment(self, **more):
    seconds = dict(POLL='0.05', BACKOFF='0', COPY='0.1', KILL='2')
    return {
      'PATH': f'{self.folder}/bin:{os.environ["PATH"]}',
      **dict(HOME=str(self.folder), FAKE=str(self.folder), USER='ann', WORKER='0'),
      **{f'BERTZOO_{name}_SECONDS': value for name, value in seconds.items()},
      **more,
    }

  def _words(self, command, flags):
    return ['bash', self.checkout / f'tpu_scripts/{command}.sh', '--env', self.settings, *flags]

  def run(self, command, *flags, input='', **environment):
    env = self.environment(**environment)
    return run(self._words(command, flags), input=input, env=env)

  def start(self, command, *flags):
    how = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return subprocess.Popen(self._words(command, flags), env=self.environment(), **how)

  def ok(self, command, *flags, **more):
    done = self.run(command, *flags, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

  def fails(self, command, *flags, code=1, **more):
    """Its output."""
    done = self.run(command, *flags, **more)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr

  def refused(self, command, *flags, **more):
    """The sentence of a mistake, of which gcloud is not told."""
    done = self.run(command, *flags, **more)
    assert done.returncode == 2 and done.stdout == '' and self.calls() == [], done
    assert done.stderr.startswith('error: ') and done.stderr.count('\n') == 1, done.stderr
    return done.stderr

  def boot(self, *workers):
    """What workers do when they are switched on."""
    for worker in workers:
      env = self.environment(HOME=str(self.home(worker)), WORKER=str(worker))
      done = run(['bash', self.folder / 'startup.sh'], env=env, cwd='/')
      assert done.returncode == 0, done.stdout + done.stderr

  def kill(self):
    for folder in (*self.folder.glob('cloud/*/*/w*'), *self.folder.glob('vanished/w*')):
      for name, kill in (('group', os.killpg), ('pid', os.kill)):
        with contextlib.suppress(OSError, ValueError):
          kill(int((folder / 'bertzoo_tpu/run' / name).read_text()), signal.SIGKILL)

  # What a test finds.

  def calls(self):
    """The calls of gcloud, as lines of a shell; temporary folders are called TMP."""
    text = (self.folder / 'calls').read_text() if (self.folder / 'calls').exists() else ''
    lines = [shlex.join(eval(line)) for line in text.splitlines()]
    copied = lambda line: 'gcloud storage cp' in line and '/log ' in line
    return [no_temporary(line) for line in lines if not copied(line)]

  def times(self, verb):
    """How often gcloud was called with this verb."""
    return sum(f' {verb} ' in call for call in self.calls())

  def asked(self):
    """Which slices gcloud was asked to create or delete, and where."""
    found = (re.search(r' (create|delete) bert .*--zone=(\S+)', call) for call in self.calls())
    return [' '.join(x.groups()) for x in found if x]

  def home(self, worker=0, zone=ZONE):
    return self.folder / 'cloud' / zone / 'bert' / f'w{worker}'

  def log(self, worker=0):
    log = self.home(worker) / 'bertzoo_tpu/run/log'
    return log.read_text() if log.exists() else ''

  def variables(self, worker=0):
    """The variables of a worker's process, which has begun."""
    pid = self.home(worker) / 'bertzoo_tpu/run/pid'
    wait(lambda: pid.exists() and 'attempt 1' in self.log(worker))
    return set(pathlib.Path(f'/proc/{pid.read_text().strip()}/environ').read_text().split('\0'))

  def attempts(self, worker=0):
    count = self.folder / f'attempts.{worker}'
    return int((count.exists() and count.read_text()) or 0)  # it may be half written


def run(words, **more):
  return subprocess.run(words, capture_output=True, text=True, **{'timeout': 30, **more})


def no_temporary(text):
  return re.sub(r'/[^ ]*/tmp\.\w+|/tmp/tmp\.\w+', 'TMP', text)


def user():
  return run(['id', '-un']).stdout.strip()


def wait(condition, seconds=20):
  end = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < end, 'waited in vain'
    time.sleep(0.05)


def check_transcript(cloud, file, printed, scratch):
  """Each `$ COMMAND {SETTINGS}` of a file prints what stands below it. CHECKOUT and FOLDER are
  those of the cloud.

  Args:
    printed: (words of a command) → what it prints.
    scratch: a folder for the text of today.
  """
  places, made = {'CHECKOUT': str(cloud.checkout), 'FOLDER': str(cloud.folder)}, ''
  for line in [x for x in file.read_text().splitlines() if x.startswith('$ ')]:
    command, brace, settings = line[2:].partition(' {')
    cloud.write(**ast.literal_eval(brace.strip() + settings or '{}'))
    for name, place in places.items():
      command = command.replace(name, place)
    text = no_temporary(printed(*shlex.split(command)))
    for name, place in places.items():
      text = text.replace(place, name)
    made += f'{line}\n{text}'
  (scratch / file.name).write_text(made)
  assert made == file.read_text(), f'If it is meant: cp {scratch / file.name} {file}'


def checkout(folder):
  """A small repository with the scripts and the files that they install."""
  shutil.copytree(SCRIPTS, folder / 'tpu_scripts')
  shutil.copy(ROOT / 'setup.py', folder)
  for name in ('constraints.txt', 'code.py', 'gone.py'):
    (folder / name).write_text('committed\n')
  git = ['git', '-C', str(folder), '-c', 'user.name=a', '-c', 'user.email=a@b']
  for line in (['init', '-q'], ['add', '.'], ['commit', '-qm', 'x']):
    subprocess.run([*git, *line], check=True)
  return folder
