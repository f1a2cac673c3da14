import json
import pathlib
from unittest import mock

import pytest
import toys

from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.experiment import start as start_lib
from bertzoo_jax.runs import step_folders
from bertzoo_jax.runs import workdir as workdirs
from tests.refused import refused


def test_attempts_are_appended_and_a_line_that_is_damaged_is_left_as_it_is(tmp_path, capsys):
  at = dict(corpus_hash='abc', start_step=0, devices='1 × cpu', init=None)
  add = lambda: workdirs.add_attempt(tmp_path, **at)
  file = tmp_path / 'attempts.jsonl'
  assert [add(), add()] == [1, 2]
  damaged = b'\xff' + file.read_bytes()[1:] + b'{"attem'
  file.write_bytes(damaged)
  inode = file.stat().st_ino
  assert add() == 3
  assert file.stat().st_ino == inode and file.read_bytes().startswith(damaged)
  assert [a['attempt'] for a in workdirs.attempts(tmp_path)] == [2, 3]
  last = workdirs.attempts(tmp_path)[-1]
  assert last['versions']['jax'] and last['command'] and last['host']
  assert 'line(s) cannot be read' in capsys.readouterr().out


def test_models_that_a_run_began_with_are_known_through_runs_between(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  pathlib.Path('org/local').mkdir(parents=True)
  inits = dict(first='hf:org/name@v2,hf:gpt', second='first@7', local='hf:org/local', fresh=None)
  for run, init in inits.items():
    pathlib.Path(run).mkdir()
    workdirs.add_attempt(run, corpus_hash='', start_step=0, devices='', init=init)
  assert workdirs.base_models('first') == workdirs.base_models('second') == ('org/name', 'gpt')
  assert workdirs.base_models('local') == workdirs.base_models('fresh') == ()


def test_the_first_weights_of_a_run_are_those_of_the_last_attempt_that_began_at_step_0(tmp_path):
  assert workdirs.first_weights(tmp_path) is None and workdirs.first_taken(tmp_path) == {}
  for start, init, layers in ((0, 'OTHER', ''), (0, 'W@best', 'first:3'), (7, 'NOT_USED', '')):
    of = dict(corpus_hash='abc', start_step=start, devices='1', init=init)
    taken = start_lib.First(layers=layers, vocabulary='carry')._asdict()
    workdirs.add_attempt(tmp_path, **of, taken=taken)
  with open(tmp_path / 'attempts.jsonl', 'a') as f:
    f.write('{"attempt": 4, "start_step": 9}\n')
  assert workdirs.first_weights(tmp_path) == 'W@best'
  assert workdirs.first_taken(tmp_path) == {'layers': 'first:3', 'vocabulary': 'carry'}


def sealed_run(path, config, text):
  """A workdir whose only checkpoint has the copy that a run puts there."""
  folder = path / 'checkpoints/3'
  folder.mkdir(parents=True)
  run = {'config': json.loads(configuration.to_json(config)), 'corpus': text}
  storage.write_json(folder / 'run.json', run)
  sums = {'run.json': storage.sha256(folder / 'run.json')}
  storage.write_json(folder / step_folders.MANIFEST, {'files': sums})
  workdirs.describe(path, config, text, lambda folder: None)
  return path


DAMAGES = {
  'half': lambda data: data[: len(data) // 2],
  'byte': lambda data: data[:9] + b'\xff' + data[10:],
  'empty': lambda data: b'',
  'list': lambda data: b'[1]',
  'deep': lambda data: b'[' * 100000,
  'values': lambda data: data.replace(b'1', b'2').replace(b'a', b'b'),  # still JSON
}


@pytest.mark.parametrize('file', ['config.json', 'corpus.json'])
@pytest.mark.parametrize('damage', DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_written_again_from_the_checkpoints(tmp_path, capsys, file, damage):
  config = toys.config()
  workdir = sealed_run(tmp_path, config, {'hash': 'abc1'})
  whole = (workdir / file).read_bytes()
  (workdir / file).write_bytes(damage(whole))
  refused('another config: seed', workdirs.check_same_run, workdir, toys.config(seed=3), 'abc1')
  refused('trained on the corpus abc1', workdirs.check_same_run, workdir, config, 'abd')
  workdirs.check_same_run(workdir, config, 'abc1')
  capsys.readouterr()
  workdirs.describe(workdir, config, {'hash': 'abc1'}, lambda folder: None)
  output = capsys.readouterr().out
  assert (workdir / file).read_bytes() == whole
  assert output.count('\n') == 1 and f'{file} is damaged and is written again' in output
  assert (workdir / f'{file}.damaged').read_bytes() == damage(whole)


def test_who_only_reads_a_run_takes_the_config_of_its_checkpoints_if_its_own_is_damaged(tmp_path):
  workdir = sealed_run(tmp_path, toys.config(), {'hash': 'abc'})
  (workdir / 'config.json').write_bytes(b'{"seed": \xff')
  (workdir / 'corpus.json').write_bytes(b'{')
  assert workdirs.run_config(workdir) == toys.config()
  assert workdirs.corpus_record(workdir) == {'hash': 'abc'}
  (workdir / 'checkpoints/3/run.json').write_bytes(b'{}')  # not what its checksum says
  refused('no checkpoint has a copy', workdirs.run_config, workdir)


WRONG = [('config.json', b'adam', b'adal'), ('config.json', b'"seed": 0', b'"seed": 8')]
WRONG += [('corpus.json', b'abc', b'abb')]


@pytest.mark.parametrize('file, was, wrong', WRONG)
def test_before_the_first_checkpoint_a_file_that_no_attempt_has_noted_decides_nothing(
  tmp_path, capsys, file, was, wrong
):
  config = toys.config()
  workdirs.describe(tmp_path, config, {'hash': 'abc'}, lambda folder: None)
  workdirs.add_attempt(tmp_path, corpus_hash='abc', start_step=0, devices='1', init=None)
  whole = (tmp_path / file).read_bytes()
  (tmp_path / file).write_bytes(whole.replace(was, wrong))
  assert (tmp_path / file).read_bytes() != whole
  workdirs.check_same_run(tmp_path, config, 'abc')
  assert ('cannot be checked' in capsys.readouterr().out) == (file == 'config.json')
  workdirs.describe(tmp_path, config, {'hash': 'abc'}, lambda folder: None)
  assert (tmp_path / file).read_bytes() == whole
  refused('another config: seed', workdirs.check_same_run, tmp_path, toys.config(seed=3), 'abc')


def test_a_workdir_that_cannot_be_written_is_a_mistake_unless_that_may_pass(tmp_path, monkeypatch):
  (tmp_path / 'file').write_text('')

  def write(folder):
    with workdirs.writable(tmp_path / folder):
      pass

  assert refused('--workdir .* give a folder', write, 'file/run').code == 2
  late = mock.Mock(side_effect=TimeoutError('no answer'))
  monkeypatch.setattr(workdirs.storage, 'write_text', late)
  refused('--workdir .* again', write, 'run', kind=errors.TransientError)
  assert not (tmp_path / 'run').exists()
