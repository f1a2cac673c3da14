"""Examples as rows of tokens: cut to the length, and framed by special tokens.

A part is a function in BY_NAME. It is called with the examples, their labels as numbers (or None),
the tokenizer and the frame, with the fields of `config.features` by name, and returns `Rows`.
Fields: bertzoo_jax/parts/features.py.
"""

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.parts import features as definitions
from bertzoo_jax.parts import named
from bertzoo_jax.tasks import choice_rows
from bertzoo_jax.tasks import words
from bertzoo_jax.tasks.answering import windows
from bertzoo_jax.tasks.examples import Examples
from bertzoo_jax.tasks.frames import Frame
from bertzoo_jax.tasks.frames import Rows
from bertzoo_jax.tasks.frames import encoded


def texts(examples: Examples, numbers, tokenizer, frame: Frame, *, truncation) -> Rows:
  """One text or two in one row.

  Args:
    examples: N of them.
    numbers: their labels; None without.
    tokenizer: has encode_as_transformers.
    frame: of the rows.
    truncation: all kinds cut the ends of texts, as the `tokenizers` library does.

  Raises:
    UserError: no room for a token, or the text to cut is too short.
  """
  is_pair = examples.b is not None
  words = frame.words(is_pair)
  room = frame.max_length - sum(role not in 'AB' for role, _ in words)
  if room < 1 + is_pair:
    raise errors.UserError(
      f'config.length={frame.max_length} leaves no room for text beside the special tokens: set '
      f'--config.length={frame.max_length - room + 1 + is_pair} or more.'
    )
  tokens = {'A': encoded(tokenizer.encode_as_transformers, examples.a)}
  if is_pair:
    tokens['B'] = encoded(tokenizer.encode_as_transformers, examples.b)
  lengths = {role: np.array([len(t) for t in text], np.int64) for role, text in tokens.items()}
  kept = _kept(truncation, lengths, room, examples)
  return _framed(words, frame.special, tokens, kept, lengths, numbers)


def longest_first(first, second, room):
  """How many tokens of each of two texts stay if the longer one is cut first (int64 [N] each).

  If both have to be cut they share the room; of an odd room, the longer text has the larger half,
  and the second where they are equally long.
  """
  short, long = np.minimum(first, second), np.maximum(first, second)
  longer = np.where(short > room, short, np.maximum(short, room - short))
  longer = np.minimum(longer, long)
  both = short + longer > room
  short, longer = np.where(both, room // 2, short), np.where(both, room - room // 2, longer)
  swapped = first > second
  return np.where(swapped, longer, short), np.where(swapped, short, longer)


def _kept(truncation, lengths, room, examples):
  """{role: tokens that stay, int64 [N]}."""
  if 'B' not in lengths:
    if truncation == 'only_second':
      raise errors.UserError(
        'config.features.truncation=only_second needs pairs of texts: set only_first.'
      )
    return {'A': np.minimum(lengths['A'], room)}
  first, second = lengths['A'], lengths['B']
  if truncation == 'longest_first':
    first, second = longest_first(first, second, room)
    return {'A': first, 'B': second}
  role, other = ('A', second) if truncation == 'only_first' else ('B', first)
  over = first + second > room
  kept = np.where(over, room - other, lengths[role])
  if (kept[over] < 1).any():
    i = int(np.flatnonzero(over & (kept < 1))[0])
    raise errors.UserError(
      f'{examples.places[i]}: its other text alone has {int(other[i])} tokens, so '
      f'config.features.truncation={truncation} leaves none of the text to cut: set longest_first '
      'or a larger --config.length.'
    )
  return {**lengths, role: kept}


def _framed(words, special, tokens, kept, lengths, numbers) -> Rows:
  count = len(tokens['A'])
  fixed = {role: np.array([special[role]], np.int32) for role, _ in words if role not in 'AB'}
  pieces, sizes = [], np.ones((count, len(words)), np.int64)
  for j, (role, _) in enumerate(words):
    if role in 'AB':
      sizes[:, j] = kept[role]
  for i in range(count):
    for role, _ in words:
      pieces.append(fixed[role] if role in fixed else tokens[role][i][: kept[role][i]])
  segments = np.tile(np.array([segment for _, segment in words], np.int32), count)
  return Rows(
    ids=np.concatenate(pieces or [np.zeros(0, np.int32)]).astype(np.int32),
    segments=np.repeat(segments, sizes.reshape(-1)),
    offsets=np.concatenate([[0], np.cumsum(sizes.sum(axis=1))]).astype(np.int64),
    uncut=sizes.sum(axis=1) + sum(lengths[role] - kept[role] for role in lengths),
    labels=numbers,
  )


BY_NAME = {
  'texts': texts,
  'question_windows': named.of_fields(windows.question_windows, definitions.question_windows),
  'words': words.words,
  'choice_rows': named.of_fields(choice_rows.choice_rows, definitions.choice_rows),
}
