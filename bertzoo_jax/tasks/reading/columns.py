"""Which columns of a file hold the texts, the label and the name of an example."""

import dataclasses
import re
from typing import Any

from bertzoo_jax.common import errors
from bertzoo_jax.tasks import examples
from bertzoo_jax.tasks.reading import files
from bertzoo_jax.tasks.reading import tables

_SLOT = re.compile(r'\{(.+?)\}')  # a column in a text of several


def choose(field, names, known, path, needed=True, fixed=False) -> str:
  """The column of a file for a field of config.source: the first of 'NAME|NAME' that it has, or ''.
  fixed: names of a trained network. Raises UserError without a column that is needed.
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


def chosen(fields, names, known, path, optional=()) -> dict:
  """{field: column} of a file for these fields of config.source, without those it lacks. Raises
  UserError if one is missing that is not optional.
  """
  out = {}
  for field in names:
    needed = field not in optional and not is_optional(getattr(fields, field))
    out[field] = choose(field, getattr(fields, field), known, path, needed)
  return {field: name for field, name in out.items() if name}


@dataclasses.dataclass(frozen=True)
class Columns:
  """The columns of texts, label and name of an example that a config names.

  fields: of config.source. known: names of the columns of all files read.
  """

  fields: Any
  known: dict = dataclasses.field(default_factory=dict)

  @property
  def where(self):
    return tuple(getattr(self.fields, 'where', ()))

  def about(self) -> dict:
    """Fields of the Source about labels."""
    fields = self.fields
    return dict(
      labels=tuple(fields.labels),
      label_columns=label_names(fields.label),
      leave_out=tuple(fields.leave_out),
      stratified=fields.stratified,
    )

  def select(self, known, path, split) -> dict:
    """{key: column} of a file with these columns. The keys are 'example' and (FIELD, NUMBER), with
    the fields text_a, text_b, negative, label and where. Raises UserError if the file lacks one.
    """
    fields = self.fields
    if not fields.text_a:
      raise errors.UserError(
        f'config.source.text_a is empty: name the column of the text, --config.source.text_a=NAME. '
        f'{path} has {_listed(known)}.'
      )
    unlabelled = split == examples.UNLABELLED
    out = {}
    for field in ('text_a', 'text_b'):
      names = getattr(fields, field)
      for i, name in enumerate(_SLOT.findall(names) or [names]):
        out[field, i] = choose(field, name, known, path, fixed=unlabelled)
    for i, name in enumerate(label_names(getattr(fields, 'negatives', ''))):
      out['negative', i] = choose('negatives', name, known, path, fixed=unlabelled)
    out['example'] = choose('example', fields.example, known, path, needed=False)
    if not unlabelled:
      names = (fields.label,) if fields.label in known else label_names(fields.label)
      labels = [choose('label', n, known, path, not split.startswith('test')) for n in names]
      if all(labels):  # most test files have no labels
        out |= {('label', i): name for i, name in enumerate(_once(labels))}
      for i, (column, _) in enumerate(self.where):
        out['where', i] = choose('where', column, known, path, needed=False)
    self.known.update(dict.fromkeys(known))
    return {key: name for key, name in out.items() if name}

  def check(self, place):
    """Raises UserError if files were read, and none has a column that config.source names."""
    known = self.known
    for field, names in (('example', self.fields.example), *(('where', c) for c, _ in self.where)):
      if known and not is_optional(names) and not choose(field, names, known, place, needed=False):
        raise errors.UserError(
          f'config.source.{field} names the column {names!r}, and no file of {place} has it.'
          f'{errors.did_you_mean(names.split("|")[0], known)}'
        )

  def record(self, row: tables.Row) -> examples.Record | examples.Skipped:
    """The example of a row of a table whose columns `select` has chosen."""
    for i, (_, value) in enumerate(self.where):
      if ('where', i) in row.values and row.text(('where', i)) != value:
        alone = 'row that config.source.where asks for.'
        return examples.Skipped(row.place, 'that config.source.where does not ask for', alone=alone)
    labels, negatives = ([k for k in row.values if k[0] == x] for x in ('label', 'negative'))
    # positives have no score
    without = () if hasattr(self.fields, 'negatives') and not self.fields.label else None
    value = examples.Text(
      self._text(row, 'text_a'),
      self._text(row, 'text_b') if ('text_b', 0) in row.values else None,
      tuple(row.text(key, tables.as_label).strip() for key in labels) if labels else without,
      tuple(map(row.text, negatives)),
    )
    return examples.Record(
      row.place, row.text('example').strip() if 'example' in row.values else None, value
    )

  def _text(self, row, field) -> str:
    names = getattr(self.fields, field)
    if not _SLOT.search(names):
      return row.text((field, 0))
    texts = iter([row.text(key) for key in row.values if key[0] == field])
    return _SLOT.sub(lambda _: next(texts), names)

  def layout(self, file):
    """The layout `table`, see reader.File."""
    choose = lambda names: self.select(names, file.path, file.split)
    return tables.records(file, choose, self.record, file.fields)
