"""The keys of config.json as a table, used to write it at export and to read it at --init.

    Key('num_hidden_layers', 'num_layers', 12)   their key, our field, what transformers assumes
    fixed('is_decoder', False)                   the one value that is written and can be read
    written('use_cache', True)                   written, and not read
    means('sharing', 'none')                     a field that no key says
    only('norm', 'layer')                        the same, and no other value can be written

Of two rows for the same key and field the later one counts, at the place of the first. It inherits
the arguments that it leaves out.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

from bertzoo_jax.common import errors

# Our activations and transformers' names for them: its gelu is the exact one; gelu_new is Google's
# approximation by tanh.
ACTIVATIONS = {'gelu': 'gelu', 'gelu_tanh': 'gelu_new', 'relu': 'relu'}
_SPELLINGS = {'gelu_pytorch_tanh': 'gelu_tanh', 'gelu_python': 'gelu'}

NEEDED = object()  # a key without a default in transformers
_LARGEST = 1 << 31  # every number in a config.json is below it


class At(NamedTuple):
  """The inputs of config.json's values."""

  a: Any  # the class
  encoder: Any
  special: Mapping[str, int]  # ids of special pieces
  vocab_size: int  # rows of the word table
  sizes: Any  # architecture.Sizes


class Key(NamedTuple):
  """A key of config.json and a field of the encoder."""

  theirs: str  # the key; '' for a field that no key says
  ours: str = ''  # the field; '' for a key that says none
  # transformers' default for a missing key. A value of another type, or out of range, is refused.
  usual: Any = NEEDED
  write: Callable | None = None  # At → the value; None: the field's value, if there is a field
  # config.json with defaults → the field's value, or UserError; None: the key's value
  read: Callable | None = None


def written(theirs: str, value, usual=NEEDED) -> Key:
  """A key that is written and not read. value: or a function At → value."""
  return Key(theirs, '', usual, value if callable(value) else lambda at: value)


def fixed(theirs: str, value, usual=NEEDED) -> Key:
  """A key of which only this value can be written and read: with another, encoders here differ."""
  return written(theirs, value, usual)._replace(read=_expecting(theirs, value))


def refused(theirs: str, value) -> Key:
  """A key that is not written, and whose only readable value is this one (or content → value)."""
  return Key(theirs, read=_expecting(theirs, value))


def means(ours: str, value) -> Key:
  """A field that has this value (or a function of content) when a config.json is read."""
  return Key('', ours, read=value if callable(value) else lambda content: value)


def only(ours: str, value) -> Key:
  """Like `means`; an encoder with another value cannot be written."""

  def write(at):
    if (actual := getattr(at.encoder, ours)) != value:
      raise errors.UserError(
        f'{at.a.name} has encoder.{ours}={value}, this model was trained with {actual}: no class '
        'of Hugging Face known here computes it.'
      )

  return means(ours, value)._replace(write=write)


def activation(theirs: str, usual: str, ours='activation', known=ACTIVATIONS) -> Key:
  """A key that names an activation. known: {our name: theirs}."""
  by_name = {**{name: our_name for our_name, name in known.items()}, **_SPELLINGS}

  def read(content):
    return errors.choose(content[theirs], by_name, f'readable {theirs}')

  return Key(theirs, ours, usual, lambda at: known[getattr(at.encoder, ours)], read)


def _expecting(theirs, value):
  def read(content):
    expected = value(content) if callable(value) else value
    if (actual := content.get(theirs, expected)) != expected:
      raise errors.UserError(
        f'config.json says {theirs}={str(actual)[:40]}, and an encoder here has '
        f'{theirs}={expected}: it cannot be read.'
      )

  return read


def joined(keys: Iterable[Key]) -> tuple[Key, ...]:
  """The rows; a later one replaces an earlier one for the same key and field."""
  rows = {}
  for key in keys:
    before = rows.get((key.theirs, key.ours), key)
    usual = before.usual if key.usual is NEEDED else key.usual
    write, read = key.write or before.write, key.read or before.read
    rows[key.theirs, key.ours] = Key(key.theirs, key.ours, usual, write, read)
  return tuple(rows.values())


def usual(keys: Iterable[Key]) -> dict[str, Any]:
  """{key: transformers' default}."""
  return {key.theirs: key.usual for key in keys if key.usual is not NEEDED}


def content(a, encoder, special: Mapping[str, int], vocab_size: int) -> dict[str, Any]:
  """The content of config.json. Raises UserError for an encoder that the class does not compute.

  Args: see architecture.config.
  """
  needed = [key.ours for key in a.keys if key.ours and (key.theirs or key.write)]
  if lacking := [field for field in needed if not hasattr(encoder, field)]:
    raise errors.UserError(
      f'{a.name} needs an encoder with {lacking[0]} (encoder={a.part}), and this one has none: '
      'choose another --architecture.'
    )
  at, out = At(a, encoder, special, vocab_size, a.sizes(encoder, special)), {}
  for key in a.keys:
    if key.write is not None or key.theirs and key.ours:
      value = getattr(at.encoder, key.ours) if key.write is None else key.write(at)
      if key.theirs:
        out[key.theirs] = value
  return out


def fields(keys: Iterable[Key], content: Mapping[str, Any]) -> dict[str, Any]:
  """The encoder's fields of a config.json. Raises UserError for one that no encoder can express."""
  keys = tuple(keys)
  content = {**usual(keys), **content}
  for name, value in usual(keys).items():
    _check_value(name, content[name], value)
  out = {}
  for key in keys:
    if key.read is not None or key.ours and key.theirs:
      value = content[key.theirs] if key.read is None else key.read(content)
      if key.ours:
        out[key.ours] = value
  return out


def _check_value(key, value, usual) -> None:
  """Raises UserError for a value of config.json of another kind than usual, or out of range."""
  number = isinstance(value, int | float) and not isinstance(value, bool)
  least = min(usual, 1) if isinstance(usual, int) else 0  # -1: take another field's value
  holds, needed = {
    bool: (isinstance(value, bool), 'true or false is'),
    int: (
      isinstance(value, int) and number and least <= value < _LARGEST,
      f'a whole number from {least:,} to {_LARGEST - 1:,} is',
    ),
    float: (number and 0 <= value < _LARGEST, 'a number of at least 0 is'),
    str: (isinstance(value, str), 'a text is'),
    type(None): (
      value is None or isinstance(value, int) and number and 0 <= value < _LARGEST,
      'an id or null is',
    ),
  }.get(type(usual), (True, ''))
  if not holds:
    raise errors.UserError(
      f'config.json says {key}={str(value)[:40]}: {needed} needed; download or export the '
      'directory again.'
    )


# The keys that all classes have.
COMMON = (
  written('architectures', lambda at: [at.a.name]),
  written('model_type', lambda at: at.a.model_type),
  written('vocab_size', lambda at: at.vocab_size),
  written('pad_token_id', lambda at: at.special['pad']),
  written('bos_token_id', None),
  written('eos_token_id', None),
  written('tie_word_embeddings', True),
  written('dtype', 'float32'),
  written('torch_dtype', 'float32'),  # the name before transformers 5
)
# For classes whose tokenizer has a first and a last token.
BEGIN_AND_END = (
  written('bos_token_id', lambda at: at.special['cls']),
  written('eos_token_id', lambda at: at.special['sep']),
)
