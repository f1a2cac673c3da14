"""The corpus on disk: flat token arrays in shards, sentence and document offsets, and a manifest that owns the truth.

    CORPUS/manifest.json   format_version, tokenizer and corpus sections, vocab_size, special ids, splits, report, hash
    CORPUS/unigrams.npy    int64 [V], how often each id occurs in train
    CORPUS/pieces.npy      uint8 [V], 1 where a piece starts a word
    CORPUS/similar/        the similar words of input/similar.py, where the corpus has them
    CORPUS/tokenizer/      what `tokenizers.load` reads
    CORPUS/{train,held_out}/00000.{tokens,sentences,documents,units}.npy   (units, uint8 [T] of input/units.py, where it has marks)

Tokens are uint16 where the vocabulary allows, else uint32. A shard's `sentences` [S+1] are token offsets in the shard,
its `documents` [D+1] are sentence offsets in the shard. Shapes: T tokens, S sentences, D documents, V vocabulary.
"""

import concurrent.futures
import functools
import hashlib
import io
import json
import os
from typing import NamedTuple

import numpy as np

from bertzoo_jax import config as config_lib
from bertzoo_jax import errors
from bertzoo_jax import storage

FORMAT_VERSION = 2
SPLITS = ('train', 'held_out')
_OFFSETS = np.uint32  # of the offsets within a shard
PART_SENTENCES = 1 << 25  # indexed at a time: a quarter GiB of offsets
_IDENTITY = ('format_version', 'tokenizer', 'corpus', 'vocab_size', 'special', 'tokenizer_hash', 'dtype', 'splits', 'splitter', 'units', 'similar')
_THREADS = 16  # that hash files: hashlib lets go of the interpreter


class Shard(NamedTuple):
  """The arrays of a shard: tokens [T], sentences [S+1] token offsets, documents [D+1] sentence offsets, units [T] or None."""
  tokens: np.ndarray
  sentences: np.ndarray
  documents: np.ndarray
  units: np.ndarray | None = None


