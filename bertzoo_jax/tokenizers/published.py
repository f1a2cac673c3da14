"""Tokenizers of Hugging Face directories, which no config section describes."""

import functools
import json

import tokenizers as hf

from bertzoo_jax import parts
from bertzoo_jax.common import errors
from bertzoo_jax.common import storage
from bertzoo_jax.common import vocabulary
from bertzoo_jax.tokenizers import engines
from bertzoo_jax.tokenizers import kinds

SAYING = ('tokenizer.json', 'tokenizer_config.json')  # files that say how text is split
# Text that every pipeline for the same vocabulary splits alike; it shows case, accents and blanks.
PLAIN = (
  'The quick Brown fox jumps',
  'a naïve café',
  "It's 5 o'clock, isn't it?",
  ' two  blanks',
  '中文字',
)
# Spellings of special pieces, the likeliest first, for directories that do not name them.
_USUAL = {
  'pad': ('[PAD]', '<pad>'),
  'unk': ('[UNK]', '<unk>'),
  'cls': ('[CLS]', '<cls>', '<s>'),
  'sep': ('[SEP]', '<sep>', '</s>'),
  'mask': ('[MASK]', '<mask>'),
}
_MOST = 1 << 24  # ids; the largest vocabularies have a sixteenth of that
# Classes that use tokenizer.json unchanged. All others set its normalizer by tokenizer_config.json.
_AS_IT_IS = ('PreTrainedTokenizerFast', 'TokenizersBackend')
_NORMALIZER = {
  'do_lower_case': 'lowercase',
  'strip_accents': 'strip_accents',
  'tokenize_chinese_chars': 'handle_chinese_chars',
}


class Published(engines.Engines):
  """A tokenizer.json.

  Attributes:
    pieces: the piece of every id, '' for an id without one; vocab_size: how many.
    special: {'pad' | 'unk' | 'cls' | 'sep' | 'mask': id}.
    json: the content of the file.
  """

  def __init__(self, folder, tokenizer: dict):
    """folder: may have tokenizer_config.json and special_tokens_map.json, which name the special
    pieces. tokenizer: its tokenizer.json, see `content`.

    Raises UserError for a damaged file, and if a special piece is not in the vocabulary.
    """
    self._folder = folder = storage.path(folder)
    self.json = tokenizer
    settings = optional_json(folder / 'tokenizer_config.json')
    self._parsing = self._spelling = _engine(folder, self.json)
    named = {**optional_json(folder / 'special_tokens_map.json'), **settings}
    with errors.unreadable(f'{folder}: the added tokens of its files are no texts'):
      _add_tokens(self._parsing, folder, named)
    ids = self._parsing.get_vocab(with_added_tokens=True)
    if max(ids.values(), default=0) >= _MOST:
      raise errors.UserError(
        f'{folder}: its tokenizer has the id {max(ids.values()):,}, and at most {_MOST:,} ids are '
        'read: download it again.'
      )
    self.pieces = [''] * (max(ids.values(), default=-1) + 1)
    for piece, i in ids.items():
      self.pieces[i] = piece
    self.vocab_size = len(self.pieces)
    self.special = {role: _special(folder, role, named, ids) for role in kinds.ROLES}

  def parsing_engine(self) -> hf.Tokenizer:
    """See `tokenizers.Tokenizer`."""
    return self._parsing

  def for_words(self) -> 'Published':
    """See `tokenizers.Tokenizer`."""
    return Published(self._folder, engines.blank_before_words(self.json))

  @functools.cached_property
  def _plain(self) -> hf.Tokenizer:
    return _engine(self._folder, without_special(self.json))


def without_special(tokenizer: dict) -> dict:
  """A tokenizer.json for which special pieces are text."""
  added = [t for t in tokenizer.get('added_tokens') or [] if not t.get('special')]
  return {**tokenizer, 'added_tokens': added}


def content(folder) -> dict:
  """The tokenizer.json of a directory, normalised as its tokenizer_config.json says."""
  tokenizer = kinds.read_json(folder / 'tokenizer.json')
  _set_normalizer(tokenizer, optional_json(folder / 'tokenizer_config.json'))
  return tokenizer


def optional_json(path) -> dict:
  """The object of a JSON file; {} without a file."""
  return kinds.read_json(path) if path.exists() else {}


