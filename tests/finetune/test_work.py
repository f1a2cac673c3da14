import contextlib
import json
import threading
import time
import types

import jax
import numpy as np
import pytest

from bertzoo_jax.common import errors
from bertzoo_jax.finetune import jobs
from bertzoo_jax.finetune import plan
from bertzoo_jax.finetune import work
from bertzoo_jax.runs import step_folders

WAIT = 20.0  # seconds that a run goes on if nothing stops it


def runs(folder, count, **machinery):
  made = types.SimpleNamespace(**{'mesh': (-1, 1, 1), 'wandb': '', **machinery})
  fields = dict(metrics=('accuracy',), choose='last', draw='all', init_layers='')
  experiment = types.SimpleNamespace(run=made, **fields)
  made = lambda n: jobs.Job('t', str(n), n, experiment, folder / str(n), plan.RESULT, 'W')
  return [made(n) for n in range(count)]


def finished(run, score, diverged=''):
  """The result of a run, which leaves a checkpoint if it has a score."""
  if score is not None:
    (run.folder / step_folders.FOLDER / '3').mkdir(parents=True, exist_ok=True)
  return work._write(run, 3, {'dev': {'accuracy': score}}, diverged)


def all_of(monkeypatch, runs, one, devices=2, say=None):
  kept = lambda folder: [3] if (folder / step_folders.FOLDER).exists() else []
  monkeypatch.setattr(work.step_folders, 'steps', kept)
  monkeypatch.setattr(work, '_one', one)
  notice = types.SimpleNamespace(name=None)
  task, devices = types.SimpleNamespace(sign=1), jax.devices()[:devices]
  return work.train_all(runs, task, {'W': None}, notice, devices, say or (lambda _: 0))


def test_where_one_run_fails_the_others_save_and_end(monkeypatch, tmp_path):
  noticed, under_way = [], threading.Event()

  def one(run, task, weights, notice, devices, alone):
    if run.seed == 0:
      under_way.wait(WAIT)
      raise errors.Stopped('a disk is full')
    under_way.set()
    end = time.monotonic() + WAIT
    while notice.name is None and time.monotonic() < end:
      time.sleep(0.01)
    noticed.append((run.seed, notice.name))

  with pytest.raises(errors.Stopped, match='a disk is full'):
    all_of(monkeypatch, runs(tmp_path, 4), one)
  assert noticed and all(name for _, name in noticed)


def test_a_second_ctrl_c_waits_for_no_run(monkeypatch, tmp_path):
  over, under_way = threading.Event(), threading.Event()

  def one(run, *_):
    if run.seed == 0:
      under_way.wait(WAIT)
      raise KeyboardInterrupt
    under_way.set()
    over.wait(WAIT)

  begin = time.monotonic()
  try:
    with pytest.raises(KeyboardInterrupt):
      all_of(monkeypatch, runs(tmp_path, 2), one)
    assert time.monotonic() - begin < WAIT / 2
  finally:
    over.set()


def test_a_run_that_diverges_is_finished_without_a_score_and_the_others_go_on(
  monkeypatch, tmp_path
):
  def trained(job, *_):
    job.folder.mkdir(parents=True)
    raise errors.Diverged('the loss is not finite')

  monkeypatch.setattr(work, '_trained', trained)
  monkeypatch.setattr(jobs.resolve, 'run', lambda experiment: None)
  true, task = work._one, types.SimpleNamespace(splits={}, hash='')
  task.splits = {n: types.SimpleNamespace(labels=np.zeros(2)) for n in ('train', 'dev')}

  def one(run, given, *rest):
    return true(run, task, *rest) if run.seed == 0 else finished(run, 0.5)

  made, printed = runs(tmp_path, 2), []
  found = all_of(monkeypatch, made, one, devices=1, say=printed.append)
  assert [r['score'] for r in found] == [None, 0.5] and work.best(found) == 1
  assert 'diverged: the loss is not finite' in printed[1]
  assert true(made[0], task, None, None, None, False) == found[0]  # not run again
  with pytest.raises(errors.Stopped, match='All 2 runs of t diverged'):
    all_of(monkeypatch, runs(tmp_path / 'other', 2), lambda run, _, *rest: true(run, task, *rest))
  with pytest.raises(errors.Diverged):
    true(runs(tmp_path / 'alone', 1)[0], task, None, None, None, True)


