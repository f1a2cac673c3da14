"""Examples from datasets of tensorflow-datasets. TensorFlow is imported only when one is read."""

import hashlib

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.common import folders
from bertzoo_jax.common import storage
from bertzoo_jax.common import trust
from bertzoo_jax.parts import sources as definitions
from bertzoo_jax.tasks.examples import TRAIN
from bertzoo_jax.tasks.examples import UNLABELLED
from bertzoo_jax.tasks.examples import Source
from bertzoo_jax.tasks.reading import columns
from bertzoo_jax.tasks.reading import files
from bertzoo_jax.tasks.reading import tables
from bertzoo_jax.tasks.reading import tagged


def tfds(fields: definitions.Tfds, task_dir) -> Source:
  """A dataset of tensorflow-datasets.

  Args:
    task_dir: the folder of prepared datasets; '' for that of TensorFlow Datasets ($TFDS_DATA_DIR).
    fields: of config.source.

  Raises:
    UserError: no such dataset, split or feature; no TensorFlow.
  """
  wanted, known = columns.Columns.of_fields(fields), {}

  def read(builder, part, split):
    features, where = builder.info.features, _where(builder, part)
    known.update(dict.fromkeys(features))
    found = wanted.of(list(features), where, split)
    values = {name: [] for name in found.values()}
    labels = {name for key, name in found.items() if key[0] == 'label'}
    for record in _records(builder, part):
      for name, own in values.items():
        value = record[name].tolist() if hasattr(record[name], 'tolist') else record[name]
        own.append(_label(value, features[name], fields.labels) if name in labels else value)
    numbers = list(range(len(values[found['text_a']])))
    table = tables.Table(
      where, where, list(features), found, values, numbers, numbers, 'row', column_word='feature'
    )
    return wanted.examples(table)

  def read_file(path):
    table = wanted.read(storage.path(path), UNLABELLED, hashlib.sha256())
    return wanted.examples(table), table.notes(UNLABELLED)

  splits, digest = _read(task_dir, fields, read, lambda e: [*e.a, *(e.b or ())])
  if known:
    wanted.check(known, fields.dataset)
  return Source(
    splits,
    tuple(fields.labels),
    columns.label_names(fields.label),
    tuple(fields.leave_out),
    fields.dev_share,
    digest,
    (),
    files.warning(read_file),
    fields.stratified,
  )


def tfds_tags(fields: definitions.TfdsTags, task_dir) -> Source:
  """Tagged sentences of tensorflow-datasets. Args and errors: see `tfds`."""
  read = lambda builder, part, split: _tagged(builder, part, split, fields.words, fields.tags)
  splits, digest = _read(task_dir, fields, read, lambda e: e.keys)
  splits, notes = tagged.schemed(splits, fields.scheme, fields.convert) if splits else ({}, [])
  read_file = lambda path: tagged.sentences(storage.path(path), UNLABELLED, hashlib.sha256())
  known = tuple(fields.labels), ('tag',), (), fields.dev_share, digest, tuple(notes)
  return Source(splits, *known, files.warning(read_file))


def _read(task_dir, fields, read, texts):
  """({split: examples}, SHA-256 of the rows read), of config.source.splits; train is the first.
  Without splits (None) nothing is read.

  read: (builder, part of the dataset, split) → examples. texts: examples → the texts to hash.
  """
  if fields.splits is None:
    return {}, ''
  splits = {s: address for s, address in dict(fields.splits).items() if address}
  digest = hashlib.sha256()
  if TRAIN not in splits:
    raise errors.UserError(
      'config.source.splits has no train: name the split that is learned, '
      '--config.source.splits.train=train.'
    )
  out = {}
  for split in sorted(splits, key=lambda s: (s != TRAIN, s)):
    other, _, part = splits[split].rpartition(':')
    builder = _builder(other or fields.dataset, task_dir)
    out[split] = read(builder, part, split)
    # there is no file to hash: name, version and the rows are hashed
    said = '\x1f'.join([builder.info.full_name, part, *texts(out[split])])
    digest.update(said.encode())
  return out, digest.hexdigest()


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
    own.append([tables.as_text(word, place) for word in np.asarray(record[words]).tolist()])
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
  remedy = 'install them, or take the files of the task, config.source of '
  remedy += 'bertzoo_jax/parts/sources.py:table'
  folder = str(storage.path(task_dir)) if task_dir else None
  if folder:
    folders.check_links(storage.path(folder) / dataset.partition(':')[0].partition('/')[0])
  with trust.datasets(dataset, remedy, '--task_dir, or in $TFDS_DATA_DIR') as tfds:
    builder = tfds.builder(dataset, data_dir=folder)
    builder.download_and_prepare()
    folders.check_dataset(builder)
    return builder


def _label(value, feature, labels) -> str:
  """A label as text. Classes are called as `labels` or the dataset call them; '' is none (-1)."""
  if not isinstance(value, int) or isinstance(value, bool):
    return tables.as_label(value, 'a label')
  names = [name.partition('|')[0] for name in labels]
  many = len(names) or getattr(feature, 'num_classes', None) or 0
  if value < 0:
    return ''
  if value >= many:
    return str(value)
  return names[value] if names else feature.int2str(value)
