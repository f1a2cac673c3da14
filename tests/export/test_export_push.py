import hashlib
import inspect
import json
import os
import pathlib
import types

import huggingface_hub
import jax
import pytest
import small_networks as small
import test_export

from bertzoo_jax import export
from bertzoo_jax.common import errors
from bertzoo_jax.common import hub
from bertzoo_jax.hf import verify
from bertzoo_jax.runs import step_folders
from configs import bert
from tests import commands

NAME, TOKEN = 'owner/name', 'hf_fakeSecretOfTheTest'
ROOT = pathlib.Path(__file__).parents[2]
_SAYS = types.SimpleNamespace


class Hub:
  """The calls of HfApi that export makes. Its files lie as in a cache of that library."""

  def __init__(self, folder, token):
    assert token == TOKEN
    self._root = folder / f'models--{NAME.replace("/", "--")}'
    self._refs, self._commits = self._root / 'refs', self._root / 'snapshots'

  def repo_exists(self, name):
    return name == NAME and self._root.exists()

  def create_repo(self, name, private, exist_ok):
    assert private and exist_ok
    if not self.repo_exists(name):
      self._commit('main', {'.gitattributes': b'*.safetensors filter=lfs\n'})

  def list_repo_refs(self, name):
    return _SAYS(branches=[_SAYS(name=ref.name) for ref in self._refs.iterdir()])

  def list_repo_commits(self, name):
    first = hashlib.sha1(b'main').hexdigest()
    return [_SAYS(commit_id=(self._refs / 'main').read_text()), _SAYS(commit_id=first)]

  def create_branch(self, name, branch, revision, exist_ok):
    if not (exist_ok and (self._refs / branch).exists()):
      (self._refs / branch).write_text(revision)

  def list_repo_files(self, name, revision):
    folder = self._commits / (self._refs / revision).read_text()
    return [str(p.relative_to(folder)) for p in folder.rglob('*') if p.is_file()]

  def upload_folder(
    self, repo_id, folder_path, allow_patterns, revision, delete_patterns, commit_message
  ):
    assert delete_patterns == '*'
    files = {str(p.relative_to(folder_path)): p.read_bytes() for p in files_of(folder_path)}
    assert sorted(files) == sorted(allow_patterns)
    assert TOKEN.encode() not in b''.join(files.values())
    self._commit(revision, files | {'.gitattributes': b''})

  def _commit(self, branch, files):
    head, made = self._refs / branch, hashlib.sha1(branch.encode())
    while (self._commits / made.hexdigest()).exists():
      made.update(b'again')
    for file, data in files.items():
      blob = self._root / 'blobs' / hashlib.sha256(data).hexdigest()
      place = self._commits / made.hexdigest() / file
      for path in (blob, place, head):
        path.parent.mkdir(parents=True, exist_ok=True)
      blob.write_bytes(data)
      place.symlink_to(os.path.relpath(blob, place.parent))
    head.write_text(made.hexdigest())


def files_of(folder):
  return [p for p in pathlib.Path(folder).rglob('*') if p.is_file()]


def test_the_calls_are_those_of_the_library():
  for name, call in vars(Hub).items():
    if name.startswith('_'):
      continue
    theirs = inspect.signature(getattr(huggingface_hub.HfApi, name)).parameters
    assert {*inspect.signature(call).parameters} - {'name'} <= {*theirs}


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  """A run with checkpoints 7, kept after a million words, and 9."""
  path = tmp_path_factory.mktemp('run')
  params = test_export.make_workdir(path, bert.get_config('tiny'))
  (path / 'checkpoints' / '7').rename(path / 'seventh')
  small.save(path, jax.tree.map(lambda x: x + 0.125, params), step=9)
  (path / 'seventh').rename(path / 'checkpoints' / '7')
  manifest = path / 'checkpoints' / '7' / step_folders.MANIFEST
  manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {'words': [10**6]}))
  return path


@pytest.fixture
def remote(tmp_path, monkeypatch):
  folder = tmp_path / 'hub'
  client = _SAYS(get_token=lambda: TOKEN, HfApi=lambda token: Hub(folder, token))
  monkeypatch.setattr(hub, 'huggingface_hub', client)
  return folder


def run(workdir, out, **flags):
  usual = dict(architecture=None, all_checkpoints=False, push=None)
  export.main(_SAYS(workdir=str(workdir), out=str(out), **usual | flags))


OPENED = """
import sys, transformers
for revision in sys.argv[2:]:
  model = transformers.AutoModelForMaskedLM.from_pretrained(sys.argv[1], revision=revision)
  words = transformers.AutoTokenizer.from_pretrained(sys.argv[1], revision=revision)
  print(revision, float(model.cls.predictions.bias.sum().detach()), len(words))
"""