class Split:
  """The tokens of one split, in the order of its shards, and where its sentences and documents start.

  A large split is worked on in parts: part k holds the shards k, k + num_parts, … and is a split of its own, so that what
  is indexed at a time fits into memory and still comes from everywhere.

  Attributes:
    num_tokens: T. num_sentences: S. num_documents: D.
    bytes: of the UTF-8 text that was tokenised (0 where unknown).
    num_parts: 1 up to PART_SENTENCES sentences.
  """

  def __init__(self, shards: list[Shard], bytes: int = 0):
    self._all = [s for s in shards if len(s.tokens)]
    self._shards = [s.tokens for s in self._all]
    self._units = [s.units for s in self._all]
    self._starts = np.concatenate([[0], np.cumsum([len(t) for t in self._shards])]).astype(np.int64)
    self.num_tokens, self.bytes = int(self._starts[-1]), bytes
    self.num_sentences, self.num_documents = (sum(len(a) - 1 for a in arrays) for arrays in zip(*((s.sentences, s.documents) for s in self._all))
                                              ) if self._all else (0, 0)
    self.num_parts = max(1, min(-(-self.num_sentences // PART_SENTENCES), len(self._all)))

  def part(self, number: int) -> 'Split':
    """Part `number` of num_parts; the split itself where there is one."""
    return Split(self._all[number::self.num_parts]) if self.num_parts > 1 else self

  @functools.cached_property
  def sentence_starts(self) -> np.ndarray:
    """int64 [S+1], token offsets; the last is T."""
    return _joined([s.sentences for s in self._all])

  @functools.cached_property
  def document_starts(self) -> np.ndarray:
    """int64 [D+1], sentence indices; the last is S."""
    return _joined([s.documents for s in self._all])

  def gather(self, positions) -> np.ndarray:
    """The tokens at `positions` (int64, any shape) as int32 of the same shape.

    Fastest where the last axis of two or more holds a row of neighbours: the shard is then looked up once a row.

    Raises:
      IndexError: a position below 0 or beyond the last token.
    """
    return self._gather(self._shards, positions)

  def gather_units(self, positions) -> np.ndarray:
    """The unit marks at `positions`, as `gather`; only where the corpus has marks."""
    return self._gather(self._units, positions)

  def _gather(self, shards, positions):
    positions = np.asarray(positions, np.int64)
    if positions.size == 0:
      return np.zeros(positions.shape, np.int32)
    rows_RL = positions.reshape(-1, positions.shape[-1] if positions.ndim > 1 else positions.size)
    low_R, high_R = rows_RL.min(axis=1), rows_RL.max(axis=1)
    if low_R.min() < 0 or high_R.max() >= self.num_tokens:
      raise IndexError(f'positions {low_R.min()} to {high_R.max()} are not all in a split of {self.num_tokens} tokens')
    if len(shards) == 1:
      return shards[0][positions].astype(np.int32)
    out_RL = np.empty(rows_RL.shape, shards[0].dtype)
    shard_R = self._starts.searchsorted(low_R, 'right') - 1
    local_RL = rows_RL - self._starts[shard_R][:, None]
    crosses_R = high_R >= self._starts[shard_R + 1]
    for row, shard in enumerate(shard_R.tolist()):
      if not crosses_R[row]:
        shards[shard].take(local_RL[row], out=out_RL[row], mode='clip')  # in range, as checked above; 'clip' needs no buffer
    for row in np.flatnonzero(crosses_R).tolist():
      out_RL[row] = self._gather_run(shards, rows_RL[row])
    return out_RL.reshape(positions.shape).astype(np.int32)

  def _gather_run(self, shards, positions_L) -> np.ndarray:
    """Any positions, of several shards: one `take` for each stretch that stays in a shard."""
    shard_L = self._starts.searchsorted(positions_L, 'right') - 1
    local_L, out_L = positions_L - self._starts[shard_L], np.empty(len(positions_L), shards[0].dtype)
    edges = [0, *(np.flatnonzero(np.diff(shard_L)) + 1).tolist(), len(positions_L)]
    for a, b in zip(edges[:-1], edges[1:]):
      shards[shard_L[a]].take(local_L[a:b], out=out_L[a:b], mode='clip')
    return out_L


def _joined(offsets) -> np.ndarray:
  """Offsets within shards as offsets over all of them; UserError where a shard's do not run from 0 upwards."""
  out, at = np.zeros(1 + sum(len(o) - 1 for o in offsets), np.int64), 0
  for o in offsets:
    mine = out[at:at + len(o)]
    np.add(o[1:], out[at], out=mine[1:], dtype=np.int64)
    if o[0] != 0 or (mine[1:] < mine[:-1]).any():
      raise errors.UserError('The offsets of a shard do not run upwards: the corpus is damaged, prepare it again into a new folder.')
    at += len(o) - 1
  return out


class Corpus:
  """An open corpus.

  Attributes:
    path: where it lies, None in memory.
    manifest: the dict of manifest.json.
    vocab_size: V.
    special: {'pad' | 'unk' | 'cls' | 'sep' | 'mask': id}.
    unigrams: int64 [V], how often each id occurs in train.
    word_starts: bool [V], whether a piece starts a word.
    has_marks: whether its splits can `gather_units`.
    similar: the table of similar words (input/similar.py), or None.
    hash: of what identifies the corpus.
    splits: {'train': Split, 'held_out': Split}.
  """

  def __init__(self, path, manifest: dict, unigrams: np.ndarray, splits: dict, word_starts: np.ndarray, has_marks: bool, similar=None):
    self.path, self.manifest, self.unigrams, self.splits = path, manifest, unigrams, splits
    self.word_starts, self.has_marks, self._similar = word_starts, has_marks, similar
    self.vocab_size, self.special, self.hash = manifest['vocab_size'], manifest['special'], manifest['hash']

  @property
  def similar(self):
    if self._similar is None and self.path is not None and self.manifest['similar']:
      from bertzoo_jax.input import similar
      self._similar = similar.load(self.path / 'similar')
    return self._similar

  def tokenizer(self):
    """The corpus's own tokenizer (not for a corpus in memory)."""
    from bertzoo_jax.input import tokenizers  # a corpus can be read without the tokenizers library
    if self.path is None:
      raise errors.UserError('A corpus in memory has no tokenizer: open one that prepare wrote.')
    return tokenizers.load(self.path / 'tokenizer')


def open(path, cache: str = 'disk') -> Corpus:
  """Opens a corpus that `prepare` wrote, memory-mapped, and checks every file's size against the manifest.

  Args:
    path: of the corpus, on a local disk.
    cache: 'disk': tokens are read from their files as they are needed, which the system keeps in memory while there is room;
      'ram': they are read now.

  Raises:
    UserError: no corpus there, an unfinished one, another format version, a changed manifest, or a shard that is missing or cut.
  """
  path = storage.path(path)
  in_ram = errors.choose(cache, {'disk': False, 'ram': True}, 'config.run.corpus_cache')
  manifest = read_manifest(path)
  if storage.is_remote(path):
    raise errors.UserError(f'{path} is in an object store: mirror it to a local disk first (--cache_dir=FOLDER).')
  splits = {name: _open_split(path / name, manifest, name, in_ram) for name in SPLITS}
  unigrams = _load(path / 'unigrams.npy', np.int64, manifest['vocab_size'])
  word_starts = np.asarray(_load(path / 'pieces.npy', np.uint8, manifest['vocab_size'])) > 0
  return Corpus(path, manifest, np.asarray(unigrams), splits, word_starts, bool(manifest['units']))


def check(corpus: Corpus, *, tokenizer, splitting) -> None:
  """The corpus owns its tokenizer and its splitting, a config only wishes them: UserError where they differ.

  Args:
    corpus: an open corpus.
    tokenizer, splitting: the config's sections `tokenizer` and `corpus`.
  """
  manifest = corpus.manifest
  if manifest['vocab_size'] != tokenizer['vocab_size']:
    raise errors.UserError(f'The corpus {corpus.path} has a vocabulary of {manifest["vocab_size"]}, the config one of {tokenizer["vocab_size"]}: '
                           f'set --config.tokenizer.vocab_size={manifest["vocab_size"]}, or prepare a corpus with this config.')
  has = config_lib.flatten({'tokenizer': manifest['tokenizer'], 'corpus': manifest['corpus']})
  if lines := config_lib.differences(has, config_lib.flatten({'tokenizer': tokenizer, 'corpus': splitting})):
    raise errors.UserError(f'The corpus {corpus.path} was made with other settings than the config has (corpus → config): {"; ".join(lines)}. '
                           'Give the corpus\'s values, or prepare a corpus with this config.')


def read_manifest(path) -> dict:
  """The manifest of a finished corpus, local or gs://; UserError as for `open`."""
  path = storage.path(path)
  if not (path / 'manifest.json').exists():
    if (path / 'plan.json').exists():
      raise errors.UserError(f'The corpus {path} is unfinished: run the same prepare line again, it goes on where it stopped.')
    raise errors.UserError(f'No corpus at {path} (there is no manifest.json): python -m bertzoo_jax.prepare --out={path} makes one.')
  try:
    manifest = storage.read_json(path / 'manifest.json')
    version = manifest['format_version']
    if version != FORMAT_VERSION:
      raise errors.UserError(f'The corpus {path} has format version {version}, this code reads {FORMAT_VERSION}: prepare it again.')
    intact = identity(manifest) == manifest['hash']
    files(manifest)
    fits = all(0 <= i < manifest['vocab_size'] for i in manifest['special'].values())
  except (ValueError, KeyError, TypeError, AttributeError) as e:
    raise errors.UserError(f'{path}/manifest.json is not the manifest of a corpus ({type(e).__name__}): prepare the corpus again.') from e
  if not intact:
    raise errors.UserError(f'{path}/manifest.json was changed (its hash is not that of what it says): copy the corpus again, or prepare it into '
                           'a new folder.')
  if not fits:
    raise errors.UserError(f'{path}/manifest.json has special tokens outside its vocabulary of {manifest["vocab_size"]}: prepare the corpus again.')
  return manifest


def files(manifest: dict) -> dict[str, str]:
  """{path in the corpus: SHA-256} of every array."""
  shards = [(split, shard) for split in SPLITS for shard in manifest['splits'][split]['shards']]
  arrays = {f'{split}/{file}': digest for split, shard in shards for file, digest in shard['sha256'].items()}
  similar = {f'similar/{file}': digest for file, digest in (manifest['similar'] or {}).items()}
  return {'unigrams.npy': manifest['unigrams_sha256'], 'pieces.npy': manifest['pieces_sha256'], **similar, **arrays}


def verify(path) -> None:
  """Compares every file's SHA-256 with the manifest (reads the whole corpus). Raises UserError naming the first that differs."""
  path = storage.path(path)
  wished = files(read_manifest(path))
  with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
    found = pool.map(lambda file: storage.sha256(path / file) if (path / file).exists() else None, wished)
    wrong, digest = next(((file, digest) for file, digest in zip(wished, found) if digest != wished[file]), (None, None))
    pool.shutdown(cancel_futures=True)
  if wrong:
    state = 'damaged (its SHA-256 is not the manifest\'s)' if digest else 'missing'
    raise errors.UserError(f'{path / wrong} is {state}: prepare the corpus again into a new folder.')


def in_memory(tokens, sentence_starts, document_starts, vocab_size: int, special: dict, held_out: tuple | None = None, word_starts=None, units=None,
              similar=None) -> Corpus:
  """A corpus of arrays, for tests and benches.

  Args:
    tokens: [T] ids of train.
    sentence_starts: [S+1] token offsets; document_starts: [D+1] sentence offsets.
    vocab_size: V; special: {'pad' | 'unk' | 'cls' | 'sep' | 'mask': id}.
    held_out: (tokens, sentence_starts, document_starts[, units]) of the other split; None for an empty one.
    word_starts: bool [V]; None: every piece starts a word.
    units: uint8 [T] marks of train's tokens, or None for none.
    similar: table of similar words, or None.
  """
  dtype = token_dtype(vocab_size)
  splits = {}
  other = held_out or ([], [0], [0], [])
  for name, arrays in zip(SPLITS, ((tokens, sentence_starts, document_starts, units), other)):
    ids, sentences, documents = (np.asarray(a, np.int64) for a in arrays[:3])
    marks = None if units is None else np.asarray(arrays[3] if len(arrays) > 3 else np.zeros(len(ids)), np.uint8)
    if len(ids) and not 0 <= ids.min() <= ids.max() < vocab_size:
      raise ValueError(f'{name}: ids from {ids.min()} to {ids.max()} in a vocabulary of {vocab_size}')
    if sentences[0] != 0 or sentences[-1] != len(ids) or documents[0] != 0 or documents[-1] != len(sentences) - 1:
      raise ValueError(f'{name}: offsets must run from 0 to the number of tokens, and of sentences')
    splits[name] = Split([Shard(ids.astype(dtype), sentences, documents, marks)])
  unigrams = np.bincount(np.asarray(tokens, np.int64), minlength=vocab_size)
  digest = hashlib.sha256(b''.join(np.asarray(a, np.int64).tobytes() for a in (tokens, sentence_starts, document_starts))).hexdigest()
  manifest = dict(format_version=FORMAT_VERSION, vocab_size=vocab_size, special=dict(special), dtype=dtype, hash=digest, splits={}, report={},
                  splitter='lines', units={} if units is not None else None, similar=None)
  starts = np.ones(vocab_size, bool) if word_starts is None else np.asarray(word_starts, bool)
  return Corpus(None, manifest, unigrams, splits, starts, units is not None, similar)


def stand_in(corpus: Corpus, documents: int, length: int) -> Corpus:
  """Unknown tokens with the facts of a corpus, in so many documents of four sentences of about `length` tokens together:
  enough to build a pipeline in no time."""
  size = 4 * documents
  tokens, starts = np.full(size * (length // 4 + 1), corpus.special['unk']), np.arange(size + 1) * (length // 4 + 1)
  made = in_memory(tokens, starts, np.arange(documents + 1) * 4, corpus.vocab_size, corpus.special, word_starts=corpus.word_starts,
                   units=np.zeros(len(tokens), np.uint8) if corpus.has_marks else None, similar=corpus.similar)
  made.manifest['splitter'] = corpus.manifest['splitter']
  return made


def token_dtype(vocab_size: int) -> str:
  """The smallest unsigned dtype that holds every id."""
  return 'uint16' if vocab_size <= 1 << 16 else 'uint32'


# --- opening ----------------------------------------------------------------------------------------------------------


def _open_split(folder, manifest, name, in_ram) -> Split:
  entry, shards = manifest['splits'][name], []
  in_parts = sum(s['sentences'] for s in entry['shards']) > PART_SENTENCES  # then they are looked through as they are needed
  for shard in entry['shards']:
    sizes = dict(tokens=shard['tokens'], sentences=shard['sentences'] + 1, documents=shard['documents'] + 1)
    dtypes = dict(tokens=np.dtype(manifest['dtype']), sentences=_OFFSETS, documents=_OFFSETS)
    if manifest['units']:
      sizes['units'], dtypes['units'] = shard['tokens'], np.uint8
    arrays = {a: _load(folder / f'{shard["name"]}.{a}.npy', dtypes[a], sizes[a]) for a in sizes}
    ends = (arrays['sentences'], shard['tokens']), (arrays['documents'], shard['sentences'])
    if not all(o[0] == 0 and o[-1] == end and (in_parts or (o[1:] >= o[:-1]).all()) for o, end in ends):
      raise errors.UserError(f'The offsets of shard {folder / shard["name"]} do not fit its tokens: prepare the corpus again into a new folder.')
    if in_ram:
      arrays = {a: np.array(array) if a in ('tokens', 'units') else array for a, array in arrays.items()}
    shards.append(Shard(**arrays))
  return Split(shards, entry['bytes'])


def _load(path, dtype, length):
  """A memory map of a .npy file that must hold `length` numbers of `dtype`."""
  try:
    array = np.load(path, mmap_mode='r', allow_pickle=False)
  except FileNotFoundError as e:
    raise errors.UserError(f'{path} is missing: copy the corpus again, or prepare it into a new folder.') from e
  except (ValueError, OSError, EOFError) as e:
    raise errors.UserError(f'{path} is cut or damaged: copy the corpus again, or prepare it into a new folder.') from e
  if array.dtype != dtype or array.shape != (length,):
    raise errors.UserError(f'{path} holds {array.size} numbers of {array.dtype}, the manifest says {length} of {np.dtype(dtype)}: '
                           'copy the corpus again, or prepare it into a new folder.')
  return array


# --- writing ----------------------------------------------------------------------------------------------------------


def write_shard(folder, name: str, tokens: np.ndarray, sentences: np.ndarray, documents: np.ndarray, vocab_size: int, units=None) -> dict:
  """Writes one shard, each file whole or not at all.

  Args:
    folder: CORPUS/train or CORPUS/held_out; it exists.
    name: of the shard, '00000'.
    tokens: int [T]; sentences: [S+1] token offsets; documents: [D+1] sentence offsets.
    vocab_size: V.
    units: uint8 [T] marks of the tokens, in a corpus that has them.

  Returns:
    The shard's entry in the manifest: name, tokens, sentences, documents, sha256 {file: hex}.

  Raises:
    ValueError: an id that is not in the vocabulary (a uint16 would wrap in silence), or offsets that do not fit.
  """
  if len(tokens) and not 0 <= tokens.min() <= tokens.max() < vocab_size:
    raise ValueError(f'shard {name}: ids from {tokens.min()} to {tokens.max()} in a vocabulary of {vocab_size}')
  if len(tokens) >= 2**32:
    raise ValueError(f'shard {name}: {len(tokens)} tokens are more than its offsets can count')
  if sentences[-1] != len(tokens) or documents[-1] != len(sentences) - 1:
    raise ValueError(f'shard {name}: offsets do not fit {len(tokens)} tokens and {len(sentences) - 1} sentences')
  arrays = dict(tokens=tokens.astype(token_dtype(vocab_size)), sentences=sentences.astype(_OFFSETS), documents=documents.astype(_OFFSETS))
  if units is not None:
    if len(units) != len(tokens):
      raise ValueError(f'shard {name}: {len(units)} marks for {len(tokens)} tokens')
    arrays['units'] = units.astype(np.uint8)
  digests = {f'{name}.{a}.npy': write_array(folder / f'{name}.{a}.npy', array) for a, array in arrays.items()}
  return dict(name=name, tokens=len(tokens), sentences=len(sentences) - 1, documents=len(documents) - 1, sha256=digests)


def write_array(path, array: np.ndarray) -> str:
  """Writes a .npy file atomically and returns the SHA-256 of its bytes."""
  buffer = io.BytesIO()
  np.save(buffer, array, allow_pickle=False)
  write_file(path, buffer.getvalue())
  return hashlib.sha256(buffer.getvalue()).hexdigest()


def write_file(path, data: bytes) -> None:
  """Writes a file whole or not at all, under a temporary name of this process: a worker that outlives its killed
  parent may still be writing the very same shard."""
  path = storage.path(path)
  if storage.is_remote(path):
    path.write_bytes(data)
    return
  part = path.parent / f'{path.name}.{os.getpid()}.part'
  part.write_bytes(data)
  part.replace(path)


def identity(manifest: dict) -> str:
  """SHA-256 of what identifies a corpus: tokenizer, sections, and the bytes of every shard (not where the text lay)."""
  return hashlib.sha256(json.dumps({k: manifest[k] for k in _IDENTITY}, sort_keys=True).encode()).hexdigest()
