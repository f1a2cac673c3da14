"""Makes a corpus of text: python -m bertzoo_jax.prepare --config C --source S [--source S2 …] --out
CORPUS [--tokenizer T]

Trains the tokenizer of the config (or reads published files), splits documents into sentences, and
writes the token arrays that `show` and `pretrain` read. If it is killed, run the same command again
to resume. The result has the same bytes as without interruption, for any number of workers. Exit
codes:

    0    done
    2    a mistake in the command, the config or the sources; nothing is overwritten
    3    the disk is full; finished files stay
    75   run the same command again: a disk, a bucket or the network failed
    130  Ctrl-C; run the same command again to resume
"""

import contextlib
import errno
import fcntl
import itertools
import os
import shlex
from typing import NamedTuple

import numpy as np
from absl import flags

from bertzoo_jax import cli
from bertzoo_jax import tokenizers
from bertzoo_jax.common import config as config_lib
from bertzoo_jax.common import errors
from bertzoo_jax.common import folders
from bertzoo_jax.common import progress
from bertzoo_jax.common import storage
from bertzoo_jax.corpus import beam
from bertzoo_jax.corpus import corpus
from bertzoo_jax.corpus import report
from bertzoo_jax.corpus import shards
from bertzoo_jax.corpus import texts
from bertzoo_jax.parts import ranges
from bertzoo_jax.text import duplicates
from bertzoo_jax.text import finding
from bertzoo_jax.text import sentences
from bertzoo_jax.tokenizers import growth
from bertzoo_jax.words import similar as similar_lib
from bertzoo_jax.words import word_marks

TOKENIZER_BYTES = 1 << 30  # bytes of text that a tokenizer is trained on, at most
TOKENIZER_MEMORY = 8 << 30  # bytes of memory for that, at most
CHUNK_BYTES = 1 << 20, 1 << 25  # bytes of text per shard, least and most
_FULL = errno.ENOSPC, errno.EDQUOT, errno.EFBIG
# bytes of memory that training takes per byte of text, measured on 40 MB
_MEMORY = dict(wordpiece=2.0, byte_bpe=3.5, sentencepiece=22.0)


class Files(NamedTuple):
  """Files that config.corpus may ask for: lexicons, and word vectors or a thesaurus."""

  phrases: str | None = None
  entities: str | None = None
  similar: str | None = None


class Filters(NamedTuple):
  """Filters of text. where: 'key=value'; records without one of them are dropped (values of one key
  are alternatives). exclude: sources whose documents and longer paragraphs are dropped.
  """

  where: tuple[str, ...] = ()
  exclude: tuple[str, ...] = ()


_NO_FILES, _NO_FILTERS = Files(), Filters()


def prepare(
  config,
  source,
  out,
  tokenizer=None,
  workers=None,
  say=print,
  *,
  files=_NO_FILES,
  filters=_NO_FILTERS,
  beam_args=None,
  about=None,
  add=None,
) -> dict:
  """Makes (or finishes) the corpus `out`, and returns its manifest.

  Args:
    config: an experiment; its sections `tokenizer` and `corpus` are used.
    source: list of sources (text/finding.py).
    out: the corpus's folder, local or gs://.
    tokenizer: published files, a folder that holds them, or hf:DIR (tokenizers.load); None trains
      one on the text.
    workers: processes; None for one per core.
    say: takes a line of text.
    beam_args: options of a Beam pipeline, which makes the same bytes; None for processes of this
      machine.
    about: {'language', 'license'} of the text, for the manifest and model cards. They may be added
      to a finished corpus, and change nothing else.
    add: pieces that the tokenizer gets in addition: a number (those that save most tokens on the
      text), or a file of words, one per line (tokenizers/growth.py).

  Raises UserError: a mistake that the user can correct; nothing is overwritten. Raises OSError:
  a disk that is full or fails; `explained_errors` has the message.
  """
  out = storage.path(out)
  plan, text, loaded = _begin(config, source, out, tokenizer, say, files, filters, add)
  if done := _same_plan(out, plan):
    if not storage.is_remote(out):
      corpus.open(out).tokenizer()  # a corpus that lost a file is not finished
    say(f'{out} is finished already, from the same sources and settings: nothing to do.')
    _tidy(out)
    return _about(out, done, about or {})
  with _locked(out):
    _tokenizer(out, plan, loaded, config, text, say, add)
    for folder in (shards.PARTS, *corpus.SPLITS):
      (out / folder).mkdir(parents=True, exist_ok=True)
    text.save()
    starts = tokenizers.load(out / 'tokenizer').word_starts
    marker = word_marks.marker(config.corpus, starts, files.phrases, files.entities)
    how = shards.How(config.corpus.splitter, config.corpus.held_out, marker)
    if beam_args is not None:
      reader, records = beam.run(text, plan['chunk_bytes'], out, how, list(beam_args), say)
    else:
      reader, records = _shards(out, plan, how, text, workers, say)
    manifest = dict(
      _manifest(out, plan, config, reader.dropped.reasons, records, text.repeated),
      splitter=sentences.splitter(config.corpus.splitter).name,
      about=dict(language=None, license=None) | (about or {}),
      units=marker and marker.facts,
      similar=_similar(out, config, files.similar, say),
    )
    manifest['hash'] = corpus.identity(manifest)
    storage.write_json(out / 'manifest.json', manifest)
    _tidy(out)
  say(report.describe(manifest, str(out)))
  return manifest


