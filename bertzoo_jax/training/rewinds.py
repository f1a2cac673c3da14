"""Going back: steps that a run leaves out because its loss or gradient norm spiked there.

WORKDIR/skipped.json   a list of {"noticed": step, "steps": [...], "done": bool}, one for each time
                       the run went back; steps are numbered as in the metrics, from 1

An entry is written before the run goes back, and is done when the checkpoints that contain one of
its steps are gone. So a run that is killed in between goes back when it is resumed, and leaves out
the same steps.
"""

from typing import NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage

FILE = 'skipped.json'
MOST = 10  # times that a run goes back
_ROOM = 1 << 16  # numbers with which process 0 tells the other hosts


class Rewind(Exception):
  """Ends an attempt that goes back. The next one begins with `finish`, as every attempt does."""


class Skipped(NamedTuple):
  """steps: that the run leaves out. times: it went back for them."""

  steps: frozenset
  times: int


NOTHING = Skipped(frozenset(), 0)


def go_back(workdir, skipped: Skipped, steps: list[int], noticed: int) -> None:
  """Stores the steps that are to be left out, and raises Rewind; Stopped if the run has gone back
  MOST times. All hosts must call it.

  Args:
    workdir: of the run.
    skipped: what it leaves out so far.
    steps: to leave out from now on.
    noticed: the step up to which they are known.
  """
  if skipped.times >= MOST:
    raise errors.Stopped(
      f'Step {steps[0]:,} has a spike, and the run has gone back {skipped.times} times ({FILE} in '
      'the workdir lists the steps that it leaves out). The last checkpoint before it is kept. Try '
      'a lower learning rate or clipping (optimizer.clip_norm); run.on_spike=report '
      'continues without going back.'
    )
  if jax.process_index() == 0:
    entry = {'noticed': noticed, 'steps': steps, 'done': False}
    storage.write_json(storage.path(workdir) / FILE, [*_entries(workdir), entry])
  raise Rewind


def finish(workdir, checkpoints) -> Skipped:
  """Deletes the checkpoints that contain a step that is to be left out since the run went back, and
  returns all such steps. All hosts must call it.
  """
  told = np.zeros(_ROOM, np.int32)
  if jax.process_index() == 0:
    entries = _entries(workdir)
    open_ones = [e for e in entries if not e['done']]
    for entry in open_ones:
      checkpoints.forget_from(min(entry['steps']))
    if open_ones:
      storage.write_json(storage.path(workdir) / FILE, [{**e, 'done': True} for e in entries])
    steps = sorted({s for e in entries for s in e['steps']})
    told[: 2 + len(steps)] = [len(entries), len(steps), *steps]
  if jax.process_count() > 1:
    told = np.asarray(multihost_utils.broadcast_one_to_all(told))
  times, count = int(told[0]), int(told[1])
  return Skipped(frozenset(told[2 : 2 + count].tolist()), times)


def _entries(workdir) -> list[dict]:
  path = storage.path(workdir) / FILE
  if not path.exists():
    return []
  try:
    found = storage.read_json(path)
    entries = [{**e, 'steps': [int(s) for s in e['steps']], 'done': bool(e['done'])} for e in found]
    if any(min(e['steps'], default=0) < 1 for e in entries):
      raise ValueError('each entry needs steps, from 1')
    return entries
  except (ValueError, KeyError, TypeError) as e:
    raise errors.UserError(
      f'{path} cannot be read ({type(e).__name__}): it lists the steps that this run leaves out. '
      'Bring it back, or delete it to train on them.'
    ) from e
