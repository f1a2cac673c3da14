"""A corpus of a few tokens on the disk, without running prepare."""

import pathlib

import numpy as np

from bertzoo_jax.common import storage
from bertzoo_jax.corpus import corpus


def write(folder, shards: int = 1, **files) -> dict:
  """Writes a corpus and returns its manifest.

  Args:
    folder: of the corpus.
    shards: of each split.
    files: further keys of the manifest, such as `unigrams_sha256`.
  """
  folder = pathlib.Path(folder)
  splits = {}
  for name in corpus.SPLITS:
    (folder / name).mkdir(parents=True, exist_ok=True)
    made = [
      corpus.write_shard(
        storage.path(folder / name),
        f'{i:05d}',
        np.arange(i, i + 9),
        np.array([0, 4, 9]),
        np.array([0, 1, 2]),
        32,
      )
      for i in range(shards)
    ]
    size = dict(documents=2, sentences=2, tokens=9, bytes=100)
    splits[name] = {k: v * shards for k, v in size.items()} | {'shards': made}
  return finish(folder, splits, **files)


def finish(folder, splits: dict, vocab_size: int = 32, **files) -> dict:
  """Writes what a corpus has beside its shards, and returns its manifest."""
  (folder / 'tokenizer').mkdir(exist_ok=True)
  (folder / 'tokenizer' / 'vocab.txt').write_text('a\nb\n')
  ones = lambda name, kind: storage.write_array(folder / f'{name}.npy', np.ones(vocab_size, kind))
  manifest = dict(
    format_version=corpus.FORMAT_VERSION,
    tokenizer={},
    corpus={},
    vocab_size=vocab_size,
    special={},
    tokenizer_hash='',
    dtype=corpus.token_dtype(vocab_size),
    splits=splits,
    splitter='lines',
    units=None,
    similar=None,
    tokenizer_sha256={'vocab.txt': storage.sha256(folder / 'tokenizer' / 'vocab.txt')},
    unigrams_sha256=ones('unigrams', np.int64),
    pieces_sha256=ones('pieces', np.uint8),
  )
  return seal(folder, {**manifest, **files})


def seal(folder, manifest: dict) -> dict:
  """Writes a manifest with the hash that fits it, as one who made it up would."""
  manifest = dict(manifest, hash=corpus.identity(manifest))
  storage.write_json(pathlib.Path(folder) / 'manifest.json', manifest)
  return manifest
