"""The corpus on disk: flat token arrays in shards, sentence and document offsets, and a manifest
that describes them.

    CORPUS/manifest.json   format_version, tokenizer and corpus sections, vocab_size, special ids,
                           splits, report, hash
    CORPUS/unigrams.npy    int64 [V], how often each id occurs in train
    CORPUS/pieces.npy      uint8 [V], 1 where a piece starts a word
    CORPUS/similar/        the similar words of words/similar, where the corpus has them
    CORPUS/verified.json   when each file was last verified on this disk (verification.py; not part
                           of the corpus)
    CORPUS/tokenizer/      for `tokenizers.load`
    CORPUS/{train,held_out}/00000.{tokens,sentences,documents,units}.npy
                           shards; units, uint8 [T] of words/word_marks.py, only where it has marks

Tokens are uint16 if the vocabulary allows, otherwise uint32. A shard's `sentences` [S+1] are token
offsets in the shard, its `documents` [D+1] are sentence offsets in the shard. Shapes: T tokens, S
sentences, D documents, V vocabulary.
"""

import hashlib
import json

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.common import folders
from bertzoo_jax.common import storage
from bertzoo_jax.corpus import splits as splits_lib
from bertzoo_jax.corpus import verification

FORMAT_VERSION = 2
_AGAIN = 'prepare the corpus again'
SPLITS = ('train', 'held_out')
_IDENTITY = (
  'format_version tokenizer corpus vocab_size special tokenizer_hash dtype splits splitter units '
  'similar'
).split()


class Corpus:
  """An open corpus.

  Attributes:
    path: its folder; None for a corpus in memory.
    manifest: the dict of manifest.json.
    vocab_size: V.
    special: {'pad' | 'unk' | 'cls' | 'sep' | 'mask': id}.
    unigrams: int64 [V], how often each id occurs in train.
    word_starts: bool [V], whether a piece starts a word.
    has_marks: whether its splits can `gather_units`.
    similar: the table of similar words (words/similar), or None.
    hash: identifies the corpus.
    splits: {'train': Split, 'held_out': Split}.
    name: its name as a member of a mixture; otherwise ''.
    members: the corpora of a mixture (corpus/opening.py); of another corpus, itself.
  """

  def __init__(
    self,
    path,
    manifest: dict,
    unigrams: np.ndarray,
    splits: dict,
    word_starts: np.ndarray,
    has_marks: bool,
    similar=None,
    members: tuple = (),
  ):
    self.path, self.manifest, self.unigrams, self.splits = path, manifest, unigrams, splits
    self.word_starts, self.has_marks, self._similar = word_starts, has_marks, similar
    self.vocab_size = manifest['vocab_size']
    self.special = manifest['special']
    self.hash = manifest['hash']
    self.name, self.members = '', members or (self,)
    self.stands_for = self  # the corpus whose tokenizer it uses

  @property
  def similar(self):
    if self._similar is None and self.path is not None and self.manifest['similar']:
      from bertzoo_jax.words import similar

      self._similar = similar.load(self.path / 'similar')
    return self._similar

  def tokenizer(self):
    """The corpus's own tokenizer (not for a corpus in memory)."""
    from bertzoo_jax import tokenizers  # a corpus can be read without the tokenizers library

    if self.stands_for is not self:
      return self.stands_for.tokenizer()
    if self.path is None:
      raise errors.UserError('A corpus in memory has no tokenizer: open one that prepare wrote.')
    # the section first: a tokenizer of another name would be built before its hash is known
    loaded = tokenizers.load(self.path / 'tokenizer', self.manifest['tokenizer'])
    if loaded.hash != self.manifest['tokenizer_hash']:
      raise errors.damaged_corpus(
        f'{self.path}/tokenizer is not the tokenizer that the corpus was made with (hash)'
      )
    return loaded


def open(path, cache: str = 'disk') -> Corpus:
  """Opens a corpus that `prepare` wrote. Checks the size of every file and the SHA-256 of the
  tokenizer's files against the manifest; arrays are mapped at their first use.

  path: of the corpus, on a local disk. cache: 'disk': tokens are read from their files on demand,
  through the system's file cache; 'ram': they are read now. Raises UserError: no corpus or an
  unfinished one, another format version, a changed manifest, a shard that is missing or cut, or a
  tokenizer whose files are not those that prepare wrote.
  """
  path = storage.path(path)
  in_ram = errors.choose(cache, {'disk': False, 'ram': True}, 'config.run.corpus_cache')
  folders.check_links(path)
  manifest = read_manifest(path)
  if storage.is_remote(path):
    raise errors.UserError(
      f'{path} is in an object store: mirror it to a local disk first (--cache_dir=FOLDER).'
    )
  verification.require(path, tokenizer_files(manifest))
  opened, units = {}, bool(manifest['units'])
  with errors.unreadable(f'{path}/manifest.json was not written by prepare: {_AGAIN}'):
    if manifest['dtype'] != token_dtype(manifest['vocab_size']):
      raise ValueError(manifest['dtype'])
    for name in SPLITS:
      entry = manifest['splits'][name]
      shards = [
        splits_lib.StoredShard(path / name, shard, manifest['dtype'], units, in_ram)
        for shard in entry['shards']
      ]
      opened[name] = splits_lib.Split(shards, int(entry['bytes']))
    unigrams = splits_lib.load(path / 'unigrams.npy', np.int64, manifest['vocab_size'])
    word_starts = splits_lib.load(path / 'pieces.npy', np.uint8, manifest['vocab_size']) > 0
  return Corpus(path, manifest, unigrams, opened, word_starts, units)


