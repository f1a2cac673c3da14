"""Questions with options as rows of tokens: one row for each option."""

import numpy as np

from bertzoo_jax.common import errors
from bertzoo_jax.parts import features as definitions
from bertzoo_jax.tasks import frames


def choice_rows(
  fields: definitions.ChoiceRows, examples, numbers, tokenizer, frame: frames.Frame
) -> frames.Rows:
  """A unit of C rows for each question: its text beside the question with one of the options.

  The question and its option are one text: the option replaces the question's blank, or follows the
  question. It keeps `option_tokens` tokens, and the text is cut at its end to fit the row. Without
  a text, the row has the question beside the option. Rows that fill a unit have only special tokens
  and option_weights 0. Arguments: see `features.texts`.

  Raises UserError: more options than fit; no room.
  """
  option_lists = examples.column('options')
  group = fields.options or max(examples.values[0].most, *map(len, option_lists))
  for row, place in zip(option_lists, examples.places):
    if len(row) > group:
      raise errors.UserError(
        f'{place} has {len(row)} options, and config.features.options={group}: set '
        f'--config.features.options={max(map(len, option_lists))}.'
      )
  template, room = frame.words(True), frame.room(True, 2, 'two texts')
  texts, asked = _texts(examples, fields.blank)
  (texts, text_index), (options, option_index) = map(
    frames.distinct, (texts, [option for row in asked for option in row])
  )
  encode = tokenizer.encode_as_transformers
  texts, options = frames.tokens_of(encode, texts), frames.tokens_of(encode, options)
  counts = np.array([len(row) for row in asked], np.int64)
  real = np.arange(group) < counts[:, None]
  text, option = np.zeros((2, *real.shape), np.int64)
  text[real], option[real] = np.repeat(text_index, counts), option_index
  text_size, option_size = (
    np.where(real, x, 0) for x in (texts.sizes[text], options.sizes[option])
  )
  option_kept = np.minimum(option_size, min(fields.option_tokens, max(room // 2, 1)))
  lost = option_size - option_kept if fields.option_cut == 'start' else 0
  both = [
    (texts.values, texts.offsets[text], np.minimum(text_size, room - option_kept)),
    (options.values, options.offsets[option] + lost, option_kept),
  ]
  parts = zip('AB', both if fields.order == 'text_first' else both[::-1])
  parts = {role: (tokens, *(x.reshape(-1) for x in where)) for role, (tokens, *where) in parts}
  laid, _ = frames.laid_out(template, frame.special, parts)
  alone = sum(role not in 'AB' for role, _ in template)
  return frames.Rows(
    **laid,
    uncut=(text_size + option_size + alone).reshape(-1),
    labels=numbers,
    group=group,
    features={'option_weights': real.astype(np.float32)},
  )


def _texts(examples, blank):
  """(texts, [question with each option])."""
  texts, asked = [], []
  for text, question, options, *_ in examples.values:
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
