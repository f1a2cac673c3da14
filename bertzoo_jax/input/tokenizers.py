"""Tokenizers: text → ids. WordPiece and byte-level BPE, trained here or read from published files.

A kind of tokenizer (one function in BY_NAME, its arguments the fields of the config section) is a `Kind`: what trains a
vocabulary, reads and writes its files, and builds the engine of the `tokenizers` library. `Tokenizer` is what everybody
else uses; another engine (SentencePiece) needs another `Kind` only.
"""

import collections
import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tokenizers as hf
from tokenizers import decoders
from tokenizers import models
from tokenizers import normalizers
from tokenizers import pre_tokenizers
from tokenizers import processors
from tokenizers import trainers

from bertzoo_jax import errors
from bertzoo_jax import storage

ROLES = ('pad', 'unk', 'cls', 'sep', 'mask')


class Vocabulary(NamedTuple):
  """pieces[id], and the merges of a BPE in order (else empty)."""
  pieces: list[str]
  merges: list[tuple[str, str]] = []


class Kind(NamedTuple):
  """What is particular to a kind of tokenizer, with its config fields bound.

  special: {role: piece}. train(texts) → Vocabulary. read({file name: path}) → Vocabulary, or None if the files are not of
  this kind. check(pieces) refuses a published vocabulary made for other fields. files(vocabulary) → {file name: text}.
  engine(vocabulary) → tokenizers.Tokenizer that knows no special text.
  wrap(special ids) → post-processor that puts [CLS] … [SEP] around. starts_word(piece) → bool. mask_eats_blank: whether the
  mask's text swallows a blank before it.
  """
  special: dict[str, str]
  train: Callable
  read: Callable
  check: Callable
  files: Callable
  engine: Callable
  wrap: Callable
  starts_word: Callable
  mask_eats_blank: bool


class Tokenizer:
  """A tokenizer ready for use.

  Attributes:
    section: the config section as a dict.
    pieces: the piece of every id; vocab_size: how many.
    special: {'pad' | 'unk' | 'cls' | 'sep' | 'mask': id}.
    hash: SHA-256 of section, pieces and merges.
    word_starts: bool [V], whether a piece starts a word.
  """

  def __init__(self, section: dict, vocabulary: Vocabulary):
    self.section, self.vocabulary = dict(section), vocabulary
    self.pieces, self.vocab_size = vocabulary.pieces, len(vocabulary.pieces)
    self._kind = _kind(self.section)
    ids = {piece: i for i, piece in enumerate(self.pieces)}
    missing = [piece for piece in self._kind.special.values() if piece not in ids]
    if missing:
      raise errors.UserError(f'The vocabulary lacks the special tokens {", ".join(dict.fromkeys(missing))}: add them, or take the vocabulary files '
                             f'made for {self.section["name"]}.')
    if len(ids) < len(self.pieces):
      twice = [p for p, n in collections.Counter(self.pieces).items() if n > 1]
      raise errors.UserError(f'The vocabulary has {twice[0]!r} twice: every piece must stand once.')
    self.special = {role: ids[piece] for role, piece in self._kind.special.items()}
    self.hash = hashlib.sha256(json.dumps([self.section, self.pieces, vocabulary.merges], sort_keys=True).encode()).hexdigest()
    special = set(self.special.values())
    self.word_starts = np.array([i in special or self._kind.starts_word(p) for i, p in enumerate(self.pieces)])
    self._plain = self._kind.engine(vocabulary)
    self._parsing = None

  def encode(self, texts: list[str]) -> list[np.ndarray]:
    """Ids of each text, int32; no special token is added, and text that looks like one is split like any other."""
    return [np.asarray(e.ids, np.int32) for e in self._plain.encode_batch_fast(texts, add_special_tokens=False)]

  def encode_as_transformers(self, texts: list[str]) -> list[np.ndarray]:
    """As transformers' AutoTokenizer(text, add_special_tokens=False): text that spells a special token becomes that token."""
    if self._parsing is None:
      self._parsing = self.parsing_engine()
    return [np.asarray(e.ids, np.int32) for e in self._parsing.encode_batch_fast(texts, add_special_tokens=False)]

  def decode(self, ids) -> str:
    """The text of ids, special tokens spelt out."""
    return self._plain.decode([int(i) for i in ids], skip_special_tokens=False)

  def parsing_engine(self) -> hf.Tokenizer:
    """A `tokenizers` object as tokenizer.json holds it: special tokens parsed, [CLS] … [SEP] put around by its post-processor."""
    engine = self._kind.engine(self.vocabulary)
    engine.add_special_tokens([
        hf.AddedToken(piece, special=True, normalized=False, lstrip=self._kind.mask_eats_blank and role == 'mask')
        for role, piece in self._kind.special.items()])
    engine.post_processor = self._kind.wrap(self.special)
    return engine

  def save(self, folder) -> None:
    """Writes tokenizer.json, the vocabulary files of its kind and bertzoo.json (last, so that it marks a whole folder)."""
    folder = storage.path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in self._kind.files(self.vocabulary).items():
      storage.write_text(folder / name, text)
    storage.write_text(folder / 'tokenizer.json', self.parsing_engine().to_str(pretty=True) + '\n')
    storage.write_json(folder / 'bertzoo.json', dict(section=self.section, special=self.special, hash=self.hash))


