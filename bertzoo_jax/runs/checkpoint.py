"""Atomic checkpoints: Orbax writes them, and the sha256 of every file is checked before one is
used.

In WORKDIR/checkpoints:

    STEP/{params,rest,meta}   by Orbax, asynchronously, committed by an atomic rename (gs://: a
                              marker); also STEP/average where the run has one
    STEP/run.json             the config and the text of the run (workdir.py)
    STEP/sha256.json          written before the commit, so that a committed step always has one
    STEP.damaged              moved aside because a file does not match; delete it when you have
                              looked
    STEP.unfinished           gs:// only: moved aside because it has no marker and lacks files: a
                              save was killed, or a copy was not finished

On gs:// a step without its marker whose files all match their sums gets the marker: it was copied
from a disk, or only its commit was cut short.

The checksums are needed: Orbax restores an array with a flipped bit without an error.
"""

import contextlib
import functools
import logging
import os
import re
import sys
import threading

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging as absl_logging

from bertzoo_jax.common import errors
from bertzoo_jax.common import folders
from bertzoo_jax.common import storage
from bertzoo_jax.common import trees
from bertzoo_jax.runs import distributed
from bertzoo_jax.runs import step_folders

# Orbax counts saves with one counter per process. If two threads begin a save at the same time,
# each waits for the other's folder, so saves begin one after the other.
_BEGINNING = threading.Lock()
_THIS_RUN = 'use the config and version the run was started with, or a new --workdir'
_OTHER_RUN = 'leave --resume_moments out: --init then takes the weights that fit'


