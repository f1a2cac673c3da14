"""Which columns of a file hold the texts, the label and the name of an example."""

import dataclasses

from bertzoo_jax.common import errors

OPTIONAL = '?'  # behind a name of what may be absent


@dataclasses.dataclass(frozen=True)
class Found:
  """Names of the columns that a file has for what a config asks for."""

  a: str
  b: str
  label: tuple[str, ...]
  example: str
  where: dict[str, str]


class Names:
  """The columns that a config names, held against the columns that each file has."""

  def __init__(self, text_a, text_b, label, example, where, fixed=False):
    """fixed: the names are those of a trained network, so that a file has to have them."""
    self._a, self._b, self._label, self._example, self._where = (
      text_a,
      text_b,
      label,
      example,
      where,
    )
    self._fixed = fixed
    self._found, self._known = {}, {}

  def without_label(self) -> 'Names':
    """For a file to predict."""
    return Names(self._a, self._b, '', self._example, (), fixed=True)

  def wanted(self, known: list[str], path, split: str) -> list[str]:
    """The columns to read of a file. Raises UserError if it lacks one."""
    if not self._a:
      raise errors.UserError(
        f'config.source.text_a is empty: name the column of the text, --config.source.text_a=NAME. '
        f'{path} has {_listed(known)}.'
      )
    a = _choose(self._a, known, path, 'text_a', self._fixed)
    b = _choose(self._b, known, path, 'text_b', self._fixed) if self._b else ''
    label = ()
    if self._label and not split.startswith('test'):
      label = _chosen_labels(self._label, known, path)
    elif self._label:
      try:
        label = _chosen_labels(self._label, known, path)
      except errors.UserError:
        label = ()  # most test files have no labels
    example = next((n for n in _bare(self._example).split('|') if n in known), '')
    where = {_bare(column): value for column, value in self._where if _bare(column) in known}
    self._found[split] = Found(a, b, label, example, where)
    self._known.update(dict.fromkeys(known))
    return list(dict.fromkeys([n for n in (a, b, *label, example, *where) if n]))

  def found(self, split) -> Found:
    return self._found[split]

  def check_example(self, place):
    """Raises UserError if no file has a column that names examples or chooses rows."""
    for field, names in (
      ('example', self._example.split('|')),
      *(('where', [column]) for column, _ in self._where),
    ):
      optional = names[-1].endswith(OPTIONAL)
      if any(names) and not optional and not any(name in self._known for name in names):
        raise errors.UserError(
          f'config.source.{field} names the column {"|".join(names)!r}, and no file of {place} has '
          f'it.{errors.did_you_mean(names[0], self._known)}'
        )


def _bare(name) -> str:
  return name.removesuffix(OPTIONAL)


def _choose(names, known, path, field, fixed=False) -> str:
  """The first of 'NAME|NAME' that a file has."""
  if names in known:
    return names
  for name in names.split('|'):
    if name in known:
      return name
  raise errors.UserError(
    f'config.source.{field} names the column {names!r}, and {path} has {_listed(known)}.'
    f'{errors.did_you_mean(names, known, listed=True) if len(known) > 1 else ""} '
    + (
      f'Rename its column to {names.split("|")[0]!r}.'
      if fixed
      else f'Set --config.source.{field} to one of them.'
    )
  )


def _chosen_labels(names, known, path) -> tuple[str, ...]:
  if names in known:
    return (names,)
  return _once(_choose(name, known, path, 'label') for name in label_names(names))


def label_names(names) -> tuple[str, ...]:
  return _once(name.strip() for name in names.split(',') if name.strip())


def _once(names) -> tuple[str, ...]:
  names = tuple(names)
  if twice := [name for name in names if names.count(name) > 1]:
    raise errors.UserError(f'config.source.label names {twice[0]!r} twice: name each column once.')
  return names


def _listed(known) -> str:
  shown = [repr(name if len(name) < 40 else name[:39] + '…') for name in list(known)[:50]]
  return f'the column{"s" if len(shown) != 1 else ""} {", ".join(shown) or "(none)"}'
