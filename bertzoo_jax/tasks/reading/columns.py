"""Which columns of a file hold the texts, the label and the name of an example."""

import dataclasses

from bertzoo_jax.common import errors
from bertzoo_jax.tasks.examples import UNLABELLED
from bertzoo_jax.tasks.examples import Examples
from bertzoo_jax.tasks.reading import files
from bertzoo_jax.tasks.reading import tables


def choose(field, names, known, path, needed=True, fixed=False) -> str:
  """The column of a file for a field of config.source: the first of 'NAME|NAME' that it has, ''
  for none. Raises UserError if there is none and the field is needed.

  fixed: the names come from a trained network, so a file must have them.
  """
  for name in (names, names.removesuffix(files.OPTIONAL)):
    for one in (name, *name.split('|')):
      if one and one in known:
        return one
  if not names or not needed:
    return ''
  raise errors.UserError(
    f'config.source.{field} names the column {names!r}, and {path} has {_listed(known)}.'
    f'{errors.did_you_mean(names, known, listed=True) if len(known) > 1 else ""} '
    + (
      f'Rename its column to {names.split("|")[0]!r}.'
      if fixed
      else f'Set --config.source.{field} to one of them.'
    )
  )


def is_optional(names) -> bool:
  return not names or names.endswith(files.OPTIONAL)


def label_names(names) -> tuple[str, ...]:
  """The columns of config.source.label. Raises UserError if one is named twice."""
  return _once(name.strip() for name in names.split(',') if name.strip())


def _once(names) -> tuple[str, ...]:
  names = tuple(names)
  if twice := [name for name in names if names.count(name) > 1]:
    raise errors.UserError(f'config.source.label names {twice[0]!r} twice: name each column once.')
  return names


def _listed(known) -> str:
  shown = [repr(name if len(name) < 40 else name[:39] + '…') for name in list(known)[:50]]
  return f'the column{"s" if len(shown) != 1 else ""} {", ".join(shown) or "(none)"}'


@dataclasses.dataclass(frozen=True)
class Columns:
  """The columns of texts, label and name of an example that a config names: config.source."""

  text_a: str
  text_b: str
  label: str
  example: str
  where: tuple = ()

  @classmethod
  def of_fields(cls, fields) -> 'Columns':
    """The column names of config.source."""
    where = tuple(vars(fields).get('where', ()))
    return cls(fields.text_a, fields.text_b, fields.label, fields.example, where)

  def of(self, known, path, split) -> dict:
    """{key: column} of a file with these columns; the keys of labels are ('label', NUMBER), those
    of columns that choose rows ('where', NUMBER). Raises UserError if it lacks one.
    """
    if not self.text_a:
      raise errors.UserError(
        f'config.source.text_a is empty: name the column of the text, --config.source.text_a=NAME. '
        f'{path} has {_listed(known)}.'
      )
    unlabelled = split == UNLABELLED
    out = {
      field: choose(field, getattr(self, field), known, path, fixed=unlabelled)
      for field in ('text_a', 'text_b')
    }
    out['example'] = choose('example', self.example, known, path, needed=False)
    if not unlabelled:
      names = (self.label,) if self.label in known else label_names(self.label)
      labels = [choose('label', n, known, path, not split.startswith('test')) for n in names]
      if all(labels):  # most test files have no labels
        out |= {('label', i): name for i, name in enumerate(_once(labels))}
      for i, (column, _) in enumerate(self.where):
        out['where', i] = choose('where', column, known, path, needed=False)
    return {key: name for key, name in out.items() if name}

  def check(self, known, place):
    """Raises UserError if no file has a column that config.source names. known: of all files."""
    for field, names in (('example', self.example), *(('where', c) for c, _ in self.where)):
      if not is_optional(names) and not choose(field, names, known, place, needed=False):
        raise errors.UserError(
          f'config.source.{field} names the column {names!r}, and no file of {place} has it.'
          f'{errors.did_you_mean(names.split("|")[0], known)}'
        )

  def read(self, path, split, digest, form=tables.AUTO) -> tables.Table:
    """The table of a file with these columns; see files.bytes_of and tables.read."""
    data = files.bytes_of(path, digest, split)
    return tables.read(data, path, lambda names: self.of(names, path, split), form)

  def examples(self, table: tables.Table) -> Examples:
    """The rows of a table that `of` has chosen. Raises UserError if `where` leaves none."""
    labels = [
      [label.strip() for label in table.texts(key, tables.as_label)]
      for key in table.columns
      if key[0] == 'label'
    ]
    ids = table.texts('example') if 'example' in table.columns else map(str, table.numbers)
    out = Examples(
      a=table.texts('text_a'),
      b=table.texts('text_b') if 'text_b' in table.columns else None,
      labels=list(zip(*labels)) if labels else None,
      ids=[name.strip() for name in ids],
      places=[table.place(i) for i in range(len(table))],
    )
    wanted = [
      (table.texts(('where', i)), value)
      for i, (_, value) in enumerate(self.where)
      if ('where', i) in table.columns
    ]
    if not wanted:
      return out
    kept = [i for i in range(len(out)) if all(texts[i] == value for texts, value in wanted)]
    if others := sorted({*range(len(out))} - {*kept}):
      reason = 'that config.source.where does not ask for'
      table.left_out.add(reason, table.places[others[0]], len(others))
    if not kept:
      raise errors.UserError(f'{table.file} has no row that config.source.where asks for.')
    return out.take(kept)
