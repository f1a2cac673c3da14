import concurrent.futures
import contextlib
import json
import math
import os
import pathlib
import shutil
from unittest import mock

import jax
import numpy as np
import pytest
import toys

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.runs import checkpoint
from bertzoo_jax.runs import step_folders
from bertzoo_jax.training import phase_run as phase_runs
from bertzoo_jax.training import sharding
from tests.refused import refused


def at(state, step):
  params = jax.tree.map(lambda x: x + step, state.params)
  return state.replace(step=jax.numpy.int32(step), params=params)


def save(workdir, *rows, keep=3, keep_every=0, keep_at=(), run=None):
  """Saves the fresh state at (step, held-out loss, first step of the phase); returns it."""
  state, how = phase_runs.fresh(toys.phase_run()), dict(keep=keep, keep_every=keep_every)
  how |= dict(keep_at=keep_at)
  with contextlib.closing(checkpoint.Checkpoints(workdir, **how)) as checkpoints:
    checkpoints.run = run or checkpoints.run
    for step, *rest in rows:
      checkpoints.save(at(state, step), *rest)
  return state


@pytest.fixture(scope='module')
def three(tmp_path_factory):
  """(workdir with steps 1, 2, 3 saved, state at step 0), which no test changes."""
  workdir = tmp_path_factory.mktemp('three')
  return workdir, save(workdir, (1, 5.0), (2, 3.0), (3,))


@pytest.fixture
def saved(three, tmp_path):
  """(workdir, state at step 0, Checkpoints) with steps 1, 2, 3 saved."""
  shutil.copytree(three[0], tmp_path, dirs_exist_ok=True)
  checkpoints = checkpoint.Checkpoints(tmp_path, keep=3, keep_every=0)
  yield tmp_path, three[1], checkpoints
  checkpoints.close()


def files(folder):
  apart = ('_CHECKPOINT_METADATA', 'commit_success.txt')
  found = sorted(pathlib.Path(folder).rglob('*'))
  return [p for p in found if p.is_file() and p.name not in apart]


def damage(path, how):
  data = bytearray(path.read_bytes())
  half = len(data) // 2
  if how == 'delete':
    return path.unlink()
  if how == 'flip':
    data[half] ^= 0x10
  path.write_bytes({'truncate': data[:half], 'zero': bytes(len(data)), 'flip': data}[how])


def test_a_checkpoint_that_is_kept_for_its_words_says_so(tmp_path):
  kept = {2: [10**6, 2 * 10**6], 5: [3 * 10**6]}
  save(tmp_path, (1,), (2,), (3,), (4,), keep=1, keep_at=kept)
  assert step_folders.steps(tmp_path) == [2, 4]
  assert step_folders.words(tmp_path) == {10**6: 2, 2 * 10**6: 2}
  (tmp_path / 'checkpoints/2' / step_folders.MANIFEST).write_text('[]')
  assert step_folders.words(tmp_path) == {}


def test_runs_in_threads_of_one_process_save_at_once(tmp_path):
  with concurrent.futures.ThreadPoolExecutor(3) as pool:
    list(pool.map(lambda name: save(tmp_path / name, (1,), (2,), (3,), keep=1), 'abc'))
  assert [step_folders.steps(tmp_path / name) for name in 'abc'] == [[3]] * 3


@pytest.mark.parametrize('shape', [None, (2, 2, 2), (2, 1, 1)])
def test_a_state_comes_back_bit_for_bit_also_on_another_mesh(saved, shape):
  _, state, checkpoints = saved
  mesh = shape and sharding.mesh(shape, jax.devices()[: math.prod(shape)])
  target, _ = toys.phase_run(mesh=mesh).target
  got = checkpoints.restore(checkpoints.newest(), target)
  jax.tree.map(np.testing.assert_array_equal, got, at(state, 3))
  leaves = zip(jax.tree.leaves(got), jax.tree.leaves(target), strict=True)
  assert all(a.sharding == b.sharding for a, b in leaves)


