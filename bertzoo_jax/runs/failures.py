"""Ends a run with one sentence if its storage or a device fails."""

import contextlib

import jax

from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.runs import distributed


@contextlib.contextmanager
def writing(what: str, kept: str):
  """Inside a `with`, turns an error of storage into TransientError if it may pass, else Stopped.
  Other errors are unchanged. An error of another host is left to `distributed.watched`, since a
  save waits for all hosts.

  what: subject of the sentence, such as 'A checkpoint'. kept: which files remain.
  """
  try:
    yield
  except Exception as e:  # a storage library may raise anything
    if distributed.comes_from_another(e):
      raise
    if out_of_memory(e) or not storage.is_error_of_storage(e):
      e.add_note('The checkpoints before this one are kept.')
      raise
    passing = storage.may_pass(e)
    remedy = 'Run' if passing else 'Free space or repair access, and run'
    raise (errors.TransientError if passing else errors.Stopped)(
      f'{what} could not be written ({errors.named(e, 300)}); {kept} are kept. '
      f'{remedy} the same command again.'
    ) from e


def out_of_memory(e: BaseException) -> bool:
  """Whether a device had no room, for a program or while it ran."""
  message = str(e)
  return isinstance(e, jax.errors.JaxRuntimeError) and (
    'RESOURCE_EXHAUSTED' in message or 'out of memory' in message.lower()
  )


@contextlib.contextmanager
def enough_memory(machinery, by_phase=False):
  """Inside a `with`: a device without room ends the run in one sentence. machinery: the config's
  `run` section. by_phase: whether a phase has a run.accumulation of its own. Raises Stopped.
  """
  try:
    yield
  except jax.errors.JaxRuntimeError as e:
    if not out_of_memory(e):
      raise
    twice = ' (twice its own in a phase of config.phases that sets it)' * by_phase
    auto = machinery.accumulation == configuration.AUTO
    more = ' above that of auto' if auto else f'={2 * machinery.accumulation}{twice} or auto'
    raise errors.Stopped(
      f'A device has not enough memory ({errors.words(e, 200)}). The checkpoints are '
      f'kept. Try run.accumulation{more}'
      + ', then run.remat=full'
      * (machinery.remat != 'full')
      + ', then more devices along fsdp in run.mesh. These do not '
      'change the experiment. A smaller batch_size or length does, and needs another --workdir.'
    ) from e
