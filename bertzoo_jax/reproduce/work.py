"""One job of a table: pretrains, measures held-out text, fine-tunes, and writes its scores."""

import math
import statistics

import jax

from bertzoo_jax import pretrain
from bertzoo_jax import pretrained
from bertzoo_jax import tasks
from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.common import vocabulary
from bertzoo_jax.evaluate import scores as held_out_scores
from bertzoo_jax.finetune import __main__ as finetuning
from bertzoo_jax.reproduce import plan
from bertzoo_jax.reproduce import vectors
from bertzoo_jax.runs import checkpoint
from bertzoo_jax.runs import metrics
from bertzoo_jax.runs import step_folders
from bertzoo_jax.runs import workdir as workdirs

PRETRAINED = 'pretrained.json'
_NOTHING = {'step': None, 'flops': None, 'devices': ''}  # is known of a pretraining that diverged
_OF_TRAINING = {  # kind of a column: what is known of the pretraining, and its unit
  'parameters': ('parameters', 1e6),
  'flops': ('flops', 1.0),
  'speed': ('tokens_per_second', 1.0),
}
_NO_FILES = 'not run: no files'
_EVALUATED = {  # measure of a column: rows and measure of `evaluate`
  'mlm_accuracy': ('mlm', 'accuracy'),
  'mlm_loss': ('mlm', 'loss'),
  'perplexity': ('mlm', 'loss'),
  'nsp_accuracy': ('nsp', 'accuracy'),
  'sop_accuracy': ('sop', 'accuracy'),
}


def run(job: plan.Job, config, corpus: str, task_dir: str, say=print) -> dict | None:
  """The scores of a job, which are written to its folder; None if the user asked to stop.

  What is finished is not run again. A pretraining that diverges, or whose first weights are of a
  row that did, gets scores without values, which say so.

  Args:
    job: of the table.
    config: of the table.
    corpus: folder of the prepared text.
    task_dir: folder of the tasks' files; a task whose files are not there is left out.
    say: prints a line.

  Raises:
    UserError, TryAgain, Stopped: see pretrain and finetune.
  """
  title = f'{config.rows[job.row].title}, seed {job.seed}'
  if why := _never_begins(job, config):
    say(f'{title} is not run: {why}')
    return _written(job, config, dict.fromkeys(config.table.columns, _nothing(why)), _NOTHING)
  say(f'\n== {title}: pretraining in {job.pretraining}')
  try:
    trained = _pretrained(job, corpus)
  except errors.Diverged as e:
    say(f'{title} diverged. {e}')
    jax.clear_caches()
    columns = dict.fromkeys(config.table.columns, _nothing(f'diverged: {e}'))
    return _written(job, config, columns, {**_NOTHING, 'devices': _devices()})
  if trained is None:
    return None
  evaluated = _evaluated(job, config, corpus)
  cosines = _cosines(job, config)
  columns, tasks_done = {}, {}
  for name in sorted(config.table.columns, key=lambda name: 'begins' in config.columns[name]):
    column = config.columns[name]
    if column.kind == 'task':
      found = _fine_tuned(job, name, config, task_dir, say)
      if found is None:
        return None
      tasks_done[name] = found
    columns[name] = _cell(column, trained, evaluated, cosines, tasks_done.get(name))
  for name in config.table.columns:
    if config.columns[name].kind == 'average':
      columns[name] = _average([columns[other] for other in config.columns[name].of])
  return _written(job, config, columns, trained)


def _never_begins(job, config) -> str:
  """Why a job has no weights to begin with; '' if it has."""
  if not job.after:
    return ''
  before = storage.read_json(job.folder.parent.parent / job.after / job.folder.name / plan.SCORES)
  return f'diverged: {config.rows[job.after].title}' if before['steps'] is None else ''


def _written(job, config, columns, trained) -> dict:
  """The scores of a job, after they are written to its folder."""
  for name in config.table.columns:
    if config.columns[name].kind == 'not_supported':
      columns[name] = _cell(config.columns[name], trained, {}, {}, None)
  result = {
    'row': job.row,
    'seed': job.seed,
    'columns': columns,
    'steps': trained['step'],
    'flops': trained['flops'],
    'devices': trained['devices'],
    'commit': workdirs.commit(),
  }
  storage.write_json(job.folder / plan.SCORES, result)
  return storage.read_json(job.folder / plan.SCORES)


def _devices() -> str:
  return f'{jax.device_count()} × {jax.devices()[0].device_kind}'


def _pretrained(job, corpus) -> dict | None:
  """What is known of the finished pretraining; None if it was stopped."""
  file = job.folder / PRETRAINED
  if file.exists():
    return storage.read_json(file)
  with plan.naming(job.experiment, f'rows.{job.row}.experiment'):
    found = pretrain.pretrain(
      job.experiment, str(job.pretraining), corpus=corpus, init=job.init or None
    )
  jax.clear_caches()
  if found['interrupted'] and found['step'] < found['end']:
    return None
  params, _, _ = checkpoint.load_params(str(job.pretraining))
  storage.write_json(
    file,
    {
      'step': found['step'],
      'flops': found['flops'],
      'held_out': {k: v for k, v in found['held_out'].items() if k.startswith('held_out')},
      'devices': _devices(),
      'tokens_per_second': _speed(job.pretraining),
      'parameters': sum(x.size for x in jax.tree.leaves(params)),
    },
  )
  return storage.read_json(file)


def _speed(workdir):
  """Median tokens per second of a run; None if too few were measured."""
  found = [row.get('tokens_per_second') for row in metrics.read(workdir)]
  found = [speed for speed in found if speed]
  return statistics.median(found) if found else None