def read_manifest(path) -> dict:
  """The manifest of a finished corpus, local or gs://; UserError as for `open`."""
  path = storage.path(path)
  if not (path / 'manifest.json').exists():
    if (path / 'plan.json').exists():
      raise errors.UserError(
        f'The corpus {path} is unfinished: run the same prepare command again to resume.'
      )
    raise errors.UserError(
      f'No corpus at {path} (there is no manifest.json): python -m bertzoo_jax.prepare '
      f'--config CONFIG --source TEXT --out {path} makes one.'
    )
  with errors.unreadable(f'{path}/manifest.json is not the manifest of a corpus: {_AGAIN}'):
    manifest = storage.read_json(path / 'manifest.json')
    version = manifest['format_version']
    if version != FORMAT_VERSION:
      raise errors.UserError(
        f'The corpus {path} has format version {version}, this code reads {FORMAT_VERSION}: '
        'prepare it again.'
      )
    intact = identity(manifest) == manifest['hash']
    shards = [s['name'] for split in SPLITS for s in manifest['splits'][split]['shards']]
    for name in (*files(manifest), *shards):
      folders.inside(path, name)
    manifest['tokenizer'].get('name')
    fits = all(0 <= i < manifest['vocab_size'] for i in manifest['special'].values())
  if not intact:
    raise errors.UserError(
      f'{path}/manifest.json was changed (its hash does not fit its content): copy the corpus '
      'again, or prepare it into a new folder.'
    )
  if not fits:
    raise errors.UserError(
      f'{path}/manifest.json has special tokens outside its vocabulary of '
      f'{manifest["vocab_size"]}: prepare the corpus again.'
    )
  return manifest


def files(manifest: dict) -> dict[str, str]:
  """{path in the corpus: SHA-256} of every array and of the tokenizer's files."""
  shards = [(split, shard) for split in SPLITS for shard in manifest['splits'][split]['shards']]
  arrays = {
    f'{split}/{file}': digest for split, shard in shards for file, digest in shard['sha256'].items()
  }
  return {
    'unigrams.npy': manifest['unigrams_sha256'],
    'pieces.npy': manifest['pieces_sha256'],
    **tokenizer_files(manifest),
    **{f'similar/{file}': digest for file, digest in (manifest['similar'] or {}).items()},
    **arrays,
  }


def tokenizer_files(manifest: dict) -> dict[str, str]:
  """{path in the corpus: SHA-256} of the tokenizer."""
  return {f'tokenizer/{file}': digest for file, digest in manifest['tokenizer_sha256'].items()}


def save_tokenizer(corpus: Corpus, folder) -> None:
  """Copies the files of a corpus's tokenizer to a folder."""
  for name in corpus.manifest['tokenizer_sha256']:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    storage.write_bytes(folder / name, (corpus.path / 'tokenizer' / name).read_bytes())


def verify(path) -> None:
  """Verifies all files (verification.compare). Raises UserError naming the first that differs."""
  path = storage.path(path)
  verification.compare(path, files(read_manifest(path)))


def in_memory(
  tokens,
  sentence_starts,
  document_starts,
  vocab_size: int,
  special: dict,
  held_out: tuple | None = None,
  word_starts=None,
  units=None,
  similar=None,
) -> Corpus:
  """A corpus of arrays, for tests and benches.

  Args:
    tokens: [T] ids of train.
    sentence_starts: [S+1] token offsets; document_starts: [D+1] sentence offsets.
    vocab_size: V; special: {'pad' | 'unk' | 'cls' | 'sep' | 'mask': id}.
    held_out: (tokens, sentence_starts, document_starts[, units]) of the other split; None for an
      empty one.
    word_starts: bool [V]; None: every piece starts a word.
    units: uint8 [T] marks of train's tokens, or None for none.
    similar: table of similar words, or None.
  """
  dtype = token_dtype(vocab_size)
  splits = {}
  other = held_out or ([], [0], [0], [])
  for name, arrays in zip(SPLITS, ((tokens, sentence_starts, document_starts, units), other)):
    ids, sentences, documents = (np.asarray(a, np.int64) for a in arrays[:3])
    marks = (
      None
      if units is None
      else np.asarray(arrays[3] if len(arrays) > 3 else np.zeros(len(ids)), np.uint8)
    )
    _check_arrays(name, ids, sentences, documents, vocab_size)
    splits[name] = splits_lib.Split(
      [splits_lib.Shard(ids.astype(dtype), sentences, documents, marks)]
    )
  unigrams = np.bincount(np.asarray(tokens, np.int64), minlength=vocab_size)
  digest = hashlib.sha256(
    b''.join(np.asarray(a, np.int64).tobytes() for a in (tokens, sentence_starts, document_starts))
  ).hexdigest()
  manifest = dict(
    format_version=FORMAT_VERSION,
    vocab_size=vocab_size,
    special=dict(special),
    dtype=dtype,
    hash=digest,
    splits={},
    report={},
    splitter='lines',
    units={} if units is not None else None,
    similar=None,
  )
  starts = np.ones(vocab_size, bool) if word_starts is None else np.asarray(word_starts, bool)
  return Corpus(None, manifest, unigrams, splits, starts, units is not None, similar)


