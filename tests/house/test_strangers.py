import contextlib
import importlib
import json
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
from tests import commands
from tests.house.strangers import edit
from tests.refused import refused

SAMPLE = pathlib.Path(__file__).parents[2] / 'data/sample/time_machine.txt'


@pytest.fixture(autouse=True)
def nothing_is_named_yet():
  trust.set_allowed((frozenset(), False))


def exec_of(file):
  """A section whose part is Python's exec, by another name, and takes the section's fields."""
  place = next(p for p in file.absolute().parents if p.name == 'place')
  text = f'import pathlib; pathlib.Path({str(place.parent / "trace")!r}).touch()'
  return {'name': 'numpy.testing:runstring', 'astr': text, 'dict': {}}


def section(file):
  content = json.loads(file.read_text()) if file.exists() else {'special': {}, 'hash': ''}
  file.write_text(json.dumps({**content, 'section': exec_of(file)}))


RUN = {  # what a stranger wrote into config.json of a run, or beside it
  'encoder': lambda: edit('run/config.json', encoder__name='run.evil:part'),
  'objective': lambda: edit('run/config.json', objective__name='run.evil:part'),
  **{
    name: lambda name=name: edit('run/config.json', encoder={'name': name, 'args': ['true']})
    for name in ('subprocess:run', 'os:system', 'pathlib:os.mkdir', 'builtins:exec')
  },
  'class': lambda: edit('run/config.json', hf='run.evil:NAMES'),
  'tokenizer': lambda: section(pathlib.Path('run/tokenizer/bertzoo.json')),
}


def begin_with(address):
  """The steps of pretrain with --init, and then with the tokenizer of the weights."""
  objective = objectives.build(bert.get_config('tiny'), 600)
  fresh = jax.eval_shape(objective.init, jax.random.key(0))
  fresh = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), fresh)
  initial_weights.parameters(fresh, address, objective, None, 'BertForPreTraining')


READERS = {
  'load': lambda a: bertzoo_jax.load(a).tokenizer,
  'encode': lambda a: bertzoo_jax.load(a).encode(['a']),
  'finetune --init': lambda a: loading.tokenizer_of(plan.weights(a)[0]),
}
OPENERS = {
  **READERS,
  'pretrain --init': begin_with,
  'evaluate': lambda a: scores.evaluate(a, 'corpus'),
  'evaluate --gaps': lambda a: gaps.find(a, 'corpus'),
  'export': lambda a: export.export(a, 'out'),
}
NEVER_LOOK_THERE = 'evaluate', 'evaluate --gaps', 'pretrain --init'
OUTSIDE = 'outside bertzoo_jax.*--trust-code'


@pytest.mark.parametrize('poison', RUN)
def test_a_run_that_names_code_of_its_own_is_refused(place, poison):
  RUN[poison]()
  for command, opened in OPENERS.items():
    if poison not in ('class', 'tokenizer') or command not in NEVER_LOOK_THERE:
      # export compares the tokenizer with the config's first
      compared = (poison, command) == ('tokenizer', 'export')
      refused('does not match the config' if compared else OUTSIDE, opened, 'run')


def test_a_hugging_face_directory_with_a_tokenizer_of_its_own_is_refused(place):
  section(pathlib.Path('hf/bertzoo.json'))
  for opened in READERS.values():
    refused('outside bertzoo_jax', opened, 'hf:hf')
  refused('outside bertzoo_jax', tokenizers.load, 'hf')  # as prepare --tokenizer


@pytest.mark.parametrize('file', ['config.json', 'tokenizer_config.json'])
def test_classes_that_a_directory_brings_along_are_not_imported(place, file):
  """transformers would ask at a terminal, and import them at a yes."""
  auto = {name: 'evil.part' for name in ('AutoConfig', 'AutoModelForMaskedLM')}
  edit(f'hf/{file}', auto_map={**auto, 'AutoTokenizer': ['evil.part', 'evil.part']})
  if file == 'config.json':
    edit(f'hf/{file}', model_type='of_a_stranger')
  with contextlib.suppress(errors.UserError, ValueError):  # what transformers says
    fill_mask.fill('hf', 'The [MASK].', 1)


