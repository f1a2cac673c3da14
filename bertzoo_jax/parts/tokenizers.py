"""Tokenizers: from text to pieces.

A field without an explanation means the same as in the nearest part above that explains it.
"""

from bertzoo_jax.parts import fields


@fields.section
def wordpiece(
  *,
  vocab_size: fields.PIECES_OR_AUTO = 30522,
  lowercase: bool = True,
  strip_accents: bool = True,
  split_chinese: bool = True,
  normalization: fields.one_of('none', 'nfc', 'nfkc') = 'none',
  max_word_chars: fields.whole(1, 10_000) = 100,
  min_frequency: fields.COUNT_OR_0 = 2,
  coverage: fields.SHARE_ABOVE_0 = 0.9999,
):
  """WordPiece (Devlin et al. 2018 §3; code of the release): [PAD] [UNK] [CLS] [SEP] [MASK],
  `##` inside words.

  vocab_size: pieces, specials included; auto: prepare chooses it by the size of the text, training
    takes the corpus's.
  lowercase: whether capitals become small letters.
  strip_accents: apart from lowercase (the uncased release does both).
  split_chinese: blanks around CJK characters.
  normalization: none | nfc | nfkc, before all else.
  max_word_chars: longer words are unknown (100 in Hugging Face, 200 in Google's code).
  min_frequency: of a merge in training.
  coverage: share of all characters that training gives a piece of their own, if there are pieces
    enough; the rarest become unknown.
  """


@fields.section
def byte_bpe(
  *,
  vocab_size: fields.PIECES_OR_AUTO = 50265,
  lowercase: bool = False,
  normalization: fields.one_of('none', 'nfc', 'nfkc') = 'none',
  add_prefix_space: bool = False,
  min_frequency: fields.COUNT_OR_0 = 2,
):
  """GPT-2's byte-level BPE with RoBERTa's specials (Liu et al. 2019 §4.4): <s> 0, <pad> 1, </s> 2,
  <unk> 3, <mask> last.

  add_prefix_space: whether a text begins as if a blank stood before it.
  """


@fields.section
def sentencepiece(
  *,
  vocab_size: fields.PIECES_OR_AUTO = 30000,
  model: fields.one_of('unigram', 'bpe') = 'unigram',
  specials: fields.one_of('bracketed', 'angled', 'mask_last') = 'bracketed',
  lowercase: bool = True,
  strip_accents: bool = True,
  collapse_blanks: bool = True,
  straight_quotes: bool = False,
  normalization: fields.one_of(
    'nmt_nfkc', 'nfkc', 'nmt_nfkc_cf', 'nfkc_cf', 'identity'
  ) = 'nmt_nfkc',
  digit_commas: fields.one_of('split', 'keep') = 'split',
  word_starts: fields.one_of('letters', 'ascii', 'unicode') = 'letters',
  coverage: fields.number('a number from 0.5 to 1', lambda x: 0.5 <= x <= 1) = 0.99995,
  symbols: str = '()"-.–£€',
):
  """SentencePiece (Kudo & Richardson 2018); the usual values are ALBERT's (README and code of its
  release).

  model: unigram | bpe.
  specials: bracketed (<pad> 0, <unk> 1, [CLS] 2, [SEP] 3, [MASK] 4) | angled (<unk> 0, <s>, </s>,
    <cls>, <sep>, <pad> 5, <mask>, <eod>, <eop> 8, and A <sep> B <sep> <cls>; XLNet) | mask_last
    ([PAD] 0, [CLS], [SEP], [UNK] 3, and [MASK] behind all others; DeBERTa v2).

  The changes to a text come in this order: collapse_blanks, straight_quotes, strip_accents,
  lowercase, normalization.

  collapse_blanks: all white space to single blanks.
  straight_quotes: `` and '' become ".
  strip_accents: NFKD without combining marks.
  normalization: the model's own (a published model brings its own): nmt_nfkc | nfkc |
    nmt_nfkc_cf | nfkc_cf | identity.
  digit_commas: split (no piece with a comma behind a digit at its end is used) | keep.
  word_starts: pieces that start a word besides those with a blank in front: letters (punctuation,
    and what has other than English letters) | ascii (ASCII punctuation; XLNet) | unicode (any
    punctuation alone; DeBERTa).
  coverage: share of all characters that training gives a piece.
  symbols: characters that are always pieces of their own.
  """


__all__ = fields.sections(vars())
