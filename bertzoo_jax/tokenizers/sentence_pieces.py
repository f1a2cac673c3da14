"""SentencePiece (Kudo & Richardson 2018): vocabularies of its library, segmented by the
`tokenizers` library.

The `sentencepiece` library trains; its file is kept as spiece.model. The engine that tokenizer.json
holds segments text, so that training and an export read the same ids. They equal the ids of the
library (after the normalization of ALBERT's and XLNet's released code) except for
* combining marks out of Unicode's order, or behind a compatibility character (`ﬁ` and an acute):
NFKC comes first here;
* characters younger than the library's table, which NFKC knows;
* segmentations of equal score, which are the same pieces in another order (runs of one letter);
* digit_commas='split': the released code cuts a comma off a chosen piece; here such a piece is
never chosen;
* text that spells a special piece, or U+2581 in a model without normalization.
"""

import functools
import io
import math
import re
import string
import sys
import unicodedata
from typing import NamedTuple

import tokenizers as hf

from bertzoo_jax.common import errors
from bertzoo_jax.parts import tokenizers as definitions
from bertzoo_jax.tokenizers import kinds
from bertzoo_jax.tokenizers import spiece_file

BLANK = '▁'  # U+2581, a blank in a piece
# score of an unused piece; far below any log-probability, far above an overflow
_DEAD = -1000.0
_MARGIN = 0.1  # score of a new piece above the sum of the pieces that it joins
_SYMBOL = -0.1  # score of a user-defined symbol; above any log-probability, so that it wins
_LONGEST = 1000  # characters of a word in training
# the compatibility character of NFKC that the library's tables keep, and a private stand-in
_TILDE, _HIDDEN = ('～', '\U000f0000')
_MOST_DIFFERING = 200  # characters; a table with more is not NFKC's
# Python's lower(), which the released code calls, has a letter of its own for a sigma that ends a
# word (Unicode, Final_Sigma).
_CASED, _BETWEEN = r'[\p{Lu}\p{Ll}\p{Lt}]', "[\\p{Mn}\\p{Me}\\p{Cf}\\p{Lm}\\p{Sk}'.:·’]"
_LAST_SIGMA = f'(?<={_CASED}|{_CASED}{_BETWEEN})Σ(?!{_BETWEEN}*{_CASED})'
_RESERVED = '\u2585'  # the library drops a sentence with it


class _Layout(NamedTuple):
  """The ids of special pieces. order: from id 0 on; last: the piece with the last id, or '';
  special: {role: piece}; numbered: {the library's name: piece}, all others are its control symbols;
  single, pair: templates of one and of two texts, piece:segment.
  """

  order: tuple[str, ...]
  last: str
  special: dict[str, str]
  numbered: dict[str, str]
  single: str
  pair: str


_SINGLE, _PAIR = '[CLS]:0 $A:0 [SEP]:0', '[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1'


LAYOUTS = {
  'bracketed': _Layout(
    ('<pad>', '<unk>', '[CLS]', '[SEP]', '[MASK]'),
    '',
    dict(pad='<pad>', unk='<unk>', cls='[CLS]', sep='[SEP]', mask='[MASK]'),
    dict(pad='<pad>', unk='<unk>'),
    _SINGLE,
    _PAIR,
  ),
  'angled': _Layout(
    ('<unk>', '<s>', '</s>', '<cls>', '<sep>', '<pad>', '<mask>', '<eod>', '<eop>'),
    '',
    dict(
      pad='<pad>', unk='<unk>', cls='<cls>', sep='<sep>', mask='<mask>', eod='<eod>', eop='<eop>'
    ),
    dict(unk='<unk>', bos='<s>', eos='</s>'),
    '$A:0 <sep>:0 <cls>:2',
    '$A:0 <sep>:0 $B:1 <sep>:1 <cls>:2',
  ),
  'mask_last': _Layout(
    ('[PAD]', '[CLS]', '[SEP]', '[UNK]'),
    '[MASK]',
    dict(pad='[PAD]', unk='[UNK]', cls='[CLS]', sep='[SEP]', mask='[MASK]'),
    dict(pad='[PAD]', bos='[CLS]', eos='[SEP]', unk='[UNK]'),
    _SINGLE,
    _PAIR,
  ),
}