@pytest.mark.parametrize('how', ['flip', 'truncate', 'zero', 'delete'])
def test_any_damage_to_any_file_is_found(saved, how):
  workdir, _, _ = saved
  folder = workdir / 'checkpoints/2'
  for path in files(folder):
    data = path.read_bytes()
    if how == 'zero' and not any(data):
      continue
    damage(path, how)
    if not path.exists() or path.read_bytes() != data:
      assert step_folders.verify(folder), path
    path.write_bytes(data)
  (folder / 'params/.DS_Store').write_text('x')  # of somebody else
  (workdir / 'checkpoints/4').write_text('x')
  assert step_folders.verify(folder) is None and step_folders.steps(workdir) == [1, 2, 3]


def test_a_folder_whose_name_only_looks_like_a_step_is_left_alone(saved):
  workdir, _, checkpoints = saved
  names = ['²', '٣', '04', '+4', '4 ', '1' * 200, '-1', '1_0']
  for name in names:
    (workdir / 'checkpoints' / name).mkdir()
  assert step_folders.steps(workdir) == [1, 2, 3] and step_folders.best(workdir) == 2
  with contextlib.closing(checkpoint.Checkpoints(workdir, keep=1, keep_every=0)) as again:
    assert again.newest() == 3
  assert checkpoint.load_params(str(workdir))[1] == 3
  for name in names:
    assert (workdir / 'checkpoints' / name).is_dir()
    refused('no checkpoint', checkpoint.load_params, f'{workdir}@{name}')


def test_numbers_of_words_that_are_none_are_left_out(saved):
  for step, words in ((1, [5]), (2, [float('inf')]), (3, 'x')):
    file = saved[0] / 'checkpoints' / str(step) / step_folders.MANIFEST
    file.write_text(json.dumps(storage.read_json(file) | {'words': words}))
  assert step_folders.words(saved[0]) == {5: 1}


def test_every_checkpoint_has_a_copy_of_config_and_text_which_is_read_only_if_it_is_sound(tmp_path):
  save(tmp_path, (1,), (2,), run={'config': {'seed': 7}})
  assert step_folders.recorded(tmp_path) == {'config': {'seed': 7}}
  damage(tmp_path / 'checkpoints/2/run.json', 'flip')
  assert step_folders.verify(tmp_path / 'checkpoints/2').startswith('run.json')
  assert step_folders.recorded(tmp_path) == {'config': {'seed': 7}}
  (tmp_path / 'checkpoints/1/run.json').unlink()
  assert step_folders.recorded(tmp_path) == {}


def test_a_store_that_does_not_answer_is_no_damage(saved, monkeypatch):
  workdir, _, checkpoints = saved

  late = mock.Mock(side_effect=TimeoutError(110, 'Connection timed out'))
  monkeypatch.setattr(storage, 'sha256', late)
  words = 'run the same command again'
  refused(words, checkpoints.newest, kind=errors.TransientError)
  assert step_folders.steps(workdir) == [1, 2, 3]


@pytest.mark.parametrize('how', ['dangling link', 'read error'])
def test_a_file_that_cannot_be_read_is_damage_and_the_step_before_is_used(saved, monkeypatch, how):
  workdir, _, checkpoints = saved
  broken = files(workdir / 'checkpoints/3/params')[0]
  if how == 'dangling link':
    broken.unlink()
    broken.symlink_to(workdir / 'nowhere')
  else:
    denied, sha256 = mock.Mock(side_effect=PermissionError(13, 'Permission denied')), storage.sha256
    some = lambda path: (denied if str(path) == str(broken) else sha256)(path)
    monkeypatch.setattr(storage, 'sha256', some)
  assert 'cannot be read' in step_folders.verify(storage.path(workdir / 'checkpoints/3'))
  assert checkpoints.newest() == 2


def test_a_run_whose_checkpoints_are_all_damaged_is_refused_and_not_begun_at_0(saved):
  workdir, _, checkpoints = saved
  for step in (1, 2, 3):
    damage(files(workdir / f'checkpoints/{step}/params')[0], 'flip')
  refused(f'All checkpoints of {workdir} are damaged .3: .*another --workdir', checkpoints.newest)
  assert step_folders.steps(workdir) == [1, 2, 3]  # nothing was moved
  for step in (1, 2, 3):
    os.rename(workdir / f'checkpoints/{step}', workdir / f'checkpoints/{step}.damaged')
  refused('3.damaged', checkpoints.newest)