def stand_in(corpus: Corpus, documents: int, length: int) -> Corpus:
  """A corpus of unknown tokens with the manifest facts of another, to build a pipeline quickly:
  `documents` documents of four sentences, about `length` tokens each.
  """
  size = 4 * documents
  tokens = np.full(size * (length // 4 + 1), corpus.special['unk'])
  starts = np.arange(size + 1) * (length // 4 + 1)
  placeholder = in_memory(
    tokens,
    starts,
    np.arange(documents + 1) * 4,
    corpus.vocab_size,
    corpus.special,
    word_starts=corpus.word_starts,
    units=np.zeros(len(tokens), np.uint8) if corpus.has_marks else None,
    similar=corpus.similar,
  )
  placeholder.manifest['splitter'], placeholder.stands_for = corpus.manifest['splitter'], corpus
  return placeholder


def token_dtype(vocab_size: int) -> str:
  """The smallest unsigned dtype that holds every id."""
  return 'uint16' if vocab_size <= 1 << 16 else 'uint32'


# --- writing ---


def write_shard(
  folder,
  name: str,
  tokens: np.ndarray,
  sentences: np.ndarray,
  documents: np.ndarray,
  vocab_size: int,
  units=None,
) -> dict:
  """Writes one shard, each file whole or not at all.

  folder: CORPUS/train or CORPUS/held_out; it exists. name: name of the shard, '00000'. tokens: int
  [T]; sentences: [S+1] token offsets; documents: [D+1] sentence offsets. vocab_size: V. units:
  uint8 [T] marks of the tokens, in a corpus that has them.

  Returns the shard's entry in the manifest: name, tokens, sentences, documents, sha256 {file: hex}.

  Raises ValueError: an id outside the vocabulary (a uint16 would wrap silently), or offsets that do
  not fit.
  """
  if len(tokens) >= 2**32:
    raise ValueError(f'shard {name}: {len(tokens)} tokens are more than its offsets can count')
  _check_arrays(f'shard {name}', tokens, sentences, documents, vocab_size)
  arrays = {
    'tokens': tokens.astype(token_dtype(vocab_size)),
    'sentences': sentences.astype(splits_lib.OFFSETS),
    'documents': documents.astype(splits_lib.OFFSETS),
  }
  if units is not None:
    if len(units) != len(tokens):
      raise ValueError(f'shard {name}: {len(units)} marks for {len(tokens)} tokens')
    arrays['units'] = units.astype(np.uint8)
  digests = {
    f'{name}.{a}.npy': storage.write_array(folder / f'{name}.{a}.npy', array)
    for a, array in arrays.items()
  }
  return dict(
    name=name,
    tokens=len(tokens),
    sentences=len(sentences) - 1,
    documents=len(documents) - 1,
    sha256=digests,
  )


def _check_arrays(name, tokens, sentences, documents, vocab_size):
  """Raises ValueError for ids that are not in the vocabulary, or offsets that do not fit."""
  if len(tokens) and not 0 <= tokens.min() <= tokens.max() < vocab_size:
    raise ValueError(
      f'{name}: ids from {tokens.min()} to {tokens.max()} in a vocabulary of {vocab_size}'
    )
  ends = sentences[0], sentences[-1], documents[0], documents[-1]
  if ends != (0, len(tokens), 0, len(sentences) - 1):
    raise ValueError(
      f'{name}: offsets do not fit {len(tokens)} tokens and {len(sentences) - 1} sentences'
    )


def origin(manifest: dict) -> dict:
  """{'sources': names, 'language', 'license'}: the recorded origin of the text."""
  about = manifest.get('about', {})
  return {
    'sources': [source['source'] for source in manifest.get('sources', ())],
    **{key: about.get(key) for key in ('language', 'license')},
  }


def identity(manifest: dict) -> str:
  """SHA-256 that identifies a corpus: of tokenizer, sections and shards, wherever its text lies."""
  return hashlib.sha256(
    json.dumps({k: manifest[k] for k in _IDENTITY}, sort_keys=True).encode()
  ).hexdigest()
