"""A corpus of a few tokens on the disk, without running prepare."""

import pathlib

import numpy as np

from bertzoo_jax import parts
from bertzoo_jax.common import storage
from bertzoo_jax.corpus import corpus


def write(folder, shards: int = 1, **files) -> dict:
  """Writes a corpus and returns its manifest. shards: of each split. files: further keys of it."""
  folder = pathlib.Path(folder)
  splits = {}
  for name in corpus.SPLITS:
    (folder / name).mkdir(parents=True, exist_ok=True)
    place, starts, documents = storage.path(folder / name), np.array([0, 4, 9]), np.array([0, 1, 2])
    texts = {f'{i:05d}': np.arange(i, i + 9) for i in range(shards)}
    made = [corpus.write_shard(place, x, t, starts, documents, 32) for x, t in texts.items()]
    size = dict(documents=2, sentences=2, tokens=9, bytes=100)
    splits[name] = {k: v * shards for k, v in size.items()} | {'shards': made}
  return finish(folder, splits, **files)


def of_text(folder, vocab_size: int, documents: int = 40) -> str:
  """Writes a corpus of documents of one to six sentences of random tokens, without held-out text,
  for wordpieces with the usual values. Returns the folder.
  """
  draw, folder = np.random.default_rng(0), pathlib.Path(folder)
  ends = lambda sizes: np.append(0, np.cumsum(sizes))
  sentences = draw.integers(1, 7, documents)
  sizes, splits = draw.integers(1, 9, sentences.sum()), {}
  text = draw.integers(5, vocab_size, sizes.sum()), ends(sizes), ends(sentences)
  for name, (tokens, starts, borders) in {'train': text, 'held_out': ([], [0], [0])}.items():
    (folder / name).mkdir(parents=True)
    arrays = np.array(tokens, int), np.array(starts), np.array(borders)
    shard = corpus.write_shard(storage.path(folder / name), '00000', *arrays, vocab_size)
    counts = dict(documents=len(borders) - 1, sentences=len(starts) - 1, tokens=len(tokens))
    splits[name] = {**counts, 'bytes': 4 * len(tokens), 'shards': [shard]}
  special = dict(pad=0, unk=1, cls=2, sep=3, mask=4)
  made = dict(tokenizer=parts.wordpiece(vocab_size=vocab_size), corpus=parts.corpus())
  sections = {name: section.to_dict() for name, section in made.items()}
  finish(folder, splits, vocab_size, special=special, report={}, **sections)
  return str(folder)


def finish(folder, splits: dict, vocab_size: int = 32, **files) -> dict:
  """Writes what a corpus has beside its shards, and returns its manifest."""
  (folder / 'tokenizer').mkdir(exist_ok=True)
  (folder / 'tokenizer' / 'vocab.txt').write_text('a\nb\n')
  ones = lambda name, kind: storage.write_array(folder / f'{name}.npy', np.ones(vocab_size, kind))
  manifest = dict(
    **dict(format_version=corpus.FORMAT_VERSION, tokenizer={}, corpus={}, vocab_size=vocab_size),
    **dict(special={}, tokenizer_hash='', dtype=corpus.token_dtype(vocab_size), splits=splits),
    **dict(splitter='lines', units=None, similar=None),
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
