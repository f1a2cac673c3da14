"""Trains the runs of a task, one after the other or one per device, and scores each of them.

A finished run has result.json in its folder and is not trained again. Some fields of the config
only change how answers are decoded (`configuration.decoding`). If one of them has a new value, the
saved predictions of the run are scored again. Of all finished runs of a task only the best keeps
its checkpoint. A run that diverges is finished without a score and ranks below all others.
"""

import io
import math
import shutil
import threading
import time
import zipfile

import jax
import numpy as np

from bertzoo_jax import tasks
from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.experiment import build
from bertzoo_jax.experiment import check
from bertzoo_jax.experiment import machinery
from bertzoo_jax.experiment import start
from bertzoo_jax.experiment import train
from bertzoo_jax.finetune import jobs
from bertzoo_jax.finetune import plan
from bertzoo_jax.finetune import rows
from bertzoo_jax.runs import checkpoint
from bertzoo_jax.runs import step_folders
from bertzoo_jax.runs import workdir as workdirs
from bertzoo_jax.tasks.kinds import kind
from bertzoo_jax.training import sharding

PREDICTIONS = 'predictions.npz'


def opened(config, task_dir: str, tokenizer, weights) -> tasks.Task:
  """The task of a fine-tuning config, with rows for the encoder of `weights`. weights: Pretrained.

  Raises UserError as `tasks.open` does.
  """
  return tasks.open(
    config,
    task_dir,
    tokenizer,
    weights.shape,
    segments=weights.section.get('type_vocab_size', 0),
    max_length=config.length,
  )


def train_all(runs, task, weights, notice, devices, say=print) -> list[dict] | None:
  """The results of the runs, in their order; None if the user interrupted before all were done.

  runs: of the same task. weights: {address: Pretrained}. notice: runs.preemption.Preemption that
  handles signals. devices: jax devices. Runs go one after the other on all of them, or one on each
  (`at_once`). say: prints a line.

  Raises UserError: see `train.train`; then no further run begins, and the runs in progress save and
  end. Raises Stopped: all runs diverged.
  """
  results, finishing, alone = {}, threading.Lock(), len(runs) == 1
  slots = [[d] for d in devices] if at_once(runs, len(devices)) > 1 else [devices]
  if not alone:
    say(f'{runs[0].name}: {len(runs)} runs, {len(slots)} at a time; one line per finished run')

  def do(run, run_devices):
    if notice.name:
      return False
    began = time.monotonic()
    try:
      with jax.default_device(run_devices[0]):
        result = _one(run, task, weights[run.init], notice, run_devices, alone)
    except Exception:
      notice.name = notice.name or 'the failure of another run'
      raise
    if result is None:
      return False
    with finishing:
      results[run.folder] = result
      _keep_best([run for run in runs if run.folder in results], results, task.sign)
      if not alone:
        say(_line(len(results), runs, run, result, time.monotonic() - began))
    return True

  if not jobs.run(runs, do, slots):
    return None
  chosen = runs[best([results[run.folder] for run in runs], task.sign)]
  if not alone and (why := results[chosen.folder]['diverged']):
    raise errors.Stopped(
      f'All {len(runs)} runs of {chosen.name} diverged ({why}): lower the learning rates and take '
      'another --workdir.'
    )
  if not step_folders.steps(chosen.folder):
    # An earlier command had other runs in its grid. One of those was the best then, so the
    # checkpoint of this run was deleted.
    say(f'{chosen.folder} has no checkpoint any more: it is trained again')
    (chosen.folder / chosen.record).unlink()
    del results[chosen.folder]
    if not do(chosen, slots[0]):
      return None
  return [results[run.folder] for run in runs]


def drawn(task, job) -> tasks.Task:
  """The task with the examples of a job."""
  return task.drawn(job.seed) if job.experiment.draw == 'bootstrap' else task


def at_once(runs, devices: int) -> int:
  """Number of runs that train at the same time, one per device; 1 for one run on all devices."""
  # wandb allows one run per process.
  alone = any(set(run.experiment.run.mesh) - {1, -1} or run.experiment.run.wandb for run in runs)
  return 1 if alone or len(runs) == 1 else devices


