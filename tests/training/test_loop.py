"""The loop over phases: borders, interruptions, the best checkpoint, and storage that fails."""

import dataclasses
import functools
import math
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from bertzoo_jax.common import errors
from bertzoo_jax.common import progress
from bertzoo_jax.runs import checkpoint
from bertzoo_jax.runs import metrics
from bertzoo_jax.runs import step_folders
from bertzoo_jax.runs import watchdog
from bertzoo_jax.training import loop
from bertzoo_jax.training import phase_run as phase_runs
from bertzoo_jax.training import sharding
from bertzoo_jax.training import spikes

BORDER, END = 3, 6


class Preemption:
  """Asks to stop after so many steps, or before the first if it is 0."""

  def __init__(self, at=None):
    self.name, self._left = 'SIGTERM' if at == 0 else None, at

  def reached(self):
    if self._left is not None:
      self._left -= 1
      self.name = self.name or (None if self._left else 'SIGTERM')
    return self.name is not None


def constant_head():
  """The toy objective whose second head is constant."""
  full = toys.toy()
  head = {'classifier': {'kernel': jnp.zeros((toys.WIDTH, 2)), 'bias': jnp.zeros(2)}}
  return full._replace(
    loss=lambda params, *rest: full.loss({**params, 'pair_head': head}, *rest),
  )


@pytest.fixture(autouse=True, scope='module')
def programs_compiled_once():
  """Keeps the compiled programs of a phase_run that several tests have."""
  known = {}

  def once(name):
    make = getattr(phase_runs, name)

    def kept(phase_run):
      key = name, id(phase_run)
      if key not in known:
        known[key] = phase_run, make(phase_run)
      return known[key][1]

    return kept

  with pytest.MonkeyPatch.context() as patch:
    for name in ('evaluation', 'make_transition'):
      patch.setattr(phase_runs, name, once(name))
    yield


@functools.cache
def first_stage():
  """Without the second head, whose parameters the second stage adds."""
  objective = constant_head()
  init = lambda key: {'encoder': objective.init(key)['encoder']}
  return toys.phase_run(0, BORDER, objective=objective._replace(init=init))


@functools.cache
def second_stage():
  return toys.phase_run(BORDER, END)


def attempt(workdir, phase_run, later=(), *, state=None, start=0, total=None, keep_every=0, **how):
  """The result of one attempt. how: attributes of the loop, or fields of its machinery."""
  kept = dict(keep_every=keep_every, keep_at=how.get('keep_at', ()))
  checkpoints = checkpoint.Checkpoints(workdir, keep=1, **kept)
  if state is None and start:
    state = checkpoints.restore(start, phase_run.target[0])
  machinery = dict(log_every=1, eval_every=0, save_minutes=1000.0, keep_every=keep_every)
  machinery |= dict(on_nonfinite='stop', on_spike='report', steps_per_call=1)
  machinery |= {name: how.pop(name) for name in machinery.keys() & how.keys()}
  total = total or phase_run.end_step
  usual = dict(
    record=metrics.Nothing(),
    trackers=metrics.Nothing(),
    progress=progress.Progress(total, start, show=False),
    preemption=Preemption(),
  )
  run = loop.Loop(
    workdir=workdir,
    total_steps=total,
    vocab_size=toys.VOCAB,
    machinery=types.SimpleNamespace(**machinery),
    checkpoints=checkpoints,
    **{**usual, **how},
  )
  try:
    return run.train(state or phase_runs.fresh(phase_run), [phase_run, *later])
  finally:
    checkpoints.close()


def train(workdir, *, start=0, losses=None, monkeypatch=None, eval_every=1, **how):
  """The result of a run of two phases, begun fresh or resumed from a step. losses: step of
  evaluation → held-out loss.
  """
  if losses is not None:
    told = iter(losses)
    monkeypatch.setattr(
      phase_runs, 'evaluation', lambda phase_run: lambda params: {'loss': next(told)}
    )
  phase_run, later = (first_stage(), [second_stage()]) if start < BORDER else (second_stage(), [])
  return attempt(workdir, phase_run, later, start=start, total=END, eval_every=eval_every, **how)


