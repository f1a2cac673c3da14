"""A mistake on the command line ends with one sentence, the remedy, and exit code 2."""

import errno
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from bertzoo_jax.common import cli
from bertzoo_jax.common import errors

ROOT = pathlib.Path(__file__).parents[2]
PREPARE = ('--source', 'a.txt', '--out', 'c')


def _run(*flags):
  return subprocess.run(
    [sys.executable, '-m', 'bertzoo_jax.prepare', *flags],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=60,
  )


@pytest.mark.parametrize(
  'flags, words',
  [
    (
      ('--config', 'configs/bert.py:tiny', '--config.masking.rat=0.2'),
      "no field 'rat'. Did you mean --config.masking.rate?",
    ),
    (
      ('--config', 'configs/bert.py:tiny', '--config.learning_rate=1'),
      'Did you mean --config.schedule.learning_rate?',
    ),
    (
      ('--config', 'configs/bert.py:tiny', '--config.optimiser.lr=1'),
      'Did you mean --config.optimizer? There is: b1',
    ),
    (
      ('--config', 'configs/bert.py:tiny', '--config.optimizer.learning_rat=1'),
      'Did you mean --config.schedule.learning_rate?',
    ),
    (
      ('--config', 'configs/bert.py:tiny', '--config.format.nam=a'),
      'Did you mean --config.format.name?\n',
    ),
    (('--config', 'configs/bert.py:tiny', '--config.fromat=a'), 'Did you mean --config.format?'),
    (('--config', 'configs/bert.py:tiny', '--config.steps=5'), 'steps stand in config.phases'),
    (('--config', 'configs/bert.py:tinny'), "Did you mean 'tiny'?"),
    (('--config', 'configs/bret.py:tiny'), 'there is no config file configs/bret.py'),
    (
      ('--config', 'configs/bert.py:tiny', '--sourc', 'b'),
      '--sourc is no flag (see --help). Did you mean --source?',
    ),
    (('--config', 'configs/bert.py:tiny', 'b'), "'b' is not a flag"),
    ((), '--config is missing'),
  ],
)
def test_a_wrong_flag_is_one_sentence_with_what_was_meant(flags, words):
  done = _run(*PREPARE, *flags)
  assert done.returncode == 2 and done.stderr.startswith('error: ') and words in done.stderr, (
    done.stderr
  )
  assert done.stderr.count('\n') == 1 and not done.stdout


def test_help_speaks_of_the_config():
  done = _run('--help')
  assert done.returncode == 0 and '--config.section.key=value' in ' '.join(done.stdout.split())


def library(name, message, base=Exception):
  """An error as a library of an object store raises it."""
  return type(name, (base,), {'__module__': 'tensorflow.python.framework.errors_impl'})(message)


@pytest.mark.parametrize(
  'error, code',
  [
    (errors.UserError('a sentence'), 2),
    (errors.TryAgain('a sentence'), 75),
    (FileNotFoundError(errno.ENOENT, 'No such file', 'a'), 2),
    (PermissionError(errno.EACCES, 'Permission denied', 'a'), 2),
    (OSError(errno.ENOSPC, 'No space left on device'), 2),
    (OSError(errno.EIO, 'Input/output error', 'a'), 75),
    (ConnectionResetError(errno.ECONNRESET, 'Connection reset by peer'), 75),
    (TimeoutError('read'), 75),
    (library('NotFoundError', 'Error executing an HTTP request: HTTP response code 404'), 2),
    (library('PermissionDeniedError', 'HTTP response code 403 with body …'), 2),
    (library('UnavailableError', 'HTTP response code 503'), 75),
    (library('AbortedError', "Couldn't resolve host 'storage.googleapis.com'"), 75),
    (library('ClientError', 'Cannot connect to host storage.googleapis.com:443', OSError), 75),
    (library('PermissionDeniedError', 'gs://my-temporary-502/run: HTTP response code 403'), 2),
    (library('InvalidArgumentError', 'slice index 502 of dimension 0 out of bounds'), 2),
    (library('HttpError', 'Invalid bucket name, 400', OSError), 2),
  ],
)
def test_what_may_pass_by_itself_ends_with_75_and_what_would_happen_again_with_2(
  error, code, capsys
):

  def fail(argv):
    raise error

  with pytest.raises(SystemExit) as e:
    cli._guard(fail, [])
  said = capsys.readouterr().err
  assert e.value.code == code and said.startswith('error: ') and said.count('\n') == 1
  assert errors.TryAgain.code == os.EX_TEMPFAIL == 75


def test_ctrl_c_is_one_line_and_the_end_by_the_signal_which_ends_a_shells_loop_too():
  program = (
    'from bertzoo_jax.common import cli\n'
    'def main(_):\n  print("said")\n  raise KeyboardInterrupt\ncli.run(main)'
  )
  done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, cwd=ROOT)
  assert (done.returncode, done.stdout, done.stderr) == (
    -signal.SIGINT,
    'said\n',
    'error: Interrupted.\n',
  )


def test_an_error_of_the_program_keeps_its_trace_and_ends_with_1_where_others_wait(capsys):
  ended = []

  def fail(argv):
    raise ZeroDivisionError('here')

  with pytest.raises(ZeroDivisionError):
    cli._guard(fail, [])
  cli._guard(fail, [], ended.append)
  assert ended == [1] and 'ZeroDivisionError: here' in capsys.readouterr().err
