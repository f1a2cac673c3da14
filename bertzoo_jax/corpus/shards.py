"""Turns chunks of documents into shards of a corpus, in spawned workers. The content of a shard
depends only on its chunk.

A worker splits, tokenises and writes one chunk at a time: its arrays first, its record last, each
atomically. A record holds the digest of its chunk, so a second attempt keeps finished shards that
match.
"""

import collections
import hashlib
import json
import multiprocessing
import os
from multiprocessing import connection
from typing import NamedTuple

import numpy as np

from bertzoo_jax import tokenizers
from bertzoo_jax.common import errors
from bertzoo_jax.common import folders
from bertzoo_jax.common import storage
from bertzoo_jax.common import trust
from bertzoo_jax.corpus import corpus
from bertzoo_jax.corpus import doctor
from bertzoo_jax.text import duplicates
from bertzoo_jax.text import sentences
from bertzoo_jax.words import word_marks

# CORPUS/parts/: records and unigrams of shards, and repeats; deleted when the corpus is finished
PARTS = 'parts'
# characters; a longer sentence is cut, since encoding takes a hundred times its size in memory
MAX_SENTENCE = 1 << 16
_COUNTED = 'empty', 'cut', 'long', 'misaligned'  # losses counted in a record
_TEXTS, _CHARACTERS = 4096, 1 << 19  # tokenised in one call, approximately


class Begin(NamedTuple):
  index: int = 0  # number of the chunk
  document: int = 0  # number of its first document
  file: duplicates.Start = duplicates.BEGINNING  # where the file of that document starts


BEGINNING = Begin()


class Chunk(NamedTuple):
  """Consecutive documents."""

  index: int  # from 0
  documents: list[bytes]  # encoded by `sources.encode`
  first: str  # where it begins, for messages
  end: int  # bytes of the sources read when it was full
  begin: Begin = BEGINNING  # for a second reading

  def digest(self) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for document in self.documents:
      digest.update(len(document).to_bytes(8, 'little') + document)
    return digest.hexdigest()


class How(NamedTuple):
  """Settings of tokenisation."""

  splitter: str  # name of the sentence splitter
  held_out: float  # share
  marker: word_marks.Marker | None = None  # marks units


def content_hash(document: bytes) -> tuple[int, int]:
  """Two independent 64-bit hashes of a document's text, which ignore differences of blanks, line
  breaks and Unicode composition.

  The first decides whether it is held out, the second whether it trains the tokenizer.
  """
  text = duplicates.normal(document.decode('utf-8'))
  digest = hashlib.blake2b(text.encode('utf-8'), digest_size=16).digest()
  return int.from_bytes(digest[:8], 'little'), int.from_bytes(digest[8:], 'little')


def below(number: int, share: float) -> bool:
  """Whether a 64-bit hash is in the lowest `share` of all hashes."""
  return number < share * 2.0**64


def finished(out, index: int) -> dict | None:
  """The record of a finished shard, or None."""
  path = storage.path(out) / PARTS / f'{index:05d}.json'
  try:
    return storage.read_json(path) if path.exists() else None
  except ValueError:
    return None  # damaged: the shard is made again


def intact(out, record: dict, chunk: Chunk) -> bool:
  """Whether a record belongs to this chunk and all its files have the recorded SHA-256."""
  try:
    files = {folders.inside(out, file): digest for file, digest in record['files'].items()}
    whole = {*_COUNTED, *record['splits']} <= {*record, *corpus.SPLITS}
    return (
      whole
      and record['chunk'] == chunk.digest()
      and all(path.exists() and storage.sha256(path) == digest for path, digest in files.items())
    )
  except errors.UNREADABLE:
    return False


def write(out, chunk: Chunk, tokenizer: tokenizers.Tokenizer, how: How) -> dict:
  """Writes the shard of a chunk and returns its record.

  Record: chunk (digest), files {path in the corpus: sha256}, splits {name: {documents, sentences,
  tokens, bytes, blanks (words by blanks), unknown, shard, and the counts of `word_marks.count`}},
  empty (documents without a token), cut (sentences without one), long (sentences over
  MAX_SENTENCE), misaligned (sentences in which a unit's border fell inside a token), text (the
  counts of doctor.count), and the counts of `_characters`.
  """
  out, name = storage.path(out), f'{chunk.index:05d}'
  splits, lost = _tokenise(chunk, tokenizer, how)
  record = dict(chunk=chunk.digest(), files={}, splits={}, **lost)
  counts = np.zeros(tokenizer.vocab_size, np.int64)
  for split, (tokens, sentence_lengths, document_sizes, size, blanks, marks) in splits.items():
    if not len(document_sizes):
      continue
    shard = corpus.write_shard(
      out / split,
      name,
      tokens,
      _offsets(sentence_lengths),
      _offsets(document_sizes),
      tokenizer.vocab_size,
      marks,
    )
    record['splits'][split] = dict(
      documents=shard['documents'],
      sentences=shard['sentences'],
      tokens=shard['tokens'],
      bytes=size,
      blanks=blanks,
      unknown=int((tokens == tokenizer.special['unk']).sum()),
      shard=shard,
      **word_marks.count(tokens, _offsets(sentence_lengths)[:-1], marks, tokenizer.word_starts),
    )
    record['files'].update({f'{split}/{file}': digest for file, digest in shard['sha256'].items()})
    if split == 'train':
      counts += np.bincount(tokens, minlength=tokenizer.vocab_size)
  file = f'{PARTS}/{name}.unigrams.npy'
  record['files'][file] = storage.write_array(out / file, counts)
  storage.write_bytes(out / PARTS / f'{name}.json', json.dumps(record).encode())
  return record


