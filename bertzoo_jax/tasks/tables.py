"""One table file as the examples of a split."""

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.tasks import rows
from bertzoo_jax.tasks.examples import Examples


def unlabelled(path, names, **form) -> Examples:
  """The examples of a table without labels.

  names: columns.Names. form: how a text file is read (rows.read).
  """
  path = storage.path(path)
  return examples(bytes_of(path), path, 'test', names, form)[0]


def bytes_of(path) -> bytes:
  """The bytes of a file. Raises UserError if there is none."""
  with storage.reading(path):
    try:
      return path.read_bytes()
    except (FileNotFoundError, IsADirectoryError) as e:
      raise errors.UserError(
        f'There is no file {path}: give the path of a table ({", ".join(rows.SUFFIXES)}).'
      ) from e


def examples(data, path, split, names, form):
  """(Examples of one file, notes about rows that were left out).

  Args:
    data: its bytes.
    path: where it is.
    split: name.
    names: columns.Names.
    form: how a text file is read (rows.read).
  """
  read = rows.read(data, path, lambda known: names.wanted(known, path, split), **form)
  if not read.numbers:
    raise errors.UserError(f'{path} has no examples: copy the file again.')
  found, kept = names.found(split), range(len(read.numbers))
  if found.where:
    kept = [
      i
      for i in kept
      if all(read.values[column][i] == value for column, value in found.where.items())
    ]
    if not kept:
      raise errors.UserError(f'{path} has no row that config.source.where asks for.')
  notes = [
    f'{split}: {many:,} {read.unit}{"s" if many > 1 else ""} of {path.name} {reason} left out, '
    f'the first is {read.unit} {place}.'
    for reason, (many, place) in read.left_out.items()
  ]
  column = read.values
  return Examples(
    a=[column[found.a][i] for i in kept],
    b=[column[found.b][i] for i in kept] if found.b else None,
    labels=[tuple(column[name][i].strip() for name in found.label) for i in kept]
    if found.label
    else None,
    ids=[column[found.example][i].strip() if found.example else str(read.numbers[i]) for i in kept],
    places=[f'{path.name}, {read.unit} {read.places[i]}' for i in kept],
  ), notes
