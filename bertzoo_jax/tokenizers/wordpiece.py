"""WordPiece, through the `tokenizers` library."""

import collections
import re
import string
import unicodedata
import warnings

import tokenizers as hf

from bertzoo_jax.common import vocabulary as vocabulary_files
from bertzoo_jax.parts import tokenizers as definitions
from bertzoo_jax.tokenizers import kinds


def wordpiece(fields: definitions.Wordpiece) -> kinds.Kind:
  """WordPiece: greedy longest match in words split at blanks and punctuation, `##` inside a word.

  Equal to transformers' BertTokenizer where normalization is 'none', max_word_chars 100 and
  strip_accents equal to lowercase.
  """
  special = dict(pad='[PAD]', unk='[UNK]', cls='[CLS]', sep='[SEP]', mask='[MASK]')
  clean = kinds.normalizer(
    fields.normalization,
    hf.normalizers.BertNormalizer(
      clean_text=True,
      handle_chinese_chars=fields.split_chinese,
      strip_accents=fields.strip_accents,
      lowercase=fields.lowercase,
    ),
  )

  limits = dict(unk_token='[UNK]', max_input_chars_per_word=fields.max_word_chars)

  def engine(vocabulary):
    ids = {p: i for i, p in enumerate(vocabulary.pieces)}
    built = hf.Tokenizer(hf.models.WordPiece(ids, continuing_subword_prefix='##', **limits))
    built.normalizer, built.pre_tokenizer = clean, hf.pre_tokenizers.BertPreTokenizer()
    built.decoder = hf.decoders.WordPiece(prefix='##')
    return built

  def train(texts, least):
    letters = _letters(
      texts, clean, fields.coverage, least, fields.vocab_size, fields.split_chinese
    )
    inside = ['##' + c for c in letters if not _stands_alone(c, fields.split_chinese)]
    # The library numbers letters in the order of a hash map with a random seed, and breaks ties
    # between merges by number: only letters that it is given as special tokens have the same number
    # in every run.
    known = [*special.values(), *letters, *inside]
    built = hf.Tokenizer(hf.models.WordPiece(**limits))
    # A word over the limit is always unknown.
    built.normalizer = clean
    built.pre_tokenizer = kinds.without_long_words(
      hf.pre_tokenizers.BertPreTokenizer(), fields.max_word_chars
    )
    trainer = hf.trainers.WordPieceTrainer(
      vocab_size=fields.vocab_size,
      min_frequency=fields.min_frequency,
      special_tokens=known,
      initial_alphabet=letters,
      limit_alphabet=len(letters),
      show_progress=False,
    )
    built.train_from_iterator(kinds.once(texts), trainer)
    return kinds.Vocabulary(kinds.by_id(built.get_vocab(with_added_tokens=True)))

  return kinds.Kind(
    special,
    train,
    _read,
    check=lambda pieces: kinds.check_case(pieces, fields.lowercase),
    files=lambda vocabulary: {'vocab.txt': '\n'.join(vocabulary.pieces) + '\n'},
    engine=engine,
    wrap=_wrap,
    starts_word=starts_word,
    mask_eats_blank=False,
    reads='vocab.txt or tokenizer.json (of a WordPiece)',
    extended=lambda vocabulary, _, pieces: vocabulary._replace(
      pieces=[*vocabulary.pieces, *pieces]
    ),
    joined=joined,
  )


def starts_word(piece: str) -> bool:
  return not piece.startswith('##')


def joined(pieces) -> str:
  """The piece of neighbouring ones."""
  return pieces[0] + ''.join(p.removeprefix('##') for p in pieces[1:])


def _read(files) -> kinds.Vocabulary | None:
  if 'tokenizer.json' in files:
    model = kinds.read_model(files['tokenizer.json'])
    if model.get('type', 'WordPiece') != 'WordPiece' or not isinstance(model.get('vocab'), dict):
      return None
  elif 'vocab.txt' not in files:
    return None
  return kinds.Vocabulary(kinds.by_id(vocabulary_files.read_files(files)))


def _wrap(ids):
  return hf.processors.TemplateProcessing(
    single='[CLS]:0 $A:0 [SEP]:0',
    pair='[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1',
    special_tokens=[('[CLS]', ids['cls']), ('[SEP]', ids['sep'])],
  )


def _letters(texts, clean, coverage, least, vocab_size, split_chinese) -> list[str]:
  """The most frequent characters, by code point: enough to cover the share `coverage` of all that
  are not blank, or as many as fit.

  Raises OtherSize: they cover less than `least`.
  """
  counts = collections.Counter()
  for text in kinds.once(texts):
    counts.update(clean.normalize_str(text))
  for c in [c for c in counts if c.isspace()]:
    del counts[c]
  total, covered, kept, left_out = sum(counts.values()), 0, [], 0
  pieces = len(kinds.ROLES)
  for c, n in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
    if covered + left_out >= coverage * total:
      break
    pieces += 1 if _stands_alone(c, split_chinese) else 2
    if pieces > vocab_size:
      left_out += n
    else:
      kept.append(c)
      covered += n
  if left_out:
    share = f'{100 * covered / total:.2f} %'
    what = (
      f'The text has {len(counts):,} different characters. A vocabulary of {vocab_size:,} pieces '
      f'has room for the {len(kept):,} most frequent of them, {share} of the text'
    )
    remedy = f'config.tokenizer.coverage={coverage:g} needs --config.tokenizer.vocab_size={pieces}'
    if covered < least * total:
      raise kinds.OtherSize(
        f'{what}, which is too little: {remedy}, or lower it.', pieces + vocab_size
      )
    warnings.warn(f'{what}; the others become [UNK] ({remedy}).', stacklevel=2)
  return sorted(kept)


def _stands_alone(c, split_chinese) -> bool:
  """Whether BERT's splitting makes a character a word: punctuation, and CJK if that is split."""
  is_mark = c in string.punctuation or unicodedata.category(c).startswith('P')
  return is_mark or split_chinese and bool(_CJK.match(c))


_CJK = re.compile(
  '[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b81f'
  '\U0002b920-\U0002ceaf\U0002f800-\U0002fa1f]'
)
