"""The store is real to its clients (emulated_gcs). They read their addresses when they are first
used, so a child process has them. It does what this process asks; this process breaks the store.
"""

import json
import os
import pathlib
import select
import subprocess

import emulated_gcs
import pytest
import small_corpora

from bertzoo_jax.common import storage
from bertzoo_jax.corpus import corpus
from bertzoo_jax.runs import step_folders
from tests import commands

TESTS = pathlib.Path(__file__).parents[1]

CHILD = """
import contextlib, json, sys, time
out, sys.stdout = sys.stdout, sys.stderr
import jax, numpy as np, toys
from bertzoo_jax.common import errors, storage
from bertzoo_jax.corpus import mirror
from bertzoo_jax.runs import checkpoint, distributed, failures
from bertzoo_jax.training import phase_run as phase_runs

state = phase_runs.fresh(toys.phase_run())
target = toys.phase_run().target[0]
at = lambda step: state.replace(
  step=jax.numpy.int32(step), params=jax.tree.map(lambda x: x + step, state.params)
)

def opened(workdir):
  return contextlib.closing(checkpoint.Checkpoints(workdir, keep=9, keep_every=0))

def save(workdir, *new):
  with opened(workdir) as checkpoints, failures.writing('A checkpoint', 'the ones before'):
    for step in new:
      checkpoints.save(at(step))
    checkpoints.wait()

def resume(workdir):
  with opened(workdir) as checkpoints:
    if (step := checkpoints.newest()) is not None:
      got, whole = jax.tree.leaves(checkpoints.restore(step, target)), jax.tree.leaves(at(step))
      assert all(np.array_equal(a, b) for a, b in zip(got, whole, strict=True))
    return step

def read(address):
  return checkpoint.load_params(address)[1]

def fetch(address, cache):
  return str(mirror.local(address, cache, say=lambda text: None))

for line in sys.stdin:
  name, *arguments = json.loads(line)
  begin = time.monotonic()
  try:
    answer = {'value': globals()[name](*arguments)}
  except errors.UserError as e:
    answer = {'code': e.code, 'sentence': str(e)}
  except Exception as e:
    answer = {'code': 1, 'sentence': f'{type(e).__name__}: {e}'}
  answer['seconds'] = time.monotonic() - begin
  print(json.dumps(answer), file=out, flush=True)
distributed.exit_process(0)  # as a run ends: without waiting for threads of a save that failed
"""


@pytest.fixture(scope='module')
def store():
  with emulated_gcs.Store() as store:
    yield store


@pytest.fixture(scope='module')
def child(store, tmp_path_factory):
  """(function of a name and arguments) → the child's answer; `.log` is what it said."""
  log = tmp_path_factory.mktemp('child') / 'log'
  places = os.pathsep.join(map(str, (TESTS.parent, TESTS)))
  with log.open('w') as said:
    environment = commands.on_one_device(**{**store.environment(), 'PYTHONPATH': places})
    process = commands.begin('-c', CHILD, env=environment, stdin=subprocess.PIPE, stderr=said)

    def ask(*question):
      process.stdin.write(json.dumps(question) + '\n')
      process.stdin.flush()
      assert select.select([process.stdout], [], [], 240)[0], 'no answer in 240 s'
      return json.loads(process.stdout.readline() or pytest.fail(log.read_text()[-3000:]))

    ask.log = log
    yield ask
    process.stdin.close()
    assert process.wait(timeout=60) == 0


@pytest.fixture(autouse=True)
def mended(store):
  yield
  store.mend()


def words(answer):
  """The sentence of an answer, which must be one line and no stack."""
  assert '\n' not in answer['sentence'] and 'Traceback' not in answer['sentence'], answer
  return answer['sentence']


def test_a_store_that_fails_now_and_then_is_asked_again_in_saves_and_restores(store, child):
  workdir = 'gs://bucket/sometimes'
  # kinds of requests of both clients fail a few times, each in another way, before they get through
  saving = [
    store.fail(503, 1, 'POST .*sometimes.*/d/'),
    store.fail('reset', 1, 'POST .*sometimes.*/d/'),
    store.fail(429, 1, 'POST .*sometimes.*manifest.ocdbt'),
    store.fail(429, 2, 'GET .*prefix=sometimes'),
    store.fail('reset', 2, 'GET /storage/v1/b/bucket/o/sometimes'),
    store.fail(503, 2, 'POST .*sometimes.*commit_success'),
  ]
  assert child('save', workdir, 1, 2)['value'] is None
  restoring = [
    store.fail(503, 1, 'GET .*sometimes.*manifest.ocdbt'),
    store.fail('reset', 1, 'GET .*sometimes.*manifest.ocdbt'),
    store.fail(429, 2, 'GET .*sometimes.*sha256.json'),
  ]
  assert child('resume', workdir)['value'] == 2
  assert all(fault.hits == fault.times for fault in saving + restoring)


@pytest.mark.parametrize('how, name', [(503, 'save'), ('reset', 'resume'), (429, 'read')])
def test_a_store_that_fails_for_good_ends_a_save_in_time_and_the_checkpoint_before_is_whole(
  store, child, how, name
):
  workdir = f'gs://bucket/forever_{name}'
  assert child('save', workdir, 1)['value'] is None
  # what is there can be seen, and nothing more can be written; or nothing can be read
  store.fail(how, on='POST' if name == 'save' else 'forever')
  answer = child(name, workdir, *[2] * (name == 'save'))
  assert answer['code'] == 75 and answer['seconds'] < 60, answer
  assert 'same command again' in words(answer)
  store.mend()
  assert child('resume', workdir)['value'] == 1
  assert not [n for n in store.names('bucket', f'forever_{name}') if 'damaged' in n]
  assert child('save', workdir, 2)['value'] is None
  assert child('resume', workdir)['value'] == 2