def section_of(folder) -> dict | None:
  """The config section of the tokenizer of a directory without a tokenizer.json; None if its files
  do not say how text is split.
  """
  settings = optional_json(folder / 'tokenizer_config.json')
  if (folder / 'vocab.txt').exists() and 'do_lower_case' in settings:
    lowercase = bool(settings['do_lower_case'])
    flags = {key: settings[key] for key in _NORMALIZER if settings.get(key) is not None}
    return parts.wordpiece(
      vocab_size='auto',
      lowercase=lowercase,
      strip_accents=flags.get('strip_accents', lowercase),
      split_chinese=flags.get('tokenize_chinese_chars', True),
    )
  if (folder / 'vocab.json').exists() and (folder / 'merges.txt').exists():
    blank = bool(settings.get('add_prefix_space', False))
    return parts.byte_bpe(vocab_size='auto', add_prefix_space=blank)
  return None


def unsaid(folder) -> errors.UserError:
  """The error of a directory whose files do not say how text is split."""
  names = sorted(p.name for p in folder.iterdir()) if folder.exists() else []
  if 'vocab.txt' in names:
    return errors.UserError(
      f'{folder} has vocab.txt, and no file says whether text is lower-cased: write '
      '{"do_lower_case": true} or {"do_lower_case": false} into its tokenizer_config.json.'
    )
  what = next((name for name in names if name.endswith('.model')), None)
  return errors.UserError(
    f'{folder} has {what or "no tokenizer"} and no tokenizer.json, so how its text is split is '
    'unknown: download its tokenizer.json, or write one with '
    f"transformers.AutoTokenizer.from_pretrained('{folder}').save_pretrained('{folder}')."
  )


def check(name, theirs, ours) -> None:
  """Raises UserError if a directory's tokenizer and config.tokenizer split plain text differently.

  name: of the directory. theirs: its tokenizer. ours: tokenizers.Tokenizer of the config.
  """
  for plain, *ids in zip(PLAIN, *(x.encode_as_transformers(list(PLAIN)) for x in (ours, theirs))):
    if list(ids[0]) != list(ids[1]):
      a, b = (' '.join(x.pieces[i] for i in row) for x, row in zip((ours, theirs), ids))
      raise errors.UserError(
        f'{name} splits {plain!r} into {b}, config.tokenizer into {a}: set the fields of '
        'config.tokenizer (lowercase, strip_accents, add_prefix_space, normalization …) as they '
        'were when the vocabulary was made.'
      )


def _engine(folder, content):
  sentence = f'its tokenizer.json is not one that tokenizers {hf.__version__} reads'
  with errors.unreadable(f'{folder}: {sentence}', Exception):  # it raises plain Exception
    engine = hf.Tokenizer.from_str(json.dumps({**content, 'truncation': None, 'padding': None}))
    engine.encode('\U00012000')  # fails where the piece for unknown characters is unknown
    return engine


def _set_normalizer(tokenizer, settings):
  """Sets lower-casing and the like, as the class named in tokenizer_config.json does."""
  normalizer = tokenizer.get('normalizer')
  if not isinstance(normalizer, dict) or normalizer.get('type') != 'BertNormalizer':
    return
  if settings.get('tokenizer_class') not in _AS_IT_IS:
    normalizer |= {ours: settings[key] for key, ours in _NORMALIZER.items() if key in settings}


def _add_tokens(engine, folder, named):
  """Adds the tokens that tokenizer.json lacks, and marks the named ones as special."""
  added = {token.content for token in engine.get_added_tokens_decoder().values()}
  for token in vocabulary.added({f.name: f for f in folder.iterdir()}):
    if token['content'] not in added:
      kept = ('single_word', 'lstrip', 'rstrip', 'normalized', 'special')
      token = hf.AddedToken(token['content'], **{k: token[k] for k in kept if k in token})
      (engine.add_special_tokens if token.special else engine.add_tokens)([token])
      added.add(token.content)
  for role in kinds.ROLES:
    piece = _spelling(named.get(f'{role}_token'))
    if piece and piece not in added and engine.token_to_id(piece) is not None:
      engine.add_special_tokens([hf.AddedToken(piece, special=True, normalized=False)])


def _special(folder, role, named, ids) -> int:
  piece = _spelling(named.get(f'{role}_token'))
  candidates = [piece] if piece else _USUAL[role]
  known = [candidate for candidate in candidates if candidate in ids]
  if not known:
    raise errors.UserError(
      f'The tokenizer of {folder} has no piece {" or ".join(candidates)}: name its {role}_token in '
      'tokenizer_config.json.'
    )
  return ids[known[0]]


def _spelling(value) -> str | None:
  """The piece that a file names as a special token: a text, or an object with its content."""
  value = value.get('content') if isinstance(value, dict) else value
  return value if isinstance(value, str) and value else None