def train(section: dict, texts) -> Tokenizer:
  """Trains a tokenizer; the same texts in the same order give the same bytes.

  Args:
    section: config.tokenizer.
    texts: iterator of str; it is streamed, and read more than once if it is a function that returns an iterator.

  Raises:
    UserError: the text does not yield section['vocab_size'] pieces.
  """
  tokenizer = Tokenizer(section, _kind(section).train(texts))
  _check_size(tokenizer, f'The text yields {tokenizer.vocab_size} pieces')
  return tokenizer


def load(path, section: dict | None = None) -> Tokenizer:
  """Reads a tokenizer.

  Args:
    path: a folder that `save` wrote; or published files, as a file, a folder, or several of these joined by commas:
      vocab.txt; vocab.json or encoder.json with merges.txt or vocab.bpe, and for RoBERTa in fairseq's form dict.txt;
      or tokenizer.json.
    section: config.tokenizer; None takes the one that `save` stored.

  Raises:
    UserError: nothing to read there, not the kind or size the section wishes, special tokens missing.
  """
  files = _files(path)
  if 'bertzoo.json' in files:
    return _load_saved(files, section)
  if section is None:
    raise errors.UserError(f'{path} has no bertzoo.json, so how its text is to be split is unknown: it must come from prepare.')
  kind = _kind(section)
  vocabulary = kind.read(files)
  if vocabulary is None:
    there = ', '.join(sorted(files)) or 'nothing'
    raise errors.UserError(f'{path} holds {there}: a {section["name"]} tokenizer is read from {_READS[section["name"]]}.')
  kind.check(vocabulary.pieces)
  tokenizer = Tokenizer(section, vocabulary)
  _check_size(tokenizer, f'The vocabulary {path} has {tokenizer.vocab_size} pieces')
  return tokenizer


def _load_saved(files, section):
  meta, folder = _read_json(files['bertzoo.json']), files['bertzoo.json'].parent
  if not isinstance(meta.get('section'), dict) or 'name' not in meta['section']:
    raise errors.UserError(f'{folder}/bertzoo.json is not what prepare wrote: copy the folder again.')
  if section is not None and dict(section) != meta['section']:
    wished = dict(section)
    differing = [f'{k} {meta["section"].get(k)!r} there, {wished.get(k)!r} in the config' for k in {**meta['section'], **wished}
                 if meta['section'].get(k) != wished.get(k)]
    raise errors.UserError(f'The tokenizer {folder} is not the one the config wishes ({"; ".join(differing)}): '
                           'set --config.tokenizer.… to what is there, or take another.')
  vocabulary = _kind(meta['section']).read({k: v for k, v in files.items() if k != 'tokenizer.json'})
  tokenizer = vocabulary and Tokenizer(meta['section'], vocabulary)
  if tokenizer is None or tokenizer.hash != meta.get('hash'):
    raise errors.UserError(f'The tokenizer files in {folder} were changed or damaged (hash): copy the folder again.')
  return tokenizer


def _kind(section) -> Kind:
  return errors.build(section, BY_NAME, 'tokenizer')


def _check_range(name, value, least, most=math.inf):
  if not least <= value <= most:
    raise errors.UserError(f'--config.tokenizer.{name}={value}: it must be at least {least}{f" and at most {most}" if most < math.inf else ""}.')


def _check_size(tokenizer, what):
  wished = tokenizer.section['vocab_size']
  if tokenizer.vocab_size != wished:
    raise errors.UserError(f'{what}, the config wishes {wished}: set --config.tokenizer.vocab_size={tokenizer.vocab_size}.')


