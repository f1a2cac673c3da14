"""The oracle of resuming: parameters, optimizer state and every logged loss and batch are bitwise
those of a run that nobody touched, with dropout on.
"""

import glob
import itertools
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import time

import emulated_gcs
import numpy as np
import pytest

from bertzoo_jax.common import errors
from bertzoo_jax.runs import metrics
from bertzoo_jax.runs import step_folders
from bertzoo_jax.training import health
from bertzoo_jax.training import loop
from tests import commands
from tests.pretrain import runs

# A run of one program, for what needs neither a second phase nor scores.
SHORT = dict(phases=((8, {'length': 32}),), run__eval_every=0)
UNSAVED = dict(run__save_minutes=60.0)  # but at its end
LOST = 'ended before its first save: its steps are lost'


def check_resumes(world, untouched, workdir, *stops):
  """Kills a run at each of the moments, lets it end, and compares."""
  for stop in stops:
    code, printed = runs.run_train(world, workdir, stop_when=stop)
    assert code in (-signal.SIGKILL, 0), printed
    if isinstance(stop, saving):
      stop.landed = stop(pathlib.Path(workdir))
  code, printed = runs.run_train(world, workdir)
  assert code == 0, printed
  runs.check_same(workdir, untouched)


def test_a_run_says_what_it_does_and_keeps_what_it_must(untouched):
  row = metrics.read(untouched)
  assert [r['step'] for r in row] == list(range(1, runs.STEPS + 1))
  of_training = 'loss mlm_loss mlm_accuracy pair_loss pair_accuracy lr grad_norm examples epoch'
  assert {*of_training.split(), 'batch_crc32'} <= row[0].keys()
  of_held_out = {f'held_out_{k}' for k in ('loss', 'mlm_loss', 'mlm_accuracy', 'bits_per_byte')}
  assert of_held_out <= row[5].keys() & row[-1].keys()
  rows_of = [8] * runs.BORDER + [1024 // 64] * (runs.STEPS - runs.BORDER)
  assert [r['examples'] for r in row] == list(itertools.accumulate(rows_of))
  assert row[runs.BORDER - 1]['epoch'] > 1, 'no epoch border inside the run'
  assert len({r['batch_crc32'] for r in row}) == runs.STEPS
  assert row[0]['lr'] == 0 and row[0]['loss'] != row[1]['loss']
  names = {p.name for p in untouched.iterdir()}
  wished = 'config.json corpus.json attempts.jsonl tokenizer metrics.jsonl checkpoints loss.png'
  assert set(wished.split()) <= names
  kept, newest = step_folders.steps(untouched), [runs.STEPS - 2, runs.STEPS - 1, runs.STEPS]
  assert kept[-3:] == newest and set(kept) - {*newest} <= {6}


def test_a_finished_run_is_left_as_it_is_says_its_result_and_takes_other_machinery(
  untouched, tmp_path, here, capsys
):
  shutil.copytree(untouched, tmp_path / 'run')
  result = here(tmp_path / 'run', run__log_every=3, run__accumulation=2)
  printed = capsys.readouterr().out
  assert f'done: {runs.STEPS} steps' in printed and 'unigram entropy' in printed
  assert LOST not in printed
  assert json.loads((tmp_path / 'run/config.json').read_text())['run']['log_every'] == 3
  assert runs.curve(tmp_path / 'run') == runs.curve(untouched)
  assert result['held_out']['held_out_loss'] > 0


@pytest.mark.parametrize('again', [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_killed_run_goes_on_bit_for_bit(world, untouched, tmp_path, again):
  at = random.Random(os.getpid()).randrange(2, runs.BORDER)
  in_a_save = saving(at)
  print(f'killed in a save from step {at} on' + ', and at the border of the phases' * again)
  check_resumes(world, untouched, tmp_path / 'run', in_a_save, *[reached(runs.BORDER)] * again)
  assert in_a_save.landed, 'no save was under way when the run was killed'


class saving:  # noqa: N801  a function with a memory
  """True in the middle of the save of a step, or a later one. landed: if it was left half done."""

  def __init__(self, step):
    self._first, self.landed = step, None

  def __call__(self, workdir):
    found = glob.glob(str(workdir / 'checkpoints' / '*.orbax-checkpoint-tmp*'))
    return any(int(pathlib.Path(p).name.split('.')[0]) >= self._first for p in found)


def reached(step):
  """True when a step is logged."""
  return lambda w: runs.rows(w) >= step


@pytest.mark.slow
@pytest.mark.parametrize('trial', range(6))
def test_kills_anywhere_leave_no_trace(world, untouched, tmp_path, trial):
  draw = random.Random(trial)
  # reached(0): while it starts
  moments = [draw.choice([saving, reached])(draw.randrange(runs.STEPS)) for _ in range(6)]
  epoch_border = next(i for i, r in enumerate(metrics.read(untouched)) if r['epoch'] > 1)
  borders = reached(epoch_border), *map(saving, (runs.BORDER, runs.BORDER + 1, runs.STEPS))
  moments += borders[trial : trial + 1]
  check_resumes(world, untouched, tmp_path / 'run', *moments)


def limited(tmp_path):
  """(folder, change of a child's limits, function that frees space): a disk of 2.5 MB, really full
  when five checkpoints are on it; where none may be mounted, a limit of the size of a file.
  """
  folder = tmp_path / 'disk'
  folder.mkdir()
  size = lambda n: ['mount', '-t', 'tmpfs', '-o', n, 'tmpfs', str(folder)]
  if shutil.which('mount') and subprocess.run(size('size=2m'), capture_output=True).returncode == 0:
    return folder, None, lambda: subprocess.run(size('remount,size=64m'), check=True)
  print('no disk can be mounted here: a limit of the size of a file takes its place')
  limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, 120_000))
  return folder, limit, lambda: None


def test_a_full_disk_is_one_sentence_and_the_run_goes_on_bit_for_bit_when_there_is_space(
  world, untouched, tmp_path
):
  folder, limit, free = limited(tmp_path)
  try:
    line = runs.command(world, folder / 'run', '--config.run.keep=14')
    how = dict(env=runs.environment(), timeout=300)
    full = commands.run(*line, preexec_fn=limit, **how)
    told = [x for x in full.stderr.splitlines() if x.startswith(('error', 'WARNING', 'Trace', ' '))]
    assert full.returncode == 3, full.stderr
    assert len(told) == 1 and re.match(r'error: .*(No space left|File too large)', told[0]), told
    assert len(told[0]) < 400
    sound = step_folders.steps(folder / 'run')
    assert limit or sound  # a limit of the size of a file strikes the first one
    assert all(step_folders.verify(folder / f'run/checkpoints/{step}') is None for step in sound)
    free()
    done = commands.run(*line, **how)
    assert done.returncode == 0, done.stderr
    if sound:
      assert f'resuming from the checkpoint of step {sound[-1]}' in done.stdout
    runs.check_same(folder / 'run', untouched)
  finally:
    if limit is None:
      subprocess.run(['umount', str(folder)], check=True)


@pytest.mark.parametrize('how', [signal.SIGTERM, signal.SIGINT])
def test_a_run_asked_to_stop_saves_at_its_step_and_exits_0(world, untouched, tmp_path, how):
  workdir = tmp_path / 'run'
  never = '--config.run.save_minutes=1000.0'
  code, printed = runs.run_train(world, workdir, never, stop_when=reached(4), how=how)
  assert code == 0 and 'run the same command to resume' in printed, printed
  newest, last = step_folders.steps(workdir)[-1], metrics.read(workdir)[-1]['step']
  assert newest == last >= 4
  code, printed = runs.run_train(world, workdir, never)
  goes_on = f'resuming from the checkpoint of step {newest}' in printed
  assert code == 0 and (newest == runs.STEPS or goes_on), printed
  runs.check_same(workdir, untouched)


def link(workdir, target):
  workdir.unlink(missing_ok=True)
  target.mkdir()
  workdir.symlink_to(target)


@pytest.mark.parametrize('linked', [False, True])
def test_a_workdir_that_is_gone_stops_the_run_and_one_behind_a_link_is_kept_to(
  tmp_path, monkeypatch, here, linked
):
  """tests/runs/test_lock.py deletes and moves it; here its record, or the link, becomes another."""
  workdir, first, log = tmp_path / 'run', tmp_path / 'first', loop.Loop._log
  if linked:
    link(workdir, first)

  def logged(self, step, *rest):
    log(self, step, *rest)
    if step == 4:
      self.checkpoints.wait()
      if linked:
        link(workdir, tmp_path / 'other')
      else:
        shutil.copy(workdir / metrics.FILE, workdir / 'new')
        (workdir / 'new').replace(workdir / metrics.FILE)

  monkeypatch.setattr(loop.Loop, '_log', logged)
  if linked:
    assert here(workdir, run__eval_every=0)['step'] == runs.STEPS == step_folders.steps(first)[-1]
    assert runs.rows(first) == runs.STEPS and not (first / 'lock').exists()
    assert not runs.everything(tmp_path / 'other')[1:]
    return
  with pytest.raises(errors.Stopped, match=r'metrics\.jsonl was deleted, moved or replaced') as e:
    here(workdir, run__eval_every=0)
  assert e.value.code == 3 and step_folders.steps(workdir)[-1] == 3, 'it saved on'


def test_a_run_that_ended_before_its_first_save_begins_again_and_says_so(
  tmp_path, monkeypatch, here, capsys
):
  runs.kill_at_once(monkeypatch)
  for again in (False, True):
    with pytest.raises(RuntimeError, match='killed'):
      here(tmp_path / 'run', **SHORT)
    assert (LOST in capsys.readouterr().out) == again
    assert not step_folders.steps(tmp_path / 'run')


def test_other_science_at_resume_is_refused(world, untouched, tmp_path):
  words = r'schedule.learning_rate: 0.01 → 0.02\. Give the old values'
  runs.refused(world, untouched, {'schedule.learning_rate': 2e-2}, words)
  longer = ((runs.BORDER, {'length': 32}), (runs.STEPS, {}))
  runs.refused(world, untouched, {'phases': longer}, 'phases')
  workdir = tmp_path / 'run'
  shutil.copytree(untouched, workdir, ignore=shutil.ignore_patterns('checkpoints', 'attempts*'))
  (workdir / 'corpus.json').write_text(json.dumps({'hash': 'another'}))
  runs.refused(world, workdir, {}, 'trained on the corpus another')


def test_mistakes_in_addresses_are_refused(world, untouched, tmp_path):
  (tmp_path / 'file').write_text('')
  for workdir, given, words in (
    ('b', dict(corpus=str(tmp_path)), 'No corpus'),
    ('c', dict(init=f'{untouched}@99'), 'There is: .*14'),
    ('d', dict(init=f'{untouched}@last'), 'no checkpoint address'),
    ('e', dict(init=f'hf:{tmp_path}'), 'config.json'),
    ('file/run', {}, 'cannot be written'),
    ('file', {}, 'is a file: give a folder'),
  ):
    runs.refused(world, tmp_path / workdir, {}, words, **dict(corpus=str(world / 'corpus')) | given)


def test_weights_of_another_vocabulary_are_refused(world, untouched, tmp_path):
  source = tmp_path / 'source'
  shutil.copytree(untouched, source)
  file = source / 'tokenizer' / 'tokenizer.json'
  content = json.loads(file.read_text())
  vocab = content['model']['vocab']
  one, other = sorted(vocab)[-2:]
  vocab[one], vocab[other] = vocab[other], vocab[one]
  file.write_text(json.dumps(content))
  (source / 'tokenizer' / 'vocab.txt').write_text('\n'.join(sorted(vocab, key=vocab.get)) + '\n')
  given = dict(corpus=str(world / 'corpus'), init=str(source))
  runs.refused(world, tmp_path / 'run', {}, 'another vocabulary: 2 of 300 pieces', **given)


def test_numbers_that_are_not_finite_stop_a_run_with_the_last_good_step_kept(
  tmp_path, here, monkeypatch
):
  runs.poison(monkeypatch, 3)
  with pytest.raises(errors.Stopped, match='not finite'):
    here(tmp_path / 'run', **SHORT, run__log_every=100, run__keep_every=3)
  assert step_folders.steps(tmp_path / 'run')[-1] == 3


def test_skipping_leaves_the_update_out_counts_it_and_goes_on_until_too_many_in_a_row(
  tmp_path, here, monkeypatch
):
  monkeypatch.setattr(health, 'MOST_IN_A_ROW', 3)
  runs.poison(monkeypatch, 1, 4, 5, 6)
  with pytest.raises(errors.Stopped, match='last 3 updates'):
    here(tmp_path / 'run', **SHORT, **UNSAVED, run__on_nonfinite='skip')
  found = metrics.read(tmp_path / 'run')
  assert [r.get('nonfinite', 0) for r in found[:5]] == [0, 1, 1, 1, 2]
  assert found[1]['loss'] is None and np.isfinite(found[3]['loss'])


# A run with its corpus and its workdir in an object store, which is real to its clients, and fails.
FEW_SAVES = ('--config.run.save_minutes=1000.0', '--config.run.keep_every=4')


def stored(world, store, workdir, *more, upon=None, then=None):
  """(exit code, output) of a run; `then()` is called when `upon` is in the store."""
  line = runs.command(world, workdir, *FEW_SAVES, *more)
  process = commands.begin(*line, env=runs.environment(**store.environment()))
  while upon and process.poll() is None:
    if ('bucket', upon) in store.objects:
      then()
      break
    time.sleep(0.02)
  printed, _ = process.communicate(timeout=500)
  return process.returncode, printed


@pytest.mark.slow
def test_a_run_that_moves_to_a_bucket_which_fails_and_back_to_a_disk_goes_on_bit_for_bit(
  world, untouched, tmp_path
):
  code, printed = runs.run_train(world, tmp_path / 'run', *FEW_SAVES, stop_when=step_folders.steps)
  assert code == -signal.SIGKILL, printed
  with emulated_gcs.Store() as store:
    store.upload(world / 'corpus', 'bucket', 'corpus')
    store.upload(tmp_path / 'run', 'bucket', 'run')
    text = ('--corpus=gs://bucket/corpus', f'--cache_dir={tmp_path}/cache')
    sometimes = [store.fail(how, every=n) for how, n in ((503, 29), (429, 31), ('reset', 37))]
    there = (world, store, 'gs://bucket/run', *text)
    saved = 'run/checkpoints/{}/commit_success.txt'.format
    code, printed = stored(*there, upon=saved(8), then=lambda: store.fail(503))
    assert code == 75 and 'Traceback' not in printed, printed
    assert 'resuming from the checkpoint of step' in printed, printed
    assert printed.splitlines()[-1].startswith('error: ') and 'same command again' in printed
    assert all(fault.hits > 3 for fault in sometimes)
    store.mend()
    kept = store.names('bucket', 'run/checkpoints/8/')
    code, printed = stored(*there, upon=saved(12), then=lambda: store.fail(503))
    assert kept and 'resuming from the checkpoint of step' in printed, printed
    store.mend()
    store.download('bucket', 'run', tmp_path / 'back')
  code, printed = runs.run_train(world, tmp_path / 'back', *FEW_SAVES)
  assert code == 0, printed
  runs.check_same(tmp_path / 'back', untouched)
