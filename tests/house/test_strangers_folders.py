import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import types
from unittest import mock

import pytest
import small_corpora

from bertzoo_jax import convert
from bertzoo_jax import export
from bertzoo_jax import parts
from bertzoo_jax import predict
from bertzoo_jax import prepare
from bertzoo_jax import tokenizers
from bertzoo_jax.common import hub
from bertzoo_jax.common import storage
from bertzoo_jax.corpus import corpus as corpora
from bertzoo_jax.hf import tokenizer as hf_tokenizer
from bertzoo_jax.pretrained import loading
from bertzoo_jax.runs import checkpoint
from bertzoo_jax.runs import metrics
from bertzoo_jax.runs import workdir as workdirs
from bertzoo_jax.tasks.reading import datasets
from bertzoo_jax.tasks.reading import files
from bertzoo_jax.text import finding
from configs import bert
from tests import commands
from tests.house.strangers import edit
from tests.house.strangers import link
from tests.refused import refused

INSIDE = 'leads out of|not a name inside|outside that folder'

NAMES = ['../../outside/corpus/train/00000', '', '.', '..', 'a\\b', 'a\0', 'a//b', './a', 'a/']
NAMES += ['\ud800', 7]
WITH_FILES = 'tokenizer_sha256', 'similar', 'sha256'  # sections of a manifest
FILES = {'corpus': 'tokenizer/vocab.txt', 'run': 'tokenizer/vocab.txt', 'hf': 'vocab.txt'}


def test_a_local_corpus_has_its_shards_inside(place):
  for name in (*NAMES, os.path.abspath('../outside/corpus/train/00000')):
    manifest = json.loads(pathlib.Path('corpus/manifest.json').read_text())
    manifest['splits']['train']['shards'][0]['name'] = name
    small_corpora.seal('corpus', manifest)
    for act in (corpora.open, corpora.verify):
      refused(INSIDE, act, 'corpus')


def test_a_local_corpus_has_all_its_files_inside(place):
  whole = pathlib.Path('corpus/manifest.json').read_text()
  names = ('../../outside/0.txt', '../../../outside/0.txt')
  for section, name in itertools.product(WITH_FILES, names):
    manifest = json.loads(whole)
    holder = manifest['splits']['train']['shards'][0] if section == 'sha256' else manifest
    holder[section] = {**(holder[section] or {}), name: storage.sha256('../outside/0.txt')}
    small_corpora.seal('corpus', manifest)
    refused(INSIDE, corpora.verify, 'corpus')


def test_weights_are_beside_their_index(place):
  pathlib.Path('hf/model.safetensors').rename('w.safetensors')
  index = pathlib.Path('hf/model.safetensors.index.json')
  for name in ('../outside/w.safetensors', '..safetensors/../w.safetensors'):
    index.write_text(json.dumps({'weight_map': {'a': name}}))
    refused('does not name the files|not a name inside', loading.load, 'hf:hf')


def card(path, **folder):
  """Writes the card of a data set of one file, of a folder of it."""
  rows = [{'split': 'train', 'path': path}]
  config = {'config_name': 'default', 'data_files': rows, **folder}
  # JSON is YAML
  pathlib.Path('set/README.md').write_text(f'---\n{json.dumps({"configs": [config]})}\n---\n')


@pytest.mark.parametrize('here', [False, True])
def test_a_data_set_has_its_files_inside(place, here, monkeypatch):
  pytest.importorskip('datasets')
  link('set/y.txt')
  outside = os.path.abspath('../outside/0.txt')
  for path in ('../../outside/0.txt', outside, '../../out*/*.txt', 'y.txt'):
    card(path)
    with monkeypatch.context() as patch:
      patch.chdir('set' if here else '.')
      refused(INSIDE, finding.find, f'hf:{"." if here else "./set"}')


def test_a_data_set_lists_no_folder_outside(place, monkeypatch):
  library = pytest.importorskip('datasets')
  monkeypatch.setattr(library, 'load_dataset_builder', lambda *_, **__: pytest.fail('it looks'))
  for folder in ('../../outside', '..', '/', 'a/../../../outside'):
    card('x.txt', data_dir=folder)
    refused(INSIDE, hub.data, 'hf:./set')


LAUGHS = [f'a{i}: &a{i} [{", ".join([f"*a{i - 1}"] * 10)}]' for i in range(1, 10)]
LAUGHS = '\n'.join(['a0: &a0 [x]', *LAUGHS])
ROWS = ['data_files: ../../outside/*.txt', 'data_files: *a9', 'data_dir: /']
ROWS += ['x: {data_files: *a0}']