def tokenizer_alone(
  config, source, out, tokenizer=None, say=print, filters=_NO_FILTERS, add=None
) -> None:
  """Writes only the tokenizer, into `out`. Arguments and errors: see `prepare`."""
  out = storage.path(out)
  _, text, loaded = _begin(config, source, out, tokenizer, say, _NO_FILES, filters, add)
  if _holds_other_files(out):
    raise errors.UserError(f'--out={out} is not empty: give a new folder for the tokenizer.')
  loaded = _final_tokenizer(config, text, loaded, add, say)
  loaded.save(out)
  say(
    f'{out}: a {config.tokenizer.name} tokenizer of {loaded.vocab_size:,} pieces. Prepare a corpus '
    f'with --tokenizer={out}.'
  )


# --- the plan ---


def _begin(config, source, out, tokenizer, say, files, filters, add):
  """(plan, text, the tokenizer of --tokenizer or None). Raises UserError for any wrong argument."""
  ranges.check(config)
  sentences.splitter(config.corpus.splitter, say)
  errors.choose(config.corpus.duplicates, duplicates.CHOICES, 'config.corpus.duplicates')
  where, excluded = texts.conditions(filters.where), [_excluded(e) for e in filters.exclude]
  word_marks.marker(config.corpus, (), files.phrases, files.entities)
  similar_lib.check_file(config.corpus, files.similar)
  sources = [finding.find(s) for s in source]
  section = config.tokenizer.to_dict()
  if add is None:
    loaded = tokenizers.load(tokenizer, section) if tokenizer else None
  else:
    loaded = growth.base(tokenizer, section, add)
  plan = _plan(config, sources, loaded, files, where, excluded)
  if add is not None:
    plan['tokenizer_hash'] += f' and {add if str(add).isdecimal() else storage.sha256(add)}'
  return plan, texts.Text(sources, where, excluded, config.corpus, out, say), loaded


def _excluded(name):
  try:
    return finding.find(name)
  except errors.UserError as e:
    raise errors.UserError(str(e).replace('--source', '--exclude', 1)) from e


