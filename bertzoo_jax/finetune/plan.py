"""The runs of a fine-tuning config, and the complete experiment of each."""

import itertools
import math
import os

import ml_collections

from bertzoo_jax import hf
from bertzoo_jax import pretrained
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.experiment import build
from bertzoo_jax.experiment import check as checks
from bertzoo_jax.experiment import resolve as experiments
from bertzoo_jax.finetune import jobs
from bertzoo_jax.finetune import table
from bertzoo_jax.parts import named
from bertzoo_jax.parts import ranges
from bertzoo_jax.parts import task_objectives
from bertzoo_jax.pretrained import initial_weights
from bertzoo_jax.runs import step_folders
from bertzoo_jax.tasks import labels as labels_lib
from bertzoo_jax.training import layer_decay

RESULT = 'result.json'  # in the folder of a finished run
FIELDS = ('source', 'features', 'metrics', 'epochs', 'grid', 'seeds', 'encoder', 'objective', 'run')
# Fields from which a fine-tuning config makes experiments; an experiment itself has none of them.
_PLANS = ('epochs', 'steps', 'warmup', 'layer_decay', 'layer_decay_form', 'seeds', 'grid')
_PLANS += ('encoder', 'submission')
_ALL = '@all'
# Sections and fields whose values a grid may not vary: rows are read once, and the other fields
# define the runs.
_FIXED = ('name', 'source', 'features', 'length', 'metrics', 'grid', 'seed', 'seeds', 'init')
_FIXED += ('submission', 'objective.name', 'positive', 'max_train', 'max_dev', 'init_layers')
_FIXED += ('draw',)


def is_fine_tuning(config) -> bool:
  """Whether a config is a fine-tuning, of one task or several."""
  return 'source' in config or 'suite' in config


def tasks(config) -> dict[str, ml_collections.ConfigDict]:
  """{name: config} of the tasks of a config, those before others that begin with their weights.

  Raises UserError for a config that is no fine-tuning.
  """
  if 'suite' not in config and 'name' not in config:
    raise errors.UserError(
      'The config is no fine-tuning: give a file of configs/tasks/, or one whose get_config() '
      'returns fine_tuning(…) of bertzoo_jax.parts.'
    )
  suite = dict(config.suite) if 'suite' in config else {config.name or 'task': config}
  for name, one in suite.items():
    if lacking := [field for field in FIELDS if field not in one]:
      raise errors.UserError(
        f'The config of {name} lacks {lacking[0]!r}: return fine_tuning(…) of '
        'bertzoo_jax.parts from get_config().'
      )
  needs = {name: one.init for name, one in suite.items()}
  return {name: suite[name] for name in jobs.in_order(needs)}


def weights(init: str) -> list[pretrained.Pretrained]:
  """The weights that --init names, with None for their arrays: each run loads its own arrays."""
  opened = [pretrained.open(address) for address in _addresses(init)]
  return [one._replace(params=dict.fromkeys(one.params)) for one in opened]


def _addresses(init):
  """W@all is every checkpoint of a run."""
  init = os.fspath(init)
  is_folder = not storage.is_remote(init) and storage.path(init or '@').exists()
  if not init.partition('@')[0] and not is_folder:
    raise errors.UserError(
      f'--init {init!r} names no weights: give the --workdir of a run, hf:DIR or hf:OWNER/NAME.'
    )
  if not init.endswith(_ALL) or is_folder:
    return [init]
  workdir = init.removesuffix(_ALL)
  if steps := step_folders.steps(workdir):
    return [f'{workdir}@{step}' for step in steps]
  raise errors.UserError(
    f'{workdir} has no checkpoint: give the --workdir of a pretraining run, with '
    'run.keep_every set so that it keeps more than the newest.'
  )


def check(config, weights, prefix: str = 'config') -> None:
  """Raises UserError for mistakes known before files are read. prefix: of the config's flags."""
  _check(config)
  most = pretrained.encoder(weights).max_positions
  if most is not None and config.length > most:
    raise errors.UserError(
      f'{prefix}.length={config.length}, and the encoder of {weights.address} takes rows of {most} '
      f'tokens: set --{prefix}.length={most} or less.'
    )


