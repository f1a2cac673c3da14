"""What a table of a paper is made of: rows, columns, and the scale at which the rows are run.

    FILE.py:paper             the systems as published
    FILE.py:budget,k=64       the same networks on a 64th of the tokens
    FILE.py:budget            the same; `reproduce --hours H` chooses k
    FILE.py:budget,steps=4000 the systems' size `tiny` for 4,000 steps, on a text of your own
    FILE.py:tiny              networks of minutes, to see that every row runs

Behind the scale, section=part swaps a part of every row: budget,steps=4000,encoder=disentangled.
A row is a system's config with the fields that the table changes. Nothing here imports a framework.
How `budget` divides the tokens is told in bertzoo_jax/reproduce/budget.py.
"""

import importlib
import math
from typing import NamedTuple

import ml_collections

from bertzoo_jax import parts

ENGLISH = ('federalist.txt', 'sherlock.txt', 'time_machine.txt')
CHINESE = ('zh_laws.txt', 'zh_tang.txt')
SCALES = ('paper', 'budget', 'tiny')
# Fine-tunings of tiny networks; at `budget` their rows are as long as in pretraining.
_TINY_TASK = dict(steps=60, batch_size=16, length=32, seeds=())
_BUDGET_TASK = dict(steps=300, batch_size=32, seeds=(0, 1, 2))


def row(title, *printed, system='', change='', fields=None, tiny=None, init='', note=''):
  """A row of a table.

  title: as the paper prints it.
  printed: the paper's numbers, in the order of the columns: a number, 'F1/EM' for two, '' for none;
    '[mem] …' or '[3rd] …' where the number itself was not read.
  system: config and size, 'albert:base'; '' for that of the table, None for a row that is not run
    (another paper's model, whose note says why).
  change: parts that are swapped, 'objective=mlm,masking=span'.
  fields: {key: value} of the config, after that.
  tiny: {key: value} that tiny networks set in place of `fields`; None for the same.
  init: title of the row whose weights it begins with, or an address of weights.
  note: a sentence about the row.
  """
  return dict(
    title=title,
    printed=printed,
    system=system,
    change=change,
    fields=dict(fields or {}),
    tiny=tiny,
    init=init,
    note=note,
  )


def held_out(title, measure, unit='%'):
  """A column of a measure on held-out text.

  measure: mlm_accuracy | mlm_loss | perplexity | nsp_accuracy | sop_accuracy (`evaluate`), or a
    metric of the run's record by its name.
  """
  return dict(kind='held_out', title=title, measure=measure, unit=unit)


def task(title, task, *metrics, split='dev', **fields):
  """A column with scores of a fine-tuning.

  task: FILE:TASK of configs/tasks, with its sections: 'glue:sst2,recipe=albert_base'. If its recipe
    begins with another task and the table has a column of that, it begins with the best run there.
  metrics: names of metrics; without any, the first metric of the task. 'SPLIT metric' names another
    split.
  fields: fields of the fine-tuning's config that differ from the task's own.
  """
  metrics = tuple(m if ' ' in m else f'{split} {m}' for m in metrics)
  return dict(kind='task', title=title, task=task, metrics=metrics, split=split, fields=fields)


def average(title, *of):
  """A column with the mean of other columns, given by their titles. Where one of them has two
  numbers (MNLI m/mm), their mean is taken first.
  """
  return dict(kind='average', title=title, of=of)


def parameters(title='params'):
  """A column with the number of trained parameters, in millions."""
  return dict(kind='parameters', title=title)


def flops(title='train FLOPs'):
  """A column with the FLOPs of the whole training, as ELECTRA's release counts them."""
  return dict(kind='flops', title=title)


def cosine(title, network):
  """A column with the mean cosine of two word vectors of a network.

  network: 'generator' or 'discriminator'.
  """
  return dict(kind='cosine', title=title, network=network)


def speed(title, over):
  """A column with the speed of training, as a multiple of the speed of the row `over`."""
  return dict(kind='speed', title=title, over=over)


def not_supported(title, why):
  """A column that no task here covers. why: the missing part."""
  return dict(kind='not_supported', title=title, why=why)


