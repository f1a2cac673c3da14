"""Examples from datasets of tensorflow-datasets. TensorFlow is imported only when one is read."""

import hashlib

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.common import folders
from bertzoo_jax.common import storage
from bertzoo_jax.common import trust
from bertzoo_jax.parts import sources as definitions
from bertzoo_jax.tasks import examples
from bertzoo_jax.tasks.reading import columns
from bertzoo_jax.tasks.reading import reader
from bertzoo_jax.tasks.reading import tables
from bertzoo_jax.tasks.reading import tagged


def tfds(fields: definitions.Tfds, task_dir) -> examples.Source:
  """A dataset of tensorflow-datasets.

  task_dir: the folder of prepared datasets; '' for that of TensorFlow Datasets ($TFDS_DATA_DIR).
  fields: of config.source. Raises UserError: no such dataset, split or feature; no TensorFlow.
  """
  wanted = columns.Columns(fields)

  def records(builder, where, rows, split):
    features = builder.info.features
    chosen = wanted.select(list(features), where, split)
    head = tables.Head(where, chosen, 'feature')
    for number, row in enumerate(rows):
      values = {}
      for key, name in chosen.items():
        value = row[name].tolist() if hasattr(row[name], 'tolist') else row[name]
        values[key] = _label(value, features[name], fields.labels) if key[0] == 'label' else value
      yield wanted.record(tables.Row(head, f'row {number}', values))

  texts = lambda e: [*e.column('a'), *(b for b in e.column('b') if b is not None)]
  splits, digest = _read(task_dir, fields, records, texts)
  wanted.check(fields.dataset)
  file = reader.source('', definitions.Table(files=None, text_a=''), wanted.layout)
  about = dict(dev_share=fields.dev_share, **wanted.about())
  return examples.Source(splits, digest=digest, read=file.read, **about)


def tfds_tags(fields: definitions.TfdsTags, task_dir) -> examples.Source:
  """Tagged sentences of tensorflow-datasets. Args and errors: see `tfds`."""
  records = lambda *args: _sentences(*args, fields.words, fields.tags)
  splits, digest = _read(task_dir, fields, records, lambda e: e.keys)
  splits, notes = tagged.schemed(splits, fields.scheme, fields.convert) if splits else ({}, [])
  known = tuple(fields.labels), ('tag',), (), fields.dev_share, digest, tuple(notes)
  file = definitions.Conll(files=None)
  return examples.Source(splits, *known, reader.source('', file, tagged.conll, 'sentence').read)


def _read(task_dir, fields, records, texts):
  """({split: examples}, SHA-256 of the rows read) of config.source.splits, train first. Reads
  nothing without splits (None).

  records: (builder, part of the dataset for messages, rows, split) → iterator of Records. texts:
  examples → the texts to hash.
  """
  if fields.splits is None:
    return {}, ''
  splits = {s: address for s, address in dict(fields.splits).items() if address}
  digest = hashlib.sha256()
  if examples.TRAIN not in splits:
    raise errors.UserError(
      'config.source.splits has no train: name the split that is learned, '
      '--config.source.splits.train=train.'
    )
  out = {}
  for split in sorted(splits, key=lambda s: (s != examples.TRAIN, s)):
    other, _, part = splits[split].rpartition(':')
    builder = _builder(other or fields.dataset, task_dir)
    where = _where(builder, part)
    stream = records(builder, where, _rows(builder, part), split)
    out[split], _ = reader.read([(where, where, stream)], split, where)
    # there is no file to hash: name, version and the rows are hashed
    digest.update('\x1f'.join([builder.info.full_name, part, *texts(out[split])]).encode())
  return out, digest.hexdigest()


def _sentences(builder, where, rows, split, words, tags):
  features = builder.info.features
  for field, name in (('words', words), ('tags', tags)):
    if name not in features:
      raise errors.UserError(
        f'config.source.{field} names the feature {name!r}, and {where} has '
        f'{", ".join(map(repr, features))}.{errors.did_you_mean(name, features)}'
      )
  feature = getattr(features[tags], 'feature', features[tags])
  for number, row in enumerate(rows):
    place = f'{where}, row {number}, feature {words!r}'
    texts = [tables.as_text(word, place) for word in np.asarray(row[words]).tolist()]
    labels = [_label(value, feature, ()) for value in np.asarray(row[tags]).tolist()]
    if len(labels) != len(texts):
      raise errors.UserError(f'{place}: {len(texts)} words and {len(labels)} tags.')
    # the tags of a test split may be hidden
    hidden = split.startswith('test') and labels and not any(labels)
    yield examples.Record(f'row {number}', None, tagged.Sentence(texts, None if hidden else labels))


def _where(builder, part) -> str:
  """A split of a dataset, for messages. Raises UserError if there is no such split."""
  if builder.info.splits and part.partition('[')[0] not in builder.info.splits:
    raise errors.UserError(
      f'{builder.info.full_name} has no split {part!r}.'
      f'{errors.did_you_mean(part, builder.info.splits)}'
    )
  return f'{builder.info.full_name}:{part}'


def _rows(builder, part):
  """Yields the rows of a split, in their order."""
  import tensorflow_datasets

  data = builder.as_dataset(
    split=part,
    shuffle_files=False,
    read_config=tensorflow_datasets.ReadConfig(interleave_cycle_length=1),
  )
  yield from tensorflow_datasets.as_numpy(data)


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
  """A label as text: the name of its class in `labels` or the dataset; '' for no label (-1)."""
  if not isinstance(value, int) or isinstance(value, bool):
    return tables.as_label(value, 'a label')
  names = [name.partition('|')[0] for name in labels]
  count = len(names) or getattr(feature, 'num_classes', None) or 0
  if value < 0:
    return ''
  if value >= count:
    return str(value)
  return names[value] if names else feature.int2str(value)
