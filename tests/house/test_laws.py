"""The laws of docs/ARCHITECTURE.md that can be read off the source."""

import ast
import functools
import graphlib
import importlib
import inspect
import pathlib
import re
import tokenize

import ml_collections
import pytest

from bertzoo_jax import parts
from bertzoo_jax.common import config as configuration
from bertzoo_jax.parts import experiments
from bertzoo_jax.parts import fields as definitions
from bertzoo_jax.parts import ranges
from tests import found

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / 'bertzoo_jax'

# Law 3: the folders of each program, and the packages that it may not import (anywhere, also not
# inside a function).
HOST = ('text', 'words', 'tokenizers', 'corpus', 'batches', 'tasks')
DEVICE = ('model', 'kernels', 'objectives', 'runs', 'training', 'preflight/tpu')


def _module(folder):
  return f'bertzoo_jax.{folder}'.replace('/', '.')


ROW_KEYS = ('bertzoo_jax.common.row_keys', 'bertzoo_jax.common.trees')
NOT_ON_HOST = ('jax', 'flax', 'optax', 'orbax', *ROW_KEYS, *map(_module, DEVICE))
TENSORFLOW = ('tensorflow', 'tensorflow_datasets')
NOT_ON_DEVICE = (*TENSORFLOW, 'bertzoo_jax.common.hashing', *map(_module, HOST))

# The tables of the parts that bertzoo_jax/parts/ declares.
PARTS = {
  'tokenizer': 'bertzoo_jax.tokenizers',
  'format': 'bertzoo_jax.batches.formats',
  'masking': 'bertzoo_jax.batches.masking',
  'encoder': 'bertzoo_jax.model.encoder',
  'objective': 'bertzoo_jax.objectives',
  'optimizer': 'bertzoo_jax.training.optimizers',
  'schedule': 'bertzoo_jax.training.schedules',
  'source': 'bertzoo_jax.tasks.reading.sources',
  'features': 'bertzoo_jax.tasks.features',
}


@functools.cache
def imports(path):
  """Full names of all that a file imports."""
  nodes = [*ast.walk(ast.parse(path.read_text()))]
  some = [node for node in nodes if isinstance(node, ast.ImportFrom)]
  assert not any(node.level for node in some), f'{path}: relative imports hide the layers'
  plain = [a.name for node in nodes if isinstance(node, ast.Import) for a in node.names]
  return (*plain, *(f'{node.module}.{a.name}' for node in some for a in node.names))


def offenders(folders, forbidden):
  for folder in folders:
    here = PACKAGE / folder
    for path in [here] if here.suffix else sorted(here.rglob('*.py')):
      for name in imports(path):
        if any(name == f or name.startswith(f + '.') for f in forbidden):
          yield f'{path.relative_to(ROOT)} imports {name}'


def test_host_and_device_program_never_import_each_other_or_their_libraries():
  assert not list(offenders(HOST, NOT_ON_HOST))
  assert not list(offenders((*DEVICE, 'common/row_keys.py', 'common/trees.py'), NOT_ON_DEVICE))


def test_only_what_drives_the_input_and_what_reads_its_files_imports_tensorflow():
  drives, reads = ('batches/ahead.py', 'convert.py'), ('common/trust.py', 'text/records.py')
  wanted = dict.fromkeys(drives, 'tensorflow') | dict.fromkeys(reads, 'tensorflow_datasets')
  wanted['tasks/reading/datasets.py'] = 'tensorflow_datasets'
  used = {
    str(path.relative_to(PACKAGE)): library
    for path in PACKAGE.rglob('*.py')
    for library in {name.partition('.')[0] for name in imports(path)}
    if library.startswith('tensorflow')
  }
  assert used == wanted


def test_the_shared_ground_imports_neither_program_and_the_package_no_configs():
  folders = '|'.join((*HOST, *DEVICE, 'hf', 'cli', 'pretrained', 'experiment', 'preflight', 'show'))
  for path in sorted([*(PACKAGE / 'common').glob('*.py'), *(PACKAGE / 'parts').glob('*.py')]):
    for name in imports(path):
      assert not re.match(rf'bertzoo_jax\.({folders})\b', name), f'{path} imports {name}'
      # random bits and paths of arrays of the device program
      used = re.match(r'jax\b', name)
      assert not used or path.stem in ('row_keys', 'trees'), f'{path} imports {name}'
  for path in sorted(PACKAGE.rglob('*.py')):
    assert not [n for n in imports(path) if re.match(r'(bertzoo_jax\.)?configs\b', n)], path


def test_layers_import_downwards_only():
  for height, folder in enumerate(HOST):
    assert not list(offenders([folder], [_module(f) for f in HOST[height + 1 :]])), folder
  for height, folder in enumerate(DEVICE):
    above = [_module(f) for f in DEVICE[height + 1 :]]
    # the one step does not know what it updates
    if folder in ('runs', 'training', 'preflight/tpu'):
      above += ['bertzoo_jax.model', 'bertzoo_jax.kernels', 'bertzoo_jax.objectives']
    assert not list(offenders([folder], [*above, 'bertzoo_jax.hf'])), folder


def test_no_module_needs_one_that_needs_it():
  name = lambda path: '.'.join(path.relative_to(ROOT).with_suffix('').parts)
  known = {name(path).removesuffix('.__init__'): path for path in PACKAGE.rglob('*.py')}
  of = lambda name: next((m for m in (name, name.rpartition('.')[0]) if m in known), None)
  needs = {module: {*map(of, imports(path))} - {None} for module, path in known.items()}
  assert sum(map(len, needs.values())) > len(known)
  graphlib.TopologicalSorter(needs).prepare()  # raises CycleError, which names them