@pytest.mark.parametrize('file', ['README.md', '.huggingface.yaml'])
def test_a_card_of_a_data_set_is_small_and_of_its_folder(place, file):
  pytest.importorskip('datasets')
  for rows in ROWS:
    text = f'{LAUGHS if "*a" in rows else ""}\nconfigs:\n- config_name: default\n  {rows}\n'
    pathlib.Path('set', file).write_text(text if 'yaml' in file else f'---\n{text}---\n')
    refused('outside that folder|has aliases', hub.data, 'hf:./set')


AT = 'hf://datasets/owner/{}@' + 'ab' * 20
ELSEWHERE = ['/etc/passwd', 'https://example.org/x', 'gs://bucket/x.txt']
ELSEWHERE += [AT.format('other') + '/x.txt', AT.format('name') + '/../../x.txt']


def test_a_data_set_of_the_hub_has_its_files_there(monkeypatch):
  monkeypatch.setitem(sys.modules, 'datasets', client := mock.Mock())
  for file in ELSEWHERE:
    config = types.SimpleNamespace(name='plain', data_files={'train': [file]})
    client.load_dataset_builder.return_value.config = config
    refused(INSIDE, hub.data, 'hf:owner/name')


TEMPLATES = ['../../../outside/0.txt', 'absolute', 'a/../../../../outside/0', 'names of classes']
TEMPLATES += ['a link to names', 'a link', 'a pipe']


@pytest.mark.parametrize('template', TEMPLATES)
def test_a_prepared_dataset_has_its_files_inside(place, template):
  folder, outside = pathlib.Path('tasks/mine/1.0.0'), os.path.abspath('../outside/0.txt')
  folder.mkdir(parents=True)
  kind = 'tensorflow_datasets.core.features.{}'.format
  classes = {'names_file': outside} if template == 'names of classes' else {'num_classes': 3}
  label = {'type': kind('class_label_feature.ClassLabel'), 'content': classes}
  content = {'text': {'type': kind('text_feature.Text'), 'content': {}}, 'label': label}
  features = {'type': kind('features_dict.FeaturesDict'), 'content': content}
  (folder / 'features.json').write_text(json.dumps(features))
  if template in ('a link to names', 'a link'):
    link(folder / ('label.labels.txt' if 'names' in template else 'x'))
  if template == 'a pipe':
    os.mkfifo(folder / 'label.labels.txt')
  template = outside if template == 'absolute' else template
  split = dict(name='train', numBytes='9', shardLengths=['1'], filepathTemplate=template)
  info = dict(name='mine', version='1.0.0', fileFormat='tfrecord', splits=[split])
  (folder / 'dataset_info.json').write_text(json.dumps(info))
  why = 'leads out of|not a name inside|give another dataset|is a pipe'
  refused(why, finding.find, f'tfds:{folder.absolute()}')
  refused(why, datasets._builder, 'mine', 'tasks')  # of finetune --task_dir


def test_classes_without_names_are_not_listed():
  feature = types.SimpleNamespace(num_classes=10**12, int2str=str)
  assert datasets._label(7, feature, ()) == '7' and datasets._label(-1, feature, ()) == ''
  assert datasets._label(1, feature, ('a|x', 'b')) == 'b' and datasets._label(2, None, ()) == '2'


open_corpus = lambda: corpora.open('corpus')
open_race = lambda: files.find('set', {'train': 'race'}, folders=True)
READS = {  # command: (a link in a folder of the stranger's, what opens the folder)
  'a tokenizer that no manifest lists': ('corpus/tokenizer/spiece.model', open_corpus),
  'a shard': ('corpus/train/00000.tokens.npy', open_corpus),
  'a folder of shards': ('corpus/train', open_corpus),
  'a vocabulary': ('hf/vocab.txt', lambda: loading.load('hf:hf')),
  'weights': ('hf/model.safetensors', lambda: loading.load('hf:hf')),
  'a vocabulary for prepare': ('hf/vocab.txt', lambda: tokenizers.load('hf', parts.wordpiece())),
  'a file of a checkpoint': ('run/checkpoints/7/x', lambda: checkpoint.load_params('run')),
  'a folder of a checkpoint': ('run/checkpoints/7/x', lambda: checkpoint.load_params('run@7')),
  'a checkpoint': ('run/checkpoints/7', lambda: loading.load('run')),
  'a tokenizer of a run': ('run/tokenizer/spiece.model', lambda: export.export('run', 'out')),
  'a config of a run': ('run/config.json', lambda: export.export('run', 'out')),
  'a file of a task': ('set/y.tsv', lambda: files.find('set', {'train': 'y.tsv'})),
  'a file of a task that is a folder': ('set/race/1.txt', open_race),
  'a config of a release': ('hf/electra_config.json', lambda: convert.convert('hf', 'out')),
}