def best(results: list[dict], sign: int = 1) -> int:
  """The index of the result with the best dev score; the first of equal ones. A result without a
  score is the worst. sign: −1 if a lower score is better.
  """
  scores = [-math.inf if (x := r['score']) is None else sign * x for r in results]
  return scores.index(max(scores))


def _one(job, task, weights, notice, devices, alone) -> dict | None:
  """Trains or resumes the run of a job, predicts and scores; returns the result, or None if it was
  interrupted. alone: whether it is the only run. Only such a run shows its progress, and raises
  Diverged if it diverges.
  """
  task = drawn(task, job)
  if (job.folder / job.record).exists():
    return _scored_again(job, task, _read(job, task))
  run = job.resolved
  try:
    outcome = _trained(job, run, task, weights, notice, devices, alone)
  except errors.Diverged as e:
    if alone:
      raise
    labelled = [n for n, s in task.splits.items() if n != 'train' and s.labels is not None]
    nothing = dict.fromkeys(job.experiment.metrics)
    return _write(job, 0, {name: nothing for name in labelled}, str(e))
  if outcome['interrupted'] and outcome['step'] < outcome['end']:
    return None
  chosen = step_folders.best(job.folder) if job.experiment.choose != 'last' else None
  address = str(job.folder) if chosen is None else f'{job.folder}@{chosen}'
  params, step, _ = checkpoint.load_params(address)
  outputs = {
    name: rows.outputs(run, params, split, task)
    for name, split in task.splits.items()
    if name != 'train'
  }
  data = io.BytesIO()
  named = {(split, name): x for split, out in outputs.items() for name, x in out.items()}
  np.savez(data, **{s if n == 'row' else f'{s}/{n}': x for (s, n), x in named.items()})
  storage.write_bytes(job.folder / PREDICTIONS, data.getvalue())
  return _write(job, step, _scores(job, task, outputs))


def _trained(job, run, task, weights, notice, devices, show) -> dict:
  """Trains or resumes the run of a job, as `pretrain` does, but on the rows of a task."""
  first = start.First(job.init, run.config.init_layers)
  with train.holding(job.folder, run.config) as held:
    data = rows.data_of(run, task, weights)
    mesh = sharding.mesh(run.config.run.mesh, devices)
    begins = start.find(run, data, held.workdir, first, mesh.devices.flat[0])
    chosen = machinery.resolved(run, data.vocab_size, mesh, begins.machinery)
    built = check.built(build.phases(chosen, data, mesh, begins.step))
    built = machinery.fitted(built, run.config, begins.machinery, show)
    state, lines = start.state(begins, built)
    return train.train(built, begins, state, held, notice, lines, show)


def _read(job, task) -> dict:
  """The result of a finished run. Raises UserError if `_write` did not write the file."""
  file, metrics = job.folder / job.record, set(job.experiment.metrics)
  with errors.unreadable(f'{file} was not written by finetune: delete it and run the same command'):
    result = {'diverged': '', **storage.read_json(file)}
    scores, kinds = result['scores'], (type(result['step']), type(result['diverged']))
    fits = all(split in task.splits and row.keys() <= metrics for split, row in scores.items())
    numbers = [result['score'], *(x for row in scores.values() for x in row.values())]
    if not fits or kinds != (int, str) or not all(x is None or math.isfinite(x) for x in numbers):
      raise ValueError('other splits, metrics or types')
  return result | _facts(job)


def _facts(job) -> dict:
  """The fields of a result that identify its run."""
  point = [list(p) for p in job.point]
  return {'task': job.name, 'point': point, 'seed': job.seed, 'init': job.init}


