"""A flag of a suite without a task's name sets the field of every task."""

import json
import os
import pathlib
import subprocess
import sys

import ml_collections
import pytest

from bertzoo_jax.common import suites

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = """
import json
from absl import flags
from bertzoo_jax.common import cli
cli.define_config(fields=())
read = lambda c: (c.batch_size, list(c.seeds), c.schedule.learning_rate, c.run.tensorboard)
cli.run(lambda _: print(json.dumps({k: read(c) for k, c in flags.FLAGS.config.suite.items()})))
"""


def _run(*flags):
  return subprocess.run(
    [sys.executable, '-c', PROGRAM, '--config', 'configs/tasks/glue.py:all', *flags],
    capture_output=True,
    text=True,
    cwd=ROOT,
    env={**os.environ, 'PYTHONPATH': str(ROOT)},
  )


def test_a_flag_sets_a_field_of_every_task_and_a_task_s_own_flag_wins():
  given = ('--config.batch_size', '8', '--config.seeds=0,1', '--noconfig.run.tensorboard')
  done = _run('--config.suite.rte.batch_size=4', *given, '--config.schedule.learning_rate=1e-3')
  assert not done.stderr
  found = json.loads(done.stdout)
  assert len(found) == 9 and found.pop('rte') == [4, [0, 1], 1e-3, False]
  assert all(one == [8, [0, 1], 1e-3, False] for one in found.values())


@pytest.mark.parametrize(
  'flag, words',
  [
    ('--config.batch_siz=8', "no field 'batch_siz'. Did you mean --config.batch_size?\n"),
    ('--config.schedule.lr=1', 'Did you mean --config.schedule.learning_rate?\n'),
    ('--config.learning_rate=1', 'Did you mean --config.schedule.learning_rate?\n'),
    ('--config.suite.rte.batch_siz=8', 'Did you mean --config.suite.rte.batch_size?\n'),
    ('--batch_size=8', 'Did you mean --config.batch_size?\n'),
    # of one task alone
    (
      '--config.source.files.test_ax=AX.tsv',
      'Not every task has it: set --config.suite.mnli.source.files.test_ax.\n',
    ),
  ],
)
def test_a_misspelt_field_of_a_suite_is_answered_with_the_one_for_every_task(flag, words):
  done = _run(flag)
  assert done.returncode == 2 and done.stderr.startswith('error: ') and words in done.stderr, (
    done.stderr
  )
  assert done.stderr.count('\n') == 1


def test_a_config_without_a_suite_keeps_its_command_line():
  config = ml_collections.ConfigDict({'a': {'b': 1}})
  argv = ['x', '--config', 'F', '--config.a.b', '2']
  assert suites.expanded(argv, config) == argv and suites.fields(config) == {'a.b': 1}
  assert suites.expanded(argv, {}) == argv


@pytest.mark.parametrize(
  'given, kept',
  [
    ('--config.run.mesh=(1,1,1) --steps=3 --config.run.mesh=(2,1,1)', '1 2'),
    ('--config.run.mesh (1,1,1) --config.run.mesh -1,1,1', '2 3'),
    ('--config.run.mesh=1,1,1 --config.run.mesh 2,1,1 --config.length=3', '1 2 3'),
    ('--config.a --noconfig.a --config.b=1', '1 2'),
    ('--config.a=1 --config.a.b=2', '0 1'),
  ],
)
def test_a_field_that_is_set_twice_has_the_later_value(given, kept):
  given = given.split()
  found = suites.last_of_each(['command', '--config', 'c.py', *given])
  assert found == ['command', '--config', 'c.py', *(given[int(i)] for i in kept.split())]