def _tokenise(chunk, tokenizer, how):
  """({split: (tokens [T], lengths [S], documents [D], bytes, words, marks [T] | None)}, losses)."""
  split, joiner = sentences.splitter(how.splitter)[:2]
  texts, owners, hashes, long = [], [], np.zeros(len(chunk.documents), np.uint64), 0
  documents = [document.decode('utf-8') for document in chunk.documents]
  for d, document in enumerate(documents):
    hashes[d] = content_hash(chunk.documents[d])[0]
    segments = [s for paragraph in document.split('\n') for s in split(paragraph)]
    long += sum(len(s) > MAX_SENTENCE for s in segments)
    segments = [part for i, s in enumerate(segments) for part in parts(s if i == 0 else joiner + s)]
    texts += segments
    owners += [d] * len(segments)
  ids, marks, misaligned = _encode(texts, tokenizer, how.marker)
  lengths = np.array([len(row) for row in ids], np.int64)
  owners = np.asarray(owners, np.int64)
  sizes = np.asarray([len(t.encode('utf-8')) for t in texts], np.int64)
  # sentences that have a token
  per_document = np.bincount(owners[lengths > 0], minlength=len(chunk.documents))
  held = np.array([below(int(h), how.held_out) for h in hashes])
  splits = {}
  for name, chosen in zip(corpus.SPLITS, (~held, held)):
    mine = np.flatnonzero((lengths > 0) & chosen[owners]) if len(owners) else np.zeros(0, np.int64)
    tokens = np.concatenate([np.zeros(0, np.int32), *(ids[i] for i in mine)])
    units = how.marker and np.concatenate([np.zeros(0, np.uint8), *(marks[i] for i in mine)])
    with_tokens = per_document[chosen & (per_document > 0)]
    blanks = sum(len(texts[i].split()) for i in mine)
    splits[name] = tokens, lengths[mine], with_tokens, int(sizes[mine].sum()), blanks, units
  lost = dict(
    empty=int((per_document == 0).sum()),
    cut=int((lengths == 0).sum()),
    long=long,
    misaligned=misaligned,
    text=doctor.count(documents),
    **_characters(texts, ids, tokenizer, how.marker),
  )
  return splits, lost


def _characters(texts, ids, tokenizer, marker) -> dict[str, int]:
  """Counts of the characters of sentences without blanks: characters; unknown_characters (in
  unknown tokens); of the first `read_characters`, the marks and joiners of `Tokenizer.removed`.
  """
  unknown = [t for t, row in zip(texts, ids) if (row == tokenizer.special['unk']).any()]
  behind = 0
  for batch in _batches([marker.clean(text) for text in unknown] if marker else unknown):
    for text, (row, starts, ends) in zip(batch, tokenizer.encode_with_offsets(batch)):
      for i in np.flatnonzero(row == tokenizer.special['unk']):
        behind += _visible(text[starts[i] : ends[i]])
  read = next(_batches(texts), [])
  marks, joiners = tokenizer.removed(read)
  return dict(
    characters=sum(map(_visible, texts)),
    unknown_characters=behind,
    read_characters=sum(map(_visible, read)),
    marks=marks,
    joiners=joiners,
  )


def _visible(text) -> int:
  return sum(map(len, text.split()))


def _encode(texts, tokenizer, marker):
  """(ids, marks or [], misaligned sentences) of sentences."""
  ids, marks, misaligned = [], [], 0
  for batch in _batches(texts):
    if marker is None:
      ids += tokenizer.encode(batch)
      continue
    encoded = tokenizer.encode_with_offsets([marker.clean(text) for text in batch])
    batch_marks, wrong = marker.mark(batch, encoded)
    ids += [e[0] for e in encoded]
    marks += batch_marks
    misaligned += wrong
  return ids, marks, misaligned