@pytest.mark.parametrize('what', READS)
def test_a_link_out_of_a_folder_is_not_read_through(place, what):
  at, act = READS[what]
  if what == 'a config of a release':
    for name in ('config.json', 'model.safetensors'):
      pathlib.Path('hf', name).unlink()
  folder = what.startswith('a folder') or what == 'a checkpoint'
  link(at, '../outside' if folder else '../outside/0.txt')
  refused(INSIDE, act)
  assert not pathlib.Path('out').exists()


WRITES = ['attempts.jsonl', 'metrics.jsonl', 'loss.png', 'tensorboard', 'checkpoints', 'tokenizer']
WRITES += ['checkpoints/9', 'wandb', 'lock', 'a/b/c']


@pytest.mark.parametrize('target', ['../outside/0.txt', '../outside', '../outside/new'])
def test_a_workdir_with_a_link_out_of_it_is_not_written_to(place, target):
  for name in WRITES:
    shutil.copytree('run', f'new/{name}')
    link(f'new/{name}/{name}', target)
    refused('leads out of', workdirs.check_unlike, f'new/{name}', workdirs.A_CORPUS)


@pytest.mark.parametrize('at', ['plan.json', 'train', '.lock'])
def test_an_unfinished_corpus_with_a_link_out_of_it_is_not_written_to(place, at):
  pathlib.Path('new').mkdir()
  link(f'new/{at}', '../outside')
  refused(INSIDE, prepare.prepare, bert.get_config('tiny'), ['set/x.txt'], 'new', say=id)


def test_a_file_is_not_written_through_a_link_inside_a_folder_either(place, monkeypatch):
  """One that appears after the links were looked at leads out."""
  for name in ('loss.png', 'config.json', '.loss.png', 'metrics.jsonl', 'attempts.jsonl'):
    link(f'run/{name}', '../outside/0.txt')
  monkeypatch.setattr(os, 'getpid', lambda: 7)
  for name in ('config.json', 'loss.png'):
    link(f'run/{name}.7.part')
  storage.write_text('run/config.json', '{}')
  assert pathlib.Path('run/config.json').read_text() == '{}'
  metrics.plot('run')
  assert pathlib.Path('run/loss.png').read_bytes()[:4] == b'\x89PNG'
  refused('is a link', storage.append_line, 'run/attempts.jsonl', '{}')
  monkeypatch.setattr(metrics, '_rewrite', lambda *_: None)
  refused('is a link', metrics.Record, 'run', 0, 1)


OUTS = {
  'x.npy': lambda: storage.check_new('x.npy'),
  'x.tsv': lambda: predict.predict('run', 'set/x.txt', 'x.tsv'),
  'out': lambda: export.export('run', 'out'),
  'new': lambda: convert.convert('hf', 'new'),
}


@pytest.mark.parametrize('target', ['../outside/new', '../outside/0.txt', '../outside'])
@pytest.mark.parametrize('out', OUTS)
def test_an_out_that_is_a_link_is_not_replaced(place, out, target):
  link(out, target)
  refused('exists and is not', OUTS[out])
  assert pathlib.Path(out).is_symlink()


def test_a_package_below_the_repository_of_a_stranger_asks_git_nothing(place, monkeypatch):
  """`git status` runs what a repository's core.fsmonitor names."""
  hook = pathlib.Path('hook').absolute()
  hook.write_text('#!/bin/sh\ntouch "$0.ran"\n')
  hook.chmod(0o755)
  for line in ('init -q', 'add set', 'commit -qm x', f'config core.fsmonitor {hook}'):
    who = ['-c', 'user.name=a', '-c', 'user.email=a@b']
    subprocess.run(['git', *who, *line.split()], check=True)
  at = pathlib.Path('lib/bertzoo_jax/runs/workdir.py')
  at.parent.mkdir(parents=True)
  monkeypatch.setattr(workdirs, '__file__', str(at.absolute()))
  assert workdirs.commit() is None and not pathlib.Path('hook.ran').exists()


