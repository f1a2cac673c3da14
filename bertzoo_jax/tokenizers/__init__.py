"""Tokenizers: text → ids. WordPiece, byte-level BPE and SentencePiece, trained here or read from
published files.

A kind of tokenizer (one function in BY_NAME, in a file of its own; its fields are in
bertzoo_jax/parts/tokenizers.py) returns a `kinds.Kind`, which trains a vocabulary, reads and writes
its files, and builds the engine of the `tokenizers` library. All other code uses `Tokenizer`.
"""

import collections
import functools
import hashlib
import json
import unicodedata

import numpy as np
import tokenizers as hf

from bertzoo_jax.common import config as configuration
from bertzoo_jax.common import errors
from bertzoo_jax.common import folders
from bertzoo_jax.common import hub
from bertzoo_jax.common import storage
from bertzoo_jax.parts import named
from bertzoo_jax.tokenizers import as_published
from bertzoo_jax.tokenizers import byte_bpe
from bertzoo_jax.tokenizers import engines
from bertzoo_jax.tokenizers import kinds
from bertzoo_jax.tokenizers import published
from bertzoo_jax.tokenizers import sentence_pieces
from bertzoo_jax.tokenizers import wordpiece

# The least share of the text's characters that have a piece: for a vocabulary of size 'auto', and
# for one of a given size.
COVERED, _LEAST_COVERED = 0.9995, 0.9


class Tokenizer(engines.Engines):
  """A tokenizer ready for use.

  Attributes:
    section: the config section as a dict.
    pieces: the piece of every id; vocab_size: how many.
    special: {'pad' | 'unk' | 'cls' | 'sep' | 'mask': id}, with some layouts also 'eod' and 'eop'
      (end of a document, of a paragraph).
    hash: SHA-256 of section, pieces, merges and the model's file.
    word_starts: bool [V], whether a piece starts a word.
    kind: kinds.Kind of the section.
  """

  def __init__(self, section: dict, vocabulary: kinds.Vocabulary):
    self.section, self.vocabulary = dict(section), vocabulary
    self.pieces, self.vocab_size = vocabulary.pieces, len(vocabulary.pieces)
    kind = _kind(self.section)
    self.kind = kind.bound(kind, vocabulary)
    ids = {piece: i for i, piece in enumerate(self.pieces)}
    if missing := [piece for piece in self.kind.special.values() if piece not in ids]:
      raise errors.UserError(
        f'The vocabulary lacks the special tokens {", ".join(dict.fromkeys(missing))}: add them, '
        f'or take the vocabulary files made for {self.section["name"]}.'
      )
    if len(ids) < len(self.pieces):
      twice = [p for p, n in collections.Counter(self.pieces).items() if n > 1]
      raise errors.UserError(f'The vocabulary has {twice[0]!r} twice: every piece must stand once.')
    self.special = {role: ids[piece] for role, piece in self.kind.special.items()}
    model = [hashlib.sha256(vocabulary.model).hexdigest()] if vocabulary.model else []
    self.hash = hashlib.sha256(
      json.dumps([self.section, self.pieces, vocabulary.merges, *model], sort_keys=True).encode()
    ).hexdigest()
    special = set(self.special.values())
    self.word_starts = np.array(
      [i in special or self.kind.starts_word(p) for i, p in enumerate(self.pieces)]
    )
    self._plain = self._spelling = self.kind.engine(vocabulary)
    if self.kind.parsed:
      self._spelling = self.kind.parsed()

  @functools.cached_property
  def _parsing(self) -> hf.Tokenizer:
    return self.parsing_engine()

  def removed(self, texts: list[str]) -> tuple[int, int]:
    """(marks, joiners) that normalization removes from texts, in number. Marks are accents, vowel
    signs and the like, also within composed letters. Joiners are U+200C, U+200D.
    """
    clean, removed = self._plain.normalizer, [0, 0]
    for text in texts if clean is not None else ():
      if not text.isascii():
        pairs = zip(_marks(text), _marks(clean.normalize_str(text)))
        removed = [total + max(0, before - after) for total, (before, after) in zip(removed, pairs)]
    return removed[0], removed[1]

  def parsing_engine(self) -> hf.Tokenizer:
    """The `tokenizers` object of tokenizer.json: specials parsed, [CLS] … [SEP] put around."""
    if self.kind.parsed:
      return self.kind.parsed()
    engine = self.kind.engine(self.vocabulary)
    engine.add_special_tokens(
      [
        hf.AddedToken(
          piece,
          special=True,
          normalized=False,
          lstrip=self.kind.mask_eats_blank and role == 'mask',
        )
        for role, piece in self.kind.special.items()
      ]
    )
    engine.post_processor = self.kind.wrap(self.special)
    return engine

  def with_pieces(self, added: list, pieces: list[str]) -> 'Tokenizer':
    """The tokenizer with further `pieces`. added: [growth.Added] in order; merges may also produce
    pieces that exist.
    """
    vocabulary = self.kind.extended(self.vocabulary, added, pieces)
    return Tokenizer({**self.section, 'vocab_size': len(vocabulary.pieces)}, vocabulary)

  def for_words(self) -> 'Tokenizer':
    """The tokenizer whose texts are split as `encode_words` splits words."""
    if self.kind.worded:
      return Tokenizer(self.section, self.kind.worded(self.vocabulary))
    if self.section.get('add_prefix_space', True):
      return self
    return Tokenizer({**self.section, 'add_prefix_space': True}, self.vocabulary)

  def save(self, folder) -> None:
    """Writes tokenizer.json, the vocabulary files of its kind and, last, bertzoo.json."""
    folder = storage.path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in self.kind.files(self.vocabulary).items():
      write = storage.write_bytes if isinstance(content, bytes) else storage.write_text
      write(folder / name, content)
    storage.write_text(folder / 'tokenizer.json', self.parsing_engine().to_str(pretty=True) + '\n')
    storage.write_json(
      folder / 'bertzoo.json', dict(section=self.section, special=self.special, hash=self.hash)
    )


