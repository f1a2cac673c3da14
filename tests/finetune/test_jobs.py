"""jobs: their order, and the processes that run them."""

import contextlib
import threading

import pytest

from bertzoo_jax.common import errors
from bertzoo_jax.finetune import jobs


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
  ended, said = [], []

  @contextlib.contextmanager
  def held(job):
    if job.name == 'a' and not ended:
      raise errors.TransientError('in use by 1')
    yield

  def do(job, slot):
    ended.append(job.name)
    return len(ended) < 2

  made = [job(tmp_path, name) for name in 'abc']
  assert not jobs.run(made, do, held=held, say=said.append)
  assert ended == ['b', 'a'] and said == ['a: in use by 1']
