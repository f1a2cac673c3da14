"""Folders of checkpoints: lists, verifies, marks, moves and deletes them.

checkpoint.py describes their files.
"""

import contextlib
import errno
import math
import os
import re

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage

FOLDER = 'checkpoints'
MANIFEST = 'sha256.json'
RUN = 'run.json'
_MARKER = 'commit_success.txt'

# Written or rewritten by the commit itself, and not read at restore.
_UNSUMMED = ('_CHECKPOINT_METADATA', _MARKER, MANIFEST)
_LEFTOVERS = ('orbax-checkpoint-tmp', '.deleting')


def steps(workdir) -> list[int]:
  """Steps that have a committed checkpoint, in order."""
  return sorted(map(int, _named(storage.absolute(workdir) / FOLDER, committed=True)))


def below(workdir) -> list[str]:
  """The runs with checkpoints two or three folders below, as fine-tuning leaves them."""
  folder = storage.path(workdir)
  if storage.is_remote(folder) or not folder.is_dir():
    return []
  nested = [p for depth in ('*/*', '*/*/*') for p in folder.glob(f'{depth}/{FOLDER}')]
  return sorted(str(p.parent) for p in nested if steps(p.parent))


def recorded(workdir) -> dict:
  """{'config', 'corpus'} of the run, from the newest checkpoint with a sound copy; {} if none."""
  for step in reversed(steps(workdir)):
    folder = storage.absolute(workdir) / FOLDER / str(step)
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
      if storage.has_sha256(folder / RUN, storage.read_json(folder / MANIFEST)['files'][RUN]):
        return dict(storage.read_json(folder / RUN))
  return {}


def ranks(workdir, phase_first_step: int | None = None) -> dict[int, float]:
  """{step: rank} of the checkpoints that were evaluated in one phase: the held-out loss, or where
  there is a score minus the score. The lowest is the best.

  Ranks that are not finite are left out. Those of two phases do not compare, since their objectives
  or lengths differ.

  phase_first_step: the first step of the phase; None: the newest phase that was evaluated.
  """
  phases = {}
  for step in steps(workdir):
    try:
      manifest = storage.read_json(storage.absolute(workdir) / FOLDER / str(step) / MANIFEST)
      first = manifest.get('phase_first_step', 0)
      rank = -manifest['score'] if 'score' in manifest else manifest['held_out_loss']
      if rank is not None and math.isfinite(rank):
        phases.setdefault(first, {})[step] = rank
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
      continue  # damaged: `verify` says so when somebody asks for it
  return phases.get(max(phases, default=0) if phase_first_step is None else phase_first_step, {})


def best(workdir) -> int | None:
  """The best step (`ranks`) in the newest phase that was evaluated, or None."""
  by_step = ranks(workdir)
  return min(by_step, key=lambda s: (by_step[s], s)) if by_step else None


def words(workdir) -> dict[int, int]:
  """{number of words: step} of the checkpoints that run.keep_words keeps."""
  steps_of = {}
  for step in steps(workdir):
    with contextlib.suppress(OSError, *errors.UNREADABLE):
      manifest = storage.read_json(storage.absolute(workdir) / FOLDER / str(step) / MANIFEST)
      steps_of |= {int(number): step for number in manifest.get('words', ())}
  return dict(sorted(steps_of.items()))


def verify(folder) -> str | None:
  """None if every file of a checkpoint has the bytes that were written, else the problem as text.

  Files that the manifest does not list are ignored. A storage error that may pass is raised.
  """
  try:
    expected = dict(storage.read_json(folder / MANIFEST)['files'])
  except (OSError, ValueError, KeyError, TypeError) as e:
    _raise_if_passing(e)
    return f'{MANIFEST} cannot be read: {type(e).__name__}'
  name = 'a folder of it'
  try:
    if missing := sorted(expected.keys() - set(files(folder))):
      return f'{missing[0]} is missing'
    for name, digest in expected.items():
      if not storage.has_sha256(folder / name, digest):
        return f'{name} differs from the written file (sha256)'
  except OSError as e:
    _raise_if_passing(e)
    return f'{name} cannot be read: {type(e).__name__}'
  return None


def sound(folder) -> bool:
  if problem := verify(folder):
    print(f'WARNING: {folder} is damaged ({problem}); taking the one before.')
  return problem is None


def files(folder) -> list[str]:
  """Paths of the files that count, relative to the folder, in order."""
  root, out, stack = str(folder).rstrip('/') + '/', [], [folder]
  while stack:
    for p in stack.pop().iterdir():
      if p.is_dir() and not os.path.islink(p):  # links may go round and round
        stack.append(p)
        continue
      storage.check_file(p)  # Orbax would open it
      if p.name not in _UNSUMMED:
        out.append(str(p).removeprefix(root))
  return sorted(out)


def unmarked(folder) -> list[str]:
  """Names of the step folders on gs:// that lack their commit markers."""
  return _named(folder, committed=False)


def _named(folder, committed: bool) -> list[str]:
  known = [p for p in folder.iterdir() if is_step(p.name)] if folder.exists() else []
  return [p.name for p in known if p.is_dir() and _is_committed(p) == committed]


def _is_committed(folder) -> bool:
  import orbax.checkpoint as ocp  # with jax: no command's --help waits for it

  committed = lambda: ocp.utils.is_checkpoint_finalized(folder)
  return storage.read_twice(committed, folder) if storage.is_remote(folder) else committed()


def is_step(name: str) -> bool:
  """Whether a folder's name is a step: '12', but neither '²' nor '012'."""
  return bool(re.fullmatch(r'0|[1-9][0-9]{0,17}', name))


def clean(folder):
  """Removes half-written and half-deleted files that a killed process left."""
  for p in folder.iterdir():
    if any(mark in p.name for mark in _LEFTOVERS):
      _remove(p)
  for name in unmarked(folder):
    problem = verify(folder / name)
    if problem is None:
      _mark(folder / name)
      print(
        f'Checkpoint {name} had no commit marker (copied from a disk, or its save was killed at '
        'the very end). All its files match their checksums: it is marked and used.'
      )
    else:
      aside = move_aside(folder / name, 'unfinished')
      print(
        f'WARNING: checkpoint {name} has no commit marker and is incomplete ({problem}): its save '
        f'was killed, or its copy was not finished. It is not used; it is now {aside}.'
      )


def delete(folder):
  """Deletes a checkpoint; on a disk it renames first: a kill leaves nothing like a checkpoint."""
  if not storage.is_remote(folder):
    folder = folder.rename(folder.parent / f'{folder.name}.deleting')
  _remove(folder)


def move_aside(folder, why):
  name, n = folder.parent / f'{folder.name}.{why}', 1
  while name.exists():
    n += 1
    name = folder.parent / f'{folder.name}.{why}{n}'
  folder.rename(name)
  return name


def _raise_if_passing(e):
  """Raises a storage error that may pass; a sector that cannot be read (EIO) is damage."""
  if isinstance(e, OSError) and e.errno != errno.EIO and storage.may_pass(e):
    raise e


def _mark(folder):
  """Ends the commit of a step of gs:// as Orbax does: a marker in each of its folders."""
  for part in (*(p for p in folder.iterdir() if p.is_dir()), folder):
    if not (part / _MARKER).exists():
      (part / _MARKER).write_text(f'Checkpoint commit was successful to {part}')


def _remove(folder):
  try:
    folder.rmtree()
  except Exception as e:  # a link to elsewhere, another's file, a store: never worth the run
    print(f'WARNING: {folder} could not be removed: {e}')
