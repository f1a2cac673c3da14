"""A stranger's corpus, run, Hugging Face directory, datasets and tables: opened by every command
that opens one, they run nothing.
"""

import contextlib
import importlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
import rich.console
import small_corpora

import bertzoo_jax
from bertzoo_jax import export
from bertzoo_jax import fill_mask
from bertzoo_jax import objectives
from bertzoo_jax import parts as config_parts
from bertzoo_jax import pretrained
from bertzoo_jax import tokenizers
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.common import hub
from bertzoo_jax.common import storage
from bertzoo_jax.common import trust
from bertzoo_jax.corpus import corpus as corpora
from bertzoo_jax.evaluate import gaps
from bertzoo_jax.evaluate import scores
from bertzoo_jax.finetune import plan
from bertzoo_jax.parts import named
from bertzoo_jax.pretrained import initial_weights
from bertzoo_jax.pretrained import loading
from bertzoo_jax.reproduce import plan as tables
from bertzoo_jax.show import __main__ as show
from bertzoo_jax.tasks.reading import datasets
from bertzoo_jax.text import finding
from configs import bert
from configs.tables import albert_table5
from tests.pretrained.test_loading import make_run
from tests.pretrained.test_loading import written

ROOT = pathlib.Path(__file__).parents[2]
SAMPLE = ROOT / 'data/sample/time_machine.txt'


@pytest.fixture(autouse=True)
def nothing_is_named_yet():
  trust.set_allowed((frozenset(), False))


@pytest.fixture(scope='module')
def good(tmp_path_factory):
  """A run, its export and a corpus, as their owners made them."""
  folder = tmp_path_factory.mktemp('good')
  (folder / 'run').mkdir()
  make_run(folder / 'run', 'bert')
  written(folder / 'run', folder / 'hf')
  small_corpora.write(folder / 'corpus')
  return folder


@pytest.fixture
def place(good, tmp_path, monkeypatch):
  """A copy of these, where modules are found. Each folder holds `evil.py`, which leaves a trace."""
  shutil.copytree(good, tmp_path / 'place')
  trace = tmp_path / 'trace'
  touch = f'import pathlib\npathlib.Path({str(trace)!r}).touch()\n'
  for folder in (tmp_path / 'place').iterdir():
    (folder / 'evil.py').write_text(f'{touch}def part(*_, **__): pass\n')
  monkeypatch.chdir(tmp_path / 'place')
  monkeypatch.syspath_prepend(tmp_path / 'place')
  yield pathlib.Path()
  for name in [n for n in sys.modules if n.split('.')[0] in ('run', 'hf', 'corpus')]:
    del sys.modules[name]
  assert not trace.exists(), 'code of the folder ran'


def edit(file, **fields):
  content = json.loads(file.read_text())
  for key, value in fields.items():
    *sections, last = key.split('__')
    node = content
    for section in sections:
      node = node[section]
    node[last] = value
  file.write_text(json.dumps(content))


def exec_of(file):
  """A section whose part is Python's exec, by another name, and takes the section's fields."""
  place = next(p for p in file.absolute().parents if p.name == 'place')
  text = f'import pathlib; pathlib.Path({str(place.parent / "trace")!r}).touch()'
  return {'name': 'numpy.testing:runstring', 'astr': text, 'dict': {}}


def section(file):
  if not file.exists():
    file.write_text(json.dumps({'special': {}, 'hash': ''}))
  edit(file, section=exec_of(file))


RUN = {  # what a stranger wrote into config.json of a run, or beside it
  'encoder': lambda: edit(pathlib.Path('run/config.json'), encoder__name='run.evil:part'),
  'objective': lambda: edit(pathlib.Path('run/config.json'), objective__name='run.evil:part'),
  'class': lambda: edit(pathlib.Path('run/config.json'), hf='run.evil:NAMES'),
  'tokenizer': lambda: section(pathlib.Path('run/tokenizer/bertzoo.json')),
}


