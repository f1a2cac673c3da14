import contextlib
import gzip
import multiprocessing
import os
import pathlib
import signal
import tempfile
import time

import pytest

from bertzoo_jax.preflight import processes
from bertzoo_jax.preflight.tpu import program

FITS = program.Program(None, {}, program.Memory(1, 2), None, 0.5)
REFUSED = FITS._replace(memory=None, needed=3)
WHOLE = FITS._replace(text='module', analysis={'flops': 1.0})
NO = 'XlaError: no'
SOON, BOTH = (0, (True, WHOLE)), [(0, (False, FITS)), (0.2, (True, WHOLE))]


def gone(folder, seconds=60):
  """Whether the processes whose folder of temporary files this is end soon, and leave none."""
  environment = f'TMPDIR={folder}\0'.encode()

  def there(process):
    with contextlib.suppress(OSError):  # ended, or of another user
      return environment in (process / 'environ').read_bytes()

  for _ in range(10 * seconds):
    if not any(map(there, pathlib.Path('/proc').glob('[0-9]*'))) and not [*folder.glob('bert*')]:
      return True
    time.sleep(0.1)
  return False


# Stand-ins for `processes._compile`. What a job is, is up to them.


def answer(answers, job, whole, kept, folder, flags, trusted):
  """Sends what the job says, and goes on as a compiler would."""
  for after, said in job:
    time.sleep(after)
    answers.send(said)
  if not job or not job[-1][1][0]:
    processes._while_wanted(answers, folder)


def die_once(answers, job, whole, kept, folder, flags, trusted):
  """Is killed, unless a file says that it was."""
  if os.path.exists(job):
    answers.send((True, FITS))
  else:
    open(job, 'w').close()
    os.kill(os.getpid(), signal.SIGKILL)


def die(answers, job, whole, kept, folder, flags, trusted):
  os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """Where the processes have their files, which has to be empty at the end."""
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
  yield tmp_path
  assert not list(tmp_path.glob('bertzoo_jax-*'))


@pytest.mark.parametrize(
  'jobs, whole, known, found',
  [
    # memory alone
    ([[(0, (True, REFUSED))], [(0, (True, NO))]], False, [REFUSED, NO], [REFUSED, NO]),
    # all fit and go on
    ([BOTH, [SOON]], True, [FITS, WHOLE], [WHOLE, WHOLE]),
    # one does not fit, and none is waited for
    ([BOTH[:1], [(0.5, (True, REFUSED))]], True, [FITS, REFUSED], [FITS, REFUSED]),
  ],
)
def test_each_program_is_waited_for_as_long_as_it_is_asked(
  folder, monkeypatch, jobs, whole, known, found
):
  monkeypatch.setattr(processes, '_compile', answer)
  heard = [None] * len(jobs)
  assert processes.compiled(jobs, whole=whole, known=heard.__setitem__) == found
  assert heard == known


@pytest.mark.parametrize(
  'child, found', [(die_once, FITS), (die, 'its compiler ended with exit code -9')]
)
def test_a_process_that_is_killed_gets_a_second_try(folder, monkeypatch, child, found):
  monkeypatch.setattr(processes, '_compile', child)
  assert processes.compiled([str(folder / 'died')], whole=False) == [found]


def test_ctrl_c_leaves_no_process(folder, monkeypatch):
  monkeypatch.setattr(processes, '_compile', answer)

  def known(number, program):
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    processes.compiled([[], [(0, (False, FITS))]], whole=True, known=known)
  assert not multiprocessing.active_children()


def test_a_kept_verdict_answers_as_far_as_it_goes(tmp_path):
  path = tmp_path / 'kept' / 'key.json.gz'
  for kept, wanted, found in (
    ((WHOLE, True), True, WHOLE),
    ((WHOLE, True), False, WHOLE),
    ((FITS, False), False, FITS),
    ((FITS, False), True, None),
    ((REFUSED, True), True, REFUSED),
  ):
    processes._write(path, *kept)
    assert processes._read(path, wanted) == found


def test_an_unreadable_kept_verdict_is_compiled_anew(tmp_path):
  for data in (b'', b'none', gzip.compress(b'{"whole": true}')):
    (tmp_path / 'key').write_bytes(data)
    assert processes._read(tmp_path / 'key', False) is None
  processes._write(tmp_path / 'key' / 'below a file', FITS, False)