def _files(path) -> dict:
  """{file name: path} of files and folders joined by commas."""
  files = {}
  for part in str(path).split(','):
    p = storage.path(part.strip())
    if p.is_dir():
      files.update({f.name: f for f in p.iterdir() if not f.is_dir()})
    elif p.exists():
      files[p.name] = p
    else:
      raise errors.UserError(f'--tokenizer: {part.strip()} does not exist.')
  return files


def _read(path) -> str:
  try:
    return path.read_bytes().decode('utf-8')
  except UnicodeDecodeError as e:
    raise errors.UserError(f'{path} is not UTF-8 (byte {e.start}): is it a vocabulary file?') from e


def _read_json(path) -> dict:
  try:
    value = json.loads(_read(path))
  except (ValueError, RecursionError) as e:
    raise errors.UserError(f'{path} is not JSON, or cut short: is it a vocabulary file?') from e
  if not isinstance(value, dict):
    raise errors.UserError(f'{path} holds no JSON object: is it a vocabulary file?')
  return value


def _read_model(path) -> dict:
  """What a tokenizer.json calls its model; {} where it has none."""
  model = _read_json(path).get('model')
  return model if isinstance(model, dict) else {}


# --- WordPiece --------------------------------------------------------------------------------------------------------


def wordpiece(*, vocab_size, lowercase, strip_accents, split_chinese, normalization, max_word_chars, min_frequency, coverage) -> Kind:
  """BERT's WordPiece: greedy longest match in words split at blanks and punctuation, `##` inside a word.

  The fields are described in configs/parts.py. Equal to transformers' BertTokenizer where normalization is 'none',
  max_word_chars 100 and strip_accents equal to lowercase (tests/input/test_tokenizers.py).
  """
  _check_range('vocab_size', vocab_size, 1)
  _check_range('min_frequency', min_frequency, 0)
  _check_range('max_word_chars', max_word_chars, 1, 10_000)
  special = dict(pad='[PAD]', unk='[UNK]', cls='[CLS]', sep='[SEP]', mask='[MASK]')
  clean = _normalizer(normalization, normalizers.BertNormalizer(
      clean_text=True, handle_chinese_chars=split_chinese, strip_accents=strip_accents, lowercase=lowercase))

  def engine(vocabulary):
    ids = {p: i for i, p in enumerate(vocabulary.pieces)}
    built = hf.Tokenizer(models.WordPiece(ids, unk_token='[UNK]', max_input_chars_per_word=max_word_chars, continuing_subword_prefix='##'))
    built.normalizer, built.pre_tokenizer, built.decoder = clean, pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(prefix='##')
    return built

  def train(texts):
    letters = _letters(texts, clean, coverage, vocab_size)
    inside = ['##' + c for c in letters if not _stands_alone(c, split_chinese)]
    # The library numbers letters in the order of a hash map with a random seed, and breaks ties between merges by number:
    # only letters that it is given as special tokens have the same number in every run.
    known = [*special.values(), *letters, *inside]
    built = hf.Tokenizer(models.WordPiece(unk_token='[UNK]', max_input_chars_per_word=max_word_chars))
    # A word over the limit is unknown whatever is learnt.
    built.normalizer, built.pre_tokenizer = clean, _without_long_words(pre_tokenizers.BertPreTokenizer(), max_word_chars)
    trainer = trainers.WordPieceTrainer(vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=known, initial_alphabet=letters,
                                        limit_alphabet=len(letters), show_progress=False)
    built.train_from_iterator(_once(texts), trainer)
    return Vocabulary(_by_id(built.get_vocab(with_added_tokens=True)))

  def read(files):
    if 'vocab.txt' in files:
      pieces = re.sub(r'\r\n?', '\n', _read(files['vocab.txt'])).rstrip('\n').split('\n')
    elif 'tokenizer.json' in files:
      model = _read_model(files['tokenizer.json'])
      if model.get('type', 'WordPiece') != 'WordPiece' or not isinstance(model.get('vocab'), dict):
        return None
      pieces = _by_id(model['vocab'])
    else:
      return None
    return Vocabulary(pieces)

  def check(pieces):
    _check_case(pieces, lowercase)

  def wrap(ids):
    return processors.TemplateProcessing(single='[CLS]:0 $A:0 [SEP]:0', pair='[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1',
                                         special_tokens=[('[CLS]', ids['cls']), ('[SEP]', ids['sep'])])

  def files(vocabulary):
    return {'vocab.txt': '\n'.join(vocabulary.pieces) + '\n'}

  return Kind(special, train, read, check, files, engine, wrap, lambda p: not p.startswith('##'), False)