def begin_with(address):
  """The steps of pretrain with --init, and then with the tokenizer of the weights."""
  objective = objectives.build(bert.get_config('tiny'), 600)
  fresh = jax.eval_shape(objective.init, jax.random.key(0))
  fresh = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), fresh)
  initial_weights.parameters(fresh, address, objective, None, 'BertForPreTraining')


def fine_tune(address):
  loading.tokenizer_of(plan.weights(address)[0])


READERS = {
  'load': lambda a: bertzoo_jax.load(a).tokenizer,
  'encode': lambda a: bertzoo_jax.load(a).encode(['a']),
  'finetune --init': fine_tune,
}
OPENERS = {
  **READERS,
  'pretrain --init': begin_with,
  'evaluate': lambda a: scores.evaluate(a, 'corpus'),
  'evaluate --gaps': lambda a: gaps.find(a, 'corpus'),
  'export': lambda a: export.export(a, 'out'),
}
LATE = {('tokenizer', command) for command in ('evaluate', 'evaluate --gaps', 'pretrain --init')}
LATE |= {('class', command) for command in ('evaluate', 'evaluate --gaps', 'pretrain --init')}


@pytest.mark.parametrize(
  'poison, command',
  [(p, c) for p in RUN for c in OPENERS if (p, c) not in LATE],  # those never look there
)
def test_a_run_that_names_code_of_its_own_is_refused(place, poison, command):
  RUN[poison]()
  # export compares the tokenizer with the config's first
  compared = (poison, command) == ('tokenizer', 'export')
  why = 'does not match the config' if compared else 'outside bertzoo_jax.*--trust-code'
  with pytest.raises(errors.UserError, match=why) as e:
    OPENERS[command]('run')
  assert '\n' not in str(e.value)


@pytest.mark.parametrize('command', [*READERS, 'prepare --tokenizer'])
def test_a_hugging_face_directory_with_a_tokenizer_of_its_own_is_refused(place, command):
  section(pathlib.Path('hf/bertzoo.json'))
  readers = {
    **{name: lambda read=read: read('hf:hf') for name, read in READERS.items()},
    'prepare --tokenizer': lambda: tokenizers.load('hf'),
  }
  with pytest.raises(errors.UserError, match='outside bertzoo_jax'):
    readers[command]()


@pytest.mark.parametrize('file', ['config.json', 'tokenizer_config.json'])
def test_classes_that_a_directory_brings_along_are_not_imported(place, file):
  """transformers would ask at a terminal, and import them at a yes."""
  auto = {name: 'evil.part' for name in ('AutoConfig', 'AutoModelForMaskedLM')}
  auto['AutoTokenizer'] = ['evil.part', 'evil.part']
  edit(pathlib.Path('hf') / file, auto_map=auto)
  if file == 'config.json':
    edit(pathlib.Path('hf') / file, model_type='of_a_stranger')
  with contextlib.suppress(errors.UserError, ValueError):  # what transformers says
    fill_mask.fill('hf', 'The [MASK].', 1)


@pytest.mark.parametrize('command', ['show', 'evaluate --gaps', 'tokenizer'])
def test_a_corpus_whose_hashes_fit_and_whose_tokenizer_is_code_is_refused(place, command):
  folder = pathlib.Path('corpus')
  edit(pathlib.Path('run/config.json'), length=8, batch_size=2)
  config = configuration.from_json(pathlib.Path('run/config.json').read_text()).unlock()
  shutil.copytree('run/tokenizer', folder / 'tokenizer', dirs_exist_ok=True)
  bad = folder / 'tokenizer/bertzoo.json'
  bad.write_text(json.dumps(dict(section=exec_of(bad), special={}, hash='fits')))
  sha = {file.name: storage.sha256(file) for file in bad.parent.iterdir()}
  manifest = {
    **json.loads((folder / 'manifest.json').read_text()),
    'tokenizer': config.tokenizer.to_dict(),
    'corpus': config.corpus.to_dict(),
    'tokenizer_hash': 'fits',
    'tokenizer_sha256': sha,
    'report': {},
    'special': {'pad': 0, 'unk': 1, 'cls': 2, 'sep': 3, 'mask': 4},
    'vocab_size': 600,
    'unigrams_sha256': storage.write_array(folder / 'unigrams.npy', np.ones(600, np.int64)),
    'pieces_sha256': storage.write_array(folder / 'pieces.npy', np.ones(600, np.uint8)),
  }
  del manifest['hash']
  small_corpora.seal(folder, manifest)
  commands = {
    'show': lambda: show.show(config.lock(), 'corpus', console=rich.console.Console()),
    'evaluate --gaps': lambda: gaps.find('run', 'corpus'),
    'tokenizer': lambda: corpora.open('corpus').tokenizer(),
  }
  with pytest.raises(errors.UserError, match='does not match the config'):
    commands[command]()