@pytest.mark.parametrize('at', [0, BORDER - 1, BORDER])
def test_an_interrupted_run_saves_in_the_shape_of_its_phase_and_goes_on(tmp_path, at):
  """At the border, where parameters are added, within a phase, and before the first step."""
  result = train(tmp_path, preemption=Preemption(at), eval_every=0)
  assert (result['step'], result['interrupted']) == (at, True)
  assert step_folders.steps(tmp_path) == [at] * (at > 0)
  assert train(tmp_path, start=at)['step'] == END


def test_the_evaluation_at_a_border_is_kept_with_its_checkpoint(tmp_path, monkeypatch):
  train(tmp_path, preemption=Preemption(BORDER), losses=[3.0, 2.0, 1.0], monkeypatch=monkeypatch)
  assert step_folders.ranks(tmp_path) == {BORDER: 1.0} and step_folders.best(tmp_path) == BORDER


@pytest.mark.parametrize('start', [0, BORDER])
def test_the_best_is_the_lowest_finite_loss_of_the_newest_phase_since_two_do_not_compare(
  tmp_path, monkeypatch, start
):
  losses = [3.0, 2.0, 1.0, -math.inf, 5.0, math.nan]
  if start:  # the same when the run was interrupted at the border
    train(tmp_path, preemption=Preemption(BORDER), losses=losses[:BORDER], monkeypatch=monkeypatch)
  train(tmp_path, start=start, losses=losses[start:], monkeypatch=monkeypatch)
  assert step_folders.best(tmp_path) == 5 and step_folders.steps(tmp_path) == [5, 6]


def failing(error):
  """A function that raises an error."""

  def fail(*args):
    raise error

  return fail


@pytest.mark.parametrize(
  'error, ends, words',
  [
    (
      OSError(28, 'No space left'),
      errors.Stopped,
      r'\(OSError.*No space.*\); .* kept\. Free space',
    ),
    (
      ConnectionResetError(104),
      errors.TransientError,
      r'\(Conn.*\); .* kept\. Run the same command',
    ),
    (KeyError('kernel'), KeyError, 'kernel'),
  ],
)
def test_metrics_that_cannot_be_written_end_a_run_in_one_sentence(tmp_path, error, ends, words):
  with pytest.raises(ends, match=words) as e:
    train(tmp_path, record=types.SimpleNamespace(write=failing(error)), eval_every=0)
  assert type(e.value) is ends


@pytest.mark.parametrize('error', [TypeError('a mistake of ours'), KeyError('kernel')])
def test_a_mistake_of_the_program_in_a_save_keeps_its_own_words(tmp_path, monkeypatch, error):
  monkeypatch.setattr(checkpoint.Checkpoints, 'save', failing(error))
  with pytest.raises(type(error)) as e:
    train(tmp_path, eval_every=0)
  assert e.value is error and 'kept' in e.value.__notes__[0]


def test_a_finite_gradient_that_makes_an_infinite_parameter_is_never_saved(tmp_path):
  # A float32 has no 1e-46: the update of a parameter without a gradient is 0 / 0.
  phase_run = toys.phase_run(0, END, objective=constant_head(), eps=1e-46)
  with pytest.raises(errors.Stopped, match='params/pair_head.* is infinite or not a num') as e:
    attempt(tmp_path, phase_run, keep_every=1)
  assert e.value.code == 3 and step_folders.steps(tmp_path) == []


def test_a_state_whose_copies_differ_is_never_saved(tmp_path):
  mesh = sharding.mesh((8, 1, 1), jax.devices())
  phase_run = toys.phase_run(0, END, mesh=mesh)
  state = phase_runs.fresh(phase_run)
  bias = state.params['pair_head']['classifier']['bias']
  copies = [np.array(s.data) for s in bias.addressable_shards]
  copies[3][1] += 1e-6
  where = [s.device for s in bias.addressable_shards]
  bias = jax.make_array_from_single_device_arrays(
    bias.shape, bias.sharding, [jax.device_put(c, d) for c, d in zip(copies, where)]
  )
  state.params['pair_head']['classifier']['bias'] = bias
  with pytest.raises(errors.Stopped, match=f'{where[3]} of host 0 differs from the 7') as e:
    attempt(tmp_path, phase_run, state=state, keep_every=1)
  assert e.value.code == 3 and step_folders.steps(tmp_path) == []