def test_a_corpus_whose_hashes_fit_and_whose_tokenizer_is_code_is_refused(place):
  folder = pathlib.Path('corpus')
  edit('run/config.json', length=8, batch_size=2)
  config = configuration.from_json(pathlib.Path('run/config.json').read_text()).unlock()
  shutil.copytree('run/tokenizer', folder / 'tokenizer', dirs_exist_ok=True)
  bad = folder / 'tokenizer/bertzoo.json'
  bad.write_text(json.dumps(dict(section=exec_of(bad), special={}, hash='fits')))
  manifest = {
    **json.loads((folder / 'manifest.json').read_text()),
    'tokenizer': config.tokenizer.to_dict(),
    'corpus': config.corpus.to_dict(),
    'tokenizer_hash': 'fits',
    'tokenizer_sha256': {file.name: storage.sha256(file) for file in bad.parent.iterdir()},
    'report': {},
    'special': {'pad': 0, 'unk': 1, 'cls': 2, 'sep': 3, 'mask': 4},
    'vocab_size': 600,
    'unigrams_sha256': storage.write_array(folder / 'unigrams.npy', np.ones(600, np.int64)),
    'pieces_sha256': storage.write_array(folder / 'pieces.npy', np.ones(600, np.uint8)),
  }
  del manifest['hash']
  small_corpora.seal(folder, manifest)
  why = 'does not match the config'
  refused(why, show.show, config.lock(), 'corpus', console=rich.console.Console())
  refused(why, gaps.find, 'run', 'corpus')
  refused(why, corpora.open('corpus').tokenizer)


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


@pytest.mark.parametrize('form', FEATURES)
def test_a_prepared_dataset_that_names_a_module_of_its_own_is_refused(place, form):
  folder = pathlib.Path('tasks/mine/1.0.0')
  folder.mkdir(parents=True)
  (folder / 'features.json').write_text(json.dumps(FEATURES[form]))
  info = {'name': 'mine', 'version': '1.0.0', 'fileFormat': 'tfrecord'}
  (folder / 'dataset_info.json').write_text(json.dumps(info))
  why = 'outside TensorFlow Datasets.*--trust-code'
  refused(why, finding.tfds_builder, f'tfds:{folder.absolute()}')
  for name in ('mine', 'Mine', 'mine:1.0.0'):  # of finetune --task_dir
    refused(why, datasets._builder, name, 'tasks')


def test_a_table_folder_that_names_code_is_compared_and_not_built(place):
  config = albert_table5.get_config('tiny')
  kept = json.loads(configuration.to_json(config))
  kept['rows'] = {name: 'run.evil:part' for name in kept['rows']}
  pathlib.Path('table').mkdir()
  (pathlib.Path('table') / tables.TABLE).write_text(json.dumps(kept))
  refused('another table', tables.check_same, config, 'table')


ENCODE = 'encode --model=. --text=t --out=o'
PREPARE = f'prepare --config=bert:tiny --source={SAMPLE} --out=c --workers=2'


@pytest.mark.parametrize('code, line', [(2, ENCODE), (0, PREPARE)], ids=['encode', 'prepare'])
def test_no_module_of_the_current_folder_takes_the_place_of_a_package(tmp_path, code, line):
  """A command in a stranger's folder: neither its `jax.py` nor what its config names is imported,
  by the command and by its workers.
  """
  for name in ('jax', 'numpy', 'rich', 'evil', 'ml_collections', 'multiprocessing'):
    (tmp_path / f'{name}.py').write_text('import pathlib; pathlib.Path("trace").touch(); part = 1')
  (tmp_path / 'config.json').write_text(configuration.to_json(bert.get_config('tiny')))
  edit(tmp_path / 'config.json', encoder__name='evil:part')
  done = commands.run('-m', *f'bertzoo_jax.{line}'.split(), cwd=tmp_path)
  assert done.returncode == code and not (tmp_path / 'trace').exists(), done.stderr


def own(name):
  return named.build({'name': name}, {}, 'masking')


NAMED = {
  '--config': lambda name: trust.allow_config({'masking': {'name': name}}),
  'parts.part': config_parts.part,
  'a phase': lambda name: trust.allow_config({'phases': ((1, {'masking': {'name': name}}),)}),
  '--trust-code': lambda name: trust.allow_all(),
}


@pytest.mark.parametrize('how', NAMED)
def test_a_part_is_built_if_the_user_names_it(tmp_path, monkeypatch, capsys, how):
  monkeypatch.syspath_prepend(tmp_path)
  file = tmp_path / f'mine_{len(how)}.py'
  file.write_text('def part(): return 7\n')
  trust.allow_config({'masking': {'name': 'mine:other'}})
  refused('outside bertzoo_jax', own, f'{file.stem}:part')
  NAMED[how](f'{file.stem}:part')
  assert own(f'{file.stem}:part') == 7
  assert (str(file) in capsys.readouterr().err) == (how == '--trust-code')


def test_the_current_folder_has_the_users_modules_unless_it_holds_data(tmp_path, monkeypatch):
  monkeypatch.setattr(sys, 'path', [p for p in sys.path if p not in ('', str(tmp_path))])
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'of_the_folder.py').write_text('def part(): return 3\n')
  trust.allow_config('of_the_folder:part')
  (tmp_path / 'manifest.json').touch()
  refused(r'no module.*not in the current.*manifest\.json', own, 'of_the_folder:part')
  (tmp_path / 'manifest.json').unlink()
  assert own('of_the_folder:part') == 3 and sys.path[-1] == str(tmp_path)