def test_the_best_is_of_the_newest_phase_that_was_evaluated(tmp_path):
  saves = (1, 1.0, 0), (2, 5.0, 2), (3, 4.0, 2), (4, float('nan'), 2), (5, None, 5)
  save(tmp_path, *saves, keep=9)
  assert step_folders.best(tmp_path) == 3
  assert step_folders.ranks(tmp_path, 0) == {1: 1.0} and step_folders.ranks(tmp_path, 5) == {}


def test_a_damaged_newest_step_is_reported_moved_aside_and_the_one_before_used(saved, capsys):
  workdir, state, checkpoints = saved
  damage(max(files(workdir / 'checkpoints/3/params'), key=lambda p: p.stat().st_size), 'flip')
  assert checkpoints.newest() == 2
  output = capsys.readouterr().out
  assert 'WARNING' in output and 'checkpoint 3' in output and 'sha256' in output
  assert (workdir / 'checkpoints/3.damaged').is_dir()
  checkpoints.save(at(state, 3))
  checkpoints.wait()
  assert checkpoints.newest() == 3
  damage(files(workdir / 'checkpoints/3')[0], 'delete')
  assert checkpoints.newest() == 2 and (workdir / 'checkpoints/3.damaged2').is_dir()


def test_newest_milestones_and_best_are_kept(tmp_path):
  save(tmp_path, *((step, 1.0 + (step - 3) ** 2) for step in range(1, 8)), keep=2, keep_every=4)
  assert step_folders.steps(tmp_path) == [3, 4, 6, 7]
  assert step_folders.best(tmp_path) == 3


def test_rests_of_a_killed_process_are_cleaned_and_never_taken_for_a_step(saved):
  workdir, _, checkpoints = saved
  folder = workdir / 'checkpoints'
  os.rename(folder / '3', folder / '3.orbax-checkpoint-tmp')
  os.rename(folder / '1', folder / '1.deleting')
  assert step_folders.steps(workdir) == [2]
  checkpoint.Checkpoints(workdir, keep=3, keep_every=0).close()
  assert sorted(p.name for p in folder.iterdir()) == ['2']


def test_pruning_never_follows_a_link_out_of_the_workdir(saved, tmp_path_factory):
  workdir, state, checkpoints = saved
  elsewhere = tmp_path_factory.mktemp('elsewhere') / 'precious'
  os.rename(workdir / 'checkpoints/1', elsewhere)
  os.symlink(elsewhere, workdir / 'checkpoints/1')
  for step in (4, 5, 6):
    checkpoints.save(at(state, step))
  checkpoints.wait()
  assert (elsewhere / step_folders.MANIFEST).exists()


def test_closing_after_the_workdir_went_says_nothing_before_the_lock_does(
  saved, monkeypatch, capsys
):
  (workdir, state, _), seal = saved, checkpoint.Checkpoints._seal
  go = lambda self: (shutil.rmtree(workdir), seal(self))
  monkeypatch.setattr(checkpoint.Checkpoints, '_seal', go)
  saver = checkpoint.Checkpoints(workdir, keep=3, keep_every=0)
  saver.save(at(state, 9))
  saver.close()
  assert not workdir.exists() and not ''.join(capsys.readouterr())


def test_addresses_name_the_newest_a_step_and_the_best(saved):
  workdir, state, _ = saved
  for address, step in ((f'{workdir}', 3), (f'{workdir}@1', 1), (f'{workdir}@best', 2)):
    params, *where = checkpoint.load_params(address)
    assert where == [step, str(workdir)]
    jax.tree.map(np.testing.assert_array_equal, params, at(state, step).params)


def test_the_mean_of_the_last_checkpoints_is_numpys(saved):
  workdir, state, _ = saved
  for address, steps in (('average:2', (2, 3)), ('average:2@2', (1, 2)), ('average:3', (1, 2, 3))):
    params, step, where = checkpoint.load_params(f'{workdir}@{address}')
    assert (step, where) == (steps[-1], str(workdir))
    assert checkpoint.averaged(where, step, address[:9]) == [*steps]
    kept = [toys.flat(at(state, s).params) for s in steps]
    for k, x in toys.flat(params).items():
      mean = np.mean([np.asarray(one[k], np.float64) for one in kept], axis=0)
      np.testing.assert_array_equal(x, mean.astype(np.float32))
    assert checkpoint.at_step(f'{workdir}@{address}', step) == f'{workdir}@{address[:9]}@{step}'