def sentencepiece(fields: definitions.Sentencepiece) -> kinds.Kind:
  """A unigram language model (Kudo 2018) or BPE over raw text, blanks included."""
  layout, before = LAYOUTS[fields.specials], _before(fields)

  def train(texts, least):
    data = _train(kinds.once(texts), before, layout, fields)
    return _vocabulary(data, 'what was trained', layout)

  def read(files):
    names = sorted(name for name in files if name.endswith('.model'))
    if not names:
      return None
    if len(names) > 1:
      raise errors.UserError(
        f'There are several SentencePiece models, {", ".join(names)}: name one of them.'
      )
    return _vocabulary(files[names[0]].read_bytes(), str(files[names[0]]), layout)

  def check(pieces):
    _check_layout(pieces, fields.specials, layout)
    kinds.check_case([p.lstrip(BLANK) for p in pieces], fields.lowercase)

  def wrap(ids):
    ids = {piece: ids[role] for role, piece in layout.special.items() if f'{piece}:' in layout.pair}
    return hf.processors.TemplateProcessing(
      single=layout.single, pair=layout.pair, special_tokens=list(ids.items())
    )

  return kinds.Kind(
    layout.special,
    train,
    read,
    check,
    lambda v: {'spiece.model': v.model},
    lambda v: engine(v, before, [*layout.order, layout.last], fields.digit_commas == 'split'),
    wrap,
    WORD_STARTS[fields.word_starts],
    True,
    reads='a SentencePiece model (spiece.model, spm.model)',
    extended=_extended,
    pairs=fields.model == 'bpe',
    joined=_joined,
  )


# --- which pieces start a word ---


def _ascii(piece):
  return piece[0] in f'{BLANK}<' or piece in _PUNCTUATION


def _unicode(piece):
  return (
    piece[0] == BLANK
    or len(piece) == 1
    and (piece in _PUNCTUATION or unicodedata.category(piece)[0] in 'PZC')
  )


_PUNCTUATION = frozenset(string.punctuation)
_ENGLISH = frozenset(string.ascii_letters) | _PUNCTUATION | {'€', '£'}
# Besides pieces with a blank in front, these start a word: ASCII punctuation (code of XLNet), also
# pieces with other than English letters and punctuation (ALBERT), single punctuation (DeBERTa).
WORD_STARTS = {
  'ascii': _ascii,
  'letters': lambda x: _ascii(x) or not set(x) <= _ENGLISH or x in ('€', '£'),
  'unicode': _unicode,
}


# --- the engine ---


def engine(vocabulary, before, special, split_commas) -> hf.Tokenizer:
  """A `tokenizers` engine that segments as the SentencePiece model does.

  vocabulary: kinds.Vocabulary with the model's bytes. before: list of normalizers that come before
  the model's. special: pieces that no text may spell. split_commas: whether pieces that end in a
  digit and a comma are never used.
  """
  file = spiece_file.parse(vocabulary.model)
  dead = [
    kind == spiece_file.UNUSED or split_commas and len(p) > 1 and p[-1] == ',' and p[-2].isdigit()
    for p, kind in zip(file.pieces, file.types)
  ]
  unknown = file.pieces[file.types.index(spiece_file.UNKNOWN)]
  if file.model == 'unigram':
    scores = [
      _DEAD if d else _SYMBOL if kind == spiece_file.USER else s
      for s, kind, d in zip(file.scores, file.types, dead)
    ]
    scored = list(
      zip(vocabulary.pieces, [*scores, *[0.0] * (len(vocabulary.pieces) - len(scores))])
    )
    built = hf.Tokenizer(
      hf.models.Unigram(scored, unk_id=file.pieces.index(unknown), byte_fallback=file.byte_fallback)
    )
  else:
    ids = {p: i for i, p in enumerate(vocabulary.pieces)}
    built = hf.Tokenizer(
      hf.models.BPE(
        ids, _merges(file, dead), unk_token=unknown, fuse_unk=True, byte_fallback=file.byte_fallback
      )
    )
  built.normalizer = hf.normalizers.Sequence([*before, *_model_normalizers(file)])
  prepend = 'always' if file.dummy_prefix else 'never'
  split = [hf.pre_tokenizers.Metaspace(BLANK, prepend, split=True)]
  # The model's pieces hold the special ones: a cut behind the first letter keeps text from spelling
  # them.
  spelt = '|'.join(f'{_escaped(p[0])}(?={_escaped(p[1:])})' for p in special if p)
  split += [hf.pre_tokenizers.Split(hf.Regex(spelt), 'merged_with_previous')] if spelt else []
  built.pre_tokenizer = hf.pre_tokenizers.Sequence(split)
  built.decoder = hf.decoders.Metaspace(BLANK, prepend)
  return built


