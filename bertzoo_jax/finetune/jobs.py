"""The trainings of a fine-tuning or a table: their order, and the threads that run them."""

import concurrent.futures
import contextlib
import threading
import time
from typing import Any
from typing import NamedTuple

from bertzoo_jax.common import errors
from bertzoo_jax.experiment import resolve
from bertzoo_jax.runs import lock

_WAIT = 5.0  # seconds between two looks at the locks of others


class Job(NamedTuple):
  """One training, and the scoring after it."""

  name: str  # name of the task, or of the row of a table
  title: str  # its name for the user
  seed: int  # seed of the training
  experiment: Any  # its complete config, locked
  folder: Any  # folder of the job
  record: str  # name of the file in it that is written last
  init: str  # address of the weights that it begins with; '' for random ones
  needs: str = ''  # name of the job with the same seed whose weights `init` names; '' for none
  point: tuple = ()  # ((key, value), …) of a grid; () without one

  @property
  def done(self) -> bool:
    return (self.folder / self.record).exists()

  @property
  def pretraining(self):
    """Workdir of the pretraining, inside the folder of a table's row."""
    return self.folder / 'pretrain'

  @property
  def resolved(self) -> resolve.Run:
    return resolve.run(self.experiment)


def in_order(needs: dict[str, str], what: str = '') -> list[str]:
  """Orders names, each after the one that it needs. needs: {name: that name, or any other value}.
  what: begins the message of the UserError for names that need each other.
  """
  ordered = []
  while rest := [name for name in needs if name not in ordered]:
    ready = [name for name in rest if needs[name] not in rest]
    if not ready:
      raise errors.UserError(
        f'{what}{" and ".join(rest)} begin with the weights of each other (init): set one to "".'
      )
    ordered += ready
  return ordered


def run(jobs, do, slots=(None,), *, held=contextlib.nullcontext, say=print) -> bool:
  """Runs jobs in order, each after the one that it needs: one at a time per slot, with a thread per
  slot if there are several. Returns False if `do` stopped them.

  do: (job, slot) → whether to go on. After a False or an error no other job is begun. held: job →
  context in which it is done. If it raises TransientError, another job is tried first. say: prints
  a line.
  """
  left, choosing, met = list(jobs), threading.Lock(), set()
  known = {(job.name, job.seed): job for job in jobs}

  def taken(stack):
    """The next job, locked by `stack`; None if none is left. Waits while others hold all."""
    while left:
      with choosing:
        for job in left:
          before = known.get((job.needs, job.seed))
          if before is not None and not before.done:
            continue
          try:
            stack.enter_context(held(job))
          except errors.TransientError as e:
            _once(say, f'{job.title}: {e}', met)
            continue
          left.remove(job)
          return job
      if left:
        time.sleep(_WAIT)
    return None

  def work(slot):
    try:
      while True:
        with contextlib.ExitStack() as stack:
          job = taken(stack)
          if job is None or not do(job, slot):
            return job is None
    finally:
      with choosing:
        left.clear()

  if len(slots) == 1:
    return work(slots[0])
  pool = concurrent.futures.ThreadPoolExecutor(len(slots))
  try:
    begun = [pool.submit(work, slot) for slot in slots]
    went_on = [each.result() for each in concurrent.futures.as_completed(begun)]
  except BaseException as e:
    with choosing:
      left.clear()
    pool.shutdown(wait=isinstance(e, Exception))  # the second Ctrl-C waits for nothing
    raise
  pool.shutdown()
  return all(went_on)


@contextlib.contextmanager
def holding(folder, say):
  """Locks a folder inside a `with`. Waits if another process holds it, and prints once which."""
  folder.mkdir(parents=True, exist_ok=True)
  met = set()
  with contextlib.ExitStack() as stack:
    while True:
      try:
        stack.enter_context(lock.hold(folder))
        break
      except errors.TransientError as e:
        _once(say, str(e), met)
        time.sleep(_WAIT)
    yield


def _once(say, sentence, met):
  if sentence not in met:
    say(sentence)
  met.add(sentence)
