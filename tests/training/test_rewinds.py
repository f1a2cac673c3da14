"""Spikes of a poisoned gradient: reported, a stop, or going back and leaving the step out."""

import functools
import json
import types

import jax
import numpy as np
import pytest
import toys

from bertzoo_jax.common import errors
from bertzoo_jax.training import checkpoint
from bertzoo_jax.training import loop
from bertzoo_jax.training import metrics
from bertzoo_jax.training import phase_run as phase_runs
from bertzoo_jax.training import progress
from bertzoo_jax.training import rewinds
from bertzoo_jax.training import spikes
from bertzoo_jax.training import step_folders
from bertzoo_jax.training import watchdog

END, SAVES, LOGS = 24, 4, 3
POISON = 13  # the index of the step, whose number is 14


_PROGRAMS = {}


@functools.cache
def phase_of(poison, with_carry=False, infinite=()):
  objective = toys.amplified(toys.toy(with_carry=with_carry))

  def batches(first, end):
    for step in range(first, end):
      yield toys.batch(
        step, poison=(*poison, *infinite), weight=np.inf if step in infinite else 1e4
      )

  return toys.phase_run(0, END, objective=objective, batches=batches, total=END)


@pytest.fixture(autouse=True, scope='module')
def warm_up_of_a_few_steps_and_programs_compiled_once():
  def once(name):
    make = getattr(phase_runs, name)

    def found(phase_run):
      key = name, id(phase_run)
      if key not in _PROGRAMS:
        _PROGRAMS[key] = make(phase_run)
      return _PROGRAMS[key]

    return found

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(spikes, 'WARMUP', 6)
    for name in ('train_step', 'evaluation', 'left_out'):
      patch.setattr(phase_runs, name, once(name))
    yield
    _PROGRAMS.clear()
    phase_of.cache_clear()


class Asked:
  """A preemption that comes after so many steps."""

  def __init__(self, after=None):
    self.name, self._left = None, after

  def reached(self):
    if self._left is not None:
      self._left -= 1
      self.name = 'SIGTERM' if self._left <= 0 else None
    return self.name is not None


def attempt(
  workdir, on_spike, *, poison=(POISON,), infinite=(), asked=None, log_every=LOGS, dog=None
):
  """The result of one attempt that resumes what is there; Rewind if it went back. dog: a
  watchdog.
  """
  checkpoints = checkpoint.Checkpoints(workdir, keep=2, keep_every=SAVES)
  skipped = rewinds.finish(workdir, checkpoints)
  start = checkpoints.newest() or 0
  phase_run = phase_of(poison, infinite=infinite)
  state = phase_runs.fresh(phase_run)
  if start:
    state = checkpoints.restore(start, phase_run.target[0])
  record = metrics.Record(workdir, start, 1)
  run = loop.Loop(
    workdir=workdir,
    total_steps=END,
    vocab_size=toys.VOCAB,
    machinery=types.SimpleNamespace(
      log_every=log_every,
      eval_every=0,
      save_minutes=1000.0,
      keep_every=SAVES,
      on_nonfinite='stop',
      on_spike=on_spike,
    ),
    checkpoints=checkpoints,
    record=record,
    trackers=metrics.Nothing(),
    progress=progress.Progress(END, start, show=True, terminal=False),
    preemption=asked or Asked(),
    watchdog=dog or watchdog.Watchdog(0),
    skipped=skipped,
  )
  try:
    return run.train(state, phase_run, [])
  finally:
    checkpoints.close()
    record.close()


def through(workdir, on_spike, **how):
  """Attempts until one ends; how often it went back."""
  for times in range(50):
    try:
      return attempt(workdir, on_spike, **how), times
    except rewinds.Rewind:
      continue


def listed(workdir):
  return [e['steps'] for e in json.loads((workdir / rewinds.FILE).read_text())]


def final(workdir):
  checkpoints = checkpoint.Checkpoints(workdir, keep=2, keep_every=SAVES)
  state = checkpoints.restore(END, phase_of((POISON,)).target[0])
  checkpoints.close()
  return toys.flat(state)


@pytest.fixture(scope='module')
def left_out_from_the_start(tmp_path_factory):
  """The last state of a run that never took the step."""
  workdir = tmp_path_factory.mktemp('from_the_start')
  entry = {'noticed': 0, 'steps': [POISON + 1], 'done': True}
  (workdir / rewinds.FILE).write_text(json.dumps([entry]))
  attempt(workdir, 'stop')
  return final(workdir)


def assert_same(a, b):
  assert a.keys() == b.keys()
  for k in a:
    np.testing.assert_array_equal(a[k], b[k], err_msg=k)


def test_a_spike_is_said_and_counted_and_the_count_survives_a_resume(tmp_path, capsys):
  attempt(tmp_path, 'report', asked=Asked(16))
  assert f'spike: step {POISON + 1} (loss ' in capsys.readouterr().out
  attempt(tmp_path, 'report')
  counts = {row['step']: row.get('spikes', 0) for row in metrics.read(tmp_path)}
  assert counts[12] == 0 and counts[15] == counts[18] == counts[24] == 1
  assert not (tmp_path / rewinds.FILE).exists()


@pytest.mark.parametrize('log_every', [LOGS, pytest.param(100, marks=pytest.mark.slow)])
def test_a_run_that_is_to_stop_at_a_spike_keeps_the_checkpoint_before_it(tmp_path, log_every):
  for _ in range(2):
    with pytest.raises(errors.Stopped, match=f'spike: step {POISON + 1} ') as e:
      attempt(tmp_path, 'stop', log_every=log_every)
    assert e.value.code == 3 and step_folders.steps(tmp_path)[-1] == 12