def _plan(config, sources, loaded, files, where, excluded) -> dict:
  """All that determines the bytes of the corpus. A corpus is resumed only under the same plan."""
  total, splitter = sum(s.bytes for s in sources), sentences.splitter(config.corpus.splitter).name
  return dict(
    format_version=corpus.FORMAT_VERSION,
    sources=[s.facts() for s in sources],
    tokenizer=config.tokenizer.to_dict(),
    tokenizer_hash=loaded.hash if loaded else f'trained on at most {_most(config)} bytes',
    # the name of a package's splitter has its version
    corpus=config.corpus.to_dict() | ({'splitter': splitter} if ', version' in splitter else {}),
    where=[list(w) for w in where],
    exclude=[s.facts() for s in excluded],
    files={
      name: file and dict(name=storage.path(file).name, sha256=storage.sha256(file))
      for name, file in files._asdict().items()
    },
    # Bytes of text per shard: enough shards to keep all cores busy, few enough to open, and little
    # lost by a kill.
    chunk_bytes=int(np.clip(total // 64, *CHUNK_BYTES)),
  )


def _same_plan(out, plan) -> dict | None:
  """The manifest of a finished corpus of this plan; None for an unfinished or new one. Raises
  UserError for anything else in the folder.
  """
  folders.check_links(out)
  manifest = corpus.read_manifest(out) if (out / 'manifest.json').exists() else None
  old_plan = manifest.get('plan', {}) if manifest else _unfinished_plan(out)
  if old_plan is None:
    if _holds_other_files(out):
      raise errors.UserError(
        f'--out={out} holds other files: choose an empty folder or a new name.'
      )
    return None
  if differing := config_lib.differences(config_lib.flatten(old_plan), config_lib.flatten(plan)):
    state = 'a corpus' if manifest else 'an unfinished corpus'
    raise errors.UserError(
      f'--out={out} holds {state} of other sources or settings ({"; ".join(differing)}): choose '
      'another --out, or delete it.'
    )
  return manifest


def _about(out, manifest, about) -> dict:
  """The manifest of a finished corpus, updated with the language and the licence in `about`."""
  recorded = manifest.get('about', {})
  about = recorded | {key: value for key, value in about.items() if value is not None}
  if about != recorded:
    manifest = {**manifest, 'about': about}
    storage.write_json(out / 'manifest.json', manifest)
  return manifest


def _holds_other_files(out) -> bool:
  return out.exists() and any(
    f.name != '.lock' and not f.name.endswith('.part') for f in out.iterdir()
  )


def _unfinished_plan(out) -> dict | None:
  if not (out / 'plan.json').exists():
    return None
  broken = f'{out}/plan.json is cut or damaged: delete {out} and run the same command again'
  with errors.unreadable(broken):
    return {**storage.read_json(out / 'plan.json')}


@contextlib.contextmanager
def _locked(out):
  """Keeps a second `prepare` out of a local folder; a killed one leaves no lock behind."""
  out.mkdir(parents=True, exist_ok=True)
  if storage.is_remote(out):
    yield
    return
  with storage.appending(out / '.lock') as f:
    try:
      fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
      raise errors.UserError(
        f'Another prepare is writing {out}: wait for it, or choose another --out.'
      ) from e
    yield


def _tidy(out) -> None:
  """Removes files that only an unfinished corpus needs, and partial files of killed writers."""
  for folder in (out, *(out / d for d in ('tokenizer', 'similar', shards.PARTS, *corpus.SPLITS))):
    for file in list(folder.iterdir()) if folder.exists() else ():
      if file.name == texts.SURVEY:
        file.rmtree()
      elif (
        file.name.endswith('.part')
        or file.name in ('plan.json', '.lock')
        or folder.name == shards.PARTS
      ):
        file.unlink(missing_ok=True)
  if (out / shards.PARTS).exists():  # not in an object store, whose folders are their files
    (out / shards.PARTS).rmdir()


# --- the tokenizer ---


def _tokenizer(out, plan, loaded, config, text, say, add) -> None:
  """Writes the plan and the tokenizer, see `_final_tokenizer`."""
  if (out / 'tokenizer' / 'bertzoo.json').exists():  # from an earlier attempt
    tokenizers.load(out / 'tokenizer', config.tokenizer.to_dict())
    return
  loaded = _final_tokenizer(config, text, loaded, add, say)
  storage.write_json(out / 'plan.json', plan)  # from here on an attempt can be resumed
  loaded.save(out / 'tokenizer')


def _final_tokenizer(config, text, loaded, add, say):
  """The loaded tokenizer, with further pieces if `add` asks for them; without one, a tokenizer
  trained on documents of the train split.
  """
  if loaded is None:
    return _train(config, text, say)
  if add is None:
    return loaded
  share = min(1.0, TOKENIZER_BYTES / text.size) if text.size else 1.0
  with progress.Meter('reading for the tokenizer', text.bytes, say) as meter:
    texts = _training_texts(text, config.corpus, share, meter)
    return growth.grown(loaded, texts, add, config.tokenizer.vocab_size, say)


def _train(config, text, say):
  """Trains the config's tokenizer on documents of the train split, or on a sample of them."""
  vocab_size, total = tokenizers.vocab_size_of(config.tokenizer), text.size
  if vocab_size == config_lib.AUTO:
    vocab_size = tokenizers.size_for(total)
    say(
      f'tokenizer.vocab_size=auto: {vocab_size:,} pieces for {total / 1e6:,.1f} MB of text (twice '
      'the square root of the bytes, from 1,024 to 32,768).'
    )
  share = min(1.0, _most(config) / total) if total else 1.0
  say(
    f'Training a {config.tokenizer.name} tokenizer of {vocab_size} pieces on '
    f'{share * total / 1e6:,.1f} MB of text'
    + (f' ({100 * share:.1f} % of the documents, drawn by their content)' if share < 1 else '')
    + f'; it needs up to {_memory(config) * share * total / 2**30 + 0.2:,.1f} GiB '
    'of memory.'
  )
  readings = itertools.chain(['reading for the tokenizer'], itertools.repeat('learning pieces'))

  def read():
    with progress.Meter(next(readings), text.bytes, say) as meter:
      yield from _training_texts(text, config.corpus, share, meter)

  trained = tokenizers.train(config.tokenizer.to_dict(), read, total)
  if trained.vocab_size > vocab_size:
    say(
      f'tokenizer.vocab_size=auto: {trained.vocab_size:,} pieces, since {vocab_size:,} have no '
      f'room for all characters (config.tokenizer.coverage={trained.section.get("coverage")}).'
    )
  return trained


def _most(config) -> int:
  """Bytes of text that a tokenizer is trained on, at most."""
  return int(min(TOKENIZER_BYTES, TOKENIZER_MEMORY / _memory(config)))


def _memory(config) -> float:
  """Bytes of memory that training takes per byte of text; the maximum for an unknown tokenizer."""
  return _MEMORY.get(config.tokenizer.name, max(_MEMORY.values()))


def _training_texts(text, section, share, meter):
  """Text of the train split's documents, or of a sample chosen by content; never held-out text."""
  reader, empty = text.reader(), True
  joiner = sentences.splitter(section.splitter).joiner or '\n'
  for document, *_ in text.documents(reader):
    meter.update(reader.bytes_read)
    content, lot = shards.content_hash(document)
    if not shards.below(content, section.held_out) and shards.below(lot, share):
      empty = False
      # a trainer takes a hundred times a text's size
      yield from shards.parts(document.decode('utf-8').replace('\n', joiner))
  if empty:
    raise report.empty(reader.dropped.reasons)


# --- the shards ---


def _shards(out, plan, how, text, workers, say):
  """Makes all shards. Returns (the reader, which counts the dropped text; the records in order)."""
  cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
  reader, records = text.reader(), {}
  with progress.Meter('tokenising', text.bytes, say) as meter:
    chunks = text.chunks(reader, plan['chunk_bytes'])
    for index, end, record in shards.run(chunks, out, out / 'tokenizer', how, workers or cores):
      records[index] = record
      meter.update(end)
  return reader, [records[i] for i in sorted(records)]


# --- the end ---


def _manifest(out, plan, config, dropped, records, repeated) -> dict:
  meta = storage.read_json(out / 'tokenizer' / 'bertzoo.json')
  tokenizer = tokenizers.load(out / 'tokenizer')
  unigrams = np.zeros(tokenizer.vocab_size, np.int64)
  for i in range(len(records)):
    with (out / shards.PARTS / f'{i:05d}.unigrams.npy').open('rb') as f:
      unigrams += np.load(f, allow_pickle=False)
  splits = {name: _split(name, records) for name in corpus.SPLITS}
  if not splits['train']['tokens']:
    if splits['held_out']['tokens']:
      raise errors.UserError(
        f'Every document fell into the held-out share of {config.corpus.held_out}: '
        'lower --config.corpus.held_out, or bring more text.'
      )
    raise report.empty(dropped)
  return dict(
    format_version=corpus.FORMAT_VERSION,
    tokenizer=meta['section'],
    corpus=config.corpus.to_dict(),
    vocab_size=len(unigrams),
    special=meta['special'],
    tokenizer_hash=meta['hash'],
    dtype=corpus.token_dtype(len(unigrams)),
    sources=plan['sources'],
    splits=splits,
    tokenizer_sha256={
      file.name: storage.sha256(file)
      for file in sorted((out / 'tokenizer').iterdir())
      if not file.name.endswith('.part')
    },
    unigrams_sha256=storage.write_array(out / 'unigrams.npy', unigrams),
    pieces_sha256=storage.write_array(out / 'pieces.npy', tokenizer.word_starts.astype(np.uint8)),
    words={name: _sum('blanks', name, records) for name in corpus.SPLITS},
    report=report.summarize(records, dropped, repeated, unigrams),
    plan=plan,
  )


def _similar(out, config, file, say) -> dict | None:
  """Makes and saves the table of similar words: {file: SHA-256}; None if the config has none."""
  if config.corpus.similar != 'none':
    say(f'Looking for similar words ({config.corpus.similar}).')
  table = similar_lib.build(config.corpus, out, tokenizers.load(out / 'tokenizer'), file)
  return table and similar_lib.save(out / 'similar', table)


def _split(name, records) -> dict:
  return {
    **{key: _sum(key, name, records) for key in ('documents', 'sentences', 'tokens', 'bytes')},
    'shards': [r['splits'][name]['shard'] for r in records if name in r['splits']],
  }


def _sum(key, name, records) -> int:
  return sum(r['splits'][name][key] for r in records if name in r['splits'])


@contextlib.contextmanager
def explained_errors(out):
  """Turns an OSError inside the `with` into a UserError, TransientError or Stopped with a sentence,
  and gives Ctrl-C one. out: the folder that is written.
  """
  try:
    yield
  except KeyboardInterrupt:
    raise KeyboardInterrupt('Interrupted: run the same command again to resume.') from None
  except OSError as e:
    if e.errno is None or isinstance(e, ConnectionError):
      raise
    passing = errors.TransientError if storage.may_pass(e) else errors.UserError
    raise (errors.Stopped if e.errno in _FULL else passing)(
      f'{e.filename or out}: {e.strerror}. '
      + ('Make room' if e.errno in _FULL else 'Mend that')
      + ' and run the same command again, finished shards are kept.'
    ) from e


def main(asked):
  with explained_errors(asked.out):
    say = lambda text: print(text, flush=True)
    args = asked.config, asked.source, asked.out, asked.tokenizer
    filters = Filters(tuple(asked.where), tuple(asked.exclude))
    if asked.only:
      tokenizer_alone(*args, say, filters, asked.add)
      return
    prepare(
      *args,
      asked.workers,
      say,
      files=Files(asked.phrases, asked.entities, asked.similar),
      filters=filters,
      beam_args=shlex.split(asked.beam_args) if asked.runner == 'beam' else None,
      about=dict(language=asked.language, license=asked.license),
      add=asked.add,
    )


if __name__ == '__main__':
  cli.define_config()
  flags.DEFINE_multi_string(
    'source',
    None,
    'PATTERN[#text_key | #file | #wrapped], tfds:NAME[#text_key] or '
    'hf:NAME[/CONFIG][@REVISION][:SPLIT][#text_key]; may be repeated.',
    required=True,
  )
  cli.required(out='Folder of the corpus, local or gs://.')
  cli.texts(
    tokenizer='Published vocabulary files, a folder of them, or hf:DIR; without it one is trained.',
    add='Pieces that --tokenizer gets in addition: a number (those that save most tokens on the '
    'text), or a file of words, one per line.',
    phrases='Lexicon of phrases, one entry per line, for config.corpus.phrases=lexicon.',
    entities='Lexicon of entities, one entry per line, for config.corpus.entities=lexicon.',
    similar='Word vectors or a thesaurus, for config.corpus.similar=vectors or thesaurus.',
    language='Language of the text for model cards, by its code: et, or en,de. Nothing is derived '
    'from it.',
    license='Licence of the text for model cards, such as cc-by-sa-4.0.',
  )
  flags.DEFINE_multi_string(
    'where', [], 'key=value that a record (JSON, parquet, tfds) must have; may be repeated.'
  )
  flags.DEFINE_multi_string(
    'exclude', [], 'Leave out the documents and longer paragraphs of this source; may be repeated.'
  )
  flags.DEFINE_enum(
    'only', None, ['tokenizer'], 'Stop after this step: the tokenizer alone is written to --out.'
  )
  flags.DEFINE_enum(
    'runner',
    'local',
    ['local', 'beam'],
    'Where shards are made: by processes of this machine, or by Apache Beam.',
  )
  flags.DEFINE_string(
    'beam_args',
    '',
    "Options of Beam in one string, such as '--runner=DataflowRunner --project=P …'.",
  )
  flags.DEFINE_integer('workers', None, 'Processes; one per core if not given.', lower_bound=1)
  cli.run(main)