def test_files_of_the_hub_are_fetched_by_name_and_shards_by_their_index(tmp_path, monkeypatch):
  assert not [name for name in (*pretrained.FILES, *hub.TOKENIZER) if '*' in name]
  assert {'config.json', 'model.safetensors', 'vocab.txt', 'spiece.model'} <= {*pretrained.FILES}
  asked, index = [], tmp_path / 'model.safetensors.index.json'
  names = {'a': 'model-00001-of-00002.safetensors', 'b': 'model-00002-of-00002.safetensors'}
  index.write_text(json.dumps({'weight_map': names}))
  monkeypatch.setattr(hub, 'folder', lambda name, files: asked.append(files) or tmp_path)
  assert pretrained.directory('hf:somebody/something') == tmp_path
  assert {*asked[1]} - {*asked[0]} == {*names.values()}
  index.write_text(json.dumps({'weight_map': {'a': '*'}}))
  refused('does not name the files', pretrained.directory, 'hf:somebody/something')


@pytest.mark.parametrize('imported', [True, False])  # by the config file
@pytest.mark.parametrize('kind', ['module', 'package'])
def test_a_part_of_the_current_folder_imports_others_of_it(tmp_path, monkeypatch, imported, kind):
  monkeypatch.setattr(sys, 'path', [p for p in sys.path if p not in ('', str(tmp_path))])
  monkeypatch.chdir(tmp_path)
  name = f'mine_{kind}_{imported}'
  file = pathlib.Path(f'{name}.py' if kind == 'module' else f'{name}/__init__.py')
  file.parent.mkdir(exist_ok=True)
  file.write_text(f'def part():\n  import beside_{name}\n  return beside_{name}.X\n')
  pathlib.Path(f'beside_{name}.py').write_text('X = 5')
  trust.allow_config(f'{name}:part')
  if imported:
    with trust.own_modules():
      importlib.import_module(name)
  assert own(f'{name}:part') == 5


def test_trust_code_says_what_it_runs_also_of_modules_that_are_imported(capsys):
  trust.allow_all()
  for name in ('os:getpid', 'numpy.linalg:norm', 'json:loads'):
    module = name.partition(':')[0]
    trust._announced.discard(module)
    for _ in range(2):
      named.outside(name, 'masking')
    assert capsys.readouterr().err.count(f'the module {module} of ') == 1


@pytest.mark.skipif(not shutil.which('cc'), reason='no compiler')
@pytest.mark.parametrize('name', ['', 'glibc-hwcaps/x86-64-v3'])
def test_no_native_library_of_the_current_folder_is_loaded_with_torch(tmp_path, name):
  """The loader looks for libcuda.so.1 in these folders of the current one, for cuSPARSELt."""
  trace, folder = tmp_path / 'trace', tmp_path / 'here' / name
  folder.mkdir(parents=True)
  code = f'#include <fcntl.h>\n__attribute__((constructor)) void f() {{ creat("{trace}", 384); }}'
  line = ['cc', '-shared', '-fPIC', '-x', 'c', '-', '-o', folder / 'libcuda.so.1']
  subprocess.run(line, input=code.encode(), check=True)
  program = 'from bertzoo_jax.common import trust; print(trust.torch().__name__)'
  done = commands.run('-P', '-c', program, cwd=tmp_path / 'here')
  assert done.stdout == 'torch\n' and not trace.exists()


EVENTS = """
import sys
import numpy as np
from bertzoo_jax import pretrain
from bertzoo_jax.runs import metrics
trackers = metrics.Trackers(sys.argv[1], 0, {}, tensorboard=True, wandb='')
trackers.write({'step': 1, 'loss': 2.5})
trackers.close()
import tensorboardX
writer = tensorboardX.SummaryWriter(sys.argv[1] + '/tensorboard', filename_suffix='.more')
writer.add_text('words', 'a text', 2)
writer.add_image('picture', np.full((3, 2, 4), 255, np.uint8), 3)
writer.close()
assert 'torch' not in sys.modules
import torch
import tensorflow as tf
for file in sorted(tf.io.gfile.glob(sys.argv[1] + '/tensorboard/*')):
  for event in tf.compat.v1.train.summary_iterator(file):
    for value in event.summary.value:
      shown = value.simple_value or value.image.width or value.tensor.string_val[0].decode()
      print(event.step, value.tag, shown)
"""


def test_training_imports_no_torch_and_its_scalars_texts_and_pictures_are_readable(tmp_path):
  done = commands.run('-c', EVENTS, str(tmp_path))
  wished = ['1 loss 2.5', '2 words/text_summary a text', '3 picture 4']
  assert done.stdout.splitlines() == wished, done.stderr