def test_no_system_is_named_outside_configs_and_no_config_is_asked_with_a_default():
  names = re.compile(r"""['"](%s)['"]""" % '|'.join(found.SYSTEMS))
  for path in sorted(PACKAGE.rglob('*.py')):
    if 'hf' not in path.relative_to(PACKAGE).parts:
      assert not names.search(path.read_text()), path
  for path in [*PACKAGE.rglob('*.py'), *(ROOT / 'configs').rglob('*.py')]:
    # a misspelt key would become a silent default
    assert not re.search(r'config(\.\w+)*\.get\(', path.read_text()), path


def test_every_part_has_one_declaration_and_takes_it():
  sections = [*parts.SECTIONS.items(), *parts.TASK_SECTIONS.items()]
  for section, module in PARTS.items():
    known = {name: x for key, some in sections if key == section for name, x in some.items()}
    by_name = importlib.import_module(module).BY_NAME
    assert set(by_name) == set(known), f'{section}: {module} and bertzoo_jax/parts/ differ'
    for name, declared in known.items():
      fields = definitions.parameters(declared)
      assert definitions.declaration(by_name[name]) is (declared if fields else None), name


@pytest.mark.parametrize('system', found.SYSTEMS)
def test_every_file_of_configs_is_a_complete_config(system):
  module = found.module(system)
  assert module.__doc__, f'configs/{system}.py has no docstring: paper, command, what differs'
  lacking = [x for x in ('get_config', 'SIZES', 'PARAMETERS') if not hasattr(module, x)]
  assert not lacking, f'configs/{system}.py has no {lacking}: see CONTRIBUTING.md'
  default = inspect.signature(module.get_config).parameters['argument'].default
  assert {'tiny', default.split(',')[0]} <= set(module.SIZES) == set(module.PARAMETERS)


def test_the_page_of_the_house_names_every_part_of_every_axis():
  page = (ROOT / 'docs/ARCHITECTURE.md').read_text(encoding='utf-8')
  for section, known in [*parts.SECTIONS.items(), *parts.TASK_SECTIONS.items()]:
    rows = re.findall(rf'^\|.*\| `config\.{section}` \|(.*)$', page, re.M)
    assert rows, section
    lacking = known.keys() - set(re.findall(r'`(\w+)`', ' '.join(rows)))
    assert not lacking, (section, lacking)


def same_through_json(config):
  before = configuration.flatten(config)
  again = configuration.flatten(configuration.from_json(configuration.to_json(config)))
  # fields of pretraining are added to a config that lacks them
  return not configuration.differences(before, {key: again[key] for key in before})


def test_every_fine_tuning_config_is_complete_and_ends_up_the_same_through_json():
  wanted = definitions.parameters(experiments.FineTuning)
  for file, task in found.TASKS:
    module = importlib.import_module(f'configs.tasks.{file}')
    assert module.__doc__ and inspect.signature(module.get_config).parameters['argument'].default
    config = ml_collections.ConfigDict(module.get_config(task)).lock()
    assert set(config) == set(wanted) and config.name == task
    for name, fields in (('source', config.source), ('features', config.features)):
      known = definitions.parameters(parts.TASK_SECTIONS[name][fields.name])
      assert set(fields) - {'name'} == set(known)
    assert set(config.submission) <= set(getattr(config.source, 'files', config.submission))
    assert same_through_json(config), (file, task)


@pytest.mark.parametrize('file', found.SUITES)
def test_a_suite_has_the_config_of_each_of_its_tasks(file):
  module = importlib.import_module(f'configs.tasks.{file}')
  suite = module.get_config('all').suite
  assert set(suite) == set(module.TASKS)
  for task, config in suite.items():
    assert configuration.to_json(config) == configuration.to_json(module.get_config(task))


def test_every_config_is_complete_locked_and_ends_up_the_same_through_json():
  for system, size in found.SIZES:
    config = found.config(system, size)
    assert set(config) == set(definitions.parameters(experiments.Experiment))
    ranges.check(config)
    assert same_through_json(config), (system, size)
    for phase in configuration.phases(config):
      assert phase.config.length <= config.encoder.get('max_positions', phase.config.length)
      assert phase.config.schedule.warmup < configuration.total_steps(config)
    with pytest.raises(AttributeError):
      config.masking.rat = 0.2


def test_nothing_imports_torch_elsewhere():
  for path in sorted(PACKAGE.rglob('*.py')):
    text = path.read_text()
    assert not re.search(r'^ *(import|from) torch\b', text, re.M), path
    for use in re.finditer(r'^ *(import|from) transformers\b', text, re.M):
      assert text[: use.start()].endswith('trust.torch()\n'), path


# Words that say nothing of what they name.
NO_NAMES = ('said', 'told', 'found', 'own', 'pack_ids')


def test_words_that_say_nothing_are_no_names():
  for path in PACKAGE.rglob('*.py'):
    with path.open('rb') as file:
      names = [(t.string, t.start[0]) for t in tokenize.tokenize(file.readline) if t.type == 1]
    used = [(name, line) for name, line in names if name.strip('_').lower() in NO_NAMES]
    assert not used, f'{path.relative_to(ROOT)}: {used}'
