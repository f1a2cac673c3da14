"""Errors that end a program with one sentence: mistakes that a user can mend, and failures that may
pass.
"""

import contextlib
import difflib
import os
import re
import resource

# Controls except tab and end of line; then those that change the direction of the text after them.
_CONTROLS = re.compile('[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]')


def printable(text: str) -> str:
  """A text of unknown origin, with its terminal control characters escaped as \\uXXXX."""
  return _CONTROLS.sub(lambda match: f'\\u{ord(match[0]):04x}', text)


class UserError(Exception):
  """A user's mistake, and the remedy, in one sentence. Entry points print it, exit with `code`."""

  code = 2

  def __str__(self):
    return printable(super().__str__())


class TransientError(UserError):
  """A failure of a disk, network or process that may have passed when the command is rerun."""

  code = os.EX_TEMPFAIL


class Stopped(UserError):
  """A run that must not continue: the same command would fail in the same way. The message says
  why, and which checkpoint remains.
  """

  code = 3


class Diverged(Stopped):
  """A run with numbers that are not finite. The other runs of a grid continue."""


def near(word: str, known, cutoff=0.6) -> list[str]:
  """[the known name that a word misspells, or abbreviates by its initials ('lr')], or []. A word
  with dots, section.field, abbreviates only names of its section.
  """
  section, _, field = word.rpartition('.')
  pool = [name for name in known if name.rpartition('.')[0] == section] if section else list(known)
  initials = [n for n in pool if ''.join(w[:1] for w in n.rpartition('.')[2].split('_')) == field]
  if len(field) > 1 and initials and field not in pool:
    return initials[:1]
  return difflib.get_close_matches(word, known, n=1, cutoff=cutoff)


def words(e: BaseException, most: int | None = None) -> str:
  """The message of an error on one line, cut to a number of characters."""
  text = e.args[0] if isinstance(e, KeyError) and e.args else e
  return ' '.join(str(text).split())[:most]


def named(e: BaseException, most: int | None = None) -> str:
  """'Type: message', cut as in `words`."""
  return f'{type(e).__name__}: {words(e, most)}'


# Errors that code may raise when it walks through data of unknown origin.
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


@contextlib.contextmanager
def unreadable(sentence: str, *more, usual=UNREADABLE):
  """Turns errors of damaged or hostile data inside the `with` into a UserError. more: further types
  of errors. Panics of Rust libraries, which are not Exceptions, are always included.
  """
  try:
    yield
  except BaseException as e:
    known = isinstance(e, (*usual, *more)) or type(e).__name__ == 'PanicException'
    if isinstance(e, UserError) or not known:
      raise
    raise UserError(f'{sentence} ({named(e, 200)}).') from e


def needing(what: str, extra: str | None = None):
  """Inside the `with`, a missing package is a UserError: `what`, and the command that installs it.

  extra: the extra of setup.py that has the package.
  """
  return unreadable(f'{what}: {install(extra)}' if extra else what, usual=(ImportError,))


def install(extra: str) -> str:
  """The command line that installs the packages of an extra of setup.py."""
  return f"pip install 'bertzoo-jax[{extra}]'"


def no_memory(e: BaseException | None) -> str | None:
  """The sentence for an error of a process without memory; None for another error."""
  markers = ("can't start new thread", 'failed to map segment', 'Cannot allocate memory')
  for one in causes(e):
    if isinstance(one, MemoryError) or any(part in str(one) for part in markers):
      limit = resource.getrlimit(resource.RLIMIT_AS)[0]
      return f'This process ran out of memory ({named(one, 100)}' + (
        '). Close other programs, or take fewer --workers or a smaller batch.'
        if limit == resource.RLIM_INFINITY
        else f'): its address space is limited to {limit / 1e9:.1f} GB, and JAX reserves more than '
        'it uses. Run the same command after: ulimit -v unlimited.'
      )
  return None


def causes(e: BaseException | None):
  """Yields an error, the error that caused it, and so on."""
  while e is not None:
    yield e
    e = e.__cause__ or e.__context__


def damaged_corpus(what: str) -> UserError:
  """The error that the files of a corpus are damaged, with the remedy."""
  return UserError(f'{what}: copy the corpus again, or prepare it into a new folder.')


def refuse_pack_ids(names, where: str) -> None:
  """Raises UserError if a feature has its name from before: `segment_ids` were called `pack_ids`,
  and `token_type_ids` were called `segment_ids`. where: begins the sentence.
  """
  if 'pack_ids' in names:
    raise UserError(
      f'{where}: pack_ids are called segment_ids (0 padding, 1 the tokens of a first text), '
      'and token types, 0 and 1, are called token_type_ids: rename both.'
    )


def did_you_mean(word: str, known, listed=False) -> str:
  """' Did you mean X?' for a misspelt word, or the names to choose from.

  listed: whether the message lists the names already.
  """
  known = sorted(str(k) for k in known)
  if meant := near(str(word), known, cutoff=0.5):
    return f' Did you mean {meant[0]!r}?'
  return f' There is: {", ".join(known)}.' if known and not listed else ''


def choose(name: str, table: dict, what: str):
  """table[name], or a UserError that lists the names. what: the kind of the name ('activation')."""
  if name not in list(table):  # a list has no hash
    verb = 'are' if what in ('features', 'metrics') else 'is'
    raise UserError(f'No {what} {verb} called {name!r}.{did_you_mean(name, table)}')
  return table[name]