def table(
  scale,
  *,
  paper,
  name,
  title,
  system,
  columns,
  rows,
  varies,
  source='',
  note='',
  change='',
  fields=None,
  tiny=None,
  tiny_steps=200,
  seeds=(0,),
  task_seeds=None,
  topology='v4-32',
  sample=ENGLISH,
):
  """The complete config of a table.

  scale: tiny | paper | budget | budget,k=K | budget,steps=N, each with ,section=part for all rows.
  paper, name, title: 'Lan et al. 2019', 'Table 5', what it compares; source: where it is.
  system: config and size of all rows that name no other.
  varies: {key of the config: the paper's passage}. Rows may differ in these keys alone.
  note: the parts that are not reproduced.
  change, fields, tiny: as in `row`, for every row. A row's own come after these.
  tiny_steps: steps of pretraining at `tiny`. At `budget,steps=N` phases that a row sets for `tiny`
    are N / tiny_steps as long.
  seeds: seeds of pretraining; each is a run. task_seeds: seeds of fine-tuning, not used by tiny
    networks; None for the task's own.
  sample: files of data/sample that `tiny` reads if no text is given.
  topology: slice on which the largest and the smallest row are compiled by preflight.
  """
  at = _scale(scale, tiny_steps)
  made = ml_collections.ConfigDict(
    dict(
      table=dict(
        paper=paper,
        name=name,
        title=title,
        source=source,
        note=note,
        scale=at.kind,
        tokens_divided_by=at.k,
        steps=at.steps,
        change=at.change,
        topology=topology,
        sample=sample if at.kind == 'tiny' else (),
        columns=tuple(_id(column['title']) for column in columns),  # in their order
        rows=tuple(_id(one['title']) for one in rows),
      ),
      varies=tuple(varies.items()),
      seeds=seeds,
      columns={},
      rows={},
    )
  )
  keys = [_id(column['title']) for column in columns]
  length = _system(system, tiny=True).length
  for key, column in zip(keys, columns):
    made.columns[key] = ml_collections.ConfigDict(_column(column, at, task_seeds, length))
  asked = {key: column['task'] for key, column in zip(keys, columns) if column['kind'] == 'task'}
  for key in asked:
    if begins := _begins(key, asked, made.columns):
      made.columns[key].begins = begins
  for one in rows:
    if len(one['printed']) > len(keys):
      raise ValueError(
        f'row {one["title"]!r} has {len(one["printed"])} printed numbers and the table {len(keys)} '
        'columns.'
      )
    made.rows[_id(one['title'])] = ml_collections.ConfigDict(
      dict(
        title=one['title'],
        note=one['note'],
        init=_init(one['init'], {r['title'] for r in rows}, at),
        printed=dict(zip(keys, map(str, one['printed']))),
        experiment=_experiment(
          one, row('', system=system, change=change, fields=fields, tiny=tiny), at, tiny_steps
        ),
      )
    )
  if at.steps:
    _warm_up_alike([one.experiment for one in made.rows.values() if one.experiment])
  return made


class _Scale(NamedTuple):
  """kind: of SCALES; k: divisor of the tokens, 0 where --hours chooses it; steps: of the tiny
  networks, 0 for the networks as published; change: parts that are swapped in every row.
  """

  kind: str
  k: float
  steps: int
  change: str


def _scale(scale, tiny_steps) -> _Scale:
  kind, *more = (scale or '').split(',')
  if kind not in SCALES:
    raise ValueError(
      f'no scale {kind!r}: write FILE.py:SCALE with SCALE one of {", ".join(SCALES)}.'
    )
  swaps = [part for part in more if part.partition('=')[0] in parts.SECTIONS]
  more, change = [part for part in more if part not in swaps], ','.join(swaps)
  if not more:
    k, steps = 0.0 if kind == 'budget' else 1.0, tiny_steps if kind == 'tiny' else 0
    return _Scale(kind, k, steps, change)
  key, _, value = more[0].partition('=')
  if kind == 'budget' and len(more) == 1:
    if key == 'k' and _is_number(value) and float(value) >= 1:
      return _Scale(kind, float(value), 0, change)
    if key == 'steps' and value.isdecimal() and int(value):
      return _Scale(kind, 1.0, int(value), change)
  raise ValueError(
    f'{",".join(more)!r}: a scale is tiny, paper, budget, budget,k=K with K from 1 on, or '
    'budget,steps=N. Behind it section=part swaps a part of every row.'
  )


def _init(init, titles, at):
  """The name of a row or an address; no address for tiny networks, which fit no other weights."""
  return _id(init) if init in titles else '' if at.steps else init


