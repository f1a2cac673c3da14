"""Examples from datasets of tensorflow-datasets. TensorFlow is imported only when one is read."""

import hashlib

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.common import trust
from bertzoo_jax.tasks import columns as column_names
from bertzoo_jax.tasks import rows
from bertzoo_jax.tasks import tables
from bertzoo_jax.tasks import tagged
from bertzoo_jax.tasks.examples import TRAIN
from bertzoo_jax.tasks.examples import Examples
from bertzoo_jax.tasks.examples import Source


def tfds(
  task_dir,
  *,
  dataset,
  splits,
  text_a,
  text_b,
  label,
  example,
  labels,
  leave_out,
  dev_share,
) -> Source:
  """A dataset of tensorflow-datasets.

  Args:
    task_dir: the folder of prepared datasets; '' for that of TensorFlow Datasets ($TFDS_DATA_DIR).

  Raises:
    UserError: no such dataset, split or feature; no TensorFlow.
  """
  names = column_names.Names(text_a, text_b, label, example, ())
  out, digest = {}, hashlib.sha256()
  for split, builder, part in _parts(dataset, splits, task_dir):
    out[split] = _examples(builder, part, split, names, tuple(labels))
    # a dataset has no file of its own to hash: name, version, and what was read
    read = '\x1f'.join([builder.info.full_name, part, *out[split].a, *(out[split].b or ())])
    digest.update(read.encode())
  names.check_example(dataset)

  def read(path) -> Examples:
    return tables.unlabelled(path, names.without_label())

  return Source(
    out,
    tuple(labels),
    column_names.label_names(label),
    tuple(leave_out),
    dev_share,
    digest.hexdigest(),
    (),
    read,
  )


def tfds_tags(
  task_dir, *, dataset, splits, words, tags, scheme, convert, labels, dev_share
) -> Source:
  """Tagged sentences of tensorflow-datasets. task_dir and errors: see `tfds`."""
  read, digest = {}, hashlib.sha256()
  for split, builder, part in _parts(dataset, splits, task_dir):
    read[split] = _tagged(builder, part, split, words, tags)
    said = '\x1f'.join([builder.info.full_name, part, *read[split].keys])
    digest.update(said.encode())
  out, notes = tagged.schemed(read, scheme, convert)

  def read_file(path):
    path = storage.path(path)
    data, form = tables.bytes_of(path), dict(word=0, layout='auto', separator='auto')
    return tagged.sentences(data, path, 'test', tag=None, **form)[0]

  return Source(
    out,
    tuple(labels),
    ('tag',),
    (),
    dev_share,
    digest.hexdigest(),
    tuple(notes),
    read_file,
  )


def _tagged(builder, part, split, words, tags) -> tagged.Tagged:
  """The sentences of one split."""
  features, where = builder.info.features, _where(builder, part)
  for field, name in (('words', words), ('tags', tags)):
    if name not in features:
      raise errors.UserError(
        f'config.source.{field} names the feature {name!r}, and {where} has '
        f'{", ".join(map(repr, features))}.{errors.did_you_mean(name, features)}'
      )
  own, labels = [], []
  feature = getattr(features[tags], 'feature', features[tags])
  for number, record in enumerate(_records(builder, part)):
    place = f'{where}, row {number}, feature {words!r}'
    own.append([rows.as_text(word, place) for word in np.asarray(record[words]).tolist()])
    values = np.asarray(record[tags]).tolist()
    if len(values) != len(own[-1]):
      raise errors.UserError(f'{place}: {len(own[-1])} words and {len(values)} tags.')
    labels.append([_label(v, feature, ()) for v in values])
  return tagged.Tagged(
    own,
    labels if not split.startswith('test') or any(map(any, labels)) else None,
    [str(i) for i in range(len(own))],
    [f'{where}, row {i}' for i in range(len(own))],
  )


def _parts(dataset, splits, task_dir):
  """Yields (split, builder, part of the dataset); train is the first."""
  splits = {split: address for split, address in dict(splits).items() if address}
  if TRAIN not in splits:
    raise errors.UserError(
      'config.source.splits has no train: name the split that is learned, '
      '--config.source.splits.train=train.'
    )
  for split in sorted(splits, key=lambda s: (s != TRAIN, s)):
    other, _, part = splits[split].rpartition(':')
    yield split, _builder(other or dataset, task_dir), part


def _where(builder, part) -> str:
  """A split of a dataset, for messages. Raises UserError if there is no such split."""
  if builder.info.splits and part.partition('[')[0] not in builder.info.splits:
    raise errors.UserError(
      f'{builder.info.full_name} has no split {part!r}.'
      f'{errors.did_you_mean(part, builder.info.splits)}'
    )
  return f'{builder.info.full_name}:{part}'


def _records(builder, part):
  """The records of a split, in their order."""
  import tensorflow_datasets

  data = builder.as_dataset(
    split=part,
    shuffle_files=False,
    read_config=tensorflow_datasets.ReadConfig(interleave_cycle_length=1),
  )
  return tensorflow_datasets.as_numpy(data)


def _builder(dataset, task_dir):
  try:
    import tensorflow_datasets
  except ImportError as e:
    raise errors.UserError(
      f'{dataset} needs tensorflow-datasets and TensorFlow ({e}): install them, or take the files '
      'of the task (config.source of bertzoo_jax/parts/sources.py:table).'
    ) from e
  folder = str(storage.path(task_dir)) if task_dir else None
  try:
    with trust.datasets(tensorflow_datasets.features.FeatureConnector, dataset):
      builder = tensorflow_datasets.builder(dataset, data_dir=folder)
      builder.download_and_prepare()
  except errors.UserError:
    raise
  except Exception as e:  # tfds raises many kinds: an unknown name, no network
    raise errors.UserError(
      f'{dataset}: TensorFlow Datasets cannot bring it ({errors.named(e, 200)}); '
      'prepared data are looked for in --task_dir, or in $TFDS_DATA_DIR.'
    ) from e
  return builder


def _examples(builder, part, split, names, labels) -> Examples:
  features, where = builder.info.features, _where(builder, part)
  wanted = names.wanted(list(features), where, split)
  found = names.found(split)
  columns = {name: [] for name in wanted}
  for number, record in enumerate(_records(builder, part)):
    for name in wanted:
      value = record[name]
      if name in found.label:
        text = _label(value, features[name], labels)
      else:
        value = value.item() if hasattr(value, 'item') else value
        text = rows.as_text(value, f'{where}, row {number}, feature {name!r}')
      columns[name].append(text)
  count = len(columns[found.a])
  return Examples(
    a=columns[found.a],
    b=columns[found.b] if found.b else None,
    labels=list(zip(*(columns[name] for name in found.label))) if found.label else None,
    ids=columns[found.example] if found.example else [str(i) for i in range(count)],
    places=[f'{where}, row {i}' for i in range(count)],
  )


def _label(value, feature, labels) -> str:
  """A label as text. Classes are called as `labels` or the dataset call them; '' is none (-1)."""
  value = value.item() if hasattr(value, 'item') else value
  if not isinstance(value, int) or isinstance(value, bool):
    return rows.as_text(value, 'a label')
  names = [name.partition('|')[0] for name in labels] or getattr(feature, 'names', None) or []
  if value < 0:
    return ''
  return names[value] if value < len(names) else str(value)
