"""The laws of docs/ARCHITECTURE.md that can be read off the source."""

import ast
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
LIBRARIES = ('tensorflow', 'tensorflow_datasets')
NOT_ON_DEVICE = (*LIBRARIES, 'bertzoo_jax.common.hashing', *map(_module, HOST))

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


def imports(path):
  """Full names of all that a file imports."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      yield from (a.name for a in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, f'{path}: relative imports hide the layers'
      yield from (f'{node.module}.{a.name}' for a in node.names)


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
  wanted = {
    'batches/ahead.py': 'tensorflow',
    'convert.py': 'tensorflow',
    'common/trust.py': 'tensorflow_datasets',
    'tasks/reading/datasets.py': 'tensorflow_datasets',
    'text/records.py': 'tensorflow_datasets',
  }
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
  host = {name: height for height, name in enumerate(HOST)}
  for folder, height in host.items():
    above = [_module(f) for f, h in host.items() if h > height]
    assert not list(offenders([folder], above)), folder
  order = {name: height for height, name in enumerate(DEVICE)}
  for folder, height in order.items():
    above = [_module(f) for f, h in order.items() if h > height]
    # the one step does not know what it updates
    if folder in ('runs', 'training', 'preflight/tpu'):
      above += ['bertzoo_jax.model', 'bertzoo_jax.kernels', 'bertzoo_jax.objectives']
    assert not list(offenders([folder], [*above, 'bertzoo_jax.hf'])), folder


def test_no_module_needs_one_that_needs_it():
  known = {
    '.'.join(p.relative_to(ROOT).with_suffix('').parts).removesuffix('.__init__'): p
    for p in PACKAGE.rglob('*.py')
  }
  needs = {
    module: {
      next((m for m in (name, name.rpartition('.')[0]) if m in known), None)
      for name in imports(path)
    }
    - {None}
    for module, path in known.items()
  }
  assert sum(map(len, needs.values())) > len(known)
  graphlib.TopologicalSorter(needs).prepare()  # raises CycleError, which names them


def test_no_system_is_named_outside_configs_and_no_config_is_asked_with_a_default():
  names = re.compile(r"""['"](%s)['"]""" % '|'.join(found.SYSTEMS))
  for path in sorted(PACKAGE.rglob('*.py')):
    if 'hf' not in path.relative_to(PACKAGE).parts:
      assert not names.search(path.read_text()), path
  for path in [*PACKAGE.rglob('*.py'), *(ROOT / 'configs').rglob('*.py')]:
    assert not re.search(r'config(\.\w+)*\.get\(', path.read_text()), (
      f'{path}: a misspelt key would become a silent default'
    )


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
  for name in ('get_config', 'SIZES', 'PARAMETERS'):
    assert hasattr(module, name), f'configs/{system}.py has no {name}: see CONTRIBUTING.md'
  assert 'tiny' in module.SIZES
  default = inspect.signature(module.get_config).parameters['argument'].default
  assert default.split(',')[0] in module.SIZES
  assert set(module.PARAMETERS) == set(module.SIZES), (
    f'configs/{system}.py: PARAMETERS needs the sizes {sorted(module.SIZES)}'
  )


def test_nothing_but_configs_and_their_parts_lies_in_configs():
  others = [p.name for p in (ROOT / 'configs').iterdir() if p.suffix != '.py' and p.is_file()]
  assert not others and set(found.NOT_CONFIGS) <= {p.stem for p in (ROOT / 'configs').glob('*.py')}
  for name in found.NOT_CONFIGS:
    assert not hasattr(importlib.import_module(f'configs.{name}'), 'get_config')


def test_the_readmes_table_has_every_config_and_no_other():
  rows = [
    line
    for line in (ROOT / 'README.md').read_text().splitlines()
    if re.match(r'\|.*`configs/\w+\.py', line)
  ]
  named = [re.search(r'`configs/(\w+)\.py:', row)[1] for row in rows]
  assert sorted(named) == sorted(found.SYSTEMS)
  for system, row in zip(named, rows):
    for size in re.search(r'py:\{?([\w,]+)', row)[1].split(','):
      assert size in found.module(system).SIZES, row


def test_the_page_of_the_house_names_every_part_of_every_axis():
  page = (ROOT / 'docs/ARCHITECTURE.md').read_text(encoding='utf-8')
  for section, known in [*parts.SECTIONS.items(), *parts.TASK_SECTIONS.items()]:
    rows = re.findall(rf'^\|.*\| `config\.{section}` \|(.*)$', page, re.M)
    assert rows, section
    lacking = known.keys() - set(re.findall(r'`(\w+)`', ' '.join(rows)))
    assert not lacking, (section, lacking)


@pytest.mark.parametrize('file, task', found.TASKS)
def test_every_fine_tuning_config_is_complete_and_ends_up_the_same_through_json(file, task):
  module = importlib.import_module(f'configs.tasks.{file}')
  assert module.__doc__ and inspect.signature(module.get_config).parameters['argument'].default
  config = ml_collections.ConfigDict(module.get_config(task)).lock()
  wanted = definitions.parameters(experiments.FineTuning)
  assert set(config) == set(wanted) and config.name == task
  for name, fields in (('source', config.source), ('features', config.features)):
    known = definitions.parameters(parts.TASK_SECTIONS[name][fields.name])
    assert set(fields) - {'name'} == set(known)
  assert set(config.submission) <= set(getattr(config.source, 'files', config.submission))
  before = configuration.flatten(config)
  again = configuration.flatten(configuration.from_json(configuration.to_json(config)))
  # fields of pretraining are added to a config that lacks them
  assert not configuration.differences(before, {key: again[key] for key in before})


@pytest.mark.parametrize('file', found.SUITES)
def test_a_suite_has_the_config_of_each_of_its_tasks(file):
  module = importlib.import_module(f'configs.tasks.{file}')
  suite = module.get_config('all').suite
  assert set(suite) == set(module.TASKS)
  for task, config in suite.items():
    assert configuration.to_json(config) == configuration.to_json(module.get_config(task))


@pytest.mark.parametrize('system, size', found.SIZES)
def test_every_config_is_complete_locked_and_ends_up_the_same_through_json(system, size):
  config = found.config(system, size)
  assert set(config) == set(definitions.parameters(experiments.Experiment))
  again = configuration.from_json(configuration.to_json(config))
  assert not configuration.differences(configuration.flatten(config), configuration.flatten(again))
  if 'max_positions' in config.encoder:
    phases = configuration.phases(config)
    assert max(p.config.length for p in phases) <= config.encoder.max_positions
  for phase in configuration.phases(config):
    assert phase.config.schedule.warmup < configuration.total_steps(config)
  with pytest.raises(AttributeError):
    config.masking.rat = 0.2


# Words that say nothing of what they name.
NO_NAMES = ('said', 'told', 'found', 'own', 'pack_ids')


def test_words_that_say_nothing_are_no_names():
  for path in PACKAGE.rglob('*.py'):
    with path.open('rb') as file:
      names = [(t.string, t.start[0]) for t in tokenize.tokenize(file.readline) if t.type == 1]
    used = [(name, line) for name, line in names if name.strip('_').lower() in NO_NAMES]
    assert not used, f'{path.relative_to(ROOT)}: {used}'
