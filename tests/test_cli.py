"""A mistake on the command line ends with one sentence, the remedy, and exit code 2."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PREPARE = ('--source', 'a.txt', '--out', 'c')


def _run(*flags):
  return subprocess.run([sys.executable, '-m', 'bertzoo_jax.prepare', *flags], cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize('flags, words', [
    (('--config', 'configs/bert.py:tiny', '--config.masking.rat=0.2'), "no field 'rat'. Did you mean --config.masking.rate?"),
    (('--config', 'configs/bert.py:tiny', '--config.learning_rate=1'), 'Did you mean --config.schedule.learning_rate?'),
    (('--config', 'configs/bert.py:tiny', '--config.steps=5'), 'steps stand in config.phases'),
    (('--config', 'configs/bert.py:tinny'), "Did you mean 'tiny'?"),
    (('--config', 'configs/bret.py:tiny'), 'there is no config file configs/bret.py'),
    (('--config', 'configs/bert.py:tiny', '--sourc', 'b'), '--sourc is no flag (see --help). Did you mean --source?'),
    (('--config', 'configs/bert.py:tiny', 'b'), "'b' is not a flag"),
    ((), '--config is missing'),
])
def test_a_wrong_flag_is_one_sentence_with_what_was_meant(flags, words):
  done = _run(*PREPARE, *flags)
  assert done.returncode == 2 and done.stderr.startswith('error: ') and words in done.stderr, done.stderr
  assert done.stderr.count('\n') == 1 and not done.stdout


def test_help_speaks_of_the_config():
  assert '--config.section.key=value' in ' '.join(_run('--help').stdout.split())