def _before(fields):
  """The normalizers that run before the model's own, in the order of the released code."""
  out = []
  if fields.collapse_blanks:
    out.append(hf.normalizers.Replace(hf.Regex(_class(str.isspace) + '+'), ' '))
  if fields.straight_quotes:
    out += [hf.normalizers.Replace('``', '"'), hf.normalizers.Replace("''", '"')]
  if fields.strip_accents:
    marks = hf.Regex(_class(unicodedata.combining))
    out += [hf.normalizers.NFKD(), hf.normalizers.Replace(marks, '')]
  if fields.lowercase:
    out += [hf.normalizers.Replace(hf.Regex(_LAST_SIGMA), 'ς'), hf.normalizers.Lowercase()]
  return out


def _model_normalizers(file):
  """The model's normalizers.

  Precompiled looks up characters together with their marks. It loses a mark if the table lacks the
  combination, and marks and jamo beyond six bytes. NFKC, from which the library's tables are made,
  composes them first.
  """
  out = []
  if file.charsmap:
    differing = _not_nfkc(file.charsmap)
    compose = hf.normalizers.NFKC() if len(differing) <= _MOST_DIFFERING else hf.normalizers.NFC()
    hide = [hf.normalizers.Replace(_TILDE, _HIDDEN)] if _TILDE in differing else []
    out = [
      *hide,
      compose,
      *([hf.normalizers.Replace(_HIDDEN, _TILDE)] if hide else []),
      hf.normalizers.Precompiled(file.charsmap),
    ]
  if file.remove_blanks:
    out += [
      hf.normalizers.Replace(hf.Regex(' {2,}'), ' '),
      hf.normalizers.Replace(hf.Regex(r'\A | \z'), ''),
    ]
  return out


@functools.lru_cache(4)
def _not_nfkc(charsmap) -> set[str]:
  """The characters that NFKC changes and this table does not: ～ and later additions to Unicode."""
  table, out = hf.normalizers.Precompiled(charsmap), set()
  for c in map(chr, (*range(1, 0xD800), *range(0xE000, 0x30000))):
    composed = unicodedata.normalize('NFKC', c)
    if composed != c and table.normalize_str(composed) != table.normalize_str(c):
      out.add(c)
  return out


@functools.cache
def _class(holds) -> str:
  """A regular expression for the characters for which `holds` is true."""
  codes = [c for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000 and holds(chr(c))]
  firsts = [c for i, c in enumerate(codes) if i == 0 or codes[i - 1] != c - 1]
  lasts = [c for i, c in enumerate(codes) if i + 1 == len(codes) or codes[i + 1] != c + 1]
  return '[' + ''.join(f'\\x{{{a:x}}}-\\x{{{b:x}}}' for a, b in zip(firsts, lasts)) + ']'


def _escaped(text):
  return re.sub(r'([^\w\s])', r'\\\1', text)


def _merges(file, dead):
  """Merges of two pieces into a third, by the third's score, as the library tries them."""
  known = {
    p: s
    for p, s, kind in zip(file.pieces, file.scores, file.types)
    if kind in (spiece_file.NORMAL, spiece_file.USER)
  }
  merges = []
  for piece, score, kind, unused in zip(file.pieces, file.scores, file.types, dead):
    if kind == spiece_file.NORMAL and not unused:
      merges += [
        (-score, i, piece[:i], piece[i:])
        for i in range(1, len(piece))
        if piece[:i] in known and piece[i:] in known
      ]
  return [(a, b) for _, _, a, b in sorted(merges, key=lambda m: m[0])]


# --- reading and training ---


def _vocabulary(data, name, layout):
  file = spiece_file.parse(data, name)
  if file.suffix_blanks:
    raise errors.UserError(
      f'{name} has its blanks behind words (treat_whitespace_as_suffix), which is not supported: '
      'train one without.'
    )
  if file.model == 'bpe' and any(
    kind == spiece_file.USER and len(p) > 1 and p not in layout.special.values()
    for p, kind in zip(*file[:3:2])
  ):
    raise errors.UserError(
      f'{name} is a bpe model with user-defined symbols of several characters, which is not '
      'supported: train one without.'
    )
  if spiece_file.UNKNOWN not in file.types:
    raise errors.UserError(f'{name} has no piece for unknown text: take another.')
  pieces = list(file.pieces)
  if layout.last and layout.last not in pieces:
    pieces.append(layout.last)
  return kinds.Vocabulary(pieces, [], data)


def _joined(pieces) -> str:
  """The piece that neighbours form; '' unless it is letters of one word, as in training."""
  text = ''.join(pieces)
  return text if all(unicodedata.category(c)[0] in 'LM' for c in text.removeprefix(BLANK)) else ''