def test_a_matplotlibrc_of_the_current_folder_is_not_read(tmp_path):
  lines = 'text.usetex: True\nfont.size: 1e30\nbackend: module://x'
  (tmp_path / 'matplotlibrc').write_text(lines)
  (tmp_path / 'metrics.jsonl').write_text('{"step": 1, "loss": 2.0}\n')
  code = 'from bertzoo_jax.runs import metrics; print(metrics.plot("."))'
  done = commands.run('-c', code, cwd=tmp_path)
  assert done.stdout == 'True\n', done.stderr


def test_an_export_has_no_file_that_the_tokenizer_does_not_need(place, monkeypatch):
  """A run's WordPiece, with files beside it that an earlier version copied there."""
  beside, names = {'notes.model', 'spiece.model', 'id_rsa'}, []
  for name in beside:
    pathlib.Path('run/tokenizer', name).write_text('a secret')
  monkeypatch.setattr(export, '_verify', lambda *_: None)
  export.export('run', 'out', push=lambda folder, files: names.extend(files))
  assert sorted(names) == sorted(p.name for p in pathlib.Path('out').iterdir())
  assert not beside & {*names} and 'vocab.txt' in names


def test_a_published_tokenizer_is_copied_by_name_and_without_code(place):
  for name in ('notes.model', 'id_rsa'):
    link(f'hf/{name}')
  auto_map = {'AutoTokenizer': ['evil.part', None]}
  edit('hf/tokenizer_config.json', auto_map=auto_map, vocab_file='../outside/0.txt')
  files = hf_tokenizer.published(loading.load('hf:hf').pretrained.tokenizer_folder)
  assert {'vocab.txt', 'tokenizer.json', 'tokenizer_config.json'} <= {*files} <= {*hub.TOKENIZER}
  kept = json.loads(files['tokenizer_config.json'])
  assert not {'auto_map', 'vocab_file'} & {*kept} and 'cls_token' in kept


@pytest.mark.parametrize('name', FILES)
def test_a_folder_may_be_a_link_and_have_links_inside_it(place, name):
  at = pathlib.Path(name, FILES[name])
  at.rename(at.parent / 'kept')
  at.symlink_to('kept')
  pathlib.Path(name).rename('elsewhere')
  link(name, 'elsewhere')
  if name == 'corpus':
    corpora.verify(name)
    assert corpora.open(name).vocab_size == 32
    return
  assert loading.load('run' if name == 'run' else 'hf:hf').tokenizer.vocab_size == 600
  with workdirs.writable(name) as real:
    workdirs.check_unlike(name)
    storage.append_line(real / 'attempts.jsonl', '{}')


def test_a_folder_of_the_hubs_cache_has_links_to_its_blobs_alone(place):
  cache = pathlib.Path('models--a--b')
  (cache / 'snapshots').mkdir(parents=True)
  pathlib.Path('hf').rename(cache / 'snapshots/c')
  (cache / 'blobs').mkdir()
  for file in list((cache / 'snapshots/c').iterdir()):
    file.rename(cache / 'blobs' / file.name)
    file.symlink_to(f'../../blobs/{file.name}')
  address = f'hf:{cache}/snapshots/c'
  assert loading.load(address).tokenizer.vocab_size == 600
  below = cache / 'snapshots/d/discriminator'
  below.mkdir(parents=True)
  for file in (cache / 'blobs').iterdir():
    (below / file.name).symlink_to(f'../../../blobs/{file.name}')
  assert loading.load(f'hf:{below}').tokenizer.vocab_size == 600
  (cache / 'snapshots/c/vocab.txt').unlink()
  link(cache / 'snapshots/c/vocab.txt')
  refused('leads out of', loading.load, address)


def test_the_logs_of_wandb_in_a_workdir_lead_to_its_cache(place):
  logs = pathlib.Path('run/wandb/run-1/logs')
  logs.mkdir(parents=True)
  link(logs / 'debug-core.log')
  with workdirs.writable('run'):
    workdirs.check_unlike('run')
  assert loading.load('run').tokenizer.vocab_size == 600
  link('run/wandb2')
  refused('leads out of', loading.load, 'run')


def test_links_that_go_round_end(place):
  for name in ('a', 'b'):
    pathlib.Path('run/checkpoints/7', name).symlink_to('.')
  pathlib.Path('run/loop').symlink_to('loop')
  assert loading.load('run').tokenizer.vocab_size == 600