def runs(name: str, config, task, weights: list, workdir) -> list[jobs.Job]:
  """The runs of a task in order: all weights, for each the whole grid, for each point all seeds.

  weights: Pretrained of every address. Raises UserError: a value that its field cannot have.
  """
  folder, out = storage.path(workdir) / name, []
  keys = [key for key, _ in config.grid]
  points = [
    tuple(zip(keys, values)) for values in itertools.product(*(values for _, values in config.grid))
  ]
  seeds = config.seeds or (config.seed,)
  for one in weights:
    place = folder if len(weights) == 1 else folder / f'step={one.step}'
    for point, seed in itertools.product(points, seeds):
      title = 'run' if len(points) == len(seeds) == 1 else _title(point, seed)
      experiment = resolve(_at(config, point, seed), task, one).config
      out.append(
        jobs.Job(name, title, seed, experiment, place / title, RESULT, one.address, point=point)
      )
  return out


def resolve(config, task, weights) -> experiments.Run:
  """The complete experiment of one run.

  config: of a fine-tuning, without a grid. task: tasks.Task. weights: Pretrained.
  """
  _check_numbers(config)
  if config.schedule.warmup:
    raise errors.UserError(
      f'config.schedule.warmup={config.schedule.warmup} is not read: set '
      f'--config.warmup={config.schedule.warmup}.'
    )
  rows = len(task.splits['train'])
  steps = config.steps or math.ceil(config.epochs * rows / config.batch_size)
  if steps < 1:
    raise errors.UserError(
      f'config.epochs={config.epochs} of {rows:,} rows are less than a step: raise config.epochs.'
    )
  encoder = {**weights.section, **_fields(config.encoder, weights.section)}
  if config.init_layers:
    taken = initial_weights.layers_of(config.init_layers, weights.section['num_layers'])
    encoder['num_layers'] = len(taken)
  architecture, head = hf.task_class_of(weights.hf, task.kind.head)
  objective = {**named.defaults(config.objective, 'objective'), **config.objective}
  if objective.get('head') == 'auto':
    objective['head'] = head
  makes_vectors = 'vectors' in task.kind.outputs
  if makes_vectors and objective.get('pooling') == 'auto':
    if weights.vectors.refused:
      raise errors.UserError(weights.vectors.refused)
    objective['pooling'] = weights.vectors.pooling
  if makes_vectors and objective.get('highest') == 0:
    objective['highest'] = float(task.splits['train'].labels.max()) or 1.0
  if task.labels:
    objective['labels'] = tuple(task.labels)
  if objective.get('class_weights') in (task_objectives.AUTO, *task_objectives.AUTO):
    objective['class_weights'] = labels_lib.balanced(task.splits['train'].labels, len(task.labels))
  warmup = int(config.warmup * steps) if config.warmup < 1 else int(config.warmup)
  if warmup >= steps:
    raise errors.UserError(
      f'config.warmup={config.warmup:g} leaves none of {steps:,} steps: lower it, or train longer; '
      'below 1 it is a share of the steps.'
    )
  run = dict(config.run)
  if config.choose != 'last' and run['eval_every']:
    raise errors.UserError(
      f'config.run.eval_every={run["eval_every"]} and config.choose={config.choose} are both set: '
      f'set --config.choose_every={run["eval_every"]} instead.'
    )
  if config.choose == 'last' and (config.patience or config.choose_every):
    raise errors.UserError(
      'config.patience and config.choose_every are for runs that choose a checkpoint: set '
      '--config.choose=best.'
    )
  if not run['eval_every']:
    epoch = max(1, min(steps, math.ceil(rows / config.batch_size)))
    run['eval_every'] = config.choose_every or epoch
  # stands for the tokenizer of a Hugging Face directory, whose files are its own
  weights_tokenizer = {'name': 'of_weights', 'vocab_size': weights.vocab_size}
  experiment = ml_collections.ConfigDict(
    {
      **{k: v for k, v in config.items() if k not in _PLANS},
      'batch_tokens': 0,
      'moving': (),
      'ema': 0.0,
      'epochs': 0.0,
      'mixture': (),
      'frozen': (),
      'init': weights.address,
      'phases': ((steps, {}),),
      'tokenizer': weights.tokenizer_section or weights_tokenizer,
      'encoder': encoder,
      'objective': objective,
      'schedule': {**config.schedule, 'warmup': warmup},
      'hf': architecture,
      'run': run,
    }
  )
  # also builds it, so that a wrong field is refused before the first run of a grid
  run = checks.config(experiments.run(experiment))
  network = build.network(run, run.phases[0], weights.vocab_size)
  if config.layer_decay != 1.0:
    experiment.optimizer.rates = _rates(config, experiment, network.paths)
    run = experiments.run(experiment)
    build.network(run, run.phases[0], weights.vocab_size)
  experiment.lock()
  return run