_EVIL = {'pythonClassName': 'hf.evil.Feature'}
FEATURES = {  # how a features.json may say it
  'new': _EVIL,
  'old': {'type': 'hf.evil.Feature', 'content': {}},
  'text in text': {
    'type': 'tensorflow_datasets.core.features.features_dict.FeaturesDict',
    'proto_cls': 'tensorflow_datasets.FeaturesDict',
    'content': json.dumps({'features': {'x': _EVIL}}),
  },
}


@pytest.mark.parametrize('command', ['mine', 'Mine', 'mine:1.0.0', 'prepare --source tfds:FOLDER'])
@pytest.mark.parametrize('form', FEATURES)
def test_a_prepared_dataset_that_names_a_module_of_its_own_is_refused(place, command, form):
  """Of finetune --task_dir the dataset is named."""
  folder = pathlib.Path('tasks/mine/1.0.0')
  folder.mkdir(parents=True)
  (folder / 'features.json').write_text(json.dumps(FEATURES[form]))
  info = {'name': 'mine', 'version': '1.0.0', 'fileFormat': 'tfrecord'}
  (folder / 'dataset_info.json').write_text(json.dumps(info))
  with pytest.raises(errors.UserError, match='outside TensorFlow Datasets.*--trust-code'):
    if command.startswith('prepare'):
      finding.tfds_builder(f'tfds:{folder.absolute()}')
    else:
      datasets._builder(command, 'tasks')


def test_a_table_folder_that_names_code_is_compared_and_not_built(place):
  config = albert_table5.get_config('tiny')
  kept = json.loads(configuration.to_json(config))
  kept['rows'] = {name: 'run.evil:part' for name in kept['rows']}
  pathlib.Path('table').mkdir()
  (pathlib.Path('table') / tables.TABLE).write_text(json.dumps(kept))
  with pytest.raises(errors.UserError, match='another table'):
    tables.check_same(config, 'table')


@pytest.mark.parametrize(
  'code, line',
  [
    (2, 'encode --model=. --text=t --out=o.npy'),
    (0, f'prepare --config={ROOT}/configs/bert.py:tiny --source={SAMPLE} --out=c --workers=2'),
  ],
)
def test_no_module_of_the_current_folder_takes_the_place_of_a_package(tmp_path, code, line):
  """A command in a stranger's folder: neither its `jax.py` nor what its config names is imported,
  by the command and by its workers.
  """
  for name in ('jax', 'numpy', 'rich', 'evil', 'ml_collections', 'multiprocessing'):
    (tmp_path / f'{name}.py').write_text('import pathlib; pathlib.Path("trace").touch(); part = 1')
  (tmp_path / 'config.json').write_text(configuration.to_json(bert.get_config('tiny')))
  edit(tmp_path / 'config.json', encoder__name='evil:part')
  run = [sys.executable, '-m', *f'bertzoo_jax.{line}'.split()]
  done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, env=clean_environment())
  assert done.returncode == code and not (tmp_path / 'trace').exists(), done.stderr


def clean_environment():
  """The package is found by its address alone."""
  return {**os.environ, 'PYTHONPATH': str(ROOT)}


# --- the user's own ---


def own(name):
  return named.build({'name': name}, {}, 'masking')


