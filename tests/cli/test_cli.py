import errno
import os
import pathlib
import re
import signal

import pytest

from bertzoo_jax import __main__ as bertzoo
from bertzoo_jax import cli
from bertzoo_jax.common import errors
from tests import commands
from tests.cli import forked

ROOT = pathlib.Path(__file__).parents[2]

PROGRAM = """'''What this does.

    usage: one line

Exit codes: many.
'''
from absl import flags
from bertzoo_jax import cli

cli.define_config()
flags.DEFINE_string('corpus', None, 'Of a run.')
cli.run(lambda _: print('ran'))
"""


def _small(*flags, **options):
  return forked.run(PROGRAM, *flags, **options)


RATE = 'Did you mean --config.schedule.learning_rate?'
TINY = '--config=configs/bert.py:tiny'

WRONG = [
  (f'{TINY} --config.masking.rat=0.2', "'rat'. Did you mean --config.masking.rate?"),
  (f'{TINY} --config.optimiser.lr=1', RATE),
  (f'{TINY} --config.optimiser.zzz=1', 'mean --config.optimizer? There is: b1'),
  (f'{TINY} --config.format.nam=a', 'Did you mean --config.format.name?\n'),
  (f'{TINY} --config.fromat=a', 'Did you mean --config.format?'),
  (f'{TINY} --config.steps=5', 'steps are those of config.phases'),
  (f'{TINY} b', "'b' is not a flag"),
  (f'{TINY} --lr=1', f'--lr is no flag (see --help). {RATE}'),
  (f'{TINY} --config.lr=1', RATE),
  (f'{TINY} --layers=1', 'Did you mean --config.encoder.num_layers?'),
  (f'{TINY} --corpu=a', '--corpu is no flag (see --help). Did you mean --corpus?'),
  (f'{TINY} --config=configs/bert.py:base', '--config is given twice, and takes one value'),
  (f'{TINY} --steps=10', 'write --config FILE.py:SIZE,steps=N'),
  (f'{TINY} --qqq=1', '--config.section.field=value'),
  ('--config=configs/bert.py:tinny', "Did you mean 'tiny'?"),
  ('--config=configs/bret.py:tiny', 'there is no config file configs/bret.py'),
  ('--config=', 'there is no shipped config'),
  ('--corpus=a', '--config is missing'),
]


def test_a_wrong_flag_is_one_sentence_with_what_was_meant():
  for line, words in WRONG:
    done = _small(*line.split())
    assert done.returncode == 2 and done.stderr.startswith('error: ') and not done.stdout, line
    assert words in done.stderr and done.stderr.count('\n') == 1, (line, done.stderr)


def test_help_with_a_config_says_what_each_of_its_fields_means():
  second = '--config.optimizer.b2=0.98\n      decay of the second moment; a number from 0 to'
  warmup = '--config.warmup=0.1\n      below 1 a share of all steps'
  for config, words in (('bert:tiny', second), ('tasks/glue:all', warmup)):
    done = _small(f'--config={config}', '--help')
    assert done.returncode == 0 and words in done.stdout, done.stdout + done.stderr
    assert 'usage' not in done.stdout


def test_help_has_the_programs_own_flags_behind_its_usage_and_no_other():
  done = _small('--help')
  assert done.returncode == 0
  assert done.stdout == (
    'What this does.\n\n    usage: one line\n\nFlags:\n'
    '  --config         Experiment: configs/FILE.py:SIZE[,section=part,…], then\n'
    '                   --config.section.key=value.\n'
    '  --corpus         Of a run.\n'
    '  --trust-code     Runs code outside bertzoo_jax that the given folders name: for runs of '
    'your own.\n'
    '                   Parts that --config names need no such flag.\n\n'
    'Exit codes: many.\n\nFlags of the libraries: --helpfull.\n'
  )


@pytest.mark.parametrize('name', bertzoo.COMMANDS)
def test_help_waits_for_no_library_of_networks(name):
  done = forked.run(forked.COMMAND, name, '--help')
  assert done.returncode == 0 and 'Flags of the libraries' in done.stdout, done.stderr
  assert done.stdout.endswith('\nimported:\n'), done.stdout