@pytest.mark.parametrize(
  'how, on, every',
  [
    ('short', 'GET .*answers', 3),
    ('flip', 'GET /bucket/.*answers', 3),  # what files hold
    ('flip', 'GET /storage', 4),  # what is said of them
  ],
)
def test_answers_that_are_cut_or_flipped_are_asked_again_or_end_with_75_and_nothing_is_set_aside(
  store, child, tmp_path, how, on, every
):
  workdir = f'gs://bucket/answers_{how}{every}'
  assert child('save', workdir, 1, 2)['value'] is None
  small_corpora.write(tmp_path / 'corpus')
  store.upload(tmp_path / 'corpus', 'bucket', f'answers_text_{how}{every}')
  fault = store.fail(how, on=on, every=every)
  for question in (
    ('resume', workdir),
    ('read', workdir),
    ('fetch', f'gs://bucket/answers_text_{how}{every}', str(tmp_path / 'cache')),
  ):
    answer = child(*question)
    assert answer.get('code', 75) == 75, answer
    assert 'value' in answer or 'same command again' in words(answer)
  assert fault.hits > 5
  store.mend()
  assert child('resume', workdir)['value'] == 2
  assert not [n for n in store.names('bucket') if 'damaged' in n or 'unfinished' in n]


@pytest.mark.parametrize('how', ['flip', 'short', 'cut'])
def test_a_save_whose_answers_are_damaged_ends_with_75_or_well(store, child, how):
  workdir = f'gs://bucket/saved_{how}'
  assert child('save', workdir, 1)['value'] is None
  store.fail(how, on='POST', every=2, times=4 if how == 'cut' else float('inf'))
  answer = child('save', workdir, 2)
  assert answer.get('code', 75) == 75, answer
  assert 'value' in answer or 'same command again' in words(answer)
  store.mend()
  assert child('resume', workdir)['value'] in (1, 2)


def test_a_step_that_moves_between_a_disk_and_a_bucket_is_restored_bit_for_bit(
  store, child, tmp_path
):
  local = tmp_path / 'run'
  assert child('save', str(local), 1, 2)['value'] is None
  store.upload(local, 'bucket', 'moved')
  assert child('resume', 'gs://bucket/moved')['value'] == 2
  assert child('save', 'gs://bucket/moved', 3)['value'] is None
  store.download('bucket', 'moved', tmp_path / 'back')
  assert child('resume', str(tmp_path / 'back'))['value'] == 3
  assert child('read', f'{tmp_path}/back@1')['value'] == 1
  assert step_folders.verify(storage.path(tmp_path / 'back/checkpoints/3')) is None


def test_a_step_without_its_marker_is_marked_if_it_is_whole_and_never_deleted(
  store, child, tmp_path
):
  local = tmp_path / 'run'
  assert child('save', str(local), 1, 2, 3)['value'] is None
  for marker in local.rglob('commit_success.txt'):
    marker.unlink()
  size = lambda p: p.is_file() and p.stat().st_size
  cut = max((local / 'checkpoints/3/params').rglob('*'), key=size)
  cut.unlink()  # its copy was not finished
  store.upload(local, 'bucket', 'unmarked')
  before = {n: store.objects['bucket', n].data for n in store.names('bucket', 'unmarked')}
  answer = child('read', 'gs://bucket/unmarked')
  assert answer['code'] == 2 and 'without commit markers' in words(answer)
  assert child('resume', 'gs://bucket/unmarked')['value'] == 2
  said = child.log.read_text()
  assert 'Checkpoint 2 had no commit marker' in said and 'it is marked and used' in said
  lost = cut.relative_to(local / 'checkpoints/3')
  assert f'checkpoint 3 has no commit marker and is incomplete ({lost}' in said
  after = {n: store.objects['bucket', n].data for n in store.names('bucket', 'unmarked')}
  moved = lambda name: name.replace('checkpoints/3/', 'checkpoints/3.unfinished/')
  assert all(after[moved(name)] == data for name, data in before.items())
  assert child('read', 'gs://bucket/unmarked')['value'] == 2


def test_a_mirror_outlasts_a_store_that_fails_and_ends_in_time_if_it_fails_for_good(
  store, child, tmp_path
):
  small_corpora.write(tmp_path / 'corpus')
  store.upload(tmp_path / 'corpus', 'bucket', 'text')
  fetch = lambda: child('fetch', 'gs://bucket/text', str(tmp_path / 'cache'))
  fault = store.fail(503, on='text.*tokens.npy')
  answer = fetch()
  assert answer['code'] == 75 and answer['seconds'] < 60 and fault.hits > 2, answer
  assert 'same command again' in words(answer)
  assert not list((tmp_path / 'cache').rglob('manifest.json'))
  assert not list((tmp_path / 'cache').rglob('*.part'))
  store.mend()
  sometimes = [store.fail(503, 2, f'text.*{file}') for file in ('tokens.npy', 'manifest', 'prefix')]
  folder = pathlib.Path(fetch()['value'])
  assert all(fault.hits == 2 for fault in sometimes[:2])
  corpus.verify(storage.path(folder))