def _letters(texts, clean, coverage, vocab_size) -> list[str]:
  """The most frequent characters, enough for `coverage` of all that are not blank, in the order of their code points."""
  counts = collections.Counter()
  for text in _once(texts):
    counts.update(clean.normalize_str(text))
  for c in [c for c in counts if c.isspace()]:
    del counts[c]
  total, kept, covered = sum(counts.values()), [], 0
  for c, n in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
    if covered >= coverage * total:
      break
    kept.append(c)
    covered += n
  if 2 * len(kept) + len(ROLES) > vocab_size and sum(1 if _stands_alone(c, True) else 2 for c in kept) + len(ROLES) > vocab_size:
    raise errors.UserError(f'The text has {len(kept)} different characters, too many for {vocab_size} pieces: raise --config.tokenizer.vocab_size, '
                           'or lower --config.tokenizer.coverage.')
  return sorted(kept)


def _stands_alone(c, split_chinese) -> bool:
  """Whether BERT's splitting makes a word of this character alone: punctuation, and CJK if it is split."""
  code = ord(c)
  if 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126 or unicodedata.category(c).startswith('P'):
    return True
  return split_chinese and any(a <= code <= b for a, b in _CJK)


_CJK = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B920, 0x2CEAF),
        (0xF900, 0xFAFF), (0x2F800, 0x2FA1F))


def _check_case(pieces, lowercase):
  """Refuses a cased vocabulary under lower-casing, where a third of it could never occur."""
  words = [p for p in pieces if p.isalpha()]
  upper = sum(p != p.lower() for p in words)
  if lowercase and upper > 0.05 * len(words):
    raise errors.UserError(f'The vocabulary is cased ({upper} pieces with capitals): set --config.tokenizer.lowercase=False '
                           '--config.tokenizer.strip_accents=False.')
  if not lowercase and upper == 0 and any(p.isascii() for p in words):
    raise errors.UserError('The vocabulary is uncased (no piece has a capital): set --config.tokenizer.lowercase=True '
                           '--config.tokenizer.strip_accents=True.')


# --- byte-level BPE ---------------------------------------------------------------------------------------------------


def byte_bpe(*, vocab_size, lowercase, normalization, add_prefix_space, min_frequency) -> Kind:
  """GPT-2's byte-level BPE with RoBERTa's specials, which no text can spell by merges.

  Equal to transformers' RobertaTokenizer where lowercase is False and normalization 'none'.
  """
  _check_range('vocab_size', vocab_size, 1)
  _check_range('min_frequency', min_frequency, 0)
  special = dict(pad='<pad>', unk='<unk>', cls='<s>', sep='</s>', mask='<mask>')
  clean = _normalizer(normalization, normalizers.Lowercase() if lowercase else None)
  split = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)

  def dress(built):
    if clean is not None:
      built.normalizer = clean
    built.pre_tokenizer, built.decoder = split, decoders.ByteLevel()
    return built

  def engine(vocabulary):
    ids = {p: i for i, p in enumerate(vocabulary.pieces)}
    return dress(hf.Tokenizer(models.BPE(ids, vocabulary.merges, continuing_subword_prefix='', end_of_word_suffix='', fuse_unk=False)))

  def train(texts):
    built = dress(hf.Tokenizer(models.BPE()))
    built.pre_tokenizer = _without_long_words(split, 1000)
    trainer = trainers.BpeTrainer(vocab_size=vocab_size - 1, min_frequency=min_frequency, special_tokens=['<s>', '<pad>', '</s>', '<unk>'],
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)
    built.train_from_iterator(_once(texts), trainer)
    merges = [tuple(m) for m in json.loads(built.to_str())['model']['merges']]
    return Vocabulary([*_by_id(built.get_vocab(with_added_tokens=True)), '<mask>'], merges)

  def read(files):
    if 'tokenizer.json' in files and not {'vocab.json', 'encoder.json'} & set(files):
      model = _read_model(files['tokenizer.json'])
      if model.get('type', 'BPE') != 'BPE' or not isinstance(model.get('vocab'), dict) or not isinstance(model.get('merges'), list):
        return None
      pieces = _by_id(model['vocab'])
      return Vocabulary(pieces, _merges(model['merges'], pieces, files['tokenizer.json']))
    ids = files.get('vocab.json') or files.get('encoder.json')
    merges = files.get('merges.txt') or files.get('vocab.bpe')
    if ids is None or merges is None:
      return None
    lines = re.sub(r'\r\n?', '\n', _read(merges)).split('\n')
    pieces = _by_id(_read_json(ids))
    merges = _merges([line for line in lines if line and not line.startswith('#version')], pieces, merges)
    if 'dict.txt' in files:
      pieces = _fairseq_order(pieces, _read(files['dict.txt']))
    elif '<|endoftext|>' in pieces and '<mask>' not in pieces:
      raise errors.UserError('This is GPT-2\'s vocabulary, without <s>, <pad>, </s>, <unk> and <mask>: add RoBERTa\'s dict.txt '
                             '(--tokenizer=FOLDER,dict.txt), or train one.')
    return Vocabulary(pieces, merges)

  def files(vocabulary):
    ids = {p: i for i, p in enumerate(vocabulary.pieces)}
    return {'vocab.json': json.dumps(ids, ensure_ascii=False) + '\n',
            'merges.txt': '#version: 0.2\n' + ''.join(f'{a} {b}\n' for a, b in vocabulary.merges)}

  def wrap(ids):
    return processors.RobertaProcessing(('</s>', ids['sep']), ('<s>', ids['cls']), trim_offsets=True, add_prefix_space=add_prefix_space)

  return Kind(special, train, read, lambda pieces: None, files, engine, wrap, lambda p: p[0] in 'ĠĊĉč', True)