def _extended(vocabulary, added, pieces):
  """The vocabulary with further pieces. In a unigram model a new piece has the logarithm of its
  share of the text as its score, and wins over the pieces that it joins.
  """
  file = spiece_file.parse(vocabulary.model)
  scores = dict(zip(file.pieces, file.scores))
  last = min(scores.values())
  for number, (piece, tokens, share) in enumerate(added, 1):
    if file.model == 'bpe':
      scores.setdefault(piece, last - number)
    else:
      scores[piece] = max(math.log(share), sum(scores[t] for t in tokens) + _MARGIN)
  rows = [(p, 0.0, spiece_file.CONTROL) for p in vocabulary.pieces[len(file.pieces) :]]
  rows += [(p, scores[p], spiece_file.NORMAL) for p in pieces]
  model = spiece_file.with_pieces(vocabulary.model, rows)
  return vocabulary._replace(pieces=[*vocabulary.pieces, *pieces], model=model)


def _check_layout(pieces, specials, layout):
  """Raises UserError unless the special pieces have the layout's ids."""
  if not _misplaced(pieces, layout):
    return
  id, piece = _misplaced(pieces, layout)
  actual = f'id {id} is {pieces[id]!r}' if id < len(pieces) else f'there are {len(pieces)} pieces'
  fitting = [name for name, other in LAYOUTS.items() if not _misplaced(pieces, other)]
  remedy = (
    f'set --config.tokenizer.specials={fitting[0]}'
    if fitting
    else f'no layout ({", ".join(LAYOUTS)}) fits, take a vocabulary made for one'
  )
  raise errors.UserError(
    f'The layout {specials!r} has {piece!r} at id {id}, but in this vocabulary {actual}: {remedy}.'
  )


def _misplaced(pieces, layout):
  """(id, piece) of the first special piece with another id, or None."""
  wished = dict(enumerate(layout.order))
  if layout.last and layout.last not in pieces:  # pieces that were added stand behind it
    wished[len(pieces) - 1] = layout.last
  return next(((id, piece) for id, piece in wished.items() if pieces[id : id + 1] != [piece]), None)


def _train(texts, before, layout, fields) -> bytes:
  import sentencepiece as library  # only training needs it

  meta = {
    'pad_id': -1,
    'bos_id': -1,
    'eos_id': -1,
    'control_symbols': [p for p in layout.order if p not in layout.numbered.values()],
  }
  for name, piece in layout.numbered.items():
    meta |= {f'{name}_id': layout.order.index(piece), f'{name}_piece': piece}
  out, extra, texts = io.BytesIO(), bool(layout.last), _Texts(texts)
  try:
    library.SentencePieceTrainer.train(
      sentence_iterator=_sentences(texts, hf.normalizers.Sequence(before)),
      model_writer=out,
      model_type=fields.model,
      vocab_size=fields.vocab_size - extra,
      character_coverage=fields.coverage,
      normalization_rule_name=fields.normalization,
      user_defined_symbols=list(fields.symbols),
      **meta,
      minloglevel=4,
      # Sums of floats depend on how many threads share them.
      num_threads=4,
      max_sentence_length=1 << 30,
    )
  except RuntimeError as e:
    if texts.error is not None:
      raise texts.error from None
    raise _refusal(str(e), fields.vocab_size, extra) from e
  return out.getvalue()


class _Texts:
  """An iterator over texts that keeps an exception of theirs, which the library would hide."""

  def __init__(self, texts):
    self._texts, self.error = texts, None

  def __iter__(self):
    try:
      yield from self._texts
    except Exception as e:
      self.error = e
      raise


def _sentences(texts, clean):
  """The texts without the character that the library reserves; words over _LONGEST are cut."""
  for text in texts:
    text = clean.normalize_str(text).replace(_RESERVED, ' ')
    if len(text) > _LONGEST:
      text = re.sub(f'(\\S{{{_LONGEST}}})(?=\\S)', r'\1 ', text)
    if text:
      yield text


def _refusal(message, vocab_size, extra) -> errors.UserError:
  """The UserError for an error message of the trainer."""
  if most := re.search(r'set it to a value <= (\d+)', message):
    most = int(most[1]) + extra
    return kinds.OtherSize(
      f'The text yields at most {most} pieces, the config has {vocab_size}: set '
      f'--config.tokenizer.vocab_size={most}, or give more text.',
      most,
    )
  if required := re.search(r'required_chars\. \d+ vs (\d+)', message):
    least = int(required[1]) + extra
    return kinds.OtherSize(
      f'The characters of the text alone take {least} pieces, the config has {vocab_size}: '
      'raise --config.tokenizer.vocab_size, or lower --config.tokenizer.coverage.',
      least + vocab_size,
    )
  if 'sentences_.empty()' in message or 'all_chars_count' in message:
    return errors.UserError('There is no text to train a tokenizer on: check --source.')
  return errors.UserError(
    f'SentencePiece cannot train on this text with this config.tokenizer: {message.splitlines()[0]}'
  )