def parts(sentence: str) -> list[str]:
  """A sentence in parts of at most MAX_SENTENCE, cut at blanks if possible; they join to it."""
  start, pieces = 0, []
  while len(sentence) - start > MAX_SENTENCE:
    head = sentence[start : start + MAX_SENTENCE].rsplit(None, 1)
    end = start + (len(head[0]) if len(head) > 1 else MAX_SENTENCE)
    pieces.append(sentence[start:end])
    start = end
  return [*pieces, sentence[start:]]


def _batches(texts):
  batch, size = [], 0
  for text in texts:
    if batch and (len(batch) == _TEXTS or size + len(text) > _CHARACTERS):
      yield batch
      batch, size = [], 0
    batch.append(text)
    size += len(text)
  if batch:
    yield batch


def _offsets(sizes):
  return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


# --- workers ---


def run(chunks, out, tokenizer_folder, how: How, workers: int):
  """Makes the shards of an iterator of chunks; at most two chunks per worker are in memory.

  Workers are spawned when there is work for them. Each has its own pipe: when this process is
  killed the pipe closes, and the worker ends.

  Yields (chunk index, chunk end, record) in order of completion.

  Raises UserError: a worker was killed or failed; it names the chunk. Raises OSError: a worker
  could not write.
  """
  context = multiprocessing.get_context('spawn')
  os.environ['TOKENIZERS_PARALLELISM'] = 'false'  # one process per core; read by the workers
  pool, waiting = {}, collections.deque()
  chunks = iter(chunks)
  try:
    while True:
      chunk = next(chunks, None)
      if chunk is None:
        break
      record = finished(out, chunk.index)
      if record is not None and intact(out, record, chunk):
        yield chunk.index, chunk.end, record
        continue
      idle = next((w for w in pool.values() if w.chunk is None), None)
      if idle is None and len(pool) < workers:
        idle = _Worker(context, (trust.get_allowed(), str(out), str(tokenizer_folder), how))
        pool[idle.pipe] = idle
      if idle is not None:
        idle.give(chunk)
        continue
      waiting.append(chunk)
      while len(waiting) >= workers:
        yield from _collect(pool, waiting)
    while any(w.chunk is not None for w in pool.values()):
      yield from _collect(pool, waiting)
  finally:
    for worker in pool.values():
      worker.end()


def _collect(pool, waiting):
  """Waits for a worker, hands it the next chunk, and yields its shard."""
  for pipe in connection.wait([w.pipe for w in pool.values() if w.chunk is not None]):
    worker = pool[pipe]
    index, end, record = worker.take()
    if waiting:
      worker.give(waiting.popleft())
    yield index, end, record


class _Worker:
  def __init__(self, context, arguments):
    self.pipe, theirs = context.Pipe()
    self.process = context.Process(target=_serve, args=(theirs, *arguments), daemon=True)
    self.process.start()
    theirs.close()
    self.chunk = None

  def give(self, chunk):
    try:
      self.pipe.send(chunk)
    except (BrokenPipeError, ConnectionResetError):
      pass  # the worker died: `take` reports it
    self.chunk = Chunk(chunk.index, [], chunk.first, chunk.end)

  def take(self):
    chunk, self.chunk = self.chunk, None
    try:
      failure, record = self.pipe.recv()
    except (EOFError, ConnectionResetError) as e:
      self.process.join(10)
      code = self.process.exitcode
      raise errors.UserError(
        f'A worker ended with code {code} in chunk {chunk.index}, which begins at {chunk.first}'
        f'{" (killed: is there enough memory? --workers takes fewer)" if code == -9 else ""}: '
        'run the same command again, finished shards are kept.'
      ) from e
    if isinstance(failure, Exception):
      raise failure
    if failure:
      raise errors.UserError(
        f'Chunk {chunk.index}, which begins at {chunk.first}, failed: {failure}. '
        'Run the same command again, finished shards are kept.'
      )
    return chunk.index, chunk.end, record

  def end(self):
    self.pipe.close()
    if self.chunk is not None:
      self.process.terminate()
    self.process.join()


def _serve(pipe, trusted, out, tokenizer_folder, how):
  trust.set_allowed(trusted)
  tokenizer = None
  try:
    while True:
      chunk = pipe.recv()
      try:
        tokenizer = tokenizer or tokenizers.load(tokenizer_folder)
        answer = (None, write(out, chunk, tokenizer, how))
      except errors.UserError as e:
        answer = (e, None)
      except Exception as e:  # whatever it is, the parent must name the chunk, but for a disk
        has_number = isinstance(e, OSError) and e.errno is not None
        answer = (e if has_number else f'{type(e).__name__}: {e}', None)
      pipe.send(answer)
  except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
    pass  # the parent has finished or died