def test_speed_is_measured_between_steps_that_have_ended(tmp_path, monkeypatch):
  # As on an accelerator: the loop runs ahead of the device.
  monkeypatch.setattr(loop, 'jax', types.SimpleNamespace(**vars(jax) | {'device_count': lambda: 1}))
  plain = toys.toy()

  def slow(params, batch, *rest):  # some 50 ms, of which the host need not wait
    value, found = plain.loss(params, batch, *rest)
    long = jnp.arange(20000.0) + batch['input_ids'][0, 0]
    return value + 0 * jax.lax.fori_loop(0, 20, lambda _, x: jnp.sin(jnp.sort(x)), long)[0], found

  written = []
  phase_run = toys.phase_run(0, 12, objective=plain._replace(loss=slow))
  record = types.SimpleNamespace(write=written.append, sync=lambda: None)
  attempt(tmp_path, phase_run, record=record, keep_every=6)
  update, state = phase_runs.train_step(phase_run), phase_runs.fresh(phase_run)
  alone = []
  for step in range(6):
    began = time.monotonic()
    state = jax.block_until_ready(update(state, toys.batch(step)))[0]
    alone.append(time.monotonic() - began)
  speeds = [row['tokens_per_second'] for row in written if 'tokens_per_second' in row]
  assert len(speeds) >= 4 and max(speeds) < 3 * phase_run.rows * phase_run.length / min(alone)


@pytest.fixture
def saved(monkeypatch):
  """Called with each state before it is saved: set `saved.look`."""
  save, hook = checkpoint.Checkpoints.save, types.SimpleNamespace()
  keep = lambda self, state, *rest: (hook.look(int(state.step)), save(self, state, *rest))
  monkeypatch.setattr(checkpoint.Checkpoints, 'save', keep)
  return hook


def test_the_row_of_a_step_is_on_the_disk_before_its_checkpoint(tmp_path, saved):
  rows, record = {}, metrics.Record(tmp_path, 0, 1)
  saved.look = lambda step: rows.update({step: [row['step'] for row in metrics.read(tmp_path)]})
  train(tmp_path, record=record, eval_every=0, save_minutes=0.0)
  record.close()
  assert rows == {step: list(range(1, step + 1)) for step in range(1, END + 1)}


def test_the_first_row_is_written_after_the_first_step_and_minutes_save_between_rows(
  tmp_path, saved
):
  did = []
  saved.look = did.append
  record = types.SimpleNamespace(write=lambda row: did.append(f'row {row["step"]}'), sync=int)
  ends = types.SimpleNamespace(name=None, reached=lambda: did.append('step ends'))
  how = dict(record=record, preemption=ends, eval_every=0, log_every=100)
  train(tmp_path / 'a', **how)
  assert did[:2] == ['row 1', 'step ends']
  did.clear()
  train(tmp_path / 'b', save_minutes=0.0, **how)
  assert [step for step in did if isinstance(step, int)][:5] == [1, 2, 3, 4, 5]


def test_to_enter_a_phase_which_compiles_may_take_ten_times_hang_minutes(tmp_path, monkeypatch):
  dog, enter, seen = watchdog.Watchdog(1), phase_runs.transition, []

  def watched(*args):
    kind = dog._now[0]
    seen.append((kind, dog._allowed(kind)))
    return enter(*args)

  monkeypatch.setattr(phase_runs, 'transition', watched)
  train(tmp_path, watchdog=dog)
  assert seen == [('the start of the phase after step', 600)]


POISON = 13  # the index of the step, whose number is 14


@pytest.fixture
def poisoned(monkeypatch):
  """A phase_run with a spike in one step."""
  monkeypatch.setattr(spikes, 'WARMUP', 6)
  objective = toys.amplified(toys.toy())
  return toys.phase_run(0, 24, objective=objective, poison=(POISON,), weight=1e4, total=24)


def test_a_spike_is_said_and_counted_and_the_count_survives_a_resume(tmp_path, capsys, poisoned):
  for start, how in ((0, dict(preemption=Preemption(16))), (16, {})):
    record = metrics.Record(tmp_path, start, 1)
    how |= dict(progress=progress.Progress(24, start, show=True, terminal=False), record=record)
    attempt(tmp_path, poisoned, start=start, keep_every=4, log_every=3, **how)
    record.close()
    output = capsys.readouterr().out
    assert (f'spike: step {POISON + 1} (loss ' in output) == (start == 0), output
  counts = {row['step']: row.get('spikes', 0) for row in metrics.read(tmp_path)}
  assert counts[12] == 0 and counts[15] == counts[18] == counts[24] == 1


