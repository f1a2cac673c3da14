"""The tokenizer of a Hugging Face directory, split as its own tokenizer.json says."""

import json

import tokenizers as hf

from bertzoo_jax.common import errors
from bertzoo_jax.parts import tokenizers as definitions
from bertzoo_jax.tokenizers import byte_bpe
from bertzoo_jax.tokenizers import engines
from bertzoo_jax.tokenizers import kinds
from bertzoo_jax.tokenizers import published as directories
from bertzoo_jax.tokenizers import sentence_pieces
from bertzoo_jax.tokenizers import wordpiece

# Beside tokenizer.json: {'tokenizer': its content as read, 'special': {role: piece}}.
FILE = 'published.json'


def published(fields: definitions.Published) -> kinds.Kind:
  """Any tokenizer.json, such as a byte-level BPE with other special pieces than RoBERTa's
  (ModernBERT), a Unigram without its model file (XLM-RoBERTa), a WordPiece with any normalizer.
  """
  return kinds.Kind(
    special={},
    train=_refuse_training,
    read=_read,
    check=lambda pieces: None,
    files=lambda vocabulary: {FILE: vocabulary.model.decode('utf-8')},
    engine=_engine,
    wrap=None,
    starts_word=None,
    mask_eats_blank=False,
    reads='a folder with tokenizer.json and tokenizer_config.json',
    extended=_extended,
    bound=lambda kind, vocabulary: kind._replace(**_kind_fields(vocabulary)),
  )


def _kind_fields(vocabulary) -> dict:
  """The fields of a Kind that depend on the vocabulary."""
  content = json.loads(vocabulary.model)
  tokenizer, special = content['tokenizer'], content['special']
  model, whole = tokenizer['model']['type'], hf.Tokenizer.from_str(json.dumps(tokenizer))
  starts_word, joined = lambda piece: piece.startswith(sentence_pieces.BLANK), ''.join
  if model == 'WordPiece':
    starts_word, joined = wordpiece.starts_word, wordpiece.joined
  elif '"ByteLevel"' in json.dumps(tokenizer['pre_tokenizer']):
    starts_word = byte_bpe.starts_word
  return dict(
    special=special,
    starts_word=starts_word,
    joined=joined,
    pairs=model == 'BPE',
    parsed=lambda: whole,
    worded=_worded,
  )


def _worded(vocabulary):
  content = json.loads(vocabulary.model)
  content['tokenizer'] = engines.blank_before_words(content['tokenizer'])
  return vocabulary._replace(model=json.dumps(content, ensure_ascii=False).encode('utf-8'))


def _refuse_training(texts, least):
  raise errors.UserError(
    'tokenizer=published is read from a Hugging Face directory: give --tokenizer=hf:DIR.'
  )


def _read(files) -> kinds.Vocabulary | None:
  if FILE in files:
    content = kinds.read_json(files[FILE])
  elif 'tokenizer.json' in files:
    folder = files['tokenizer.json'].parent
    whole = directories.Published(folder, directories.content(folder))
    special = {role: whole.pieces[i] for role, i in whole.special.items()}
    content = dict(tokenizer=json.loads(whole.parsing_engine().to_str()), special=special)
  else:
    return None
  with errors.unreadable(f'{", ".join(sorted(files))}: no tokenizer of Hugging Face', Exception):
    engine = hf.Tokenizer.from_str(json.dumps(content['tokenizer']))
    model = json.dumps(content, ensure_ascii=False).encode('utf-8')
    return kinds.Vocabulary(kinds.by_id(engine.get_vocab(with_added_tokens=True)), [], model)


def _engine(vocabulary) -> hf.Tokenizer:
  """As the file says, without its special pieces."""
  tokenizer = json.loads(vocabulary.model)['tokenizer']
  return hf.Tokenizer.from_str(json.dumps(directories.without_special(tokenizer)))


def _extended(vocabulary, added, pieces):
  """The vocabulary with further pieces at its end."""
  content = json.loads(vocabulary.model)
  model = content['tokenizer']['model']
  if not isinstance(model['vocab'], dict):
    raise errors.UserError(
      f'--add with tokenizer=published adds to WordPiece and BPE, and this is a {model["type"]} '
      "model: take tokenizer=sentencepiece and the directory's *.model."
    )
  # with the added tokens: the library numbers those that the model lacks behind its pieces
  model['vocab'] = {piece: i for i, piece in enumerate([*vocabulary.pieces, *pieces])}
  if model['type'] == 'BPE':
    as_text = bool(model['merges']) and isinstance(model['merges'][0], str)
    model['merges'] += [' '.join(m.tokens) if as_text else list(m.tokens) for m in added]
  data = json.dumps(content, ensure_ascii=False).encode('utf-8')
  return vocabulary._replace(pieces=[*vocabulary.pieces, *pieces], model=data)
