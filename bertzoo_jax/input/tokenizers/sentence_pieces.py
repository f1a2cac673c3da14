"""SentencePiece, unigram and BPE, through the library of that name: its ids are its own, whatever the text.

Loading refuses a model made for other fields; training streams the text. tokenizer.json comes from `fast_pieces`.
"""

import string
import unicodedata

import numpy as np
import sentencepiece as library
from tokenizers import processors

from bertzoo_jax import errors
from bertzoo_jax.input.tokenizers import cleaning
from bertzoo_jax.input.tokenizers import fast_pieces
from bertzoo_jax.input.tokenizers import kinds
from bertzoo_jax.input.tokenizers import model_files
from bertzoo_jax.input.tokenizers import piece_training

BLANK = '\u2581'
_MARKS = frozenset(string.punctuation)
_LATIN = frozenset(string.ascii_letters) | _MARKS | {'\u20ac', '\u00a3'}


def sentencepiece(*, vocab_size, model, specials, symbols, normalization, lowercase, strip_accents, blanks, quotes, digit_commas, word_starts,
                  coverage, sample, seed) -> kinds.Kind:
  """SentencePiece (Kudo and Richardson 2018); the fields are described in configs/parts.py.

  `encode` gives the library's ids of the cleaned text, except that no text spells a special piece, not even one that the
  model has as a user-defined symbol.
  """
  kinds.check_range('vocab_size', vocab_size, 1)
  kinds.check_range('sample', sample, 1)
  starts = errors.choose(word_starts, WORD_STARTS, 'tokenizer.word_starts')
  errors.choose(digit_commas, {'keep': 0, 'split': 1}, 'tokenizer.digit_commas')
  errors.choose(model, {'unigram': 0, 'bpe': 1}, 'tokenizer.model')
  clean = cleaning.Cleaner(blanks, quotes, strip_accents, lowercase)
  first, last = _layout(specials)
  special = dict(first + last)
  own = symbols.split()

  def train(texts):
    fields = piece_training.Fields(vocab_size - len(last), model, first, own, normalization, coverage, sample, seed)
    return vocabulary(piece_training.train(fields, (clean(text) for text in kinds.once(texts)), len(last)))

  def vocabulary(data, path='the model'):
    held = model_files.parse(data, path)
    texts = [p.text for p in held.pieces]
    return kinds.Vocabulary(texts + [piece for _, piece in last if piece not in texts], model=data)

  def read(files):
    names = sorted(name for name in files if name.endswith('.model'))
    if not names:
      return None
    if len(names) > 1:
      raise errors.UserError(f'There are {len(names)} models ({", ".join(names)}): name the one that is meant.')
    found, path = vocabulary(files[names[0]].read_bytes(), files[names[0]]), files[names[0]]
    _check_model(model_files.parse(found.model), path, model, normalization, first, last)
    return found

  def encoder(found):
    return Encoder(found, set(special.values()), clean, digit_commas == 'split')

  def engine(found):
    return fast_pieces.build(model_files.parse(found.model), found.pieces, special, clean.normalizers(), digit_commas == 'split')

  def check(pieces):
    kinds.check_case(pieces, lowercase, strip_accents)

  def wrap(ids):
    cls, sep = special['cls'], special['sep']
    return processors.TemplateProcessing(single=f'{cls}:0 $A:0 {sep}:0', pair=f'{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1',
                                         special_tokens=[(cls, ids['cls']), (sep, ids['sep'])])

  return kinds.Kind(special, train, read, check, lambda found: {'spiece.model': found.model}, engine, wrap, starts, True,
                    reads='one .model (spiece.model, spm.model, sentencepiece.bpe.model …)', encoder=encoder)


class Encoder:
  """A model at work: texts to ids, and back."""

  def __init__(self, vocabulary: kinds.Vocabulary, special: set[str], clean: cleaning.Cleaner, split_commas: bool):
    self._model = library.SentencePieceProcessor(model_proto=model_files.hide(vocabulary.model, special))
    self._pieces, self._clean = vocabulary.pieces, clean
    self._known = self._model.vocab_size()
    self._split = {}
    if split_commas:
      ids = {piece: i for i, piece in enumerate(vocabulary.pieces)}
      unknown = self._model.unk_id()
      self._split = {i: [ids.get(p, unknown) for p in self._without_comma(piece)] for i, piece in enumerate(vocabulary.pieces[:self._known])
                     if len(piece) > 1 and piece[-1] == ',' and piece[-2].isdigit()}
    self._ends_in_comma = np.zeros(self._known, bool)
    self._ends_in_comma[list(self._split)] = True

  def _without_comma(self, piece):
    """A piece that ends in a digit and a comma, as two or more (code of Yang et al. 2019): the digits split anew, the comma."""
    inner = self._model.encode(piece[:-1].replace(BLANK, ''), return_type=str)
    if piece[0] != BLANK and inner[0][0] == BLANK:
      inner = inner[1:] if len(inner[0]) == 1 else [inner[0][1:], *inner[1:]]
    return [*inner, ',']

  def encode(self, texts):
    """Ids of each text, int32."""
    rows = self._model.encode([self._clean(t) for t in texts], return_type='numpy', num_threads=1)
    return [self._with_commas(row) for row in rows] if self._split else rows

  def encode_with_offsets(self, texts):
    """(ids, starts, ends) of each text, int32, in characters of the text as given."""
    out = []
    for text in texts:
      clean, starts, ends = self._clean.aligned(text)
      row = self._model.encode(clean, return_type='offset_mapping', num_threads=1)
      ids, spans = np.asarray(row['ids'], np.int32), np.asarray(row['offsets'], np.int32).reshape(-1, 2)
      if self._split and self._ends_in_comma[ids].any():
        ids, spans = self._spans_with_commas(ids, spans)
      out.append((ids, *_through(spans, starts, ends, len(text))))
    return out

  def decode(self, ids):
    """The text of ids, special pieces spelt out."""
    words, run = [], []
    for i in [*ids, None]:
      special = i is None or i >= self._known or self._model.is_control(i) or self._model.is_unknown(i)
      if not special:
        run.append(i)
        continue
      words += [self._model.decode(run)] if run else []
      words += [] if i is None else [self._pieces[i]]
      run = []
    return ' '.join(words)

  def _with_commas(self, row):
    if not self._ends_in_comma[row].any():
      return row
    return np.asarray([j for i in row.tolist() for j in self._split.get(i, (i,))], np.int32)

  def _spans_with_commas(self, ids, spans):
    """As `_with_commas`, and the characters: of the pieces in place of one, the last ones have as many as they are long."""
    out, places = [], []
    for i, (start, end) in zip(ids.tolist(), spans.tolist()):
      parts = self._split.get(i, (i,))
      cuts = [end]
      for part in parts[:0:-1]:
        cuts.append(max(start, cuts[-1] - len(self._pieces[part])))
      cuts.append(start)
      out += parts
      places += list(zip(cuts[:0:-1], cuts[-2::-1]))
    return np.asarray(out, np.int32), np.asarray(places, np.int32)