def _marks(text) -> tuple[int, int]:
  """(marks, joiners) of a text."""
  apart = collections.Counter(unicodedata.normalize('NFD', text))
  marks = sum(n for c, n in apart.items() if unicodedata.category(c).startswith('M'))
  return marks, apart['\u200c'] + apart['\u200d']


def size_for(text_bytes: int) -> int:
  """The vocabulary size that 'auto' stands for: twice the square root of the bytes of text, to a
  multiple of 64, from 1,024 to 32,768.

  2,560 pieces for the 1.7 MB of the sample, 20,032 for 100 MB, 32,768 (BERT has 30,522) from
  268 MB on.
  """
  return min(max(1024, 64 * round(2 * text_bytes**0.5 / 64)), 32_768)


def train(section: dict, texts, text_bytes: int = 0) -> Tokenizer:
  """Trains a tokenizer; the same texts in the same order give the same bytes.

  section: config.tokenizer. A vocab_size of 'auto' becomes that of `size_for`, or the number of
  pieces that the text yields, if that is less. It grows if the characters that cover COVERED of the
  text need more room. texts: iterator of str, which is streamed; or a function that returns one,
  which may be called several times. text_bytes: bytes of the whole text, for 'auto'.

  Raises UserError: the text does not yield section['vocab_size'] pieces.
  """
  size, is_auto = size_for(text_bytes), vocab_size_of(section) == configuration.AUTO
  while True:
    try:
      vocabulary = _kind(_sized(section, size)).train(texts, COVERED if is_auto else _LEAST_COVERED)
      break
    except kinds.OtherSize as e:
      if not is_auto or e.size == size:
        raise
      size = e.size
  tokenizer = Tokenizer(_sized(section, len(vocabulary.pieces)), vocabulary)
  _check_size(tokenizer, f'The text yields {tokenizer.vocab_size} pieces')
  return tokenizer


def load(path, section: dict | None = None) -> Tokenizer:
  """Reads a tokenizer.

  Args:
    path: a folder that `save` wrote, or a corpus or workdir with such a folder; or published files,
      as a file, a folder, or several of these joined by commas: vocab.txt; vocab.json or
      encoder.json with merges.txt or vocab.bpe, and for RoBERTa in fairseq's form dict.txt; or
      tokenizer.json; or a SentencePiece model (*.model). hf:DIR or hf:OWNER/NAME is a folder of
      Hugging Face's, whose tokenizer.json must split plain text alike.
    section: config.tokenizer; None takes the one that `save` stored.

  Raises UserError: no tokenizer there, another kind or size than the section's, or special tokens
  missing.
  """
  files = _files(path)
  if 'bertzoo.json' in files:
    return _load_saved(files, section)
  if section is None:
    raise errors.UserError(
      f'{path} has no bertzoo.json, so how its text is to be split is unknown: it must come from '
      'prepare.'
    )
  tokenizer = _published(path, files, section, check=True)
  _check_size(tokenizer, f'The vocabulary {path} has {tokenizer.vocab_size} pieces')
  folder = next((f.parent for name, f in files.items() if name in published.SAYING), None)
  if 'hf:' in str(path) and folder is not None and (theirs := _from_directory(folder)):
    published.check(path, theirs, tokenizer)
  return tokenizer


