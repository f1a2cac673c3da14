"""A Google Cloud made of folders, which programs/gcloud keeps. A worker is a folder with a home,
where the lines that tpu_scripts send by ssh really run.
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
PROGRAMS = pathlib.Path(__file__).parent / 'programs'  # gcloud, and what workers have
COMMANDS = ['create', 'setup', 'sync', 'run', 'status', 'logs', 'babysit', 'stop', 'delete']
ZONE = 'us-central2-b'


class Cloud:
  """The folder, and the commands run against it."""

  def __init__(self, folder, checkout):
    self.folder, self.checkout, self.settings = folder, checkout, folder / 'tpu.env'
    (folder / 'capacity').mkdir()
    self.plan('forever')
    shutil.copy(PROGRAMS / 'train', folder / 'line.py')
    (folder / 'hosts').write_text('n:0:10.0.0.5,n:1:10.0.0.6\n')
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
      'PATH': f'{PROGRAMS}:{os.environ["PATH"]}',
      'PYTHON': sys.executable,
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
  """Each `$ COMMAND {SETTINGS}` of a file prints what stands below it. CHECKOUT and FOLDER stand
  for the cloud's paths. printed: (words of a command) → its output. scratch: for the text of today.
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
