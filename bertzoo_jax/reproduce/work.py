"""One job of a table: pretrains, measures held-out text, fine-tunes, and writes its scores."""

import math
import statistics

import jax
import numpy as np

from bertzoo_jax import pretrain
from bertzoo_jax import pretrained
from bertzoo_jax import tasks
from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.common import vocabulary
from bertzoo_jax.evaluate import scores as held_out_scores
from bertzoo_jax.finetune import jobs
from bertzoo_jax.finetune import suite as finetuning
from bertzoo_jax.reproduce import plan
from bertzoo_jax.runs import checkpoint
from bertzoo_jax.runs import metrics
from bertzoo_jax.runs import step_folders
from bertzoo_jax.runs import workdir as workdirs

PRETRAINED = 'pretrained.json'
_NOTHING = {'step': None, 'flops': None, 'devices': ''}  # is known of a pretraining that diverged
_TRAINING_FACTS = {  # kind of a column: fact of the pretraining, and its unit
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


def run(job: jobs.Job, config, corpus: str, task_dir: str, say=print) -> dict | None:
  """The scores of a job of a table (`config`), which are written to its folder; None if the user
  asked to stop.

  Finished parts are not run again. A pretraining that diverges, or begins with the weights of a row
  that did, gets the reason in place of scores. corpus: folder of the prepared text. A task
  whose files are not in task_dir is left out. Errors: see pretrain and finetune.
  """
  without = lambda why: dict.fromkeys(config.table.columns, _nothing(why))
  if why := _never_begins(job, config):
    say(f'{job.title} is not run: {why}')
    return _written(job, config, without(why), _NOTHING)
  say(f'\n== {job.title}: pretraining in {job.pretraining}')
  try:
    trained = _pretrained(job, corpus)
  except errors.Diverged as e:
    say(f'{job.title} diverged. {e}')
    jax.clear_caches()
    return _written(job, config, without(f'diverged: {e}'), {**_NOTHING, 'devices': _devices()})
  if trained is None:
    return None
  evaluated = _evaluated(job, config, corpus)
  cosines = _cosines(job, config)
  columns, done = {}, {}
  begins = {name: config.columns[name].get('begins') for name in config.table.columns}
  for name in jobs.in_order(begins, 'The columns '):
    column = config.columns[name]
    if column.kind == 'task':
      done[name] = _fine_tuned(job, name, config, task_dir, say)
      if done[name] is None:
        return None
    columns[name] = _cell(column, trained, evaluated, cosines, done.get(name))
  for name in config.table.columns:
    if config.columns[name].kind == 'average':
      columns[name] = _average([columns[other] for other in config.columns[name].of])
  return _written(job, config, columns, trained)


def _never_begins(job, config) -> str:
  """Why a job has no weights to begin with; '' if it has."""
  if not job.needs:
    return ''
  before = storage.read_json(job.folder.parent.parent / job.needs / job.folder.name / job.record)
  return f'diverged: {config.rows[job.needs].title}' if before['steps'] is None else ''


def _written(job, config, columns, trained) -> dict:
  """The scores of a job, after they are written to its folder."""
  for name in config.table.columns:
    if config.columns[name].kind == 'not_supported':
      columns[name] = _nothing(f'not supported: {config.columns[name].why}')
  result = {
    'row': job.name,
    'seed': job.seed,
    'columns': columns,
    'steps': trained['step'],
    'flops': trained['flops'],
    'devices': trained['devices'],
    'commit': workdirs.commit(),
  }
  storage.write_json(job.folder / job.record, result)
  return storage.read_json(job.folder / job.record)


def _devices() -> str:
  return f'{jax.device_count()} × {jax.devices()[0].device_kind}'


def _pretrained(job, corpus) -> dict | None:
  """Facts of the finished pretraining; None if it was stopped."""
  file = job.folder / PRETRAINED
  if file.exists():
    return storage.read_json(file)
  with plan.naming(job.experiment, job.name):
    outcome = pretrain.pretrain(
      job.experiment, str(job.pretraining), corpus=corpus, init=job.init or None
    )
  jax.clear_caches()
  if outcome['interrupted'] and outcome['step'] < outcome['end']:
    return None
  params, _, _ = checkpoint.load_params(str(job.pretraining))
  speeds = [row.get('tokens_per_second') for row in metrics.read(job.pretraining)]
  speeds = [speed for speed in speeds if speed]
  known = {
    'step': outcome['step'],
    'flops': outcome['flops'],
    'held_out': {k: v for k, v in outcome['held_out'].items() if k.startswith('held_out')},
    'devices': _devices(),
    'tokens_per_second': statistics.median(speeds) if speeds else None,
    'parameters': sum(x.size for x in jax.tree.leaves(params)),
  }
  storage.write_json(file, known)
  return storage.read_json(file)


def _cosines(job, config) -> dict[str, float]:
  """{network: mean cosine of its word vectors}; {} if no column has it."""
  if not any(column.kind == 'cosine' for column in config.columns.values()):
    return {}
  run = pretrained.open_run(str(job.pretraining))
  pieces = vocabulary.read_folder(storage.path(run.workdir) / 'tokenizer')
  rows = 1 + max(pieces.values())  # the rows after them belong to no piece
  words = lambda network: network.extract(run.params)['encoder']['embeddings']['word']['embedding']
  return {network.name: mean_cosine(words(network)[:rows]) for network in run.networks}


def _evaluated(job, config, corpus) -> dict:
  """{(rows, measure): value} of `evaluate`; {} if no column needs it, or it cannot be."""
  measures = {c.measure for c in config.columns.values() if c.kind == 'held_out'}
  if not measures & _EVALUATED.keys():
    return {}
  evaluation = held_out_scores.evaluate(str(job.pretraining), corpus)
  jax.clear_caches()
  return {(s.rows, s.measure): s.value for s in evaluation.scores}


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
    task.init = ''  # --init is given below
    task.lock()
  say(f'== {column.title} in {folder}, begins with {init}')
  lines = finetuning.finetune(task, str(folder), init=init, task_dir=where)
  jax.clear_caches()
  if lines is None:
    return None
  line = next(line for line in lines if line.chosen)
  score = lambda median, *spread: dict(median=median, seeds=line.seeds, spread=list(spread))
  first = {f'{line.split} {line.metric}': score(line.median, *sorted((line.worst, line.best)))}
  return {**first, **{key: score(median) for key, median in line.others.items()}}


def _located(column, config, task_dir) -> tuple[str, str]:
  """(folder of a task's files, '') or ('', why they are not there)."""
  return tasks.located(
    column.task, task_dir, [c.task for c in config.columns.values() if c.kind == 'task']
  )


def absent(config, task_dir) -> list[str]:
  """A sentence for each task whose files are not there."""
  columns = [column for column in config.columns.values() if column.kind == 'task']
  reasons = [(column.title, _located(column, config, task_dir)[1]) for column in columns]
  return [f'{title} is not run. {why}' for title, why in reasons if why]


def late(job: jobs.Job, config, task_dir) -> list[str]:
  """Titles of the tasks that a finished job left out for want of files, which are there now."""
  done = storage.read_json(job.folder / job.record)['columns']
  left_out = [name for name in config.table.columns if done[name]['why'] == _NO_FILES]
  columns = [config.columns[name] for name in left_out]
  return [column.title for column in columns if not _located(column, config, task_dir)[1]]


def _best_run(folder) -> str:
  """Address of the run of a fine-tuning that keeps its checkpoint; '' if none does."""
  for run in sorted(storage.path(folder).glob('*/*')):
    if steps := step_folders.steps(run):
      return f'{run}@{steps[-1]}'
  return ''


def _cell(column, trained, evaluated, cosines, done) -> dict:
  """{'values': [numbers], 'why': sentence without numbers}; for a fine-tuning also its 'seeds' and
  the 'spread' of its first number over them. done: the result of `_fine_tuned`.
  """
  value, why = None, ''
  if column.kind == 'task':
    return _task_cell(column, done)
  if column.kind == 'cosine':
    value, why = cosines.get(column.network), 'there is no such network'
  elif column.kind in _TRAINING_FACTS:
    name, unit = _TRAINING_FACTS[column.kind]
    value, why = trained[name], 'not counted'
    value = None if value is None else value / unit
  elif column.kind == 'held_out' and column.measure not in _EVALUATED:
    value, why = trained['held_out'].get(column.measure), 'not measured by this objective'
  elif column.kind == 'held_out':
    value, why = evaluated.get(_EVALUATED[column.measure]), 'not measured by this network'
    if value is not None and column.measure == 'perplexity':
      value = math.exp(value)
  return _nothing(why) if value is None else _values(value)


def _task_cell(column, done) -> dict:
  if isinstance(done, str):
    return _nothing(_NO_FILES)
  cells = [done[metric] for metric in column.metrics if metric in done]
  if not all(math.isfinite(cell['median']) for cell in cells):
    return _nothing('diverged: too many runs of the fine-tuning')
  first = cells[0] if cells else {'seeds': 0, 'spread': []}
  spread = [x for x in first['spread'] if math.isfinite(x)]
  values = _values(*(cell['median'] for cell in cells))
  return {**values, 'seeds': first['seeds'], 'spread': spread if len(spread) == 2 else []}


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


def mean_cosine(words_VE) -> float:
  """The mean cosine of two different rows of a table (He et al. 2021, embedding sharing); rows of
  zeros are left out.

  words_VE: one row per piece, without the rows that pad the table
    (config.encoder.vocab_multiple).
  """
  words_VE = np.asarray(words_VE, np.float64)
  norm_V = np.linalg.norm(words_VE, axis=1)
  unit_VE = words_VE[norm_V > 0] / norm_V[norm_V > 0, None]
  count = len(unit_VE)
  if count < 2:
    return float('nan')
  # |Σ u|² is the sum over all pairs, each row with itself included
  return float((np.sum(unit_VE.sum(axis=0) ** 2) - count) / (count * (count - 1)))