def open_folder(folder) -> Tokenizer | published.Published:
  """The tokenizer of a folder, for use with weights that lie there or belong to it.

  Both kinds of result are Engines with special, pieces and vocab_size.

  folder: one that `save` wrote, or a local Hugging Face directory. Raises UserError: no such
  folder, damaged files, or files that do not say how text is split.
  """
  folder = storage.path(folder)
  if not folder.is_dir():
    raise errors.UserError(
      f'{folder} does not exist: a workdir holds a copy of its tokenizer; copy CORPUS/tokenizer '
      'there.'
    )
  if (folder / 'bertzoo.json').exists():
    return load(folder)
  if (tokenizer := _from_directory(folder)) is None:
    raise published.unsaid(folder)
  return tokenizer


def _from_directory(folder) -> published.Published | None:
  """The tokenizer of a Hugging Face directory; None if its files do not say how text is split."""
  if (folder / 'tokenizer.json').exists():
    return published.Published(folder, published.content(folder))
  if section := published.section_of(folder):
    tokenizer = _published(folder, _files(folder), section)
    return published.Published(folder, json.loads(tokenizer.parsing_engine().to_str()))
  return None


def _published(path, files, section, check=False) -> Tokenizer:
  """The tokenizer of published files, by a config section. check: whether its pieces must fit."""
  kind = _kind(_sized(section, 1))
  vocabulary = kind.read(files)
  if vocabulary is None:
    names = ', '.join(sorted(files)) or 'nothing'
    raise errors.UserError(
      f'{path} holds {names}: a {section["name"]} tokenizer is read from {kind.reads}.'
    )
  if check:
    kind.check(vocabulary.pieces)
  return Tokenizer(_sized(section, len(vocabulary.pieces)), vocabulary)


def _load_saved(files, section):
  meta, folder = kinds.read_json(files['bertzoo.json']), files['bertzoo.json'].parent
  if not isinstance(meta.get('section'), dict) or 'name' not in meta['section']:
    raise errors.UserError(
      f'{folder}/bertzoo.json is not what prepare wrote: copy the folder again.'
    )
  with errors.unreadable(
    f'{folder}/bertzoo.json has no section of a tokenizer: copy the folder again'
  ):
    wished = section and _sized(section, meta['section'].get('vocab_size'))
  if wished is not None and wished != meta['section']:
    differing = [
      f'{k} {meta["section"].get(k)!r} there, {wished.get(k)!r} in the config'
      for k in {**meta['section'], **wished}
      if meta['section'].get(k) != wished.get(k)
    ]
    raise errors.UserError(
      f'The tokenizer {folder} does not match the config ({"; ".join(differing)}): '
      "set --config.tokenizer.… to the tokenizer's value, or take another."
    )
  with errors.unreadable(f'{folder}/bertzoo.json is not what prepare wrote: copy the folder again'):
    vocabulary = _kind(meta['section']).read(
      {k: v for k, v in files.items() if k != 'tokenizer.json'}
    )
    tokenizer = vocabulary and Tokenizer(meta['section'], vocabulary)
  if tokenizer is None or tokenizer.hash != meta.get('hash'):
    raise errors.UserError(
      f'The tokenizer files in {folder} were changed or damaged (hash): copy the folder again.'
    )
  return tokenizer


def vocab_size_of(section) -> int | str:
  """The vocabulary size that config.tokenizer asks for, or 'auto'."""
  return named.field(section, 'vocab_size', BY_NAME, 'tokenizer')


def _sized(section, size) -> dict:
  """A section with `size` in place of 'auto'."""
  is_auto = vocab_size_of(section) == configuration.AUTO
  return {**section, 'vocab_size': size} if is_auto else dict(section)


def _kind(section) -> kinds.Kind:
  return named.build(section, BY_NAME, 'tokenizer')


def _check_size(tokenizer, what):
  wished = vocab_size_of(tokenizer.section)
  if tokenizer.vocab_size != wished:
    raise errors.UserError(
      f'{what}, the config has {wished}: set --config.tokenizer.vocab_size={tokenizer.vocab_size}.'
    )


def _files(path) -> dict:
  """{file name: path} of files and folders joined by commas."""
  files = {}
  for name in storage.addresses(str(path)):
    p = hub.folder(name[3:], hub.TOKENIZER) if name.startswith('hf:') else storage.path(name)
    if not (p / 'bertzoo.json').exists() and (p / 'tokenizer' / 'bertzoo.json').exists():
      p = p / 'tokenizer'  # p is a corpus or a run
    if p.is_dir():
      files |= {f.name: folders.inside(p, f.name) for f in p.iterdir() if not f.is_dir()}
    elif p.exists():
      files[p.name] = p
    else:
      raise errors.UserError(f'--tokenizer: {name} does not exist.')
  return files


BY_NAME = {
  'wordpiece': wordpiece.wordpiece,
  'byte_bpe': byte_bpe.byte_bpe,
  'sentencepiece': sentence_pieces.sentencepiece,
  'published': as_published.published,
}