@pytest.mark.parametrize('log_every', [3, 100])
def test_a_run_that_is_to_stop_at_a_spike_keeps_the_checkpoint_before_it(
  tmp_path, poisoned, log_every
):
  how = dict(on_spike='stop', keep_every=4, log_every=log_every)
  for start in (0, 12):
    with pytest.raises(errors.Stopped, match=f'spike: step {POISON + 1} ') as e:
      attempt(tmp_path, poisoned, start=start, **how)
    assert e.value.code == 3 and step_folders.steps(tmp_path)[-1] == 12


def test_several_steps_per_call_are_the_same_run_to_the_bit(tmp_path, monkeypatch):
  """With two phases, evaluations, spikes, checkpoints at any step, and interruptions."""
  monkeypatch.setattr(spikes, 'WARMUP', 6)
  how = dict(objective=toys.amplified(toys.toy()), ema=0.9, total=24, poison=(19,), weight=1e4)
  first, second = toys.phase_run(0, 11, **how), toys.phase_run(11, 24, **how)
  how = dict(total=24, log_every=6, eval_every=8, keep_at={5: (1,), 14: (2,)})

  def run(name, together, at):
    """(metrics, steps saved, final state) of a run that is interrupted after `at` calls."""
    folder, step, saves, said = tmp_path / name, 0, [], []
    folder.mkdir()
    for preemption in [*map(Preemption, at), Preemption()]:
      phase_run, *later = [p for p in (first, second) if p.end_step > step]
      bar = progress.Progress(24, step, show=False)
      bar.say = said.append
      record = metrics.Record(folder, step, 1)
      start = dict(start=step, record=record, preemption=preemption, progress=bar)
      step = attempt(folder, phase_run, later, steps_per_call=together, **start, **how)['step']
      record.close()
      saves.append(step)
    rows = [
      {k: x for k, x in row.items() if k != 'tokens_per_second'} for row in metrics.read(folder)
    ]
    state = checkpoint.Checkpoints(folder, keep=1, keep_every=0).restore(24, second.target[0])
    spikes = [line for line in said if line.startswith('spike')]
    return rows, step_folders.steps(folder), toys.flat(state), spikes, saves

  rows, kept, state, spiked, _ = run('one', 1, [])
  assert [row['step'] for row in rows] == [1, 6, 8, 11, 12, 16, 18, 24] and rows[-1]['spikes'] == 1
  assert {5, 14} < {*kept} and len(spiked) == 1 and 'step 20 ' in spiked[0]
  # The first step of an attempt is single, and so are those before a step that is due: calls end
  # at steps 1, 4; 5, 6, 7, 8; 9, 11; 12, 13, 14, 15, 16, 17, 18, 21, 24.
  again, kept_again, state_again, spiked_again, saves = run('three', 3, [2, 4])
  assert saves == [4, 8, 24] and {1, 3} <= {n for n, _ in second.programs}
  assert (again, kept_again, spiked_again) == (rows, kept, spiked)
  assert state.keys() == state_again.keys()
  assert all(np.array_equal(x, state_again[path]) for path, x in state.items())


def test_shorter_rows_have_a_program_of_their_own_alone_and_among_several_steps(tmp_path):
  cut = lambda step: {
    k: x[:, : x.shape[1] - step % 3] if k == 'input_ids' else x for k, x in toys.batch(step).items()
  }
  iterate = lambda first, end: map(cut, range(first, end))

  def state_after(together):
    run, folder = toys.phase_run(0, 8), tmp_path / str(together)
    run = dataclasses.replace(run, data=toys.rows_of(run.data.features, iterate))
    attempt(folder, run, [], total=8, log_every=8, eval_every=8, steps_per_call=together)
    state = checkpoint.Checkpoints(folder, keep=1, keep_every=0).restore(8, run.target[0])
    return toys.flat(state), {*run.programs}

  (one, programs), (again, _) = state_after(1), state_after(3)
  assert len(programs) == 3 and one.keys() == again.keys()
  assert all(np.array_equal(x, again[path]) for path, x in one.items())