def _scored_again(job, task, result) -> dict:
  """The result of a finished run, scored again if the config decodes answers differently now."""
  new = configuration.decoding(job.experiment)
  if not new or result['diverged']:
    return result
  old = configuration.decoding(workdirs.run_config(job.folder))
  if old == new:
    return result
  changed = '; '.join(configuration.differences(old, new))
  print(f'{job.folder} is not trained again; its answers are scored again: {changed}', flush=True)
  with fitting(job.folder):
    scores = _scores(job, task, predictions(job.folder))
  result = _write(job, result['step'], scores)
  record = workdirs.corpus_record(job.folder)
  workdirs.describe(job.folder, job.experiment, record, None)
  # The attempt records the hash of the new config.json. By this hash later commands trust the file.
  noted = dict(corpus_hash=record['hash'], start_step=result['step'], devices='', init=job.init)
  workdirs.add_attempt(job.folder, **noted)
  return result


def _scores(job, task, outputs) -> dict:
  """{split: {metric: score, or None if it is not finite}} of the labelled splits."""
  out = {}
  for name in outputs:
    split = task.splits[name]
    if split.labels is not None:
      scores = kind.score(job.experiment.metrics, task, split, outputs[name])
      out[name] = {metric: x if math.isfinite(x) else None for metric, x in scores.items()}
  return out


def _write(job, step, scored, diverged='') -> dict:
  """Writes and returns the result of a run. diverged: why it has no scores, else ''."""
  score = next(iter(scored.values()))[job.experiment.metrics[0]] if scored else None
  if scored and score is None and not diverged:
    diverged = 'its dev score is not a finite number'
  result = {'step': step, 'score': score, 'scores': scored, 'diverged': diverged}
  storage.write_json(job.folder / job.record, _facts(job) | result)
  return storage.read_json(job.folder / job.record)


def predictions(folder) -> dict[str, dict[str, np.ndarray]]:
  """{split: {output: array}} of a finished run. Raises UserError for a damaged file."""
  out = {}
  with fitting(folder, OSError, EOFError, zipfile.BadZipFile):
    with np.load(io.BytesIO(storage.path(folder / PREDICTIONS).read_bytes())) as archive:
      if any(part.compress_type for part in archive.zip.infolist()):
        raise ValueError('compressed')  # np.savez does not compress; this may unpack to any size
      for key in archive.files:
        split, _, name = key.partition('/')
        out.setdefault(split, {})[name or 'row'] = archive[key]
  return out


def fitting(folder, *more):
  """A context that turns errors of predictions that do not fit the task into a UserError.

  more: further types of errors to turn into it.
  """
  return errors.unreadable(
    f'{folder / PREDICTIONS} cannot be read, or is of another task: delete {plan.RESULT} beside '
    'it. Then run the same command again: it writes both files anew',
    *more,
  )


def majority(task, metric: str) -> float:
  """The dev score if all examples get one prediction (`Kind.constant`), as the most frequent class;
  nan without labels of dev, or for a kind without such a prediction.
  """
  dev = rows.dev_of(task)
  outputs = None if dev is None else task.kind.constant(task, dev)
  return math.nan if outputs is None else kind.score((metric,), task, dev, outputs)[metric]


def _keep_best(finished, results, sign):
  """Deletes the checkpoints of all finished runs but the best. results: {folder: result}."""
  kept = finished[best([results[run.folder] for run in finished], sign)]
  for run in finished:
    folder = run.folder / step_folders.FOLDER
    if run is not kept and folder.exists():
      shutil.rmtree(folder) if not storage.is_remote(folder) else folder.rmtree()
  if kept.experiment.choose != 'last':
    for step in step_folders.steps(kept.folder):
      if step != results[kept.folder]['step']:
        step_folders.delete(kept.folder / step_folders.FOLDER / str(step))


def _line(done, runs, run, result, seconds) -> str:
  metric = runs[0].experiment.metrics[0]
  score = '–' if result['score'] is None else f'{result["score"]:.4f}'
  if result['diverged']:
    score = f'– (it diverged: {result["diverged"]})'
  return (
    f'{run.name} {done}/{len(runs)} · {run.folder.name} · dev {metric} {score} · {seconds:.0f} s'
  )
