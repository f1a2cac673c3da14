"""Small tasks that tests make: files, a tokenizer of characters, a frame."""

import types

import ml_collections
import numpy as np

from bertzoo_jax import tasks
from bertzoo_jax.tasks.examples import Examples
from bertzoo_jax.tasks.examples import Record
from bertzoo_jax.tasks.reading import sources
from configs.tasks import own
from tests.found import call_part

SHAPE = types.SimpleNamespace(single='cls:0 A:0 sep:0', padding='right')
SHAPE.pair = 'cls:0 A:0 sep:0 B:{} sep:{}'


class Characters:
  """One token per character that is no blank; ids from 10 on."""

  special = dict(pad=0, unk=1, cls=2, sep=3, mask=4)
  pieces = [chr(i) for i in range(256)]

  def encode_as_transformers(self, texts):
    return [np.array([10 + ord(c) for c in t if not c.isspace()], np.int32) for t in texts]

  def encode_with_offsets(self, texts, special_text=False):
    starts = [np.array([i for i, c in enumerate(t) if not c.isspace()], np.int32) for t in texts]
    return [(ids, at, at + 1) for ids, at in zip(self.encode_as_transformers(texts), starts)]

  def encode_words(self, sentences):
    """A token per character; the word '~' has none."""
    out = []
    for words in sentences:
      ids = [10 + ord(c) for word in words for c in word if c not in ' ~']
      of_word = [i for i, word in enumerate(words) for c in word if c not in ' ~']
      out.append((np.array(ids, np.int32), np.array(of_word, np.int32)))
    return out


def config(argument='classify', files=None, **source):
  """A config of configs/tasks/own.py with fields of its source."""
  out = own.get_config(argument)
  for split, name in (files or {}).items():
    out.source.files[split] = name
  for key, value in source.items():
    out.source[key] = value
  return ml_collections.ConfigDict(out).lock()


def examples(*values):
  return Examples([Record(f'row {i}', str(i), value) for i, value in enumerate(values)])


def write(folder, **contents):
  """Writes files; a name has _ in place of its dot: train_tsv=b'…'."""
  for name, content in contents.items():
    name = '.'.join(name.rsplit('_', 1))
    data = content.encode() if isinstance(content, str) else content
    (folder / name).write_bytes(data)


def source(folder, section):
  fields = dict(section)
  return call_part(sources, fields.pop('name'), str(folder), **fields)


def task(section, folder, length=64, shape=SHAPE):
  return tasks.open(section, str(folder), Characters(), shape, segments=2, max_length=length)


def opened(folder, argument='classify', files=None, shape=SHAPE, length=16, **source):
  return task(config(argument, files, **source), folder, length, shape)