class Checkpoints:
  """The checkpoints of one run. One process at a time may hold this (see lock.py).

  Attributes:
    run: {'config', 'corpus'}, as JSON, of which each checkpoint gets a copy.
  """

  def __init__(self, workdir, *, keep: int, keep_every: int, keep_at=()):
    """workdir: of the run. keep: newest steps kept, at least 1. keep_every: multiples of it are
    kept for good; 0 for none. keep_at: {other step that is: numbers of words seen}.

    The best step is kept too (step_folders.best). Raises UserError for a `keep` below 1.
    """
    if keep < 1 or keep_every < 0:
      raise errors.UserError(
        f'run.keep is {keep} and run.keep_every {keep_every}: at least 1 and 0 are needed.'
      )
    self._folder = storage.absolute(workdir) / step_folders.FOLDER
    self._keep, self._keep_every, self._keep_at = keep, keep_every, dict(keep_at)
    self._saving, self.run = None, {}
    self._writes = jax.process_index() == 0
    with storage.reading(f'The checkpoints in {self._folder}'):
      if self._writes and self._folder.exists():
        step_folders.clean(self._folder)
    _quiet()
    tree = ocp.PyTreeCheckpointHandler
    self._checkpointer = ocp.AsyncCheckpointer(
      ocp.CompositeCheckpointHandler(
        params=tree(), rest=tree(), average=tree(), meta=ocp.JsonCheckpointHandler()
      ),
      async_options=ocp.options.AsyncOptions(post_finalization_callback=self._seal),
    )

  def save(self, state, held_out_loss=None, phase_first_step: int = 0, score: tuple = ()) -> int:
    """Starts writing a state and returns its step; first waits for the save before. A step that is
    already there is left unchanged.

    held_out_loss: of the state, in the phase that begins at phase_first_step; None if it was not
      evaluated. score: (number,) if states are compared by a score. Raises the error of the save
      before, if it failed.
    """
    step = int(state.step)
    self.wait()
    if step in step_folders.steps(self._folder.parent):
      return step
    self._saving = (step, held_out_loss, phase_first_step, score)
    if self._writes:
      self._folder.mkdir(parents=True, exist_ok=True)
    parts, meta = _parts(state), {'step': step, 'shapes': shapes(state)}
    with _named_errors(self._folder), _BEGINNING:
      self._checkpointer.save(
        self._folder / str(step),
        args=ocp.args.Composite(
          meta=ocp.args.JsonSave(meta),
          **{name: ocp.args.PyTreeSave(tree) for name, tree in parts.items()},
        ),
      )
    return step

  def wait(self) -> None:
    """Waits for the last save and prunes. Raises if the save failed."""
    with _named_errors(self._folder):
      self._checkpointer.wait_until_finished()
    if self._saving is not None and self._writes:
      self._prune()
    self._saving = None

  def check(self) -> None:
    """Raises if a save in the background has failed."""
    with _named_errors(self._folder):
      self._checkpointer.check_for_errors()

  def newest(self) -> int | None:
    """The newest sound step; damaged ones above it are reported and moved aside. None if none was
    ever saved.

    Raises UserError if all are damaged: starting again at 0 would lose the run's metrics. Raises
    TransientError if the storage does not answer.
    """
    with storage.reading(f'The checkpoints in {self._folder}'):
      step, damaged, before = -1, [], []
      if self._writes and self._folder.exists():
        for candidate in reversed(step_folders.steps(self._folder.parent)):
          problem = step_folders.verify(self._folder / str(candidate))
          if problem is None:
            step = candidate
            break
          damaged.append((candidate, problem))
        before = sorted(p.name for p in self._folder.iterdir() if '.damaged' in p.name)
        if step < 0 and (damaged or before):
          step = -2
      step = int(_from_first_process(step))
      if step == -2:
        which = ', '.join([f'{candidate}: {problem}' for candidate, problem in damaged] + before)
        which = which or 'the first process names them'
        raise errors.UserError(
          f'All checkpoints of {self._folder.parent} are damaged ({which}): start again with '
          f'another --workdir, or delete {self._folder} to begin this one at step 0.'
        )
      for candidate, problem in damaged:
        aside = step_folders.move_aside(self._folder / str(candidate), 'damaged')
        print(
          f'WARNING: checkpoint {candidate} is damaged ({problem}). It is now {aside}; resuming '
          'from the one before.'
        )
      return None if step < 0 else step

  def restore(self, step: int, target, workdir=None):
    """The state of a sound step, placed as the target says, a TrainState of shape structs with
    shardings. workdir: of another run whose state it is; None for this one. Raises UserError for
    other parameters or shapes, TransientError if storage does not answer.
    """
    folders = storage.absolute(workdir) / step_folders.FOLDER if workdir else self._folder
    folder = folders / str(step)
    with _decoding(folder):
      # Orbax would read it once, and not notice a bit that flips on the way
      saved = storage.read_json(folder / 'meta' / 'metadata')['shapes']
      wanted = _parts(target)
      _check_shapes(saved, _shapes(wanted), folder, _OTHER_RUN if workdir else _THIS_RUN)
      args = {
        name: ocp.args.PyTreeRestore(
          item=tree, restore_args=ocp.checkpoint_utils.construct_restore_args(tree)
        )
        for name, tree in wanted.items()
      }
      got = self._checkpointer.restore(folder, args=ocp.args.Composite(**args))
      return target.replace(**{k: got[k] for k in wanted if k != 'rest'}, **got['rest'])

  def close(self) -> None:
    """Waits for the last save and ends the threads. A failed save is printed, not raised."""
    try:
      self.wait()
      self._checkpointer.close()
    except Exception as e:  # any storage error; if the folder is gone, the lock says so
      if storage.is_remote(self._folder) or self._folder.parent.exists():
        print(f'WARNING: the last checkpoint could not be written: {errors.named(e)}')

  def _seal(self):
    """Writes the sha256 of every file, in Orbax's thread between the last byte and the commit."""
    step, held_out_loss, phase_first_step, score = self._saving
    named = re.compile(rf'{step}(\.orbax-checkpoint-tmp.*)?')
    folder = next(p for p in self._folder.iterdir() if named.fullmatch(p.name))
    storage.write_json(folder / step_folders.RUN, self.run)
    storage.write_json(
      folder / step_folders.MANIFEST,
      {
        'step': step,
        'held_out_loss': held_out_loss,
        'phase_first_step': phase_first_step,
        **({'score': score[0]} if score else {}),
        **({'words': self._keep_at[step]} if step in self._keep_at else {}),
        'files': {name: storage.sha256(folder / name) for name in step_folders.files(folder)},
      },
    )

  def _prune(self):
    present = step_folders.steps(self._folder.parent)
    kept = {*present[-self._keep :], step_folders.best(self._folder.parent), *self._keep_at}
    kept |= {s for s in present if self._keep_every and s % self._keep_every == 0}
    for step in present:
      if step not in kept:
        step_folders.delete(self._folder / str(step))