def test_other_commands_say_it_in_one_sentence_too():
  wrong = '--config=configs/tasks/gleu.py:rte --workdir=b'  # for commands without an experiment
  for line, words in (
    ('demo --steps=5', 'error: --steps is no flag: --help lists the flags.\n'),
    (f'finetune --init=a {wrong}', 'there is no config file conf'),
    (f'reproduce {wrong}', 'there is no config file conf'),
  ):
    done = forked.run(forked.COMMAND, *line.split())
    assert done.returncode == 2 and words in done.stderr and done.stderr.count('\n') == 1, line


def test_a_config_file_that_fails_or_returns_no_experiment_is_one_sentence(tmp_path):
  head = 'def get_config(task):\n  from bertzoo_jax.configs.tasks import glue\n  return'
  for body, words in (
    ("bert.get_config('tinny')", f"{tmp_path}/mine.py:3: NameError: name 'bert' is not defined"),
    ('dict(seed=1)', "mine.py: get_config() returns a config without 'length'"),
    ("glue.get_config('rte')", 'mine.py is a fine-tuning'),
    ("glue.get_config('all')", 'mine.py is a fine-tuning'),
  ):
    (tmp_path / 'mine.py').write_text(f'{head} {body}\n')
    done = _small('--config=mine.py:tiny', cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count('\n') == 1, done.stderr
    assert done.stderr.startswith('error: ') and words in done.stderr, (body, done.stderr)


def coded(number):
  """An error as a library of an object store raises it."""
  module = 'tensorflow.python.framework.errors_impl'
  return type('OpError', (Exception,), {'error_code': number, '__module__': module})('code 502')


@pytest.mark.parametrize(
  'error, code',
  [
    (errors.UserError('a sentence'), 2),
    (errors.TransientError('a sentence'), 75),
    (FileNotFoundError(errno.ENOENT, 'No such file', 'a'), 2),
    (OSError(errno.ENOSPC, 'No space left on device'), 2),
    (OSError(errno.EIO, 'Input/output error', 'a'), 75),
    (TimeoutError('read'), 75),
    (coded(5), 2),
    (coded(14), 75),
    (MemoryError(), 3),
    (RuntimeError("can't start new thread"), 3),
    (ImportError('libx.so.2: failed to map segment from shared object'), 3),
  ],
)
def test_errors_that_may_pass_end_with_75_and_others_with_2(error, code, capsys):

  def fail(argv):
    raise error

  with pytest.raises(SystemExit) as e:
    cli._guard(fail, [])
  printed = capsys.readouterr().err
  assert e.value.code == code and printed.startswith('error: ') and printed.count('\n') == 1
  assert errors.TransientError.code == os.EX_TEMPFAIL == 75


def test_ctrl_c_is_one_line_and_the_end_by_the_signal_which_ends_a_shells_loop_too():
  program = 'from bertzoo_jax import cli\ndef main(_):\n  print("begun")\n'
  program += '  raise KeyboardInterrupt\ncli.run(main)'
  done = commands.run('-c', program)
  ended = done.returncode, done.stdout, done.stderr
  assert ended == (-signal.SIGINT, 'begun\n', 'error: Interrupted.\n')


def test_an_error_of_the_program_keeps_its_trace_and_ends_with_1_where_others_wait(capsys):
  ended = []

  def fail(argv):
    raise ZeroDivisionError('here')

  with pytest.raises(ZeroDivisionError):
    cli._guard(fail, [])
  cli._guard(fail, [], ended.append)
  assert ended == [1] and 'ZeroDivisionError: here' in capsys.readouterr().err


def test_bertzoo_is_every_command_by_its_name():
  files = {p for p in (ROOT / 'bertzoo_jax').rglob('*.py') if 'cli.run(main' in p.read_text()}
  names = {p.parent.name if p.stem == '__main__' else p.stem for p in files}
  assert set(bertzoo.COMMANDS) == names
  run = lambda *line: forked.run(forked.COMMAND, *line)
  listed = run('__main__').stdout
  assert all(re.search(rf'^  {name} +\w.{{15,}}$', listed, re.M) for name in names)
  one, other = run('__main__', 'prepare', '--sourc=b'), run('prepare', '--sourc=b')
  assert (one.returncode, one.stderr) == (other.returncode, other.stderr) and 'mean' in one.stderr
  wrong = run('__main__', 'pretrian')
  assert wrong.returncode == 2 and "Did you mean 'pretrain'?" in wrong.stderr