def _cosines(job, config) -> dict[str, float]:
  """{network: mean cosine of its word vectors}; {} if no column has it."""
  if not any(column.kind == 'cosine' for column in config.columns.values()):
    return {}
  run = pretrained.open_run(str(job.pretraining))
  pieces = vocabulary.of_folder(storage.path(run.workdir) / 'tokenizer')
  rows = 1 + max(pieces.values())  # those behind them belong to no piece
  words = lambda network: network.of(run.params)['encoder']['embeddings']['word']['embedding']
  return {network.name: vectors.mean_cosine(words(network)[:rows]) for network in run.networks}


def _evaluated(job, config, corpus) -> dict:
  """{(rows, measure): value} of `evaluate`; {} if no column needs it, or it cannot be."""
  asked = {c.measure for c in config.columns.values() if c.kind == 'held_out'}
  if not asked & _EVALUATED.keys():
    return {}
  found = held_out_scores.evaluate(str(job.pretraining), corpus)
  jax.clear_caches()
  return {(s.rows, s.measure): s.value for s in found.scores}


def _fine_tuned(job, name, config, task_dir, say):
  """{'SPLIT METRIC': {'median', 'seeds', 'spread'}} of the best point of the grid, spread being
  [lowest, highest] of the first metric and [] of others; a sentence if the task's files are not
  there; None if it was stopped.
  """
  column = config.columns[name]
  where, why = _located(column, config, task_dir)
  if why:
    return why
  folder, task = job.folder / 'tasks' / name, column.task
  init = str(job.pretraining)
  if 'begins' in column and (best := _best_run(job.folder / 'tasks' / column.begins)):
    init, task = best, task.copy_and_resolve_references().unlock()
    task.init = ''  # it is given
    task.lock()
  say(f'== {column.title} in {folder}, begins with {init}')
  found = finetuning.finetune(task, str(folder), init=init, task_dir=where)
  jax.clear_caches()
  if found is None:
    return None
  line = next(line for line in found if line.chosen)
  first = dict(median=line.median, seeds=line.seeds, spread=[line.lowest, line.best])
  rest = lambda median: dict(median=median, seeds=line.seeds, spread=[])
  return {
    f'{line.split} {line.metric}': first,
    **{key: rest(median) for key, median in line.others.items()},
  }


def _located(column, config, task_dir) -> tuple[str, str]:
  """(folder of a task's files, '') or ('', why they are not there)."""
  return tasks.located(
    column.task, task_dir, [c.task for c in config.columns.values() if c.kind == 'task']
  )


def absent(config, task_dir) -> list[str]:
  """A sentence for each task whose files are not there."""
  columns = [column for column in config.columns.values() if column.kind == 'task']
  found = [(column.title, _located(column, config, task_dir)[1]) for column in columns]
  return [f'{title} is not run. {why}' for title, why in found if why]


def late(job: plan.Job, config, task_dir) -> list[str]:
  """Titles of the tasks that a finished job left out for want of files, which are there now."""
  done = storage.read_json(job.folder / plan.SCORES)['columns']
  left_out = [name for name in config.table.columns if done[name]['why'] == _NO_FILES]
  columns = [config.columns[name] for name in left_out]
  return [column.title for column in columns if not _located(column, config, task_dir)[1]]


def _best_run(folder) -> str:
  """Address of the best run of a fine-tuning: the one that keeps its checkpoint. '' if none does,
  since the task was not run or all its runs diverged.
  """
  for run in sorted(storage.path(folder).glob('*/*')):
    if steps := step_folders.steps(run):
      return f'{run}@{steps[-1]}'
  return ''


def _cell(column, trained, evaluated, cosines, done) -> dict:
  """{'values': [numbers], 'why': sentence where there are none}. A fine-tuning has its 'seeds' and
  the 'spread' of its first number over them, too.
  """
  if column.kind == 'not_supported':
    return _nothing(f'not supported: {column.why}')
  if column.kind == 'cosine':
    value = cosines.get(column.network)
    return _nothing('there is no such network') if value is None else _values(value)
  if column.kind in _OF_TRAINING:
    name, unit = _OF_TRAINING[column.kind]
    value = trained[name]
    return _nothing('not counted') if value is None else _values(value / unit)
  if column.kind == 'held_out':
    if column.measure not in _EVALUATED:
      value = trained['held_out'].get(column.measure)
      return _nothing('not measured by this objective') if value is None else _values(value)
    value = evaluated.get(_EVALUATED[column.measure])
    if value is None:
      return _nothing('not measured by this network')
    return _values(math.exp(value) if column.measure == 'perplexity' else value)
  if column.kind == 'task':
    if isinstance(done, str):
      return _nothing(_NO_FILES)
    cells = [done[metric] for metric in column.metrics if metric in done]
    if not all(math.isfinite(cell['median']) for cell in cells):
      return _nothing('diverged: too many runs of the fine-tuning')
    spread = [x for x in (cells[0]['spread'] if cells else []) if math.isfinite(x)]
    return {
      **_values(*(cell['median'] for cell in cells)),
      'seeds': cells[0]['seeds'] if cells else 0,
      'spread': spread if len(spread) == 2 else [],
    }
  return _nothing('')


def _values(*values):
  return {'values': [v if math.isfinite(v) else None for v in values], 'why': ''}


def _nothing(why):
  return {'values': [], 'why': why}


def _average(cells) -> dict:
  """The mean over columns of the means inside each; nothing where one is missing."""
  if any(not cell['values'] or None in cell['values'] for cell in cells):
    return _nothing('not run: a column is missing')
  means = [sum(cell['values']) / len(cell['values']) for cell in cells]
  return _values(sum(means) / len(means))