def load_params(address: str) -> tuple[dict, int, str]:
  """(nested dict of numpy arrays, step, workdir) of the parameters at W (newest sound checkpoint),
  W@STEP or W@best; needs no mesh. W@ema gives their exponential average, and W@average:K the mean
  of the newest K kept checkpoints, both also followed by @STEP or @best. Raises UserError for no
  such workdir or step, or a damaged one, TransientError if the storage does not answer.
  """
  with storage.reading(f'The checkpoint {address}'):
    workdir, step, kind = locate(address)
    folder = storage.absolute(workdir) / step_folders.FOLDER
    if kind is None:
      return _read(folder / str(step), 'params'), step, workdir
    if kind != 'ema':
      return _mean(folder, averaged(workdir, step, kind)), step, workdir
    if not (folder / str(step) / 'average').exists():
      raise errors.UserError(
        f'{workdir} has no average of the weights: it was trained with config.ema=0. Give '
        f'{workdir}@average:K for the mean of checkpoints.'
      )
    return _read(folder / str(step), 'average'), step, workdir


def locate(address: str) -> tuple[str, int, str | None]:
  """(workdir, step, kind of `parse_address`) of a sound checkpoint. Errors: see `load_params`."""
  with storage.reading(f'The checkpoint {address}'):
    workdir, which, kind = parse_address(address)
    folders.check_links(workdir)
    folder, present = storage.absolute(workdir) / step_folders.FOLDER, step_folders.steps(workdir)
    if not present:
      problem = 'has no checkpoint: is it the --workdir of a run that has saved once?'
      if unmarked := step_folders.unmarked(folder):
        problem = f'has checkpoints without commit markers (steps {", ".join(unmarked)}): run its '
        problem += 'pretrain command once, which checks and marks them, or copy all files again.'
      elif below := step_folders.below(workdir):
        some = ', '.join(below[:5]) + ', …' * (len(below) > 5)
        problem = f'has no checkpoint, but runs in it have: give one of them, {some}.'
      raise errors.UserError(f'{workdir} {problem}')
    available = f'There is: {", ".join(map(str, present))}.'
    if which == 'best':
      step = step_folders.best(workdir)
      if step is None:
        raise errors.UserError(
          f'{workdir} has no best checkpoint, since none was evaluated. {available}'
        )
    elif which is not None:
      step = int(which)
      if step not in present:
        raise errors.UserError(f'{workdir} has no checkpoint of step {step}. {available}')
    else:
      step = next((s for s in reversed(present) if step_folders.sound(folder / str(s))), None)
      if step is None:
        raise errors.UserError(
          f'All checkpoints of {workdir} are damaged (steps {", ".join(map(str, present))}).'
        )
    if which is not None and (problem := step_folders.verify(folder / str(step))):
      raise errors.UserError(f'Checkpoint {step} of {workdir} is damaged: {problem}. {available}')
    return workdir, step, kind


def averaged(workdir, step: int, kind: str) -> list[int]:
  """The steps that W@average:K@STEP averages; kind: 'average:K'. Raises UserError for too few."""
  present = [s for s in step_folders.steps(workdir) if s <= step]
  count = int(kind.partition(':')[2])
  if len(present) < count:
    raise errors.UserError(
      f'{workdir} has {len(present)} checkpoints up to step {present[-1]} ('
      f'{", ".join(map(str, present))}), and {kind} needs {count}: raise run.keep, or average '
      'fewer.'
    )
  return present[-count:]


def _mean(folder, steps):
  """The mean of the parameters at some steps, added up in float64."""
  total, shapes = None, None
  for step in steps:
    if problem := step_folders.verify(folder / str(step)):
      raise errors.UserError(f'Checkpoint {step} of {folder.parent} is damaged: {problem}.')
    params = jax.tree.map(lambda x: x.astype(np.float64), _read(folder / str(step), 'params'))
    if total is not None and jax.tree.map(np.shape, params) != shapes:
      raise errors.UserError(
        f'The last {len(steps)} checkpoints of {folder.parent} are of phases with other '
        'parameters: average fewer.'
      )
    shapes = jax.tree.map(np.shape, params)
    total = params if total is None else jax.tree.map(np.add, total, params)
  return jax.tree.map(lambda x: (x / len(steps)).astype(np.float32), total)


