"""Questions with options as rows of tokens: one row for each option."""

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.tasks.choices import Choices
from bertzoo_jax.tasks.frames import Frame
from bertzoo_jax.tasks.frames import Rows
from bertzoo_jax.tasks.frames import encoded


def choice_rows(examples: Choices, numbers, tokenizer, frame: Frame, fields) -> Rows:
  """A unit of C rows for each question: its text beside the question with one of the options.

  The question and its option are one text: the option in place of the question's blank, else
  behind it. It keeps `option_tokens` tokens, and the text is cut at its end to what is left of the
  row. Questions without a text have the question beside the option. Rows that fill a unit have
  special tokens alone and option_weights 0.

  Args:
    examples: N of them.
    numbers: labels, int32 [N]; None without.
    tokenizer: has encode_as_transformers.
    frame: of the rows.
    fields: of config.features.

  Raises:
    UserError: more options than fit; no room.
  """
  many = fields.options or examples.most
  for own, place in zip(examples.options, examples.places):
    if len(own) > many:
      raise errors.UserError(
        f'{place} has {len(own)} options, and config.features.options={many}: set '
        f'--config.features.options={max(map(len, examples.options))}.'
      )
  template = frame.words(True)
  alone = sum(role not in 'AB' for role, _ in template)
  room = frame.max_length - alone
  if room < 2:
    raise errors.UserError(
      f'config.length={frame.max_length} leaves no room for two texts beside the special tokens: '
      f'set --config.length={alone + 2} or more.'
    )
  texts, asked = _texts(examples, fields.blank)
  text_ids, asked_ids = _ids(tokenizer, texts), _ids(tokenizer, [a for own in asked for a in own])
  most = min(fields.option_tokens, max(room // 2, 1))
  fixed = {r: np.array([frame.special[r]], np.int32) for r, _ in template if r not in 'AB'}
  pieces, sizes, uncut, at, nothing = [], [], [], 0, np.zeros(0, np.int32)
  for i, own in enumerate(asked):
    for c in range(many):
      text, whole = (text_ids[i], asked_ids[at + c]) if c < len(own) else (nothing, nothing)
      uncut.append(len(text) + len(whole) + alone)
      begin = max(len(whole) - most, 0) if fields.option_cut == 'start' else 0
      whole = whole[begin : begin + most]
      both = [text[: room - len(whole)], whole]
      first, second = both if fields.order == 'text_first' else both[::-1]
      row = [{**fixed, 'A': first, 'B': second}[role] for role, _ in template]
      pieces += row
      sizes.append([len(x) for x in row])
    at += len(own)
  sizes = np.array(sizes, np.int64).reshape(-1, len(template))
  segments = np.tile(np.array([segment for _, segment in template], np.int32), len(sizes))
  weights = [[float(c < len(own)) for c in range(many)] for own in asked]
  return Rows(
    ids=np.concatenate([*pieces, nothing]).astype(np.int32),
    segments=np.repeat(segments, sizes.reshape(-1)),
    offsets=np.concatenate([[0], np.cumsum(sizes.sum(axis=1))]).astype(np.int64),
    uncut=np.array(uncut, np.int64),
    labels=numbers,
    group=many,
    features={'option_weights': np.array(weights, np.float32).reshape(len(asked), many)},
  )


def _texts(examples, blank):
  """(texts, [question with each option])."""
  texts, asked = [], []
  for text, question, options in zip(examples.texts, examples.questions, examples.options):
    if not text:  # the options stand beside the question
      texts.append(question)
      asked.append(list(options))
      continue
    texts.append(text)
    asked.append([_asked(question, option, blank) for option in options])
  return texts, asked


def _asked(question, option, blank) -> str:
  if blank and blank in question:
    return question.replace(blank, option)
  return f'{question} {option}' if question else option


def _ids(tokenizer, texts):
  """The tokens of texts, each different text tokenised once."""
  different = list(dict.fromkeys(texts))
  known = dict(zip(different, encoded(tokenizer.encode_as_transformers, different)))
  return [known[text] for text in texts]