def test_the_running_average_is_numpys_and_comes_back_bit_for_bit_in_the_middle(tmp_path):
  phase_run, decay, state, params = toys.phase_run(ema=0.7), np.float32(0.7), None, []
  update = phase_runs.train_step(phase_run)
  with contextlib.closing(checkpoint.Checkpoints(tmp_path, keep=1, keep_every=0)) as checkpoints:
    for n in range(4):
      state, _ = toys.run(phase_run, min(n, 1), state, update)
      params.append({k: x.copy() for k, x in toys.flat(state.params).items()})
      if n == 2:
        checkpoints.save(state)
        checkpoints.wait()
    resumed, _ = toys.run(phase_run, 1, checkpoints.restore(2, phase_run.target[0]), update)
    checkpoints.save(resumed)
  for k, x in toys.flat(checkpoint.load_params(f'{tmp_path}@ema')[0]).items():
    average = params[0][k]
    for one in params[1:]:
      average = decay * average + np.float32(1 - 0.7) * one[k]
    np.testing.assert_allclose(x, average, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(x, toys.flat(state.average)[k])
    np.testing.assert_array_equal(toys.flat(resumed.params)[k], params[3][k])


def test_a_folder_of_the_very_name_comes_before_a_step(tmp_path):
  for folder in ('run', 'a@b/run', 'there@2', 'there@best', 'there@ema'):
    (tmp_path / folder).mkdir(parents=True)
  for address, *parsed in (
    ('there@2', 'there@2', None, None),
    ('there@2@3', 'there@2', '3', None),
    ('there@best', 'there@best', None, None),
    ('a@b/run@best', 'a@b/run', 'best', None),
    ('run@2', 'run', '2', None),
    ('there@ema', 'there@ema', None, None),
    ('run@ema', 'run', None, 'ema'),
    ('there@2@average:3@7', 'there@2', '7', 'average:3'),
  ):
    wished = f'{tmp_path}/{parsed[0]}', *parsed[1:]
    assert checkpoint.parse_address(f'{tmp_path}/{address}') == wished, address


def test_addresses_that_name_nothing_list_those_that_exist(saved, tmp_path_factory, capsys):
  workdir, _, _ = saved
  for address, words in (
    (f'{workdir}@7', 'There is: 1, 2, 3'),
    (f'{workdir}@worst', 'WORKDIR@best'),
    (f'{workdir}/no', 'has no checkpoint'),
    (f'{workdir}@ema', 'trained with config.ema=0'),
    (f'{workdir}@average:4', 'has 3 checkpoints up to step 3 .1, 2, 3.'),
    (f'{workdir}@average:0', 'WORKDIR@average:K'),
  ):
    refused(words, checkpoint.load_params, address)
  damage(files(workdir / 'checkpoints/3/params')[0], 'flip')
  refused('damaged', checkpoint.load_params, f'{workdir}@3')
  assert checkpoint.load_params(str(workdir))[1] == 2
  assert 'damaged' in capsys.readouterr().out
  assert (workdir / 'checkpoints/3').exists()  # who only reads moves nothing


def test_a_checkpoint_of_another_network_is_refused_in_one_sentence(saved):
  _, _, checkpoints = saved
  target, _ = toys.phase_run().target
  shape = lambda *axes: jax.ShapeDtypeStruct(axes, np.float32)
  wide = {**target.params, 'pair_head': {'classifier': {'kernel': shape(9, 2), 'bias': shape(2)}}}
  for params, words in (
    (wide, r'pair_head/classifier/kernel: \[8, 2\] saved, \[9, 2\] expected'),
    ({'encoder': wide['encoder']}, 'pair_head/classifier/bias, saved and not expected'),
  ):
    refused(words, checkpoints.restore, 3, target.replace(params=params))


def test_a_save_that_fails_is_raised_and_earlier_steps_stay(saved, monkeypatch):
  workdir, state, checkpoints = saved
  full = mock.Mock(side_effect=OSError(28, 'No space left on device'))
  with monkeypatch.context() as patch:
    patch.setattr(storage, 'sha256', full)
    checkpoints.save(at(state, 4))
    refused('No space', checkpoints.wait, kind=OSError)
  assert step_folders.steps(workdir) == [1, 2, 3]
  checkpoints.save(at(state, 5))
  checkpoints.wait()
  assert step_folders.steps(workdir) == [2, 3, 5]
