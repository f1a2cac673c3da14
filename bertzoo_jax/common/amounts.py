"""How much of each corpus the steps of a run read, in epochs and words; steps for given amounts."""

import bisect
import fractions
import re
from typing import NamedTuple

from bertzoo_jax.common import errors

_UNITS = {'': 1, 'k': 10**3, 'M': 10**6, 'G': 10**9}


class Reading(NamedTuple):
  name: str  # name of the corpus; '' for a single one
  rows: int  # number of rows read
  per_epoch: int  # rows of an epoch
  words: int | None  # words of the train split, separated by blanks; None if not counted

  @property
  def epochs(self) -> fractions.Fraction:
    return fractions.Fraction(self.rows, self.per_epoch)


def describe(readings) -> str:
  """The epochs of each corpus, for the user."""
  return ', '.join(
    f'{r.name} {r.epochs:.2f} epochs of {r.per_epoch:,} rows'.lstrip() for r in readings
  )


def words(readings) -> fractions.Fraction:
  """Number of words read: an epoch of a corpus has all its words, each row an equal share."""
  return sum((r.epochs * r.words for r in readings), fractions.Fraction(0))


def numbers(text: str) -> list[int] | None:
  """The numbers of words in run.keep_words, ascending; None for a text of another form."""
  if not isinstance(text, str):
    return None
  result = set()
  for part in text.split(',') if text else ():
    ends = [re.fullmatch(r'([1-9][0-9]*)([kMG]?)', end) for end in part.strip().split('..')]
    if not all(ends) or len(ends) > 2:
      return None
    ends = [int(end[1]) * _UNITS[end[2]] for end in ends]
    if ends[0] > ends[-1]:
      return None
    while ends[0] <= ends[-1]:
      result.add(ends[0])
      ends[0] += 10 ** (len(str(ends[0])) - 1)
      if len(ends) == 1:
        break
  return sorted(result)


def revision(number: int) -> str:
  """'chck_1M': BabyLM's name of the checkpoint after so many words seen."""
  unit = next(u for u in ('M', 'k', '') if not number % _UNITS[u])
  return f'chck_{number // _UNITS[unit]}{unit}'


def kept(text: str, phases, reads, end: int) -> dict[int, list[int]]:
  """{step: numbers of words} of run.keep_words: the first step, at most `end`, after which a run
  has read each number.

  phases: of the run. reads: {index of a phase: `read` of its rows}. Raises UserError if words were
  not counted.
  """
  steps_of, before = {}, fractions.Fraction(0)
  wanted = numbers(text)
  for phase in phases if wanted else ():
    read = reads[phase.index]
    if any(r.words is None for r in read(1)):
      raise errors.UserError(
        'run.keep_words counts words, and this text has no count of them: set '
        "--config.run.keep_words=''."
      )
    seen = lambda steps, read=read, before=before: before + words(read(steps))
    for number in wanted:
      steps = bisect.bisect_left(range(phase.steps + 1), number, key=seen)
      if 0 < steps <= phase.steps and phase.first_step + steps <= end:
        steps_of.setdefault(phase.first_step + steps, []).append(number)
    before = seen(phase.steps)
  return steps_of


def with_epoch_steps(config, phases, reads):
  """The config, with the steps of its last phase set by config.epochs. Arguments: see `kept`."""
  limit, done = fractions.Fraction(str(config.epochs)), {}
  *earlier, last = phases
  for phase in earlier:
    for r in reads[phase.index](phase.steps):
      done[r.name] = done.get(r.name, 0) + r.epochs
  read, rows = reads[last.index], last.config.batch_size
  most = lambda steps: max(done.get(r.name, 0) + r.epochs for r in read(steps))
  bound = int(limit * sum(r.per_epoch for r in read(1)) / rows) + 1
  steps = bisect.bisect_right(range(bound + 1), limit, key=most) - 1
  if steps < 1:
    raise errors.UserError(
      f'config.epochs is {config.epochs:g}, which ends before phase {last.index} has a step: '
      'raise it, prepare more text, or lower config.batch_size.'
    )
  out = config.copy_and_resolve_references().unlock()
  out.phases = (*config.phases[:-1], (steps, config.phases[-1][1]))
  return out.lock()