def test_each_kept_checkpoint_is_a_branch_that_transformers_opens_offline(
  workdir, remote, tmp_path, monkeypatch, capfd
):
  run(workdir, tmp_path / 'out', all_checkpoints=True, push=NAME)
  refs = remote / 'models--owner--name/refs'
  assert {ref.name for ref in refs.iterdir()} == {'main', 'chck_1M', 'step-9'}
  environment = commands.environment(HF_HUB_OFFLINE='1', HF_HUB_CACHE=str(remote))
  names = (NAME, 'main', 'chck_1M', 'step-9')
  opened = commands.run('-c', OPENED, *names, env=environment, check=True)
  main, seventh, ninth = (line.split()[1:] for line in opened.stdout.splitlines())
  assert main == ninth != seventh
  # the same command pushes what is left
  assert 'owner/name@chck_1M: pushed' in capfd.readouterr().out
  (refs / 'step-9').unlink()
  with pytest.raises(errors.UserError, match='step-9 exists and is not empty'):
    run(workdir, tmp_path / 'out', all_checkpoints=True, push=NAME)
  (tmp_path / 'out/step-9').rename(tmp_path / 'aside')
  run(workdir, tmp_path / 'out', all_checkpoints=True, push=NAME)
  output = ''.join(capfd.readouterr())
  assert output.count('pushed before') == 1 + 2 and 'owner/name@step-9: pushed\n' in output
  assert TOKEN not in output


@pytest.mark.parametrize(
  'flags, there, words',
  [
    (dict(push='a/b/c'), '', 'write OWNER/NAME'),
    (dict(push=f'{NAME}@x', all_checkpoints=True), '', 'leave @x out'),
    (dict(push=NAME), 'no token', 'run hf auth login, or set .HF_TOKEN'),
    (dict(push=NAME), 'no torch', 'needs torch, since only a verified export'),
    (dict(push=NAME), 'main', 'has files in its branch main already'),
    (dict(push=NAME, all_checkpoints=True), 'step-9', 'has files in its branch step-9 already'),
  ],
)
def test_a_push_that_must_not_be_is_one_sentence_before_anything_is_made(
  workdir, remote, tmp_path, monkeypatch, flags, there, words
):
  monkeypatch.setattr(verify, 'missing_packages', lambda: ['torch'] * (there == 'no torch'))
  if there == 'no token':
    hub.huggingface_hub.get_token = lambda: None
  elif there:
    (tmp_path / 'other').mkdir()
    (tmp_path / 'other' / 'config.json').write_text('{}')
    hub.Repository(NAME).push(there, tmp_path / 'other', ['config.json'])
  with pytest.raises(errors.UserError, match=words) as output:
    run(workdir, tmp_path / 'out', **flags)
  assert output.value.code == 2 and not (tmp_path / 'out').exists()


def test_an_unverified_directory_is_not_pushed_and_a_push_cut_short_is_made_whole_by_the_same_line(
  workdir, remote, tmp_path, monkeypatch
):
  push = lambda: run(workdir, tmp_path / 'out', push=f'{NAME}@new')
  wrong = [verify.Comparison('logits', '1.0', 'below 1e-4', False)]
  for at, name, broken, words in (
    (verify, 'compare_logits', lambda *_: wrong, 'reads the export differently'),
    (Hub, 'upload_folder', lambda *_, **__: 1 / 0, 'division by zero'),
  ):
    with monkeypatch.context() as patch, pytest.raises(errors.UserError, match=words):
      patch.setattr(at, name, broken)
      push()
    assert not (tmp_path / 'out').exists()
    assert at is Hub or not remote.exists()
  push()
  pushed = hub.Repository(NAME)._api.list_repo_files(NAME, 'new')
  made = {str(p.relative_to(tmp_path / 'out')) for p in files_of(tmp_path / 'out')}
  assert {*pushed} == made | {'.gitattributes'}


@pytest.mark.parametrize(
  'reason, offline, code, words',
  [
    (ConnectionError(f'no route, asked with {TOKEN}'), False, 75, 'run the same command again'),
    (ConnectionError('stay offline'), True, 2, 'OFFLINE is set: unset it, or leave --push'),
    (ValueError('offline'), True, 2, r'OFFLINE is set: unset it, or leave --push out\.$'),
    (ValueError(f'403 for {TOKEN}: no rights'), False, 2, 'correct the name, or give a token'),
  ],
)
def test_a_hub_that_takes_nothing_is_one_sentence_without_the_token(
  remote, tmp_path, monkeypatch, reason, offline, code, words
):
  def fail(*_, **__):
    raise reason

  monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', offline)
  monkeypatch.setattr(Hub, 'upload_folder', fail)
  with pytest.raises(errors.UserError, match=f'{NAME}@new cannot be pushed to .*{words}') as output:
    hub.Repository(NAME).push('new', tmp_path, [])
  assert output.value.code == code and TOKEN not in str(output.value)