def _merges(rows, pieces, path) -> list[tuple[str, str]]:
  known, merges = set(pieces), []
  for row in rows:
    merge = tuple(row.split(' ')) if isinstance(row, str) else tuple(row) if isinstance(row, list) else ()
    if len(merge) != 2 or not all(isinstance(m, str) for m in merge) or not {*merge, ''.join(merge)} <= known:
      raise errors.UserError(f'{path}: {row!r} is not a merge of two pieces of the vocabulary into a third: do the files belong together?')
    merges.append(merge)
  return merges


def _fairseq_order(gpt2_pieces, dictionary) -> list[str]:
  """RoBERTa's order: <s> <pad> </s> <unk>, then dict.txt (a GPT-2 id a line) and its fillers up to 50264, then <mask>."""
  pieces = ['<s>', '<pad>', '</s>', '<unk>']
  for line in dictionary.splitlines()[:50260]:
    word = line.split(' ')[0]
    if word.isdecimal() and int(word) >= len(gpt2_pieces):
      raise errors.UserError(f'dict.txt speaks of id {word}, the vocabulary has {len(gpt2_pieces)}: take the files that belong together.')
    pieces.append(gpt2_pieces[int(word)] if word.isdecimal() else word)
  return [*pieces, '<mask>']


# --- shared -----------------------------------------------------------------------------------------------------------


def _normalizer(normalization, then):
  first = {'none': None, 'nfc': normalizers.NFC, 'nfkc': normalizers.NFKC}
  first = errors.choose(normalization, first, 'normalization')
  chain = [n for n in (first and first(), then) if n is not None]
  return normalizers.Sequence(chain) if len(chain) > 1 else chain[0] if chain else None


def _without_long_words(split, most):
  """For training alone, whose time grows with the square of a word's length."""
  return pre_tokenizers.Sequence([split, pre_tokenizers.Split(hf.Regex(f'^.{{{most + 1},}}$'), 'removed')])


def _by_id(ids: dict) -> list[str]:
  pieces = sorted(ids, key=ids.get) if all(type(i) is int for i in ids.values()) else []
  if not pieces or [ids[p] for p in pieces] != list(range(len(pieces))):
    raise errors.UserError('The vocabulary\'s ids do not run from 0 without a gap: it cannot be used as it is.')
  return pieces


def _once(texts):
  return texts() if callable(texts) else iter(texts)


_READS = {'wordpiece': 'vocab.txt or tokenizer.json (of a WordPiece)',
          'byte_bpe': 'vocab.json and merges.txt, encoder.json and vocab.bpe (with RoBERTa\'s dict.txt), or tokenizer.json (of a BPE)'}

BY_NAME = {'wordpiece': wordpiece, 'byte_bpe': byte_bpe}
