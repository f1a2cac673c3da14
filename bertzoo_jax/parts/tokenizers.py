"""Tokenizers: from text to pieces."""

from typing import Annotated

from bertzoo_jax.parts import fields

VOCAB_SIZE = Annotated[
  fields.PIECES_OR_AUTO,
  'pieces, specials included; auto: prepare chooses it by the size of the text, training takes '
  "the corpus's.",
]
LOWERCASE = Annotated[bool, 'whether capitals become small letters.']
NORMALIZATION = Annotated[
  fields.one_of('none', 'nfc', 'nfkc'), 'none | nfc | nfkc, before all else.'
]
MIN_FREQUENCY = Annotated[fields.COUNT_OR_0, 'least count of a merge in training.']


@fields.part('wordpiece')
class Wordpiece:
  """WordPiece (Devlin et al. 2018 §3; code): [PAD] [UNK] [CLS] [SEP] [MASK], `##` inside words."""

  vocab_size: VOCAB_SIZE = 30522
  lowercase: LOWERCASE = True
  strip_accents: Annotated[bool, 'independent of lowercase (the uncased release does both).'] = True
  split_chinese: Annotated[bool, 'blanks around CJK characters.'] = True
  normalization: NORMALIZATION = 'none'
  max_word_chars: Annotated[
    fields.whole(1, 10_000), "longer words are unknown (100 in Hugging Face, 200 in Google's code)."
  ] = 100
  min_frequency: MIN_FREQUENCY = 2
  coverage: Annotated[
    fields.SHARE_ABOVE_0,
    'share of all characters that training gives a piece of their own, if there are enough '
    'pieces; the rarest become unknown.',
  ] = 0.9999


@fields.part('byte_bpe')
class ByteBpe:
  """GPT-2's byte-level BPE with RoBERTa's specials (Liu et al. 2019 §4.4): <s> 0, <pad> 1, </s> 2,
  <unk> 3, <mask> last.
  """

  vocab_size: VOCAB_SIZE = 50265
  lowercase: LOWERCASE = False
  normalization: NORMALIZATION = 'none'
  add_prefix_space: Annotated[bool, 'whether a text begins as if a blank stood before it.'] = False
  min_frequency: MIN_FREQUENCY = 2


@fields.part('sentencepiece')
class Sentencepiece:
  """SentencePiece (Kudo & Richardson 2018); the defaults are ALBERT's (README and code of its
  release).

  The changes to a text come in this order: collapse_blanks, straight_quotes, strip_accents,
  lowercase, normalization.
  """

  vocab_size: VOCAB_SIZE = 30000
  model: fields.one_of('unigram', 'bpe') = 'unigram'
  specials: fields.one_of(
    bracketed='<pad> 0, <unk> 1, [CLS] 2, [SEP] 3, [MASK] 4',
    angled='<unk> 0, <s>, </s>, <cls>, <sep>, <pad> 5, <mask>, <eod>, <eop> 8, and A <sep> B '
    '<sep> <cls>; XLNet',
    mask_last='[PAD] 0, [CLS], [SEP], [UNK] 3, and [MASK] behind all others; DeBERTa v2',
  ) = 'bracketed'
  lowercase: LOWERCASE = True
  strip_accents: Annotated[bool, 'NFKD without combining marks.'] = True
  collapse_blanks: Annotated[bool, 'all white space to single blanks.'] = True
  straight_quotes: Annotated[bool, "`` and '' become \"."] = False
  normalization: Annotated[
    fields.one_of('nmt_nfkc', 'nfkc', 'nmt_nfkc_cf', 'nfkc_cf', 'identity'),
    "the model's own (a published model brings its own): nmt_nfkc | nfkc | nmt_nfkc_cf | nfkc_cf "
    '| identity.',
  ] = 'nmt_nfkc'
  digit_commas: fields.one_of(
    split='no piece with a comma behind a digit at its end is used', keep=''
  ) = 'split'
  word_starts: Annotated[
    fields.one_of('letters', 'ascii', 'unicode'),
    'pieces that start a word besides those with a blank in front: letters (punctuation, and '
    'pieces with other than English letters) | ascii (ASCII punctuation; XLNet) | unicode (any '
    'punctuation alone; DeBERTa).',
  ] = 'letters'
  coverage: Annotated[
    fields.number('a number from 0.5 to 1', lambda x: 0.5 <= x <= 1),
    'share of all characters that training gives a piece.',
  ] = 0.99995
  symbols: Annotated[str, 'characters that are always pieces of their own.'] = '()"-.–£€'


@fields.part('published')
class Published:
  """The tokenizer of a Hugging Face directory, by its own tokenizer.json."""

  vocab_size: VOCAB_SIZE = 'auto'
