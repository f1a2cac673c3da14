"""Fine-tunes the tasks of a config, and writes their table and predictions."""

import math

import jax

from bertzoo_jax import tasks
from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.experiment import train
from bertzoo_jax.finetune import plan
from bertzoo_jax.finetune import rows
from bertzoo_jax.finetune import table
from bertzoo_jax.finetune import work
from bertzoo_jax.objectives import objective
from bertzoo_jax.pretrained import loading
from bertzoo_jax.runs import checkpoint
from bertzoo_jax.runs import distributed
from bertzoo_jax.runs import lock
from bertzoo_jax.runs import metrics
from bertzoo_jax.runs import preemption
from bertzoo_jax.runs import workdir as workdirs
from bertzoo_jax.tasks import judged
from bertzoo_jax.tasks import submission


def finetune(
  config, workdir: str, *, init: str, task_dir: str = '.', predict: str | None = None, devices=None
) -> list[table.Line] | None:
  """Fine-tunes all tasks of a config; the lines of the table, or None if it was asked to stop.

  config: a fine-tuning (configs/tasks/), or several as `suite`. workdir: folder for all runs; one
  that holds runs of this config is resumed. init: address of the weights. task_dir: folder of the
  tasks' files. predict: a further file without labels; the best run of each task predicts it.
  devices: to run on; None for all.

  Raises UserError: anything that does not fit, before anything is written. TransientError and
  Stopped: see pretrain.
  """
  distributed.join()
  if jax.process_count() > 1:
    raise errors.UserError(
      f'Fine-tuning runs on one host, and this run has {jax.process_count()}: start it on one of '
      'them, without JAX_COORDINATOR_ADDRESS.'
    )
  suite = plan.tasks(config)
  workdirs.check_unlike(workdir, workdirs.A_CORPUS, ('config.json', 'a run'))
  table_lines, majority = [], {}
  with preemption.Preemption().listening() as notice, workdirs.writable(workdir) as workdir:
    with lock.hold(workdir):
      weights = plan.weights(init)
      tokenizer = loading.tokenizer_of(weights[0])
      for name, tuning in suite.items():
        plan.check(tuning, weights[0], f'config.suite.{name}' if 'suite' in config else 'config')
      if objective.one_way(weights[0].params, weights[0].learned):
        _say('note: these weights were trained from left to right; here tokens see both sides')
      best = {}
      for name, tuning in suite.items():
        train.start_devices(tuning)
        task = _opened(name, suite, task_dir, tokenizer, weights[0])
        if task is None:
          continue
        unlabelled = None if predict is None else task.read(predict)
        if tuning.init and tuning.init not in best:
          _say(f'{name}: the paper begins with the best run of {tuning.init}, here it is --init')
        begun = weights
        if tuning.init in best:
          begun = plan.weights(best[tuning.init])
          tuning = tuning.copy_and_resolve_references().unlock()
          tuning.init_layers = ''  # the run that it starts from has taken them
        runs = plan.runs(name, tuning, task, begun, workdir)
        for run in runs:
          workdirs.check_same_run(run.folder, run.experiment, task.hash)
        _say(f'{name} · begins with {", ".join(w.address for w in begun)}\n{task.report()}')
        prompts = {n: text for w in begun for n, text in w.vectors.prompts.items() if text}
        if prompts and not tuning.features.get('prompt_a', True):
          _say(
            f'note: these weights have prompts, which this run does not use: {str(prompts)[:300]}; '
            'set --config.features.prompt_a and prompt_b to those that you want'
          )
        by_address = {w.address: w for w in begun}
        results = work.train_all(runs, task, by_address, notice, devices or jax.devices(), _say)
        if results is None:
          _say('stopped: run the same command to resume')
          return None
        number = work.best(results, task.sign)
        chosen = runs[number]
        best[name] = f'{chosen.folder}@{results[number]["step"]}'
        majority[name] = work.majority(task, tuning.metrics[0])
        drawn = tuning.draw == 'bootstrap'
        table_lines += table.lines(name, tuning.metrics, results, task.sign, drawn)
        with work.fitting(chosen.folder):
          _write(name, tuning, work.drawn(task, chosen), chosen, results, begun, workdir)
        if unlabelled is not None:
          _predict(predict, unlabelled, task, chosen, workdir)
      if not table_lines:
        files = [c.source.files.train for c in suite.values() if 'files' in c.source]
        files = dict.fromkeys(name.partition('|')[0] for name in files)
        raise errors.UserError(
          f'No task of the config has files of its own in --task_dir {task_dir}: give the folder '
          f'that holds {", ".join(files)}, or one with a folder for each task, '
          f'{", ".join(tuning.name for tuning in suite.values())}.'
        )
      text = table.markdown(table_lines, majority)
      storage.write_text(storage.path(workdir) / 'table.md', text)
      rows_of = [{**line._asdict(), 'majority': majority[line.task]} for line in table_lines]
      storage.write_json(storage.path(workdir) / 'table.json', rows_of)
      lines = [f'best of {name}: {where}' for name, where in best.items()]
      lines += [
        f'next: python -m bertzoo_jax.export --workdir {w} --out DIR' for w in best.values()
      ]
      _say('\n'.join(['', text, *lines]))
  return table_lines


def _opened(name, suite, task_dir, tokenizer, weights):
  """The task; None if it is one of several and its files are not there."""
  if len(suite) > 1:
    task_dir, why = tasks.located(suite[name], task_dir, suite.values())
    if why:
      _say(f'{name} is left out. {why}')
      return None
  return work.opened(suite[name], task_dir, tokenizer, weights)


def _write(name, config, task, chosen, results, begun, workdir):
  """The submission of the best run, and the curve over the steps of pretraining."""
  folder = storage.path(workdir) / name
  if len(begun) > 1:
    points = [
      (one.step, task.sign * max(task.sign * score for score in scores))
      for one in begun
      if (scores := [r['score'] for r in results if r['init'] == one.address and not r['diverged']])
    ]
    level = work.majority(task, config.metrics[0])
    _say(metrics.curve_in_text(points, 0.0 if math.isnan(level) else level, 'majority'))
    storage.write_json(folder / 'steps.json', [list(p) for p in points])
  outputs = work.predictions(chosen.folder)
  for split in outputs:
    if split.startswith('dev'):
      rows = judged.rows(task, task.splits[split], outputs[split])
      storage.write_text(folder / f'{split}.tsv', submission.tab_separated(rows))
      if task.kind.labelled:
        storage.write_text(folder / f'{split}.md', judged.page(split, task, rows))
      _say(f'predictions of {split} beside the right answers: {folder / split}.tsv')
    if split.startswith('test'):
      submission.predictions(folder / f'{split}.jsonl', task, task.splits[split], outputs[split])
    if split in config.submission:
      file = storage.path(workdir) / 'submission' / config.submission[split]
      submission.benchmark(file, task, task.splits[split], outputs[split])


def _predict(file, split, task, chosen, workdir):
  """Writes the best run's predictions of a file without labels. split: its rows."""
  params, _, _ = checkpoint.load_params(str(chosen.folder))
  outputs = rows.outputs(chosen.resolved, params, split, task)
  out = storage.path(workdir) / chosen.name / f'{storage.path(file).name}.predictions.jsonl'
  submission.predictions(out, task, split, outputs)
  _say(f'{len(split.source):,} predictions are in {out}')


def _say(text):
  print(text, flush=True)
