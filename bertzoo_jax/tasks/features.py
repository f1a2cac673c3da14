"""Examples as rows of tokens: cut to the length, and framed by special tokens.

A part is a function in BY_NAME. It is called with the examples, their labels as numbers (or None),
the tokenizer and the frame, with the fields of `config.features` by name, and returns `Rows`.
Fields: bertzoo_jax/parts/features.py.
"""

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.parts import features as definitions
from bertzoo_jax.tasks import choice_rows
from bertzoo_jax.tasks import frames
from bertzoo_jax.tasks import words
from bertzoo_jax.tasks.answering import windows
from bertzoo_jax.tasks.frames import Rows


def texts(examples, numbers, tokenizer, frame) -> Rows:
  """One text or two in one row. The ends of texts are cut, as the `tokenizers` library does with
  longest_first. numbers: labels of the examples; None without. frame: frames.Frame.

  Raises UserError if there is no room for a token.
  """
  is_pair = examples.values[0].b is not None
  room = frame.room(is_pair, 1 + is_pair)
  pair = {role: examples.column(role.lower()) for role in 'AB'[: 1 + is_pair]}
  tokens = {r: frames.tokens_of(tokenizer.encode_as_transformers, x) for r, x in pair.items()}
  lengths = {role: text.sizes for role, text in tokens.items()}
  kept = {'A': np.minimum(lengths['A'], room)}
  if is_pair:
    kept = dict(zip('AB', longest_first(*lengths.values(), room)))
  parts = {role: (text.values, text.offsets[:-1], kept[role]) for role, text in tokens.items()}
  laid, sizes = frames.laid_out(frame.words(is_pair), frame.special, parts)
  cut = sum(lengths[role] - kept[role] for role in lengths)
  return Rows(**laid, uncut=sizes.sum(axis=1) + cut, labels=numbers)


def text_rows(fields: definitions.TextRows, examples, numbers, tokenizer, frame) -> Rows:
  """A unit of a row for each text: two, and the negatives. Arguments and errors: see `texts`."""
  groups = [(v.a, v.b, *v.negatives) for v in examples.values]
  for place, group in zip(examples.places, groups):
    if len(group) != len(groups[0]) or None in group:
      raise errors.UserError(
        f'{place} has not the two or more texts of the other rows: name the columns, '
        '--config.source.text_a, text_b and negatives.'
      )
  before = (fields.prompt_a, *[fields.prompt_b] * (len(groups[0]) - 1))
  flat = [prompt + text for group in groups for prompt, text in zip(before, group)]
  distinct, index = frames.distinct(flat)
  tokens = frames.tokens_of(tokenizer.encode_as_transformers, distinct)
  sizes, room = tokens.sizes[index], frame.room(False)
  parts = {'A': (tokens.values, tokens.offsets[index], np.minimum(sizes, room))}
  laid, kept = frames.laid_out(frame.words(False), frame.special, parts)
  uncut = kept.sum(axis=1) + np.maximum(sizes - room, 0)
  return Rows(**laid, uncut=uncut, labels=numbers, group=len(before))


def longest_first(first, second, room):
  """Tokens that remain of each of two texts if the longer one is cut first (int64 [N] each).

  If both have to be cut they share the room. The longer text has the larger half of an odd room, or
  the second text if they are equally long.
  """
  short, long = np.minimum(first, second), np.maximum(first, second)
  longer = np.where(short > room, short, np.maximum(short, room - short))
  longer = np.minimum(longer, long)
  both = short + longer > room
  short, longer = np.where(both, room // 2, short), np.where(both, room - room // 2, longer)
  swapped = first > second
  return np.where(swapped, longer, short), np.where(swapped, short, longer)


BY_NAME = {
  'texts': texts,
  'text_rows': text_rows,
  'question_windows': windows.question_windows,
  'words': words.words,
  'choice_rows': choice_rows.choice_rows,
}