def _check(config):
  """Raises UserError for a number out of its range, or a grid or seeds of another form."""
  _check_numbers(config)
  known = configuration.flatten(config)
  for line in config.grid:
    pair = _is_list(line) and len(line) == 2 and isinstance(line[0], str)
    if not (pair and _is_list(line[1]) and line[1]):
      raise errors.UserError(
        f'config.grid has {line!r}: each of its lines is a field and a tuple of values, '
        '--config.grid="((\'schedule.learning_rate\', (1e-5, 3e-5)),)".'
      )
  if twice := _twice([key for key, _ in config.grid]):
    raise errors.UserError(f'config.grid has {twice[0]!r} twice: write its values in one line.')
  for key, values in config.grid:
    if twice := _twice(values):
      raise errors.UserError(f'config.grid has {key}={twice[0]!r} twice: name each value once.')
    if key not in known:
      raise errors.UserError(
        f'config.grid names {key!r}, which is no field of the config.'
        f'{errors.did_you_mean(key, known)}'
      )
    if key in _FIXED or key.split('.')[0] in _FIXED:
      raise errors.UserError(
        f'config.grid varies {key!r}, which must be the same in all runs'
        + (': give config.seeds.' if key == 'seed' else ': run one fine-tuning per value.')
      )
  if twice := _twice(config.seeds):
    raise errors.UserError(f'config.seeds has {twice[0]!r} twice: name each once.')
  if wrong := [seed for seed in config.seeds if not isinstance(seed, int)]:
    raise errors.UserError(
      f'config.seeds has {wrong[0]!r}: seeds are whole numbers, as in --config.seeds=0,1,2.'
    )


def _is_list(x) -> bool:
  return isinstance(x, (tuple, list))


def _twice(values) -> list:
  return [value for value in values if list(values).count(value) > 1]


def _check_numbers(config):
  ranges.check_fields(config)
  if config.batch_size < 1:
    raise errors.UserError('config.batch_size is 0: give the rows of a batch, as in 32.')


def _rates(config, experiment, paths):
  """The optimizer's `rates` by layer."""
  if config.optimizer.rates:
    raise errors.UserError(
      'config.layer_decay and config.optimizer.rates are both set, and both scale rates by layer: '
      'set one of them.'
    )
  return layer_decay.rates(
    paths,
    experiment.encoder.num_layers,
    config.layer_decay,
    config.layer_decay_form,
    experiment.encoder.inner_group_num if 'inner_group_num' in experiment.encoder else 1,
  )


def _at(config, point, seed):
  """A copy of the config with the values of a point of its grid."""
  copied = config.copy_and_resolve_references().unlock()
  for key, value in (*point, ('seed', seed)):
    *sections, field = key.split('.')
    at = copied
    for section in sections:
      at = at[section]
    origin, kind = 'seeds' if key == 'seed' else 'grid', type(at[field]).__name__
    with errors.unreadable(f'config.{origin} sets {key} to {value!r}: it is a {kind}'):
      at[field] = value
  return copied


def _fields(wished, section) -> dict:
  """The fields of the encoder that a fine-tuning sets."""
  for field in wished:
    if field not in section:
      raise errors.UserError(
        f'config.encoder sets {field!r}, and encoder={section["name"]} has no such field.'
        f'{errors.did_you_mean(field, section)}'
      )
  return dict(wished)


def _title(point, seed) -> str:
  """The name of a run's folder, without a comma, which would part two addresses of --init."""
  names = table.short([key for key, _ in point])
  parts = [f'{name}={value}' for name, (_, value) in zip(names, point)]
  return '+'.join([*parts, f'seed={seed}']).replace('/', '_').replace(',', '_')