@pytest.mark.parametrize('log_every', [1, LOGS, pytest.param(100, marks=pytest.mark.slow)])
def test_going_back_gives_the_run_that_never_took_the_step(
  tmp_path, left_out_from_the_start, log_every
):
  _, times = through(tmp_path, 'rewind', log_every=log_every)
  assert times == 1 and listed(tmp_path) == [[POISON + 1]]
  assert_same(final(tmp_path), left_out_from_the_start)
  row = next((r for r in metrics.read(tmp_path) if r['step'] == POISON + 1), None)
  assert (row is None) == (log_every != 1) and (row is None or row['skipped'])


@pytest.mark.parametrize('after', [14, pytest.param(16, marks=pytest.mark.slow)])
def test_a_preemption_beside_a_spike_changes_nothing(tmp_path, left_out_from_the_start, after):
  try:
    result = attempt(tmp_path, 'rewind', asked=Asked(after))
    assert result['step'] == step_folders.steps(tmp_path)[-1] <= 13
  except rewinds.Rewind:
    pass
  through(tmp_path, 'rewind')
  assert listed(tmp_path) == [[POISON + 1]]
  assert_same(final(tmp_path), left_out_from_the_start)


@pytest.mark.parametrize('log_every', [1, LOGS, pytest.param(100, marks=pytest.mark.slow)])
def test_a_spike_before_a_loss_that_is_not_finite_is_left_out_also_where_a_save_comes_first(
  tmp_path, log_every
):
  with pytest.raises(errors.Stopped, match='is not finite'):
    through(tmp_path, 'rewind', infinite=(POISON + 1,), log_every=log_every)
  assert listed(tmp_path) == [[POISON + 1]]


def test_a_step_that_is_left_out_does_not_shorten_the_time_in_which_the_next_one_may_compile(
  tmp_path,
):
  entry = {'noticed': 0, 'steps': [1], 'done': True}
  (tmp_path / rewinds.FILE).write_text(json.dumps([entry]))
  dog = watchdog.Watchdog(1)
  attempt(tmp_path, 'rewind', poison=(), dog=dog)
  assert len(dog._took['step']) == END - 1


def test_a_run_killed_before_it_has_gone_back_goes_back_when_it_is_resumed(
  tmp_path, left_out_from_the_start
):
  attempt(tmp_path, 'report')  # all checkpoints from 16 on contain the step
  assert step_folders.steps(tmp_path)[-1] == END
  entry = {'noticed': 15, 'steps': [POISON + 1], 'done': False}
  (tmp_path / rewinds.FILE).write_text(json.dumps([entry]))
  result, times = through(tmp_path, 'rewind')
  assert (result['step'], times) == (END, 0)
  assert json.loads((tmp_path / rewinds.FILE).read_text()) == [{**entry, 'done': True}]
  assert_same(final(tmp_path), left_out_from_the_start)


def test_too_many_spikes_stop_a_run_that_goes_back(tmp_path, monkeypatch):
  monkeypatch.setattr(rewinds, 'MOST', 2)
  with pytest.raises(errors.Stopped, match='has gone back 2 times'):
    through(tmp_path, 'rewind', poison=(9, 13, 17))
  assert listed(tmp_path) == [[10], [14]] and step_folders.steps(tmp_path)[-1] == 16


def test_a_spike_before_the_first_checkpoint_begins_the_run_again(tmp_path):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(spikes, 'WARMUP', 1)
    result, times = through(tmp_path, 'rewind', poison=(2,))
  assert (result['step'], times) == (END, 1) and listed(tmp_path) == [[3]]


@pytest.mark.parametrize(
  'text',
  ['[{"steps": ', '[{"steps": [], "done": false}]', '[{"steps": [0], "done": false}]', '{"a": 1}'],
)
def test_a_damaged_list_is_refused_in_one_sentence(tmp_path, text):
  (tmp_path / rewinds.FILE).write_text(text)
  with pytest.raises(errors.UserError, match='cannot be read .* Bring it back, or delete it'):
    rewinds.finish(tmp_path, None)


def test_a_step_that_is_left_out_changes_nothing_but_its_number():
  phase_run = phase_of((), with_carry=True)
  state, _ = toys.run(phase_run, 2)
  before = {k: x.copy() for k, x in toys.flat(state).items()}
  after, values = phase_runs.left_out(phase_run)(state)
  changed = {k for k, x in toys.flat(after).items() if not np.array_equal(x, before[k])}
  assert changed == {'step'} and int(after.step) == 3
  assert {'nonfinite', 'nonfinite_in_a_row', 'spikes'} == values.keys()


def test_a_checkpoint_from_before_spikes_were_counted_is_resumed(tmp_path, monkeypatch):
  phase_run = phase_of((POISON,))
  state, _ = toys.run(phase_run, 3)
  parts = checkpoint._parts

  def without(state):
    made = parts(state)
    del made['rest']['spikes']
    return made

  checkpoints = checkpoint.Checkpoints(tmp_path, keep=1, keep_every=0)
  with monkeypatch.context() as patch:
    patch.setattr(checkpoint, '_parts', without)
    checkpoints.save(state)
    checkpoints.wait()
  restored = checkpoints.restore(3, phase_run.target[0])
  checkpoints.close()
  for k, x in toys.flat(restored).items():
    expected = jax.tree.map(np.asarray, spikes.fresh())[k[7:]] if k.startswith('spikes/') else None
    np.testing.assert_array_equal(x, toys.flat(state)[k] if expected is None else expected)