@pytest.mark.parametrize('how', ['--config', 'parts.part', 'a phase', '--trust-code', 'not named'])
def test_a_part_is_built_if_the_user_names_it(tmp_path, monkeypatch, capsys, how):
  monkeypatch.syspath_prepend(tmp_path)
  (tmp_path / f'mine_{len(how)}.py').write_text('def part(): return 7\n')
  name = f'mine_{len(how)}:part'
  if how == '--config':
    config = bert.get_config('tiny')
    config.masking.name = name
    trust.allow_config(config)
  elif how == 'parts.part':
    config_parts.part(name)
  elif how == 'a phase':
    trust.allow_config({'phases': ((1, {'masking': {'name': name}}),)})
  elif how == '--trust-code':
    trust.allow_all()
  else:
    trust.allow_config({'masking': {'name': 'mine:other'}})
    with pytest.raises(errors.UserError, match='outside bertzoo_jax'):
      own(name)
    return
  assert own(name) == 7
  said = capsys.readouterr().err
  assert (str(tmp_path / f'mine_{len(how)}.py') in said) == (how == '--trust-code')


def test_the_current_folder_has_the_users_modules_unless_it_holds_data(tmp_path, monkeypatch):
  monkeypatch.setattr(sys, 'path', [p for p in sys.path if p not in ('', str(tmp_path))])
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'of_the_folder.py').write_text('def part(): return 3\n')
  trust.allow_config('of_the_folder:part')
  (tmp_path / 'manifest.json').touch()
  with pytest.raises(errors.UserError, match=r'no module.*not in the current.*manifest\.json'):
    own('of_the_folder:part')
  (tmp_path / 'manifest.json').unlink()
  assert own('of_the_folder:part') == 3 and sys.path[-1] == str(tmp_path)


def test_files_of_the_hub_are_fetched_by_name_and_shards_by_the_names_in_their_index(
  tmp_path, monkeypatch
):
  assert not [name for name in (*pretrained.FILES, *hub.TOKENIZER) if '*' in name]
  assert {'config.json', 'model.safetensors', 'vocab.txt', 'spiece.model'} <= {*pretrained.FILES}
  asked, index = [], tmp_path / 'model.safetensors.index.json'
  names = {'a': 'model-00001-of-00002.safetensors', 'b': 'model-00002-of-00002.safetensors'}
  index.write_text(json.dumps({'weight_map': names}))
  monkeypatch.setattr(hub, 'folder', lambda name, files: asked.append(files) or tmp_path)
  assert pretrained.directory('hf:somebody/something') == tmp_path
  assert {*asked[1]} - {*asked[0]} == {*names.values()}
  index.write_text(json.dumps({'weight_map': {'a': '*'}}))
  with pytest.raises(errors.UserError, match='does not name the files'):
    pretrained.directory('hf:somebody/something')


@pytest.mark.parametrize('imported', ['by the config file', 'not yet'])
@pytest.mark.parametrize('kind', ['module', 'package'])
def test_a_part_of_the_current_folder_imports_others_of_it(tmp_path, monkeypatch, imported, kind):
  monkeypatch.setattr(sys, 'path', [p for p in sys.path if p not in ('', str(tmp_path))])
  monkeypatch.chdir(tmp_path)
  name = f'mine_{kind}_{len(imported)}'
  home = tmp_path / name if kind == 'package' else tmp_path
  home.mkdir(exist_ok=True)
  (home / ('__init__.py' if kind == 'package' else f'{name}.py')).write_text(
    f'def part():\n  import beside_{name}\n  return beside_{name}.X\n'
  )
  (tmp_path / f'beside_{name}.py').write_text('X = 5')
  trust.allow_config(f'{name}:part')
  if imported == 'by the config file':
    with trust.own_modules():
      importlib.import_module(name)
  assert own(f'{name}:part') == 5


@pytest.mark.parametrize('name', ['os:getpid', 'numpy.linalg:norm', 'json:loads'])
def test_trust_code_says_what_it_runs_also_of_modules_that_are_imported(capsys, name):
  trust.allow_all()
  module = name.partition(':')[0]
  trust._announced.discard(module)
  for _ in range(2):
    named.outside(name, 'masking')
  assert capsys.readouterr().err.count(f'the module {module} of ') == 1
