"""GPT-2's byte-level BPE, through the `tokenizers` library."""

import json
import re

import tokenizers as hf

from bertzoo_jax.common import errors
from bertzoo_jax.common import vocabulary as vocabulary_files
from bertzoo_jax.parts import tokenizers as definitions
from bertzoo_jax.tokenizers import kinds


def byte_bpe(fields: definitions.ByteBpe) -> kinds.Kind:
  """GPT-2's byte-level BPE with RoBERTa's special pieces, which no merges produce.

  Equal to transformers' RobertaTokenizer where lowercase is False and normalization 'none'.
  """
  special = dict(pad='<pad>', unk='<unk>', cls='<s>', sep='</s>', mask='<mask>')
  lowercase = hf.normalizers.Lowercase() if fields.lowercase else None
  clean = kinds.normalizer(fields.normalization, lowercase)
  split = hf.pre_tokenizers.ByteLevel(add_prefix_space=fields.add_prefix_space)

  def with_parts(built):
    if clean is not None:
      built.normalizer = clean
    built.pre_tokenizer, built.decoder = split, hf.decoders.ByteLevel()
    return built

  def engine(vocabulary):
    ids = {p: i for i, p in enumerate(vocabulary.pieces)}
    none = dict(continuing_subword_prefix='', end_of_word_suffix='', fuse_unk=False)
    return with_parts(hf.Tokenizer(hf.models.BPE(ids, vocabulary.merges, **none)))

  def train(texts, least):
    built = with_parts(hf.Tokenizer(hf.models.BPE()))
    built.pre_tokenizer = kinds.without_long_words(split, 1000)
    trainer = hf.trainers.BpeTrainer(
      vocab_size=fields.vocab_size - 1,
      min_frequency=fields.min_frequency,
      special_tokens=['<s>', '<pad>', '</s>', '<unk>'],
      initial_alphabet=sorted(hf.pre_tokenizers.ByteLevel.alphabet()),
      show_progress=False,
    )
    built.train_from_iterator(kinds.once(texts), trainer)
    merges = [tuple(m) for m in json.loads(built.to_str())['model']['merges']]
    return kinds.Vocabulary(
      [*kinds.by_id(built.get_vocab(with_added_tokens=True)), '<mask>'], merges
    )

  def wrap(ids):
    return hf.processors.RobertaProcessing(
      ('</s>', ids['sep']),
      ('<s>', ids['cls']),
      trim_offsets=True,
      add_prefix_space=fields.add_prefix_space,
    )

  return kinds.Kind(
    special,
    train,
    _read,
    lambda pieces: None,
    _files,
    engine,
    wrap,
    starts_word,
    True,
    reads="vocab.json and merges.txt, encoder.json and vocab.bpe (with RoBERTa's dict.txt), or "
    'tokenizer.json (of a BPE)',
    extended=lambda vocabulary, added, pieces: vocabulary._replace(
      pieces=[*vocabulary.pieces, *pieces],
      merges=[*vocabulary.merges, *(merge.tokens for merge in added)],
    ),
    pairs=True,
  )


def starts_word(piece: str) -> bool:
  """Whether a piece begins with the blank, tab or line end before a word."""
  return piece[0] in 'ĠĊĉč'


def _read(files) -> kinds.Vocabulary | None:
  if 'tokenizer.json' in files and 'dict.txt' not in files:
    model = kinds.read_model(files['tokenizer.json'])
    if (
      model.get('type', 'BPE') != 'BPE'
      or not isinstance(model.get('vocab'), dict)
      or not isinstance(model.get('merges'), list)
    ):
      return None
    pieces = kinds.by_id(vocabulary_files.read_files(files))
    merges = _merges(model['merges'], pieces, files['tokenizer.json'])
    return kinds.Vocabulary(_with_specials(pieces), merges)
  ids = files.get('vocab.json') or files.get('encoder.json')
  merges = files.get('merges.txt') or files.get('vocab.bpe')
  if ids is None or merges is None:
    return None
  lines = re.sub(r'\r\n?', '\n', kinds.read_text(merges)).split('\n')
  vocabulary_paths = {k: f for k, f in files.items() if k not in ('tokenizer.json', 'vocab.txt')}
  pieces = kinds.by_id(vocabulary_files.read_files(vocabulary_paths))
  merges = _merges(
    [line for line in lines if line and not line.startswith('#version')], pieces, merges
  )
  if 'dict.txt' in files:
    return kinds.Vocabulary(_fairseq_order(pieces, kinds.read_text(files['dict.txt'])), merges)
  return kinds.Vocabulary(_with_specials(pieces), merges)


def _files(vocabulary) -> dict[str, str]:
  ids = {p: i for i, p in enumerate(vocabulary.pieces)}
  return {
    'vocab.json': json.dumps(ids, ensure_ascii=False) + '\n',
    'merges.txt': '#version: 0.2\n' + ''.join(f'{a} {b}\n' for a, b in vocabulary.merges),
  }


def _with_specials(pieces) -> list[str]:
  """Returns the pieces. Raises UserError for GPT-2's vocabulary."""
  if '<|endoftext|>' in pieces and '<mask>' not in pieces:
    raise errors.UserError(
      "This is GPT-2's vocabulary, without <s>, <pad>, </s>, <unk> and <mask>: add RoBERTa's "
      'dict.txt (--tokenizer=FOLDER,dict.txt), or train one.'
    )
  return pieces


def _merges(rows, pieces, path) -> list[tuple[str, str]]:
  known, merges = set(pieces), []
  for row in rows:
    merge = (
      tuple(row.split(' ')) if isinstance(row, str) else tuple(row) if isinstance(row, list) else ()
    )
    if (
      len(merge) != 2
      or not all(isinstance(m, str) for m in merge)
      or not {*merge, ''.join(merge)} <= known
    ):
      raise errors.UserError(
        f'{path}: {row!r} is not a merge of two pieces of the vocabulary into a third: do the '
        'files belong together?'
      )
    merges.append(merge)
  return merges


def _fairseq_order(gpt2_pieces, dictionary) -> list[str]:
  """fairseq's ids: <s> <pad> </s> <unk>, dict.txt (GPT-2 ids) and fillers to 50264, <mask>."""
  pieces = ['<s>', '<pad>', '</s>', '<unk>']
  for line in dictionary.splitlines()[:50260]:
    word = line.split(' ')[0]
    if word.isdecimal() and int(word) >= len(gpt2_pieces):
      raise errors.UserError(
        f'dict.txt speaks of id {word}, the vocabulary has {len(gpt2_pieces)}: take the files that '
        'belong together.'
      )
    pieces.append(gpt2_pieces[int(word)] if word.isdecimal() else word)
  return [*pieces, '<mask>']
