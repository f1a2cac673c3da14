"""What the README tells people to type is typed here."""

import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / 'README.md').read_text()
BY_HAND = re.search(r'### The same by hand\n+```bash\n(.*?)```', README, re.S).group(1).splitlines()
COMMANDS = [
  c.strip(' `')
  for c in re.findall(r'python (-m bertzoo_jax\.[^\n`\']*(?:\'[^\n\']*\'[^\n`\']*)*)', README)
]
MY_LANGUAGE = re.search(r'```python\n(.*?)```', README, re.S).group(1)


def _run(arguments, cwd, **environment):
  # compiled as quickly as here; `make demo` has none
  flags = ' '.join(f for f in os.environ['XLA_FLAGS'].split() if 'device_count' not in f)
  env = {
    **os.environ,
    'PYTHONPATH': str(ROOT),
    'JAX_PLATFORMS': 'cpu',
    'XLA_FLAGS': flags,
    **environment,
  }
  return subprocess.run(
    [sys.executable, *arguments], cwd=cwd, env=env, capture_output=True, text=True, timeout=540
  )


@pytest.fixture
def checkout(tmp_path):
  for name in ('configs', 'data', 'bertzoo_jax'):
    (tmp_path / name).symlink_to(ROOT / name)
  return tmp_path


def test_the_commands_by_hand_make_a_model_that_fills_a_mask(checkout):
  commands = [line for line in BY_HAND if line.startswith('python ')]
  assert [re.search(r'bertzoo_jax\.([\w.]+)', c).group(1) for c in commands] == [
    'prepare',
    'show',
    'pretrain',
    'export',
    'hf.fill_mask',
  ]
  for command in commands:
    done = _run(shlex.split(command.replace('bert.py:tiny', 'bert.py:tiny,steps=20'))[1:], checkout)
    assert done.returncode == 0, f'{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}'
  assert done.stdout.count('%') == 5  # five fillings with their shares


def test_my_own_language_is_ten_lines_on_top_of_another_config(tmp_path):
  assert len(MY_LANGUAGE.strip().splitlines()) <= 10
  namespace = {}
  exec(MY_LANGUAGE, namespace)
  config = namespace['get_config']()
  assert (
    config.tokenizer.vocab_size == 50_000 and sum(steps for steps, _ in config.phases) == 100_000
  )


@pytest.mark.parametrize('command', sorted({c for c in COMMANDS}))
def test_every_command_of_the_readme_has_flags_that_exist(command, tmp_path):
  module, *flags = shlex.split(command)[1:]
  (tmp_path / 'configs').mkdir()
  for path in (ROOT / 'configs').glob('*.py'):
    (tmp_path / 'configs' / path.name).symlink_to(path)
  (tmp_path / 'configs' / 'estonian.py').write_text(MY_LANGUAGE)
  flags = ['configs/bert.py:tiny' if f == 'C' else f for f in flags]
  done = _run(['-m', module, *flags, '--only_check_args'], tmp_path)
  assert done.returncode == 0, done.stderr[-2000:]


def test_the_makefile_has_the_two_commands():
  targets = re.findall(r'^([a-z-]+):', (ROOT / 'Makefile').read_text(), re.M)
  assert {'demo', 'test'} <= set(targets)
  ci = (ROOT / '.ci' / 'run').read_text()
  assert 'make test' in ci and 'make demo' in ci