def parse_address(address: str) -> tuple[str, str | None, str | None]:
  """(workdir; step, 'best' or None; 'ema', 'average:K' or None) of W, W@STEP, W@best, W@ema,
  W@ema@STEP …. A folder whose name has an @ comes first. Raises UserError for another @.
  """
  address = os.fspath(address)
  workdir, which, kind = address, None, None
  while '@' in workdir and (storage.is_remote(workdir) or not storage.path(workdir).exists()):
    before, _, word = workdir.rpartition('@')
    if kind is None and re.fullmatch('ema|average:[1-9][0-9]*', word):
      kind = word
    elif which is None and re.fullmatch('best|[0-9]+', word):
      which = word
    elif kind or which:
      break
    else:
      raise errors.UserError(
        f'{address!r} is no checkpoint address: write WORKDIR, WORKDIR@STEP or WORKDIR@best; for '
        'averages WORKDIR@ema or WORKDIR@average:K, each also followed by @STEP.'
      )
    workdir = before
  return workdir, which, kind


def at_step(address: str, step: int) -> str:
  """The address with its step filled in."""
  workdir, _, kind = parse_address(address)
  return f'{workdir}@{kind}@{step}' if kind else f'{workdir}@{step}'


def shapes(state) -> dict[str, list[int]]:
  """{path: shape} of every array of a state."""
  return _shapes(_parts(state))


def _shapes(parts):
  return {trees.path_of(p): list(x.shape) for p, x in jax.tree_util.tree_leaves_with_path(parts)}


def _parts(state):
  return {
    **({'average': state.average} if state.average else {}),
    'params': state.params,
    'rest': {
      'step': state.step,
      'opt_state': state.opt_state,
      'carry': state.carry,
      'nonfinite': state.nonfinite,
      'spikes': state.spikes,
    },
  }


def _read(folder, part):
  _quiet()
  with _decoding(folder), ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
    tree = reader.metadata(folder / part).item_metadata.tree
    as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
    return reader.restore(folder / part, args=ocp.args.PyTreeRestore(restore_args=as_numpy))


@contextlib.contextmanager
def _decoding(folder):
  """Turns a decoding error into a sentence: checksums match, but the files are no checkpoint."""
  try:
    with storage.reading(f'The checkpoint {folder}'):
      yield
  except (*errors.UNREADABLE, FileNotFoundError) as e:
    if distributed.comes_from_another(e):
      raise
    # the first answer of a store had the right sums
    on_the_way = storage.is_remote(folder)
    raise (errors.TransientError if on_the_way else errors.UserError)(
      f'{folder} is no checkpoint that can be read ({errors.named(e, 200)}): '
      + 'run the same command again. If this comes back, ' * on_the_way
      + 'use the one before, or the version that wrote it.'
    ) from e


def _check_shapes(saved, wanted, folder, remedy):
  if lines := [
    f'{k}: {saved[k]} saved, {wanted[k]} expected'
    for k in sorted(saved.keys() & wanted.keys())
    if saved[k] != wanted[k]
  ]:
    raise errors.UserError(f'{folder} has other shapes ({len(lines)}), as {lines[0]}: {remedy}.')
  if other := sorted(saved.keys() ^ wanted.keys()):
    where = 'saved and not expected' if other[0] in saved else 'expected and not saved'
    raise errors.UserError(
      f'{folder} has other arrays ({len(other)}), as {other[0]}, {where}: {remedy}.'
    )


def _from_first_process(value):
  if jax.process_count() == 1:
    return value
  from jax.experimental import multihost_utils

  return multihost_utils.broadcast_one_to_all(np.int64(value))


def _quiet():
  """Silences Orbax, which logs dozens of lines per save. --verbosity=0 shows them at failures."""
  absl_logging.set_verbosity(min(absl_logging.get_verbosity(), absl_logging.WARNING))
  absl_logging.get_absl_logger().addFilter(_wanted)
  _quiet_threads()


def _wanted(record) -> bool:
  return absl_logging.get_verbosity() > absl_logging.WARNING or 'orbax' not in record.pathname


@functools.cache  # once in a process
def _quiet_threads():
  """Silences the stack traces of threads and of the closed event loop after a failed write."""
  before = sys.unraisablehook

  def hook(unraisable):
    if str(unraisable.exc_value) != 'Event loop is closed':
      before(unraisable)

  sys.unraisablehook = hook
  logging.getLogger('asyncio').setLevel(logging.CRITICAL)


@contextlib.contextmanager
def _named_errors(folder):
  """Raises OSError for an error of the disk, which tensorstore raises as a long ValueError."""
  try:
    yield
  except ValueError as e:
    match = re.search(r"os_error_code='(\d+)'", str(e))
    if not match:
      raise
    raise OSError(int(match[1]), os.strerror(int(match[1])), str(folder)) from e
