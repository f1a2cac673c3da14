"""A kind of tokenizer, and what all kinds share: files, normalization, limits of training."""

from collections.abc import Callable
from typing import NamedTuple

import tokenizers as hf

from bertzoo_jax.common import errors
from bertzoo_jax.common import vocabulary as files

read_json, read_text = files.read_json, files.read_text

ROLES = ('pad', 'unk', 'cls', 'sep', 'mask')


class OtherSize(errors.UserError):
  """The text yields a vocabulary of `size`, not of the config's size."""

  def __init__(self, sentence: str, size: int):
    super().__init__(sentence)
    self.size = size


class Vocabulary(NamedTuple):
  """pieces[id], merges of a byte-level BPE in order, file of a SentencePiece model."""

  pieces: list[str]
  merges: list[tuple[str, str]] = []
  model: bytes = b''


class Kind(NamedTuple):
  """One kind of tokenizer, with its config fields bound.

  special: {role: piece}. train(texts, least) → Vocabulary, in which at least this share of the
  characters has a piece, else OtherSize. read({file name: path}) → Vocabulary, or None if the files
  are of another kind. check(pieces) refuses a published vocabulary made for other fields.
  files(vocabulary) → {file name: text or bytes}. engine(vocabulary) → tokenizers.Tokenizer that
  parses no special pieces. wrap(special ids) → post-processor that puts [CLS] … [SEP] around.
  starts_word(piece) → bool. mask_eats_blank: whether the mask absorbs a blank before it. reads:
  description of the files that `read` takes. pairs: whether a piece is a merge of two.
  joined(pieces) → the piece that neighbours form, '' if they may not. extended(vocabulary,
  [growth.Added], new pieces) → Vocabulary with them at its end. bound(kind, vocabulary) → the Kind
  with fields that depend on the vocabulary. parsed() → the engine of tokenizer.json, if `engine`
  and `wrap` do not make it. worded(vocabulary) → Vocabulary that puts a blank before each word, if
  no config field does.
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
  reads: str
  extended: Callable
  pairs: bool = False
  joined: Callable = ''.join
  bound: Callable = lambda kind, vocabulary: kind
  parsed: Callable | None = None
  worded: Callable | None = None


def read_model(path) -> dict:
  """The section `model` of a tokenizer.json; {} if it has none."""
  model = read_json(path).get('model')
  return model if isinstance(model, dict) else {}


def normalizer(normalization, then):
  """Unicode normalization (none | nfc | nfkc) and then a normalizer or None; None for neither."""
  first = {'none': None, 'nfc': hf.normalizers.NFC, 'nfkc': hf.normalizers.NFKC}[normalization]
  chain = [n for n in (first and first(), then) if n is not None]
  return hf.normalizers.Sequence(chain) if len(chain) > 1 else chain[0] if chain else None


def check_case(pieces, lowercase):
  """Refuses a cased vocabulary under lower-casing, and an uncased one without."""
  words = [p for p in pieces if p.isalpha()]
  upper = sum(p != p.lower() for p in words)
  if lowercase and upper > 0.05 * len(words):
    raise errors.UserError(
      f'The vocabulary is cased ({upper} pieces with capitals): set '
      '--config.tokenizer.lowercase=False --config.tokenizer.strip_accents=False.'
    )
  if not lowercase and upper == 0 and any(p.isascii() for p in words):
    raise errors.UserError(
      'The vocabulary is uncased (no piece has a capital): set --config.tokenizer.lowercase=True '
      '--config.tokenizer.strip_accents=True.'
    )


def without_long_words(split, most):
  """A pre-tokenizer for training only, whose time grows with the square of a word's length."""
  return hf.pre_tokenizers.Sequence(
    [split, hf.pre_tokenizers.Split(hf.Regex(f'^.{{{most + 1},}}$'), 'removed')]
  )


def by_id(ids: dict) -> list[str]:
  """The pieces of {piece: id} by id; UserError unless ids run from 0 without a gap."""
  pieces = sorted(ids, key=ids.get) if all(type(i) is int for i in ids.values()) else []
  if not pieces or [ids[p] for p in pieces] != list(range(len(pieces))):
    raise errors.UserError(
      "The vocabulary's ids do not run from 0 without a gap: it cannot be used as it is."
    )
  return pieces


def once(texts):
  """One reading of texts: an iterator, or a function that returns one."""
  return texts() if callable(texts) else iter(texts)