def _through(spans, starts, ends, length):
  """Spans of the cleaned text as spans of the text: (starts, ends)."""
  if not len(spans):
    return np.zeros(0, np.int32), np.zeros(0, np.int32)
  if not len(starts):
    return spans[:, 0] * 0, spans[:, 1] * 0
  at = np.append(starts, ends[-1])
  first = at[spans[:, 0]]
  return first.astype(np.int32), np.where(spans[:, 1] > spans[:, 0], ends[np.maximum(spans[:, 1] - 1, 0)], first).astype(np.int32)


# --- which pieces start a word ----------------------------------------------------------------------------------------


def _by_blank_or_ascii_mark(piece):
  return piece[0] in BLANK + '<' or piece in _MARKS


def _by_blank_mark_or_foreign_letter(piece):
  return _by_blank_or_ascii_mark(piece) or piece in _LATIN - set(string.ascii_letters) or not set(piece) <= _LATIN


def _by_blank_or_any_mark(piece):
  # All of ASCII that is neither letter nor digit is punctuation here, as in BERT's splitting.
  return piece[0] == BLANK or len(piece) == 1 and (piece in _MARKS or unicodedata.category(piece)[0] in 'PZC')


WORD_STARTS = {'ascii': _by_blank_or_ascii_mark, 'letters': _by_blank_mark_or_foreign_letter, 'unicode': _by_blank_or_any_mark}


# --- fields and models ------------------------------------------------------------------------------------------------


def _layout(specials):
  """([(role, piece)] at the head of the vocabulary, [(role, piece)] after the learnt ones)."""
  words = specials.split()
  at = words.index('...') if '...' in words else len(words)
  parts = [[tuple(word.split('=', 1)) for word in half] for half in (words[:at], words[at + 1:])]
  roles = [pair[0] for half in parts for pair in half]
  known = (*kinds.ROLES, 'bos', 'eos', 'eod', 'eop')
  wrong = [r for r in roles if r not in known] or [r for r in kinds.ROLES if r not in roles] or [r for r in roles if roles.count(r) > 1]
  if wrong or any(len(pair) != 2 or not pair[1] for half in parts for pair in half) or 'unk' not in dict(parts[0]):
    raise errors.UserError(f'config.tokenizer.specials={specials!r}: write role=piece for each of {", ".join(kinds.ROLES)} once (and bos, eos, eod, '
                           'eop where there are such), in the order of their ids; ... stands for the pieces learnt, and unk comes before them.')
  return parts


def _check_model(held, path, model, normalization, first, last):
  """Refuses a model whose kind, rule or special pieces are not the config's."""
  if held.kind != model:
    raise errors.UserError(f'{path} is a {held.kind} model, the config wishes {model}: '
                           + (f'set --config.tokenizer.model={held.kind}.' if held.kind in ('unigram', 'bpe') else 'only unigram and bpe are known here.'))
  if held.normalization != normalization:
    raise errors.UserError(f'{path} normalizes by {held.normalization!r}, the config wishes {normalization!r}: '
                           f'set --config.tokenizer.normalization={held.normalization}.')
  if held.suffix:
    raise errors.UserError(f'{path} has blanks at the ends of its pieces (treat_whitespace_as_suffix), which is not supported: train one without.')
  texts = [p.text for p in held.pieces]
  wrong = [(piece, i) for i, (_, piece) in enumerate(first) if texts[i:i + 1] != [piece]]
  wrong += [(piece, len(texts) + i) for i, (_, piece) in enumerate(last) if piece in texts and texts.index(piece) != len(texts) - len(last) + i]
  if wrong:
    (piece, i), there = wrong[0], f'at {texts.index(wrong[0][0])}' if wrong[0][0] in texts else 'nowhere'
    heads = [p.text for p in held.pieces[:len(first) + 4] if p.kind != model_files.NORMAL]
    raise errors.UserError(f'{path} has the special piece {piece!r} {there}, config.tokenizer.specials at {i}; it begins with {" ".join(heads)}: '
                           'write config.tokenizer.specials in that order (as --config.tokenizer.specials="role=piece …").')