def _system(name, *, tiny=False, changes=()):
  """The config of a system, 'albert:base', with {section: part} changed."""
  file, _, size = name.partition(':')
  module = importlib.import_module(f'bertzoo_jax.configs.{file}')
  size = _tiny_size(size, module) if tiny else size
  return module.get_config(','.join([size, *(f'{k}={v}' for k, v in dict(changes).items())]))


def _experiment(one, every, at, tiny_steps):
  """The config of a row; None for one that is not run. every: fields of all rows."""
  if one['system'] is None:
    return None
  changes = _changes(every['change']) | _changes(at.change) | _changes(one['change'])
  changes |= {'steps': at.steps} if at.steps else {}
  config = _system(one['system'] or every['system'], tiny=at.steps > 0, changes=changes)
  for part in (every, one):
    fields = part['fields'] if not at.steps or part['tiny'] is None else part['tiny']
    for key, value in fields.items():
      _set(config, key, _longer(value, at.steps / tiny_steps) if key == 'phases' else value)
  if at.steps:
    config.run.eval_every = max(1, at.steps // 10)
  return config


def _warm_up_alike(experiments):
  """Bounds the warmup of all rows by half of the steps of the shortest one: a schedule refuses a
  warmup that is longer than the run.
  """
  shortest = min(sum(steps for steps, _ in one.phases) for one in experiments)
  for one in experiments:
    if 'warmup' in one.schedule:
      one.schedule.warmup = min(one.schedule.warmup, shortest // 2)


def _longer(phases, times):
  """Phases of `tiny` with another number of steps; those as published (times=0) stay."""
  return tuple((round(steps * times) if times else steps, fields) for steps, fields in phases)


def _changes(text) -> dict:
  return dict(change.split('=', 1) for change in text.split(',') if change)


def _tiny_size(size, module):
  """'tiny', or tiny_KIND for a size called ANY_KIND, where the config has it (tiny_two_stage)."""
  kind = 'tiny_' + size.partition('_')[2]
  return kind if kind in module.SIZES else 'tiny'


def _set(config, key, value):
  *sections, field = key.split('.')
  for section in sections:
    config = config[section]
  if field not in config:
    raise ValueError(f'a row sets {key!r}, which is no field of its config.')
  config[field] = value


def _column(column, at, task_seeds, length):
  """The config of a column. length: of the rows of a tiny network's pretraining."""
  column = dict(column)
  if column['kind'] == 'average':
    return {**column, 'of': tuple(map(_id, column['of']))}
  if column['kind'] != 'task':
    return column
  file, _, argument = column.pop('task').partition(':')
  config = importlib.import_module(f'bertzoo_jax.configs.tasks.{file}').get_config(argument)
  if at.steps:
    _shorten(config, **(_TINY_TASK if at.kind == 'tiny' else {**_BUDGET_TASK, 'length': length}))
  for key, value in column.pop('fields').items():
    _set(config, key, value)
  if task_seeds is not None and not at.steps:
    config.seeds = task_seeds
  column['metrics'] = column['metrics'] or (f'{column.pop("split")} {config.metrics[0]}',)
  column.pop('split', None)
  return {**column, 'task': config}


def _begins(key, asked, columns):
  """The column whose best run a task begins with: of MNLI for RTE where the recipe says so, with
  the same recipe if there are several. '' if the table has none.

  asked: {column: FILE:TASK with its sections}.
  """
  wanted = columns[key].task.init
  found = [other for other in asked if wanted and columns[other].task.name == wanted]
  recipe = lambda name: asked[name].partition(',')[2]
  same = [other for other in found if recipe(other) == recipe(key)]
  return (same or found or [''])[0]


def _shorten(task, steps, batch_size, length, seeds):
  """Makes a fine-tuning some steps on short rows, which every tiny network takes, at one rate."""
  task.grid, task.seeds = (), seeds
  task.steps, task.batch_size, task.length = steps, batch_size, length
  with task.ignore_type():  # some recipes have steps
    task.warmup = 0.1
  task.schedule.learning_rate = 1e-3
  if 'max_question' in task.features:
    task.features.max_question, task.features.doc_stride = length // 3, length // 4


def _id(title):
  """A title as a name of a field and a folder."""
  kept = [c if c.isalnum() else '_' for c in title.lower()]
  return '_'.join(filter(None, ''.join(kept).split('_')))


def _is_number(text):
  try:
    return math.isfinite(float(text))
  except ValueError:
    return False