@pytest.mark.parametrize('devices', [1, 2])
def test_the_first_of_the_best_runs_keeps_its_checkpoint(monkeypatch, tmp_path, devices):
  made = runs(tmp_path, 4)
  order = {0: 0.3, 1: 0.1, 2: 0.2, 3: 0.0}  # seconds: they do not end in their order

  def one(run, *_):
    time.sleep(order[run.seed])
    (run.folder / step_folders.FOLDER).mkdir(parents=True)
    return finished(run, [0.25, 0.5, 0.5, None][run.seed])

  found = all_of(monkeypatch, made, one, devices)
  assert work.best(found) == 1
  assert [r.seed for r in made if (r.folder / step_folders.FOLDER).exists()] == [1]


def test_a_best_run_that_lost_its_checkpoint_is_trained_again(monkeypatch, tmp_path):
  made, begun = runs(tmp_path, 2), []
  for run, score in zip(made, (0.5, 0.25)):
    run.folder.mkdir()
    work._write(run, 3, {'dev': {'accuracy': score}})

  def one(run, *_):
    if (file := run.folder / run.record).exists():
      return json.loads(file.read_text())
    begun.append(run.seed)
    return finished(run, 0.5)

  found = all_of(monkeypatch, made, one)
  assert begun == [0] and [r['score'] for r in found] == [0.5, 0.25]


def test_runs_that_need_all_devices_come_one_after_the_other(tmp_path):
  at_once = lambda **machinery: work.at_once(runs(tmp_path, 2, **machinery), 2)
  assert at_once() == 2 and at_once(mesh=(1, 2, 1)) == at_once(wandb='project') == 1


def test_torn_predictions_are_one_sentence(tmp_path):
  (tmp_path / work.PREDICTIONS).write_bytes(b'PK\x03\x04 and no more')
  with pytest.raises(errors.UserError, match='delete result.json'):
    work.predictions(tmp_path)


def job(folder, name, needs=''):
  return jobs.Job(name, name, 0, None, folder / name, 'done', '', needs)


def test_a_job_comes_after_the_one_it_needs_and_the_rest_keeps_its_order():
  assert jobs.in_order({'c': 'b', 'x': '', 'b': 'a', 'a': 'elsewhere'}) == ['x', 'a', 'b', 'c']
  with pytest.raises(errors.UserError, match='^The rows a and b begin with the weights of each ot'):
    jobs.in_order({'a': 'b', 'c': '', 'b': 'a'}, 'The rows ')


@pytest.mark.parametrize('slots', [1, 3])
def test_a_job_waits_for_the_one_that_it_needs_also_where_a_slot_is_free(
  tmp_path, monkeypatch, slots
):
  monkeypatch.setattr(jobs, '_WAIT', 0.01)
  ended, lock = [], threading.Lock()

  def do(job, slot):
    with lock:
      assert job.needs in ('', 'elsewhere', *ended)
      ended.append(job.name)
    job.folder.mkdir()
    (job.folder / job.record).touch()
    return True

  made = [job(tmp_path, *names) for names in (('b', 'a'), ('a',), ('c', 'b'), ('d', 'elsewhere'))]
  assert jobs.run(made, do, range(slots))
  assert sorted(ended) == ['a', 'b', 'c', 'd']


def test_while_another_process_holds_a_job_the_next_one_is_done(tmp_path, monkeypatch):
  monkeypatch.setattr(jobs, '_WAIT', 0.01)
  ended, printed = [], []

  @contextlib.contextmanager
  def held(job):
    if job.name == 'a' and not ended:
      raise errors.TransientError('in use by 1')
    yield

  def do(job, slot):
    ended.append(job.name)
    return len(ended) < 2

  made = [job(tmp_path, name) for name in 'abc']
  assert not jobs.run(made, do, held=held, say=printed.append)
  assert ended == ['b', 'a'] and printed == ['a: in use by 1']
